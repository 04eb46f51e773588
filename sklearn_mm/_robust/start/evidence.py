r"""Evidence that a part of a population is a population of its own.

M denotes the larger population, A the smaller one, and z squared distances of rows in
units of their scales. The question is whether a part of the rows in the window of M
(z_M <= k**2) follows A. The answers are log-likelihood ratios in nats, reduced by what
any A would achieve: a plane with q parameters passes through q rows and its scale uses
up one more, each of which contributes log(s_M / s_A).

1. A share pi of the rows follows A and the others follow M, compared with all rows
   following M::

       max over pi of  sum_i log(1 + pi (F exp(l_i) - 1)),
       l_i = log(s_M / s_A) - z_A,i / 2 + z_M,i / 2

2. The others follow a law R of their own, which is normal and not narrower than A,
   around a plane parallel to that of A (near outliers on one side: two more parameters
   for each output) or around their least-squares plane (a second regime: q + 1 more)::

       sum_i log(pi F exp(l_i) + (1 - pi) F exp(l'_i)),
       l'_i = log(s_M / s_R) - z_R,i / 2 + z_M,i / 2

3. If there are many rows, and the two planes are close to each other for most of them,
   the rows in the band of A are too many and too close to A for the law of M: the
   likelihood ratio of their number and of their residuals, minus q for the plane.

4. Rows far from those to which A is fitted follow A with a different share (bad
   leverage points). In the first ratio every row belongs to either side by chance, and
   encoding the side costs about n times the entropy of pi, which is too much for a few
   rows. Here X tells the side: rows are ordered by their leverage on the plane of A,
   each as if it had been left out of the fit, so that rows of A have no advantage, and
   split at a rank t beyond a majority. The shares pi below and pi' above it are
   estimated (pi' may be zero), and the logarithm of the number of possible ranks is
   subtracted::

       max over t of  max over pi of  sum_{rank <= t} log(1 + pi (F exp(l_i) - 1))
                   + max over pi' of  sum_{rank > t} log(1 + pi' (F exp(l_i) - 1))

   A plane that is fitted to the central rows only is closer to them than M, whatever
   the others follow. Therefore each parameter costs a fraction of a nat.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from sklearn_mm._robust.start.population import Populations, Window
from sklearn_mm._robust.start.whitened import Array, WhitenedRows

# Shares pi that are considered.
_GRID = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97])
# Cost in nats per parameter if rows of high leverage have a share of their own. Without
# it, many rows of clean data of 30 x 10 would be rejected. With it, efficiency is lost
# in the smallest samples only (20 x 3: 0.93 to 0.82; 30 x 5: 0.87 to 0.86).
_FAR_OUT = 0.2
# Rows that each parameter and the scale use up: slightly less than one, because
# residuals have been corrected for the fit. Chosen, together with the prior in
# `search`, as the smallest value that does not affect clean data of 20 x 1 to 60 x 20
# (efficiency at least 0.9 with 20 rows per parameter and more, 0.8 with three).
_FREE = 0.9
# Rows per parameter that the others must have to follow a plane of their own.
_OWN_PLANE = 1.5
# Rows per parameter that the third ratio requires.
_MANY_ROWS = 10.0


def evidence(
    rows: WhitenedRows, larger: Populations, smaller: Populations
) -> tuple[Array, Array]:
    """Evidence for each smaller population, and its overlap with the larger one.

    The overlap is the part of it in the window of `larger`, which is a single
    population.
    """
    w, window = rows.weight, Window.of(rows.n_outputs)
    in_larger = larger.distance[0] <= window.square
    in_smaller = smaller.distance <= window.square
    mass = in_smaller @ w
    overlap = (in_smaller & in_larger) @ w / np.maximum(mass, 1e-300)
    ratio = np.log(larger.scale / smaller.scale)  # (c, d)
    free = _FREE * (rows.effective + 1.0) * np.maximum(ratio, 0.0).sum(axis=1)
    log = ratio.sum(axis=1)[:, None] + 0.5 * (larger.distance - smaller.distance)
    odds = np.exp(np.minimum(log, 600.0)) * window.probability - 1.0
    odds *= in_larger
    each = np.log1p(_GRID[:, None, None] * odds)
    each *= w
    first = each.sum(axis=2).max(axis=0)
    apart = _two_laws(rows, larger, smaller, in_larger, in_smaller)
    nats = np.maximum(first, apart) - free
    if rows.is_direct:
        fourth = _far_out(rows, each, in_smaller) - _FAR_OUT * rows.n_parameters
        nats = np.maximum(nats, fourth - free)
    if rows.n_outputs == 1 and rows.n_rows > _MANY_ROWS * rows.effective:
        third = _in_the_band(rows, larger, smaller, log, in_larger, in_smaller)
        nats = np.maximum(nats, third - free - rows.effective)
    return nats, overlap


def _far_out(rows: WhitenedRows, each: Array, in_smaller: Array) -> Array:
    """Log-likelihood ratio if rows of high leverage follow A with another share.

    `each` holds the terms of the first ratio, of shape (n_shares, c, n).
    """
    order = np.argsort(rows.leverage(in_smaller), axis=1, kind="stable")
    low = np.cumsum(np.take_along_axis(each, order[None], axis=2), axis=2)
    # Possibly none of the rows of high leverage follows A.
    high = np.maximum((low[:, :, -1:] - low).max(axis=0), 0.0)
    best = low.max(axis=0) + high
    enough = np.cumsum(rows.weight[order], axis=1) >= rows.majority - 1e-9
    ranks = rows.n_rows + 1.0 - rows.majority
    return np.where(enough, best, -np.inf).max(axis=1) - np.log(ranks)


def _two_laws(
    rows: WhitenedRows,
    larger: Populations,
    smaller: Populations,
    in_larger: Array,
    in_smaller: Array,
) -> Array:
    """Log-likelihood ratio if the other rows follow a law of their own.

    The share of A is that of the rows in its window. The two laws are interchangeable,
    and the larger one comes first: there is no evidence for a minority.
    """
    w = rows.weight
    rest = ~in_smaller * w
    total = np.maximum(rest.sum(axis=1), 1e-300)
    residual = rows.residuals(smaller.theta)
    mean = np.einsum("cn,cdn->cd", rest, residual) / total[:, None]
    share = np.clip(in_smaller @ w / w.sum(), _GRID[0], _GRID[-1])
    ratio = np.log(larger.scale / smaller.scale).sum(axis=1)
    follow = (np.log(share) + ratio)[:, None] - 0.5 * smaller.distance

    def nats(away: Array, freedom: Array, taken: float) -> Array:
        """For residuals of the others from a plane; `taken` rows are used up by it."""
        squares = np.square(away)
        spread = np.sqrt(np.einsum("cn,cdn->cd", rest, squares) / freedom[:, None])
        spread = np.maximum(spread, smaller.scale)  # no narrower than A
        z = np.einsum("cdn,cd->cn", squares, 1.0 / np.square(spread))
        z *= (total / freedom)[:, None]
        wider = np.log(larger.scale / spread)
        others = np.log1p(-share) + wider.sum(axis=1)
        both = np.logaddexp(follow, others[:, None] - 0.5 * z)[:, in_larger]
        both += 0.5 * larger.distance[0, in_larger]
        both += np.log(Window.of(rows.n_outputs).probability)
        free = _FREE * taken * np.maximum(wider, 0.0).sum(axis=1)
        found: Array = both @ w[in_larger] - free
        return found

    found = nats(residual - mean[:, :, None], total, 2.0)
    if rows.is_direct and rows.ridge is None:
        q = float(rows.n_parameters)
        away = rows.residuals(rows.solve(~in_smaller * 1.0))
        own = nats(away, np.maximum(total - q, 0.5), q + 1.0)
        found = np.where(total >= _OWN_PLANE * q, np.maximum(found, own), found)
    return np.where(share >= 0.5, found, -np.inf)


def _in_the_band(
    rows: WhitenedRows,
    larger: Populations,
    smaller: Populations,
    log: Array,
    in_larger: Array,
    in_smaller: Array,
) -> Array:
    """Log-likelihood ratio of the rows in the band of A, for one output."""
    window, w = Window.of(1), rows.weight
    k = np.sqrt(window.square)
    q = smaller.scale / larger.scale  # (c, 1)
    # Distance of the planes, and band of A within the window of M, in scales of M.
    apart = rows.fitted(smaller.theta - larger.theta)[:, 0] / larger.scale
    low = np.maximum(apart - k * q, -k)
    high = np.maximum(np.minimum(apart + k * q, k), low)
    expected = (ndtr(high) - ndtr(low)) / window.probability
    expected = np.clip(expected, 1e-300, 1.0 - 1e-9)
    own = np.clip(ndtr((high - apart) / q) - ndtr((low - apart) / q), 1e-300, 1.0)
    inside = (in_larger & in_smaller) * w
    outside = (in_larger & ~in_smaller) * w
    law = log - np.log(own) + np.log(expected * window.probability)
    shape = np.sum(inside * np.where(inside > 0, law, 0.0), axis=1)
    found = inside.sum(axis=1)
    predicted = expected @ (w * in_larger)
    times = np.maximum(found / np.maximum(predicted, 1e-300), 1.0)
    fewer = np.log1p(-np.minimum(times[:, None] * expected, 0.999))
    fewer -= np.log1p(-np.minimum(expected, 0.999))
    count = found * np.log(times) + np.sum(outside * fewer, axis=1)
    return shape + np.maximum(count, 0.0)
