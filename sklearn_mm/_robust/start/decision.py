"""From all rows to the start of a fit: draw, choose, and look again at all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sklearn_mm._robust.linear import LinearPoint, LinearResidual
from sklearn_mm._robust.normal_equations import least_squares
from sklearn_mm._robust.start.population import refined_scale
from sklearn_mm._robust.start.sample import ROWS_PER_PARAMETER, DecidingRows
from sklearn_mm._robust.start.search import Choice, Verdict, choose_plane
from sklearn_mm._robust.start.sparse import choose_sparse
from sklearn_mm._rows.table import Column
from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import Kernel


@dataclass(frozen=True)
class Start:
    """Where a fit starts, and the noise there."""

    point: LinearPoint
    scale: Array  # one for each output, in the units of the model
    share: float  # of the rows that follow the plane
    verdict: Verdict = Verdict.SOUND


def robust_start(
    model: LinearResidual,
    sample_weight: Array,
    *,
    kernel: Kernel,
    tuning: float,
    scale: Array | None,
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
    scale : ndarray of shape (n_outputs,) or None
        The noise scales if they are known; then the robust objective itself decides.
    point : LinearPoint or None
        A start of the user's; only the scale is then chosen.
    random_state : RandomState
        Source of random subsets.
    """
    if point is not None and scale is not None:  # there is nothing to choose
        return Start(point, scale, np.nan)
    base = least_squares(model, sample_weight) if point is None else point
    rows = DecidingRows.draw(model, sample_weight, base)
    if model.l1 and point is None and len(rows.Y) < ROWS_PER_PARAMETER * model.shape[0]:
        unit = len(rows.Y) / model.rows.total(sample_weight)
        l1, l2 = unit * np.array(model.l1), unit * model.alpha
        choice = choose_sparse(rows, l1, l2, model.frame, scale, random_state)
        return Start(
            model.at(choice.theta.ravel(), base.residual),
            choice.scale,
            choice.share,
            choice.verdict,
        )
    choice = choose_plane(
        rows.X,
        rows.Y,
        rows.weight,
        rows.penalty,
        model.frame.fit_intercept,
        kernel=kernel,
        tuning=tuning,
        scale=scale,
        random_state=random_state,
        theta=None if point is None else point.theta.reshape(model.shape),
    )
    if point is None:
        point = model.at(choice.theta.ravel(), base.residual)
    start = Start(point, choice.scale, choice.share, choice.verdict)
    if scale is None and rows.sampled:
        start = replace(start, scale=_on_all_rows(model, sample_weight, choice, point))
    return start


def _on_all_rows(
    model: LinearResidual, weight: Column, choice: Choice, point: LinearPoint
) -> Array:
    """The scale of the population about a plane, from all rows."""
    beside = model.rows.beside

    def sums(function: Callable[[Array, Array], Array]) -> Array:
        total: Array = beside.sum(function, point.residual, weight)
        return total

    total = beside.total(weight)
    return refined_scale(sums, choice.scale, 0.0 * choice.scale, total)
