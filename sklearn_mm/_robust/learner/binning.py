"""Histogram gradient boosting: features binned once for all fits.

With sample weights, scikit-learn 1.9 computes every weighted quantile of every feature
on its own, which takes several times as long as the trees of a fit on a thousand rows
(fixed by scikit-learn's pull request 34248). Features with no more distinct values than
there are bins need no quantiles. For the fits that are only used for residuals, values
are therefore replaced by the largest value of their bin. The bins are those of a fit
without weights. The final regressor is fitted to the original features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from sklearn_mm._solver.roles import Array

# Values for which all features of an array are numeric.
_NO_CATEGORIES = (None, "from_dtype")


def binned_once(estimator: Any, X: Any) -> Any:
    """Features with at most as many distinct values as the estimator has bins.

    Only for arrays of floats and histogram gradient boosting; others are returned as
    they are.
    """
    if not (
        type(estimator) is HistGradientBoostingRegressor
        and isinstance(X, np.ndarray)
        and X.ndim == 2
        and np.issubdtype(X.dtype, np.floating)
        and estimator.categorical_features in _NO_CATEGORIES
        and isinstance(estimator.max_bins, int)
    ):
        return X
    binned = np.empty_like(X, order="F")
    for column, out in zip(X.T, binned.T, strict=True):
        out[:] = _binned(column, max(estimator.max_bins, 2))
    return binned


def _binned(values: Array, n_bins: int) -> Array:
    """Values, each replaced by the largest in its bin; NaN stays."""
    known: NDArray[np.bool_] = ~np.isnan(values)
    distinct = np.unique(values[known])
    if len(distinct) <= n_bins:
        return values
    shares = np.linspace(0.0, 1.0, n_bins + 1)[1:-1]
    edges = np.quantile(values[known], shares, method="inverted_cdf")
    tops = np.append(np.unique(edges), distinct[-1])
    # The last edge may be the largest value already.
    bins = np.searchsorted(tops, values[known], side="left")
    result = values.copy()
    result[known] = tops[bins]
    return result
