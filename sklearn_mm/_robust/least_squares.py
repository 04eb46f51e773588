"""Robust nonlinear least squares in the manner of `scipy.optimize.least_squares`."""

from __future__ import annotations

import inspect
from numbers import Integral, Real

import numpy as np
from scipy.optimize import OptimizeResult
from scipy.sparse.linalg import LinearOperator
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    StrOptions,
    validate_params,
)

from sklearn_mm._estimator import criterion_options, warn_user
from sklearn_mm._robust import arguments
from sklearn_mm._robust.auto_width import find_width
from sklearn_mm._robust.block_structure import BlockStructure
from sklearn_mm._robust.callable import CallableResidual, WithArguments
from sklearn_mm._robust.lifted import LiftedProblem
from sklearn_mm._robust.problem import HalfQuadraticProblem
from sklearn_mm._robust.result import Fit, RobustLeastSquaresResult
from sklearn_mm._rows.table import Rows
from sklearn_mm._rows.validation import check_size
from sklearn_mm._solver.history import History
from sklearn_mm._solver.levenberg_marquardt import LevenbergMarquardtStep
from sklearn_mm._solver.loop import Status
from sklearn_mm._solver.roles import Monitor
from sklearn_mm._solver.stages import Stage, run_stages
from sklearn_mm.baselines import Alternating, Joint
from sklearn_mm.criteria import (
    CRITERIA,
    Fixed,
    RelaxedGeneralized,
    get_criterion,
)
from sklearn_mm.kernels import KERNELS, get_kernel

# The criterion's run hands over to exact weights when its own stopping rule holds to
# this relative accuracy: from there on the bounds are tight.
_HANDOVER = 1e-3
# The same for joint minimisation, which stops by the change in a single step.
_JOINT_HANDOVER = 1e-6
_EXACT, _ALL_ONES = 1.0, 0.0
# A damped step is not a minimisation: a level of the graduated scheme takes more rounds
# than for linear models. (8 ended lower than 4 on all six bundle adjustments tried:
# the table in examples/bundle_adjustment.py.)
_ROUNDS_PER_LEVEL = 8
# Evaluations and tolerances of each fit in the search for a width.
_SEARCH_NFEV, _SEARCH_TOLERANCES = 60, (1e-4, 1e-8, None)
# Failures in a row after which a run ends: the damping has grown by 2**465.
_MAX_REJECTED = 30

# Costs that differ by less than this share are the same.
_SAME_COST = 1e-12
# A point that exact weights have not polished yet is given up for an earlier one if its
# cost is higher by more than this share.
_CLEARLY_WORSE = 1e-2

_MESSAGES = {
    -4: "Interrupted by the user: the best point of the steps made so far is kept.",
    -3: "No step decreased the upper bound any more.",
    -2: "The callback asked to stop.",
    0: "The maximum number of function evaluations, max_nfev, was reached.",
    1: "`gtol` termination condition is satisfied.",
    2: "`ftol` termination condition is satisfied.",
    3: "`xtol` termination condition is satisfied.",
}
_INTERRUPTED, _STALLED, _CALLBACK, _MAX_NFEV, _GTOL, _FTOL, _XTOL = _MESSAGES
_EARLIER = (
    " The steps had led to a higher robust cost than that of {}, which is the better "
    "point."
)

_TOLERANCE = [None, Interval(Real, 0, None, closed="left")]


@validate_params(
    {
        "fun": [callable],
        "jac": [callable, StrOptions({"2-point", "3-point", "cs"})],
        "kernel": [
            StrOptions(set(KERNELS)),
            HasMethods(["loss", "weight", "penalty", "upper_bound"]),
        ],
        "tau": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"auto"}),
            "array-like",
        ],
        "criterion": criterion_options(*CRITERIA, "joint"),
        "residual_dim": [Interval(Integral, 1, None, closed="left")],
        "structure": [None, BlockStructure],
        "retract": [None, callable],
        "args": [tuple, list],
        "kwargs": [None, dict],
        "eta": [Interval(Real, 0, 1, closed="neither")],
        "eta_prime": [None, Interval(Real, 0, 1, closed="right")],
        "rho": [Interval(Real, 0, 1, closed="neither")],
        "ftol": _TOLERANCE,
        "xtol": _TOLERANCE,
        "gtol": _TOLERANCE,
        "max_nfev": [None, Interval(Integral, 1, None, closed="left")],
        "callback": [None, callable],
        "workers": [None, Integral, callable],
        "verbose": ["verbose"],
    },
    prefer_skip_nested_validation=True,
)
def robust_least_squares(
    fun,
    x0,
    jac="2-point",
    bounds=(-np.inf, np.inf),
    *,
    kernel="smooth_truncated_quadratic",
    tau=1.0,
    criterion="regemm",
    residual_dim=1,
    known_inliers=None,
    fixed=None,
    structure=None,
    retract=None,
    args=(),
    kwargs=None,
    eta=0.15,
    eta_prime=None,
    rho=0.5,
    ftol=1e-8,
    xtol=1e-8,
    gtol=1e-8,
    x_scale=None,
    diff_step=None,
    jac_sparsity=None,
    max_nfev=None,
    callback=None,
    workers=None,
    verbose=0,
    **scipy_options,
):
    """Solve a nonlinear least-squares problem with a robust kernel.

    Finds a local minimum of ``sum_i tau**2 * psi(|r_i(x)|**2 / tau**2)``, where the
    r_i are residuals, or vectors of `residual_dim` of them, and psi is a robust kernel.
    The weights of its half-quadratic form are inferred as accurately as the criterion
    asks, and x is moved by Levenberg-Marquardt steps on the upper bound they define.

    Calls of :func:`scipy.optimize.least_squares` work unchanged, but for ``loss`` and
    ``f_scale``, which are `kernel` and `tau` here, and for the choice of a ``method``.
    The x that is returned never has a higher robust cost than x0.

    Parameters
    ----------
    fun : callable
        Function ``fun(x, *args, **kwargs)`` that returns the residuals, a
        one-dimensional array. Where a residual is not finite, the step that led there
        is rejected; at x0 that is an error.

    x0 : array-like of shape (n,)
        Start. It must lie within the bounds.

    jac : callable or {"2-point", "3-point", "cs"}, default="2-point"
        Jacobian of the residuals, a function of the same arguments that returns a dense
        or sparse matrix or a `LinearOperator` of shape (m, n); with a `structure`, two
        arrays of shapes (m / residual_dim, residual_dim, first_dim or second_dim). Or
        the scheme of finite differences: one-sided, central, or by a complex step, for
        which `fun` must accept complex x.

    bounds : 2-tuple of array-like or `Bounds`, optional
        Lower and upper bounds of the parameters, numbers or arrays of shape (n,);
        none by default. `fun`
        is never evaluated outside.

    kernel : str or Kernel, default="smooth_truncated_quadratic"
        Robust kernel, see :mod:`sklearn_mm.kernels`. "quadratic" makes this a solver
        for ordinary least squares.

    tau : float, "auto" or array-like of shape (m / residual_dim,), default=1.0
        Width of the kernel, in units of the residuals, or one width for each residual
        vector; `f_scale` in scipy. "auto" estimates the size of the noise from the
        residuals: see the notes.

    criterion : {"regemm", "sudemm", "fixed", "graduated", "joint"} or Criterion, \
            default="regemm"
        How accurately weights are inferred before x is moved. "regemm" starts with all
        weights equal and tightens them step by step, which finds better minima than
        exact weights from the start ("fixed", iteratively reweighted least squares).
        "graduated" narrows the kernel by a fixed schedule, and "joint" moves x and
        weights together; see :mod:`sklearn_mm.criteria` for all of them.

    residual_dim : int, default=1
        Number of consecutive residuals that form a vector with one weight; 2 for image
        points.

    known_inliers : array-like of shape (m / residual_dim,), default=None
        Mask or indices of residual vectors that are no outliers: their weights are one.

    fixed : array-like of shape (n,), default=None
        Mask or indices of parameters that keep their values. With `retract`, of the
        entries of delta. Their columns of the Jacobian are zero.

    structure : BlockStructure, default=None
        Two groups of parameters such that each residual vector depends on one block of
        each. The second group is then eliminated from the linear systems.

    retract : callable, default=None
        Function ``retract(x, delta)`` that moves x by delta, for parameters on a
        manifold such as rotations; addition by default. `jac` is the Jacobian in delta,
        and delta has as many entries as `jac` has columns (as x if that is found by
        finite differences or if there is a structure).

    args : tuple or list, default=()
        Further positional arguments of `fun` and `jac`.

    kwargs : dict, default=None
        Further keyword arguments of `fun` and `jac`.

    eta, eta_prime : float, default=0.15 and None
        Constants of "regemm", see :class:`sklearn_mm.criteria.RelaxedGeneralized`.
        None stands for the smaller of 2 eta and (1 + eta) / 2; so ``eta=0.5`` gives
        those of the paper, 0.5 and 0.75.

    rho : float, default=0.5
        Constant of "sudemm", see :class:`sklearn_mm.criteria.SufficientDescent`.

    ftol : float or None, default=1e-8
        Tolerance for the relative change of the objective. Under "regemm" it also
        stands for the relative certified gap.

    xtol : float or None, default=1e-8
        Tolerance for the norm of a step, relative to that of x.

    gtol : float or None, default=1e-8
        Tolerance for the largest entry of the gradient of the robust objective.

    x_scale : float, array-like of shape (n,) or "jac", default=None
        Characteristic size of each parameter, to which the damping of the steps is
        relative. By default, as with "jac", it is the inverse norm of the parameter's
        column of the weighted Jacobian, so that the steps do not depend on units; if
        the Jacobian is a `LinearOperator`, it is one.

    diff_step : float or array-like of shape (n,), default=None
        Relative steps of finite differences: the steps are ``x * diff_step``.

    jac_sparsity : array-like or sparse matrix of shape (m, n), default=None
        Non-zero where the Jacobian may be. Finite differences then move parameters that
        have no residual in common together, and the Jacobian is sparse.

    max_nfev : int or None, default=None
        Maximum number of evaluations of `fun`, those of finite differences not counted;
        100 * n by default. An iteration makes one.

    callback : callable, default=None
        Called after every iteration as ``callback(intermediate_result=...)`` if that is
        the name of its parameter, with an `OptimizeResult` that holds ``x``, ``nit``,
        ``nfev``, ``cost`` and ``upper_bound``, the bound on which the step was made,
        and as ``callback(x)`` otherwise. It ends the run by raising `StopIteration`.

    workers : int or callable, default=None
        Evaluates finite differences in parallel: the number of processes, or a function
        like `map`, such as that of a pool, to be called as ``workers(fun, points)``.

    verbose : {0, 1, 2}, default=0
        1 prints a line at the end, 2 also one per iteration.

    **scipy_options : dict
        Not accepted. Other arguments of scipy's function raise a TypeError that says
        what to use instead.

    Returns
    -------
    result : OptimizeResult
        With the fields of :func:`scipy.optimize.least_squares`: ``x``, ``cost`` (the
        robust objective), ``fun`` (residuals), ``jac``, ``grad`` (of the robust
        objective), ``optimality`` (the largest entry of the gradient that bounds do not
        hold), ``active_mask`` (-1 and 1 where x is on a lower or upper bound),
        ``nfev``, ``njev``, ``status``, ``message`` and ``success``. Further ``nit``,
        ``weights`` (exact confidence weights at x, one per residual vector), ``tau``
        (the width that was used), ``fixed`` (mask of fixed parameters),
        ``upper_bound`` (the upper bound on which the last step was made) and
        ``history`` (a `Bunch` of one array per quantity and one entry per iteration,
        which :class:`ConvergenceDisplay` draws). ``status`` is 1, 2 or 3 if gtol, ftol
        or xtol was met, 0 if max_nfev was reached, -2 if the callback stopped the run,
        -3 if no step could be accepted any more, and -4 if the run was interrupted
        (Ctrl-C), which keeps the best point so far.

        ``result.covariance()`` estimates the covariance of the parameters, from the
        residuals that have weight. With a structure it returns two arrays: the
        covariance of the first group, and that of each block of the second.

    See Also
    --------
    HalfQuadraticRobustRegressor : Linear models, with scale and start chosen.
    BlockStructure : Two groups of parameters.

    Notes
    -----
    ``history.lower_bound`` is the robust objective at the beginning of each iteration.
    Under "regemm", ``history.upper_bound`` at accepted steps never increases as long as
    that criterion runs. Once its certificate is tight, the remaining iterations use
    exact weights. A rejected step changes nothing but the damping.

    Looser weights at the beginning may lead away from an x0 that was better than where
    they arrive. The point of the lowest robust cost is remembered; if it is lower than
    that of the end, exact weights go on from it, and the message says so.

    With ``tau="auto"`` the width is the kernel's tuning constant (95 % efficiency for
    normal noise) times the scale of a normal core among the residuals, which
    ``result.scale`` tells. About a dozen rough fits, of 60 evaluations at most, find
    it: from x0 with exact weights, in case x0 is good, and with the criterion and ever
    narrower kernels, in case it is not. The likeliest, with a core of at least 30 % of
    the residual vectors, is refined. `max_nfev` is for the last fit alone.

    Levenberg-Marquardt steps do not minimise the upper bound, so that the constants of
    "regemm" are smaller here than in the paper, which tightens weights more slowly and
    ends in better minima after more iterations. ``eta=0.5`` takes about a third of the
    iterations. "graduated" is ``criteria.Graduated(n_iter_per_level=8)`` here.

    With a structure, memory grows with the number of residual vectors and of pairs of
    them that share a block of the second group. Bundle adjustment with 6 + 3 parameters
    and 1,135,000 observations took 1.5 GB in all, the example's own arrays included
    (``examples/benchmarks/bundle_speed.py --large``). Reduced systems of up to 4000
    unknowns are dense.

    References
    ----------
    .. [1] C. Zach and H. Le, "Truncated Inference for Latent Variable Optimization
       Problems: Application to Robust Estimation and Learning", ECCV 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mm import robust_least_squares
    >>> t = np.linspace(0, 5, 40)
    >>> y = 3.0 * np.exp(-0.7 * t)
    >>> y[::4] += 2.0  # outliers
    >>> result = robust_least_squares(
    ...     lambda x: x[0] * np.exp(-x[1] * t) - y, [1.0, 0.1], tau=0.2
    ... )
    >>> result.x.round(3)
    array([3. , 0.7])
    """
    arguments.refuse_options("robust_least_squares", scipy_options)
    x0 = arguments.checked_start(x0)
    box = arguments.checked_bounds(bounds, x0)
    criterion = _named_criterion(criterion, eta, eta_prime, rho)
    kwargs = {} if kwargs is None else kwargs
    _check_together(jac, box, structure, retract, jac_sparsity, x0)
    model = CallableResidual(
        WithArguments(fun, tuple(args), kwargs),
        WithArguments(jac, tuple(args), kwargs) if callable(jac) else jac,
        residual_dim,
        structure,
        retract,
        box=box,
        fixed=_checked_fixed(fixed, x0, jac, retract),
        unit=arguments.checked_units(x_scale, x0.size),
        relative_step=arguments.checked_steps(diff_step, x0.size),
        workers=arguments.checked_workers(workers),
    )
    point = model.at(x0)
    _check_residuals(point, structure)
    if not callable(jac):
        shape = (point.residual.size, x0.size)
        model.sparsity = arguments.checked_sparsity(jac_sparsity, shape)
    if isinstance(x_scale, str) and isinstance(point.jacobian, LinearOperator):
        raise ValueError(
            "x_scale='jac' needs the columns of the Jacobian, and jac returned a "
            "LinearOperator: give the sizes of the parameters."
        )
    kernel = _checked_kernel(kernel, known_inliers, len(point.residual), criterion)
    max_nfev = 100 * x0.size if max_nfev is None else max_nfev
    options = ((ftol, xtol, gtol), callback, verbose)
    if isinstance(tau, str):
        result = _with_found_width(model, point, kernel, criterion, max_nfev, options)
    else:
        tau = arguments.checked_widths(tau, len(point.residual))
        run = _Run(_make_problem(model, kernel, tau, point), max_nfev, *options)
        result = _result(run, *run.minimize(point, criterion))
    _warn(result, ftol)
    if verbose:
        print(
            f"{result.message} Iterations {result.nit}, function evaluations "
            f"{result.nfev}, cost {result.cost:.4e}, optimality "
            f"{result.optimality:.2e}."
        )
    return result


def _check_together(jac, box, structure, retract, jac_sparsity, x0):
    """Arguments that exclude each other."""
    if retract is not None and box is not None:
        raise ValueError(
            "bounds are bounds of parameters that are added to: they cannot be "
            "combined with retract."
        )
    if retract is not None and isinstance(jac, str) and jac == "cs":
        raise ValueError(
            "jac='cs' moves parameters in the complex plane by addition: it cannot be "
            "combined with retract."
        )
    if structure is not None and jac_sparsity is not None:
        raise ValueError("The structure says where jac is zero: omit jac_sparsity.")


def _checked_fixed(fixed, x0, jac, retract):
    """Mask of parameters (of directions, if they live on a manifold) to hold."""
    size = x0.size
    if retract is not None and callable(jac) and np.asarray(fixed).dtype == bool:
        size = np.size(fixed)  # checked against the Jacobian
    mask = arguments.checked_mask("fixed", fixed, size, "parameter")
    if mask is not None and mask.all():
        raise ValueError("All parameters are fixed: there is nothing to optimise.")
    return mask


def _checked_kernel(kernel, known_inliers, n, criterion):
    """The kernel, with the square for known inliers."""
    kernel = get_kernel(kernel)
    if isinstance(criterion, Joint):
        _check_liftable(kernel)
    known = arguments.checked_mask("known_inliers", known_inliers, n, "residual vector")
    if known is None:
        return kernel
    if isinstance(criterion, Joint):
        raise ValueError(
            "criterion='joint' moves all weights: it cannot be combined with "
            "known_inliers."
        )
    return arguments.WithKnownInliers(kernel, known)


def _make_problem(model, kernel, tau, point):
    n = len(point.residual)
    # Numbers for each row need all rows in one chunk.
    whole = isinstance(kernel, arguments.WithKnownInliers) or np.ndim(tau) > 0
    rows = Rows(None, n, chunk_size=n if whole else None)
    return HalfQuadraticProblem(model, rows, kernel, tau, np.ones(n))


def _with_found_width(model, start, kernel, criterion, max_nfev, options):
    """The result for a width that the residuals suggest."""
    base = getattr(kernel, "kernel", kernel)
    constant = base.tuning_constant(model.residual_dim)
    if not np.isfinite(constant):  # least squares has no width
        constant = 1.0

    # Rough fits need no slow tightening.
    is_regemm = isinstance(criterion, RelaxedGeneralized)
    rough = RelaxedGeneralized() if is_regemm else criterion

    def solve(point, scale, exact):
        problem = _make_problem(model, kernel, constant * scale, point)
        budget = model.n_fun + _SEARCH_NFEV
        run = _Run(problem, budget, _SEARCH_TOLERANCES, None, 0)
        status, point, _ = run.minimize(point, Fixed(_EXACT) if exact else rough)
        if status == _INTERRUPTED:
            raise KeyboardInterrupt
        return point

    n_free = start.theta.size if model.fixed is None else np.sum(~model.fixed)
    found, interrupted = find_width(solve, start, model.residual_dim, int(n_free))
    tau = constant * found.core.scale
    problem = _make_problem(model, kernel, tau, start)
    run = _Run(problem, model.n_fun + max_nfev, *options)
    run.see(start, problem.objective(start))
    if interrupted:
        point = run.better(found.point)
        result = _result(run, _INTERRUPTED, point, problem.objective(point))
    else:
        result = _result(run, *run.minimize(found.point, Fixed(_EXACT)))
    result["scale"] = found.core.scale
    return result


def _warn(result, ftol):
    if result.status == _STALLED:
        warn_user(
            f"robust_least_squares stopped after {result.nit} iterations: "
            f"{result.message} Check that jac is the Jacobian of fun, and that fun is "
            f"finite near x, or increase ftol (now {ftol})."
        )
    if result.status == _INTERRUPTED:
        warn_user(f"robust_least_squares: {result.message}")
    if not np.any(result.weights > 0):
        width = "tau" if np.ndim(result.tau) else f"tau={result.tau:g}"
        warn_user(
            f"All residuals at the solution are so large beside {width} that their "
            "weights are zero: x is stationary, but fits nothing. Increase tau, or "
            "start closer to the solution."
        )


def _named_criterion(criterion, eta, eta_prime, rho):
    if isinstance(criterion, Alternating):
        raise ValueError(
            "criterion=Alternating() is for the contrastive Hebbian estimators only."
        )
    if isinstance(criterion, str) and criterion == "joint":
        return Joint()
    if eta_prime is None:
        eta_prime = min(2.0 * eta, (1.0 + eta) / 2.0)
    return get_criterion(
        criterion,
        eta=eta,
        eta_prime=eta_prime,
        rho=rho,
        effort=_EXACT,
        n_iter_per_level=_ROUNDS_PER_LEVEL,
    )


def _check_residuals(point, structure):
    """The residuals at the start must be usable."""
    r = point.residual
    if not np.isfinite(r).all():
        raise ValueError(
            f"fun returned {np.sum(~np.isfinite(r))} residuals at x0 that are not "
            "finite."
        )
    check_size("The largest residual at x0", np.abs(r).max(), smallest=0.0)
    if structure is None:
        return
    if structure.n_parameters != point.theta.size:
        raise ValueError(
            f"structure describes {structure.n_parameters} parameters, x0 has "
            f"{point.theta.size}."
        )
    if structure.n_residuals != len(r):
        raise ValueError(
            f"structure describes {structure.n_residuals} residual vectors, fun "
            f"returned {len(r)} of {r.shape[1]} entries."
        )


def _same(point):
    return point


def _inner(point):
    return point.inner


def _check_liftable(kernel):
    slope = float(kernel.penalty_slope(1.0))
    if not abs(slope) < 1e-4:
        raise ValueError(
            f"criterion='joint' needs a kernel whose penalty is smooth at u = 1, which "
            f"{kernel!r} is not."
        )


def _result(run, status, point, upper):
    problem = run.problem
    model, kernel = problem.model, problem.kernel
    weights = problem.confidence(point)
    grad = model.gradient(point, weights)
    fixed = np.zeros(len(grad), dtype=bool) if model.fixed is None else model.fixed
    active = np.zeros(len(point.theta), dtype=int)
    if model.box is not None:
        active = model.box.active(point.theta)
    fields = {
        "x": point.theta,
        "cost": problem.objective(point),
        "fun": point.residual.ravel(),
        "jac": point.jacobian,
        "grad": grad,
        "optimality": float(np.abs(model.stationarity(point.theta, grad)).max()),
        "active_mask": active,
        "fixed": fixed,
        "nfev": model.n_fun,
        "njev": model.n_jac,
        "nit": len(run.history),
        "status": status,
        "message": _MESSAGES[status] + run.remark,
        "success": status > 0,
        "weights": weights,
        "tau": problem.tau,
        "upper_bound": upper,
        "history": run.history.to_bunch(),
    }
    base = getattr(kernel, "kernel", kernel)
    fit = Fit(kernel, base, problem.tau, model.residual_dim, model.structure)
    return RobustLeastSquaresResult(fields, fit)


class _Run:
    """The criterion's stage, then exact weights; prints, calls back, keeps the best."""

    def __init__(self, problem, max_nfev, tolerances, callback, verbose):
        self.problem = problem
        self.history = History()
        self.reason = _CALLBACK  # of a stop
        self.remark = ""  # added to the message
        self._tolerances = [-1.0 if tol is None else tol for tol in tolerances]
        self._max_nfev = max_nfev
        self._callback, self._verbose = callback, verbose
        self._best, self._best_cost, self._best_iteration = None, np.inf, 0

    def minimize(self, point, criterion):
        """Status, point, and the upper bound on which the last step was made."""
        exact = self._exact_stage()
        first, start, to_inner = self._criterion_stage(point, criterion)
        result = run_stages(
            first,
            exact,
            start,
            self.history,
            self._left,
            between=lambda last: self.better(to_inner(last), _CLEARLY_WORSE),
            max_rejected=_MAX_REJECTED,
            interruptible=True,
        )
        status, point = self._status(result), result.point
        better = self.better(point)
        if better is point:
            return status, point, result.memory.previous_upper
        # Weights that are loose at first may lead away from a good point.
        if status in (_INTERRUPTED, _CALLBACK) or self._left() <= 0:
            return status, better, result.memory.previous_upper
        result = self._exact_stage().run(
            better,
            self.history,
            self._left(),
            max_rejected=_MAX_REJECTED,
            interruptible=True,
        )
        return self._status(result), result.point, result.memory.previous_upper

    def _criterion_stage(self, point, criterion):
        """The stage, where it starts, and the way back to the problem's points."""
        ftol = self._tolerances[0]
        step = LevenbergMarquardtStep()
        if isinstance(criterion, Joint):
            lifted = LiftedProblem(self.problem)
            tol, monitor = max(ftol, _JOINT_HANDOVER), _StageMonitor(self, _inner)
            stage = Stage(lifted, criterion, step, tol, _EXACT, monitor)
            return stage, lifted.lift(point), _inner
        if criterion == Fixed(_EXACT):
            return None, point, _same
        tol, monitor = max(ftol, _HANDOVER), _StageMonitor(self)
        stage = Stage(self.problem, criterion, step, tol, _ALL_ONES, monitor)
        return stage, point, _same

    def _exact_stage(self):
        ftol, xtol, gtol = self._tolerances
        monitor = _StageMonitor(self, tolerances=(xtol, gtol))
        step, criterion = LevenbergMarquardtStep(), Fixed(_EXACT)
        return Stage(self.problem, criterion, step, ftol, _EXACT, monitor)

    def _left(self):
        # Iterations without an evaluation (systems that were not solvable) count too.
        return self._max_nfev - max(self.problem.model.n_fun, len(self.history) + 1)

    def _status(self, result):
        return {
            Status.CONVERGED: _FTOL,
            Status.MAX_ITER: _MAX_NFEV,
            Status.STALLED: _STALLED,
            Status.DIVERGED: _STALLED,
            Status.STOPPED: self.reason,
            Status.INTERRUPTED: _INTERRUPTED,
        }[result.status]

    def see(self, point, cost):
        """Hear of the cost at a point before it is left."""
        if cost < self._best_cost:
            self._best, self._best_cost = point.bare(), cost
            self._best_iteration = len(self.history)

    def better(self, point, share=_SAME_COST):
        """The point, or an earlier one whose cost was lower by more than a share."""
        cost = self.problem.objective(point)
        if not self._best_cost < cost - share * abs(cost):
            return point
        k = self._best_iteration
        self.remark = _EARLIER.format("x0" if k == 0 else f"iteration {k}")
        return self._best

    def update(self, point, record):
        """Tell of an iteration; True if the callback asks to stop."""
        if self._verbose > 1:
            self._print(record)
        if self._callback is None:
            return False
        try:
            if "intermediate_result" in inspect.signature(self._callback).parameters:
                self._callback(
                    intermediate_result=OptimizeResult(
                        x=point.theta.copy(),
                        nit=len(self.history),
                        nfev=self.problem.model.n_fun,
                        cost=self.problem.objective(point),
                        upper_bound=record["upper_bound"],
                    )
                )
            else:
                self._callback(point.theta.copy())
        except StopIteration:
            self.reason = _CALLBACK
            return True
        return False

    def _print(self, record):
        nit = len(self.history)
        if nit == 1:
            print(
                f"{'iter':>6} {'cost':>13} {'upper bound':>13} {'effort':>9} "
                f"{'damping':>9} {'optimality':>11} {'time':>8}"
            )
        mark = "" if record["accepted"] else "  rejected"
        print(
            f"{nit:6d} {record['lower_bound']:13.6g} "
            f"{record['upper_bound']:13.6g} {record['effort']:9.4g} "
            f"{record['damping']:9.2e} {record['optimality']:11.3e} "
            f"{record['time']:7.2f}s{mark}"
        )


class _StageMonitor(Monitor):
    """Tells the run of every iteration, and tests xtol and gtol where they are given.

    `to_inner` maps the points of the stage to those of the problem.
    """

    def __init__(self, run, to_inner=_same, tolerances=None):
        self._run = run
        self._to_inner = to_inner
        self._tolerances = tolerances

    def inferred(self, point, inferred):
        """The lower bound is the cost at the point."""
        self._run.see(self._to_inner(point), inferred.trial.lower)

    def end(self, point, record):
        """True if the run is to stop, for the reason that it then has."""
        point = self._to_inner(point)
        if self._run.update(point, record):
            return True
        if self._tolerances is None:
            return False
        xtol, gtol = self._tolerances
        if record["optimality"] <= gtol:
            self._run.reason = _GTOL
        elif record["accepted"] and record["step_norm"] <= xtol * (
            xtol + np.linalg.norm(point.theta)
        ):
            self._run.reason = _XTOL
        else:
            return False
        return True
