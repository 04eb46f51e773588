r"""Robust estimation as a latent-variable problem.

The objective is :math:`J(\theta) = \sum_i w_i \tau^2 \psi(\|r_i(\theta)\|^2/\tau^2)
+ p(\theta)` with sample weights w, a kernel psi of width tau and a penalty p. Its
latent variables are the confidence weights u of the half-quadratic form (see
`sklearn_mm.kernels`)::

    upper(theta, u) = sum_i w_i (u_i ||r_i||**2 / 2 + tau**2 kappa(u_i)) + p(theta)

With u = omega(z / sigma**2) and sigma >= 1, this bound increases with sigma, from J
itself at sigma = 1 to the least-squares objective (u = 1) at infinity: kappa is convex,
omega minimises the bound, and every u moves away from its minimiser as sigma grows. The
effort is therefore 1/sigma. J is cheap to compute and is used as the lower bound, as in
the paper.

Weights are functions of the residuals and the effort. They are computed chunk by chunk
when they are needed, and only sums are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np

from sklearn_mm._rows.table import Column, Rows, SumOver
from sklearn_mm._solver.roles import (
    Array,
    Batch,
    Bounds,
    LargestColumns,
    NormalSystem,
)
from sklearn_mm.kernels import Kernel


class ResidualPoint(Protocol):
    """A theta and the residual vectors there, one per row."""

    @property
    def theta(self) -> Array:
        """The parameters."""

    @property
    def residual(self) -> Column:
        """Residual vectors, shape (n, d)."""

    @property
    def penalty(self) -> float:
        """The part of the objective that depends on theta alone."""


@dataclass(frozen=True)
class Confidence:
    """The latent: the weights of an effort, and the sums that they lead to."""

    effort: float = np.nan
    objective: float = np.nan  # J
    upper: float = np.nan
    ahead: Iterator[Any] | None = None  # sums for the step, if they were asked for
    foreseen: float = np.nan  # another effort; its bound comes first in `ahead`


@dataclass(frozen=True)
class HalfQuadraticProblem:
    """Robust fit of a residual model.

    Parameters
    ----------
    model : LinearResidual or CallableResidual
        Makes points of thetas.
    rows : Rows
        The table of columns to which the residuals belong.
    kernel, tau : Kernel, float or ndarray
        The kernel and its width, or one for each row if all rows are one chunk.
    sample_weight : ndarray of shape (n_samples,)
        Weight of each row.
    ahead : callable or None, default=None
        Sums that the step needs at a point for a latent. They are asked for together
        with the bounds, which saves a cluster a round trip. Only useful where the first
        effort that is tried is the one that is used.
    foreseen : tuple of float or None, default=None
        The effort of the first bounds of a run, and the one that is tried next. Only
        there are bounds, and sums of the step, computed ahead.
    """

    model: Any
    rows: Rows
    kernel: Kernel
    tau: Any
    sample_weight: Column
    ahead: Callable[[Any, Any, Confidence], Iterable[SumOver]] | None = None
    foreseen: tuple[float, float] | None = None

    def at(self, theta: Array) -> Any:
        """Residuals at theta."""
        return self.model.at(theta)

    def start(self, batch: Batch) -> Confidence:
        """Nothing is stored from one theta to the next."""
        return Confidence()

    def infer(
        self, point: ResidualPoint, latent: Confidence, effort: float
    ) -> Confidence:
        """Weights omega(z / sigma**2) with sigma = 1 / effort.

        J is computed once at a point: latents of other efforts there contain it.
        """
        known = latent.objective == latent.objective  # not nan
        objective, upper, following = latent.objective, np.nan, np.nan
        ahead = None
        if effort == latent.foreseen:
            ahead = latent.ahead
            assert ahead is not None
            upper = float(next(ahead)[1]) + point.penalty
        elif not known or effort != 1.0:
            if not known and self.foreseen is not None and effort == self.foreseen[0]:
                following = self.foreseen[1]
            bounds = self._bounds(point, effort, not known)
            rows = self.rows if self.ahead is None else self.model.rows
            found = rows.sums(chain([bounds], self._ahead(point, effort, following)))
            sums = next(found)
            if not known:
                objective = float(sums[0]) + point.penalty
            upper = float(sums[1]) + point.penalty
            if self.ahead is not None and (self.foreseen is None or following > 0.0):
                ahead = found
        elif effort == latent.effort:
            ahead = latent.ahead
        if effort == 1.0:  # exact weights: psi is the minimum over u
            upper = objective
        # max(): for sigma close to 1, the two agree up to rounding.
        upper = max(upper, objective)
        return Confidence(effort, objective, upper, ahead, following)

    def _bounds(self, point: ResidualPoint, effort: float, loss: bool) -> SumOver:
        columns = (point.residual, self.sample_weight)
        args = (self.kernel, self.tau, effort, loss, effort != 1.0)
        return SumOver(_bounds, columns, args, False)

    def _ahead(
        self, point: ResidualPoint, effort: float, following: float
    ) -> Iterable[SumOver]:
        """Sums that will be needed after the bounds of an effort."""
        if following == following:  # not nan
            yield self._bounds(point, following, False)
            effort = following
        elif self.foreseen is not None:
            return
        if self.ahead is not None:
            yield from self.ahead(self, point, Confidence(effort))

    def evaluate(self, point: ResidualPoint, latent: Confidence) -> Bounds:
        """The half-quadratic bound above J, and J itself."""
        return Bounds(latent.upper, latent.objective)

    def objective(self, point: ResidualPoint) -> float:
        """The robust objective J itself."""
        return self.infer(point, Confidence(), 1.0).objective

    def confidence(
        self, point: ResidualPoint, effort: float = 1.0, out: Column | None = None
    ) -> Column:
        """The weights u of all rows."""
        out = self.rows.column() if out is None else out
        args = (self.kernel, self.tau, effort)
        return self.rows.fill(out, _confidence, point.residual, args=args)

    def weights(
        self, point: ResidualPoint, latent: Confidence, out: Column | None = None
    ) -> Column:
        """Sample weights times u, of all rows."""
        out = self.rows.column() if out is None else out
        return self.rows.fill(
            out,
            _weights,
            point.residual,
            self.sample_weight,
            args=(self.kernel, self.tau, latent.effort),
        )

    # Methods for damped steps on nonlinear residuals.

    def linearized(self, point: Any) -> Any:
        """The point with the Jacobian of the residuals there."""
        return self.model.linearized(point)

    def normal_system(
        self, point: Any, latent: Confidence, columns: LargestColumns | None = None
    ) -> NormalSystem:
        """Gauss-Newton model of the upper bound."""
        system: NormalSystem = self.model.normal_system(
            point, self.weights(point, latent), columns=columns
        )
        return system

    def retract(self, point: ResidualPoint, delta: Array) -> Array:
        """Theta moved by delta, in the manner of the model."""
        theta: Array = self.model.retract(point.theta, delta)
        return theta

    def decrease(
        self, point: ResidualPoint, latent: Confidence, new: ResidualPoint
    ) -> float:
        """Decrease of the upper bound for fixed weights.

        Differences are summed, since near the minimum, the two bounds agree to almost
        all digits. The result is nan if residuals are not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            total = self.rows.sum(
                _decrease,
                point.residual,
                new.residual,
                self.sample_weight,
                args=(self.kernel, self.tau, latent.effort),
            )
        return float(total)


def make_problem(
    model: Any,
    kernel: Kernel,
    tau: Any,
    point: ResidualPoint,
    sample_weight: Array | None = None,
) -> HalfQuadraticProblem:
    """The problem of nonlinear residuals, whose number is that at a point."""
    n = len(point.residual)
    # Values per row require all rows in one chunk.
    whole = isinstance(kernel, WithKnownInliers) or np.ndim(tau) > 0
    rows = Rows(None, n, chunk_size=n if whole else None)
    sample_weight = np.ones(n) if sample_weight is None else sample_weight
    return HalfQuadraticProblem(model, rows, kernel, tau, sample_weight)


@dataclass(frozen=True, eq=False)
class WithKnownInliers(Kernel):
    """A kernel that is quadratic for residual vectors known to be inliers."""

    kernel: Kernel
    known: Any

    def loss(self, z: Any) -> Array:
        """Half of z where the inlier is known."""
        return np.where(self.known, np.asarray(z) / 2, self.kernel.loss(z))

    def weight(self, z: Any) -> Array:
        """One where the inlier is known."""
        return np.where(self.known, 1.0, self.kernel.weight(z))

    def penalty(self, u: Any) -> Array:
        """Zero where the inlier is known."""
        return np.where(self.known, 0.0, self.kernel.penalty(u))

    def upper_bound(self, z: Any, u: Any) -> Array:
        """Half of z where the inlier is known."""
        return np.where(self.known, np.asarray(z) / 2, self.kernel.upper_bound(z, u))


def squared_norms(residual: Array, width: Any = 1.0) -> Array:
    """Squared norms of residual vectors, in units of a common width or one per row."""
    if residual.shape[1] == 1:
        norms = np.square(residual[:, 0])
    else:
        norms = np.einsum("ij,ij->i", residual, residual)
    if not isinstance(width, float):  # one for each row
        norms /= np.square(width)
    elif width != 1.0:
        norms /= width * width
    return norms


def _bounds(
    residual: Array,
    sample_weight: Array,
    kernel: Kernel,
    tau: Any,
    effort: float,
    loss: bool,
    bound: bool,
) -> Array:
    """Sums of J and of the upper bound over some rows; zero if not requested."""
    z, sums = squared_norms(residual, tau), np.zeros(2)
    share = tau**2 * sample_weight
    if loss:
        sums[0] = share @ kernel.loss(z)
    if bound:
        sums[1] = share @ kernel.upper_bound(z, kernel.weight(z * effort**2))
    return sums


def _confidence(
    residual: Array,
    kernel: Kernel,
    tau: Any,
    effort: float,
    out: Array | None = None,
) -> Array:
    u = kernel.weight(squared_norms(residual, tau) * effort**2)
    if out is None:
        return u
    out[:] = u
    return out


def _weights(
    residual: Array,
    sample_weight: Array,
    kernel: Kernel,
    tau: Any,
    effort: float,
    out: Array | None = None,
) -> Array:
    u = kernel.weight(squared_norms(residual, tau) * effort**2)
    return np.multiply(sample_weight, u, out=out)


def _decrease(
    old: Array,
    new: Array,
    sample_weight: Array,
    kernel: Kernel,
    tau: Any,
    effort: float,
) -> float:
    z, z_new = squared_norms(old, tau), squared_norms(new, tau)
    if not np.isfinite(z_new).all():
        return float(np.nan)
    u = kernel.weight(z * effort**2)
    if np.ndim(tau):  # a width for each row
        sample_weight, tau = tau**2 * sample_weight, 1.0
    return 0.5 * tau**2 * float(sample_weight @ (u * (z - z_new)))
