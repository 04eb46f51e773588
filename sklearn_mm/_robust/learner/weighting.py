"""Sample weights for any regressor: alone, at the end of a pipeline, inside another.

With metadata routing switched off, a pipeline wants the name of its last step in front
of ``sample_weight``; with routing switched on it wants the step to have requested the
weights. Requests are set on the estimator that is handed in, which is meant to be a
clone: the user's own object stays as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter

from sklearn_mm._solver.roles import Array


def weight_keyword(estimator: Any) -> str | None:
    """Keyword of `fit` that carries the weights, or None if there is none."""
    if isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        inner = weight_keyword(last)
        return inner and (inner if _routing() else f"{name}__{inner}")
    if isinstance(estimator, TransformedTargetRegressor):
        regressor = estimator.regressor
        return weight_keyword(LinearRegression() if regressor is None else regressor)
    return "sample_weight" if has_fit_parameter(estimator, "sample_weight") else None


def fit_weighted(estimator: Any, X: Any, y: Array, weight: Array | None) -> Any:
    """Fit on the rows of positive weight; None means that no weights are passed.

    A row of weight zero is a row that is not there. Leaving it out saves time, and many
    learners that count rows (those of a leaf, say) would count it all the same. If no
    row has weight, as may happen in a fold of a few rows, all of them count alike.
    """
    if weight is not None and not np.any(weight > 0.0):
        weight = None
    if weight is not None and not np.all(weight > 0.0):
        rows = np.flatnonzero(weight > 0.0)
        X, y, weight = _safe_indexing(X, rows), y[rows], weight[rows]
    # Fits without weights may be several times as fast.
    if weight is None or np.all(weight == 1.0):
        return estimator.fit(X, y)
    keyword = weight_keyword(estimator)
    assert keyword is not None  # checked when fit began
    if _routing():
        request_weights(estimator)
    return estimator.fit(X, y, **{keyword: weight})


def request_weights(estimator: Any) -> None:
    """Set requests so that weights reach the regressor, wherever it is.

    Steps before it keep what the user has requested, and get no weights if that is
    nothing, as with routing switched off.
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
    for inner in estimator.get_params(deep=False).values():
        if hasattr(inner, "fit") and hasattr(inner, "get_params"):
            request_weights(inner)


def _unset(estimator: Any) -> bool:
    """Whether fit takes weights and nobody has said if it should get them."""
    requests = getattr(estimator.get_metadata_routing(), "fit", None)
    weight = getattr(requests, "requests", {}).get("sample_weight", False)
    return weight is None


def _routing() -> bool:
    return bool(get_config()["enable_metadata_routing"])
