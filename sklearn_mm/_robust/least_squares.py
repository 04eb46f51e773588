"""Robust nonlinear least squares, compatible with `scipy.optimize.least_squares`."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    StrOptions,
    validate_params,
)

from sklearn_mm._estimator import criterion_options, warn_user
from sklearn_mm._robust import arguments
from sklearn_mm._robust.auto_width import fit_with_found_width
from sklearn_mm._robust.block_structure import BlockStructure
from sklearn_mm._robust.callable import CallableResidual, WithArguments
from sklearn_mm._robust.problem import make_problem
from sklearn_mm._robust.result import RobustLeastSquaresResult
from sklearn_mm._robust.returned import check_start
from sklearn_mm._robust.run import EXACT, INTERRUPTED, STALLED, Run
from sklearn_mm.baselines import Alternating, Joint
from sklearn_mm.criteria import (
    CRITERIA,
    Criterion,
    get_criterion,
)
from sklearn_mm.kernels import KERNELS, get_kernel

# A damped step does not minimise the upper bound, so a level of the graduated scheme
# takes more iterations than for linear models. (8 reached a lower cost than 4 on all
# six bundle adjustments tried; see the table in examples/bundle_adjustment.py.)
_ROUNDS_PER_LEVEL = 8
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
    fun: Any,
    x0: Any,
    jac: Any = "2-point",
    bounds: Any = (-np.inf, np.inf),
    *,
    kernel: Any = "smooth_truncated_quadratic",
    tau: Any = 1.0,
    criterion: Any = "regemm",
    residual_dim: int = 1,
    known_inliers: Any = None,
    fixed: Any = None,
    structure: BlockStructure | None = None,
    retract: Any = None,
    args: Any = (),
    kwargs: Any = None,
    eta: float = 0.15,
    eta_prime: float | None = None,
    rho: float = 0.5,
    ftol: Any = 1e-8,
    xtol: Any = 1e-8,
    gtol: Any = 1e-8,
    x_scale: Any = None,
    diff_step: Any = None,
    jac_sparsity: Any = None,
    max_nfev: int | None = None,
    callback: Any = None,
    workers: Any = None,
    verbose: int = 0,
    **scipy_options: Any,
) -> RobustLeastSquaresResult:
    """Solve a nonlinear least-squares problem with a robust kernel.

    Finds a local minimum of ``sum_i tau**2 * psi(|r_i(x)|**2 / tau**2)``, where the
    r_i are residuals, or vectors of `residual_dim` residuals, and psi is a robust
    kernel. The weights of its half-quadratic form are inferred as accurately as the
    criterion requires, and x is updated by Levenberg-Marquardt steps on the resulting
    upper bound.

    Calls of :func:`scipy.optimize.least_squares` work unchanged, except for ``loss``
    and ``f_scale``, which are replaced by `kernel` and `tau`, and ``method``. The
    robust cost of the returned x is never higher than that of x0.

    Parameters
    ----------
    fun : callable
        Function ``fun(x, *args, **kwargs)`` that returns the residuals as a
        one-dimensional array. A step that leads to non-finite residuals is rejected.
        Non-finite residuals at x0 raise an error.

    x0 : array-like of shape (n,)
        Initial guess. It must be within the bounds.

    jac : callable or {"2-point", "3-point", "cs"}, default="2-point"
        Jacobian of the residuals. A callable has the same arguments as `fun` and
        returns a dense or sparse matrix or a `LinearOperator` of shape (m, n). With a
        `structure`, it returns two arrays of shapes (m / residual_dim, residual_dim,
        first_dim or second_dim). A string selects a scheme of finite differences:
        one-sided, central, or a complex step, which requires that `fun` accepts
        complex x.

    bounds : 2-tuple of array-like or `Bounds`, optional
        Lower and upper bounds of the parameters, numbers or arrays of shape (n,). There
        are no bounds by default. `fun` is never evaluated outside the bounds.

    kernel : str or Kernel, default="smooth_truncated_quadratic"
        Robust kernel, see :mod:`sklearn_mm.kernels`. With "quadratic", the function
        solves ordinary least squares problems.

    tau : float, "auto" or array-like of shape (m / residual_dim,), default=1.0
        Width of the kernel in units of the residuals, or one width per residual vector
        (`f_scale` in scipy). If "auto", the scale of the noise is estimated from the
        residuals; see the Notes.

    criterion : {"regemm", "sudemm", "fixed", "graduated", "joint"} or Criterion, \
            default="regemm"
        How accurately the weights are inferred before x is updated. "regemm" starts
        with equal weights and increases their accuracy gradually, which finds better
        minima than exact weights in all iterations ("fixed", i.e. iteratively
        reweighted least squares). "graduated" reduces the width of the kernel by a
        fixed schedule, and "joint" updates x and the weights together. See
        :mod:`sklearn_mm.criteria` for details.

    residual_dim : int, default=1
        Number of consecutive residuals that form a vector with a common weight, e.g. 2
        for image points.

    known_inliers : array-like of shape (m / residual_dim,), default=None
        Mask or indices of residual vectors that are known to be inliers. Their weights
        are one.

    fixed : array-like of shape (n,), default=None
        Mask or indices of parameters that are kept fixed. With `retract`, it refers to
        the entries of delta. The corresponding columns of the Jacobian are zero.

    structure : BlockStructure, default=None
        Two groups of parameters such that each residual vector depends on one block of
        each group. The second group is eliminated from the linear systems.

    retract : callable, default=None
        Function ``retract(x, delta)`` that moves x by delta, for parameters on a
        manifold such as rotations. If None, delta is added to x. `jac` is the Jacobian
        with respect to delta, which has as many entries as `jac` has columns (as many
        as x with finite differences or a structure).

    args : tuple or list, default=()
        Additional positional arguments passed to `fun` and `jac`.

    kwargs : dict, default=None
        Additional keyword arguments passed to `fun` and `jac`.

    eta, eta_prime : float, default=0.15 and None
        Constants of "regemm", see :class:`sklearn_mm.criteria.RelaxedGeneralized`. If
        `eta_prime` is None, it is the minimum of 2 eta and (1 + eta) / 2. ``eta=0.5``
        thus gives the constants of the paper, 0.5 and 0.75.

    rho : float, default=0.5
        Constant of "sudemm", see :class:`sklearn_mm.criteria.SufficientDescent`.

    ftol : float or None, default=1e-8
        Tolerance for the relative change of the objective. With "regemm", it is also
        the tolerance for the relative certified gap.

    xtol : float or None, default=1e-8
        Tolerance for the norm of a step, relative to that of x.

    gtol : float or None, default=1e-8
        Tolerance for the largest entry of the gradient of the robust objective.

    x_scale : float, array-like of shape (n,) or "jac", default=None
        Characteristic size of each parameter, which determines the damping of the
        steps. If None or "jac", it is the inverse of the largest norm so far of the
        corresponding column of the weighted Jacobian (with a structure, of its current
        norm), so that the steps do not depend on units. If None and the Jacobian is a
        `LinearOperator`, it is one.

    diff_step : float or array-like of shape (n,), default=None
        Relative step size of finite differences. The steps are ``x * diff_step``.

    jac_sparsity : array-like or sparse matrix of shape (m, n), default=None
        Sparsity structure of the Jacobian for finite differences, with zeros where the
        Jacobian is zero. Parameters without a common residual are then varied together,
        and the Jacobian is sparse.

    max_nfev : int or None, default=None
        Maximum number of evaluations of `fun`, not counting those of finite
        differences. Each iteration makes one evaluation. If None, it is 100 * n.

    callback : callable, default=None
        Function that is called after each iteration. If it has a parameter
        ``intermediate_result``, this is an `OptimizeResult` with ``x``, ``nit``,
        ``nfev``, ``cost`` and ``upper_bound``, the bound on which the step was made.
        Otherwise, it is called as ``callback(x)``. It can raise `StopIteration` to
        terminate the optimisation.

    workers : int or callable, default=None
        Number of processes for the parallel evaluation of finite differences, or a
        map-like callable, such as the `map` of a pool, which is called as
        ``workers(fun, points)``.

    verbose : {0, 1, 2}, default=0
        Level of verbosity: 1 prints a report at termination, 2 also prints one line per
        iteration.

    **scipy_options : dict
        Not supported. Other arguments of the scipy function raise a TypeError that
        suggests a replacement.

    Returns
    -------
    result : OptimizeResult
        Result with the fields of :func:`scipy.optimize.least_squares`: ``x``, ``cost``
        (the robust objective), ``fun`` (residuals), ``jac`` (their Jacobian, without
        weights), ``grad`` (of the robust objective), ``optimality`` (largest entry of
        the gradient, except where bounds are active), ``active_mask`` (-1 or 1 where x
        is on a lower or upper bound), ``nfev``, ``njev``, ``status``, ``message`` and
        ``success``. Additional fields are ``nit``, ``weights`` (exact confidence
        weights at x, one per residual vector), ``tau`` (the width that was used),
        ``fixed`` (mask of fixed parameters), ``upper_bound`` (the upper bound on which
        the last step was made) and ``history`` (a `Bunch` with one array per quantity
        and one entry per iteration; use :class:`ConvergenceDisplay` to plot it).
        ``status`` is 1, 2 or 3 if gtol, ftol or xtol is satisfied (ftol also if no
        further step could be accepted because of rounding errors), 0 if max_nfev was
        reached, -2 if the callback stopped the optimisation, -3 if no further step
        could be accepted, and -4 if the optimisation was interrupted (Ctrl-C), in which
        case the best point so far is returned.

        ``result.covariance()`` estimates the covariance of the parameters from the
        residuals that have weight. With a structure, it returns two arrays: the
        covariance of the first group, and that of each block of the second group.

    See Also
    --------
    HalfQuadraticRobustRegressor : Linear models, with automatic scale and start.
    BlockStructure : Two groups of parameters.

    Notes
    -----
    ``history.lower_bound`` is the robust objective at the beginning of each iteration.
    With "regemm", ``history.upper_bound`` at accepted steps never increases as long as
    that criterion is in use. Once its certificate is tight, the remaining iterations
    use exact weights. A rejected step only changes the damping.

    Inaccurate weights in the first iterations may lead away from a good x0. The point
    with the lowest robust cost is therefore stored. If its cost is lower than that of
    the final point, the optimisation continues from it with exact weights, and the
    message reports this.

    With ``tau="auto"``, the width is the tuning constant of the kernel (95% efficiency
    for normal noise) times the scale of a normal core of the residuals,
    ``result.scale``. It is found by approximate fits: from x0 with exact weights, in
    case x0 is good; with the criterion and increasingly narrow kernels, in case it is
    not; and, for up to 10 parameters, by least squares on 22 subsets of the residuals.
    This takes about 400 evaluations of `fun` for 3 parameters. The most likely fit with
    a core of at least 30% of the residual vectors is refined. `max_nfev`, `callback`
    and `verbose` only apply to the last fit. If some curve passes close to most inliers
    and through a cluster of outliers, it can be preferred: with 30 points, tight
    clusters of 20, 30 and 40% were followed in 0, 1 and 2 of 60 simulated data sets.

    Levenberg-Marquardt steps do not minimise the upper bound. The constants of "regemm"
    are therefore smaller than in the paper, so that the accuracy of the weights
    increases more slowly. This leads to better minima, but takes more iterations.
    ``eta=0.5`` takes about a third of the iterations. "graduated" stands for
    ``criteria.Graduated(n_iter_per_level=8)``.

    With a structure, memory grows with the number of residual vectors and of pairs of
    them that share a block of the second group. Bundle adjustment with 6 + 3 parameters
    and 1,135,000 observations required 1.1 GB in total, including the arrays of the
    example itself (``examples/benchmarks/bundle_speed.py --large``). Reduced systems of
    up to 4000 unknowns are dense.

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
    criterion = _named_criterion(criterion, eta, eta_prime, rho)
    kernel = get_kernel(kernel)
    arguments.refuse_options("robust_least_squares", scipy_options)
    arguments.check_kernel(kernel, criterion, known_inliers)
    x0 = arguments.checked_start(x0)
    box = arguments.checked_bounds(bounds, x0)
    arguments.check_together(jac, box, structure, retract, jac_sparsity)
    kwargs = {} if kwargs is None else kwargs
    model = CallableResidual(
        WithArguments(fun, tuple(args), kwargs),
        WithArguments(jac, tuple(args), kwargs) if callable(jac) else jac,
        residual_dim,
        structure,
        retract,
        box=box,
        fixed=arguments.checked_fixed(fixed, x0, jac, retract),
        unit=arguments.checked_units(x_scale, x0.size),
        relative_step=arguments.checked_steps(diff_step, x0.size),
        workers=arguments.checked_workers(workers),
        needs_columns=isinstance(x_scale, str),
    )
    point = model.at(x0)
    check_start(point, structure)
    if not callable(jac):
        shape = (point.residual.size, x0.size)
        model.sparsity = arguments.checked_sparsity(jac_sparsity, shape)
    kernel = arguments.with_known_inliers(kernel, known_inliers, len(point.residual))
    max_nfev = 100 * x0.size if max_nfev is None else max_nfev
    options = ((ftol, xtol, gtol), callback, verbose)
    if isinstance(tau, str):
        result = fit_with_found_width(
            model, point, kernel, criterion, max_nfev, options
        )
    else:
        tau = arguments.checked_widths(tau, len(point.residual))
        # One evaluation per iteration, and one was made at x0.
        run = Run(make_problem(model, kernel, tau, point), max_nfev - 1, *options)
        result = run.result(*run.minimize(point, criterion))
    _warn(result, ftol)
    if verbose:
        print(
            f"{result.message} Iterations {result.nit}, function evaluations "
            f"{result.nfev}, cost {result.cost:.4e}, optimality "
            f"{result.optimality:.2e}."
        )
    return result


def _warn(result: RobustLeastSquaresResult, ftol: float | None) -> None:
    if result.status == STALLED:
        warn_user(
            f"robust_least_squares stopped after {result.nit} iterations: "
            f"{result.message} Check that jac is the Jacobian of fun, and that fun is "
            f"finite near x, or increase ftol (currently {ftol})."
        )
    if result.status == INTERRUPTED:
        warn_user(f"robust_least_squares: {result.message}")
    if not np.any(result.weights > 0):
        width = "tau" if np.ndim(result.tau) else f"tau={result.tau:g}"
        warn_user(
            f"All residuals at the solution are so large compared with {width} that "
            "their weights are zero: x is stationary, but fits nothing. Increase tau, "
            "or start closer to the solution."
        )


def _named_criterion(
    criterion: Any, eta: float, eta_prime: float | None, rho: float
) -> Criterion:
    if isinstance(criterion, Alternating):
        raise ValueError(
            "criterion=Alternating() is only supported by the contrastive Hebbian "
            "estimators."
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
        effort=EXACT,
        n_iter_per_level=_ROUNDS_PER_LEVEL,
    )
