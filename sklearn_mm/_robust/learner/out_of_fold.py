"""Out-of-fold predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils import _safe_indexing
from sklearn.utils.parallel import Parallel, delayed

from sklearn_mm._robust.learner.weighting import fit_weighted
from sklearn_mm._solver.roles import Array

Split = tuple[NDArray[np.intp], NDArray[np.intp]]  # rows to fit, rows to predict


@dataclass(frozen=True)
class OutOfFold:
    """A learner that is fitted once per fold, with weights, to any target."""

    estimator: Any
    X: Any
    splits: Sequence[Split]
    n_jobs: int | None = None

    def predict(self, y: Array, weight: Array | None) -> Array:
        """Prediction of every row by the fit that leaves its fold out."""
        parts = Parallel(n_jobs=self.n_jobs)(
            delayed(_fit_predict)(self.estimator, self.X, y, weight, fit, predict)
            for fit, predict in self.splits
        )
        predictions = np.empty(y.shape)
        for (_, predict), part in zip(self.splits, parts, strict=True):
            predictions[predict] = np.reshape(part, predictions[predict].shape)
        if not np.isfinite(predictions).all():
            raise ValueError(
                f"The estimator {type(self.estimator).__name__} predicted NaN or "
                "infinity. Check that it converges, and that the features are scaled."
            )
        return predictions


def partition(splits: Sequence[Split], n_samples: int) -> Sequence[Split]:
    """Return the splits if each row is predicted exactly once, or raise an error.

    Rows may be given by masks. No split may fit the rows that it predicts.
    """
    splits = [(_indices(fit), _indices(predict)) for fit, predict in splits]
    if len(splits) < 2:
        raise ValueError(f"cv must have at least two splits, got {len(splits)}.")
    predicted = np.concatenate([predict for _, predict in splits])
    if not np.array_equal(np.sort(predicted), np.arange(n_samples)):
        raise ValueError(
            "cv must be a partition: each row must be in the test set of exactly "
            "one split, as with KFold. For groups, pass a list of splits: "
            "list(GroupKFold().split(X, y, groups))."
        )
    if any(np.isin(fit, predict).any() for fit, predict in splits):
        raise ValueError(
            "cv must not have the same rows in the training set and the test set of a "
            "split: residuals must be out of fold."
        )
    return splits


def _indices(rows: Any) -> NDArray[np.intp]:
    rows = np.asarray(rows)
    return np.flatnonzero(rows) if rows.dtype == bool else rows


def halves(splits: Sequence[Split]) -> Sequence[Split]:
    """Two folds made from several folds, which are kept together."""
    tests = [predict for _, predict in splits]
    middle = len(tests) // 2
    one, other = (np.concatenate(part) for part in (tests[:middle], tests[middle:]))
    return [(one, other), (other, one)]


def _fit_predict(
    estimator: Any,
    X: Any,
    y: Array,
    weight: Array | None,
    fit: NDArray[np.intp],
    predict: NDArray[np.intp],
) -> Array:
    fitted = fit_weighted(
        clone(estimator),
        _safe_indexing(X, fit),
        y[fit],
        None if weight is None else weight[fit],
    )
    prediction: Array = fitted.predict(_safe_indexing(X, predict))
    return prediction
