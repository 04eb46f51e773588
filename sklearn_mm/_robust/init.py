"""Starting points of robust fits that are given by the user."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_array, has_fit_parameter

from sklearn_mm._robust.linear import LinearPoint, LinearResidual
from sklearn_mm._robust.normal_equations import least_squares
from sklearn_mm._robust.problem import HalfQuadraticProblem, squared_norms
from sklearn_mm._robust.scaling import Scaling
from sklearn_mm._rows.ranks import medians
from sklearn_mm._rows.sources import LazyRows
from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import Kernel

Plane = tuple[Array, Array]  # coefficients (n_outputs, n_features) and intercepts

# Efforts at which a given start may begin. Kernels twice as wide are enough if the mean
# confidence is at least that of the smallest share of rows that a fit may follow; wider
# ones must hold most rows, since a start that far away says little.
_EFFORTS = np.append(0.5 * 0.25 ** np.arange(12.0), 0.0)
_LEAST_CONFIDENCE = np.where(_EFFORTS == 0.5, 0.3, 0.7)


def given_start(
    init: Any,
    previous: Plane | None,
    model: LinearResidual,
    scaling: Scaling,
    y: Array,
    weight: Array,
) -> LinearPoint | None:
    """The point of `init`, or of a previous fit; None for ``init="auto"``."""
    if isinstance(init, str) and previous is None:
        return None if init == "auto" else least_squares(model, weight)
    with np.errstate(over="ignore", invalid="ignore"):
        if previous is not None:
            theta = _previous_theta(*previous, model, scaling)
        elif hasattr(init, "fit"):
            theta = _estimator_theta(init, model, scaling, y, weight)
        else:
            theta = _array_theta(init, model, scaling, y, weight)
        point = model.at(theta)
        beside = model.rows.beside
        size = max(beside.map(_largest_square, point.residual)) + theta @ theta
    if not np.isfinite(size):
        what = "init" if previous is None else "The model of warm_start=True"
        raise ValueError(f"{what} is so far from the data that squares overflow.")
    return point


def _previous_theta(
    coef: Array, intercept: Array, model: LinearResidual, scaling: Scaling
) -> Array:
    p, d = len(model.frame.mean), model.shape[1]
    if np.atleast_2d(coef).shape != (d, p):
        raise ValueError(
            f"warm_start=True requires data of the same shape: coef_ has shape "
            f"{coef.shape}, X has {p} features and y {d} outputs. Set warm_start=False."
        )
    return scaling.theta(np.atleast_2d(coef), intercept)


def _estimator_theta(
    init: Any, model: LinearResidual, scaling: Scaling, y: Array, weight: Array
) -> Array:
    """The linear model closest to the predictions of an estimator."""
    estimator = clone(init)
    routed = {}
    if has_fit_parameter(estimator, "sample_weight"):
        routed["sample_weight"] = weight * scaling.weight
    X = model.rows.X
    data = X.array if isinstance(X, LazyRows) else X
    predicted = estimator.fit(data, y, **routed).predict(data)
    predicted = model.rows.place(predicted)
    return least_squares(scaling.model(model.rows, predicted), weight).theta


def _array_theta(
    init: Any, model: LinearResidual, scaling: Scaling, y: Array, weight: Array
) -> Array:
    """Coefficients, with the intercept in an extra column or the best intercept."""
    p, d = len(model.frame.mean), model.shape[1]
    values = check_array(init, dtype=np.float64, ensure_2d=False, input_name="init")
    values = np.atleast_2d(values)
    if values.shape[0] != d or values.shape[1] not in (p, p + 1):
        raise ValueError(
            f"init must have shape ({p},) or ({d}, {p}), or one more column for the "
            f"intercept, got {np.shape(init)}."
        )
    coef = values[:, :p]
    if values.shape[1] == p + 1:
        return scaling.theta(coef, values[:, p])
    if not model.frame.fit_intercept:
        return scaling.theta(coef, np.zeros(d))
    offset = model.at(scaling.theta(coef, scaling.centre)).residual
    shift = medians(model.rows, offset, weight, d) * scaling.spread
    return scaling.theta(coef, scaling.centre + shift)


def supported_effort(problem: HalfQuadraticProblem, point: LinearPoint) -> float:
    """Effort of the first weights at a given start.

    Close to the data, kernels that are twice as wide keep what the start knows. Far
    from them, such kernels would hold a few rows by chance, so they are as wide as it
    takes to hold most rows.
    """
    args = (problem.kernel, problem.tau, _EFFORTS)
    columns = (point.residual, problem.sample_weight)
    confidence = problem.rows.sum(_confidences, *columns, args=args)
    enough = confidence >= _LEAST_CONFIDENCE * confidence[-1]  # all rows count there
    return float(_EFFORTS[np.argmax(enough)])


def _confidences(
    residual: Array, weight: Array, kernel: Kernel, tau: float, efforts: Array
) -> Array:
    """Sum of the confidences at each effort."""
    z = squared_norms(residual, tau)
    return np.array([weight @ kernel.weight(z * effort**2) for effort in efforts])


def _largest_square(residual: Array) -> float:
    return float(np.max(squared_norms(residual)))
