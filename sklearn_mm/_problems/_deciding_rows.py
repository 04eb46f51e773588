"""The few distinct rows on which start and scale are decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._core._chunks import row_chunks
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
        # Least-squares residuals give an order that moves with the rows and stays the
        # same under affine changes of X and y.
        order = np.argsort(norms)
        weight = sample_weight[order]
        if not weight.all():
            order, weight = order[weight > 0], weight[weight > 0]
        q = model.shape[0]
        n_rows = int(np.clip(_DECIDING_ROWS * q, _MIN_DECIDING, _MAX_DECIDING))
        n_rows = max(n_rows, int(ROWS_PER_PARAMETER * q))
        sampled = _exceed(norms, order, n_rows)
        del norms  # every array of the length of the data counts here
        if sampled:
            # Systematic sampling along the order: equal weights, every stratum of
            # residuals represented, and a row counts by its weight alone.
            mass = np.cumsum(weight, out=weight)
            grid = (np.arange(n_rows) + 0.5) / n_rows * mass[-1]
            order = order[np.minimum(np.searchsorted(mass, grid), len(order) - 1)]
            weight = np.ones(len(order))
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


def _exceed(norms: Array, order: Array, n_rows: int) -> bool:
    """Whether there are more than so many distinct rows, told from their residuals.

    Copies of a row have the same residual but for rounding, and other rows another one
    almost surely. So k copies and a weight of k lead to the same decision.
    """
    n_distinct = 1
    for block in row_chunks(len(order) - 1, 16 * n_rows):
        ordered = norms[order[block.start : block.stop + 1]]
        n_distinct += int(np.count_nonzero(np.diff(ordered) > 1e-9 * ordered[1:]))
        if n_distinct > n_rows:
            return True
    return False


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
