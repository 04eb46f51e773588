r"""Robust estimation as a latent-variable problem.

The objective is :math:`J(\theta) = \sum_i w_i \tau^2 \psi(\|r_i(\theta)\|^2/\tau^2)
+ p(\theta)` with sample weights w, a kernel psi of width tau and a penalty p. Its
latent variables are the confidence weights u of the half-quadratic form (see
`sklearn_mm.kernels`)::

    upper(theta, u) = sum_i w_i (u_i ||r_i||**2 / 2 + tau**2 kappa(u_i)) + p(theta)

With u = omega(z / sigma**2) and sigma >= 1 this bound grows with sigma, from J itself
at sigma = 1 to the least-squares objective (u = 1) at infinity: kappa is convex, omega
minimises the bound, and every u moves away from its minimiser as sigma grows. So the
effort is 1/sigma. J is cheap here and serves as the lower bound, as in the paper.

Weights are functions of the residuals and the effort. On many rows they are computed
chunk by chunk where they are needed, and nothing is kept but the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from sklearn_mm._rows.workers import fill_chunks, map_chunks
from sklearn_mm._solver.roles import ALL_ROWS, Array, Bounds, NormalSystem, Rows
from sklearn_mm.kernels import Kernel

# Squares of residuals are clipped here, so that 0 * z stays zero for every z.
_HUGE = 1e300
# Over-relaxation beyond this keeps less than 3/4 of the decrease; it is not believed.
_MAX_RELAXATION = 1.5


class ResidualModel(Protocol):
    """Residual vectors r_i(theta), one per row."""

    def residual(self, theta: Array) -> Array:
        """All of them; the latest are kept."""

    def squared_norms(self, theta: Array, rows: slice = ALL_ROWS) -> Array:
        """The squared norm of every row's residual."""

    def penalty(self, theta: Array) -> float:
        """The part of the objective that depends on theta alone."""


class LinearModel(ResidualModel, Protocol):
    """Residuals that are linear in theta."""

    def minimize(
        self, theta: Array, weights: Array, relaxation: float = 1.0
    ) -> tuple[Array, float]:
        """Minimise sum_i weights_i ||r_i||**2 / 2 + penalty; theta and the decrease.

        A relaxation f in (0, 2) goes f times as far as the minimiser, which leaves
        f (2 - f) of the decrease.
        """


class NonlinearModel(ResidualModel, Protocol):
    """Residuals that can be linearised; the penalty is zero."""

    def normal_system(self, theta: Array, weight: Array) -> NormalSystem:
        """Gauss-Newton model of sum_i weight_i ||r_i||**2 / 2."""

    def retract(self, theta: Array, delta: Array) -> Array:
        """Theta moved by delta."""


@dataclass(frozen=True)
class Confidence:
    """The latent: weights u at one theta, with what can be reused at that theta."""

    theta: Array | None = None
    objective: float = np.nan  # J(theta)
    effort: float = np.nan
    upper: float = np.nan
    solution: list[tuple[Array, float, float]] | None = None
    # Kept if there is a single chunk of rows:
    z: Array | None = None  # squared residual norms in units of tau**2
    u: Array | None = None


@dataclass(frozen=True)
class HalfQuadraticProblem:
    """Robust fit of a residual model; the total weight makes changes relative."""

    model: Any  # a LinearModel or a NonlinearModel
    kernel: Kernel
    tau: float
    sample_weight: Array
    resolution: float = 0.0  # residuals below are rounding; moves need not be smaller
    residual_dim: int = 1
    over_relaxed: bool = False  # go further than the minimiser with exact weights
    chunks: Sequence[slice] = (ALL_ROWS,)
    n_jobs: int | None = None
    # Memory of the weights of the latest minimiser, which the next ones fill again.
    _weights: list[Array] = field(default_factory=list, compare=False, repr=False)

    def start(self, rows: Rows) -> Confidence:
        """Nothing is kept from one theta to the next."""
        return Confidence()

    def infer(self, theta: Array, latent: Confidence, effort: float) -> Confidence:
        """Weights omega(z / sigma**2) with sigma = 1 / effort."""
        new = latent.theta is not theta
        if new:
            latent = Confidence(theta)
        if len(self.chunks) == 1:
            z = self.z(theta) if new else latent.z
            latent = replace(latent, z=z, u=self.kernel.weight(z * effort**2))
        latent = replace(latent, effort=effort, solution=[])
        objective, upper = self._sum(theta, lambda rows: self._bounds(latent, rows))
        penalty = self.model.penalty(theta)
        if new:
            latent = replace(latent, objective=objective + penalty)
        if effort == 1.0:  # exact weights: psi is the minimum over u
            return replace(latent, upper=latent.objective)
        # max(): for sigma close to 1 the two agree but for rounding.
        return replace(latent, upper=max(upper + penalty, latent.objective))

    def evaluate(self, theta: Array, latent: Confidence) -> Bounds:
        """The half-quadratic bound above J, and J itself."""
        return Bounds(latent.upper, latent.objective)

    def _bounds(self, latent: Confidence, rows: slice) -> Array:
        """J, unless it is known, and the upper bound, unless it is J, of some rows."""
        z, values = self._z(latent, rows), np.zeros(2)
        share = self.tau**2 * self.sample_weight[rows]
        if np.isnan(latent.objective):
            values[0] = share @ self.kernel.loss(z)
        if latent.effort != 1.0:
            u = self.weights(latent, rows)
            values[1] = share @ self.kernel.upper_bound(z, u)
        return values

    def _z(self, latent: Confidence, rows: slice) -> Array:
        return self.z(latent.theta, rows) if latent.z is None else latent.z[rows]

    def weights(self, latent: Confidence, rows: slice = ALL_ROWS) -> Array:
        """The weights u of some rows."""
        if latent.u is not None:
            return latent.u[rows]
        return self.kernel.weight(self._z(latent, rows) * latent.effort**2)

    def sampled_weights(self, latent: Confidence, out: Array | None = None) -> Array:
        """Sample weights times u, of all rows."""
        return self.fill_rows(
            latent.theta,
            lambda rows: self.sample_weight[rows] * self.weights(latent, rows),
            np.empty(self.n_samples) if out is None else out,
        )

    def spare_memory(self) -> Array:
        """An array with a number for each row, to be filled."""
        return self._weights.pop() if self._weights else np.empty(self.n_samples)

    @property
    def n_samples(self) -> int:
        return len(self.sample_weight)

    def fill_rows(
        self, theta: Array, function: Callable[[slice], Array], out: Array
    ) -> Array:
        """Put values of a function of residuals, for all rows, into `out`."""
        self.model.residual(theta)  # before threads ask for it
        return fill_chunks(function, self.chunks, self.n_jobs, out)

    def minimize_upper(
        self, theta: Array, latent: Confidence
    ) -> tuple[Array, float, float]:
        """Weighted least squares; the move is measured in units of tau."""
        assert latent.solution is not None
        if not latent.solution:
            weights = self.sampled_weights(latent, self.spare_memory())
            self._weights.append(weights)
            relaxation = self._relaxation(latent) if self.over_relaxed else 1.0
            new, decrease = self.model.minimize(theta, weights, relaxation)
            # decrease = sum_i w_i u_i ||fitted_i - fitted_i'||**2 / 2 (+ penalty): the
            # root mean square change of the fitted values, invariant under any
            # reparametrisation of the model.
            square = 2.0 * max(decrease, 0.0) / float(np.sum(self.sample_weight))
            change = float(np.sqrt(square)) / max(self.tau, self.resolution)
            latent.solution.append((new, decrease, change))
        return latent.solution[0]

    def _relaxation(self, latent: Confidence) -> float:
        """Ratio of the curvatures of the upper bound and of J, near a minimum.

        For residuals of dimension d, J has curvature omega + 2 z omega'(z) / d in the
        mean over directions where the bound has omega. Where residuals do not depend on
        the design, weighted least squares falls short of J's minimum by the ratio of
        their means. Going further keeps the monotone decrease, since the bound is
        quadratic in theta.
        """
        h = 1e-3  # of the one-sided difference; the result need not be exact

        def sums(rows: slice) -> Array:
            u, share = self.weights(latent, rows), self.sample_weight[rows]
            shrunk = self.kernel.weight(self._z(latent, rows) * (1.0 + h))
            return np.array([share @ u, share @ (shrunk - u)])

        bound, slope = self._sum(latent.theta, sums)
        curvature = bound + 2.0 * slope / h / self.residual_dim
        if not curvature > bound / _MAX_RELAXATION:
            return 1.0  # far from a minimum, or a kernel for which this is no guide
        return float(bound / curvature)

    def normal_system(self, theta: Array, latent: Confidence) -> NormalSystem:
        """Gauss-Newton model of the upper bound."""
        return self.model.normal_system(theta, self.sampled_weights(latent))

    def retract(self, theta: Array, delta: Array) -> Array:
        """Theta moved by delta, in the manner of the model."""
        return self.model.retract(theta, delta)

    def decrease(self, theta: Array, latent: Confidence, new: Array) -> float:
        """Decrease of the upper bound, its weights held fixed.

        Summed over differences: near the minimum the two bounds agree to more digits
        than their difference has.
        """
        if not self.is_defined(new):
            return np.nan
        z, u = self._z(latent, ALL_ROWS), self.weights(latent)
        differences = u * (z - self.z(new))
        return 0.5 * self.tau**2 * float(self.sample_weight @ differences)

    def is_defined(self, theta: Array) -> bool:
        """Whether all residuals are finite there."""
        with np.errstate(over="ignore"):
            return bool(np.isfinite(self.model.squared_norms(theta)).all())

    def objective(self, theta: Array) -> float:
        """The robust objective J itself."""
        return self.upper_at(theta, 1.0)

    def upper_at(self, theta: Array, effort: float) -> float:
        """Upper bound at the weights of an effort."""
        return self.infer(theta, self.start(ALL_ROWS), effort).upper

    def z(self, theta: Array, rows: slice = ALL_ROWS) -> Array:
        """Squared residual norms in units of tau**2."""
        with np.errstate(over="ignore"):  # a sum past the largest float is clipped too
            z = self.model.squared_norms(theta, rows) / self.tau**2
        return np.minimum(z, _HUGE, out=z)

    def _sum(self, theta: Array, function: Callable[[slice], Array]) -> Array:
        self.model.residual(theta)
        return sum(map_chunks(function, self.chunks, self.n_jobs))
