r"""Weighted least squares as the step of robust regression.

With weights held fixed, the upper bound is quadratic in theta, and its minimiser solves
the normal equations ``H delta = G`` of `linear.py`.

H costs p times as much as G. On many rows it is therefore kept while the weights change
little, and theta moves along H_old^-1 G by exact line search. That decreases the upper
bound by half of (delta' G)**2 / delta' H delta, which the line search computes: a
sufficient descent in the sense of the paper's appendix, and all but the minimiser
itself, since what matters of H is its shape and not its size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse.linalg

from sklearn_mm._robust.elastic_net import minimize_bound
from sklearn_mm._robust.linear import LinearPoint, LinearResidual
from sklearn_mm._robust.normal_equations import SymmetricFactor
from sklearn_mm._robust.problem import Confidence, HalfQuadraticProblem, squared_norms
from sklearn_mm._rows.table import Column
from sklearn_mm._solver.roles import Array, Inferred, Moved, Proposal, Trial
from sklearn_mm.kernels import Kernel

# H is kept on more rows than this, while the weights' mean relative change is below.
_KEEP_ROWS, _KEEP_DRIFT = 10_000, 0.2
# H is not formed for more sparse columns than this.
_MAX_GRAM = 2_000
_CG_TOLERANCE = 1e-8
# Over-relaxation beyond this keeps less than 3/4 of the decrease; it is not believed.
_MAX_RELAXATION = 1.5


@dataclass
class Reweighted(Proposal):
    """Where weighted least squares leads, and how residuals change on the way."""

    theta: Array
    moved: Column | None = None  # None if they have to be computed


@dataclass
class KeptGram:
    """A factor of H, the weights that it belongs to, and the latest distance."""

    factor: SymmetricFactor
    weights: Column  # in single precision
    slope: float  # G' H^-1 G of the latest step, a squared distance


@dataclass
class Workspace:
    """What outlives a theta, and a stage of a run.

    Memory of the length of the data is filled again and again: fresh pages take as long
    to get as the numbers in them to compute.
    """

    weights: Column | None = None
    spare: Column | None = None  # for the residuals of the next point
    gram: KeptGram | None = None  # the matrix of an earlier round
    latest: Reweighted | None = None  # it alone may hold changes of residuals


@dataclass
class ReweightedLeastSquares:
    """Go to the minimiser of the upper bound, or nearly so with a kept matrix.

    Parameters
    ----------
    over_relaxed : bool, default=False
        Whether to go further than the minimiser, by the ratio of the curvatures of the
        upper bound and of J. For exact weights near the end of a run.
    resolution : float, default=0.0
        Residuals below are rounding; moves need not be smaller.
    state : Workspace
        State, which the step of a next stage may go on with.
    """

    over_relaxed: bool = False
    resolution: float = 0.0
    state: Workspace = field(default_factory=Workspace)

    def propose(
        self,
        problem: HalfQuadraticProblem,
        point: LinearPoint,
        trial: Trial,
        rejected: Proposal | None = None,
    ) -> Reweighted:
        """The minimiser, and what the upper bound loses on the way to it."""
        state, latest = self.state, self.state.latest
        state.weights = problem.weights(point, trial.latent, state.weights)
        relaxation = 1.0
        if self.over_relaxed:
            relaxation = curvature_ratio(problem, point, trial.latent)
        if latest is not None and latest.moved is not None:
            state.spare, latest.moved = latest.moved, None
        state.latest = self._solve(problem.model, point, state.weights, relaxation)
        return state.latest

    def take(
        self, problem: HalfQuadraticProblem, point: LinearPoint, inferred: Inferred
    ) -> Moved:
        """Go there."""
        proposal = inferred.trial.proposal
        assert isinstance(proposal, Reweighted)
        model: LinearResidual = problem.model
        if proposal.moved is not None:
            memory, proposal.moved = proposal.moved, None
            new = model.moved(point, proposal.theta, memory)
        else:
            new = model.at(proposal.theta, self.state.spare)
        self.state.spare = point.residual  # nobody needs it any more
        # decrease = sum_i w_i u_i ||fitted_i - fitted_i'||**2 / 2 (+ penalty): the root
        # mean square change of the fitted values, invariant under any
        # reparametrisation of the model.
        square = 2.0 * max(proposal.decrease, 0.0) / problem.total_weight
        change = float(np.sqrt(square)) / max(problem.tau, self.resolution)
        return Moved(new, change, info={"decrease": proposal.decrease})

    def _solve(
        self,
        model: LinearResidual,
        point: LinearPoint,
        weights: Column,
        relaxation: float,
    ) -> Reweighted:
        if model.l1:
            theta, decrease = minimize_bound(model, point, weights)
            return Reweighted(decrease, theta)
        gram = self.state.gram
        if gram is not None and _is_close(model, weights, gram):
            found = self._line_search(model, point, weights, relaxation, gram)
            if found is not None:
                return found
        delta, G, factor = solve(model, point, weights)
        if factor is not None and model.rows.n_rows > _KEEP_ROWS:
            self._keep(model, weights, factor, float(np.sum(delta * G)))
        # A relaxation f goes f times as far, which leaves f (2 - f) of the decrease.
        share = relaxation * (2.0 - relaxation)
        decrease = 0.5 * share * float(np.sum(delta * G))
        return Reweighted(decrease, point.theta + relaxation * delta.ravel())

    def _keep(
        self,
        model: LinearResidual,
        weights: Column,
        factor: SymmetricFactor,
        slope: float,
    ) -> None:
        gram = self.state.gram
        memory = None if gram is None else gram.weights
        self.state.gram = None  # until the weights are those that belong to it
        if memory is None:
            memory = model.rows.column(dtype=np.float32)
        memory = model.rows.beside.fill(memory, _rounded, weights)
        self.state.gram = KeptGram(factor, memory, slope)

    def _line_search(
        self,
        model: LinearResidual,
        point: LinearPoint,
        weights: Column,
        relaxation: float,
        gram: KeptGram,
    ) -> Reweighted | None:
        """Exact minimisation of the upper bound along H_old^-1 G.

        None if the distance has not halved since the last step. A small change of the
        weights is a large one of H where it falls on a row of high leverage; then H is
        due to be computed anew.
        """
        G = model.right_side(point.theta, model.gradient(point.residual, weights))
        delta = gram.factor.solve(G)
        slope = float(np.sum(delta * G))
        if slope > 0.25 * gram.slope:
            return None
        gram.slope = slope
        memory, self.state.spare = self.state.spare, None
        moved = model.fitted(delta.ravel(), memory)
        beside = model.rows.beside
        curvature = float(beside.sum(_weighted_squares, moved, weights))
        curvature += float(np.sum(model.ridge[:, None] * np.square(delta)))
        if not (slope > 0.0 and curvature > 0.0):
            self.state.spare = moved
            return Reweighted(0.0, point.theta)
        step = relaxation * slope / curvature
        moved = beside.fill(moved, _times, moved, args=(-step,))
        decrease = 0.5 * (2.0 - relaxation) * step * slope
        return Reweighted(decrease, point.theta + step * delta.ravel(), moved)


def solve(
    model: LinearResidual, point: LinearPoint, weights: Column
) -> tuple[Array, Array, SymmetricFactor | None]:
    """The change of theta that minimises the bound, G, and a factor of H."""
    if model.is_sparse and model.shape[0] > _MAX_GRAM:
        return *_conjugate_gradients(model, point, weights), None
    H, G = model.normal_equations(point.residual, weights)
    H.flat[:: len(H) + 1] += model.ridge  # the diagonal
    G = model.right_side(point.theta, G)
    factor = SymmetricFactor(H)
    return factor.solve(G), G, factor


def least_squares(model: LinearResidual, weights: Column) -> LinearPoint:
    """The point of least squares, with the model's penalties."""
    origin = model.at(np.zeros(model.shape).ravel())
    if model.l1:
        theta, _ = minimize_bound(model, origin, weights)
    else:
        theta = solve(model, origin, weights)[0].ravel()
    return model.at(theta, origin.residual)


def _is_close(model: LinearResidual, weights: Column, gram: KeptGram) -> bool:
    change, size = model.rows.beside.sum(_drift, weights, gram.weights)
    return bool(change <= _KEEP_DRIFT * size)


def curvature_ratio(
    problem: HalfQuadraticProblem, point: LinearPoint, latent: Confidence
) -> float:
    """Ratio of the curvatures of the upper bound and of J, near a minimum.

    For residuals of dimension d, J has curvature omega + 2 z omega'(z) / d in the mean
    over directions where the bound has omega. Where residuals do not depend on the
    design, weighted least squares falls short of J's minimum by the ratio of their
    means. Going further keeps the monotone decrease, since the bound is quadratic in
    theta.
    """
    h = 1e-3  # of the one-sided difference; the result need not be exact
    args = (problem.kernel, problem.tau, latent.effort, h)
    bound, slope = problem.rows.sum(
        _curvatures, point.residual, problem.sample_weight, args=args
    )
    curvature = bound + 2.0 * slope / h / problem.model.shape[1]
    if not curvature > bound / _MAX_RELAXATION:
        return 1.0  # far from a minimum, or a kernel for which this is no guide
    return float(bound / curvature)


def _curvatures(
    residual: Array,
    sample_weight: Array,
    kernel: Kernel,
    tau: float,
    effort: float,
    h: float,
) -> Array:
    z = squared_norms(residual, tau)
    u = kernel.weight(z * effort**2)
    shrunk = kernel.weight(z * (1.0 + h))
    return np.array([sample_weight @ u, sample_weight @ (shrunk - u)])


def _conjugate_gradients(
    model: LinearResidual, point: LinearPoint, weights: Column
) -> tuple[Array, Array]:
    """The same minimiser without forming H, for many sparse columns.

    Conjugate gradients minimise over subspaces: delta' H delta = delta' G.
    """
    q, d = model.shape
    G = model.right_side(point.theta, model.gradient(point.residual, weights))
    memory = model.rows.column(1)

    def product(v: Array) -> Array:
        fitted = model.fitted(v, memory)
        products: Array = model.gradient(fitted, weights)[:, 0] + model.ridge * v
        return products

    H = scipy.sparse.linalg.LinearOperator((q, q), matvec=product, dtype=float)
    cg: Any = scipy.sparse.linalg.cg
    columns = [cg(H, G[:, j], rtol=_CG_TOLERANCE, maxiter=q)[0] for j in range(d)]
    return np.column_stack(columns), G


# Tasks on columns.


def _drift(weights: Array, old: Array) -> Array:
    change = np.abs(weights - old)
    return np.array([change.sum(), old.sum(dtype=np.float64)])


def _rounded(values: Array, out: Array | None = None) -> Array:
    if out is None:
        return values.astype(np.float32)
    np.copyto(out, values, casting="same_kind")
    return out


def _weighted_squares(moved: Array, weights: Array) -> float:
    return float(np.einsum("i,ij,ij->", weights, moved, moved))


def _times(values: Array, factor: float, out: Array | None = None) -> Array:
    return np.multiply(values, factor, out=out)
