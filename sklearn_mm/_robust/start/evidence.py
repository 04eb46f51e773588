r"""Evidence that a part of a population's rows is a population of its own.

M is the larger population, A the smaller one, z their squared distances in scales. Of
the rows in M's window (z_M <= k**2), does a part follow A? All answers are
log-likelihood ratios in nats, less what A takes for free: a plane with q parameters
passes through q rows and its scale takes one more, which is worth log(s_M / s_A) each.

1. A share pi of the rows follows A and the others follow M, against all following M::

       max over pi of  sum_i log(1 + pi (F exp(l_i) - 1)),
       l_i = log(s_M / s_A) - z_A,i / 2 + z_M,i / 2

2. Those others have a law of their own, normal and no narrower than A, about a plane
   parallel to A's (near outliers on one side: two more parameters in each output) or
   about their own least-squares plane (a second regime: q + 1 more)::

       sum_i log(pi F exp(l_i) + (1 - pi) F exp(l'_i)),
       l'_i = log(s_M / s_R) - z_R,i / 2 + z_M,i / 2

3. With many rows, and where the two planes are close to each other in most rows, the
   rows in A's band are too many and lie too close to A for M's law: the likelihood
   ratio of their number and of their residuals, row by row, less q for the plane.

4. The share of A is another one among the rows far from where A is fitted: bad leverage
   points. In the first ratio each row is on one side or the other by chance, and to say
   on which costs about n times the entropy of pi, more than a few rows can pay. Here X
   says it: rows are put in the order of their leverage on A's plane, each as if it had
   been left out of the fit, so that rows of A are not favoured, and divided at a rank t
   beyond a majority; with pi below and pi' above it, each chosen, pi' as low as zero,
   and less the logarithm of the number of ranks that t is chosen from::

       max over t of  max over pi of  sum_{rank <= t} log(1 + pi (F exp(l_i) - 1))
                   + max over pi' of  sum_{rank > t} log(1 + pi' (F exp(l_i) - 1))

   A plane that is fitted to the central rows alone comes closer to them than M does,
   whatever the others follow, so each parameter costs a part of a nat.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from sklearn_mm._robust.start.population import Populations, Window
from sklearn_mm._robust.start.whitened import Array, WhitenedRows

# Shares pi that are looked at.
_GRID = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97])
# Nats that each parameter costs where rows of high leverage have a share of their own:
# with none, clean data of 30 x 10 lose many rows. What is left costs efficiency in the
# smallest samples only (20 x 3: 0.93 to 0.82; 30 x 5: 0.87 to 0.86).
_FAR_OUT = 0.2
# Rows that each parameter, and the scale, take for free: a little less than one, since
# residuals have been brought to the noise's size. Chosen, with the prior of `search`,
# as the least that leaves clean data alone, 20 x 1 to 60 x 20 (efficiency at least 0.9
# from 20 rows for each parameter on, 0.8 at three).
_FREE = 0.9
# Rows for each parameter that the rest needs to have a plane of its own.
_OWN_PLANE = 1.5
# The third ratio needs rows to count: so many for each parameter.
_MANY_ROWS = 10.0


def evidence(
    rows: WhitenedRows, larger: Populations, smaller: Populations
) -> tuple[Array, Array]:
    """Nats for each of the smaller ones, and the part of it in the larger one's window.

    `larger` holds a single population.
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
    if rows.is_direct:  # a penalty does not make the order of leverages simpler
        fourth = _far_out(rows, each, in_smaller) - _FAR_OUT * rows.n_parameters
        nats = np.maximum(nats, fourth - free)
    if rows.n_outputs == 1 and rows.n_rows > _MANY_ROWS * rows.effective:
        third = _in_the_band(rows, larger, smaller, log, in_larger, in_smaller)
        nats = np.maximum(nats, third - free - rows.effective)
    return nats, overlap


def _far_out(rows: WhitenedRows, each: Array, in_smaller: Array) -> Array:
    """Log-likelihood ratio if A's share is another one among rows of high leverage.

    `each` holds the terms of the first ratio, of shape (n_shares, c, n).
    """
    order = np.argsort(rows.leverage(in_smaller), axis=1, kind="stable")
    low = np.cumsum(np.take_along_axis(each, order[None], axis=2), axis=2)
    # None of those far out may follow A.
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
    """Log-likelihood ratio of A and a law of the rest, less what that takes for free.

    The share of A is that of its window: rows are on one side or the other. The two
    laws could change places, and the larger one comes first: none for a minority.
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
        """If the rest lies about a plane; it and its scale take so many rows."""
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
    """Log-likelihood ratio of the rows in A's band, for one output."""
    window, w = Window.of(1), rows.weight
    k = np.sqrt(window.square)
    q = smaller.scale / larger.scale  # (c, 1)
    # Distance of the planes, and the band of A in the window of M, in scales of M.
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
