"""Targets of unit size, so that squares neither overflow nor vanish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_mm._core._protocols import Array
from sklearn_mm._problems._linear_residual import LinearResidual

# Targets are brought this close, in spreads, so that their squares can be summed. They
# are outliers as much there.
_FARTHEST = 1e50


def weighted_median(values: Array, weight: Array) -> Array:
    """Weighted median of each column; a weight of k is k copies of the row."""
    if np.all(weight == weight[0]):
        return np.median(values, axis=0)
    order = np.argsort(values, axis=0)
    mass = np.cumsum(weight[order], axis=0)
    half, rounding = mass[-1] / 2.0, 1e-12 * mass[-1]
    # Between the lower and the upper median, which differ if the weight splits evenly.
    lower = np.argmax(mass >= half - rounding, axis=0)
    upper = np.argmax(mass > half + rounding, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    columns = np.arange(values.shape[1])
    # Halved before they are added: the sum of two large values may overflow.
    return ordered[lower, columns] / 2.0 + ordered[upper, columns] / 2.0


@dataclass(frozen=True)
class TargetUnits:
    """Centre and size of the targets y."""

    centre: Array  # one per output
    scale: float
    flat: bool  # y had one dimension

    @classmethod
    def of(cls, y: Array, weight: Array, centred: bool) -> TargetUnits:
        """Units in which y has median zero, unless not `centred`, and spread one."""
        Y = y.reshape(len(y), -1).astype(np.float64, copy=False)
        centre = weighted_median(Y, weight) if centred else np.zeros(Y.shape[1])
        spread = np.abs(Y - centre)
        # A median, since outliers may be of any size; the largest if most are equal.
        scale = float(np.max(weighted_median(spread, weight)))
        if not scale > 0:
            scale = float(np.max(spread[weight > 0])) or 1.0
        return cls(centre, scale, y.ndim == 1)

    @property
    def square(self) -> float:
        """One in the solver's objective, in the units of y (a finite number)."""
        with np.errstate(over="ignore", under="ignore"):
            return min(float(np.square(self.scale)), float(np.finfo(float).max))

    def to_unit(self, y: Array) -> Array:
        """Targets in these units, of shape (n_samples, n_outputs)."""
        unit = (y.reshape(len(y), -1) - self.centre) / self.scale
        return np.clip(unit, -_FARTHEST, _FARTHEST, out=unit)

    def pack(self, model: LinearResidual, coef: Array, intercept: Array) -> Array:
        """Theta of coefficients (n_outputs, n_features) in the user's units."""
        coef = np.asarray(coef, dtype=np.float64).T / self.scale
        return model.pack(coef, (intercept - self.centre) / self.scale)

    def fitted(self, model: LinearResidual, theta: Array, dtype: Any) -> dict[str, Any]:
        """Fitted attributes of a theta, in the units and the precision of the data."""
        coef, intercept = model.unpack(theta)
        coef = (coef * self.scale).T.astype(dtype)
        intercept = (intercept * self.scale + self.centre).astype(dtype)
        if self.flat:
            return {"coef_": coef[0], "intercept_": intercept[0]}
        return {"coef_": coef, "intercept_": intercept}
