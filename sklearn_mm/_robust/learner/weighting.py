"""Sample weights for any regressor: alone, at the end of a pipeline, inside another.

Without metadata routing, a pipeline requires the name of its last step as a prefix of
``sample_weight``. With routing, the step must have requested the weights. Requests are
set on the given estimator, which should be a clone, so that the user's object does not
change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import StackingRegressor, VotingRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter

from sklearn_mm._solver.roles import Array

# Ensembles of named regressors, whose `fit` passes the weights on.
_ENSEMBLES = (StackingRegressor, VotingRegressor)


def weight_keyword(estimator: Any) -> str | None:
    """Keyword of `fit` for the weights, or None if it does not support them."""
    if isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        inner = weight_keyword(last)
        return inner and (inner if _routing() else f"{name}__{inner}")
    if isinstance(estimator, TransformedTargetRegressor):
        regressor = estimator.regressor
        return weight_keyword(LinearRegression() if regressor is None else regressor)
    if isinstance(estimator, _ENSEMBLES):
        # They take any keyword. Without routing, each member must take the weights
        # itself, and there are no prefixes.
        keywords = {weight_keyword(member) for member in _members(estimator)}
        return "sample_weight" if keywords == {"sample_weight"} else None
    return "sample_weight" if has_fit_parameter(estimator, "sample_weight") else None


def fit_weighted(estimator: Any, X: Any, y: Array, weight: Array | None) -> Any:
    """Fit on the rows of positive weight; None means that no weights are passed.

    A row of weight zero should have no effect. Omitting it saves time, and learners
    that count rows, e.g. those of a leaf, would otherwise count it. If no row has
    weight, as may happen in a fold of a few rows, all rows have the same weight.
    """
    if weight is not None and not np.any(weight > 0.0):
        weight = None
    if weight is not None and not np.all(weight > 0.0):
        rows = np.flatnonzero(weight > 0.0)
        X, y, weight = _safe_indexing(X, rows), y[rows], weight[rows]
    # Fits without weights may be several times as fast.
    if weight is None or np.all(weight == 1.0):
        estimator.fit(X, y)  # which need not return itself
        return estimator
    keyword = weight_keyword(estimator)
    assert keyword is not None  # checked when fit began
    if _routing():
        request_weights(estimator)
    estimator.fit(X, y, **{keyword: weight})
    return estimator


def request_weights(estimator: Any) -> None:
    """Set requests so that weights reach the regressor, wherever it is.

    Previous steps keep the requests of the user. Without a request, they do not receive
    weights, as without routing.
    """
    if isinstance(estimator, Pipeline):
        for _, step in estimator.steps[:-1]:
            if hasattr(step, "set_fit_request") and _unset(step):
                step.set_fit_request(sample_weight=False)
        request_weights(estimator.steps[-1][1])
        return
    if hasattr(estimator, "set_fit_request") and has_fit_parameter(
        estimator, "sample_weight"
    ):
        estimator.set_fit_request(sample_weight=True)
    inside = _members(estimator) if isinstance(estimator, _ENSEMBLES) else ()
    for inner in (*estimator.get_params(deep=False).values(), *inside):
        if hasattr(inner, "fit") and hasattr(inner, "get_params"):
            request_weights(inner)


def _members(estimator: Any) -> list[Any]:
    """Regressors of an ensemble that receive the weights."""
    members = [member for _, member in estimator.estimators if member != "drop"]
    final = getattr(estimator, "final_estimator", None)
    return members if final is None else [*members, final]


def _unset(estimator: Any) -> bool:
    """Whether fit accepts weights and no request has been set."""
    requests = getattr(estimator.get_metadata_routing(), "fit", None)
    weight = getattr(requests, "requests", {}).get("sample_weight", False)
    return weight is None


def _routing() -> bool:
    return bool(get_config()["enable_metadata_routing"])
