r"""Where to start, and how wide to make the kernel: robust decisions on few rows.

A redescending kernel finds the right plane only from a start in its basin and with a
width that matches the noise. Both are chosen here from a pool of candidate planes:

1. the runs of the user's criterion from least squares, at a ladder of kernel widths
   (they find the bulk under symmetric and one-sided contamination);
2. least squares without the half of the rows that is extreme along each principal
   sensitivity component (Peña & Yohai, 1999): deterministic, a few dozen candidates,
   strong against clusters of bad leverage points in any dimension;
3. planes through random r-subsets of the rows, in a number that grows with r.

Every candidate is judged by the window of residuals it explains best. With F(t) the
share of rows whose residual norm is at most t, the score is::

    min over t of   log t - c log F(t)

The exponent c is not free. For Gaussian residuals and a window that holds the share
`_WINDOW` of them, the minimum lies at the right t for exactly one c, namely
c = F / (t F'(t)). With half of the inliers in the window, t is their median absolute
residual and c = 1.17 for one output. F is counted after `_SPENT` rows for each
parameter have been taken off, since a plane passes through r of them for free.

The best distinct candidates are then improved together: weighted least squares with
the user's kernel in turn with EM for the scale mixture
(1 - e) N(0, s**2) + e N(0, S**2) of the residuals; the score with the mixture's own s
and share decides.

Everything is done in coordinates in which the design is orthonormal, on distinct rows
in an order given by their least-squares residuals, so that the decision does not depend
on the order of the rows, on how weights are split between copies of a row, or on the
units of X and y.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi

from sklearn_mm._robust.linear import LinearPoint, LinearResidual
from sklearn_mm._robust.problem import HalfQuadraticProblem
from sklearn_mm._robust.reweighting import ReweightedLeastSquares, least_squares
from sklearn_mm._robust.start.candidates import (
    sensitivity_candidates,
    subset_candidates,
)
from sklearn_mm._robust.start.mixture import ColumnOfResiduals, ScaleMixture
from sklearn_mm._robust.start.pool import CandidatePool, Chosen, WideCandidatePool
from sklearn_mm._robust.start.sample import DecidingRows
from sklearn_mm._solver.history import History
from sklearn_mm._solver.roles import Array, Criterion
from sklearn_mm._solver.stages import Stage
from sklearn_mm.kernels import Kernel

# More parameters than this are not whitened; the ladder alone gives candidates then.
_MAX_WHITENED_PARAMETERS = 1_000
# The criterion's runs end at this relative certificate: the best are improved anyway.
_CLIMBED, _CLIMB_ITER = 1e-1, 50
# Widths of the kernel in the criterion's runs, relative to the median residual's.
_LADDER = (1.0, 0.35, 0.125)


@dataclass(frozen=True)
class Start:
    """A plane, the noise scale around it, and the share of rows that follow it."""

    point: LinearPoint
    scale: float
    share: float
    determined: bool = True  # more rows than parameters: outliers can show


def robust_start(
    model: LinearResidual,
    sample_weight: Array,
    *,
    kernel: Kernel,
    tuning: float,
    scale: float | None,
    criterion: Criterion,
    point: LinearPoint | None,
    random_state: np.random.RandomState,
) -> Start:
    """Choose a start, and the scale unless it is given.

    Parameters
    ----------
    model : LinearResidual
        All rows.
    sample_weight : ndarray of shape (n_samples,)
        Weight of each row.
    kernel, tuning : Kernel, float
        The kernel, and its width in noise scales.
    scale : float or None
        The noise scale if it is known; then the robust objective itself is the score.
    criterion : Criterion
        The user's, which is run from least squares.
    point : LinearPoint or None
        A start of the user's; only the scale is then chosen.
    random_state : RandomState
        Source of the random subsets.
    """
    given = point is not None
    if point is None:
        point = least_squares(model, sample_weight)
    elif scale is not None:  # there is nothing to choose
        return Start(point, scale, np.nan, model.rows.n_rows > model.shape[0])
    rows = DecidingRows.draw(model, sample_weight, point)
    wide = model.shape[0] > _MAX_WHITENED_PARAMETERS
    pool = (WideCandidatePool if wide else CandidatePool).of(
        rows, kernel, tuning, scale
    )
    candidates = [pool.whiten(point.theta)]
    for width in _ladder(pool, candidates[0], scale):
        problem = HalfQuadraticProblem(
            rows.model, rows.model.rows.beside, kernel, width, rows.weight
        )
        candidates.append(pool.whiten(_climb(problem, point.theta, criterion)))
    if not given and pool.is_batched:
        candidates.append(sensitivity_candidates(pool))
        candidates.append(subset_candidates(pool, random_state))
    best = pool.choose(np.concatenate(candidates))
    if not given:
        point = model.at(pool.unwhiten(best.theta), point.residual)
    best_scale = best.scale
    if scale is None and rows.sampled:
        best_scale = _refined_scale(model, sample_weight, best, point)
    determined = pool.n_rows > pool.n_parameters
    return Start(point, best_scale, best.share, determined)


def _climb(problem: HalfQuadraticProblem, theta: Array, criterion: Criterion) -> Array:
    """Where the user's criterion leads from a theta and weights of one."""
    stage = Stage(problem, criterion, ReweightedLeastSquares(), _CLIMBED, effort=0.0)
    end: Array = stage.run(problem.at(theta), History(), _CLIMB_ITER).point.theta
    return end


def _refined_scale(
    model: LinearResidual, weight: Array, start: Chosen, point: LinearPoint
) -> float:
    """Scale of the mixture around a fitted plane, from all rows."""
    residuals = ColumnOfResiduals(model.rows.beside, point.residual, weight)
    mixture = ScaleMixture.around(
        residuals, np.array([start.scale]), np.array([start.share])
    )
    return float(mixture.em(residuals, 0.0, 4).s[0])


def _ladder(pool: CandidatePool, own: Array, scale: float | None) -> list[float]:
    if scale is not None:
        return [pool.tuning * scale]
    order = np.sort(pool.norms(own)[0])
    middle = order[len(order) // 2] / float(chi.median(pool.n_outputs))
    return [pool.tuning * max(middle, pool.floor) * factor for factor in _LADDER]
