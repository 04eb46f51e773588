"""Noise scale of a nonlinear problem, and a starting point for it.

The scale alone does not show whether residuals are large because x is wrong or because
they belong to outliers. Several candidates are therefore computed. The first is x0,
refined with exact weights at the scale of its own core, which is the best choice if x0
is good. The second are fits with increasingly narrow kernels, starting from the median
of the residuals at x0, which do not depend on a good x0. If there are few parameters,
there are also least-squares fits to small random subsets of the residuals, some of
which do not contain outliers, and to the residuals on either side of the widest fit,
since outliers that agree with each other are often on one side. Candidates are compared
by the likelihood of their residuals under a normal core on a flat background. Its
extent is the same for all: that of the residuals of the widest fit, but at least a few
noise scales. The residuals outside a core that is a majority may instead be near each
other. Otherwise a cluster of outliers, which curves fit closer than the noise lets them
fit the others, would be likelier than the majority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln

from sklearn_mm._robust.callable import CallablePoint, CallableResidual
from sklearn_mm._robust.core import Core, find_core, median_scale
from sklearn_mm._robust.problem import make_problem
from sklearn_mm._robust.result import RobustLeastSquaresResult
from sklearn_mm._robust.run import EXACT_WEIGHTS, INTERRUPTED, Run
from sklearn_mm._rows.validation import check_size
from sklearn_mm._solver.roles import Array
from sklearn_mm.criteria import Criterion, RelaxedGeneralized
from sklearn_mm.kernels import Kernel, Quadratic

# Numbers of evaluations and tolerances of the fits in the search.
_SEARCH_NFEV, _SUBSET_NFEV, _SEARCH_TOLERANCES = 60, 10, (1e-4, 1e-8, None)
# Widths of the ladder.
_RUNGS = [2.0 ** (-k / 2.0) for k in range(7)]
# The background reaches at least this many scales of the widest fit.
_LEAST_EXTENT = 6.0
# Smallest fraction of the residual vectors that is accepted as a core.
_LEAST_SHARE = 0.3
# A minority whose scale is below this fraction of that of a majority is one repeated
# value, such as a code for missing data, which curves fit exactly.
_MAJORITY, _MUCH_SMALLER = 0.5, 1e-3
# Residuals of more than this many scales do not belong to the core.
_OTHERS = 3.0
# Subsets are drawn for up to this many parameters; their number, that of the residual
# vectors in excess of what determines the parameters, and that of subsets refined. (At
# 40% outliers one of 20 subsets of four is clean with 94%, at 30% with 99.6%.)
_MAX_PARAMETERS, _SUBSETS, _EXCESS, _REFINED = 10, 20, 1, 3
# Number of refits with the scale of the last one, which is larger while the scale
# decreases quickly, as for exact data.
_REFITS, _MAX_REFITS = 4, 40
_SETTLED, _FALLING = 0.02, 0.5
# Scales below this fraction of that at x0 are zero: the fit is exact.
_EXACT_FIT = 1e-9
# Smallest scale, whose square does not underflow.
_SMALLEST = 1e-60

# The point of a fit, and whether it was interrupted.
Solve = Callable[[Any, float, bool], tuple[Any, bool]]
SolveSubset = Callable[[Any, Any], tuple[Any, bool]]


@dataclass(frozen=True)
class Candidate:
    """A point, and the core of its residuals."""

    point: Any
    core: Core


def fit_with_found_width(
    model: CallableResidual,
    start: CallablePoint,
    kernel: Kernel,
    criterion: Criterion,
    max_nfev: int,
    options: tuple[Any, ...],  # of the last run
) -> RobustLeastSquaresResult:
    """The result for a width that is estimated from the residuals."""
    largest = float(np.abs(start.residual).max())
    if largest > 0.0:
        check_size("The largest residual at x0", largest)
    n_free = start.theta.size if model.fixed is None else int(np.sum(~model.fixed))
    base = getattr(kernel, "kernel", kernel)
    constant = base.tuning_constant(model.residual_dim)
    if not np.isfinite(constant):  # least squares has no width to search for
        run = Run(make_problem(model, kernel, 1.0, start), max_nfev - 1, *options)
        result = run.result(*run.minimize(start, EXACT_WEIGHTS))
        norms = np.linalg.norm(result.fun.reshape(start.residual.shape), axis=1)
        scale = _first_scale(norms, model.residual_dim)
        core = find_core(norms, model.residual_dim, n_free, max(scale, _SMALLEST))
        result["scale"] = result["tau"] = core.scale
        return result

    # Approximate fits do not need the smaller constants.
    is_regemm = isinstance(criterion, RelaxedGeneralized)
    rough = RelaxedGeneralized() if is_regemm else criterion

    def solve(
        point: CallablePoint, scale: float, exact: bool
    ) -> tuple[CallablePoint, bool]:
        problem = make_problem(model, kernel, constant * scale, point)
        run = Run(problem, _SEARCH_NFEV, _SEARCH_TOLERANCES)
        chosen = EXACT_WEIGHTS if exact else rough
        status, point, _ = run.minimize(point, chosen)
        return point, status == INTERRUPTED

    def solve_subset(point: CallablePoint, mask: Any) -> tuple[CallablePoint, bool]:
        problem = make_problem(model, Quadratic(), 1.0, point, mask.astype(float))
        run = Run(problem, _SUBSET_NFEV, _SEARCH_TOLERANCES)
        # A fit to a few residuals may lead anywhere, even where fun cannot be
        # evaluated. Errors of fun in general are found by the other fits.
        try:
            status, point, _ = run.minimize(point, EXACT_WEIGHTS)
        except (ArithmeticError, ValueError):
            return point, False
        return point, status == INTERRUPTED

    # Overflows of fun are only reported in the last fit.
    with np.errstate(all="ignore"):
        found, interrupted = find_width(solve, solve_subset, model, start, n_free)
    tau = constant * found.core.scale
    problem = make_problem(model, kernel, tau, start)
    run = Run(problem, max_nfev, *options)
    run.see(start, problem.objective(start))
    if interrupted:
        point = run.better(found.point)
        result = run.result(INTERRUPTED, point, problem.objective(point))
    else:
        result = run.result(*run.minimize(found.point, EXACT_WEIGHTS))
    result["scale"] = found.core.scale
    return result


def find_width(
    solve: Solve,
    solve_subset: SolveSubset,
    model: CallableResidual,
    x0: CallablePoint,
    n_parameters: int,
) -> tuple[Candidate, bool]:
    """The likeliest candidate, and whether the search was interrupted.

    Parameters
    ----------
    solve : callable
        ``solve(point, scale, exact)`` fits with a kernel for a noise scale, with exact
        weights or by the criterion, and returns a point and whether the user has
        interrupted it.
    solve_subset : callable
        ``solve_subset(point, mask)`` does the same by least squares on a part of the
        residual vectors.
    model : CallableResidual
        The residuals.
    x0 : CallablePoint
        Where to start.
    n_parameters : int
        Number of parameters that are not fixed.
    """
    d, norms = model.residual_dim, _norms(x0)
    start = _first_scale(norms, d)
    floor = max(_EXACT_FIT * start, _SMALLEST)
    start = max(start, floor)

    def judged(point: Any, scale: float) -> Candidate:
        core = find_core(_norms(point), d, n_parameters, max(scale, floor))
        return Candidate(point, Core(max(core.scale, floor), core.share))

    def extent_of(point: Any, scale: float) -> float:
        return max(float(_norms(point).max()), _LEAST_EXTENT * scale)

    def likeliest_core(point: Any, scale: float, extent: float) -> Candidate:
        cores = [judged(point, scale * rung) for rung in _RUNGS]
        return _likeliest(cores, d, n_parameters, extent)

    # The likeliest core of the residuals at x0 shows how good x0 is.
    first = likeliest_core(x0, start, extent_of(x0, start))
    candidates = [first]

    def fit(point: Any, scale: float, exact: bool) -> Candidate:
        """Add a candidate, which may be that of an interrupted fit."""
        point, interrupted = solve(point, scale, exact)
        candidates.append(judged(point, scale))
        if interrupted:
            raise KeyboardInterrupt
        return candidates[-1]

    try:
        x0 = model.linearized(x0)  # many fits begin here
        fit(x0, first.core.scale, True)
        point = fit(x0, start, False).point
        widest = max(median_scale(_norms(point), d), floor)
        extent = extent_of(point, widest)
        candidates[-1] = judged(point, widest)
        subsets = list(_subsets(candidates[-1].point, d, n_parameters))
        for rung in _RUNGS:
            point = fit(point, max(widest * rung, floor), False).point
        drawn = []
        for mask in subsets:
            point, interrupted = solve_subset(x0, mask)
            scale = median_scale(_norms(point), d)
            drawn.append(likeliest_core(point, max(scale, floor), extent))
            if interrupted:
                raise KeyboardInterrupt
        best = _likeliest(candidates, d, n_parameters, extent)
        drawn.sort(key=lambda c: -_log_likelihood(c, d, extent))
        for candidate in drawn[:_REFINED]:
            fit(candidate.point, candidate.core.scale, True)
        # One of many random subsets may look likely by chance.
        margin = n_parameters / 2.0 * np.log(len(norms))
        likeliest = _likeliest(candidates, d, n_parameters, extent)
        gain = _log_likelihood(likeliest, d, extent) - _log_likelihood(best, d, extent)
        best = likeliest if gain > margin else best
        for k in range(_MAX_REFITS):
            scale = best.core.scale
            best = fit(best.point, scale, True)
            falling = best.core.scale < _FALLING * scale
            settled = abs(best.core.scale - scale) <= _SETTLED * scale
            if settled or (k + 1 >= _REFITS and not falling):
                break
    except KeyboardInterrupt:
        extent = max(extent_of(c.point, c.core.scale) for c in candidates)
        return _likeliest(candidates, d, n_parameters, extent), True
    return best, False


def _first_scale(norms: Array, d: int) -> float:
    # The median is zero where half of the residuals are.
    return median_scale(norms, d) or float(np.sqrt(np.mean(np.square(norms)) / d))


def _subsets(widest: Any, d: int, n_parameters: int) -> Iterator[Any]:
    """Masks of residual vectors for separate fits: either side, and random subsets."""
    n = len(widest.residual)
    size = -(-n_parameters // d) + _EXCESS
    if n_parameters > _MAX_PARAMETERS or size >= n // 2:
        return
    if d == 1:
        above = widest.residual[:, 0] > 0.0
        for side in (above, ~above):
            if side.sum() >= size:
                yield side
    rng = np.random.default_rng(0)
    for _ in range(_SUBSETS):
        yield np.isin(np.arange(n), rng.choice(n, size, replace=False))


def _likeliest(
    candidates: list[Candidate], d: int, n_parameters: int, extent: float
) -> Candidate:
    n = len(_norms(candidates[0].point))
    least = max(_LEAST_SHARE, 2.0 * n_parameters / (d * n))
    admitted = [c for c in candidates if c.core.share >= least] or candidates
    majority = [c.core.scale for c in admitted if c.core.share >= _MAJORITY]
    smallest = _MUCH_SMALLER * min(majority, default=0.0)
    admitted = [
        c for c in admitted if c.core.share >= _MAJORITY or c.core.scale >= smallest
    ]
    return max(admitted, key=lambda c: _log_likelihood(c, d, extent))


def _log_likelihood(candidate: Candidate, d: int, extent: float) -> float:
    """Of a normal core on a background that is uniform in a ball.

    If the core is a majority, the others may also be near each other.
    """
    norms, core = _norms(candidate.point), candidate.core
    share = np.clip(core.share, 1e-3, 1.0 - 0.5 / len(norms))
    log_volume = d / 2 * np.log(np.pi) - gammaln(d / 2 + 1) + d * np.log(extent)
    log_core = np.log(share) + _log_normal(norms, core.scale, d)
    log_other = np.log1p(-share) - log_volume
    likelihood = float(np.logaddexp(log_core, log_other).sum())
    others = candidate.point.residual[norms > _OTHERS * core.scale]
    if core.share < _MAJORITY or len(others) < d + 2:
        return likelihood
    centre = others.mean(axis=0)
    variance = np.square(others - centre).sum() / (d * (len(others) - 1))
    distances = np.linalg.norm(candidate.point.residual - centre, axis=1)
    # Not narrower than the core: what agrees exactly is a code for missing data.
    log_near = _log_normal(distances, max(core.scale, float(np.sqrt(variance))), d)
    log_mixed = np.log1p(-share) + np.logaddexp(-log_volume, log_near) - np.log(2.0)
    near = float(np.logaddexp(log_core, log_mixed).sum())
    return max(likelihood, near - (d + 1) / 2.0 * np.log(len(others)))


def _log_normal(norms: Array, scale: float, d: int) -> Array:
    log_density: Array = -np.square(norms / scale) / 2
    return log_density - d * np.log(scale) - d / 2 * np.log(2.0 * np.pi)


def _norms(point: Any) -> Array:
    return np.sqrt(np.einsum("ij,ij->i", point.residual, point.residual))
