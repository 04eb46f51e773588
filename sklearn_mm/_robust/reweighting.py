r"""Weighted least squares as the step of robust regression.

For fixed weights, the upper bound is quadratic in theta, and its minimiser solves the
normal equations ``H delta = G`` of `linear.py`.

H takes p times as long to compute as G. For many rows, it is therefore kept while the
weights change little, and theta moves along H_old^-1 G by exact line search. That
decreases the upper bound by half of (delta' G)**2 / delta' H delta, which the line
search computes: a sufficient descent in the sense of the paper's appendix. The result
is close to the minimiser, since only the shape of H matters, not its size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sklearn_mm._robust.elastic_net import minimize_bound
from sklearn_mm._robust.linear import LinearPoint, LinearResidual, products
from sklearn_mm._robust.normal_equations import SymmetricFactor, forms_gram, solve
from sklearn_mm._robust.problem import Confidence, HalfQuadraticProblem, squared_norms
from sklearn_mm._rows.table import Column, SumOver
from sklearn_mm._solver.roles import Array, Inferred, Moved, Proposal, Trial
from sklearn_mm.kernels import Kernel

# H is kept if there are more rows or entries of X than this, as long as the mean
# relative change of the weights is below the third number.
_KEEP_ROWS, _KEEP_ENTRIES, _KEEP_DRIFT = 10_000, 500_000, 0.2
# More over-relaxation keeps less than 3/4 of the decrease and is not used.
_MAX_RELAXATION = 1.5
_DIFFERENCE = 1e-3  # step of one-sided differences for curvatures


@dataclass
class Reweighted(Proposal):
    """Solution of weighted least squares, and the change of the residuals."""

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

    Arrays of the length of the data are reused, since allocating new pages takes as
    long as computing the numbers in them.
    """

    weights: Column | None = None
    spare: Column | None = None  # for the residuals of the next point
    gram: KeptGram | None = None  # the matrix of an earlier round
    latest: Reweighted | None = None  # only this one may hold changes of residuals
    total_weight: float | None = None  # of the samples, which makes changes relative


@dataclass
class ReweightedLeastSquares:
    """Move to the minimiser of the upper bound, or close to it with a kept matrix.

    Parameters
    ----------
    over_relaxed : bool, default=False
        Whether to move further than the minimiser, by the ratio of the curvatures of
        the upper bound and of J. This is useful with exact weights, near the end of a
        run.
    resolution : float, default=0.0
        Smaller residuals are rounding errors, and smaller moves are not necessary.
    state : Workspace
        State, which the step of the next stage can continue to use.
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
        """The minimiser and the decrease of the upper bound."""
        state, latest, model = self.state, self.state.latest, problem.model
        gram, sums = state.gram, trial.latent.ahead
        if sums is None:
            sums = model.rows.sums(self.wanted(problem, point, trial.latent))
        relaxation = 1.0
        if self.over_relaxed:
            relaxation = relaxation_of(next(sums), model.shape[1])
        if latest is not None and latest.moved is not None:
            state.spare, latest.moved = latest.moved, None
        state.latest = None
        found = None
        if gram is None and forms_gram(model):
            found = next(sums)
        elif gram is not None and _is_close(*next(sums)):
            G = model.right_side(point.theta, model.centred(*next(sums)))
            state.latest = self._line_search(model, point, G, relaxation, gram)
        if state.latest is None:
            state.latest = self._solve(model, point, relaxation, found)
        return state.latest

    def wanted(
        self, problem: HalfQuadraticProblem, point: LinearPoint, latent: Confidence
    ) -> list[SumOver]:
        """Sums that a proposal is made of, of weights that `state` holds then."""
        state, wanted = self.state, []
        state.weights = weights = problem.weights(point, latent, state.weights)
        if self.over_relaxed:
            wanted.append(curvatures(problem, point))
        if state.gram is not None:
            wanted += [
                SumOver(_drift, (weights, state.gram.weights), (), False),
                SumOver(products, (weights, point.residual)),
            ]
        elif forms_gram(problem.model):
            wanted.append(problem.model.normal_sums(point.residual, weights))
        return wanted

    def take(
        self, problem: HalfQuadraticProblem, point: LinearPoint, inferred: Inferred
    ) -> Moved:
        """Move to the proposed theta."""
        proposal, state = inferred.trial.proposal, self.state
        assert isinstance(proposal, Reweighted)
        model: LinearResidual = problem.model
        if state.total_weight is None:
            state.total_weight = problem.rows.total(problem.sample_weight)
        if proposal.moved is not None:
            memory, proposal.moved = proposal.moved, None
            new = model.moved(point, proposal.theta, memory)
        else:
            new = model.at(proposal.theta, state.spare)
        state.spare = point.residual  # not needed any more
        # decrease = sum_i w_i u_i ||fitted_i - fitted_i'||**2 / 2 (+ penalty): the root
        # mean square change of the fitted values, invariant under any
        # reparametrisation of the model.
        square = 2.0 * max(proposal.decrease, 0.0) / state.total_weight
        change = float(np.sqrt(square)) / max(problem.tau, self.resolution)
        return Moved(new, change, info={"decrease": proposal.decrease})

    def _solve(
        self,
        model: LinearResidual,
        point: LinearPoint,
        relaxation: float,
        found: tuple[Array, Array] | None,
    ) -> Reweighted:
        """The minimiser itself; `found` are the normal equations, if they are known."""
        weights = self.state.weights
        if model.l1:
            theta, decrease = minimize_bound(model, point, weights)
            return Reweighted(decrease, theta)
        delta, G, factor = solve(model, point, weights, found)
        n, q = model.rows.n_rows, model.shape[0]
        if factor is not None and (n > _KEEP_ROWS or n * q > _KEEP_ENTRIES):
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
        self.state.gram = None  # until its weights are stored
        if memory is None:
            memory = model.rows.column(dtype=np.float32)
        beside = model.rows.beside
        kept = beside.keep(beside.fill(memory, _rounded, weights))
        self.state.gram = KeptGram(factor, kept, slope)

    def _line_search(
        self,
        model: LinearResidual,
        point: LinearPoint,
        G: Array,
        relaxation: float,
        gram: KeptGram,
    ) -> Reweighted | None:
        """Exact minimisation of the upper bound along H_old^-1 G.

        None if the distance has not halved since the last step. Small changes of the
        weights of rows with high leverage are large changes of H, which then has to be
        recomputed.
        """
        delta = gram.factor.solve(G)
        slope = float(np.sum(delta * G))
        if slope > 0.25 * gram.slope:
            return None
        gram.slope = slope
        memory, self.state.spare = self.state.spare, None
        moved = model.fitted(delta.ravel(), memory)
        beside = model.rows.beside
        curvature = float(beside.sum(_weighted_squares, moved, self.state.weights))
        curvature += float(np.sum(model.ridge[:, None] * np.square(delta)))
        if not (slope > 0.0 and curvature > 0.0):
            self.state.spare = moved
            return Reweighted(0.0, point.theta)
        step = relaxation * slope / curvature
        moved = beside.fill(moved, _times, moved, args=(-step,))
        decrease = 0.5 * (2.0 - relaxation) * step * slope
        return Reweighted(decrease, point.theta + step * delta.ravel(), moved)


def _is_close(change: float, size: float) -> bool:
    """Whether the weights are close to those of the kept matrix."""
    return bool(change <= _KEEP_DRIFT * size)


def curvatures(problem: HalfQuadraticProblem, point: LinearPoint) -> SumOver:
    """The sums from which `relaxation_of` is computed, with exact weights."""
    args = (problem.kernel, problem.tau, _DIFFERENCE)
    return SumOver(_curvatures, (point.residual, problem.sample_weight), args, False)


def relaxation_of(sums: Array, d: int) -> float:
    """Ratio of the curvatures of the upper bound and of J, near a minimum.

    For residuals of dimension d, J has curvature omega + 2 z omega'(z) / d in the mean
    over directions where the bound has omega. If residuals do not depend on the design,
    the step of weighted least squares is too short by the ratio of their means. A
    longer step still decreases the bound, which is quadratic in theta.
    """
    bound, slope = sums
    curvature = bound + 2.0 * slope / _DIFFERENCE / d
    if not curvature > bound / _MAX_RELAXATION:
        return 1.0  # far from a minimum, or not a good estimate for this kernel
    return float(bound / curvature)


def _curvatures(
    residual: Array,
    sample_weight: Array,
    kernel: Kernel,
    tau: float,
    h: float,
) -> Array:
    z = squared_norms(residual, tau)
    u = kernel.weight(z)
    shrunk = kernel.weight(z * (1.0 + h))
    return np.array([sample_weight @ u, sample_weight @ (shrunk - u)])


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
