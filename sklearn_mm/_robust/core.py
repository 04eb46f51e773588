r"""Scale and share of the inliers among residual vectors.

The inliers follow a normal distribution, the *core*, on a flat background. Let N of the
vectors, in d dimensions, be within the radius :math:`R = k s`, and G in the ring
between R and 2R. Of the core, a fraction F is inside and :math:`F_2 - F` in the ring.
Of the background, there are :math:`2^d - 1` times as many in the ring as inside, the
ratio of the volumes. Hence the core has ::

    C = ((2**d - 1) N - G) / (2**d F - F_2)

members, and there are B = N - C F of the background inside. The second moment of a
uniform distribution is :math:`R^2 d / (d + 2)` there, so that the core has, with q
fitted parameters, ::

    s**2 = (sum of squares inside - B R**2 d / (d + 2)) / ((d C - q) F m)

where m is the second moment of the normal distribution inside, in units of d s**2.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from sklearn_mm._solver.roles import Array

# Probability of the normal distribution within the radius, in any dimension: that of
# two standard deviations in one dimension.
_INSIDE = 0.9545
_ITERATIONS = 30
# The core has at least this fraction of the vectors inside.
_LEAST_CORE = 0.25


@dataclass(frozen=True)
class Core:
    """A normal distribution among residual vectors."""

    scale: float  # standard deviation of each component
    share: float  # of the vectors that belong to it


def median_scale(norms: Array, d: int) -> float:
    """Scale of the normal distribution with the same median norm."""
    return float(np.median(norms) / np.sqrt(chi2.ppf(0.5, d)))


def find_core(norms: Array, d: int, n_parameters: int, scale: float) -> Core:
    """The core near a scale.

    Parameters
    ----------
    norms : ndarray of shape (n,)
        Norms of the residual vectors.
    d : int
        Their dimension.
    n_parameters : int
        Number of parameters that were fitted.
    scale : float
        Where to begin.
    """
    radius, twice, moment = _constants(d)
    n, ratio = len(norms), 2.0**d
    members = 0.0
    for _ in range(_ITERATIONS):
        inside = norms <= radius * scale
        count = float(np.count_nonzero(inside))
        ring = float(np.count_nonzero(norms <= 2.0 * radius * scale)) - count
        core = ((ratio - 1.0) * count - ring) / (ratio * _INSIDE - twice)
        core = max(core, _LEAST_CORE * count)
        background = max(count - core * _INSIDE, 0.0)
        members = min((count - background) / _INSIDE, float(n))
        squares = float(np.square(norms[inside]).sum())
        squares -= background * (radius * scale) ** 2 * d / (d + 2.0)
        # At least one degree of freedom, since more parameters fit anything.
        freedom = max(d * members - n_parameters, 1.0)
        if not squares > 0.0:
            break
        new = float(np.sqrt(squares / (freedom * _INSIDE * moment)))
        if abs(new - scale) <= 1e-3 * scale:
            return Core(new, members / n)
        scale = new
    return Core(scale, members / n)


@functools.lru_cache(maxsize=16)
def _constants(d: int) -> tuple[float, float, float]:
    """Radius in scales, mass within twice the radius, second moment inside."""
    square = float(chi2.ppf(_INSIDE, d))
    twice = float(chi2.cdf(4.0 * square, d))
    # E[z; z <= a] of a chi-square law is d times the mass of the one with d + 2.
    moment = float(chi2.cdf(square, d + 2)) / _INSIDE
    return float(np.sqrt(square)), twice, moment
