"""The distinct rows from which the start and the scale are determined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._robust.linear import LinearPoint, LinearResidual
from sklearn_mm._robust.problem import squared_norms
from sklearn_mm._robust.start.whitened import MAX_WHITENED, row_labels
from sklearn_mm._rows.ranks import Drawn, Histogram
from sklearn_mm._rows.table import Column, RowNumbers, Rows
from sklearn_mm._solver.roles import Array, Indices

# Number of deciding rows per parameter, and its limits. The cost of the decision does
# not increase with the number of rows beyond that.
_DECIDING_ROWS, _MIN_DECIDING, _MAX_DECIDING = 50, 1_000, 2_000
# Fewer rows per parameter than this are not informative.
ROWS_PER_PARAMETER = 5.0
# Largest number of rows that are sorted, all of which travel on a cluster. If there are
# more candidates, rows are drawn at random from each bin.
_MOST_ROWS = 200_000
# Largest number of entries of X that travel with rows that are drawn from all blocks of
# a cluster. If there are more, a round trip for those of the chosen rows takes less.
_MOST_ENTRIES = 500_000
# Bits of a squared residual that are dropped to keep the exponent and twelve binary
# digits.
_SHIFT = 40


@dataclass(frozen=True)
class DecidingRows:
    """The deciding rows, which are distinct, and their weights."""

    X: Any  # standardised columns; sparse if they are, and many
    Y: Array
    weight: Array  # sums to the number of rows
    penalty: Array  # of each coefficient, in the sum over these rows
    sampled: bool

    @classmethod
    def draw(
        cls, model: LinearResidual, sample_weight: Array, point: LinearPoint
    ) -> DecidingRows:
        """Draw a sample that is stratified by the size of the residuals at a point.

        The order of least-squares residuals is equivariant: it does not change under
        affine transformations of X and y.
        """
        rows = model.rows
        norms = RowNorms(rows.beside, point.residual, sample_weight, (rows, model.y))
        q, frame = model.shape[0], model.frame
        n_rows = int(np.clip(_DECIDING_ROWS * q, _MIN_DECIDING, _MAX_DECIDING))
        n_rows = max(n_rows, int(ROWS_PER_PARAMETER * q))
        order, weight, sampled, entries = norms.sample(n_rows)
        X, Y = model.of_entries(*entries) if entries else model.take(order)
        first, total = _merge_copies(np.hstack([_fingerprint(X), Y]), weight)
        n = len(first)
        X = X[first]
        if scipy.sparse.issparse(X) and X.shape[1] <= MAX_WHITENED:
            X = X.toarray()
        if scipy.sparse.issparse(X):  # not centred, which would fill it
            X = (X @ scipy.sparse.diags_array(1.0 / frame.scale)).tocsr()
        else:
            X = (X - frame.mean) / frame.scale
        penalty = model.ridge[: len(frame.mean)] * (n / model.rows.total(sample_weight))
        return cls(X, Y[first], total * (n / total.sum()), penalty, sampled)


@dataclass(frozen=True)
class RowNorms:
    """Squared residual norms of rows, ordered without sorting them all.

    Rows are counted chunk by chunk, in bins of equal leading digits.
    """

    rows: Rows
    residual: Column
    weight: Column
    data: tuple[Any, Column] | None = None  # rows of X, and y

    def sample(self, n_rows: int) -> tuple[Indices, Array, bool, tuple[Array, ...]]:
        """Ordered rows, their weights, whether they are a sample, and their entries.

        The last, of X and y, is empty unless it has been known before the rows were.

        If there are more distinct rows than `n_rows`, they are a systematic sample with
        unit weights, in which every stratum of residuals is represented in proportion
        to its weight. Otherwise, they are all rows with positive weights.
        """
        if self.rows.n_rows <= n_rows:
            rows, norms, weight = self._gathered(self._map(_all_rows))
            order = np.argsort(norms)
            return rows[order], weight[order], False, ()
        found = self._sum(_counted)
        many = np.count_nonzero(found.mass) > n_rows
        reached = np.cumsum(found.mass)
        grid = (np.arange(n_rows) + 0.5) / n_rows * reached[-1]
        hit = np.searchsorted(reached, grid)
        wanted = np.full(len(reached), not many)
        wanted[hit] = True
        if found.count[wanted].sum() > _MOST_ROWS:  # draw any rows of these bins
            bins, quota = np.unique(hit, return_counts=True)
            drawn = self._draw((found.low, len(reached), bins, quota))
            share = quota / np.maximum(np.bincount(drawn.bins, minlength=len(quota)), 1)
            return drawn.rows, share[drawn.bins], True, drawn.entries
        parts = self._map(_rows_of, found.low, len(reached), wanted.nonzero()[0])
        rows, norms, weight = self._gathered(parts)
        order = np.argsort(norms)
        rows, norms, weight = rows[order], norms[order], weight[order]
        if not many and _n_distinct(norms) <= n_rows:
            return rows, weight, False, ()
        # Mass up to each row: before its bin, and in its bin.
        bins = _bins(norms, found.low)
        upto = np.cumsum(weight)
        begin = np.flatnonzero(np.diff(bins, prepend=-1))
        skipped = (reached - found.mass)[bins[begin]] - (upto - weight)[begin]
        upto += np.repeat(skipped, np.diff(begin, append=len(rows)))
        chosen = rows[np.minimum(np.searchsorted(upto, grid), len(rows) - 1)]
        return chosen, np.ones(len(chosen)), True, ()

    def _draw(self, args: tuple[Any, ...]) -> Drawn:
        """Random rows of bins, with their entries if these may travel."""
        columns = (self.residual, self.weight, RowNumbers())
        if self.data is not None and self.data[0].held:
            (rows, y), quota = self.data, args[-1]
            entries = int(quota.sum()) * rows.X.shape[1] * len(rows.chunks)
            if entries <= _MOST_ENTRIES:
                drawn: Drawn = rows.sum(_drawn_rows, *columns, y, args=args)
                return drawn
        drawn = self.rows.sum(_drawn, *columns, args=args)
        return drawn

    def _gathered(self, parts: Iterator[Any]) -> tuple[Indices, Array, Array]:
        """Rows, norms and weights of all chunks, from those of each of them."""
        starts = [chunk.start for chunk in self.rows.chunks]
        rows, norms, weight = zip(*parts, strict=True)
        rows = tuple(r + start for r, start in zip(rows, starts, strict=True))
        return np.concatenate(rows), np.concatenate(norms), np.concatenate(weight)

    def _sum(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.rows.sum(function, self.residual, self.weight, args=args)

    def _map(self, function: Callable[..., Any], *args: Any) -> Iterator[Any]:
        return self.rows.map(function, self.residual, self.weight, args=args)


def _counted(residual: Array, weight: Array) -> Histogram:
    return Histogram.of(_leading_digits(squared_norms(residual)), weight)


def _all_rows(residual: Array, weight: Array) -> tuple[Indices, Array, Array]:
    """Rows of positive weight, with their norms and weights."""
    rows = np.flatnonzero(weight > 0)
    return rows, squared_norms(residual)[rows], weight[rows]


def _rows_of(
    residual: Array, weight: Array, low: int, n_bins: int, bins: Indices
) -> tuple[Indices, Array, Array]:
    """Rows of some bins, with their norms and weights."""
    norms, wanted = squared_norms(residual), np.zeros(n_bins, dtype=bool)
    wanted[bins] = True
    rows = np.flatnonzero(wanted[_bins(norms, low)] & (weight > 0))
    return rows, norms[rows], weight[rows]


def _drawn(
    residual: Array,
    weight: Array,
    numbers: Indices,
    low: int,
    n_bins: int,
    bins: Indices,
    quota: Array,
) -> Drawn:
    """A given number of random rows of some bins."""
    place = np.full(n_bins, -1)
    place[bins] = np.arange(len(bins))
    places = place[_bins(squared_norms(residual), low)]
    rows = np.flatnonzero((places >= 0) & (weight > 0))
    return Drawn.of(quota, places[rows], weight[rows], numbers[rows])


def _drawn_rows(
    X: Array, residual: Array, weight: Array, numbers: Indices, y: Array, *args: Any
) -> Drawn:
    """The same with their entries of X and y."""
    drawn = _drawn(residual, weight, numbers, *args)
    return drawn.with_entries(numbers[0], X, y)


def _bins(norms: Array, low: int) -> Array:
    return np.maximum(_leading_digits(norms) - low, 0)


def _leading_digits(norms: Array) -> Array:
    """Exponent and twelve binary digits. Non-negative floats are ordered as bits."""
    return norms.view(np.int64) >> _SHIFT


def _n_distinct(ordered: Array) -> int:
    """Number of distinct rows according to their residuals.

    Copies of a row have the same residual up to rounding, and different rows almost
    surely do not. Therefore k copies and a weight of k lead to the same decision.
    """
    return 1 + int(np.count_nonzero(np.diff(ordered) > 1e-9 * ordered[1:]))


def _fingerprint(X: Any) -> Array:
    """Columns that are equal if and only if rows are copies of each other.

    These are the entries of dense rows. Products of sparse rows with random vectors are
    summed in the order of their entries, so that they are equal to the last bit as
    well.
    """
    if not scipy.sparse.issparse(X):
        return X
    directions = np.random.default_rng(0).standard_normal((X.shape[1], 4))
    return X @ directions


def _merge_copies(table: Array, weight: Array) -> tuple[Indices, Array]:
    """Index of the first copy of each distinct row, in order, and the summed weights.

    Copies have the same least-squares residual, so that they are neighbours up to
    rounding. The result does not depend on rounding because exact values are compared.
    """
    label = row_labels(table)
    first = np.unique(label, return_index=True)[1]
    total: Array = np.bincount(label, weights=weight)
    order = np.argsort(first)
    return first[order], total[order]
