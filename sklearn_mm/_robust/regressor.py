"""Robust linear regression by half-quadratic minimisation."""

from __future__ import annotations

import dataclasses
import warnings
from numbers import Integral, Real

import numpy as np
from scipy.special import ndtr
from scipy.stats import chi
from sklearn.base import (
    BaseEstimator,
    MultiOutputMixin,
    RegressorMixin,
    _fit_context,
    clone,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import (
    check_array,
    check_is_fitted,
    has_fit_parameter,
)

from sklearn_mm._estimator import (
    CRITERIA,
    CRITERION_METHODS,
    CallbackSupportMixin,
    DocumentedMixin,
    FitMonitor,
    PersistentMixin,
    keep_state_on_error,
    resolve_criterion,
    unit_weights,
    warn_unless_converged,
)
from sklearn_mm._robust.linear import LinearResidual, linear_chunks
from sklearn_mm._robust.problem import HalfQuadraticProblem
from sklearn_mm._robust.scaling import DataUnits, weighted_median
from sklearn_mm._robust.standardization import ColumnMoments, standardization
from sklearn_mm._robust.start.sample import least_squares
from sklearn_mm._robust.start.search import refined_scale, robust_start
from sklearn_mm._rows.sources import LazyRows
from sklearn_mm._rows.validation import assert_finite, validate_rows
from sklearn_mm._rows.workers import map_rows
from sklearn_mm._solver.history import History
from sklearn_mm._solver.inference import EffortBisection
from sklearn_mm._solver.loop import Status, minimize
from sklearn_mm._solver.roles import Memory
from sklearn_mm._solver.steps import SurrogateMinimizer
from sklearn_mm.criteria import Fixed
from sklearn_mm.kernels import KERNELS, get_kernel

# Effort of the first weights. From all-ones weights (0, the paper's choice) a good
# start would be thrown away: a user's start begins with kernels twice as wide, the
# chosen one, which is a fit already, with little more than exact weights (1).
_UNTRUSTED, _TRUSTED, _CHOSEN, _EXACT = 0.0, 0.5, 0.8, 1.0
# The criterion's run hands over to exact weights when its certificate is this tight
# relative to J; exact weights then converge at their own, faster rate.
_HANDOVER = 1e-2
# Candidates for a start need less: the best of them are improved anyway.
_CLIMBED = 1e-1
# The quadratic kernel has no width; any finite one gives the same fit.
_ANY_WIDTH = 1.0
# Targets have unit spread when they are fitted; a tolerance relative to kernels that
# are narrower than this would ask for less than rounding.
_RESOLUTION = 1e-8
# Kernels wider than this, in spreads of the targets, are quadratic to rounding, and
# those narrower than its inverse give every row that is not on the plane weight zero.
_WIDEST = 1e50
# Rows within this many noise scales are inliers (for one output).
_INLIER_SCALES = 3.0


class HalfQuadraticRobustRegressor(
    DocumentedMixin,
    PersistentMixin,
    CallbackSupportMixin,
    MultiOutputMixin,
    RegressorMixin,
    BaseEstimator,
):
    """Robust linear regression with certified truncated inference.

    Minimises ``sum_i sample_weight_i * tau**2 * psi(||r_i||**2 / tau**2) +
    alpha / 2 * ||coef||**2`` over linear models, where psi is a robust kernel of width
    ``tau = tuning * scale`` and r_i are the residuals. Each row has a latent
    confidence weight; how accurately the weights are inferred before the coefficients
    move is decided by a criterion of the paper [1]_.

    With the defaults no knowledge of the noise is needed: the noise scale and a start
    that survives gross outliers and bad leverage points are chosen from the data.

    Parameters
    ----------
    kernel : str or Kernel, default="smooth_truncated_quadratic"
        Robust kernel: "smooth_truncated_quadratic", "geman_mcclure", "welsch",
        "cauchy", "tukey", "huber", "quadratic", or an object like those in
        :mod:`sklearn_mm.kernels`.

    criterion : {"regemm", "sudemm", "fixed"} or Criterion, default="regemm"
        How accurately confidence weights are inferred in each iteration.

        - "regemm": just so accurately that the upper bound falls by a fraction between
          `eta` and `eta_prime` of its distance to the objective. Finds good minima.
        - "sudemm": so that the gap stays within `rho` times the decrease that the next
          weighted least-squares step achieves.
        - "fixed": exact weights, i.e. iteratively reweighted least squares.

        Objects of :mod:`sklearn_mm.criteria` allow experiments, among them the
        baseline of graduated optimisation. (The other baseline of the paper, joint
        optimisation of coefficients and weights, is
        ``robust_least_squares(..., criterion="joint")``.)

    scale : "auto" or float, default="auto"
        Standard deviation of the inliers' noise (per output), positive.

    tuning : float, default=None
        Width of the kernel in units of `scale`, positive. None gives 95 % efficiency
        under Gaussian noise, for the number of outputs at hand.

    alpha : float, default=0.0
        Weight of the L2 penalty on the coefficients, as in
        :class:`~sklearn.linear_model.Ridge`. Must be non-negative.

    fit_intercept : bool, default=True
        Whether to fit an intercept.

    init : {"auto", "ols"}, array-like or estimator, default="auto"
        Where to start. "auto" searches robustly; "ols" is least squares with all
        confidence weights one, the paper's setting. An array holds the coefficients,
        of shape (n_features,) or (n_outputs, n_features), or with one more column for
        the intercept. A scikit-learn regressor is cloned and fitted, and the linear
        model closest to its predictions is the start.

    eta : float, default=0.5
        Fraction for "regemm", in (0, 1).

    eta_prime : float, default=0.75
        Upper end of the window for "regemm", in (eta, 1).

    rho : float, default=0.5
        Fraction for "sudemm", in (0, 1).

    max_iter : int, default=100
        Maximum number of iterations on all rows.

    tol : float, default=1e-6
        The fit ends when an iteration with exact weights changes the fitted values by
        no more than `tol` kernel widths (root mean square).

    warm_start : bool, default=False
        Start from the coefficients of the previous call to `fit`.

    chunk_size : int, default=None
        Rows that are handed to a worker, or read from a file, and whose residuals and
        weights are worked on, at a time. None lets the estimator choose. The result
        does not depend on it but for rounding.

    n_jobs : int, default=None
        Number of workers for sums over rows; None means 1 unless in a
        :obj:`joblib.parallel_config` context, which also decides on their kind
        (threads, if it does not say). The result does not depend on it.

    random_state : int, RandomState instance or None, default=None
        Determines the random subsets of the start. Pass an int for reproducible
        results.

    verbose : int, default=0
        If positive, one line is printed for every iteration.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_outputs, n_features)
        Coefficients.

    intercept_ : float or ndarray of shape (n_outputs,)
        Intercept; zero if ``fit_intercept=False``.

    scale_ : float
        Standard deviation of the inliers' noise, given or estimated.

    weights_ : ndarray of shape (n_samples,)
        Confidence of each training row, in [0, 1].

    inlier_mask_ : ndarray of shape (n_samples,)
        Rows whose residual is at most three noise scales, or the quantile of the same
        probability for the norm of several outputs' residuals.

    n_iter_ : int
        Number of iterations on all rows.

    history_ : Bunch
        One entry per iteration of `upper_bound` and `lower_bound` (of the objective at
        the iterate), their `gap`, the `effort` (1/sigma: 1 for exact weights, 0 for
        all-ones), `previous_upper`, `decrease`, `change`, `work` (trials of the search
        for sigma), `satisfied`, `capped`, `accepted` and `time`.
        :class:`ConvergenceDisplay` draws it.

    n_features_in_ : int
        Number of features seen during fit.

    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of features seen during fit, where they are all strings.

    See Also
    --------
    RobustFitDisplay : Residuals, weights and outliers in a picture.
    robust_least_squares : Nonlinear residuals; also joint half-quadratic minimisation.
    sklearn.linear_model.HuberRegressor : Convex loss; not robust to leverage points.
    sklearn.linear_model.RANSACRegressor : Consensus of random subsets.
    sklearn.linear_model.TheilSenRegressor : Median of subset fits.

    Notes
    -----
    The lower bound in `history_` is the objective itself, which is cheap to evaluate
    here. In every iteration ``lower_bound <= upper_bound``, and under "regemm" the
    sequence ``upper_bound`` never increases as long as that criterion runs. Once its
    stopping rule holds to a relative 1e-2 (for "regemm" and "sudemm", once the bounds
    agree so far), the remaining iterations use exact weights, whatever the criterion.

    float32 data are summed in float64: of the fit, only `coef_` and `intercept_` are
    rounded to float32.

    With several outputs, a row has one weight, which depends on the norm of its
    residual vector: bring outputs to comparable units first.

    Of many rows, a stratified sample of 1,000 to 2,000 decides on scale and start, and
    all rows are used from there on.

    X may be larger than memory: a memory map, or any array with a shape, a dtype and
    slices of rows (HDF5, Zarr), is read chunk by chunk; the blocks of a Dask array are
    worked on where they are. About four numbers a row are held in memory. An interrupt
    (Ctrl-C) after the first iteration ends the fit with the last finished one.

    References
    ----------
    .. [1] C. Zach and H. Le, "Truncated Inference for Latent Variable Optimization
       Problems: Application to Robust Estimation and Learning", ECCV 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mm import HalfQuadraticRobustRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> y = X @ [1.0, -2.0] + 3.0 + 0.1 * rng.normal(size=100)
    >>> y[:40] += 20.0  # 40 % gross outliers
    >>> model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    >>> model.coef_.round(1)
    array([ 1., -2.])
    >>> print(model.intercept_.round(1))
    3.0
    >>> int(model.inlier_mask_.sum())
    60
    """

    _parameter_constraints: dict = {
        "kernel": [
            StrOptions(set(KERNELS)),
            HasMethods(["loss", "weight", "penalty", "upper_bound", "tuning_constant"]),
        ],
        "criterion": [StrOptions(set(CRITERIA)), HasMethods(list(CRITERION_METHODS))],
        "scale": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "tuning": [None, Interval(Real, 0, None, closed="neither")],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "init": [
            StrOptions({"auto", "ols"}),
            "array-like",
            HasMethods(["fit", "predict"]),
        ],
        "eta": [Interval(Real, 0, 1, closed="neither")],
        "eta_prime": [Interval(Real, 0, 1, closed="neither")],
        "rho": [Interval(Real, 0, 1, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "chunk_size": [None, Interval(Integral, 1, None, closed="left")],
        "n_jobs": [None, Integral],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        kernel="smooth_truncated_quadratic",
        *,
        criterion="regemm",
        scale="auto",
        tuning=None,
        alpha=0.0,
        fit_intercept=True,
        init="auto",
        eta=0.5,
        eta_prime=0.75,
        rho=0.5,
        max_iter=100,
        tol=1e-6,
        warm_start=False,
        chunk_size=None,
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.criterion = criterion
        self.scale = scale
        self.tuning = tuning
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.init = init
        self.eta = eta
        self.eta_prime = eta_prime
        self.rho = rho
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.chunk_size = chunk_size
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @keep_state_on_error
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None):
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training data; see Notes for data larger than memory.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.

        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; a weight of k is the same as k copies of the row.

        Returns
        -------
        self : object
            Fitted estimator.
        """
        warm = (self.coef_, self.intercept_) if self._can_warm_start() else None
        raw = X
        X, y = validate_rows(
            self, X, y, y_numeric=True, multi_output=True, ensure_all_finite=False
        )
        # The penalty is divided as well, so that nothing changes but units.
        weight, unit_weight = unit_weights(sample_weight, X)
        criterion = resolve_criterion(
            self.criterion,
            eta=self.eta,
            eta_prime=self.eta_prime,
            rho=self.rho,
            fixed_effort=_EXACT,
        )
        tasks = (self.chunk_size, self.n_jobs)
        moments = ColumnMoments.of(X, weight, self.fit_intercept, *tasks)
        if not moments.finite:  # what `validate_rows` left out to save a pass over X
            assert_finite(self, X)
        mean, spread = moments.standardization(X.dtype)
        units = DataUnits.of(X, y, weight, self.fit_intercept, spread, *tasks)
        Z = units.to_unit_columns(X)
        if Z is not X:
            mean, spread = standardization(Z, weight, self.fit_intercept, *tasks)
        model = LinearResidual(
            Z,
            units.to_unit(y),
            mean,
            spread,
            self.fit_intercept,
            units.penalty(float(self.alpha) / unit_weight),
            *tasks,
        )
        kernel = get_kernel(self.kernel)
        tuning = self._tuning(kernel, model.Y.shape[1])
        # One in the solver's objective; a finite number, lest zero times it be NaN.
        unit = min(unit_weight * units.square, float(np.finfo(float).max))
        monitor = FitMonitor(
            self,
            self.max_iter,
            raw,
            y,
            attributes=lambda theta: units.fitted(model, theta, X.dtype),
            unit=unit,
        )
        start, effort = self._start(
            X, y, warm, model, units, weight, unit_weight, criterion, tuning
        )
        tau, d = tuning * start.scale, model.Y.shape[1]
        problem = HalfQuadraticProblem(
            model,
            kernel,
            tau,
            weight,
            _RESOLUTION,
            d,
            chunks=model.state_chunks,
            n_jobs=self.n_jobs,
        )
        history = History()
        result = self._minimize(
            problem, start.theta, effort, criterion, history, monitor
        )
        monitor.finish(result.theta)
        warn_unless_converged(self, result.status)

        theta = result.theta
        radius = _inlier_scales(d)
        self.__dict__.update(units.fitted(model, theta, X.dtype))
        self.scale_ = start.scale * units.scale
        if not isinstance(self.scale, str):
            self.scale_ = float(self.scale)
        self.weights_ = problem.fill_rows(
            theta,
            lambda rows: kernel.weight(problem.z(theta, rows)),
            problem.spare_memory(),
        )
        self.inlier_mask_ = problem.fill_rows(
            theta,
            lambda rows: np.sqrt(problem.z(theta, rows)) * tuning <= radius,
            np.empty(problem.n_samples, dtype=bool),
        )
        self.history_ = _in_units(history.to_bunch(), unit)
        self.n_iter_ = len(history)
        return self

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
        check_is_fitted(self)
        X = validate_rows(self, X, reset=False)
        return self._predict(X, self.coef_.T, self.intercept_)

    def _predict(self, X, *plane):
        if not isinstance(X, LazyRows):
            return _predict(X, *plane)
        chunks = linear_chunks(X, self.chunk_size)
        parts = map_rows(_predict, X, chunks, self.n_jobs, lambda chunk: plane)
        return np.concatenate(list(parts))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _can_warm_start(self):
        return self.warm_start and hasattr(self, "coef_")

    def _tuning(self, kernel, n_outputs):
        tuning = self.tuning
        if tuning is None:
            tuning = kernel.tuning_constant(n_outputs)
        return _within(tuning) if np.isfinite(tuning) else _ANY_WIDTH

    def _weigh(self, residual):
        """Confidence weights of any rows' residuals, and the radius of inliers."""
        residual = residual.reshape(len(residual), -1)
        d = residual.shape[1]
        kernel = get_kernel(self.kernel)
        tau = self._tuning(kernel, d) * self.scale_
        z = np.square(residual / tau).sum(axis=1)
        return kernel.weight(z), _inlier_scales(d) * self.scale_

    def _start(self, X, y, warm, model, units, weight, unit_weight, criterion, tuning):
        """Start and scale (in unit targets), and the effort of the first weights."""
        kernel = get_kernel(self.kernel)
        with np.errstate(over="ignore", invalid="ignore"):
            theta, effort = self._user_start(
                X, y, warm, model, units, weight, unit_weight
            )
            if theta is not None and not (
                np.isfinite(model.squared_norms(theta)).all()
                and np.isfinite(theta @ theta)
            ):
                what = "init" if warm is None else "The model of warm_start=True"
                raise ValueError(
                    f"{what} is so far from the data that squares overflow."
                )
        scale = None
        if not isinstance(self.scale, str):
            scale = _within(self.scale / units.scale)

        def climb(problem, theta):
            return _run(
                problem, theta, _UNTRUSTED, criterion, History(), 50, _CLIMBED
            ).theta

        start = robust_start(
            model,
            weight,
            kernel=kernel,
            tuning=tuning,
            scale=scale,
            climb=climb,
            theta=theta,
            random_state=check_random_state(self.random_state),
        )
        if not start.determined and not self.alpha:
            warnings.warn(
                f"With n_samples={X.shape[0]} and n_features={X.shape[1]} the rows do "
                "not show which of them are outliers: the fit is least squares of "
                "minimum norm. Pass more rows, fewer features, or alpha > 0.",
                ConvergenceWarning,
                stacklevel=5,
            )
        if scale is None and start.sampled:
            refined = refined_scale(model, weight, start)
            start = dataclasses.replace(start, scale=refined)
        return start, effort

    def _user_start(self, X, y, warm, model, units, weight, unit_weight):
        """Theta of `init` or of a previous fit (None for "auto"), and first effort."""
        if warm is not None:
            coef, intercept = warm
            if (
                coef.shape[-1] != X.shape[1]
                or np.atleast_2d(coef).shape[0] != (model.Y.shape[1])
            ):
                raise ValueError(
                    f"warm_start=True needs data of the same shape as before: coef_ "
                    f"has shape {coef.shape}, X has {X.shape[1]} features and y "
                    f"{model.Y.shape[1]} outputs. Set warm_start=False."
                )
            return units.pack(model, np.atleast_2d(coef), intercept), _TRUSTED
        if isinstance(self.init, str):
            if self.init == "auto":
                return None, _CHOSEN
            return least_squares(model, weight), _UNTRUSTED
        if hasattr(self.init, "fit"):
            estimator = clone(self.init)
            routed = {}
            if has_fit_parameter(estimator, "sample_weight"):
                routed["sample_weight"] = weight * unit_weight
            data = X.array if isinstance(X, LazyRows) else X
            predicted = estimator.fit(data, y, **routed).predict(data)
            shadow = LinearResidual(
                model.X,
                units.to_unit(predicted),
                model.mean,
                model.scale,
                model.fit_intercept,
            )
            return least_squares(shadow, weight), _TRUSTED
        coef, intercept = self._check_init(model.Y.shape[1], X, y, weight)
        return units.pack(model, coef, intercept), _TRUSTED

    def _check_init(self, n_outputs, X, y, weight):
        init = check_array(
            self.init, dtype=np.float64, ensure_2d=False, input_name="init"
        )
        init = np.atleast_2d(init)
        p = X.shape[1]
        if init.shape[0] != n_outputs or init.shape[1] not in (p, p + 1):
            raise ValueError(
                f"init must have shape ({p},) or ({n_outputs}, {p}), or one more "
                f"column for the intercept, got {np.shape(self.init)}."
            )
        coef = init[:, :p]
        if init.shape[1] == p + 1:
            return coef, init[:, p]
        if not self.fit_intercept:
            return coef, np.zeros(n_outputs)
        offset = y.reshape(len(y), -1) - self._predict(X, coef.T, 0.0)
        return coef, weighted_median(offset, weight)

    def _minimize(self, problem, theta, effort, criterion, history, monitor):
        """The criterion's run, then exact weights to the end."""
        tol = max(self.tol, _HANDOVER)
        result = _run(
            problem, theta, effort, criterion, history, self.max_iter, tol, monitor
        )
        if result.status is not Status.CONVERGED:
            return result
        left = self.max_iter - len(history)
        if not left:
            return dataclasses.replace(result, status=Status.MAX_ITER)
        # No need for the criterion again: its certificate is tight here.
        return _run(
            dataclasses.replace(problem, over_relaxed=True),
            result.theta,
            _EXACT,
            Fixed(_EXACT),
            history,
            left,
            self.tol,
            monitor,
        )


def _run(problem, theta, effort, criterion, history, max_iter, tol, monitor=None):
    """One run of the core from the weights of an effort."""
    return minimize(
        problem,
        theta,
        inference=EffortBisection(criterion, effort=effort),
        step=SurrogateMinimizer(),
        memory=Memory.start(problem.upper_at(theta, effort)),
        history=history,
        max_iter=max_iter,
        tol=tol,
        monitor=monitor,
        interruptible=monitor is not None,  # the start is not a fit yet
    )


def _predict(X, coef, intercept):
    return safe_sparse_dot(X, coef, dense_output=True) + intercept


def _inlier_scales(d):
    """Norm of d residuals, in noise scales, that inliers do not exceed."""
    if d == 1:
        return _INLIER_SCALES
    return chi.ppf(2.0 * ndtr(_INLIER_SCALES) - 1.0, d)


def _within(width):
    """A width whose square, and that of its product with another, is finite."""
    return float(np.clip(width, 1.0 / _WIDEST, _WIDEST))


def _in_units(history, unit):
    """Bring the columns that are objectives to the user's units."""
    with np.errstate(over="ignore", under="ignore"):
        for name in ("upper_bound", "lower_bound", "gap", "previous_upper", "decrease"):
            history[name] = history[name] * unit
    return history
