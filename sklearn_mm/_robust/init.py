"""Starting points of robust fits that are given by the user."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_array, has_fit_parameter

from sklearn_mm._robust.linear import LinearPoint, LinearResidual
from sklearn_mm._robust.normal_equations import least_squares
from sklearn_mm._robust.problem import squared_norms
from sklearn_mm._robust.scaling import Scaling
from sklearn_mm._rows.ranks import medians
from sklearn_mm._rows.sources import LazyRows
from sklearn_mm._solver.roles import Array

Plane = tuple[Array, Array]  # coefficients (n_outputs, n_features) and intercepts


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


def _largest_square(residual: Array) -> float:
    return float(np.max(squared_norms(residual)))
