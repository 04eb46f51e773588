"""Contrastive Hebbian learning: all of the estimators but the meaning of targets."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, _fit_context
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from sklearn_mm._estimator import (
    CallbackSupportMixin,
    DocumentedMixin,
    PersistentMixin,
    keep_state_on_error,
    warn_user,
)
from sklearn_mm._hebbian.energy import BOXES, Energy, unpack
from sklearn_mm._hebbian.inputs import Units, units_of
from sklearn_mm._hebbian.outcome import warn_about_training
from sklearn_mm._hebbian.problem import DEFAULT_CHUNK, ContrastiveProblem
from sklearn_mm._hebbian.safeguard import Safeguard, Weights
from sklearn_mm._hebbian.settings import (
    CONSTRAINTS,
    batch_size_of,
    criterion_of,
    feedback_weight,
    hidden_sizes,
    learning_rate_of,
    penalty_of,
)
from sklearn_mm._hebbian.to_the_end import certified_bounds, free_outputs
from sklearn_mm._hebbian.training import Trainer, initial_theta
from sklearn_mm._rows.sources import BlockReader, DaskRows, LazyRows, target_source
from sklearn_mm._rows.validation import validate_rows
from sklearn_mm._rows.workers import blas_threads_for
from sklearn_mm._solver.history import History
from sklearn_mm.baselines import Alternating
from sklearn_mm.losses import Huber, check_loss, get_loss


class BaseContrastiveHebbian(
    DocumentedMixin,
    PersistentMixin,
    CallbackSupportMixin,
    BaseEstimator,
    metaclass=ABCMeta,
):
    """Base class for contrastive Hebbian estimators, without the type of targets."""

    _parameter_constraints: dict = CONSTRAINTS

    def __init__(
        self,
        hidden_layer_sizes: Any = (64,),
        *,
        loss: Any = "squared_error",
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
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.loss = loss
        self.huber_width = huber_width
        self.activation = activation
        self.standardize = standardize
        self.criterion = criterion
        self.feedback = feedback
        self.solver = solver
        self.learning_rate_init = learning_rate_init
        self.learning_rate = learning_rate
        self.power_t = power_t
        self.momentum = momentum
        self.average = average
        self.batch_size = batch_size
        self.inference = inference
        self.rho = rho
        self.eta = eta
        self.n_passes = n_passes
        self.max_passes = max_passes
        self.inference_tol = inference_tol
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.shuffle = shuffle
        self.warm_start = warm_start
        self.chunk_size = chunk_size
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @abstractmethod
    def _validate_targets(self, X, y, sample_weight, reset):
        """Validate X, targets in the units of the model, and weights."""

    @abstractmethod
    def _score_outputs(self, outputs, y, sample_weight):
        """Score of model outputs, for early stopping."""

    @keep_state_on_error
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None):
        """Fit the network.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training data. With ``standardize=True``, features may be in any units.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Target values.

        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row. With full batches, a weight of k is equivalent to
            repeating the row k times.

        Returns
        -------
        self : object
            Fitted estimator.
        """
        return self._fit(X, y, sample_weight, incremental=False)

    def activations(self, X):
        """Infer the activations of the hidden layers in the free phase.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        Returns
        -------
        layers : list of ndarray of shape (n_samples, n_units)
            One array per hidden layer.
        """
        X = self._validate_X(X)
        layers = zip(*(z for _, z in self._infer(X)), strict=True)
        return [np.concatenate(layer, dtype=X.dtype) for layer in layers]

    def bounds(self, X, y, sample_weight=None):
        """Compute certified bounds of the loss on the given data.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.

        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row.

        Returns
        -------
        lower, upper : float
            Lower and upper bound of the mean contrastive loss over rows, without
            penalty and with targets in the units in which the network is trained
            (standardised for a regressor). Inference continues until the bounds agree
            to `inference_tol`, or for `max_passes` passes. They are always computed in
            float64, for weights that may differ from the fitted ones in the last digit.
        """
        check_is_fitted(self)
        X, Y, weight = self._validate_targets(X, y, sample_weight, reset=False)
        problem = self._problem(X, Y, weight, data_dtype=np.float64)
        problem, point = problem.to_the_end(problem.at(self._theta()))
        limits = (self.inference_tol, self.max_passes)
        lower, upper = problem.sum_parts(certified_bounds, point, *limits)
        return float(lower), float(upper)

    def _map_parts(self, function, problem, theta):
        """Values of a function of converged inference, chunk by chunk."""
        problem, point = problem.to_the_end(problem.at(theta))
        return problem.map_parts(function, point, self.inference_tol, self.max_passes)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_incremental(self):
        if self.early_stopping:
            raise ValueError("partial_fit does not support early_stopping=True.")

    def _fit(self, X, y, sample_weight, incremental):
        fresh = not hasattr(self, "coefs_") or not (incremental or self.warm_start)
        hidden = hidden_sizes(self)
        criterion = criterion_of(self)
        raw = (X, y)
        X, Y, weight = self._validate_targets(X, y, sample_weight, reset=fresh)
        lazy = isinstance(X, LazyRows)
        if isinstance(X, DaskRows):
            X.in_blocks().check_finite(type(self).__name__)
        if not lazy and not np.all(kept := weight > 0):
            # Rows without weight would thin out mini-batches.
            X, Y, weight = X[kept], Y[kept], weight[kept]
        batch_size = batch_size_of(self, criterion, X.shape[0])
        random_state = check_random_state(self.random_state)
        sizes = (X.shape[1], *hidden, Y.shape[1])
        if not isinstance(self.loss, str):
            check_loss(self._loss(sizes[-1]), sizes[-1])
        if not (lazy or batch_size is None) and Y.shape[1] <= X.shape[1]:
            Y = Y[:]  # once for all mini-batches, at no more memory than X takes
        if fresh:
            self._units = self._find_units(X, weight)
            theta = initial_theta(sizes, random_state)
        else:
            theta = self._warm_theta(sizes)
        compares = getattr(criterion, "needs_full_batch", False)
        options = {
            "units": self._units,
            "certified": self.solver == "gd",
            "double": compares and not isinstance(criterion, Alternating),
        }
        validate, given = None, (X, Y, weight)
        if self.early_stopping:
            X, Y, weight, validate = self._hold_out(
                X, Y, weight, sizes, options, random_state
            )
        if lazy:
            Y = replace(Y, array=target_source(X, Y.array, batch_size is not None))
        if lazy and batch_size is not None and not isinstance(X, DaskRows):
            X = BlockReader(X)
        # The number of rows is not known for a stream. In full batches, weights stand
        # for copies of rows, and copies do not count as more rows.
        known = not incremental and batch_size is not None
        n_known = X.shape[0] if known else None
        rate = learning_rate_of(self, n_known)
        options["alpha"] = penalty_of(self, n_known)
        problem = self._problem(X, Y, weight, sizes, **options)
        theta = theta.astype(problem.dtype)
        dtype = X.dtype
        memory = getattr(self, "_memory", None) if incremental else None
        trainer = Trainer(self, criterion, batch_size, rate, memory)
        max_iter = 1 if incremental else self.max_iter
        operations = 2.0 * (batch_size or DEFAULT_CHUNK) * problem.energy.n_weights
        # Divergence is detected by the safeguard and reported below.
        errors = np.errstate(over="ignore", invalid="ignore")
        with errors, blas_threads_for(operations):
            point = problem.at(theta)
            upper = trainer.prepare(problem, point)
            monitor = Safeguard(
                history=History(),
                first_upper=upper,
                start=point,
                averaged=trainer.averaged,
                dtype=dtype,
                validate=validate,
                tol=self.tol,
                n_iter_no_change=self.n_iter_no_change,
                estimator=self,
                max_iter=max_iter,
                X=raw[0],
                y=raw[1],
                attributes=lambda theta: self._fitted(theta, sizes, dtype),
            )
            result = trainer.run(problem, point, upper, monitor, random_state, max_iter)
            rows = np.arange(min(problem.n_samples, DEFAULT_CHUNK))
            weights = monitor.settle(
                result.point,
                result.status,
                lambda theta: trainer.upper_bound(problem, problem.at(theta), rows),
            )
        monitor.finish(weights)
        self._record(weights, sizes, dtype, monitor, result, fresh, incremental)
        self._memory = trainer.memory() if incremental else None
        self._warn(given, result, monitor, rate, problem.alpha, incremental)
        return self

    def _find_units(self, X, weight):
        """Units of the features in which the network is trained."""
        if not self.standardize:
            return Units()
        with np.errstate(over="ignore", invalid="ignore"):
            units = units_of(X, weight, self.chunk_size, self.n_jobs)
        if units.scale is None or not np.isfinite(units.scale).all():
            raise ValueError(
                "The scale of X is not finite because squares of its entries overflow. "
                "Scale X, e.g. with StandardScaler."
            )
        return units

    def _record(
        self, weights: Weights, sizes, dtype, monitor, result, fresh, incremental
    ):
        """Set the fitted attributes after a run."""
        self.__dict__.update(self._fitted(weights.fitted, sizes, dtype))
        self._iterate = weights.iterate
        past = vars(self) if incremental and not fresh else {}
        self.n_iter_ = result.n_iter + past.get("n_iter_", 0)
        self.loss_curve_ = past.get("loss_curve_", []) + monitor.losses
        losses = [loss for loss in self.loss_curve_ if np.isfinite(loss)]
        self.loss_ = losses[-1] if losses else None
        self.best_loss_ = min(losses, default=None)
        scores = monitor.scores if self.early_stopping else None
        self.validation_scores_ = scores
        self.best_validation_score_ = max(scores) if scores else None
        history = monitor.history.to_bunch() if len(monitor.history) else None
        if history is not None:
            history["passes"] = history["effort"]
        self.history_ = history

    def _warn(self, data, result, monitor, rate, alpha, incremental):
        """Warn about a poor fit to the data, an (X, Y, weight)."""
        warned = warn_about_training(self, result, monitor, rate, alpha, incremental)
        if not (warned or incremental or isinstance(data[0], LazyRows)):
            self._warn_if_useless(data, rate, alpha)

    def _warn_if_useless(self, data, rate, alpha):
        """Warn if a constant prediction is better; for a regressor, none is known."""

    def _problem(self, X, Y, weight, sizes=None, **options):
        if sizes is None:
            sizes = (self.coefs_[0].shape[0], *(W.shape[1] for W in self.coefs_))
        feedback = feedback_weight(self.feedback, self.solver, len(sizes) - 2)
        energy = Energy(
            tuple(sizes), feedback, self._loss(sizes[-1]), BOXES[self.activation]
        )
        coordinate = self.inference == "coordinate"
        options |= {"chunk_size": self.chunk_size, "n_jobs": self.n_jobs}
        return ContrastiveProblem(
            X, Y, weight, energy, coordinate=coordinate, **options
        )

    def _loss(self, n_outputs):
        """The loss, in the units in which the network is trained."""
        if isinstance(self.loss, str) and self.loss == "huber":
            return Huber(self._huber_width(n_outputs))
        return get_loss(self.loss)

    def _huber_width(self, n_outputs):
        return float(self.huber_width)

    def _hold_out(self, X, Y, weight, sizes, options, random_state):
        """Split off validation data, and return a function that scores on them."""
        if isinstance(X, LazyRows):
            raise ValueError(
                "early_stopping=True requires X in memory to set rows aside. Set "
                "early_stopping=False."
            )
        Y = Y[:]
        labels = self._stratify(Y)
        X, X_val, Y, Y_val, weight, weight_val = train_test_split(
            X,
            Y,
            weight,
            random_state=random_state,
            test_size=self.validation_fraction,
            stratify=labels,
        )
        if X_val.shape[0] < 2:
            raise ValueError(
                "The validation set is too small. Increase 'validation_fraction' or "
                "the size of your dataset."
            )

        def validate(theta):
            problem = self._problem(X_val, Y_val, weight_val, sizes, **options)
            outputs = np.concatenate([out for out, _ in self._solve(problem, theta)])
            if not np.isfinite(outputs).all():
                return -np.inf
            return self._score_outputs(outputs, Y_val, weight_val)

        return X, Y, weight, validate

    def _stratify(self, Y):
        return None

    def _theta(self):
        parts = [W.ravel() for W in self.coefs_] + list(self.intercepts_)
        return np.concatenate(parts).astype(np.float64)

    def _warm_theta(self, sizes):
        old = (self.coefs_[0].shape[0], *(W.shape[1] for W in self.coefs_))
        if old != tuple(sizes):
            raise ValueError(
                f"The layers {tuple(sizes)} differ from those of the previous fit, "
                f"{old}. Set warm_start=False, or call fit instead of partial_fit."
            )
        if not hasattr(self, "_iterate"):  # attributes that a callback was given
            return self._units.unfold(self._theta(), tuple(sizes))
        return self._iterate

    def _fitted(self, theta, sizes, dtype):
        coefs, intercepts = unpack(self._units.fold_into(theta, sizes), sizes)
        return {
            "coefs_": [W.astype(dtype) for W in coefs],
            "intercepts_": [b.astype(dtype) for b in intercepts],
            "n_layers_": len(sizes),
            "n_outputs_": sizes[-1],
        }

    def _validate_X(self, X):
        check_is_fitted(self)
        return validate_rows(self, X, reset=False)

    def _map_outputs(self, function, X, shape=(), dtype=None):
        """A function of the outputs, with values of a shape per row.

        For a Dask array, it is a Dask array, to be computed.
        """
        X = self._validate_X(X)
        if not isinstance(X, DaskRows):
            return function(self._outputs_of(X))
        args = (self._outputs_of, function)
        rows = X.in_blocks()
        return rows.values(_of_block, args=args, shape=shape, dtype=dtype or X.dtype)

    def _outputs_of(self, X):
        """Outputs for validated rows in the units in which the network is trained."""
        return np.concatenate([output for output, _ in self._infer(X)], dtype=X.dtype)

    def _infer(self, X):
        # The free phase does not depend on the targets.
        Y = np.broadcast_to(X.dtype.type(0), (X.shape[0], self.n_outputs_))
        problem = self._problem(X, Y, np.broadcast_to(1.0, X.shape[0]))
        return self._solve(problem, self._theta())

    def _solve(self, problem, theta):
        """Outputs and hidden activations of the free phase, chunk by chunk."""
        n_open = 0
        for output, z, unfinished in self._map_parts(free_outputs, problem, theta):
            n_open += unfinished
            yield output, z
        if n_open:
            warn_user(
                f"{type(self).__name__}: inference of {n_open} rows did not reach "
                f"inference_tol={self.inference_tol:g} within max_passes="
                f"{self.max_passes} passes. Increase max_passes."
            )


def _of_block(X, outputs_of, function):
    return function(outputs_of(X))
