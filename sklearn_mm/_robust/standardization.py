"""Centre and scale of the columns of X, for conditioning alone.

One pass over the rows gives the moments about a provisional centre, the medians of a
few rows. Where that is close to the mean, as it is but for rare data, no digits are
lost; where it is not, the result is not worse than one that outliers have moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._robust.linear import (
    cache_blocks,
    columns_times,
    linear_chunks,
)
from sklearn_mm._rows.workers import map_rows
from sklearn_mm._solver.roles import Array

# Standard deviations beyond so many median absolute deviations, on so many rows,
# are those of outliers in X.
_BLOWN_UP, _ROBUST_ROWS = 50.0, 500


@dataclass(frozen=True)
class ColumnMoments:
    """Weighted moments of the columns about a centre, and what a few rows say."""

    centre: Array
    first: Array
    second: Array
    median: Array
    deviation: Array  # median absolute deviation; zero tells nothing
    centred: bool

    @classmethod
    def of(
        cls,
        X: Any,
        sample_weight: Array,
        centred: bool,
        chunk_size: int | None = None,
        n_jobs: int | None = None,
    ) -> ColumnMoments:
        total = sample_weight.sum()

        def add_up(function: Any, *constants: Any) -> Array:
            def arguments(chunk: slice) -> tuple[Any, ...]:
                return sample_weight[chunk] / total, *constants

            chunks = linear_chunks(X, chunk_size)
            return sum(map_rows(function, X, chunks, n_jobs, arguments))

        zeros = np.zeros(X.shape[1])
        if scipy.sparse.issparse(X):
            return cls(zeros, zeros, add_up(_sparse_squares), zeros, zeros, False)
        sample = X[_some_rows(sample_weight)].astype(np.float64)
        # A nan or an infinity is reported by who asks for `finite`.
        with np.errstate(over="ignore", invalid="ignore"):
            median = np.median(sample, axis=0)
            deviation = np.median(np.abs(sample - median), axis=0)
        centre = median if centred else zeros
        first, second = add_up(_moments, centre)
        return cls(centre, first, second, median, deviation, centred)

    @property
    def finite(self) -> bool:
        """False if an entry of X may be nan or infinite; sums may have overflowed."""
        return bool(np.isfinite(self.second).all())

    def standardization(self, dtype: Any) -> tuple[Array, Array]:
        """Mean and standard deviation of columns (1 for constant columns).

        Both are replaced where a few entries have blown them up. Infinite where squares
        overflow: the caller may want other units.
        """
        mean, variance = np.zeros(len(self.centre)), self.second
        with np.errstate(over="ignore", invalid="ignore"):
            if self.centred:
                mean = self.centre + self.first
                variance = np.maximum(variance - np.square(self.first), 0.0)
            scale = np.sqrt(np.where(np.isnan(variance), np.inf, variance))
            blown = (self.deviation > 0) & ~(scale <= _BLOWN_UP * self.deviation)
        scale[blown] = self.deviation[blown]
        if self.centred:
            mean[blown] = self.median[blown]
        # A spread that is rounding noise beside the mean is a constant column.
        constant = scale <= 10.0 * np.finfo(dtype).eps * np.abs(mean)
        scale[constant] = 1.0
        return mean, scale


def standardization(
    X: Any,
    sample_weight: Array,
    centred: bool,
    chunk_size: int | None = None,
    n_jobs: int | None = None,
) -> tuple[Array, Array]:
    """Mean and standard deviation of the columns of X."""
    moments = ColumnMoments.of(X, sample_weight, centred, chunk_size, n_jobs)
    return moments.standardization(X.dtype)


def _some_rows(sample_weight: Array) -> Array:
    """Up to `_ROBUST_ROWS` rows, none of them without weight.

    Their places follow no period, lest something that comes back every so many rows be
    taken for all of them.
    """
    n_rows = len(sample_weight)
    rows = np.arange(min(n_rows, _ROBUST_ROWS))
    if n_rows > _ROBUST_ROWS:
        rows = np.sort(np.random.default_rng(0).integers(n_rows, size=_ROBUST_ROWS))
    if not sample_weight[rows].any():
        rows = np.flatnonzero(sample_weight)
    return rows[sample_weight[rows] > 0][:_ROBUST_ROWS]


def _moments(X: Array, share: Array, centre: Array) -> Array:
    """First and second moment about the centre, summed in double precision."""
    total = np.zeros((2, X.shape[1]))
    for block, rows in cache_blocks(X):
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(X[block], centre, out=rows)
            total[0] += columns_times(rows, share[block])
            total[1] += columns_times(np.square(rows, out=rows), share[block])
    return total


def _sparse_squares(X: Any, share: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(X.astype(np.float64).power(2).T @ share).ravel()
