"""Statistics of weighted rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from sklearn_mm._rows.sources import DaskRows, check_lengths, in_memory, is_dask
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


def unit_weights(sample_weight: Any, X: Any) -> tuple[Any, float]:
    """Validated weights divided by the largest one, and the largest one.

    Sums of the former over rows do not overflow.
    """
    if sample_weight is None:  # ones that take no memory
        return np.broadcast_to(1.0, X.shape[0]), 1.0
    if is_dask(sample_weight) and isinstance(X, DaskRows):
        return _weights_in_blocks(sample_weight, X)
    sample_weight = in_memory(sample_weight)
    weight: Array = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
    if not np.any(weight > 0):  # scikit-learn < 1.9 lets this pass
        raise ValueError("Sample weights must contain at least one non-zero number.")
    unit = float(weight.max())
    return weight / unit, unit


def _weights_in_blocks(sample_weight: Any, X: Any) -> tuple[Any, float]:
    """The same for a Dask array, which is not gathered."""
    import dask

    check_lengths("sample_weight", sample_weight, X.shape[0])
    if sample_weight.ndim != 1:
        raise ValueError("Sample weights must be 1D array or scalar")
    low, high = map(float, dask.compute(sample_weight.min(), sample_weight.max()))
    if not np.isfinite(low + high):
        raise ValueError("Input sample_weight contains NaN or infinity.")
    if low < 0:
        raise ValueError("Negative values in data passed to `sample_weight`")
    if high == 0:
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return (sample_weight / high).astype(np.float64), high


def moments_in_blocks(X: Any, y: Any, weight: Array) -> tuple[Array, Array]:
    """Weighted mean and standard deviation of targets in a Dask array."""
    rows = X.in_blocks()
    column, beside = rows.place(y), rows.beside
    total = float(weight.sum())
    first = beside.sum(_first_moments, column, weight, args=(total,))
    if not np.isfinite(first).all():
        rows.check_finite("", column)
    # Divided by the largest first: squares neither overflow nor vanish.
    size = np.max(list(beside.map(_largest, column, args=(first,))), axis=0)
    size[size == 0.0] = 1.0
    second = beside.sum(_second_moments, column, weight, args=(total, first, size))
    return first, size * np.sqrt(second)


def _first_moments(y: Array, weight: Array, total: float) -> Array:
    return (weight / total) @ y.reshape(len(y), -1).astype(np.float64)


def _largest(y: Array, mean: Array) -> Array:
    return np.abs(y.reshape(len(y), -1) - mean).max(axis=0)


def _second_moments(
    y: Array, weight: Array, total: float, mean: Array, size: Array
) -> Array:
    return (weight / total) @ np.square((y.reshape(len(y), -1) - mean) / size)


def labels_in_blocks(X: Any, y: Any) -> Array:
    """Distinct labels in a Dask array."""
    rows = X.in_blocks()
    labels: Array = np.unique(
        np.concatenate(list(rows.beside.map(np.unique, rows.place(y))))
    )
    return labels
