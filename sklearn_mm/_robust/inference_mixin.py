"""What a fitted robust model says about itself and about new rows."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
from scipy.special import ndtr
from scipy.stats import chi
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted

from sklearn_mm._robust.inference import Inference
from sklearn_mm._robust.problem import squared_norms
from sklearn_mm._robust.summary import RobustSummary
from sklearn_mm._rows.sources import LazyRows
from sklearn_mm._rows.table import Rows
from sklearn_mm._rows.validation import validate_rows
from sklearn_mm.kernels import Kernel

# Rows within this many noise scales are inliers (for one output).
_INLIER_SCALES = 3.0
_KINDS = ("prediction", "mean")


class InferenceMixin:
    """Intervals, the table of coefficients, and verdicts on new rows.

    For an estimator with these parameters and fitted attributes.
    """

    fit_intercept: bool
    chunk_size: int | None
    n_jobs: int | None
    coef_: Any
    intercept_: Any
    scale_: Any
    _inference: Inference
    _kernel: Callable[[int], tuple[Kernel, float]]  # and its width in noise scales

    def conf_int(self, level=0.95):
        """Make confidence intervals of the coefficients.

        Parameters
        ----------
        level : float, default=0.95
            Probability with which an interval covers the true coefficient, in (0, 1).

        Returns
        -------
        intervals : ndarray of shape (q, 2) or (n_outputs, q, 2)
            Lower and upper ends: coefficients in order, then the intercept where one is
            fitted. Infinite if there are not more rows than coefficients, nan for
            coefficients that the data do not determine.

        See Also
        --------
        HalfQuadraticRobustRegressor.summary : The table of coefficients.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_mm import HalfQuadraticRobustRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(100, 1))
        >>> y = 2.0 * X[:, 0] + 1.0 + rng.normal(size=100)
        >>> y[:20] = 999.0
        >>> model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
        >>> model.conf_int().round(1)
        array([[1.8, 2.3],
               [0.7, 1.2]])
        """
        inference = self._checked_inference(level)
        if inference.reason:
            raise ValueError(f"{inference.reason} There are no confidence intervals.")
        half = inference.quantile(level)[:, None] * inference.standard_errors()
        plane = self._plane()
        intervals = np.stack([plane - half, plane + half], axis=-1)
        return intervals if np.ndim(self.coef_) > 1 else intervals[0]

    def predict_interval(self, X, level=0.95, kind="prediction"):
        """Predict intervals.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        level : float, default=0.95
            Probability of the interval, in (0, 1).

        kind : {"prediction", "mean"}, default="prediction"
            Whether the interval is to cover a new target (one with the inliers' noise),
            or the mean of all of them.

        Returns
        -------
        intervals : ndarray of shape (n_samples, 2) or (n_samples, n_outputs, 2)
            Lower and upper ends.

        Notes
        -----
        The noise is taken to be normal, and of the same size for all rows, with
        ``cov_type="HC3"`` as well. With ``alpha > 0`` there are no intervals for the
        mean, and those for new targets do not include the bias of the penalty.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_mm import HalfQuadraticRobustRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(100, 1))
        >>> y = 2.0 * X[:, 0] + 1.0 + rng.normal(size=100)
        >>> y[:20] = 999.0
        >>> model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
        >>> model.predict_interval([[0.0]]).round(1)
        array([[-1.2,  3. ]])
        >>> model.predict_interval([[0.0]], kind="mean").round(1)
        array([[0.7, 1.2]])
        """
        if not (isinstance(kind, str) and kind in _KINDS):
            raise ValueError(f"kind must be one of {_KINDS}, got {kind!r}.")
        inference = self._checked_inference(level)
        if inference.parts is None or (inference.reason and kind == "mean"):
            raise ValueError(f"{inference.reason} There are no intervals.")
        X = validate_rows(self, X, reset=False)
        rows = Rows.of(X, self.chunk_size, self.n_jobs)
        variance = inference.variance_of_mean(rows)
        if kind == "prediction":
            variance += np.square(self.scale_)
        with np.errstate(invalid="ignore"):
            half = inference.quantile(level) * np.sqrt(variance)
        mean = self._predict_rows(rows).reshape(half.shape)
        intervals = np.stack([mean - half, mean + half], axis=-1)
        return intervals if np.ndim(self.coef_) > 1 else intervals[:, 0]

    def summary(self, level=0.95):
        """Make the table of coefficients, with what is known about the fit.

        Parameters
        ----------
        level : float, default=0.95
            Probability of the confidence intervals, in (0, 1).

        Returns
        -------
        summary : RobustSummary
            Prints as text, shows as HTML in notebooks; its `to_frame` makes a
            :class:`pandas.DataFrame`.

        Notes
        -----
        Tests and intervals use Student's t distribution. With a penalty, and where the
        rows are too few, there are none, and the table says why.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_mm import HalfQuadraticRobustRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(100, 1))
        >>> y = 2.0 * X[:, 0] + 1.0 + rng.normal(size=100)
        >>> y[:20] = 999.0
        >>> model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
        >>> print(model.summary())  # doctest: +ELLIPSIS
        HalfQuadraticRobustRegressor...
        """
        inference = self._checked_inference(level)
        return RobustSummary.of(self, inference, self._plane(), level)

    def confidence(self, X, y):
        """Tell the confidence weights that rows would get, of new data or old.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.

        Returns
        -------
        weights : ndarray of shape (n_samples,)
            One where the target is as predicted, and the closer to zero the further it
            is from that.

        See Also
        --------
        HalfQuadraticRobustRegressor.inlier_mask : A yes or no for each row.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_mm import HalfQuadraticRobustRegressor
        >>> X = np.arange(20.0)[:, None]
        >>> y = 2.0 * X[:, 0] + np.tile([0.1, -0.1, -0.1, 0.1], 5)
        >>> model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
        >>> model.confidence([[30.0], [30.0]], [60.0, 100.0]).round(2)
        array([1., 0.])
        """
        return self._weigh(self._new_residuals(X, y))[0]

    def inlier_mask(self, X, y):
        """Tell which rows are inliers, of new data or old.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.

        Returns
        -------
        mask : ndarray of shape (n_samples,)
            Rows whose residual is at most three noise scales, or the quantile of the
            same probability for the norm of several outputs' residuals.

        See Also
        --------
        HalfQuadraticRobustRegressor.confidence : A weight for each row.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_mm import HalfQuadraticRobustRegressor
        >>> X = np.arange(20.0)[:, None]
        >>> y = 2.0 * X[:, 0] + np.tile([0.1, -0.1, -0.1, 0.1], 5)
        >>> model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
        >>> model.inlier_mask([[30.0], [30.0]], [60.0, 100.0])
        array([ True, False])
        """
        residual = self._new_residuals(X, y) / self.scale_
        norms = np.sqrt(squared_norms(residual))
        return norms <= inlier_scales(residual.shape[1])

    def _checked_inference(self, level):
        check_is_fitted(self)
        if not (isinstance(level, Real) and 0.0 < float(level) < 1.0):
            raise ValueError(f"level must be in (0, 1), got {level!r}.")
        return self._inference

    def _plane(self):
        """Coefficients, then the intercept if there is one, (n_outputs, q)."""
        coef = np.atleast_2d(self.coef_).astype(np.float64)
        if not self.fit_intercept:
            return coef
        return np.column_stack([coef, np.atleast_1d(self.intercept_)])

    def _predict_rows(self, rows):
        plane = (self.coef_.T, self.intercept_)
        if not isinstance(rows.X, LazyRows):
            return _predict(rows.X, *plane)
        return np.concatenate(list(rows.map(_predict, args=plane)))

    def _new_residuals(self, X, y):
        """Residuals of rows, (n_samples, n_outputs)."""
        check_is_fitted(self)
        X, y = validate_rows(self, X, y, reset=False, y_numeric=True, multi_output=True)
        predicted = self._predict_rows(Rows.of(X, self.chunk_size, self.n_jobs))
        y, predicted = (a.reshape(len(a), -1) for a in (y, predicted))
        if y.shape != predicted.shape:
            raise ValueError(
                f"y has {y.shape[1]} outputs, but {type(self).__name__} was fitted "
                f"with {predicted.shape[1]}."
            )
        return y - predicted

    def _leverages(self, X):
        """Leverages of rows, and their mean over the training rows that have weight."""
        inference = self._inference
        if inference.parts is None:
            raise ValueError(f"{inference.reason} There are no leverages.")
        rows = Rows.of(
            validate_rows(self, X, reset=False), self.chunk_size, self.n_jobs
        )
        part = inference.parts[0]
        return inference.leverages(rows), part.n_parameters / part.n_rows

    def _weigh(self, residual):
        """Confidence weights of any rows' residuals, and the radius of inliers.

        With several outputs that is one of residuals in noise scales.
        """
        residual = residual.reshape(len(residual), -1)
        d = residual.shape[1]
        kernel, tuning = self._kernel(d)
        weights = kernel.weight(squared_norms(residual / self.scale_, tuning))
        unit = self.scale_ if d == 1 else 1.0
        return weights, inlier_scales(d) * unit


def inlier_scales(d):
    """Norm of d residuals, in noise scales, that inliers do not exceed."""
    if d == 1:
        return _INLIER_SCALES
    return chi.ppf(2.0 * ndtr(_INLIER_SCALES) - 1.0, d)


def _predict(X, coef, intercept):
    return safe_sparse_dot(X, coef, dense_output=True) + intercept
