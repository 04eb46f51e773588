"""Statistics of weighted rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from sklearn_mm._rows.sources import (
    DaskRows,
    arrays_of_frames,
    check_lengths,
    in_memory,
    is_dask,
    numbers_of,
)
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
    sample_weight = arrays_of_frames(sample_weight)[0]
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
    sample_weight = numbers_of("sample_weight", sample_weight)
    low, high = map(float, dask.compute(sample_weight.min(), sample_weight.max()))
    if not np.isfinite(low + high):
        raise ValueError("Input sample_weight contains NaN or infinity.")
    if low < 0:
        raise ValueError("Negative values in data passed to `sample_weight`")
    if high == 0:
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return (sample_weight / high).astype(np.float64), high


def moments_in_blocks(X: Any, y: Any, weight: Array) -> tuple[Array, Array]:
    """Weighted mean and standard deviation of targets in a Dask array.

    The latter is zero for constants, and rows without weight do not count.
    """
    rows = X.in_blocks()
    column, beside = rows.place(y), rows.beside
    total = float(weight.sum())
    first = beside.sum(_first_moments, column, weight, args=(total,))
    if not np.isfinite(first).all():
        rows.check_finite("", column)
    parts = beside.map(_differences, column, weight, args=(total, first))
    low, high, errors = (np.array(part) for part in zip(*parts, strict=True))
    mean, size = mean_and_largest(
        first, low.min(axis=0), high.max(axis=0), errors.sum(axis=0)
    )
    # Divided by the largest first: squares neither overflow nor vanish.
    unit = np.where(size > 0.0, size, np.inf)
    second = beside.sum(_second_moments, column, weight, args=(total, mean, unit))
    return mean, size * np.sqrt(second)


def mean_and_largest(
    mean: Array, low: Array, high: Array, error: Array
) -> tuple[Array, Array]:
    """Mean of each column, and largest distance from it, zero for constants.

    Parameters
    ----------
    mean : ndarray of shape (n_columns,)
        A weighted sum over the rows. Its rounding errors grow with their number.
    low, high, error : ndarray of shape (n_columns,)
        The smallest, the largest and the mean difference from it.
    """
    size = np.maximum(high - error, error - low)
    mean = mean + error
    constant = size <= 4.0 * np.finfo(float).eps * np.abs(mean)  # to rounding
    return mean, np.where(constant, 0.0, size)


def _first_moments(y: Array, weight: Array, total: float) -> Array:
    return (weight / total) @ y.reshape(len(y), -1).astype(np.float64)


def _differences(
    y: Array, weight: Array, total: float, mean: Array
) -> tuple[Array, ...]:
    """Smallest, largest and mean difference from the mean, in rows that count."""
    kept = weight > 0
    rows = y.reshape(len(y), -1)[kept] - mean
    low, high = rows.min(axis=0, initial=np.inf), rows.max(axis=0, initial=-np.inf)
    return low, high, (weight[kept] / total) @ rows


def _second_moments(
    y: Array, weight: Array, total: float, mean: Array, size: Array
) -> Array:
    kept = weight > 0
    rows = (y.reshape(len(y), -1)[kept] - mean) / size
    return (weight[kept] / total) @ np.square(rows, out=rows)


def labels_in_blocks(X: Any, y: Any) -> Array:
    """Distinct labels in a Dask array."""
    rows = X.in_blocks()
    labels: Array = np.unique(
        np.concatenate(list(rows.beside.map(_distinct, rows.place(y))))
    )
    return labels


def _distinct(labels: Array) -> Array:
    try:
        return np.unique(labels)
    except TypeError as error:
        raise ValueError(
            "The labels in y cannot be put in order, since some are missing or of "
            f"different types: {error}."
        ) from error


def score_in_blocks(
    y: Any, predicted: Any, sample_weight: Any, of_labels: bool
) -> float:
    """Accuracy, or R² averaged over outputs, of predictions in a Dask array."""
    import dask
    import dask.array as da

    n_rows, chunks = predicted.shape[0], predicted.chunks[0]
    y = da.asarray(arrays_of_frames(y, not of_labels)[0])
    check_lengths("y", y, n_rows)
    if np.prod(y.shape[1:]) != np.prod(predicted.shape[1:]):
        raise ValueError(
            f"y has shape {y.shape}, but predictions have shape {predicted.shape}."
        )
    y = y.reshape(predicted.shape).rechunk({0: chunks})
    weight = da.ones(n_rows, chunks=chunks)
    if sample_weight is not None:
        weight = da.asarray(arrays_of_frames(sample_weight)[0])
        check_lengths("sample_weight", weight, n_rows)

    def mean(values: Any) -> Any:
        return da.dot(weight, values) / weight.sum()

    if of_labels:
        return float(mean(y == predicted).compute())
    y = y.astype(np.float64)
    errors, spread = dask.compute(
        mean(da.square(y - predicted)), mean(da.square(y - mean(y)))
    )
    if not np.isfinite(spread).all():
        raise ValueError("Input y contains NaN, infinity or a value too large.")
    errors, spread = np.atleast_1d(errors), np.atleast_1d(spread)
    constant = np.where(errors > 0.0, 0.0, 1.0)  # as in scikit-learn
    left = np.divide(errors, spread, out=1.0 - constant, where=spread > 0.0)
    return float(np.mean(1.0 - left))
