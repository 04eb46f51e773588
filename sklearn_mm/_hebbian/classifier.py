"""Classification by contrastive Hebbian learning."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.metrics import accuracy_score
from sklearn.utils import column_or_1d, compute_sample_weight
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call,
    check_classification_targets,
    type_of_target,
    unique_labels,
)
from sklearn.utils.validation import check_is_fitted

from sklearn_mm._estimator import ScoreMixin, keep_state_on_error
from sklearn_mm._hebbian.base import BaseContrastiveHebbian
from sklearn_mm._hebbian.documentation import ATTRIBUTES, NOTES, PARAMETERS
from sklearn_mm._hebbian.outcome import compared_rows, warn_below_majority
from sklearn_mm._hebbian.settings import supports_partial_fit
from sklearn_mm._rows.sources import MappedRows, in_memory, is_dask
from sklearn_mm._rows.statistics import labels_in_blocks, unit_weights
from sklearn_mm._rows.validation import validate_rows
from sklearn_mm.losses import LogLoss, softmax


class ContrastiveHebbianClassifier(ScoreMixin, ClassifierMixin, BaseContrastiveHebbian):
    __doc__ = f"""Contrastive Hebbian classifier with a layered convex energy.

    By default, the network is trained with cross-entropy, and the softmax of its
    outputs estimates the class probabilities.

    Parameters
    ----------
    {PARAMETERS.replace("LOSS", "log_loss")}

    class_weight : dict or "balanced", default=None
        Weights associated with the classes, which are multiplied with the sample
        weights. If "balanced", they are inversely proportional to the class
        frequencies. If None, all classes have weight one.

    Attributes
    ----------
    {ATTRIBUTES}

    classes_ : ndarray of shape (n_classes,)
        Class labels.

    See Also
    --------
    ContrastiveHebbianRegressor : Contrastive Hebbian learning for regression.
    ConvergenceDisplay : Plot of the certified bounds during training.
    sklearn.neural_network.MLPClassifier : Multi-layer perceptron classifier.

    Notes
    -----
    {NOTES}

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mm import ContrastiveHebbianClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ContrastiveHebbianClassifier(random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.95)
    True
    """

    _parameter_constraints: dict = {
        **BaseContrastiveHebbian._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        hidden_layer_sizes: Any = (64,),
        *,
        loss: Any = "log_loss",
        huber_width=1.35,
        activation="relu",
        standardize=True,
        criterion: Any = "sudemm",
        feedback: Any = "auto",
        solver="adam",
        learning_rate_init: Any = "auto",
        learning_rate="constant",
        power_t=0.6,
        momentum=0.9,
        average=True,
        batch_size: Any = "auto",
        inference="block",
        rho=0.5,
        eta=0.5,
        n_passes=8,
        max_passes=200,
        inference_tol=1e-12,
        alpha: Any = "auto",
        max_iter=300,
        tol=1e-4,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        shuffle=True,
        warm_start=False,
        chunk_size=None,
        n_jobs=None,
        random_state=None,
        verbose=0,
        class_weight=None,
    ):
        super().__init__(
            hidden_layer_sizes=hidden_layer_sizes,
            loss=loss,
            huber_width=huber_width,
            activation=activation,
            standardize=standardize,
            criterion=criterion,
            feedback=feedback,
            solver=solver,
            learning_rate_init=learning_rate_init,
            learning_rate=learning_rate,
            power_t=power_t,
            momentum=momentum,
            average=average,
            batch_size=batch_size,
            inference=inference,
            rho=rho,
            eta=eta,
            n_passes=n_passes,
            max_passes=max_passes,
            inference_tol=inference_tol,
            alpha=alpha,
            max_iter=max_iter,
            tol=tol,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            shuffle=shuffle,
            warm_start=warm_start,
            chunk_size=chunk_size,
            n_jobs=n_jobs,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    @available_if(supports_partial_fit)
    @keep_state_on_error
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Update the network with one epoch over the given rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training data.

        y : array-like of shape (n_samples,)
            Class labels.

        classes : array-like of shape (n_classes,), default=None
            Labels of all classes that can occur. Required in the first call.

        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row.

        Returns
        -------
        self : object
            Fitted estimator.
        """
        self._check_incremental()
        if isinstance(self.class_weight, str):
            raise ValueError(
                "class_weight='balanced' is not supported by partial_fit: the class "
                "frequencies of a stream are not known. Pass a dict or sample_weight."
            )
        _check_partial_fit_first_call(self, classes)
        return self._fit(X, y, sample_weight, incremental=True)

    def predict(self, X):
        """Predict class labels.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,)
            Predicted class labels, those of the largest output. A Dask array if X is
            one.
        """
        check_is_fitted(self)
        return self._map_outputs(self._labels, X, dtype=self.classes_.dtype)

    def decision_function(self, X):
        """Compute the outputs of the network.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        Returns
        -------
        scores : ndarray of shape (n_samples,) or (n_samples, n_classes)
            One column per class. With two classes, the second output minus the first. A
            Dask array if X is one.
        """
        check_is_fitted(self)
        shape = () if len(self.classes_) == 2 else (len(self.classes_),)
        return self._map_outputs(self._decision, X, shape)

    def predict_log_proba(self, X):
        """Predict logarithms of class probabilities.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        Returns
        -------
        log_probabilities : ndarray of shape (n_samples, n_classes)
            Logarithms of the probabilities; minus infinity if a probability is zero. A
            Dask array if X is one.
        """
        check_is_fitted(self)
        shape = (len(self.classes_),)
        return self._map_outputs(self._log_probabilities, X, shape)

    def predict_proba(self, X):
        """Predict class probabilities.

        With ``loss="log_loss"``, the probabilities are the softmax of the outputs. With
        other losses, the outputs are projected onto the probability simplex: regression
        on class indicators estimates class probabilities, but its outputs need not be
        probabilities themselves. The projection (in Euclidean distance) does not
        increase the squared error. There is no further calibration, and probabilities
        of exactly zero or one are common.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
            Non-negative numbers that sum to one in each row. A Dask array if X is one.
        """
        check_is_fitted(self)
        return self._map_outputs(self._probabilities, X, (len(self.classes_),))

    # Functions of the outputs

    def _labels(self, outputs):
        return self.classes_[outputs.argmax(axis=1)]

    def _decision(self, outputs):
        if len(self.classes_) == 2:
            return outputs[:, 1] - outputs[:, 0]
        return outputs

    def _log_probabilities(self, outputs):
        if isinstance(self._loss(outputs.shape[1]), LogLoss):
            return log_softmax(outputs, axis=1)
        with np.errstate(divide="ignore"):
            return np.log(project_to_simplex(outputs))

    def _probabilities(self, outputs):
        if isinstance(self._loss(outputs.shape[1]), LogLoss):
            return softmax(outputs)
        return project_to_simplex(outputs)

    def _validate_targets(self, X, y, sample_weight, reset):
        X, y = validate_rows(self, X, y, multi_output=True, reset=reset)
        if is_dask(y):
            labels = labels_in_blocks(X, y)
            if self.class_weight is not None:
                raise ValueError(
                    "class_weight requires y in memory. Pass sample_weight instead."
                )
        else:
            labels = y
        check_classification_targets(labels)
        if type_of_target(labels).startswith("multilabel") or (
            y.ndim == 2 and y.shape[1] > 1
        ):
            raise ValueError(
                f"{type(self).__name__} does not support multilabel or multi-output "
                "targets: y must hold one class label per row. Fit one classifier per "
                "output, e.g. with sklearn.multioutput.MultiOutputClassifier."
            )
        if not is_dask(y):
            y = labels = column_or_1d(y, warn=True)
        labels = unique_labels(labels)
        # Classes given in the first call of partial_fit are set before the weights.
        if reset and (hasattr(self, "coefs_") or not hasattr(self, "classes_")):
            self.classes_ = labels
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y contains labels {unknown.tolist()} that are not among the classes "
                f"{self.classes_.tolist()} of the model."
            )
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least 2 classes, got 1 class: "
                f"{self.classes_.tolist()}."
            )
        weight = in_memory(unit_weights(sample_weight, X)[0])
        if self.class_weight is not None and (reset or hasattr(self, "coefs_")):
            weight = weight * compute_sample_weight(self.class_weight, y)
        classes, dtype = self.classes_, X.dtype

        def indicators(labels):
            return (labels[:, None] == classes).astype(dtype)

        return X, MappedRows(y, indicators, len(classes), dtype), weight

    def _score_outputs(self, outputs, Y, sample_weight):
        return accuracy_score(
            Y.argmax(axis=1), outputs.argmax(axis=1), sample_weight=sample_weight
        )

    def _stratify(self, Y):
        index = Y.argmax(axis=1)
        single = np.flatnonzero(np.bincount(index) == 1)
        if len(single):
            raise ValueError(
                f"The classes {self.classes_[single].tolist()} have only one row each. "
                "early_stopping=True sets rows of each class aside, which takes two of "
                "each. Set early_stopping=False."
            )
        return index

    def _warn_if_useless(self, data, rate, alpha):
        X, Y, weight = data
        rows = compared_rows(X.shape[0])
        labels, predicted = Y[rows].argmax(axis=1), self._outputs_of(X[rows])
        complete = len(rows) == X.shape[0]
        warn_below_majority(
            self, predicted.argmax(axis=1), labels, weight[rows], rate, alpha, complete
        )


def project_to_simplex(outputs):
    """Nearest points of the probability simplex, row by row."""
    n_classes = outputs.shape[1]
    # The projection does not change if all outputs of a row are shifted, and outputs
    # more than one below the largest do not contribute: large numbers do not cancel.
    outputs = np.maximum(outputs - outputs.max(axis=1, keepdims=True), -2.0)
    ordered = np.sort(outputs, axis=1)[:, ::-1]
    excess = np.cumsum(ordered, axis=1) - 1.0
    index = np.arange(1, n_classes + 1)
    # The largest j such that the j largest outputs remain positive after the shift.
    support = np.sum(ordered * index > excess, axis=1)
    shift = excess[np.arange(len(outputs)), support - 1] / support.astype(outputs.dtype)
    projected = np.maximum(outputs - shift[:, None], 0.0)
    projected /= projected.sum(axis=1, keepdims=True)
    return projected
