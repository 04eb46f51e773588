"""Bounds of every row, from latents of any kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_mm._hebbian.difference import Measured
from sklearn_mm._hebbian.energy import Array, Energy, Phases, row_products

# Size of rounding errors in residuals, in units of the last place of activations.
_ROUNDING_ULPS = 8.0


def squared_rounding(dtype: Any) -> float:
    """Squared rounding errors of residuals, relative to squared activations."""
    return (_ROUNDING_ULPS * float(np.finfo(dtype).eps)) ** 2


@dataclass
class RowBounds:
    """Bounds of every row of a batch."""

    upper: Array
    lower: Array
    gap_curvature: Array
    phases: Phases | None  # latents for the certified gradient; None for the other

    @classmethod
    def of(
        cls, made: Measured, gap_curvature: Array, phases: Phases | None = None
    ) -> RowBounds:
        upper = np.asarray(made.upper, dtype=np.float64)
        # J >= 0 for each row, since clamped activations are feasible in the free phase.
        lower = np.maximum(upper - made.gap, 0.0)
        return cls(upper, lower, gap_curvature, phases)


def measure(energy: Energy, Y: Array, phases: Phases) -> Measured:
    """Bounds of every row, from latents of any kind."""
    upper = energy.loss.value(phases.output, Y)
    for k in energy.hidden:
        eps = phases.dr[k] + phases.miss[k]
        z_hat = phases.z[k] + phases.d[k]
        slackness = energy.box.slackness_of_rows(z_hat, phases.s[k])
        term = 0.5 * row_products(eps, eps) + slackness
        upper = upper + energy.weights[k - 1] * term
    return Measured(upper, sum(phases.free_gaps[1:]), sum(phases.clamped_gaps[1:]), 0.0)


def gap_curvature(energy: Energy, inputs: Array, phases: Phases) -> Array:
    """The gap of each layer times the curvature in its parameters, row by row.

    The clamped energy is quadratic in the weights of layer k, with Hessian w_k z_k z_k'
    (z_k is extended by a one for the bias). An error of r_k that causes a gap of g_k
    changes the gradient in W_k by up to w_k ||z_k||^2 2 g_k in the squared norm. A gap
    that is due to rounding is not counted, since no pass can reduce it.
    """
    rounding = squared_rounding(phases.error.dtype)
    value: Array = np.zeros(len(phases.error))
    for k in energy.hidden:
        w = energy.weights[k - 1]
        z = phases.z[k] + phases.d[k]
        square = row_products(z, z)
        gap = phases.free_gaps[k] + phases.clamped_gaps[k]
        value += w * (1.0 + inputs) * np.maximum(gap - (rounding * w) * square, 0.0)
        inputs = square
    return value
