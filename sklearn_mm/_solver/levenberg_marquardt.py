r"""Levenberg-Marquardt steps on the upper bound of a least-squares problem.

With latents held fixed the upper bound is half a sum of squares. Its Gauss-Newton
model is damped by ``damping`` times the diagonal of the normal matrix (Marquardt's
scaling: the steps do not depend on the parameters' units), and the step is accepted if
the upper bound itself falls. The damping follows Nielsen's rule: after a success it
shrinks by a factor that depends smoothly on how well the model predicted the decrease,
after failures in a row it grows by 2, 4, 8, ...

A rejected step changes nothing but the damping. An accepted one is a sufficient descent
in the sense of the paper's appendix, which is all that the criteria's theory asks for.

References
----------
K. Madsen, H. B. Nielsen, O. Tingleff, "Methods for Non-Linear Least Squares Problems",
2nd ed., 2004, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_mm._solver.roles import (
    Array,
    Inferred,
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
    """Damped Gauss-Newton step; holds the damping of a run.

    When a criterion that fixes the effort in advance changes it, the objective is a new
    one (the next level of a graduated scheme) and the damping starts again.
    """

    min_damping: float = 1e-12
    max_shrink: float = 3.0  # largest factor by which a success divides the damping
    # The state of a run.
    damping: float = _INITIAL_DAMPING
    growth: float = _FIRST_GROWTH  # of the damping after the next failure
    level: float = np.nan  # the effort that was prescribed last

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
        # A model that overflows has no finite step, and is rejected for that.
        with np.errstate(over="ignore", invalid="ignore"):
            system = problem.normal_system(point, trial.latent)
        return self._solve(point, system)

    def take(
        self, problem: LeastSquaresProblem, point: Any, inferred: Inferred
    ) -> Moved:
        """Accept the step if the upper bound itself falls."""
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
        # A step too small to show needs no evaluation.
        new = step.point if np.array_equal(theta, point.theta) else problem.at(theta)
        actual = problem.decrease(point, trial.latent, new)
        noise = _NOISE * trial.upper
        # At the minimum to rounding, the linear model is a better judge than the bound.
        # (But not if only the damping of steps that failed has made the step so small.)
        polishing = predicted <= noise and actual >= -noise and not self._has_failed
        if not (actual > 0.0 or polishing):  # nan: residuals are not defined there
            return self._rejected(step.point, info)
        info["decrease"] = actual
        self._shrink(1.0 if predicted <= noise else min(actual / predicted, 1.0))
        # A decrease that fell short of the prediction says little about the distance
        # to the minimum; hence the larger of the two.
        change = max(actual, predicted) / max(trial.upper, np.finfo(float).tiny)
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

    def _rejected(self, point: Any, info: dict[str, float]) -> Moved:
        self.damping *= self.growth
        self.growth *= 2.0
        return Moved(point, np.inf, accepted=False, info=info)

    @property
    def _has_failed(self) -> bool:
        """Whether the latest step was rejected."""
        return self.growth > _FIRST_GROWTH

    def _shrink(self, quality: float) -> None:
        factor = max(1.0 / self.max_shrink, 1.0 - (2.0 * quality - 1.0) ** 3)
        self.damping = max(self.damping * factor, self.min_damping)
        self.growth = _FIRST_GROWTH
