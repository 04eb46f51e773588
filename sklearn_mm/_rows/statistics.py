"""Statistics of weighted rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from sklearn_mm._solver.roles import Array


def weighted_median(values: Array, weight: Array) -> Array:
    """Weighted median of each column; a weight of k is k copies of the row."""
    if np.all(weight == weight[0]):
        median: Array = np.median(values, axis=0)
        return median
    order = np.argsort(values, axis=0)
    mass = np.cumsum(weight[order], axis=0)
    half, rounding = mass[-1] / 2.0, 1e-12 * mass[-1]
    # Between the lower and the upper median, which differ if the weight splits evenly.
    lower = np.argmax(mass >= half - rounding, axis=0)
    upper = np.argmax(mass > half + rounding, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    columns = np.arange(values.shape[1])
    return 0.5 * (ordered[lower, columns] + ordered[upper, columns])


def unit_weights(sample_weight: Any, X: Any) -> tuple[Array, float]:
    """Checked weights divided by the largest, and that one.

    Sums over rows of the former stay far from overflow.
    """
    if sample_weight is None:  # ones that take no memory
        return np.broadcast_to(1.0, X.shape[0]), 1.0
    weight: Array = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
    if not np.any(weight > 0):  # scikit-learn < 1.9 lets this pass
        raise ValueError("Sample weights must contain at least one non-zero number.")
    unit = float(weight.max())
    return weight / unit, unit
