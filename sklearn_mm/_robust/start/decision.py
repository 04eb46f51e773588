"""The start of a robust fit: draw rows, choose a plane, and refine the scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sklearn_mm._robust.linear import LinearPoint, LinearResidual, targets
from sklearn_mm._robust.normal_equations import least_squares
from sklearn_mm._robust.start.population import refined_scale
from sklearn_mm._robust.start.sample import ROWS_PER_PARAMETER, DecidingRows
from sklearn_mm._robust.start.search import (
    Choice,
    Verdict,
    choose_plane,
    turned_back,
)
from sklearn_mm._robust.start.sparse import choose_sparse
from sklearn_mm._rows.table import Column
from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import Kernel

# Smallest scale in units of the bias of the residuals that is caused by the penalty.
# The bias is proportional to the fitted values. If the kernel is narrower than 4.5
# biases (the widths for 95 % efficiency are 2.4 scales or more), rows with large fitted
# values lose so much weight that they no longer balance the penalty, and the objective
# has its minimum at zero instead of near the plane.
_BIASES = 3.0
# Smallest scale of all rows relative to that of the deciding rows.
_LEAST_REFINED = 0.5


@dataclass(frozen=True)
class Start:
    """Starting point of a fit, and the noise scale there."""

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
        The noise scales if they are known. Then the robust objective decides.
    point : LinearPoint or None
        A start given by the user. Then only the scale is chosen.
    random_state : RandomState
        Random number generator for the subsets.
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
        return _start(model, sample_weight, choice, point, scale is None, False)
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
    # The scale is that of the population to which a given start leads.
    given, searched = point is not None, scale is None and rows.sampled
    if point is None:
        point = model.at(choice.theta.ravel(), base.residual)
    if searched:
        settled = model.at(choice.theta.ravel()) if given else point
        width = _on_all_rows(model, sample_weight, choice, settled)
        choice = replace(choice, scale=width)
    shrinks = bool(model.l1)  # the plane was chosen without the L1 penalty
    return _start(model, sample_weight, choice, point, scale is None, shrinks)


def _start(
    model: LinearResidual,
    weight: Column,
    choice: Choice,
    point: LinearPoint,
    chosen: bool,
    shrinks: bool,
) -> Start:
    """The chosen start, with a scale that is large enough for the penalty."""
    scale = choice.scale
    if chosen and (model.alpha or model.l1):
        scale = np.maximum(scale, _BIASES * _bias(model, weight, point, shrinks))
    return Start(point, scale, choice.share, choice.verdict)


def _bias(
    model: LinearResidual, weight: Column, point: LinearPoint, shrinks: bool
) -> Array:
    """Root mean square of the residuals' bias due to the penalty, per output.

    For a penalised fit, sum(r f) is the inner product of theta and the gradient of the
    penalty, where f are the centred fitted values. This gives the part of r along f.
    With `shrinks`, the fit is one without the L1 penalty, which makes its coefficients
    zero at most. The bias is then not larger than f.
    """
    beside = model.rows.beside
    args = (model.centre, model.spread)
    total, first, second = beside.sum(
        _moments, point.residual, model.y, weight, args=args
    )
    if model.frame.fit_intercept:
        second = second - np.square(first) / total
    size = np.sqrt(np.maximum(second, 0.0) * total)
    bias: Array = np.divide(
        model.pull(point.theta), size, out=np.zeros_like(size), where=size > 0.0
    )
    return np.minimum(bias, size / total) if shrinks else bias


def _moments(
    residual: Array, y: Array, weight: Array, centre: Array, spread: Array
) -> tuple[Any, ...]:
    fitted = targets(y, centre, spread) - residual
    return weight.sum(), weight @ fitted, weight @ np.square(fitted)


def _on_all_rows(
    model: LinearResidual, weight: Column, choice: Choice, point: LinearPoint
) -> Array:
    """The scale of the population around a plane, from all rows."""
    beside = model.rows.beside
    axes, along = choice.axes, choice.along

    def sums(function: Callable[[Array, Array], Array]) -> Array:
        args = (function, axes)
        total: Array = beside.sum(_of_turned, point.residual, weight, args=args)
        return total

    total = beside.total(weight)
    return turned_back(refined_scale(sums, along, _LEAST_REFINED * along, total), axes)


def _of_turned(
    residual: Array,
    weight: Array,
    function: Callable[[Array, Array], Array],
    axes: Array,
) -> Array:
    return function(residual @ axes if len(axes) > 1 else residual, weight)
