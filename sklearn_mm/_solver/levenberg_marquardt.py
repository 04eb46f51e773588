r"""Levenberg-Marquardt steps on the upper bound of a least-squares problem.

For fixed latents, the upper bound is half a sum of squares. Its Gauss-Newton model is
damped by ``damping`` times the diagonal of the normal matrix (Marquardt's scaling:
steps do not depend on the units of the parameters), or by the largest diagonal so far
(Moré's: a parameter whose column almost vanishes at a point is damped nevertheless).
The step is accepted if the upper bound itself decreases. The damping follows Nielsen's
rule: after a success it shrinks by a factor that depends smoothly on how well the model
predicted the decrease, after consecutive failures, it grows by factors of 2, 4, 8, ...

A rejected step changes nothing but the damping. An accepted one is a sufficient descent
in the sense of the paper's appendix, as required by the theory of the criteria.

References
----------
K. Madsen, H. B. Nielsen, O. Tingleff, "Methods for Non-Linear Least Squares Problems",
2nd ed., 2004, section 3.2.

J. J. Moré, "The Levenberg-Marquardt Algorithm: Implementation and Theory", 1977.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sklearn_mm._solver.roles import (
    Array,
    Inferred,
    LargestColumns,
    LeastSquaresProblem,
    Moved,
    NormalSystem,
    Proposal,
    Trial,
)

# Decreases below this share of the bound are rounding noise, whatever their sign.
_NOISE = 64.0 * np.finfo(np.float64).eps
# The damping at the beginning, and the factor by which the first failure multiplies it.
_INITIAL_DAMPING, _FIRST_GROWTH = 1e-4, 2.0


@dataclass
class DampedStep(Proposal):
    """The solution of a damped system, and the system to solve again."""

    system: NormalSystem
    damping: float
    delta: Array | None  # None if there is no finite solution


@dataclass
class LevenbergMarquardtStep:
    """Damped Gauss-Newton step; holds the damping of a run and its scale.

    If a criterion that prescribes the effort changes it (the next level of a graduated
    scheme), the objective is a new one, and the damping is reset.
    """

    min_damping: float = 1e-12
    max_shrink: float = 3.0  # largest factor by which a success divides the damping
    # The state of a run.
    damping: float = _INITIAL_DAMPING
    growth: float = _FIRST_GROWTH  # of the damping after the next failure
    level: float = np.nan  # the effort that was prescribed last
    columns: LargestColumns = field(default_factory=LargestColumns)

    def propose(
        self,
        problem: LeastSquaresProblem,
        point: Any,
        trial: Trial,
        rejected: Proposal | None = None,
    ) -> DampedStep:
        """The damped step, and the decrease that the linear model predicts for it."""
        if isinstance(rejected, DampedStep):
            return self._solve(rejected.point, rejected.system)
        point = problem.linearized(point)
        # If the model overflows, the step is not finite and is rejected.
        with np.errstate(over="ignore", invalid="ignore"):
            system = problem.normal_system(point, trial.latent, self.columns)
        return self._solve(point, system)

    def take(
        self, problem: LeastSquaresProblem, point: Any, inferred: Inferred
    ) -> Moved:
        """Accept the step if the upper bound itself decreases."""
        trial = inferred.trial
        if inferred.prescribed and trial.effort != self.level:
            self.level = trial.effort
            self.damping, self.growth = _INITIAL_DAMPING, _FIRST_GROWTH
        step = trial.proposal
        assert isinstance(step, DampedStep)
        if step.damping != self.damping:
            step = self._solve(step.point, step.system)
        info = {
            "damping": self.damping,
            "optimality": float(np.abs(step.system.gradient).max()),
            "decrease": 0.0,
            "step_norm": 0.0,
        }
        if step.delta is None:
            return self._rejected(step.point, info)
        predicted = step.decrease
        info["step_norm"] = float(np.linalg.norm(step.delta))
        theta = problem.retract(point, step.delta)
        # A step that does not change theta requires no evaluation.
        new = step.point if np.array_equal(theta, point.theta) else problem.at(theta)
        actual = problem.decrease(point, trial.latent, new)
        noise = _NOISE * trial.upper
        # At the minimum, up to rounding errors, the linear model is more reliable than
        # the bound. (Unless the step is only so small because of the damping after
        # failed steps.)
        polishing = predicted <= noise and actual >= -noise and not self._has_failed
        # A decrease below the prediction says little about the distance to the minimum,
        # so the larger of the two is used.
        change = max(abs(actual), predicted) / max(trial.upper, np.finfo(float).tiny)
        if not (actual > 0.0 or polishing):  # nan: residuals are not defined there
            return self._rejected(step.point, info, change)
        info["decrease"] = actual
        self._shrink(1.0 if predicted <= noise else min(actual / predicted, 1.0))
        return Moved(new, change, info=info)

    def _solve(self, point: Any, system: NormalSystem) -> DampedStep:
        with np.errstate(over="ignore", invalid="ignore"):
            solved = system.damped_step(self.damping)
            if solved is not None:
                delta, decrease = solved
                if np.isfinite([float(np.linalg.norm(delta)), decrease]).all():
                    return DampedStep(
                        decrease, system, self.damping, delta, point=point
                    )
        return DampedStep(0.0, system, self.damping, None, point=point)

    def _rejected(
        self, point: Any, info: dict[str, float], change: float = np.inf
    ) -> Moved:
        # Further steps are small because of the damping, which says nothing.
        if self._has_failed or not np.isfinite(change):
            change = np.inf
        self.damping *= self.growth
        self.growth *= 2.0
        return Moved(point, change, accepted=False, info=info)

    @property
    def _has_failed(self) -> bool:
        """Whether the latest step was rejected."""
        return self.growth > _FIRST_GROWTH

    def _shrink(self, quality: float) -> None:
        factor = max(1.0 / self.max_shrink, 1.0 - (2.0 * quality - 1.0) ** 3)
        self.damping = max(self.damping * factor, self.min_damping)
        self.growth = _FIRST_GROWTH
