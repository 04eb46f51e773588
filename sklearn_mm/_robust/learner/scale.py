r"""Centre and scale of residuals, most of which belong to inliers.

The *shorth* is the shortest interval that contains half of the weight: a mode with a
width. The *core* is a normal distribution on a flat background, as in `core.py`, with
weights and in one dimension. Let N be the weight within :math:`k s`, and G that between
there and :math:`2 k s`. The background has the same weight in both, and the core has a
fraction F of its weight within :math:`k s` and :math:`F_2 - F` outside. Hence the core
has the weight :math:`C = (N - G) / (2F - F_2)`, the background has :math:`B = N - C F`
inside, where its second moment is :math:`(k s)^2 / 3`, and

.. math:: s^2 = (\textstyle\sum_{in} r^2 - B (k s)^2 / 3) / (C F m)

with the second moment m of a standard normal distribution truncated at k.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from sklearn_mm._solver.roles import Array

# Half-width of the shorth of a standard normal distribution.
_QUARTILE = float(norm.ppf(0.75))
# Radius of the core in scales, the probabilities within it and within twice the radius,
# and the second moment inside.
_RADIUS = 2.0
_INSIDE, _TWICE = (2.0 * norm.cdf(c * _RADIUS) - 1.0 for c in (1, 2))
_MOMENT = 1.0 - 2.0 * _RADIUS * norm.pdf(_RADIUS) / _INSIDE
_CORE_ITERATIONS = 20
# The core has at least this fraction of the weight inside.
_LEAST_CORE = 0.25


def shorth(values: Array, weight: Array) -> tuple[float, float]:
    """Centre of the shortest half, and its half-width as the scale of a normal law."""
    order = np.argsort(values)
    ordered = values[order]
    mass = np.concatenate([[0.0], np.cumsum(weight[order])])
    # The first value up to which there is half of the weight, from each value on.
    half = mass[-1] * (0.5 - 1e-12)
    last = np.searchsorted(mass, mass[:-1] + half) - 1
    first = np.flatnonzero(last < len(values))
    last = np.maximum(last[first], first)
    i = int(np.argmin(ordered[last] - ordered[first]))
    low, high = float(ordered[first[i]]), float(ordered[last[i]])
    return low / 2.0 + high / 2.0, (high - low) / 2.0 / _QUARTILE


def core_scale(residual: Array, weight: Array) -> float:
    """Scale of a normal core on a flat background; zero if half are equal."""
    size = np.abs(residual)
    doubled = np.concatenate([weight, weight])
    scale = shorth(np.concatenate([-size, size]), doubled)[1]
    total = float(weight.sum())
    for _ in range(_CORE_ITERATIONS):
        radius = _RADIUS * scale
        inside = size <= radius
        n = float(weight[inside].sum())
        ring = float(weight[(size > radius) & (size <= 2.0 * radius)].sum())
        core = max((n - ring) / (2.0 * _INSIDE - _TWICE), _LEAST_CORE * n)
        background = max(n - core * _INSIDE, 0.0)
        core = min((n - background) / _INSIDE, total)
        squares = float(weight[inside] @ np.square(size[inside]))
        squares -= background * radius**2 / 3.0
        if not (core > 0.0 and squares > 0.0):
            break
        scale = float(np.sqrt(squares / (core * _INSIDE * _MOMENT)))
    return scale


def by_prediction(
    residual: Array, prediction: Array, weight: Array, per_bin: int, max_bins: int
) -> tuple[Array, Array]:
    """Shorths of residuals as functions of the prediction: centre and scale per row.

    Rows are sorted by their predictions and divided into bins of equal weight. Values
    are interpolated, and scales are smoothed by a median of three.
    """
    order = np.argsort(prediction, kind="stable")
    order = order[weight[order] > 0.0]
    n_bins = int(np.clip(len(order) // per_bin, 1, max_bins))
    mass = np.cumsum(weight[order])
    edges = np.searchsorted(mass, mass[-1] * np.arange(1, n_bins) / n_bins)
    bins: list[NDArray[np.intp]] = [
        rows for rows in np.split(order, edges) if len(rows)
    ]
    where = np.array([np.average(prediction[b], weights=weight[b]) for b in bins])
    centre, scale = np.array([shorth(residual[b], weight[b]) for b in bins]).T
    padded = np.concatenate([scale[:1], scale, scale[-1:]])
    scale = np.median([padded[:-2], padded[1:-1], padded[2:]], axis=0)
    return np.interp(prediction, where, centre), np.interp(prediction, where, scale)
