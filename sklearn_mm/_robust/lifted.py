r"""Joint half-quadratic minimisation over parameters and weights.

The upper bound with weights u = v**2 is itself a nonlinear least-squares problem in
(theta, v), with residuals v_i r_i and gamma(v_i) (Zach, 2014)::

    upper = sum_i ||v_i r_i||**2 / 2 + gamma(v_i)**2 / 2
    gamma(v) = tau sign(v**2 - 1) sqrt(2 kappa(v**2))

The sign makes gamma smooth at v = 1. In the damped Gauss-Newton system each v_i has a
scalar block, with G_i the derivative of the upper bound in v_i::

    s_i = (1 + damping) (||r_i||**2 + gamma'(v_i)**2)
    dv_i = -(G_i + v_i r_i' J_i dtheta) / s_i

Eliminating it leaves ``sum_i v_i**2 J_i' (I - r_i r_i' / s_i) J_i`` for theta.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sklearn_mm._robust.callable import CallablePoint
from sklearn_mm._robust.problem import HalfQuadraticProblem, squared_norms
from sklearn_mm._solver.roles import Array, Batch, Bounds, NormalSystem

# Closer to u = 1 than this, gamma' is evaluated at this distance, because kappa'(u) /
# sqrt(kappa(u)) is 0 / 0 at u = 1. It is only used for the curvature.
_NUDGE = 1e-4


@dataclass(frozen=True)
class LiftedPoint:
    """Parameters followed by v, and what is known at the parameters."""

    theta: Array
    inner: CallablePoint
    v: Array


@dataclass(frozen=True)
class LiftedProblem:
    """The problem whose theta are the parameters of `inner` followed by v."""

    inner: HalfQuadraticProblem

    def lift(self, point: CallablePoint) -> LiftedPoint:
        """The start: all weights one."""
        v = np.ones(len(self.inner.sample_weight))
        return LiftedPoint(np.concatenate([point.theta, v]), point, v)

    def at(self, theta: Array) -> LiftedPoint:
        """Residuals at the parameters."""
        x, v = self._split(theta)
        return LiftedPoint(theta, self.inner.at(x), v)

    def start(self, batch: Batch) -> None:
        """No latents."""

    def infer(self, point: LiftedPoint, latent: Any, effort: float) -> None:
        """Nothing to infer."""

    def evaluate(self, point: LiftedPoint, latent: Any) -> Bounds:
        """The lifted objective, and J at the parameters."""
        lower = self.inner.objective(point.inner)
        return Bounds(max(self.upper(point), lower), lower)

    def upper(self, point: LiftedPoint) -> float:
        """The lifted objective."""
        return float(np.sum(self._terms(point)))

    def decrease(self, point: LiftedPoint, latent: Any, new: LiftedPoint) -> float:
        """Decrease of the lifted objective; nan where residuals are not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sum(self._terms(point) - self._terms(new)))

    def retract(self, point: LiftedPoint, delta: Array) -> Array:
        """Parameters moved in the manner of the model, v by addition."""
        dx, dv = self._split(delta)
        return np.concatenate([self.inner.retract(point.inner, dx), point.v + dv])

    def linearized(self, point: LiftedPoint) -> LiftedPoint:
        """The point with the Jacobian of the residuals at the parameters."""
        return replace(point, inner=self.inner.linearized(point.inner))

    def normal_system(
        self, point: LiftedPoint, latent: Any, columns: Any = None
    ) -> NormalSystem:
        """Gauss-Newton model of the lifted objective.

        The Jacobian of a system also depends on the damping: the largest columns of
        other systems do not matter.
        """
        return _LiftedSystem(self.inner, point.inner, point.v)

    def _split(self, lifted: Array) -> tuple[Array, Array]:
        end = len(lifted) - len(self.inner.sample_weight)
        return lifted[:end], lifted[end:]

    def _terms(self, point: LiftedPoint) -> Array:
        z = squared_norms(point.inner.residual, self.inner.tau)
        if not np.isfinite(z).all():
            return np.full(len(z), np.nan)
        bound = self.inner.kernel.upper_bound(z, np.square(point.v))
        terms: Array = self.inner.tau**2 * self.inner.sample_weight * bound
        return terms


class _LiftedSystem:
    """The system at one theta and v. The part of the weights depends on the damping."""

    def __init__(
        self, inner: HalfQuadraticProblem, point: CallablePoint, v: Array
    ) -> None:
        self._model, self._point, self._v = inner.model, point, v
        u, self._weight = np.square(v), inner.sample_weight
        squared = squared_norms(point.residual)
        slope = inner.kernel.penalty_slope(u)
        self._G = v * (squared + 2.0 * inner.tau**2 * slope)
        away = np.where(u < 1.0, np.minimum(u, 1.0 - _NUDGE), np.maximum(u, 1 + _NUDGE))
        # gamma'**2 = (2 v tau kappa')**2 / (2 kappa), zero with v.
        gamma = 2.0 * u * np.square(inner.kernel.penalty_slope(away))
        gamma /= inner.kernel.penalty(away)
        tiny = np.finfo(float).tiny
        self._curvature = np.maximum(squared + inner.tau**2 * gamma, tiny)
        g = self._model.gradient(point, self._weight * u)
        self.gradient = np.concatenate([g, self._weight * self._G])

    def damped_step(self, damping: float) -> tuple[Array, float] | None:
        """Step in parameters and v, and its predicted decrease."""
        v, G, w = self._v, self._G, self._weight
        s = (1.0 + damping) * self._curvature
        system = self._model.normal_system(
            self._point, w * np.square(v), bend=1.0 / s, slope=w * v * (v - G / s)
        )
        solved = system.damped_step(damping)
        if solved is None:
            return None
        dx, decrease = solved
        pushed = self._model.product(self._point, dx)
        along = np.einsum("ij,ij->i", self._point.residual, pushed)
        dv = -(G + v * along) / s
        decrease += 0.5 * float(w @ (G * G / s))
        decrease += 0.5 * damping * float(w @ (self._curvature * dv * dv))
        return np.concatenate([dx, dv]), decrease
