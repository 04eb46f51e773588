"""Robust nonlinear least squares in the manner of `scipy.optimize.least_squares`."""

from __future__ import annotations

import inspect
import warnings
from numbers import Integral, Real

import numpy as np
from scipy.optimize import OptimizeResult
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    StrOptions,
    validate_params,
)

from sklearn_mm._estimator import criterion_options
from sklearn_mm._robust.block_structure import BlockStructure
from sklearn_mm._robust.callable import CallableResidual
from sklearn_mm._robust.lifted import LiftedProblem
from sklearn_mm._robust.problem import HalfQuadraticProblem
from sklearn_mm._rows.table import Rows
from sklearn_mm._rows.validation import check_size
from sklearn_mm._solver.history import History
from sklearn_mm._solver.levenberg_marquardt import LevenbergMarquardtStep
from sklearn_mm._solver.loop import Status
from sklearn_mm._solver.roles import Monitor
from sklearn_mm._solver.stages import Stage, run_stages
from sklearn_mm.baselines import Alternating, Joint
from sklearn_mm.criteria import CRITERIA, Fixed, get_criterion
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
# Failures in a row after which a run ends: the damping has grown by 2**465.
_MAX_REJECTED = 30

_MESSAGES = {
    -3: "No step decreased the upper bound any more.",
    -2: "The callback asked to stop.",
    0: "The maximum number of function evaluations, max_nfev, was reached.",
    1: "`gtol` termination condition is satisfied.",
    2: "`ftol` termination condition is satisfied.",
    3: "`xtol` termination condition is satisfied.",
}
_STALLED, _CALLBACK, _MAX_NFEV, _GTOL, _FTOL, _XTOL = _MESSAGES

_TOLERANCE = [None, Interval(Real, 0, None, closed="left")]


@validate_params(
    {
        "fun": [callable],
        "jac": [callable, StrOptions({"2-point", "3-point"})],
        "kernel": [
            StrOptions(set(KERNELS)),
            HasMethods(["loss", "weight", "penalty", "upper_bound"]),
        ],
        "tau": [Interval(Real, 0, None, closed="neither")],
        "criterion": criterion_options(*CRITERIA, "joint"),
        "residual_dim": [Interval(Integral, 1, None, closed="left")],
        "structure": [None, BlockStructure],
        "retract": [None, callable],
        "args": [tuple],
        "kwargs": [None, dict],
        "eta": [Interval(Real, 0, 1, closed="neither")],
        "eta_prime": [Interval(Real, 0, 1, closed="neither")],
        "rho": [Interval(Real, 0, 1, closed="neither")],
        "ftol": _TOLERANCE,
        "xtol": _TOLERANCE,
        "gtol": _TOLERANCE,
        "max_nfev": [None, Interval(Integral, 1, None, closed="left")],
        "callback": [None, callable],
        "verbose": ["verbose"],
    },
    prefer_skip_nested_validation=True,
)
def robust_least_squares(
    fun,
    x0,
    jac="2-point",
    *,
    kernel="smooth_truncated_quadratic",
    tau=1.0,
    criterion="regemm",
    residual_dim=1,
    structure=None,
    retract=None,
    args=(),
    kwargs=None,
    eta=0.5,
    eta_prime=0.75,
    rho=0.5,
    ftol=1e-8,
    xtol=1e-8,
    gtol=1e-8,
    max_nfev=None,
    callback=None,
    verbose=0,
):
    """Solve a nonlinear least-squares problem with a robust kernel.

    Finds a local minimum of ``sum_i tau**2 * psi(|r_i(x)|**2 / tau**2)``, where the
    r_i are residuals, or vectors of `residual_dim` of them, and psi is a robust kernel.
    The weights of its half-quadratic form are inferred as accurately as the criterion
    asks, and x is moved by Levenberg-Marquardt steps on the upper bound they define.

    Parameters
    ----------
    fun : callable
        Function ``fun(x, *args, **kwargs)`` that returns the residuals, a
        one-dimensional array. Where a residual is not finite, the step that led there
        is rejected; at x0 that is an error.

    x0 : array-like of shape (n,)
        Start.

    jac : callable or {"2-point", "3-point"}, default="2-point"
        Jacobian of the residuals, a function of the same arguments that returns a dense
        or sparse matrix of shape (m, n); with a `structure`, two arrays of shapes
        (m / residual_dim, residual_dim, first_dim or second_dim). Or the scheme of
        finite differences.

    kernel : str or Kernel, default="smooth_truncated_quadratic"
        Robust kernel, see :mod:`sklearn_mm.kernels`. "quadratic" makes this a solver
        for ordinary least squares.

    tau : float, default=1.0
        Width of the kernel, in units of the residuals; `f_scale` in scipy.

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

    structure : BlockStructure, default=None
        Two groups of parameters such that each residual vector depends on one block of
        each. The second group is then eliminated from the linear systems.

    retract : callable, default=None
        Function ``retract(x, delta)`` that moves x by delta, for parameters on a
        manifold such as rotations; addition by default. `jac` is the Jacobian in delta,
        and delta has as many entries as `jac` has columns (as x if that is found by
        finite differences or if there is a structure).

    args : tuple, default=()
        Further positional arguments of `fun` and `jac`.

    kwargs : dict, default=None
        Further keyword arguments of `fun` and `jac`.

    eta, eta_prime : float, default=0.5 and 0.75
        Constants of "regemm", see :class:`sklearn_mm.criteria.RelaxedGeneralized`.

    rho : float, default=0.5
        Constant of "sudemm", see :class:`sklearn_mm.criteria.SufficientDescent`.

    ftol : float or None, default=1e-8
        Tolerance for the relative change of the objective. Under "regemm" it also
        stands for the relative certified gap.

    xtol : float or None, default=1e-8
        Tolerance for the norm of a step, relative to that of x.

    gtol : float or None, default=1e-8
        Tolerance for the largest entry of the gradient of the robust objective.

    max_nfev : int or None, default=None
        Maximum number of evaluations of `fun`, those of finite differences not counted;
        100 * n by default. An iteration makes one.

    callback : callable, default=None
        Called after every iteration as ``callback(intermediate_result=...)`` if that is
        the name of its parameter, with an `OptimizeResult` that holds ``x``, ``nit``,
        ``nfev``, ``cost`` and ``upper_bound``, the bound on which the step was made,
        and as ``callback(x)`` otherwise. It ends the run by raising `StopIteration`.

    verbose : {0, 1, 2}, default=0
        1 prints a line at the end, 2 also one per iteration.

    Returns
    -------
    result : OptimizeResult
        With the fields of :func:`scipy.optimize.least_squares`: ``x``, ``cost`` (the
        robust objective), ``fun`` (residuals), ``jac``, ``grad`` (of the robust
        objective), ``optimality``, ``nfev``, ``njev``, ``status``, ``message`` and
        ``success``. Further ``nit``, ``weights`` (exact confidence weights at x, one
        per residual vector), ``upper_bound`` (the upper bound on which the last step
        was made) and ``history`` (a `Bunch` of one array per quantity and one entry per
        iteration, which :class:`ConvergenceDisplay` draws). ``status`` is 1, 2 or 3 if
        gtol, ftol or xtol was met, 0 if max_nfev was reached, -2 if the callback
        stopped the run, and -3 if no step could be accepted any more.

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

    Levenberg-Marquardt steps do not minimise the upper bound, so that smaller constants
    (``eta=0.25, eta_prime=0.5``), which tighten weights more slowly, often end in a
    better minimum after more iterations. "graduated" is
    ``criteria.Graduated(n_iter_per_level=8)`` here.

    With a structure, memory grows with the number of residual vectors and of pairs of
    them that share a block of the second group. In bundle adjustment with 6 + 3
    parameters, peak memory rose by 46 MB for 31,812 observations and by 127 MB for
    83,718, the example's own arrays included: 1.5 kB an observation. Reduced
    systems of up to 4000 unknowns are dense.

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
    x0 = _checked_start(x0)
    kwargs = {} if kwargs is None else kwargs
    criterion = _named_criterion(criterion, eta, eta_prime, rho)
    model = CallableResidual(
        lambda x: fun(x, *args, **kwargs),
        (lambda x: jac(x, *args, **kwargs)) if callable(jac) else jac,
        residual_dim,
        structure,
        retract,
    )
    check_size("tau", tau)
    point = model.at(x0)
    _check_residuals(point, structure)
    n = len(point.residual)
    problem = HalfQuadraticProblem(
        model, Rows(None, n), get_kernel(kernel), float(tau), np.ones(n)
    )
    if max_nfev is None:
        max_nfev = 100 * x0.size
    history = History()
    report = _Report(problem, history, callback, verbose)
    status, point, upper = _minimize(
        problem, point, criterion, (ftol, xtol, gtol), max_nfev, history, report
    )
    result = _result(problem, point, status, upper, history)
    if status == _STALLED:
        warnings.warn(
            f"robust_least_squares stopped after {result.nit} iterations: "
            f"{result.message} Check that jac is the Jacobian of fun, and that fun is "
            f"finite near x, or increase ftol (now {ftol}).",
            ConvergenceWarning,
            stacklevel=3,
        )
    if not np.any(result.weights > 0):
        warnings.warn(
            f"All residuals at the solution are so large beside tau={tau:g} that their "
            "weights are zero: x is stationary, but fits nothing. Increase tau, or "
            "start closer to the solution.",
            ConvergenceWarning,
            stacklevel=3,
        )
    if verbose:
        print(
            f"{result.message} Iterations {result.nit}, function evaluations "
            f"{result.nfev}, cost {result.cost:.4e}, optimality "
            f"{result.optimality:.2e}."
        )
    return result


def _checked_start(x0):
    x0 = np.atleast_1d(np.asarray(x0))
    if np.iscomplexobj(x0):
        raise ValueError("x0 must be real.")
    x0 = x0.astype(np.float64)
    if x0.ndim != 1 or x0.size == 0:
        raise ValueError(f"x0 must have one dimension, got shape {x0.shape}.")
    if not np.isfinite(x0).all():
        raise ValueError("x0 contains NaN or infinity.")
    return x0


def _named_criterion(criterion, eta, eta_prime, rho):
    if isinstance(criterion, Alternating):
        raise ValueError(
            "criterion=Alternating() is for the contrastive Hebbian estimators only."
        )
    if isinstance(criterion, str) and criterion == "joint":
        return Joint()
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


def _minimize(problem, point, criterion, tolerances, max_nfev, history, report):
    """The criterion's run, then exact weights: status, point, and last upper bound."""
    ftol, xtol, gtol = (-1.0 if tol is None else tol for tol in tolerances)

    def left():
        # Iterations without an evaluation (systems that were not solvable) count too.
        return max_nfev - max(problem.model.n_fun, len(history) + 1)

    first, between = None, _same
    if isinstance(criterion, Joint):
        _check_liftable(problem.kernel)
        lifted = LiftedProblem(problem)
        point, between = lifted.lift(point), _inner
        tol, monitor = max(ftol, _JOINT_HANDOVER), report.stage(_inner)
        step = LevenbergMarquardtStep()
        first = Stage(lifted, criterion, step, tol, _EXACT, monitor)
    elif criterion != Fixed(_EXACT):
        tol, monitor = max(ftol, _HANDOVER), report.stage()
        step = LevenbergMarquardtStep()
        first = Stage(problem, criterion, step, tol, _ALL_ONES, monitor)
    monitor = report.stage(tolerances=(xtol, gtol))
    step = LevenbergMarquardtStep()
    last = Stage(problem, Fixed(_EXACT), step, ftol, _EXACT, monitor)
    result = run_stages(
        first, last, point, history, left, between=between, max_rejected=_MAX_REJECTED
    )
    status = {
        Status.CONVERGED: _FTOL,
        Status.MAX_ITER: _MAX_NFEV,
        Status.STALLED: _STALLED,
        Status.DIVERGED: _STALLED,
        Status.STOPPED: report.reason,
    }[result.status]
    return status, result.point, result.memory.previous_upper


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


def _result(problem, point, status, upper, history):
    model = problem.model
    weights = problem.confidence(point)
    grad = model.gradient(point, weights)
    return OptimizeResult(
        x=point.theta,
        cost=problem.objective(point),
        fun=point.residual.ravel(),
        jac=point.jacobian,
        grad=grad,
        optimality=float(np.abs(grad).max()),
        nfev=model.n_fun,
        njev=model.n_jac,
        nit=len(history),
        status=status,
        message=_MESSAGES[status],
        success=status > 0,
        weights=weights,
        upper_bound=upper,
        history=history.to_bunch(),
    )


class _Report:
    """Prints and calls back in all stages of a run; knows why it was stopped."""

    def __init__(self, problem, history, callback, verbose):
        self.problem = problem
        self.history = history
        self.reason = _CALLBACK
        self._callback = callback
        self._verbose = verbose

    def stage(self, to_inner=_same, tolerances=None):
        """Monitor of a stage, whose points `to_inner` maps to those of the problem."""
        return _StageMonitor(self, to_inner, tolerances)

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
    """Reports every iteration, and tests xtol and gtol where they are given."""

    def __init__(self, report, to_inner, tolerances):
        self._report = report
        self._to_inner = to_inner
        self._tolerances = tolerances

    def end(self, point, record):
        """True if the run is to stop, for the reason that the report then has."""
        point = self._to_inner(point)
        if self._report.update(point, record):
            return True
        if self._tolerances is None:
            return False
        xtol, gtol = self._tolerances
        if record["optimality"] <= gtol:
            self._report.reason = _GTOL
        elif record["accepted"] and record["step_norm"] <= xtol * (
            xtol + np.linalg.norm(point.theta)
        ):
            self._report.reason = _XTOL
        else:
            return False
        return True
