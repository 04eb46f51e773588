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

from sklearn_mm._robust.normal_equations import Frame, cache_blocks, columns_times
from sklearn_mm._rows.table import Rows
from sklearn_mm._rows.validation import check_size
from sklearn_mm._solver.roles import Array, Indices

# Standard deviations beyond so many median absolute deviations, on so many rows,
# are those of outliers in X.
_BLOWN_UP, _ROBUST_ROWS = 50.0, 500


@dataclass(frozen=True)
class ColumnMoments:
    """Weighted moments of the columns about a centre, and what a few rows say."""

    centre: Array
    first: Array  # of absolute values where columns are not centred
    second: Array
    median: Array
    deviation: Array  # median absolute deviation; zero tells nothing
    fit_intercept: bool
    centred: bool

    @classmethod
    def of(cls, rows: Rows, sample_weight: Array, fit_intercept: bool) -> ColumnMoments:
        """Moments in one pass over the rows."""
        X, total = rows.X, sample_weight.sum()
        zeros = np.zeros(X.shape[1])
        if scipy.sparse.issparse(X):
            first, second = rows.sum(_sparse_moments, sample_weight, args=(total,))
            return cls(zeros, first, second, zeros, zeros, fit_intercept, False)
        sample = X[_some_rows(sample_weight)].astype(np.float64)
        # A nan or an infinity is reported by who asks for `finite`.
        with np.errstate(over="ignore", invalid="ignore"):
            median = np.median(sample, axis=0)
            deviation = np.median(np.abs(sample - median), axis=0)
        centre = median if fit_intercept else zeros
        args = (total, centre)
        first, second = rows.sum(_moments, sample_weight, args=args)
        return cls(
            centre, first, second, median, deviation, fit_intercept, fit_intercept
        )

    @property
    def finite(self) -> bool:
        """False if an entry of X may be nan or infinite; sums may have overflowed."""
        return bool(np.isfinite(self.second).all())

    def check_sizes(self) -> None:
        """Raise a ValueError where squares of a column overflow or vanish."""
        with np.errstate(over="ignore"):
            size = np.abs(self.centre) + np.sqrt(self.second)
        if size.size:
            largest = int(np.argmax(size))
            check_size(f"Column {largest} of X", size[largest], smallest=0.0)
        # What squares do not see, sums of the values themselves do.
        seen = np.flatnonzero(self.first)
        if seen.size:
            smallest = seen[np.argmin(size[seen])]
            check_size(f"Column {smallest} of X", size[smallest])

    def frame(self, dtype: Any) -> Frame:
        """Mean and standard deviation of columns (1 for constant columns).

        Both are replaced where a few entries have blown them up.
        """
        mean, variance = np.zeros(len(self.centre)), self.second
        if self.centred:
            mean = self.centre + self.first
            variance = np.maximum(variance - np.square(self.first), 0.0)
        scale = np.sqrt(variance)
        blown = (self.deviation > 0) & ~(scale <= _BLOWN_UP * self.deviation)
        scale[blown] = self.deviation[blown]
        if self.centred:
            mean[blown] = self.median[blown]
        # A spread that is rounding noise compared with the mean is a constant column.
        constant = scale <= 10.0 * np.finfo(dtype).eps * np.abs(mean)
        scale[constant] = 1.0
        return Frame(mean, scale, self.fit_intercept)


def _some_rows(sample_weight: Array) -> Indices:
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


def _moments(
    X: Array, weight: Array, total: float, centre: Array
) -> tuple[Array, Array]:
    """First and second moment about the centre, summed in double precision."""
    first, second = np.zeros((2, X.shape[1]))
    share = weight / total
    for block, rows in cache_blocks(X):
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(X[block], centre, out=rows)
            first += columns_times(rows, share[block])
            second += columns_times(np.square(rows, out=rows), share[block])
    return first, second


def _sparse_moments(X: Any, weight: Array, total: float) -> tuple[Array, Array]:
    """First absolute and second moment."""
    share = weight / total
    with np.errstate(over="ignore", invalid="ignore"):
        X = X.astype(np.float64)
        first = np.asarray(abs(X).T @ share).ravel()
        return first, np.asarray(X.power(2).T @ share).ravel()
