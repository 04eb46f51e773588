"""Conversion between the units of the user and those of the solver.

X, y, sample weights and coefficients of the user may be in any units. The solver uses a
theta for standardised columns, targets with median zero and unit spread, and weights of
at most one. `Scaling` is the only place that converts between them.

Centre and scale of the columns only affect the conditioning. One pass over the rows
computes the moments about a provisional centre, the medians of a few rows. If it is
close to the mean, as it usually is, no digits are lost. If it is not, the result is not
worse than one that is distorted by outliers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._robust.linear import (
    Frame,
    LinearResidual,
    cache_blocks,
    columns_times,
)
from sklearn_mm._rows.ranks import (
    MedianAndSpread,
    first_counts,
    largest_size,
    median,
)
from sklearn_mm._rows.statistics import weighted_median
from sklearn_mm._rows.table import Column, Rows, SumOver
from sklearn_mm._rows.validation import check_size
from sklearn_mm._solver.roles import Array, Indices

# Standard deviations of more than this many median absolute deviations, computed from
# this many rows, are due to outliers in X.
_BLOWN_UP, _ROBUST_ROWS = 50.0, 500
_LARGEST_FLOAT = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Scaling:
    """How columns, targets and weights are converted to the units of the solver."""

    frame: Frame  # columns of X
    centre: Array  # of the targets, one per output
    spread: Array  # of the targets, one per output
    weight: float  # the largest sample weight
    total: float  # sum of the weights in the units of the solver
    flat: bool  # y had one dimension
    dtype: Any  # of X, and so of the coefficients

    @classmethod
    def of(
        cls,
        rows: Rows,
        y: Array,
        sample_weight: Array,
        unit_weight: float,
        fit_intercept: bool,
        estimator_name: str,
    ) -> Scaling:
        """Scaling of the data. Raises a ValueError if X is not finite.

        A separate check would require another pass over X.
        """
        known = (y, sample_weight, fit_intercept)
        units = None
        if not isinstance(y, np.ndarray):
            units = _PlacedUnits(rows, *known)
        moments = ColumnMoments.of(rows, sample_weight, fit_intercept, units)
        X = rows.X
        if not moments.finite:
            rows.check_finite(estimator_name)
        moments.check_sizes()
        centre, spread = _target_units(*known) if units is None else units.found()
        for value in spread:
            check_size("The spread of y", value)
        frame = moments.frame(X.dtype)
        flat = len(y.shape) == 1
        return cls(frame, centre, spread, unit_weight, moments.total, flat, X.dtype)

    def model(
        self, rows: Rows, y: Array, alpha: float = 0.0, l1: float = 0.0
    ) -> LinearResidual:
        """The linear model of the data in the units of the solver.

        The penalties, L2 and L1, are in the units of the user.
        """
        units = (self.frame, self.centre, self.spread)
        lasso = tuple(l1 / self.weight / self.spread) if l1 else ()
        return LinearResidual(rows, y, *units, float(alpha) / self.weight, lasso)

    def rescaled(self, scale: Array) -> Scaling:
        """The scaling with targets in units of the given noise scales."""
        return replace(self, spread=self.spread * scale)

    @property
    def objective(self) -> float:
        """Factor from the objective of the solver to that of the user; finite.

        With several outputs, the objective is in units of their noise scales.
        """
        square = float(self.spread[0]) ** 2 if len(self.spread) == 1 else 1.0
        return min(self.weight * square, _LARGEST_FLOAT)

    def theta(self, coef: Array, intercept: Array) -> Array:
        """Theta of coefficients of the user, of shape (n_outputs, n_features)."""
        coef = np.asarray(coef, dtype=np.float64).T / self.spread
        return self.frame.pack(coef, (intercept - self.centre) / self.spread)

    def plane(self, theta: Array) -> dict[str, Any]:
        """`coef_` and `intercept_` of a theta, in the precision of the data."""
        coef, intercept = self.frame.unpack(theta)
        with np.errstate(over="ignore", invalid="ignore"):
            coef = (coef * self.spread).T.astype(self.dtype)
            intercept = (intercept * self.spread + self.centre).astype(self.dtype)
        if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
            raise ValueError(
                f"The coefficients are too large for {np.dtype(self.dtype)}. Bring X "
                "and y to comparable units, e.g. with StandardScaler."
            )
        if self.flat:
            return {"coef_": coef[0], "intercept_": intercept[0]}
        return {"coef_": coef, "intercept_": intercept}


def _target_units(
    y: Array, sample_weight: Array, fit_intercept: bool
) -> tuple[Array, Array]:
    """Centre and spread of the targets, for each output.

    The spread is a median over all rows, since outliers may be of any size and
    anywhere. If most targets are equal, it is the largest distance.
    """
    Y = y.reshape(len(y), -1).astype(np.float64, copy=False)
    centre = np.zeros(Y.shape[1])
    if fit_intercept:
        centre = weighted_median(Y, sample_weight)
    distance = np.abs(Y - centre)
    spread = weighted_median(distance, sample_weight)
    largest = distance[sample_weight > 0].max(axis=0)
    return centre, np.where(spread > 0, spread, np.where(largest > 0, largest, 1.0))


@dataclass
class _PlacedUnits:
    """The same for targets that are stored with the workers.

    Sums are asked for in two steps, each together with others: histograms of all
    targets, and then the few targets among which these show median and spread to be.
    """

    rows: Any
    y: Column
    sample_weight: Column
    fit_intercept: bool
    counted: list[Any] = field(default_factory=list)  # histograms, one per output
    narrowed: list[MedianAndSpread | None] = field(default_factory=list)
    few: Iterable[Any] = ()  # targets of each output that is narrowed down

    def histograms(self) -> list[SumOver]:
        """Sums of the first step."""
        numbers, more = (_output, ()) if self.fit_intercept else (_distance, (0.0,))
        d = 1 if len(self.y.shape) == 1 else int(self.y.shape[1])
        columns = (self.y, self.sample_weight)
        return [first_counts(numbers, *columns, (k, *more)) for k in range(d)]

    def few_targets(self) -> list[SumOver]:
        """Sums of the second step, from those of the first."""
        columns = (self.y, self.sample_weight)
        if self.fit_intercept:
            self.narrowed = [
                MedianAndSpread.of(self.rows, _output, *columns, (k,), found)
                for k, found in enumerate(self.counted)
            ]
        else:  # the centre is known
            self.narrowed = [None] * len(self.counted)
        return [both.wanted for both in self.narrowed if both is not None]

    def found(self) -> tuple[Array, Array]:
        """Centre and spread, from the sums of both steps."""
        d, few = len(self.counted), iter(self.few)
        columns = (self.y, self.sample_weight)
        centre, spread = np.zeros(d), np.ones(d)
        for k, (counted, both) in enumerate(
            zip(self.counted, self.narrowed, strict=True)
        ):
            if both is not None:
                centre[k], middle = both.of_rows(next(few))
            else:
                if self.fit_intercept:
                    centre[k] = median(self.rows, _output, *columns, (k,), counted)
                    counted = None
                args = (k, centre[k])
                middle = median(self.rows, _distance, *columns, args, counted)
            if not middle > 0:
                args = (k, centre[k])
                middle = max(self.rows.beside.map(_largest, *columns, args=args))
            spread[k] = middle if middle > 0 else 1.0
            largest = largest_size(self.counted[k])
            check_size("The largest value of y", largest, smallest=0.0)
        return centre, spread


def _output(y: Array, k: int) -> Array:
    return y.reshape(len(y), -1)[:, k].astype(np.float64, copy=False)


def _distance(y: Array, k: int, centre: float) -> Array:
    return np.abs(_output(y, k) - centre)


def _largest(y: Array, weight: Array, k: int, centre: float) -> float:
    return float(_distance(y, k, centre)[weight > 0].max(initial=0.0))


@dataclass(frozen=True)
class ColumnMoments:
    """Weighted moments of the columns about a centre, and medians of a few rows."""

    total: float  # sum of the weights
    centre: Array
    first: Array  # of absolute values where columns are not centred
    second: Array
    median: Array
    deviation: Array  # median absolute deviation; zero if unknown
    fit_intercept: bool
    centred: bool

    @classmethod
    def of(
        cls,
        rows: Rows,
        sample_weight: Array,
        fit_intercept: bool,
        units: _PlacedUnits | None = None,
    ) -> ColumnMoments:
        """Moments in one pass over the rows.

        Sums for the units of the targets are computed in the same round trips.
        """
        X, total = rows.X, rows.total(sample_weight)
        zeros = np.zeros(X.shape[1])
        if scipy.sparse.issparse(X):
            first, second = rows.sum(_sparse_moments, sample_weight, args=(total,))
            return cls(total, zeros, first, second, zeros, zeros, fit_intercept, False)
        first_sums = [] if units is None else units.histograms()
        sample, counted = _some_rows(rows, sample_weight, first_sums)
        sample = sample.astype(np.float64)
        # NaN and infinity are reported by the caller, see `finite`.
        with np.errstate(over="ignore", invalid="ignore"):
            median = np.median(sample, axis=0)
            deviation = np.median(np.abs(sample - median), axis=0)
        centre = median if fit_intercept else zeros
        moments = SumOver(_moments, (sample_weight,), (total, centre))
        also = []
        if units is not None:
            units.counted = list(counted)
            also = units.few_targets()
        (first, second), *few = rows.sums([moments, *also])
        if units is not None:
            units.few = few
        sums = (total, centre, first, second)
        return cls(*sums, median, deviation, fit_intercept, centred=fit_intercept)

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
        # Columns whose squares vanish are detected by sums of the values themselves.
        seen = np.flatnonzero(self.first)
        if seen.size:
            smallest = seen[np.argmin(size[seen])]
            check_size(f"Column {smallest} of X", size[smallest])

    def frame(self, dtype: Any) -> Frame:
        """Mean and standard deviation of columns (1 for constant columns).

        Both are replaced by robust estimates if a few entries dominate them.
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


def _some_rows(
    rows: Rows, sample_weight: Column, also: Iterable[SumOver]
) -> tuple[Array, tuple[Any, ...]]:
    """Up to `_ROBUST_ROWS` rows, none of them without weight, and other sums.

    Their positions are not periodic, so that values that recur periodically are not
    mistaken for all values.
    """
    index = np.arange(min(rows.n_rows, _ROBUST_ROWS))
    if rows.n_rows > _ROBUST_ROWS:
        random = np.random.default_rng(0)
        index = np.sort(random.integers(rows.n_rows, size=_ROBUST_ROWS))
    (some, weight), sums = rows.take_with(also, index, sample_weight)
    if not weight.any():
        first = rows.beside.map(_first_weighted, sample_weight)
        starts = (chunk.start for chunk in rows.beside.chunks)
        places = [i + start for i, start in zip(first, starts, strict=True)]
        some, weight = rows.take(np.concatenate(places)[:_ROBUST_ROWS], sample_weight)
    return some[weight > 0], sums


def _first_weighted(weight: Array) -> Indices:
    return np.flatnonzero(weight)[:_ROBUST_ROWS]


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
