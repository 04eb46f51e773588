"""Warnings at the end of a fit: what went wrong, and which parameter to change."""

from __future__ import annotations

from typing import Any

import numpy as np

from sklearn_mm._estimator import warn_unless_converged, warn_user
from sklearn_mm._hebbian.energy import Array
from sklearn_mm._hebbian.safeguard import Safeguard
from sklearn_mm._solver.loop import Result, Status

# Training rows on which a classifier is compared with the most frequent class: all of
# them, or so many at regular intervals. Their inference takes less time than an epoch.
_COMPARED_ROWS = 512


def warn_about_training(
    estimator: Any,
    result: Result,
    monitor: Safeguard,
    rate: float,
    alpha: float,
    incremental: bool,
) -> bool:
    """Warn if training diverged, met the cap on passes, or did not converge.

    Returns
    -------
    warned : bool
        Whether there was a warning.
    """
    name = type(estimator).__name__
    if monitor.diverged:
        warn_user(
            f"{name} diverged within {result.n_iter} epochs. The last good weights "
            "are kept. Scale X, decrease learning_rate_init (currently "
            f"{rate:g}), increase alpha (currently {alpha:g}), "
            "or, with criterion='fixed', increase n_passes."
        )
    elif monitor.n_capped:
        warn_user(
            f"{name}: in {monitor.n_capped} updates of the last epoch, the "
            f"criterion was not satisfied within max_passes={estimator.max_passes} "
            "passes, and only part of the step was made. Increase max_passes or "
            "alpha, or decrease feedback."
        )
    elif result.status is Status.INTERRUPTED or not (monitor.exhausted or incremental):
        warn_unless_converged(estimator, result.status)
        return result.status in (Status.INTERRUPTED, Status.MAX_ITER)
    else:
        return False
    return True


def compared_rows(n_rows: int) -> Array:
    """Rows on which a classifier is compared with the most frequent class."""
    if n_rows <= _COMPARED_ROWS:
        return np.arange(n_rows)
    return np.linspace(0, n_rows - 1, _COMPARED_ROWS).astype(int)


def warn_below_majority(
    estimator: Any,
    predicted: Array,
    labels: Array,
    weight: Array,
    rate: float,
    alpha: float,
    complete: bool,
) -> None:
    """Warn if always predicting the most frequent class is better than the fit.

    Parameters
    ----------
    estimator : estimator
        The classifier that was fitted.
    predicted, labels : ndarray of int
        Predicted and true classes of training rows.
    weight : ndarray
        Weights of these rows.
    rate, alpha : float
        Step length and penalty that were used.
    complete : bool
        Whether these are all training rows. If not, the difference has to exceed two
        standard errors.
    """
    share = weight / weight.sum()
    frequent = np.bincount(labels, share).argmax()
    hit, majority = predicted == labels, frequent == labels
    difference = share * (hit.astype(float) - majority)
    margin = 0.0 if complete else 2.0 * float(np.sqrt(np.sum(difference**2)))
    # A share of the smallest weight is no rounding.
    if -np.sum(difference) <= margin + 1e-9:
        return
    remedies = [f"decrease alpha (currently {alpha:g}) or tol ({estimator.tol:g})"]
    if estimator.early_stopping:
        remedies.insert(0, "set early_stopping=False, increase n_iter_no_change")
    if estimator.learning_rate_init != "auto":
        remedies.insert(0, f"change learning_rate_init (currently {rate:g})")
    warn_user(
        f"{type(estimator).__name__} predicts {share @ hit:.1%} of the training rows "
        f"correctly, the most frequent class alone {share @ majority:.1%}. To improve "
        f"the fit, {', '.join(remedies)}."
    )
