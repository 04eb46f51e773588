"""Contrastive Hebbian learning as scikit-learn estimators."""

from __future__ import annotations

import numpy as np
from scipy.special import log_softmax
from sklearn.base import (
    ClassifierMixin,
    MultiOutputMixin,
    RegressorMixin,
    _fit_context,
)
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import column_or_1d, compute_sample_weight
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call,
    check_classification_targets,
    type_of_target,
    unique_labels,
)

from sklearn_mm._estimator import keep_state_on_error
from sklearn_mm._hebbian.base import (
    BaseContrastiveHebbian,
    supports_partial_fit,
)
from sklearn_mm._rows.sources import MappedRows, in_memory, is_dask
from sklearn_mm._rows.statistics import (
    labels_in_blocks,
    moments_in_blocks,
    unit_weights,
)
from sklearn_mm._rows.validation import validate_rows
from sklearn_mm.losses import LogLoss, softmax

_PARAMETERS = """hidden_layer_sizes : int or array-like of int, default=(64,)
        Units of the hidden layers.

    loss : {"squared_error", "huber", "log_loss"} or object, default="LOSS"
        Loss of the outputs. "log_loss", for classifiers only, is the cross-entropy of
        their softmax. An object of `sklearn_mm.losses`, or one of your own with the
        methods of :class:`sklearn_mm.losses.Loss`, can be given as well.

    huber_width : float, default=1.35
        Where the Huber loss turns from quadratic to linear, in standard deviations of
        the targets (for a classifier, in units of the class indicators).

    activation : {"relu", "hard_sigmoid", "hard_tanh", "identity"}, default="relu"
        The box that activations of hidden units are confined to: [0, inf), [0, 1],
        [-1, 1] or none. Towards a feedback of zero, they are clipped to it.

    standardize : bool, default=True
        Whether features are centred and scaled inside, so that results do not depend
        on their units. Columns of like kind, such as the pixels of an image, get one
        common scale; sparse features are scaled, not centred. `coefs_` and
        `intercepts_` are those of the units of X. The first call of `partial_fit`
        decides on centre and scale.

    criterion : {"sudemm", "regemm", "fixed", "alternating"} or object, \
            default="sudemm"
        When inference is accurate enough for an update:

        - "sudemm": the gap between the bounds is at most `rho` times the decrease that
          a gradient step guarantees, ``||g||^2 / (2 L)``, with L verified by
          backtracking if ``solver="gd"``. Otherwise two tests have to hold: the paper's
          stochastic one, gap ``<= rho / 2 * ||g||^2``, and the same for half a bound of
          the squared error that unfinished inference leaves in the gradient g;
        - "regemm": the upper bound has closed the fraction `eta` of the gap that the
          previous one left. Needs full batches. Its guarantee, a bound that never
          rises, is for ``solver="gd"``;
        - "fixed": after `n_passes` passes, whatever the bounds say;
        - "alternating": after `n_passes` passes from the activations of the previous
          update, which are kept for all rows. A baseline; needs full batches, and
          memory that grows with their number.

        An object of `sklearn_mm.criteria` can be given as well.

    feedback : float or "auto", default="auto"
        Weight of a layer's residual relative to that of the layer before it, in (0, 1].
        At 1 the energy is that of the paper; towards 0 training becomes
        back-propagation. Values below ``1e-100 ** (1 / n_hidden_layers)`` are replaced
        by it: numbers cannot tell them from zero.
        "auto" is 0.003 for up to four hidden layers and ``1e-12 ** (1 /
        n_hidden_layers)`` for more, which float32 can hold; 1 with ``solver="gd"``,
        whose steps a small feedback makes short.

    solver : {"adam", "sgd", "gd"}, default="adam"
        How weights are updated: "gd" is the plain gradient step of length 1/L, with L
        found by backtracking on full batches.

    learning_rate_init : float, default=0.001
        Step length of "adam" and "sgd".

    learning_rate : {"constant", "invscaling"}, default="constant"
        Under "invscaling", "sgd" divides the step length in update t by
        ``t ** power_t`` and `rho` by ``t ** (2 * power_t)``: with ``momentum=0`` these
        schedules satisfy the conditions of the paper's convergence proof.

    power_t : float, default=0.6
        Exponent of "invscaling", in (0.5, 1].

    momentum : float, default=0.9
        Momentum of "sgd", in [0, 1).

    average : bool, default=True
        Whether the fitted weights are an average over the last updates of "adam" or
        "sgd": exponential, over the last tenth of all updates and 500 at most. (That
        of ``SGDRegressor(average=True)`` counts all updates alike.) Predictions,
        `bounds` and early stopping are about the average; `history_` and `loss_curve_`
        are about the iterates, from which `partial_fit` and `warm_start` go on. There
        is none with ``solver="gd"`` or ``criterion="regemm"``, whose theorems are about
        the last iterate.

    batch_size : int, "auto" or None, default="auto"
        Rows of a mini-batch. None means full batches, which are worked through in
        chunks, with activations recomputed and thrown away. "auto" is None where the
        criterion or the solver needs it, and ``min(200, n_samples)`` otherwise.

    inference : {"block", "coordinate"}, default="block"
        With "block", a pass works on whole layers and batches: forward and backward
        through the network where this contracts, i.e. with a small feedback or small
        weights, and by the modulus iteration elsewhere. With "coordinate" it minimises
        the energy over one unit after the other, as in the paper, and is much slower.

    rho : float, default=0.5
        Accuracy asked for by "sudemm".

    eta : float, default=0.5
        Fraction of the gap that "regemm" asks to be closed, in (0, 1).

    n_passes : int, default=8
        Passes of "fixed" and "alternating". A pass goes through all layers; the clamped
        phase, which starts from the free one, makes fewer.

    max_passes : int, default=200
        Largest number of passes, in training and prediction. An update for which it
        was not enough is made in part only.

    inference_tol : float, default=1e-12
        Relative duality gap to which `predict` and `bounds` infer. Activations, and
        with them predictions, are then accurate to about its square root.

    alpha : float, default=5e-5
        The penalty ``alpha / 2 * ||W||^2`` is added to the *mean* loss. (MLPRegressor
        divides its `alpha` by the number of rows in a batch.) It keeps weights, and
        with them the number of passes, small.

    max_iter : int, default=200
        Largest number of epochs.

    tol : float, default=1e-4
        Training ends when the loss (or the validation score) has not improved by `tol`
        for `n_iter_no_change` epochs. With ``solver="gd"`` or ``criterion="regemm"``
        it also ends when the criterion's own measure of progress is below `tol` times
        the loss.

    early_stopping : bool, default=False
        Whether to set rows aside and keep the weights that score best on them.

    validation_fraction : float, default=0.1
        Fraction of rows to set aside.

    n_iter_no_change : int, default=10
        Number of epochs without improvement before training ends.

    shuffle : bool, default=True
        Whether mini-batches are drawn anew in every epoch.

    warm_start : bool, default=False
        Whether `fit` continues from the weights (and the units of targets) of the
        previous call.

    chunk_size : int, default=None
        Rows whose activations are held at a time in full batches, prediction and
        `bounds`; None means 1024.

    n_jobs : int, default=None
        Number of workers that share the chunks; None means 1 unless in a
        :obj:`joblib.parallel_config` context, which also decides on their kind
        (threads, if it does not say). The result does not depend on it.

    random_state : int, RandomState instance or None, default=None
        Seed of initial weights, mini-batches and validation rows.

    verbose : int, default=0
        Whether to print a line for every epoch."""

_ATTRIBUTES = """coefs_ : list of ndarray of shape (n_units, n_units_of_next_layer)
        Weights.

    intercepts_ : list of ndarray of shape (n_units_of_next_layer,)
        Biases.

    n_layers_ : int
        Number of layers, input and output among them.

    n_outputs_ : int
        Number of outputs.

    n_iter_ : int
        Number of epochs.

    loss_curve_ : list of float
        Mean upper bound of the loss, penalty included, in every epoch.

    loss_ : float
        Last value of `loss_curve_`.

    best_loss_ : float
        Smallest value of `loss_curve_`.

    validation_scores_ : list of float or None
        Validation score after every epoch, with ``early_stopping=True``.

    best_validation_score_ : float or None
        Largest of the `validation_scores_`.

    history_ : Bunch
        One entry per update: ``upper_bound``, ``lower_bound``, ``gap``, ``passes``,
        ``work`` (passes, discarded ones included), ``satisfied``, ``epoch`` (from
        zero) and others. :class:`ConvergenceDisplay` draws it.

    n_features_in_ : int
        Number of features.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, where X has names that are all strings."""

_NOTES = """Activations of the hidden layers are not computed by a rule but inferred, as
    minimisers of a convex energy, once with the output left free and once clamped to
    the target. The loss is the difference of the two energies, and duality encloses it
    between bounds, which decide how accurate inference has to be [1]_.

    The gradient in use is that of the certified upper bound with ``solver="gd"``, for
    which the theorems are, and wherever feedback is strong. Elsewhere it is that of the
    upper bound of a nearby network, whose biases differ, row by row, by what is left of
    the free phase's optimality conditions, and for which this phase is exact: after few
    passes it is by far the better estimate of the gradient of the loss.

    Under "adam", and under "sgd" with momentum, the criterion says that the gradient in
    use is accurate relative to its own size; the theorems are about plain gradient
    steps: ``solver="gd"``, or ``solver="sgd", momentum=0,
    learning_rate="invscaling"``. For the latter the paper proves that the gradients
    come arbitrarily close to zero, not that they converge to it.

    With float32 data all of training runs in float32 as long as ``feedback **
    -n_hidden_layers`` is at most 1e12, which "auto" makes sure of, unless bounds of
    successive updates are compared (``solver="gd"``, ``criterion="regemm"``). What
    rounding does is to change biases in their last digit, row by row. `bounds` are
    computed in float64 whatever the data.

    X may be larger than memory: a memory map, or any array with a shape, a dtype and
    slices of rows (HDF5, Zarr), is read chunk by chunk, and mini-batches are drawn from
    one stretch of rows after another; the blocks of a Dask array are worked on where
    they are, in full batches. For streams there is `partial_fit`. An interrupt (Ctrl-C)
    after the first update ends training with the last finished one.

    References
    ----------
    .. [1] C. Zach and H. Le, "Truncated Inference for Latent Variable Optimization
       Problems: Application to Robust Estimation and Learning", ECCV 2020."""


class ContrastiveHebbianRegressor(
    MultiOutputMixin, RegressorMixin, BaseContrastiveHebbian
):
    __doc__ = f"""Regression with a layered convex energy, by contrastive learning.

    Targets are standardised inside, so that results do not depend on their units.

    Parameters
    ----------
    {_PARAMETERS.replace("LOSS", "squared_error")}

    Attributes
    ----------
    {_ATTRIBUTES}

    target_mean_ : ndarray of shape (n_outputs,)
        Mean of the targets.

    target_scale_ : ndarray of shape (n_outputs,)
        Standard deviation of the targets, times the square root of their number: in
        units of it, the total variance is one. Outputs of the network are in these
        units.

    See Also
    --------
    ContrastiveHebbianClassifier : The same for class labels.
    ConvergenceDisplay : Certified bounds over training in a picture.
    sklearn.neural_network.MLPRegressor : Feed-forward network, by back-propagation.

    Notes
    -----
    {_NOTES}

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from sklearn_mm import ContrastiveHebbianRegressor
    >>> X, y = make_friedman1(500, random_state=0)
    >>> model = ContrastiveHebbianRegressor(max_iter=500, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.9)
    True
    """

    def __init__(
        self,
        hidden_layer_sizes=(64,),
        *,
        loss="squared_error",
        huber_width=1.35,
        activation="relu",
        standardize=True,
        criterion="sudemm",
        feedback="auto",
        solver="adam",
        learning_rate_init=1e-3,
        learning_rate="constant",
        power_t=0.6,
        momentum=0.9,
        average=True,
        batch_size="auto",
        inference="block",
        rho=0.5,
        eta=0.5,
        n_passes=8,
        max_passes=200,
        inference_tol=1e-12,
        alpha=5e-5,
        max_iter=200,
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
            Targets. The first call decides on their mean and scale.

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
            Predicted targets.
        """
        outputs = self._outputs(X)
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
        if reset and is_dask(y):
            mean, spread = moments_in_blocks(X, y, weight)
            self.target_mean_ = mean
            self.target_scale_ = np.where(spread > 0, spread, 1.0) * np.sqrt(len(mean))
        elif reset:
            # Rows without weight may hold anything.
            kept = weight > 0
            rows, share = Y[kept].astype(np.float64), weight[kept]
            self.target_mean_ = np.average(rows, axis=0, weights=share)
            centred = rows - self.target_mean_
            # Divided by the largest first: squares neither overflow nor vanish.
            size = np.abs(centred).max(axis=0)
            size[size == 0.0] = 1.0
            variance = np.average((centred / size) ** 2, axis=0, weights=share)
            scale = np.where(variance > 0, size * np.sqrt(variance), 1.0)
            # A total variance of one, whatever the number of outputs: `alpha` and the
            # size of weights that it leads to mean the same.
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
                "loss='log_loss' is for class labels: use ContrastiveHebbianClassifier."
            )
        return super()._loss(n_outputs)

    def _huber_width(self, n_outputs):
        return self.huber_width / np.sqrt(n_outputs)

    def _score_outputs(self, outputs, Y, sample_weight):
        return r2_score(Y, outputs, sample_weight=sample_weight)


class ContrastiveHebbianClassifier(ClassifierMixin, BaseContrastiveHebbian):
    __doc__ = f"""Classification with a layered convex energy, by contrastive learning.

    By default the outputs are trained by cross-entropy, and their softmax estimates the
    probabilities of classes.

    Parameters
    ----------
    {_PARAMETERS.replace("LOSS", "log_loss")}

    class_weight : dict or "balanced", default=None
        Weights of classes, which multiply those of rows.

    Attributes
    ----------
    {_ATTRIBUTES}

    classes_ : ndarray of shape (n_classes,)
        Class labels.

    See Also
    --------
    ContrastiveHebbianRegressor : The same for numbers.
    ConvergenceDisplay : Certified bounds over training in a picture.
    sklearn.neural_network.MLPClassifier : Feed-forward network, by back-propagation.

    Notes
    -----
    {_NOTES}

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mm import ContrastiveHebbianClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ContrastiveHebbianClassifier(max_iter=1000, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.95)
    True
    """

    _parameter_constraints: dict = {
        **BaseContrastiveHebbian._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        hidden_layer_sizes=(64,),
        *,
        loss="log_loss",
        huber_width=1.35,
        activation="relu",
        standardize=True,
        criterion="sudemm",
        feedback="auto",
        solver="adam",
        learning_rate_init=1e-3,
        learning_rate="constant",
        power_t=0.6,
        momentum=0.9,
        average=True,
        batch_size="auto",
        inference="block",
        rho=0.5,
        eta=0.5,
        n_passes=8,
        max_passes=200,
        inference_tol=1e-12,
        alpha=5e-5,
        max_iter=200,
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
            All labels that may occur; required in the first call.

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
            The class of the largest output.
        """
        outputs = self._outputs(X)
        return self.classes_[outputs.argmax(axis=1)]

    def decision_function(self, X):
        """Outputs of the network.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        Returns
        -------
        scores : ndarray of shape (n_samples,) or (n_samples, n_classes)
            One column for each class; with two classes, the second minus the first.
        """
        outputs = self._outputs(X)
        if len(self.classes_) == 2:
            return outputs[:, 1] - outputs[:, 0]
        return outputs

    def predict_log_proba(self, X):
        """Logarithms of class probabilities.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        Returns
        -------
        log_probabilities : ndarray of shape (n_samples, n_classes)
            Minus infinity for probabilities of zero.
        """
        outputs = self._outputs(X)
        if isinstance(self._loss(outputs.shape[1]), LogLoss):
            return log_softmax(outputs, axis=1)
        with np.errstate(divide="ignore"):
            return np.log(project_to_simplex(outputs))

    def predict_proba(self, X):
        """Class probabilities.

        With ``loss="log_loss"`` they are the softmax of the outputs. With another loss
        they are the outputs, projected onto the simplex of probabilities: regression on
        class indicators estimates the probabilities of classes, but its outputs need
        not be probabilities; the nearest ones (in Euclidean distance) are no farther
        from the truth in squared error. They are not calibrated beyond that: zeros and
        ones are common.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
            Non-negative numbers that sum to one in every row.
        """
        outputs = self._outputs(X)
        if isinstance(self._loss(outputs.shape[1]), LogLoss):
            return softmax(outputs)
        return project_to_simplex(outputs)

    def _validate_targets(self, X, y, sample_weight, reset):
        X, y = validate_rows(self, X, y, multi_output=True, reset=reset)
        if is_dask(y):
            labels = labels_in_blocks(X, y)
            if self.class_weight is not None:
                raise ValueError(
                    "class_weight needs y in memory. Pass sample_weight instead."
                )
        else:
            labels = y
        check_classification_targets(labels)
        if type_of_target(labels).startswith("multilabel") or (
            y.ndim == 2 and y.shape[1] > 1
        ):
            raise ValueError(
                f"{type(self).__name__} does not support multilabel or multi-output "
                "targets: y must hold one class label a row. Fit one classifier an "
                "output, e.g. with sklearn.multioutput.MultiOutputClassifier."
            )
        if not is_dask(y):
            y = labels = column_or_1d(y, warn=True)
        labels = unique_labels(labels)
        # Classes named in a first call of partial_fit are there before the weights.
        if reset and (hasattr(self, "coefs_") or not hasattr(self, "classes_")):
            self.classes_ = labels
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y contains labels {unknown.tolist()} that are not among the classes "
                f"{self.classes_.tolist()} of the previous call."
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
        return Y.argmax(axis=1)


def project_to_simplex(outputs):
    """Nearest points of the probability simplex, row by row."""
    n_classes = outputs.shape[1]
    # The simplex does not change with a shift of all outputs of a row, and nothing
    # below one less than the largest has a part in it: large numbers do not cancel.
    outputs = np.maximum(outputs - outputs.max(axis=1, keepdims=True), -2.0)
    ordered = np.sort(outputs, axis=1)[:, ::-1]
    excess = np.cumsum(ordered, axis=1) - 1.0
    index = np.arange(1, n_classes + 1)
    # The largest j for which the j largest outputs stay positive after the shift.
    support = np.sum(ordered * index > excess, axis=1)
    shift = excess[np.arange(len(outputs)), support - 1] / support
    projected = np.maximum(outputs - shift[:, None], 0.0)
    projected /= projected.sum(axis=1, keepdims=True)
    return projected
