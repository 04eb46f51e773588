"""The few distinct rows on which start and scale are decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._robust.linear import LinearPoint, LinearResidual
from sklearn_mm._robust.problem import squared_norms
from sklearn_mm._robust.start.whitened import MAX_WHITENED
from sklearn_mm._rows.table import Column, Rows
from sklearn_mm._solver.roles import Array, Indices

# Rows that the decision looks at; its cost does not grow with the data beyond. Fifty
# for each parameter, within limits.
_DECIDING_ROWS, _MIN_DECIDING, _MAX_DECIDING = 50, 1_000, 2_000
# Below this a sample says nothing about so many parameters.
ROWS_PER_PARAMETER = 5.0
# Residuals 2**-32 times the largest, and smaller ones, are told apart by sorting.
_N_BINS = 64 << 12


@dataclass(frozen=True)
class DecidingRows:
    """The distinct rows that decide, with their weights: plain values."""

    X: Any  # standardised columns; sparse if they are, and many
    Y: Array
    weight: Array  # sums to the number of rows
    penalty: Array  # of each coefficient, in the sum over these rows
    sampled: bool

    @classmethod
    def draw(
        cls, model: LinearResidual, sample_weight: Array, point: LinearPoint
    ) -> DecidingRows:
        """A sample of all sizes of residuals at a point.

        Least-squares residuals give an order that moves with the rows and stays the
        same under affine changes of X and y.
        """
        norms = RowNorms(model.rows.beside, point.residual, sample_weight)
        q, frame = model.shape[0], model.frame
        n_rows = int(np.clip(_DECIDING_ROWS * q, _MIN_DECIDING, _MAX_DECIDING))
        n_rows = max(n_rows, int(ROWS_PER_PARAMETER * q))
        order, sampled = norms.sample(n_rows)
        weight = np.ones(len(order)) if sampled else sample_weight[order]
        X, Y = model.take(order)
        first, total = _merge_copies(np.hstack([_fingerprint(X), Y]), weight)
        n = len(first)
        X = X[first]
        if scipy.sparse.issparse(X) and X.shape[1] <= MAX_WHITENED:
            X = X.toarray()
        if scipy.sparse.issparse(X):  # not centred, which would fill it
            X = (X @ scipy.sparse.diags_array(1.0 / frame.scale)).tocsr()
        else:
            X = (X - frame.mean) / frame.scale
        penalty = model.ridge[: len(frame.mean)] * (n / sample_weight.sum())
        return cls(X, Y[first], total * (n / total.sum()), penalty, sampled)


@dataclass(frozen=True)
class RowNorms:
    """Squared residual norms of rows, ordered without sorting them all.

    Rows are counted in bins of equal leading digits, chunk by chunk.
    """

    rows: Rows
    residual: Column
    weight: Array

    def sample(self, n_rows: int) -> tuple[Indices, bool]:
        """Rows in order: a systematic sample, and True, or all that have a weight.

        A sample is taken if there are more distinct rows than `n_rows`. Every stratum
        of residuals is represented in it, and a row counts by its weight alone.
        """
        first, last = np.array(list(self._map(_ends))).T
        low, high = max(first.min(), last.max() - _N_BINS), last.max()

        def mass_of(norms: Array, weight: Array) -> Array:
            return np.bincount(_bins(norms, low), weight, minlength=high - low + 1)

        mass = sum(self._map(mass_of))
        reached = np.cumsum(mass)
        grid = (np.arange(n_rows) + 0.5) / n_rows * reached[-1]
        many = np.count_nonzero(mass) > n_rows
        wanted = np.full(len(mass), not many)
        wanted[np.searchsorted(reached, grid)] = True

        def rows_of(norms: Array, weight: Array) -> tuple[Indices, Array]:
            rows = np.flatnonzero(wanted[_bins(norms, low)] & (weight > 0))
            return rows, norms[rows]

        found = list(self._map(rows_of))
        starts = [chunk.start for chunk in self.rows.chunks]
        rows = np.concatenate([f[0] + i for f, i in zip(found, starts, strict=True)])
        norms = np.concatenate([f[1] for f in found])
        order = np.argsort(norms)
        rows, norms = rows[order], norms[order]
        if not many and _n_distinct(norms) <= n_rows:
            return rows, False
        # Mass up to each row: before its bin, and in its bin.
        weight, bins = self.weight[rows], _bins(norms, low)
        upto = np.cumsum(weight)
        begin = np.flatnonzero(np.diff(bins, prepend=-1))
        skipped = (reached - mass)[bins[begin]] - (upto - weight)[begin]
        upto += np.repeat(skipped, np.diff(begin, append=len(rows)))
        return rows[np.minimum(np.searchsorted(upto, grid), len(rows) - 1)], True

    def _map(self, function: Callable[[Array, Array], Any]) -> Iterator[Any]:
        return self.rows.map(_on_norms, self.residual, self.weight, args=(function,))


def _on_norms(
    residual: Array, weight: Array, function: Callable[[Array, Array], Any]
) -> Any:
    return function(squared_norms(residual), weight)


def _ends(norms: Array, weight: Array) -> tuple[int, int]:
    return _leading_digits(norms.min()), _leading_digits(norms.max())


def _bins(norms: Array, low: int) -> Array:
    return np.maximum(_leading_digits(norms) - low, 0)


def _leading_digits(norms: Any) -> Any:
    """Exponent and twelve binary digits; non-negative floats are ordered as bits."""
    return norms.view(np.int64) >> 40


def _n_distinct(ordered: Array) -> int:
    """Number of distinct rows, told from their residuals.

    Copies of a row have the same residual but for rounding, and other rows another one
    almost surely. So k copies and a weight of k lead to the same decision.
    """
    return 1 + int(np.count_nonzero(np.diff(ordered) > 1e-9 * ordered[1:]))


def _fingerprint(X: Any) -> Array:
    """Columns that are equal for copies of a row, and for them alone.

    Dense rows speak for themselves. Products of a sparse row with random vectors are
    summed in the order of its entries, so they are the same to the last bit as well.
    """
    if not scipy.sparse.issparse(X):
        return X
    directions = np.random.default_rng(0).standard_normal((X.shape[1], 4))
    return X @ directions


def _merge_copies(table: Array, weight: Array) -> tuple[Indices, Array]:
    """Index of the first copy of each distinct row, in order, and the summed weights.

    Copies have the same least-squares residual, so they are neighbours but for
    rounding; comparing exact values makes the result independent of that.
    """
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    total: Array = np.bincount(inverse.ravel(), weights=weight)
    order = np.argsort(first)
    return first[order], total[order]
