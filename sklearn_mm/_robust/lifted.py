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

from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_mm._robust.problem import HalfQuadraticProblem
from sklearn_mm._solver.roles import Array, Bounds, NormalSystem, Rows

# Closer to u = 1 than this, gamma' is taken at this distance: kappa'(u) over
# sqrt(kappa(u)) is 0 / 0 there. Only the curvature uses it.
_NUDGE = 1e-4


@dataclass(frozen=True)
class LiftedProblem:
    """The problem whose theta are the parameters of `inner` followed by v."""

    inner: HalfQuadraticProblem

    def lift(self, theta: Array) -> Array:
        """The start: all weights one."""
        return np.concatenate([theta, np.ones(len(self.inner.sample_weight))])

    def split(self, lifted: Array) -> tuple[Array, Array]:
        """Parameters and v."""
        end = len(lifted) - len(self.inner.sample_weight)
        return lifted[:end], lifted[end:]

    def start(self, rows: Rows) -> None:
        """No latents."""

    def infer(self, theta: Array, latent: Any, effort: float) -> Array:
        """Nothing to infer: the latent only marks where we are."""
        return theta

    def evaluate(self, theta: Array, latent: Any) -> Bounds:
        """The lifted objective, and J at the parameters."""
        lower = self.inner.objective(self.split(theta)[0])
        return Bounds(max(self.upper(theta), lower), lower)

    def upper(self, theta: Array) -> float:
        """The lifted objective."""
        return float(np.sum(self._terms(theta)))

    def decrease(self, theta: Array, latent: Any, new: Array) -> float:
        """Decrease of the lifted objective."""
        if not self.inner.is_defined(self.split(new)[0]):
            return np.nan
        return float(np.sum(self._terms(theta) - self._terms(new)))

    def retract(self, theta: Array, delta: Array) -> Array:
        """Parameters moved in the manner of the model, v by addition."""
        (x, v), (dx, dv) = self.split(theta), self.split(delta)
        return np.concatenate([self.inner.retract(x, dx), v + dv])

    def normal_system(self, theta: Array, latent: Any) -> NormalSystem:
        """Gauss-Newton model of the lifted objective."""
        return _LiftedSystem(self, *self.split(theta))

    def _terms(self, theta: Array) -> Array:
        x, v = self.split(theta)
        bound = self.inner.kernel.upper_bound(self.inner.z(x), np.square(v))
        return self.inner.tau**2 * self.inner.sample_weight * bound


class _LiftedSystem:
    """One theta and v; the weights' part depends on the damping."""

    def __init__(self, problem: LiftedProblem, x: Array, v: Array) -> None:
        inner = problem.inner
        self._model, self._x, self._v = inner.model, x, v
        u, self._weight = np.square(v), inner.sample_weight
        squared = inner.z(x) * inner.tau**2
        slope = inner.kernel.penalty_slope(u)
        self._G = v * (squared + 2.0 * inner.tau**2 * slope)
        away = np.where(u < 1.0, np.minimum(u, 1.0 - _NUDGE), np.maximum(u, 1 + _NUDGE))
        # gamma'**2 = (2 v tau kappa')**2 / (2 kappa), zero with v.
        gamma = 2.0 * u * np.square(inner.kernel.penalty_slope(away))
        gamma /= inner.kernel.penalty(away)
        tiny = np.finfo(float).tiny
        self._curvature = np.maximum(squared + inner.tau**2 * gamma, tiny)
        g = self._model.gradient(x, self._weight * u)
        self.gradient = np.concatenate([g, self._weight * self._G])

    def damped_step(self, damping: float) -> tuple[Array, float] | None:
        """Step in parameters and v, and its predicted decrease."""
        v, G, w = self._v, self._G, self._weight
        s = (1.0 + damping) * self._curvature
        system = self._model.normal_system(
            self._x, w * np.square(v), bend=1.0 / s, slope=w * v * (v - G / s)
        )
        solved = system.damped_step(damping)
        if solved is None:
            return None
        dx, decrease = solved
        pushed = self._model.product(self._x, dx)
        along = np.einsum("ij,ij->i", self._model.residual(self._x), pushed)
        dv = -(G + v * along) / s
        decrease += 0.5 * float(w @ (G * G / s))
        decrease += 0.5 * damping * float(w @ (self._curvature * dv * dv))
        return np.concatenate([dx, dv]), decrease
