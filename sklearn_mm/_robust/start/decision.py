"""From all rows to the start of a fit: draw, choose, and look again at all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sklearn_mm._robust.linear import LinearPoint, LinearResidual, targets
from sklearn_mm._robust.normal_equations import least_squares
from sklearn_mm._robust.start.population import refined_scale
from sklearn_mm._robust.start.sample import ROWS_PER_PARAMETER, DecidingRows
from sklearn_mm._robust.start.search import Choice, Verdict, choose_plane
from sklearn_mm._robust.start.sparse import choose_sparse
from sklearn_mm._rows.table import Column
from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import Kernel

# Scales are at least so many times the bias that the penalty gives to the residuals.
# The bias grows in proportion to the fitted values, and with a kernel that is less than
# 4.5 biases wide (those for 95 % efficiency are 2.4 scales wide or more) the rows of
# large ones lose so much weight that they no longer hold the penalty: the objective has
# no minimum near the plane then, but one at zero.
_BIASES = 3.0
# The scale of all rows is not below this part of that of the rows that decided.
_LEAST_REFINED = 0.5


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
        point = model.at(choice.theta.ravel(), base.residual)
        return _start(model, sample_weight, choice, point, scale is None)
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
    # A start of the user's leads to a population, and the scale is that one's.
    given, searched = point is not None, scale is None and rows.sampled
    if point is None:
        point = model.at(choice.theta.ravel(), base.residual)
    if searched:
        settled = model.at(choice.theta.ravel()) if given else point
        width = _on_all_rows(model, sample_weight, choice, settled)
        choice = replace(choice, scale=width)
    return _start(model, sample_weight, choice, point, scale is None)


def _start(
    model: LinearResidual,
    weight: Column,
    choice: Choice,
    point: LinearPoint,
    chosen: bool,
) -> Start:
    """The start that was chosen, its scale not below what the penalty allows."""
    scale = choice.scale
    if chosen and (model.alpha or model.l1):
        scale = np.maximum(scale, _BIASES * _bias(model, weight, point))
    return Start(point, scale, choice.share, choice.verdict)


def _bias(model: LinearResidual, weight: Column, point: LinearPoint) -> Array:
    """What the penalty adds to the residuals, root mean square, per output.

    At a penalised fit sum(r f) is the inner product of theta and the penalty's
    gradient, where f are fitted values about their mean: the part of r along f follows.
    """
    beside = model.rows.beside
    args = (model.centre, model.spread)
    total, first, second = beside.sum(
        _moments, point.residual, model.y, weight, args=args
    )
    if model.frame.fit_intercept:
        second = second - np.square(first) / total
    size = np.sqrt(np.maximum(second, 0.0) * total)
    return np.divide(
        model.pull(point.theta), size, out=np.zeros_like(size), where=size > 0.0
    )


def _moments(
    residual: Array, y: Array, weight: Array, centre: Array, spread: Array
) -> tuple[Any, ...]:
    fitted = targets(y, centre, spread) - residual
    return weight.sum(), weight @ fitted, weight @ np.square(fitted)


def _on_all_rows(
    model: LinearResidual, weight: Column, choice: Choice, point: LinearPoint
) -> Array:
    """The scale of the population about a plane, from all rows."""
    beside = model.rows.beside

    def sums(function: Callable[[Array, Array], Array]) -> Array:
        total: Array = beside.sum(function, point.residual, weight)
        return total

    total = beside.total(weight)
    return refined_scale(sums, choice.scale, _LEAST_REFINED * choice.scale, total)
