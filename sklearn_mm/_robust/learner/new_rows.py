"""Confidence weights and inliers among new rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
)

from sklearn_mm._robust.inference_mixin import inlier_scales
from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import Kernel


class NewRowsMixin:
    """Mixin for the confidence in rows, given their targets.

    The estimator must have `predict` and the fitted attributes below.
    """

    scale_: Any
    _fitted_kernel: tuple[Kernel, float]  # and its width in scales

    def confidence(self, X: Any, y: Any) -> Array:
        """Compute the confidence weights of the given rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            New data, anything that the estimator takes.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Target values.

        Returns
        -------
        weights : ndarray of shape (n_samples,)
            Confidence weights in [0, 1]. A weight is one if the target equals its
            prediction and decreases with the size of the residual.

        See Also
        --------
        RobustRegressor.inlier_mask : Boolean mask of the inliers.

        Notes
        -----
        The scale is `scale_` for all rows, also for those that are hard to predict.
        For the training rows, use `weights_`, which are based on out-of-fold residuals.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.linear_model import Ridge
        >>> from sklearn_mm import RobustRegressor
        >>> X = np.arange(20.0)[:, None]
        >>> y = 2.0 * X[:, 0] + np.tile([0.1, -0.1, -0.1, 0.1], 5)
        >>> model = RobustRegressor(Ridge(), random_state=0).fit(X, y)
        >>> model.confidence([[10.0], [10.0]], [20.0, 60.0]).round(1)
        array([1., 0.])
        """
        return self._weigh(self._new_residual(X, y))[0]

    def inlier_mask(self, X: Any, y: Any) -> Any:
        """Determine which of the given rows are inliers.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            New data, anything that the estimator takes.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Target values.

        Returns
        -------
        mask : ndarray of shape (n_samples,)
            Boolean mask of the inliers. The residual of an inlier is at most three
            scales. With several outputs, the norm of the residuals is compared with the
            quantile of the same probability.

        See Also
        --------
        RobustRegressor.confidence : Confidence weight of each row.

        Notes
        -----
        The scale is `scale_` for all rows, also for those that are hard to predict.
        For the training rows, use `inlier_mask_`, which is based on out-of-fold
        residuals.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.linear_model import Ridge
        >>> from sklearn_mm import RobustRegressor
        >>> X = np.arange(20.0)[:, None]
        >>> y = 2.0 * X[:, 0] + np.tile([0.1, -0.1, -0.1, 0.1], 5)
        >>> model = RobustRegressor(Ridge(), random_state=0).fit(X, y)
        >>> model.inlier_mask([[10.0], [10.0]], [20.0, 60.0])
        array([ True, False])
        """
        residual = self._new_residual(X, y)
        norm = np.sqrt(np.square(residual / self.scale_).sum(axis=1))
        return norm <= inlier_scales(residual.shape[1])

    def _weigh(self, residual: Array) -> tuple[Array, Any]:
        """Confidence weights of residuals, and the largest residual of an inlier.

        With several outputs, the latter is in units of the scales.
        """
        residual = residual.reshape(len(residual), -1)
        kernel, width = self._fitted_kernel
        squares = np.square(residual / self.scale_).sum(axis=1)
        d = residual.shape[1]
        unit = self.scale_ if d == 1 else 1.0
        return kernel.weight(squares / width**2), inlier_scales(d) * unit

    def _new_residual(self, X: Any, y: Any) -> Array:
        """Residuals of shape (n_samples, n_outputs)."""
        check_is_fitted(self)
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        check_consistent_length(X, y)
        y = y.reshape(len(y), -1)
        fitted = np.size(self.scale_)
        if y.shape[1] != fitted:
            raise ValueError(
                f"y has {y.shape[1]} outputs, but {type(self).__name__} was fitted "
                f"with {fitted}."
            )
        prediction: Array = self.predict(X)  # type: ignore[attr-defined]
        return y - prediction.reshape(y.shape)
