"""A run of nonlinear least squares: first with the criterion, then with exact weights.

The best point is stored. If the inaccurate weights of the first stage have led to a
worse point, the run continues from the best one with exact weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.linalg
from scipy.optimize import OptimizeResult

from sklearn_mm._robust.lifted import LiftedProblem
from sklearn_mm._robust.problem import HalfQuadraticProblem
from sklearn_mm._robust.result import Fit, RobustLeastSquaresResult
from sklearn_mm._solver.history import History
from sklearn_mm._solver.levenberg_marquardt import LevenbergMarquardtStep
from sklearn_mm._solver.loop import Monitor, Status
from sklearn_mm._solver.roles import Inferred
from sklearn_mm._solver.stages import Stage, run_stages
from sklearn_mm.baselines import Joint
from sklearn_mm.criteria import Criterion, Fixed

# Effort of exact weights, and of weights that are all one.
EXACT, _ALL_ONES = 1.0, 0.0
EXACT_WEIGHTS = Fixed(EXACT)
# Exact weights take over from the criterion when its stopping rule holds with this
# relative tolerance, since the bounds are tight from then on.
_HANDOVER = 1e-3
# The same for joint minimisation, which stops by the change in a single step.
_JOINT_HANDOVER = 1e-6
# Consecutive failures after which a run ends: the damping has grown by 2**465.
_MAX_REJECTED = 30
# Costs with a smaller relative difference are considered equal.
_SAME_COST = 1e-12
# A point that has not been refined with exact weights yet is replaced by an earlier one
# if its cost is higher by more than this fraction.
_CLEARLY_WORSE = 1e-2

_MESSAGES = {
    -4: "Interrupted by the user. The best point so far is returned.",
    -3: "No further step decreased the upper bound.",
    -2: "The callback requested termination.",
    0: "The maximum number of function evaluations, max_nfev, was reached.",
    1: "`gtol` termination condition is satisfied.",
    2: "`ftol` termination condition is satisfied.",
    3: "`xtol` termination condition is satisfied.",
}
INTERRUPTED, STALLED, _CALLBACK, _MAX_NFEV, _GTOL, _FTOL, _XTOL = _MESSAGES
_ROUNDING = " What is left is less than the rounding errors of fun."
_EARLIER = (
    " The steps led to a higher robust cost than that of {}, which is used instead."
)


class Run:
    """Run the criterion's stage, then exact weights, and store the best point."""

    def __init__(
        self,
        problem: HalfQuadraticProblem,
        max_iter: int,
        tolerances: Sequence[float | None],  # ftol, xtol, gtol
        callback: Callable[..., Any] | None = None,
        verbose: int = 0,
    ) -> None:
        self.problem = problem
        self.history = History()
        self.reason = _CALLBACK  # of a stop
        self._remark = ""  # added to the message
        ftol, xtol, gtol = tolerances
        self._ftol = -1.0 if ftol is None else ftol
        self._xtol = -1.0 if xtol is None else xtol
        self._gtol = -1.0 if gtol is None else gtol
        self._max_iter = max_iter
        self._callback, self._verbose = callback, verbose
        self._best: Any = None
        self._best_cost, self._best_iteration = np.inf, 0

    def minimize(self, point: Any, criterion: Criterion) -> tuple[int, Any, float]:
        """Status, point, and the upper bound on which the last step was made."""
        exact = self._exact_stage()
        first, start, to_inner = self._criterion_stage(point, criterion)
        result = run_stages(
            first,
            exact,
            start,
            self.history,
            self._max_iter,
            between=lambda last: self.better(to_inner(last), _CLEARLY_WORSE),
            max_rejected=_MAX_REJECTED,
            interruptible=True,
        )
        status, point = self._status(result), self.better(result.point)
        left = self._max_iter - len(self.history)
        # Inaccurate weights in the first stage may lead away from a good point.
        if (
            np.array_equal(point.theta, result.point.theta)
            or status in (INTERRUPTED, _CALLBACK)
            or left <= 0
        ):
            return status, point, result.memory.previous_upper
        result = self._exact_stage().run(
            point,
            self.history,
            left,
            max_rejected=_MAX_REJECTED,
            interruptible=True,
        )
        return self._status(result), result.point, result.memory.previous_upper

    def _criterion_stage(
        self, point: Any, criterion: Criterion
    ) -> tuple[Stage | None, Any, Callable[[Any], Any]]:
        """The stage, its first point, and a map to the points of the problem."""
        step = LevenbergMarquardtStep()
        if isinstance(criterion, Joint):
            lifted = LiftedProblem(self.problem)
            tol, monitor = max(self._ftol, _JOINT_HANDOVER), StageMonitor(self, _inner)
            stage = Stage(lifted, criterion, step, tol, EXACT, monitor)
            return stage, lifted.lift(point), _inner
        if criterion == EXACT_WEIGHTS:
            return None, point, _same
        tol, monitor = max(self._ftol, _HANDOVER), StageMonitor(self)
        stage = Stage(self.problem, criterion, step, tol, _ALL_ONES, monitor)
        return stage, point, _same

    def _exact_stage(self) -> Stage:
        step = LevenbergMarquardtStep()
        monitor = StageMonitor(self, tolerances=(self._ftol, self._xtol, self._gtol))
        return Stage(self.problem, EXACT_WEIGHTS, step, self._ftol, EXACT, monitor)

    def _status(self, result: Any) -> int:
        if result.status is Status.STALLED and self._is_rounding():
            self._remark += _ROUNDING
            return _FTOL
        return {
            Status.CONVERGED: _FTOL,
            Status.MAX_ITER: _MAX_NFEV,
            Status.STALLED: STALLED,
            Status.DIVERGED: STALLED,
            Status.STOPPED: self.reason,
            Status.INTERRUPTED: INTERRUPTED,
        }[result.status]

    def _is_rounding(self) -> bool:
        """Whether the cost cannot resolve the first of the rejected steps.

        Relative changes of a minimum are lost if they are less than the root of the
        precision of the residuals.
        """
        changes = self.history.since(-(_MAX_REJECTED + 1))["change"]
        return changes[0] <= np.sqrt(self.problem.model.precision)

    def result(self, status: int, point: Any, upper: float) -> RobustLeastSquaresResult:
        """The result that ends at a point, given the bound of the last step."""
        problem, model, kernel = self.problem, self.problem.model, self.problem.kernel
        weights, point = problem.confidence(point), model.linearized(point)
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
            "nit": len(self.history),
            "status": status,
            "message": _MESSAGES[status] + self._remark,
            "success": status > 0,
            "weights": weights,
            "tau": problem.tau,
            "upper_bound": upper,
            "history": self.history.to_bunch(),
        }
        base = getattr(kernel, "kernel", kernel)
        fit = Fit(
            kernel,
            base,
            problem.tau,
            model.residual_dim,
            model.structure,
            model.jacobian_error,
        )
        return RobustLeastSquaresResult(fields, fit)

    def see(self, point: Any, cost: float) -> None:
        """Store the point if its cost is the lowest so far."""
        if cost < self._best_cost:
            self._best, self._best_cost = point, cost
            self._best_iteration = len(self.history)

    def better(self, point: Any, share: float = _SAME_COST) -> Any:
        """The point, or an earlier one whose cost is lower by more than a fraction."""
        cost = self.problem.objective(point)
        if not self._best_cost < cost - share * abs(cost):
            return point
        k = self._best_iteration
        self._remark = _EARLIER.format("x0" if k == 0 else f"iteration {k}")
        return self._best

    def update(self, point: Any, record: dict[str, Any]) -> bool:
        """Report an iteration; True if the callback requests termination."""
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

    def _print(self, record: dict[str, Any]) -> None:
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


def _same(point: Any) -> Any:
    return point


def _inner(point: Any) -> Any:
    return point.inner


class StageMonitor(Monitor):
    """Report each iteration to the run, and test the tolerances if they are given.

    `to_inner` maps the points of the stage to those of the problem. The criterion tests
    ftol after accepted steps. Here, it is tested after a rejected one as well: close to
    the minimum, rounding errors of the residuals can exceed the decrease that is left.
    """

    def __init__(
        self,
        run: Run,
        to_inner: Callable[[Any], Any] = _same,
        tolerances: tuple[float, float, float] | None = None,  # ftol, xtol, gtol
    ) -> None:
        self._run = run
        self._to_inner = to_inner
        self._tolerances = tolerances

    def inferred(self, point: Any, inferred: Inferred) -> None:
        """The lower bound is the cost at the point."""
        self._run.see(self._to_inner(point), inferred.trial.lower)

    def end(self, point: Any, record: dict[str, Any]) -> bool:
        """True if the run has to stop; sets the reason."""
        point = self._to_inner(point)
        if self._run.update(point, record):
            return True
        if self._tolerances is None:
            return False
        ftol, xtol, gtol = self._tolerances
        # The change is infinite if the step was only small because of the damping.
        # (This norm is finite where squares of parameters are not.)
        small = np.isfinite(record["change"]) and record["step_norm"] <= xtol * (
            xtol + scipy.linalg.norm(point.theta, check_finite=False)
        )
        if record["optimality"] <= gtol:
            self._run.reason = _GTOL
        elif small:
            self._run.reason = _XTOL
        elif not record["accepted"] and record["change"] <= ftol:
            self._run.reason = _FTOL
        else:
            return False
        return True
