"""Statistical inference and outlier detection with a fitted robust model."""

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
from sklearn_mm._robust.linear import LinearPoint
from sklearn_mm._robust.problem import HalfQuadraticProblem, squared_norms
from sklearn_mm._robust.summary import RobustSummary
from sklearn_mm._rows.sources import LazyRows
from sklearn_mm._rows.table import Column, Rows
from sklearn_mm._rows.validation import validate_rows
from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import Kernel

# Rows within this many noise scales are inliers (for one output).
_INLIER_SCALES = 3.0
_KINDS = ("prediction", "mean")


class InferenceMixin:
    """Mixin for intervals, the table of coefficients and inliers among new rows.

    The estimator must have the parameters and fitted attributes below.
    """

    chunk_size: int | None
    n_jobs: int | None
    coef_: Any
    intercept_: Any
    scale_: Any
    _inference: Inference
    _fitted_kernel: tuple[Kernel, float]  # and its width in noise scales
    _fitted_criterion: Any

    def conf_int(self, level: float = 0.95) -> Array:
        """Compute confidence intervals of the coefficients.

        Parameters
        ----------
        level : float, default=0.95
            Probability that an interval covers the true coefficient, in (0, 1).

        Returns
        -------
        intervals : ndarray of shape (q, 2) or (n_outputs, q, 2)
            Lower and upper limits for the coefficients, followed by the intercept if
            one is fitted. Infinite if there are not more rows (counted by their sample
            weights) than coefficients; nan for coefficients that the data do not
            determine.

        See Also
        --------
        HalfQuadraticRobustRegressor.summary : Table of coefficients.

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
        return self._of_outputs(_intervals(self._plane(), half), axis=0)

    def predict_interval(
        self, X: Any, level: float = 0.95, kind: str = "prediction"
    ) -> Array:
        """Compute prediction intervals, or confidence intervals of the mean.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Input data.

        level : float, default=0.95
            Probability of the interval, in (0, 1).

        kind : {"prediction", "mean"}, default="prediction"
            Whether the interval should cover a new target with the noise of the
            inliers, or the mean of such targets.

        Returns
        -------
        intervals : ndarray of shape (n_samples, 2) or (n_samples, n_outputs, 2)
            Lower and upper limits. Infinite where the data do not determine the mean.
            A Dask array if X is one.

        Notes
        -----
        The noise is assumed to be normal with the same variance in all rows, even with
        ``cov_type="HC3"``. With ``alpha > 0``, intervals for the mean are not
        available, and those for new targets do not account for the bias of the
        penalty.

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
            variance = variance + np.square(self.scale_)
        with np.errstate(invalid="ignore"):
            half = inference.quantile(level) * np.sqrt(variance)
        mean = self._predict_rows(rows).reshape(half.shape)
        return self._of_outputs(_intervals(mean, half), axis=1)

    def summary(self, level: float = 0.95) -> RobustSummary:
        """Summarise the fit in a table of coefficients.

        Parameters
        ----------
        level : float, default=0.95
            Probability of the confidence intervals, in (0, 1).

        Returns
        -------
        summary : RobustSummary
            Prints as text and is displayed as HTML in notebooks. The method `to_frame`
            returns a :class:`pandas.DataFrame`.

        Notes
        -----
        Tests and intervals use Student's t distribution. They are not available with a
        penalty or with too few rows; the table then states the reason.

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

    def confidence(self, X: Any, y: Any) -> Array:
        """Compute the confidence weights of the given rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Input data.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Target values.

        Returns
        -------
        weights : ndarray of shape (n_samples,)
            Confidence weights in [0, 1]. A weight is one if the target equals its
            prediction and decreases with the size of the residual. A Dask array if X
            is one.

        See Also
        --------
        HalfQuadraticRobustRegressor.inlier_mask : Boolean mask of the inliers.

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
        check_is_fitted(self)
        kernel = self._fitted_kernel
        return self._of_new_residuals(X, y, np.float64, _confidence, *kernel)

    def inlier_mask(self, X: Any, y: Any) -> Any:
        """Determine which of the given rows are inliers.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Input data.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Target values.

        Returns
        -------
        mask : ndarray of shape (n_samples,)
            Boolean mask of the inliers. The residual of an inlier is at most three
            noise scales. With several outputs, the norm of the residuals is compared
            with the quantile of the same probability. A Dask array if X is one.

        See Also
        --------
        HalfQuadraticRobustRegressor.confidence : Confidence weight of each row.

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
        return self._of_new_residuals(X, y, bool, _is_inlier)

    def _checked_inference(self, level: float) -> Inference:
        check_is_fitted(self)
        if not (isinstance(level, Real) and 0.0 < float(level) < 1.0):
            raise ValueError(f"level must be in (0, 1), got {level!r}.")
        return self._inference

    def _of_outputs(self, values: Array, axis: int = 0) -> Any:
        """Values of each output, or of the only one if y had one dimension."""
        return values if np.ndim(self.coef_) > 1 else np.take(values, 0, axis)

    def _record_inference(self, inference: Inference) -> None:
        """Set what is known about the coefficients, in the units of the user."""
        self._inference = inference
        self.robust_r2_ = self._of_outputs(inference.robust_r2)
        covariance = inference.covariance()
        self.covariance_ = None if covariance is None else self._of_outputs(covariance)

    def _record_rows(
        self,
        problem: HalfQuadraticProblem,
        point: LinearPoint,
        tuning: float,
        out: Column | None,
    ) -> None:
        """Set the weights and the inlier mask of the training rows.

        `out` is memory for the weights.
        """
        rows = problem.rows
        self.weights_ = rows.output(problem.confidence(point, out=out), np.float64)
        radius = inlier_scales(problem.model.shape[1]) * problem.tau / tuning
        mask = rows.column(dtype=bool)
        mask = rows.fill(mask, _is_within, point.residual, args=(radius,))
        self.inlier_mask_ = rows.output(mask, bool)

    def _plane(self) -> Array:
        """Coefficients, then the intercept if there is one, (n_outputs, q)."""
        coef = np.atleast_2d(self.coef_).astype(np.float64)
        if not self._inference.frame.fit_intercept:
            return coef
        return np.column_stack([coef, np.atleast_1d(self.intercept_)])

    def _predict_rows(self, rows: Rows) -> Array:
        plane = (self.coef_.T, self.intercept_)
        if not isinstance(rows.X, LazyRows):
            return _predict(rows.X, *plane)
        dtype = np.result_type(rows.X.dtype, self.coef_.dtype)
        return rows.values(_predict, args=plane, shape=plane[0].shape[1:], dtype=dtype)

    def _of_new_residuals(
        self, X: Any, y: Any, dtype: Any, function: Callable[..., Array], *args: Any
    ) -> Any:
        """Values of a function of the residuals of rows, in units of the scale."""
        check_is_fitted(self)
        X, y = validate_rows(self, X, y, reset=False, y_numeric=True, multi_output=True)
        n_outputs, fitted = (
            int(np.prod(shape[1:])) for shape in (y.shape, self.coef_.T.shape)
        )
        if n_outputs != fitted:
            raise ValueError(
                f"y has {n_outputs} outputs, but {type(self).__name__} was fitted "
                f"with {fitted}."
            )
        args = (self.coef_.T, self.intercept_, self.scale_, function, *args)
        if not isinstance(X, LazyRows):
            return _of_residuals(X, y, *args)
        rows = Rows.of(X, self.chunk_size, self.n_jobs)
        return rows.values(_of_residuals, rows.place(y), args=args, dtype=dtype)

    def _leverages(self, X: Any) -> tuple[Array, float]:
        """Leverages of rows, and their mean over the training rows that have weight."""
        inference = self._inference
        if inference.parts is None:
            raise ValueError(f"{inference.reason} There are no leverages.")
        part = inference.parts[0]
        if not part.n_rows > 0.0:
            raise ValueError("No training row has weight. There are no leverages.")
        rows = Rows.of(
            validate_rows(self, X, reset=False), self.chunk_size, self.n_jobs
        )
        return inference.leverages(rows), part.n_parameters / part.n_rows

    def _weigh(self, residual: Array) -> tuple[Array, Any]:
        """Confidence weights of residuals, and the largest residual of an inlier.

        With several outputs, the latter is in units of the noise scales.
        """
        residual = residual.reshape(len(residual), -1)
        d = residual.shape[1]
        weights = _confidence(residual / self.scale_, *self._fitted_kernel)
        unit = self.scale_ if d == 1 else 1.0
        return weights, inlier_scales(d) * unit


def inlier_scales(d: int) -> float:
    """Largest norm of the d residuals of an inlier, in units of the noise scale."""
    if d == 1:
        return _INLIER_SCALES
    return float(chi.ppf(2.0 * ndtr(_INLIER_SCALES) - 1.0, d))


def _is_within(residual: Array, radius: float, out: Any = None) -> Any:
    return np.less_equal(np.sqrt(squared_norms(residual)), radius, out=out)


def _intervals(centre: Array, half: Array) -> Array:
    return np.stack([centre - half, centre + half], axis=-1)


def _predict(X: Any, coef: Array, intercept: Any) -> Array:
    return safe_sparse_dot(X, coef, dense_output=True) + intercept


# Tasks on rows, which may run on workers: they take only what they need.


def _of_residuals(
    X: Any,
    y: Array,
    coef: Array,
    intercept: Any,
    scale: Any,
    function: Callable[..., Array],
    *args: Any,
) -> Array:
    predicted = _predict(X, coef, intercept)
    residual = y.reshape(len(y), -1) - predicted.reshape(len(y), -1)
    return function(residual / scale, *args)


def _confidence(residual: Array, kernel: Kernel, tuning: float) -> Array:
    return kernel.weight(squared_norms(residual, tuning))


def _is_inlier(residual: Array) -> Any:
    return _is_within(residual, inlier_scales(residual.shape[1]))
