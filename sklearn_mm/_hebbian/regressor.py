"""Regression by contrastive Hebbian learning."""

from __future__ import annotations

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.metrics import r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from sklearn_mm._estimator import ScoreMixin, keep_state_on_error
from sklearn_mm._hebbian.base import BaseContrastiveHebbian
from sklearn_mm._hebbian.documentation import ATTRIBUTES, NOTES, PARAMETERS
from sklearn_mm._hebbian.settings import supports_partial_fit
from sklearn_mm._hebbian.targets import mean_and_deviation, middle_and_spread
from sklearn_mm._rows.sources import MappedRows, in_memory, is_dask
from sklearn_mm._rows.statistics import unit_weights
from sklearn_mm._rows.validation import validate_rows
from sklearn_mm.losses import Huber, LogLoss


class ContrastiveHebbianRegressor(
    ScoreMixin, MultiOutputMixin, RegressorMixin, BaseContrastiveHebbian
):
    __doc__ = f"""Contrastive Hebbian regressor with a layered convex energy.

    Targets are standardised internally, so that results do not depend on their units.

    Parameters
    ----------
    {PARAMETERS.replace("LOSS", "squared_error")}

    Attributes
    ----------
    {ATTRIBUTES}

    target_mean_ : ndarray of shape (n_outputs,)
        Mean of the targets; their median with the Huber loss.

    target_scale_ : ndarray of shape (n_outputs,)
        Standard deviation of the targets (with the Huber loss, 1.48 times the median
        absolute deviation), multiplied by the square root of the number
        of outputs, so that the total variance in these units is one. The outputs of the
        network are in these units.

    See Also
    --------
    ContrastiveHebbianClassifier : Contrastive Hebbian learning for classification.
    ConvergenceDisplay : Plot of the certified bounds during training.
    sklearn.neural_network.MLPRegressor : Multi-layer perceptron regressor.

    Notes
    -----
    {NOTES}

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from sklearn_mm import ContrastiveHebbianRegressor
    >>> X, y = make_friedman1(500, random_state=0)
    >>> model = ContrastiveHebbianRegressor(random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.9)
    True
    """

    @available_if(supports_partial_fit)
    @keep_state_on_error
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, sample_weight=None):
        """Update the network with one epoch over the given rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training data.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Target values. Their mean and scale are determined in the first call.

        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row.

        Returns
        -------
        self : object
            Fitted estimator.
        """
        self._check_incremental()
        return self._fit(X, y, sample_weight, incremental=True)

    def predict(self, X):
        """Predict targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predicted targets. A Dask array if X is one.
        """
        check_is_fitted(self)
        shape = () if self._flat_targets else (self.n_outputs_,)
        return self._map_outputs(self._targets_of, X, shape)

    def _targets_of(self, outputs):
        """Outputs in the units of the targets."""
        dtype = outputs.dtype
        with np.errstate(over="ignore", invalid="ignore"):
            outputs = outputs * self.target_scale_ + self.target_mean_
            outputs = outputs.astype(dtype, copy=False)
        if not np.isfinite(outputs).all():
            raise ValueError(
                f"The predictions are too large for {dtype}. Bring X and y to "
                "comparable units, e.g. with StandardScaler."
            )
        return outputs[:, 0] if self._flat_targets else outputs

    def _validate_targets(self, X, y, sample_weight, reset):
        X, y = validate_rows(self, X, y, y_numeric=True, multi_output=True, reset=reset)
        weight = in_memory(unit_weights(sample_weight, X)[0])
        Y = y.reshape(y.shape[0], -1)
        if reset:
            self._flat_targets = y.ndim == 1
        if reset:
            blocks = X if is_dask(y) else None
            bounded = self.loss == "huber" or isinstance(self.loss, Huber)
            moments = middle_and_spread if bounded else mean_and_deviation
            self.target_mean_, scale = moments(Y, weight, blocks)
            # A total variance of one, whatever the number of outputs, so that the
            # meaning of `alpha` and the size of the weights do not depend on it.
            self.target_scale_ = scale * np.sqrt(Y.shape[1])
        elif Y.shape[1] != self.n_outputs_:
            raise ValueError(
                f"y has {Y.shape[1]} outputs, but {type(self).__name__} was fitted "
                f"with {self.n_outputs_}."
            )
        mean, scale, dtype = self.target_mean_, self.target_scale_, X.dtype

        def standardized(rows):
            return ((rows.reshape(len(rows), -1) - mean) / scale).astype(dtype)

        return X, MappedRows(Y, standardized, Y.shape[1], dtype), weight

    def _loss(self, n_outputs):
        if self.loss == "log_loss" or isinstance(self.loss, LogLoss):
            raise ValueError(
                "loss='log_loss' is only supported by ContrastiveHebbianClassifier."
            )
        return super()._loss(n_outputs)

    def _huber_width(self, n_outputs):
        return self.huber_width / np.sqrt(n_outputs)

    def _score_outputs(self, outputs, Y, sample_weight):
        return r2_score(Y, outputs, sample_weight=sample_weight)
