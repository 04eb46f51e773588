"""Metrics that are robust to outliers in the test data.

If the training data contain outliers, so do the validation folds, and the mean squared
error is dominated by rows that no model should predict. A *bounded* loss is not, but it
requires a scale to determine which residuals are large. This scale must be the same for
all models that are compared. In units of its own scale, every model looks similar, and
a model with a large scale has an unfair advantage.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import is_regressor
from sklearn.metrics import make_scorer
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
)

from sklearn_mm.kernels import Kernel, corrected_r2, get_kernel

__all__ = ["bounded_loss", "robust_r2_score", "robust_scorer"]

Array = NDArray[np.float64]

# Median absolute deviation of the normal distribution, in standard deviations.
_QUARTILE = 0.6744897501960817


def bounded_loss(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    *,
    scale: float | ArrayLike,
    sample_weight: ArrayLike | None = None,
    kernel: str | Kernel = "smooth_truncated_quadratic",
    tuning: float | None = None,
) -> float:
    """Mean of a bounded loss of the residuals, between zero and one.

    The loss is quadratic for residuals that are small compared with the scale, and one
    for residuals beyond `tuning` scales. All outliers therefore have the same loss.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Ground truth (correct) target values.

    y_pred : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Estimated target values.

    scale : float or array-like of shape (n_outputs,)
        Standard deviation of the noise of the inliers, positive. Only losses with the
        same scale are comparable between models.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights.

    kernel : str or Kernel, default="smooth_truncated_quadratic"
        A bounded kernel of :mod:`sklearn_mm.kernels`: "smooth_truncated_quadratic",
        "geman_mcclure", "welsch" or "tukey".

    tuning : float, default=None
        Width of the kernel in units of the scale, positive. If None, the width gives
        95% efficiency under Gaussian noise for the given number of outputs.

    Returns
    -------
    loss : float
        Zero if all predictions are exact, one if all are far off.

    See Also
    --------
    robust_scorer : Make a scorer from this loss, for model selection.

    Examples
    --------
    >>> from sklearn_mm.metrics import bounded_loss
    >>> y_true = [1.0, 2.0, 3.0, 999.0]
    >>> bounded_loss(y_true, [1.0, 2.0, 3.0, 4.0], scale=0.5)
    0.25
    >>> bounded_loss(y_true, [250.0, 250.0, 250.0, 250.0], scale=0.5)
    1.0
    """
    true, pred, weight = _check(y_true, y_pred, sample_weight)
    z, resolved, _ = _squares(true - pred, scale, kernel, tuning)
    largest = _largest_loss(resolved)
    return float(np.average(resolved.loss(z), weights=weight) / largest)


def robust_r2_score(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    multioutput: str = "uniform_average",
    scale: float | ArrayLike | None = None,
    kernel: str | Kernel = "smooth_truncated_quadratic",
    tuning: float | None = None,
) -> float | Array:
    r"""Robust coefficient of determination, without the influence of outliers.

    Each row has a weight, which decreases with the size of its residual. Weighting
    makes residuals appear smaller than they are. With the correction
    :math:`a = E w / E w r^2` under Gaussian noise, as proposed in [1]_, the score is

    .. math:: R^2 = 1 - a \, \frac{\sum w r^2}
              {\sum w (y - \bar y_w)^2 + (a - 1) \sum w r^2}

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Ground truth (correct) target values.

    y_pred : array-like of shape (n_samples,) or (n_samples, n_outputs)
        Estimated target values.

    sample_weight : array-like of shape (n_samples,), default=None
        Sample weights.

    multioutput : {"raw_values", "uniform_average"}, default="uniform_average"
        Whether to return one score per output or their mean.

    scale : float or array-like of shape (n_outputs,), default=None
        Standard deviation of the noise of the inliers, positive. If None, it is
        estimated from the median absolute residual.

    kernel : str or Kernel, default="smooth_truncated_quadratic"
        Kernel of :mod:`sklearn_mm.kernels` that defines the weights. With "quadratic",
        the score equals :func:`sklearn.metrics.r2_score`.

    tuning : float, default=None
        Width of the kernel in units of the scale, positive. If None, the width gives
        95% efficiency under Gaussian noise.

    Returns
    -------
    score : float or ndarray of shape (n_outputs,)
        One if the inliers are predicted exactly, zero if they are constant and are not;
        nan if there are no inliers.

    See Also
    --------
    bounded_loss : Loss for model comparison, which accounts for the number of outliers.

    Notes
    -----
    The score describes a single fit. It ignores the rows that the model considers to be
    outliers, and should therefore not be used for model selection. Use `robust_scorer`
    instead.

    References
    ----------
    .. [1] O. Renaud and M.-P. Victoria-Feser, "A robust coefficient of determination
       for regression", Journal of Statistical Planning and Inference 140 (2010).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.metrics import r2_score
    >>> from sklearn_mm.metrics import robust_r2_score
    >>> rng = np.random.default_rng(0)
    >>> y_pred = rng.normal(size=1000)
    >>> y_true = y_pred + 0.5 * rng.normal(size=1000)  # explains 80%
    >>> y_true[:100] += 50.0
    >>> round(robust_r2_score(y_true, y_pred), 1)
    0.8
    >>> round(r2_score(y_true, y_pred), 1)
    -0.1
    """
    if not (isinstance(multioutput, str) and multioutput in _MULTIOUTPUT):
        raise ValueError(
            f"multioutput must be one of {_MULTIOUTPUT}, got {multioutput!r}."
        )
    true, pred, weight = _check(y_true, y_pred, sample_weight)
    residual = true - pred
    if scale is None:
        scale = _median_scale(residual, weight)
    z, resolved, width = _squares(residual, scale, kernel, tuning)
    confidence = weight * resolved.weight(z)
    if not np.any(confidence > 0.0):
        scores = np.full(true.shape[1], np.nan)
    else:
        mean = np.average(true, axis=0, weights=confidence)
        left = confidence @ np.square(residual)
        total = confidence @ np.square(true - mean)
        scores = corrected_r2(left, total, resolved, width)
    return scores if multioutput == "raw_values" else float(np.mean(scores))


def robust_scorer(
    reference: Any,
    *,
    kernel: str | Kernel = "smooth_truncated_quadratic",
    tuning: float | None = None,
) -> Any:
    """Make a scorer for data with outliers: the negative `bounded_loss`.

    Parameters
    ----------
    reference : float, array-like of shape (n_outputs,) or fitted estimator
        The scale that is used for all models, or a fitted robust model (or a pipeline
        or search that ends in one) whose `scale_` is used.

    kernel : str or Kernel, default="smooth_truncated_quadratic"
        A bounded kernel, see `bounded_loss`.

    tuning : float, default=None
        Width of the kernel in units of the scale, see `bounded_loss`.

    Returns
    -------
    scorer : callable
        Scorer for ``scoring=`` in searches and :func:`~sklearn.model_selection.\
cross_validate`. It supports `sample_weight` and multiple outputs.

    See Also
    --------
    bounded_loss : The loss itself.

    Notes
    -----
    The reference does not have to be a good model, but its scale should be close to
    that of the noise. A scale that is a few times too large or too small rarely changes
    the selected model.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import GridSearchCV
    >>> from sklearn_mm import HalfQuadraticRobustRegressor
    >>> from sklearn_mm.metrics import robust_scorer
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 5))
    >>> y = X @ [1.0, 2.0, 0.0, 0.0, 0.0] + 0.1 * rng.normal(size=200)
    >>> y[::5] = 100.0
    >>> model = HalfQuadraticRobustRegressor(random_state=0)
    >>> search = GridSearchCV(
    ...     model,
    ...     {"alpha": [0.1, 1e4]},
    ...     scoring=robust_scorer(model.fit(X, y)),
    ... )
    >>> search.fit(X, y).best_params_
    {'alpha': 0.1}
    """
    scale = _check_scale(_reference_scale(reference))
    resolved = get_kernel(kernel)
    _largest_loss(resolved)
    _check_tuning(tuning)
    return make_scorer(
        bounded_loss,
        greater_is_better=False,
        scale=scale if len(scale) > 1 else float(scale[0]),
        kernel=resolved,
        tuning=tuning,
    )


def _check_tuning(tuning: float | None) -> None:
    if tuning is None:
        return
    if not (isinstance(tuning, Real) and 0.0 < float(tuning) < np.inf):
        raise ValueError(f"tuning must be positive and finite, got {tuning!r}.")


_MULTIOUTPUT = ("raw_values", "uniform_average")


def _check(
    y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[Array, Array, Array]:
    """Targets and predictions with two dimensions, and weights."""
    check_consistent_length(y_true, y_pred, sample_weight)
    true, pred = (
        check_array(y, ensure_2d=False, dtype=np.float64, input_name=name)
        for y, name in ((y_true, "y_true"), (y_pred, "y_pred"))
    )
    true, pred = (y.reshape(len(y), -1) for y in (true, pred))
    if true.shape != pred.shape:
        raise ValueError(
            f"y_true and y_pred have different number of output "
            f"({true.shape[1]}!={pred.shape[1]})"
        )
    weight = _check_sample_weight(
        sample_weight, true, dtype=np.float64, ensure_non_negative=True
    )
    return true, pred, weight


def _check_scale(scale: Any) -> Array:
    """Scales as a vector of positive, finite numbers."""
    try:
        scales = np.atleast_1d(np.asarray(scale, dtype=np.float64))
    except (TypeError, ValueError):
        raise ValueError(
            f"scale must be a positive number or an array of them, got {scale!r}."
        ) from None
    if scales.ndim > 1:
        raise ValueError(f"scale must be a number or a vector, got {scale!r}.")
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise ValueError(f"scale must be positive and finite, got {scale!r}.")
    return scales


def _squares(
    residual: Array,
    scale: float | ArrayLike,
    kernel: str | Kernel,
    tuning: float | None,
) -> tuple[Array, Kernel, float]:
    """Squared residual norms in widths of the kernel, the kernel, and its width."""
    scales, d = _check_scale(scale), residual.shape[1]
    if len(scales) not in (1, d):
        raise ValueError(f"scale has {len(scales)} values for {d} outputs.")
    resolved = get_kernel(kernel)
    _check_tuning(tuning)
    width = resolved.tuning_constant(d) if tuning is None else float(tuning)
    if not np.isfinite(width):  # the quadratic kernel: any width will do
        width = 1.0
    with np.errstate(over="ignore"):
        z: Array = np.square(residual / (width * scales)).sum(axis=1)
    return z, resolved, width


def _largest_loss(kernel: Kernel) -> float:
    """Loss of a very large residual; raise an error if the kernel is unbounded."""
    far, farther = (float(kernel.loss(z)) for z in (1e100, 1e200))
    if not (np.isfinite(farther) and farther <= far * (1.0 + 1e-6)):
        raise ValueError(
            f"kernel must be bounded, got {kernel!r}. Use e.g. "
            '"smooth_truncated_quadratic" or "tukey".'
        )
    return far


def _median_scale(residual: Array, weight: Array) -> Array:
    """Scale of the normal distribution with the same weighted median of |residual|."""
    scales = []
    for r in np.abs(residual).T:
        order = np.argsort(r)
        mass = np.cumsum(weight[order])
        scales.append(r[order][np.searchsorted(mass, mass[-1] / 2.0)] / _QUARTILE)
    # Residuals of zero are inliers at any scale.
    return np.maximum(scales, np.finfo(float).tiny ** 0.25)


def _reference_scale(reference: Any) -> Any:
    """The scale that a reference gives."""
    if not hasattr(reference, "fit"):
        return reference
    check_is_fitted(reference)
    reference = getattr(reference, "best_estimator_", reference)
    if isinstance(reference, Pipeline):
        reference = reference[-1]
    if not (is_regressor(reference) and hasattr(reference, "scale_")):
        raise ValueError(
            f"{type(reference).__name__} is not a regressor with an attribute scale_. "
            "Pass a robust model such as HalfQuadraticRobustRegressor, or the scale "
            "itself."
        )
    return reference.scale_
