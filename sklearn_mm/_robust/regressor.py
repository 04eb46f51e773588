"""Robust linear regression by half-quadratic minimisation."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    MultiOutputMixin,
    RegressorMixin,
    _fit_context,
)
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from sklearn_mm._estimator import (
    N_JOBS,
    CallbackSupportMixin,
    DocumentedMixin,
    FitMonitor,
    PersistentMixin,
    ScoreMixin,
    criterion_options,
    keep_state_on_error,
    warn_unless_converged,
)
from sklearn_mm._robust.inference import infer
from sklearn_mm._robust.inference_mixin import InferenceMixin
from sklearn_mm._robust.init import Plane, given_start, supported_effort
from sklearn_mm._robust.linear import LinearPoint, LinearResidual
from sklearn_mm._robust.normal_equations import forms_gram
from sklearn_mm._robust.problem import HalfQuadraticProblem
from sklearn_mm._robust.reweighting import ReweightedLeastSquares, Workspace
from sklearn_mm._robust.scaling import Scaling
from sklearn_mm._robust.start.decision import Start, robust_start
from sklearn_mm._robust.start.search import Verdict
from sklearn_mm._robust.verdict import warn_of_data, warn_of_open_directions
from sklearn_mm._rows.statistics import unit_weights
from sklearn_mm._rows.table import Rows
from sklearn_mm._rows.validation import check_size, validate_rows
from sklearn_mm._solver.history import History
from sklearn_mm._solver.inference import EffortBisection
from sklearn_mm._solver.loop import Result
from sklearn_mm._solver.roles import Array
from sklearn_mm._solver.stages import Stage, run_stages
from sklearn_mm.baselines import Alternating, Joint
from sklearn_mm.criteria import CRITERIA, Criterion, Fixed, get_criterion
from sklearn_mm.kernels import KERNELS, Kernel, get_kernel

# Effort of the first weights. All-ones weights (0, the paper's choice) would discard a
# good start; how good one given by the user is, is judged by its residuals. The one
# found by the search is a fit already and begins with nearly exact weights (1).
_UNTRUSTED, _CHOSEN, _EXACT = 0.0, 0.8, 1.0
_EXACT_WEIGHTS = Fixed(_EXACT)
# Exact weights, which converge faster, take over from the criterion when its
# certificate is this tight relative to J.
_HANDOVER = 1e-2
# The quadratic kernel has no width; any finite one gives the same fit.
_ANY_WIDTH = 1.0
# Targets are scaled to unit spread for the fit. A tolerance relative to kernels
# narrower than this would be below rounding error.
_RESOLUTION = 1e-8


class HalfQuadraticRobustRegressor(
    InferenceMixin,
    DocumentedMixin,
    PersistentMixin,
    CallbackSupportMixin,
    ScoreMixin,
    MultiOutputMixin,
    RegressorMixin,
    BaseEstimator,
):
    """Robust linear regression with certified truncated inference.

    Minimises ``sum_i sample_weight_i * tau**2 * psi(||r_i||**2 / tau**2)``, plus an
    optional penalty, over linear models, where psi is a robust kernel of width
    ``tau = tuning * scale`` and r_i are the residuals. Each row has a latent
    confidence weight. A criterion of the paper [1]_ decides how accurately the weights
    are inferred before the coefficients are updated.

    With the default parameters, nothing needs to be known about the noise: the noise
    scale, and a starting point that is robust to gross outliers and bad leverage
    points, are estimated from the data.

    Parameters
    ----------
    kernel : str or Kernel, default="smooth_truncated_quadratic"
        Robust kernel: "smooth_truncated_quadratic", "geman_mcclure", "welsch",
        "cauchy", "tukey", "huber", "quadratic", or an object like those in
        :mod:`sklearn_mm.kernels`.

    criterion : {"regemm", "sudemm", "fixed", "graduated"} or Criterion, \
            default="regemm"
        How accurately the confidence weights are inferred in each iteration.

        - "regemm": the upper bound falls by a fraction between `eta` and `eta_prime`
          of its distance to the objective. This tends to find good minima.
        - "sudemm": the gap is at most `rho` times the decrease achieved by the next
          weighted least-squares step.
        - "fixed": exact weights, i.e. iteratively reweighted least squares.
        - "graduated": kernels of decreasing width, a baseline of the paper.

        Objects of :mod:`sklearn_mm.criteria` can be passed as well. The other baseline
        of the paper, joint optimisation of coefficients and weights, is available as
        ``robust_least_squares(..., criterion="joint")``.

    scale : "auto", float or array-like of shape (n_outputs,), default="auto"
        Standard deviation of the noise of the inliers (per output), positive. If
        "auto", it is estimated from the data.

    tuning : float, default=None
        Width of the kernel in units of `scale`, positive. If None, the width gives 95%
        efficiency under Gaussian noise for the given number of outputs.

    alpha : float, default=0.0
        Strength of the penalty on the coefficients, non-negative. The penalty is added
        to the *sum* over rows, as in :class:`~sklearn.linear_model.Ridge`. It is
        n_samples times the alpha of :class:`~sklearn.linear_model.ElasticNet`.

    l1_ratio : float, default=0.0
        Proportion of the L1 penalty, in [0, 1]. The penalty is ``alpha * (l1_ratio *
        ||coef||_1 + (1 - l1_ratio) / 2 * ||coef||**2)``. If ``l1_ratio > 0``, the
        coefficients are sparse, and there may be more features than rows.

    fit_intercept : bool, default=True
        Whether to fit an intercept.

    cov_type : {"nonrobust", "HC3"}, default="nonrobust"
        Type of covariance of the coefficients: "nonrobust" if the noise has the same
        variance in all rows, "HC3" (a sandwich estimator, which takes more passes over
        the rows) if it differs between rows.

    init : {"auto", "ols"}, array-like or estimator, default="auto"
        Starting point. "auto" performs a robust search. "ols" is least squares with
        all confidence weights equal to one, the setting of the paper. An array holds
        the coefficients and has shape (n_features,) or (n_outputs, n_features), or one
        more column for the intercept. A scikit-learn regressor is cloned and fitted,
        and the linear model closest to its predictions is the starting point. If a
        given start is far from most rows, the fit begins with wide kernels, so that it
        does not depend much on it.

    eta : float, default=0.5
        Fraction used by "regemm", in (0, 1).

    eta_prime : float, default=0.75
        Upper end of the window used by "regemm", in (eta, 1).

    rho : float, default=0.5
        Fraction used by "sudemm", in (0, 1).

    max_iter : int, default=100
        Maximum number of iterations over all rows.

    tol : float, default=1e-6
        Tolerance for the stopping criterion. The fit stops when an iteration with exact
        weights changes the fitted values by at most `tol` kernel widths (root mean
        square).

    warm_start : bool, default=False
        Whether to start from the coefficients of the previous call to `fit`.

    chunk_size : int, default=None
        Number of rows that are processed, or read from a file, at a time. If None, the
        estimator chooses it. The result does not depend on it, except for rounding
        errors.

    n_jobs : int, default=None
        Number of workers for sums over rows. ``None`` means 1 unless in a
        :obj:`joblib.parallel_config` context, which also selects the backend (threads
        by default). The result does not depend on it.

    random_state : int, RandomState instance or None, default=None
        Controls the random subsets of the search for a starting point. Pass an int for
        reproducible output across multiple function calls.

    verbose : int, default=0
        If positive, print one line per iteration.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_outputs, n_features)
        Coefficients.

    intercept_ : float or ndarray of shape (n_outputs,)
        Intercept. Zero if ``fit_intercept=False``.

    scale_ : float or ndarray of shape (n_outputs,)
        Given or estimated standard deviation of the noise of the inliers. With several
        outputs, an array with one value per output. With a penalty, an estimate is at
        least three times the bias of the residuals due to the penalty.

    covariance_ : ndarray of shape (q, q) or (n_outputs, q, q)
        Covariance of the coefficients, followed by the intercept if one is fitted,
        separately for each output. Entries of coefficients that the data do not
        determine are nan. All entries are infinite if there are not more rows than
        coefficients. With ``alpha > 0``, it is the covariance of the penalised
        coefficients about their own mean. None with an L1 penalty, or with more than
        1,000 coefficients.

    robust_r2_ : float or ndarray of shape (n_outputs,)
        Proportion of the variance of the inliers (about their mean, with or without
        an intercept) explained by the model, as in
        :func:`~sklearn_mm.metrics.robust_r2_score`.

    weights_ : ndarray of shape (n_samples,)
        Confidence weight of each training row, in [0, 1].

    inlier_mask_ : ndarray of shape (n_samples,)
        Boolean mask of the rows classified as inliers. The residual of an inlier is at
        most three noise scales. With several outputs, the norm of the residuals is
        compared with the quantile of the same probability.

    n_iter_ : int
        Number of iterations over all rows.

    history_ : Bunch
        One entry per iteration of `upper_bound` and `lower_bound` (of the objective at
        the iterate), their `gap`, the `effort` (1/sigma: 1 for exact weights, 0 for
        all-ones weights), `previous_upper`, `decrease`, `change`, `work` (number of
        trials in the search for sigma), `satisfied`, `capped`, `accepted` and `time`.
        Use :class:`ConvergenceDisplay` to plot it.

    n_features_in_ : int
        Number of features seen during fit.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during fit. Defined only when X has feature names that
        are all strings.

    See Also
    --------
    RobustFitDisplay : Plot of residuals, weights and outliers.
    robust_least_squares : Nonlinear residuals and joint half-quadratic minimisation.
    sklearn.linear_model.HuberRegressor : Convex loss; not robust to leverage points.
    sklearn.linear_model.RANSACRegressor : Consensus of random subsets.
    sklearn.linear_model.TheilSenRegressor : Median of fits to subsets.

    Notes
    -----
    The lower bound in `history_` is the objective itself, which is cheap to evaluate
    here. In every iteration ``lower_bound <= upper_bound``. With "regemm", the
    sequence ``upper_bound`` never increases as long as that criterion is in use. Once
    its stopping rule holds with a relative tolerance of 1e-2 (for "regemm" and
    "sudemm", once the bounds agree to this extent), the remaining iterations use exact
    weights, regardless of the criterion.

    float32 data are summed in float64. Only `coef_` and `intercept_` are rounded to
    float32.

    With several outputs, each output has its own noise scale, and each row has one
    weight. The weight depends on the norm of the residuals in units of these scales, so
    that the units of the outputs do not matter. The objective in `history_` is then
    that of the residuals in units of the noise scales.

    The search for a starting point prefers the largest population. All rows are
    considered to be one population around the least-squares fit, unless a likelihood
    ratio indicates that some of them are a population of their own, with less noise
    around a plane of their own. If there is comparable evidence for two of them, the
    larger one is fitted. Frequent values of y (ratings, codes for missing
    values) or rows that are close together therefore do not dominate because of their
    density, and an exact fit requires a majority. The scale is never smaller than half
    the step to which y is rounded.

    Some questions cannot be answered from the data: which of two planes is the right
    one, if fewer than half of the rows follow either; which rows are outliers, if there
    are at most two rows per parameter, or if the penalty is so weak that a constant
    predicts better; whether rows that lie exactly on a plane are inliers. In these
    cases, a warning suggests a remedy. Outliers within about three noise scales, and
    codes that are also regular values of y, are treated as noise. With fewer than ten
    rows per parameter, a third or more of near outliers (four to eight noise scales),
    or of leverage points in one cluster, can be mistaken for noise without a warning.

    For large data sets, the scale and the starting point are determined from a
    stratified sample of 1,000 to 2,000 rows (or five per parameter, if that is more).
    All subsequent iterations use all rows.

    X may be larger than memory: a memory map, or any array with a shape, a dtype and
    slices of rows (HDF5, Zarr), is read chunk by chunk. About four numbers per row are
    held in memory. If the fit is interrupted (Ctrl-C) after the first iteration, the
    result of the last completed iteration is kept.

    X, y and `sample_weight` may be Dask arrays, or X a Dask data frame and y one of its
    columns. Computations take place on the workers that hold the blocks of X, and only
    sums are transferred. `weights_` and `inlier_mask_` are then Dask arrays, which are
    computed when they are read, and omitted when the model is pickled or copied.
    Persist X and y first if they fit in the memory of the workers. The partitions of a
    frame are converted in each pass over the rows; to convert them once, pass
    ``frame.to_dask_array(lengths=True).persist()``.

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
    >>> y[:40] += 20.0  # 40% gross outliers
    >>> model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    >>> model.coef_.round(1)
    array([ 1., -2.])
    >>> print(model.intercept_.round(1))
    3.0
    >>> bool(model.inlier_mask_[:40].any())  # all of them are found
    False
    """

    _parameter_constraints: dict[str, Any] = {
        "kernel": [
            StrOptions(set(KERNELS)),
            HasMethods(["loss", "weight", "penalty", "upper_bound", "tuning_constant"]),
        ],
        "criterion": criterion_options(*CRITERIA),
        "scale": [
            StrOptions({"auto"}),
            Interval(Real, 0, None, closed="neither"),
            "array-like",
        ],
        "tuning": [None, Interval(Real, 0, None, closed="neither")],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "fit_intercept": ["boolean"],
        "cov_type": [StrOptions({"nonrobust", "HC3"})],
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
        "n_jobs": N_JOBS,
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        kernel: Any = "smooth_truncated_quadratic",
        *,
        criterion: Any = "regemm",
        scale: Any = "auto",
        tuning: float | None = None,
        alpha: float = 0.0,
        l1_ratio: float = 0.0,
        fit_intercept: bool = True,
        cov_type: str = "nonrobust",
        init: Any = "auto",
        eta: float = 0.5,
        eta_prime: float = 0.75,
        rho: float = 0.5,
        max_iter: int = 100,
        tol: float = 1e-6,
        warm_start: bool = False,
        chunk_size: int | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.criterion = criterion
        self.scale = scale
        self.tuning = tuning
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.cov_type = cov_type
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
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training data. See the Notes for data larger than memory.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Target values.

        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row. A weight of k is equivalent to repeating the row k
            times, also for standard errors and intervals. If weights are not numbers
            of rows (e.g. inverse variances), scale them to a mean of one for these.

        Returns
        -------
        self : object
            Fitted estimator.
        """
        previous, penalties = self._previous_plane(), self._penalties()
        criterion = self._criterion()
        data = X, y
        X, y = validate_rows(
            self, X, y, y_numeric=True, multi_output=True, ensure_all_finite=False
        )
        weight, unit_weight = unit_weights(sample_weight, X)
        rows = Rows.of(X, self.chunk_size, self.n_jobs)
        given = y, weight
        y, weight = rows.keep(rows.place(y)), rows.keep(rows.place(weight))
        scaling = Scaling.of(
            rows, y, weight, unit_weight, self.fit_intercept, type(self).__name__
        )
        model = scaling.model(rows, y, *penalties)
        kernel, tuning = self._kernel(n_outputs := len(scaling.centre))
        scale = self._known_scale(scaling)
        point = given_start(self.init, previous, model, scaling, *given)
        start = robust_start(
            model,
            weight,
            kernel=kernel,
            tuning=tuning,
            scale=scale,
            point=point,
            random_state=check_random_state(self.random_state),
        )
        warn_of_data(start, X.shape, bool(self.alpha))
        if n_outputs > 1:  # each output in units of its own noise
            scaling = scaling.rescaled(start.scale)
            model = scaling.model(rows, y, *penalties)
            start = _in_noise_scales(model, start)
        unit = scaling.objective
        monitor = FitMonitor.of(self, *data, scaling.plane, unit)
        tau = tuning * float(start.scale[0])
        problem = HalfQuadraticProblem(model, rows.beside, kernel, tau, weight)
        history, memory = History(), Workspace(total_weight=scaling.total)
        result = self._minimize(
            problem, start.point, criterion, previous, history, monitor, memory
        )
        if monitor is not None:
            monitor.finish(result.point)
        warn_unless_converged(self, result.status)
        self.__dict__.update(scaling.plane(result.point.theta))
        self.scale_ = self._fitted_scale(start.scale * scaling.spread)
        options = (tuning, self.cov_type, memory.weights, scale is None)
        inference = infer(problem, result.point, scaling, *options)
        if inference.n_open and Verdict.NARROW not in start.verdict:
            warn_of_open_directions(inference.n_open)
        self._fitted_kernel = kernel, tuning
        self._fitted_criterion = self.criterion
        self._record_rows(problem, result.point, tuning, memory.weights)
        self._record_inference(inference)
        self.history_ = history.to_bunch(unit)
        self.n_iter_ = len(history)
        return self

    def predict(self, X: Any) -> Array:
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
        X = validate_rows(self, X, reset=False)
        return self._predict_rows(Rows.of(X, self.chunk_size, self.n_jobs))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _previous_plane(self) -> Plane | None:
        if self.warm_start and hasattr(self, "coef_"):
            return self.coef_, self.intercept_
        return None

    def _criterion(self) -> Criterion:
        if isinstance(self.criterion, Joint | Alternating):
            name = type(self.criterion).__name__
            where = {
                "Joint": "robust_least_squares, which also accepts linear residuals",
                "Alternating": "the contrastive Hebbian estimators",
            }
            raise ValueError(f"criterion={name}() is only supported by {where[name]}.")
        return get_criterion(
            self.criterion,
            eta=self.eta,
            eta_prime=self.eta_prime,
            rho=self.rho,
            effort=_EXACT,
        )

    def _kernel(self, n_outputs: int) -> tuple[Kernel, float]:
        """The kernel and its width in units of the noise scale."""
        kernel, tuning = get_kernel(self.kernel), self.tuning
        if tuning is None:
            tuning = kernel.tuning_constant(n_outputs)
            return kernel, tuning if np.isfinite(tuning) else _ANY_WIDTH
        check_size("tuning", tuning)
        return kernel, float(tuning)

    def _penalties(self) -> tuple[float, float]:
        """The L2 and the L1 penalty."""
        return (1.0 - self.l1_ratio) * self.alpha, self.l1_ratio * self.alpha

    def _known_scale(self, scaling: Scaling) -> Array | None:
        """The noise scale in the solver's units, or None if it has to be estimated."""
        if isinstance(self.scale, str):
            return None
        scale = np.asarray(self.scale, dtype=np.float64)
        if scale.shape not in ((), scaling.spread.shape):
            raise ValueError(
                f"scale must be a number or have the shape {scaling.spread.shape} of "
                f"the outputs, got an array of shape {scale.shape}."
            )
        for value in scale.ravel():
            check_size("scale", value)
        return scale / scaling.spread

    def _fitted_scale(self, scale: Array) -> Any:
        """`scale_`: a number, or an array if there are several outputs."""
        if not isinstance(self.scale, str):
            scale = np.broadcast_to(np.asarray(self.scale, float), len(scale)).copy()
        return scale if len(scale) > 1 else float(scale[0])

    def _first_effort(
        self, problem: HalfQuadraticProblem, point: LinearPoint, previous: Plane | None
    ) -> float:
        if previous is not None or not isinstance(self.init, str):
            return supported_effort(problem, point)
        if self.init != "auto":
            return _UNTRUSTED
        # If the L1 penalty is large, a bounded loss is smallest where all coefficients
        # are zero and all rows are rejected. Stay close to the chosen start.
        return _EXACT if self.alpha * self.l1_ratio > 0.0 else _CHOSEN

    def _minimize(
        self,
        problem: HalfQuadraticProblem,
        point: LinearPoint,
        criterion: Criterion,
        previous: Plane | None,
        history: History,
        monitor: FitMonitor | None,
        memory: Workspace,
    ) -> Result:
        """Run with the criterion first, then with exact weights until convergence."""
        step = ReweightedLeastSquares(False, _RESOLUTION, memory)
        tol = max(self.tol, _HANDOVER)
        effort = self._first_effort(problem, point, previous)
        ahead = problem
        if forms_gram(problem.model):  # otherwise, the step itself visits the rows
            # The first search nearly always accepts its first guess.
            foreseen = effort, EffortBisection(criterion, effort=effort).guess
            ahead = replace(problem, ahead=step.wanted, foreseen=foreseen)
        first = Stage(ahead, criterion, step, tol, effort, monitor)
        # The criterion is not needed again because its certificate is tight here.
        step = ReweightedLeastSquares(True, _RESOLUTION, memory)
        problem = replace(problem, ahead=step.wanted)  # no other effort will be tried
        last = Stage(problem, _EXACT_WEIGHTS, step, self.tol, _EXACT, monitor)
        return run_stages(
            first, last, point, history, self.max_iter, interruptible=True
        )


def _in_noise_scales(model: LinearResidual, start: Start) -> Start:
    """The same start with each output in units of its noise, as in the model."""
    theta = start.point.theta.reshape(model.shape) / start.scale
    point = model.at(theta.ravel(), start.point.residual)
    return replace(start, point=point, scale=np.ones_like(start.scale))
