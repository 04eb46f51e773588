"""The few distinct rows on which start and scale are decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._core._protocols import Array
from sklearn_mm._problems._linear_residual import LinearResidual

# Rows that the decision looks at; its cost does not grow with the data beyond. Fifty
# for each parameter, within limits.
_DECIDING_ROWS, _MIN_DECIDING, _MAX_DECIDING = 50, 1_000, 2_000
# Below this a sample says nothing about so many parameters.
ROWS_PER_PARAMETER = 5.0


def least_squares(model: LinearResidual, sample_weight: Array) -> Array:
    """Theta of (ridge) least squares."""
    theta = model.minimize(np.zeros(model.shape).ravel(), sample_weight)[0]
    model.forget()
    return theta


@dataclass(frozen=True)
class DecidingRows:
    """The distinct rows that decide, with their weights."""

    model: LinearResidual
    weight: Array
    theta: Array  # least squares on all rows
    sampled: bool

    @classmethod
    def draw(
        cls, model: LinearResidual, sample_weight: Array, theta: Array | None
    ) -> DecidingRows:
        ols = least_squares(model, sample_weight)
        norms = model.squared_norms(ols if theta is None else theta)
        q = model.shape[0]
        n_rows = int(np.clip(_DECIDING_ROWS * q, _MIN_DECIDING, _MAX_DECIDING))
        n_rows = max(n_rows, int(ROWS_PER_PARAMETER * q))
        # Least-squares residuals give an order that moves with the rows and stays the
        # same under affine changes of X and y.
        order = _along(norms, sample_weight, n_rows)
        sampled = order is not None
        if order is None:
            counted = np.flatnonzero(sample_weight)
            order = counted[np.argsort(norms[counted])]
        weight = np.ones(len(order)) if sampled else sample_weight[order]
        del norms  # every array of the length of the data counts here
        X, Y = model.X[order].astype(np.float64), model.Y[order]
        first, total = _merge_copies(np.hstack([_fingerprint(X), Y]), weight)
        weight = total * (len(first) / total.sum())
        small = LinearResidual(
            X[first],
            Y[first],
            model.mean,
            model.scale,
            model.fit_intercept,
            model.alpha * len(first) / sample_weight.sum(),
        )
        return cls(small, weight, ols, sampled)


def _along(norms: Array, weight: Array, n_rows: int) -> Array | None:
    """Systematic sample of rows along the order of their residuals.

    Every stratum of residuals is represented, and a row counts by its weight alone.
    None if there are not more distinct rows than that.

    Rows are counted in bins of equal leading digits, and only those in bins that one is
    to be taken from are sorted.
    """
    # Non-negative floats are ordered as their bits: exponent, then twelve digits more.
    bins = norms.view(np.int64) >> 40
    bins -= bins.min()
    mass = np.bincount(bins, weights=weight)
    reached = np.cumsum(mass)
    grid = (np.arange(n_rows) + 0.5) / n_rows * reached[-1]
    many = np.count_nonzero(mass) > n_rows
    wanted = np.full(len(mass), not many)
    wanted[np.searchsorted(reached, grid)] = True
    rows = np.flatnonzero(wanted[bins] & (weight > 0))
    rows = rows[np.argsort(norms[rows])]
    if not many and _n_distinct(norms[rows]) <= n_rows:
        return None
    # Mass up to each row: before its bin, and in its bin.
    bins, upto = bins[rows], np.cumsum(weight[rows])
    first = np.flatnonzero(np.diff(bins, prepend=-1))
    skipped = (reached - mass)[bins[first]] - (upto - weight[rows])[first]
    upto += np.repeat(skipped, np.diff(first, append=len(rows)))
    return rows[np.minimum(np.searchsorted(upto, grid), len(rows) - 1)]


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


def _merge_copies(table: Array, weight: Array) -> tuple[Array, Array]:
    """Index of the first copy of each distinct row, in order, and the summed weights.

    Copies have the same least-squares residual, so they are neighbours but for
    rounding; comparing exact values makes the result independent of that.
    """
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    total = np.bincount(inverse.ravel(), weights=weight)
    order = np.argsort(first)
    return first[order], total[order]
