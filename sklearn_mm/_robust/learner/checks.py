"""Validation of the data and the estimator of the meta-estimator, and its folds."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    RandomizedSearchCV,
    check_cv,
)
from sklearn.utils import get_tags
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    column_or_1d,
)

from sklearn_mm._robust.learner.out_of_fold import Split, partition
from sklearn_mm._robust.learner.weighting import weight_keyword
from sklearn_mm._rows.validation import check_size
from sklearn_mm._solver.roles import Array


def checked_targets(y: Any, estimator: Any) -> Array:
    """Targets as numbers. A column is converted to a vector with a warning."""
    y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
    check_size("The largest absolute target", np.abs(y).max(), smallest=0.0)
    if y.ndim == 2 and y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    if y.ndim > 1 and not get_tags(estimator).target_tags.multi_output:
        raise ValueError(
            f"y has {y.shape[1]} outputs, but the estimator "
            f"{type(estimator).__name__} supports only one. Fit one model per "
            "output with sklearn.multioutput.MultiOutputRegressor."
        )
    return y


def checked_weights(sample_weight: Any, X: Any, n_samples: int) -> Array:
    """Sample weights; ones if there are none."""
    if sample_weight is None:
        return np.ones(n_samples)
    weight: Array = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
    if not np.any(weight > 0):  # scikit-learn < 1.9 lets this pass
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return weight


def checked_regressor(estimator: Any) -> Any:
    """Clone the estimator if it is a regressor that supports weights."""
    estimator = clone(estimator)
    name = type(estimator).__name__
    # Some ensembles have no `predict` before they are fitted.
    is_other = not (is_regressor(estimator) or hasattr(estimator, "predict"))
    if is_other or is_classifier(estimator):
        raise ValueError(
            f"RobustRegressor requires a regressor, but the estimator {name} is "
            f"{'a classifier' if is_classifier(estimator) else 'not one'}."
        )
    if weight_keyword(estimator) is None:
        hint = ""
        if isinstance(estimator, GridSearchCV | RandomizedSearchCV):
            hint = (
                " To choose its parameters, search outside: "
                f"{name}(RobustRegressor(...), {{'estimator__...': ...}})."
            )
        raise ValueError(
            f"The estimator {name} does not support sample weights. RobustRegressor "
            f"requires a regressor whose fit method accepts sample_weight.{hint}"
        )
    return estimator


def seeded(estimator: Any, random_state: Any) -> Any:
    """The estimator with an int for each of its random states that is None."""
    seeds = {
        name: int(random_state.randint(np.iinfo(np.int32).max))
        for name, value in sorted(estimator.get_params(deep=True).items())
        if value is None and name.split("__")[-1] == "random_state"
    }
    return estimator.set_params(**seeds)


def folds(cv: Any, X: Any, y: Array, random_state: Any) -> Sequence[Split]:
    """Splits whose test sets are a partition of the rows."""
    if cv is None or isinstance(cv, Integral):
        n_splits = 5 if cv is None else cv
        cv = KFold(n_splits, shuffle=True, random_state=random_state)
    return partition(list(check_cv(cv).split(X, y)), len(y))
