"""Location and scale of the targets of a regression."""

from __future__ import annotations

from typing import Any

import numpy as np

from sklearn_mm._rows.ranks import medians
from sklearn_mm._rows.statistics import (
    mean_and_largest,
    moments_in_blocks,
    weighted_median,
)
from sklearn_mm._solver.roles import Array

# Standard deviation of a normal variable in median absolute deviations.
_NORMAL = 1.4826


def mean_and_deviation(
    Y: Any, weight: Array, blocks: Any | None
) -> tuple[Array, Array]:
    """Weighted mean and standard deviation of each output; one for constants.

    Parameters
    ----------
    Y : ndarray or Dask array of shape (n_rows, n_outputs)
        Targets.
    weight : ndarray of shape (n_rows,)
        Weights of the rows. Rows without weight may contain arbitrary values.
    blocks : DaskRows or None
        The rows of X, if the targets are a Dask array in the same blocks.
    """
    if blocks is not None:
        mean, spread = moments_in_blocks(blocks, Y, weight)
        return mean, np.where(spread > 0, spread, 1.0)
    kept = weight > 0
    rows, share = Y[kept].astype(np.float64, copy=False), weight[kept]
    total = share.sum()
    mean = share @ rows / total
    rows -= mean
    low, high, error = rows.min(axis=0), rows.max(axis=0), share @ rows / total
    mean, size = mean_and_largest(mean, low, high, error)
    rows -= error
    # Divide by the largest first, so that squares neither overflow nor vanish.
    rows /= np.where(size > 0.0, size, np.inf)
    variance = share @ np.square(rows, out=rows) / total
    return mean, np.where(size > 0.0, size * np.sqrt(variance), 1.0)


def middle_and_spread(Y: Any, weight: Array, blocks: Any | None) -> tuple[Array, Array]:
    """Weighted median, and the deviation that a normal core of that width has.

    For the Huber loss, whose width is measured in these units: a few gross outliers
    must not widen it. Where half of the targets are equal, the standard deviation is
    used. The parameters are those of `mean_and_deviation`.
    """
    if blocks is not None:
        rows = blocks.in_blocks()
        mass = rows.place(weight)

        def middle(values: Any) -> Array:
            return medians(rows, rows.place(values), mass, Y.shape[1])
    else:
        kept = weight > 0
        Y, weight = Y[kept].astype(np.float64), weight[kept]

        def middle(values: Any) -> Array:
            return weighted_median(values, weight)

    centre = middle(Y)
    spread = _NORMAL * middle(abs(Y - centre))
    if np.all(spread > 0.0):
        return centre, spread
    _, deviation = mean_and_deviation(Y, weight, blocks)
    return centre, np.where(spread > 0.0, spread, deviation)
