"""Meta-estimator that makes regressors with sample weights robust."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    MetaEstimatorMixin,
    RegressorMixin,
    _fit_context,
    clone,
)
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.utils import check_random_state, get_tags, indexable
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from sklearn_mm._estimator import (
    N_JOBS,
    DocumentedMixin,
    PersistentMixin,
    criterion_options,
    keep_state_on_error,
    warn_user,
)
from sklearn_mm._robust.inference_mixin import inlier_scales
from sklearn_mm._robust.learner.best_round import best_round
from sklearn_mm._robust.learner.binning import binned_once
from sklearn_mm._robust.learner.checks import (
    checked_regressor,
    checked_targets,
    checked_weights,
    folds,
    seeded,
)
from sklearn_mm._robust.learner.new_rows import NewRowsMixin
from sklearn_mm._robust.learner.out_of_fold import OutOfFold, halves
from sklearn_mm._robust.learner.start import (
    Noise,
    Targets,
    estimate_noise,
    robust_start,
)
from sklearn_mm._robust.learner.weighting import fit_weighted
from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import KERNELS, get_kernel

# Kernels are wider by this factor than for 95% efficiency because residuals of learners
# have longer tails than the noise. This constant was chosen on other functions than
# those of examples/benchmarks/robust_anything.py.
_WIDER = 1.2
# The quadratic kernel has no width; any finite one gives the same fit.
_ANY_WIDTH = 1.0


class RobustRegressor(
    NewRowsMixin,
    DocumentedMixin,
    PersistentMixin,
    MetaEstimatorMixin,
    RegressorMixin,
    BaseEstimator,
):
    """Meta-estimator that makes any regressor with sample weights robust.

    The regressor is fitted repeatedly with confidence weights, which are inferred from
    its *out-of-fold* residuals: a flexible learner follows the outliers that it is
    fitted to, but not those that it has not seen. The weights minimise an upper bound
    of a robust loss of these residuals, as accurately as a criterion of the paper [1]_
    requires. The round with the smallest robust loss is kept. The plain fit is kept
    unless another one is clearly better.

    Parameters
    ----------
    estimator : estimator, default=None
        Regressor whose `fit` accepts `sample_weight`, or a pipeline that ends in one.
        If None, :class:`~sklearn.ensemble.HistGradientBoostingRegressor` is used.

    kernel : str or Kernel, default="smooth_truncated_quadratic"
        Robust kernel: "smooth_truncated_quadratic", "geman_mcclure", "welsch",
        "cauchy", "tukey", "huber", "quadratic", or an object like those in
        :mod:`sklearn_mm.kernels`.

    criterion : {"regemm", "sudemm", "fixed"} or Criterion, default="regemm"
        How accurately the confidence weights are inferred in each round; see
        :class:`HalfQuadraticRobustRegressor`. "sudemm" compares the gap with the
        improvement of the last refit, since that of the next one is not known.

    scale : "auto" or float, default="auto"
        Standard deviation of the out-of-fold residuals of the inliers (per output),
        positive. If "auto", it is estimated from the data. If the regressor can predict
        the size of its own residuals, rows that are hard to predict have a larger
        scale.

    tuning : float, default=None
        Width of the kernel in units of the scale, positive. If None, it is 1.2 times
        the width that gives 95% efficiency under Gaussian noise.

    cv : int, cross-validation generator or iterable, default=5
        Cross-validation splits for the out-of-fold residuals. An int is the number of
        shuffled folds. The test sets must form a partition of the rows.

    max_iter : int, default=4
        Maximum number of rounds after the start. Each round makes one fit per fold.

    tol : float, default=0.01
        Tolerance for the stopping criterion. Iteration stops when the mean change of
        the weights is below `tol`, or when the stopping rule of the criterion holds
        with this tolerance.

    n_jobs : int, default=None
        Number of folds to fit in parallel. ``None`` means 1 unless in a
        :obj:`joblib.parallel_config` context.

    random_state : int, RandomState instance or None, default=None
        Controls the shuffling of the folds and replaces every `random_state` of the
        estimator that is None, so that all rounds use the same random numbers. Pass an
        int for reproducible output across multiple function calls.

    verbose : int, default=0
        If positive, print one line per round.

    Attributes
    ----------
    estimator_ : estimator
        The regressor, fitted to all rows with `weights_`.

    weights_ : ndarray of shape (n_samples,)
        Confidence weight of each training row, in [0, 1]. All ones if the plain fit was
        kept.

    inlier_mask_ : ndarray of shape (n_samples,)
        Boolean mask of the rows classified as inliers. The out-of-fold residual of an
        inlier in the best round is at most three scales. With several outputs, the norm
        of the residuals is compared with the quantile of the same probability.

    scale_ : float or ndarray of shape (n_outputs,)
        Given or estimated scale of the out-of-fold residuals of the inliers, for rows
        that are not hard to predict.

    history_ : Bunch
        One entry per round of `upper_bound` and `lower_bound` (of the robust loss of
        the out-of-fold residuals from which the weights of the round were inferred, in
        units of the squared scale), their `gap`, the `effort` (1/sigma: 1 for exact
        weights, 0 for all-ones weights), `loss` (the robust loss after the refit),
        `accepted` (whether the refit has decreased the upper bound), `previous_upper`,
        `change`, `work`, `satisfied`, `capped` and `time`. Also `plain_loss`, the
        robust loss of the plain fit. Use :class:`ConvergenceDisplay` to plot it.

    best_iter_ : int
        The round that was kept, counted from one. Zero for the plain fit.

    n_iter_ : int
        Number of rounds after the start.

    n_features_in_ : int
        Number of features seen during fit. Defined only if the underlying estimator
        exposes it.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during fit. Defined only if the underlying estimator
        exposes them.

    See Also
    --------
    HalfQuadraticRobustRegressor : Linear models; much faster and more robust for these.
    robust_least_squares : Nonlinear models given by a residual function.

    Notes
    -----
    The regressor is fitted at most ``n_folds * (max_iter + 1) + 15`` times, which is 40
    with the default parameters, mostly to subsets of the rows. For
    :class:`~sklearn.ensemble.HistGradientBoostingRegressor` and an array X, the
    features are binned only once for all fits except the last.

    *Start.* Weights are inferred with a narrow kernel in four rounds of two folds. In
    the first two rounds, residuals are measured from the mode of the residuals of rows
    with similar predictions. This handles one-sided outliers, which shift the whole
    fit.

    *Scale.* The scale is that of the normal core of the residuals of the start, on a
    flat background. The regressor is also fitted to the logarithm of their absolute
    values, out of fold, in up to three passes that omit outliers. To the extent that it
    predicts them, the scale is local.

    *Limitations.* The fit estimates the centre of the majority, given the features.
    This is not the mean if the noise itself is skewed, or if most but not all of the
    targets are zero. Rows are lost if half or more of their local neighbourhood are
    outliers. Trees with small leaves follow outliers more easily: with five rows per
    leaf and 40% of outliers on one side, gradient boosting often follows some of them.
    A regressor that cannot represent the data at all leaves residuals that look like
    outliers.

    A sample weight of k is not equivalent to repeating a row k times, since the copies
    may be assigned to different folds. If outliers are repeated, flexible regressors
    predict them from their copies and do not detect them: remove duplicates, or keep
    them in one fold by passing ``cv=list(GroupKFold().split(X, y, groups))``.

    References
    ----------
    .. [1] C. Zach and H. Le, "Truncated Inference for Latent Variable Optimization
       Problems: Application to Robust Estimation and Learning", ECCV 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.ensemble import HistGradientBoostingRegressor
    >>> from sklearn_mm import RobustRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, size=(500, 1))
    >>> truth = np.sin(2 * X[:, 0])
    >>> y = truth + 0.1 * rng.normal(size=500)
    >>> y[:150] += rng.uniform(3, 10, size=150)  # 30% outliers on one side
    >>> plain = HistGradientBoostingRegressor(max_iter=50, random_state=0)
    >>> robust = RobustRegressor(plain, random_state=0).fit(X, y)
    >>> bool(np.abs(robust.predict(X) - truth).mean() < 0.06)
    True
    >>> bool(np.abs(plain.fit(X, y).predict(X) - truth).mean() > 1.5)
    True
    >>> int((~robust.inlier_mask_[:150]).sum())  # outliers found
    150
    """

    _parameter_constraints: dict[str, Any] = {
        "estimator": [None, HasMethods(["fit"])],
        "kernel": [
            StrOptions(set(KERNELS)),
            HasMethods(["loss", "weight", "penalty", "upper_bound", "tuning_constant"]),
        ],
        "criterion": criterion_options("regemm", "sudemm", "fixed"),
        "scale": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "tuning": [None, Interval(Real, 0, None, closed="neither")],
        "cv": ["cv_object"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "n_jobs": N_JOBS,
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        kernel: Any = "smooth_truncated_quadratic",
        criterion: Any = "regemm",
        scale: Any = "auto",
        tuning: float | None = None,
        cv: Any = 5,
        max_iter: int = 4,
        tol: float = 0.01,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.kernel = kernel
        self.criterion = criterion
        self.scale = scale
        self.tuning = tuning
        self.cv = cv
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @keep_state_on_error
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the regressor robustly.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training data, anything that the estimator takes.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.

        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row, multiplied by its confidence.

        Returns
        -------
        self : object
            Fitted estimator.
        """
        if y is None:
            raise ValueError(
                "RobustRegressor requires y to be passed, but the target y is None."
            )
        X, y = indexable(X, y)
        y = checked_targets(y, self._learner())
        weight = checked_weights(sample_weight, X, len(y))
        targets = Targets(y, weight, weighted=sample_weight is not None)
        random_state = check_random_state(self.random_state)
        template = seeded(checked_regressor(self._learner()), random_state)
        splits = folds(self.cv, X, y, random_state)
        learner = OutOfFold(template, binned_once(template, X), splits, self.n_jobs)
        # Make the plain fit first, so that errors of the estimator are raised here.
        plain = learner.predict(y, targets.times(None))
        noise, start = self._start(learner, targets, plain)
        kernel, width = self._kernel(len(noise.scale))
        kept, history = best_round(
            learner,
            targets,
            noise,
            plain,
            start,
            kernel=kernel,
            width=width,
            criterion=self.criterion,
            max_iter=self.max_iter,
            tol=self.tol,
            verbose=self.verbose,
        )
        fitted = fit_weighted(clone(template), X, y, targets.times(kept.confidence))

        self.estimator_ = fitted
        self.weights_ = kept.confidence
        if kept.confidence is None:
            self.weights_ = np.ones(len(y))
        self.scale_ = float(noise.scale[0]) if y.ndim == 1 else noise.scale
        self._fitted_kernel = kernel, width
        norm = np.sqrt(noise.squares(targets.residual(kept.prediction)))
        self.inlier_mask_ = norm <= inlier_scales(len(noise.scale))
        self.history_ = history
        self.best_iter_ = kept.number
        self.n_iter_ = len(history.get("loss", ()))
        if not isinstance(self.scale, str) and np.mean(self.inlier_mask_) < 0.5:
            warn_user(
                f"Only {100 * np.mean(self.inlier_mask_):.0f}% of the rows are close "
                "to their predictions in units of the given scale. It may be too "
                "small, or in other units than y. Pass scale='auto' to estimate it."
            )
        elif self.n_iter_ == 0:
            warn_user(
                f"All residuals are so large compared with tuning={width:g} that their "
                "weights are zero. The plain fit is kept. Increase tuning, or pass "
                "tuning=None."
            )
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(fitted, name):
                setattr(self, name, getattr(fitted, name))
        return self

    def predict(self, X: Any) -> Array:
        """Predict targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data, anything that the estimator takes.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predicted targets.
        """
        check_is_fitted(self)
        return self.estimator_.predict(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._learner())
        tags.input_tags = inner.input_tags
        tags.target_tags.multi_output = inner.target_tags.multi_output
        tags.target_tags.single_output = inner.target_tags.single_output
        return tags

    def _learner(self) -> Any:
        if self.estimator is None:
            return HistGradientBoostingRegressor()
        return self.estimator

    def _start(
        self, learner: OutOfFold, targets: Targets, plain: Array
    ) -> tuple[Noise, Array]:
        """Scale of the noise, and out-of-fold predictions of a robust start."""
        coarse = replace(learner, splits=halves(learner.splits))
        start = robust_start(coarse, targets, plain)
        if isinstance(self.scale, str):
            return estimate_noise(coarse, targets, start), start
        n_outputs = targets.residual(plain).shape[1]
        scale = np.full(n_outputs, float(self.scale))
        return Noise(scale, np.ones(len(plain))), start

    def _kernel(self, n_outputs: int) -> tuple[Any, float]:
        """The kernel and its width in units of the scale."""
        kernel = get_kernel(self.kernel)
        tuning = self.tuning
        if tuning is None:
            tuning = _WIDER * kernel.tuning_constant(n_outputs)
        return kernel, tuning if np.isfinite(tuning) else _ANY_WIDTH
