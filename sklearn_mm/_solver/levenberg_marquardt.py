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
    Trial,
)

# Decreases below this share of the bound are rounding noise, whatever their sign.
_NOISE = 64.0 * np.finfo(np.float64).eps
# Factor by which the first failure multiplies the damping.
_FIRST_GROWTH = 2.0


@dataclass
class LevenbergMarquardtStep:
    """Damped Gauss-Newton step; holds the damping of a run.

    When a criterion that fixes the effort in advance changes it, the objective is a new
    one (the next level of a graduated scheme) and the damping starts again.
    """

    initial_damping: float = 1e-4
    min_damping: float = 1e-12
    max_shrink: float = 3.0  # largest factor by which a success divides the damping

    def __post_init__(self) -> None:
        self._effort = np.nan
        self._latent: Any = None  # the one that the two next belong to
        self._system: NormalSystem | None = None
        self._solution: tuple[float, tuple[Array, float] | None] | None = None
        self._restart()

    def decrease(
        self, problem: LeastSquaresProblem, theta: Array, trial: Trial
    ) -> float:
        """Decrease that the linear model predicts for the damped step."""
        solved = self._solved(problem, theta, trial)
        return 0.0 if solved is None else solved[1]

    def __call__(
        self, problem: LeastSquaresProblem, theta: Array, inferred: Inferred
    ) -> Moved:
        trial = inferred.trial
        if inferred.prescribed and trial.effort != self._effort:
            self._effort = trial.effort
            self._restart()
        gradient = self._linearized(problem, theta, trial).gradient
        info = {
            "damping": self.damping,
            "optimality": float(np.abs(gradient).max()),
            "decrease": 0.0,
            "step_norm": 0.0,
        }
        solved = self._solved(problem, theta, trial)
        if solved is None:
            return self._rejected(theta, info)
        delta, predicted = solved
        info["step_norm"] = float(np.linalg.norm(delta))
        new = problem.retract(theta, delta)
        actual = problem.decrease(theta, trial.latent, new)
        noise = _NOISE * trial.upper
        # At the minimum to rounding, the linear model is a better judge than the bound.
        # (But not if only the damping of steps that failed has made the step so small.)
        polishing = predicted <= noise and actual >= -noise and not self._has_failed
        if not (actual > 0.0 or polishing):  # nan: residuals are not defined there
            return self._rejected(theta, info)
        info["decrease"] = actual
        self._shrink(1.0 if predicted <= noise else min(actual / predicted, 1.0))
        # A decrease that fell short of the prediction says little about the distance
        # to the minimum; hence the larger of the two.
        change = max(actual, predicted) / max(trial.upper, np.finfo(float).tiny)
        return Moved(new, change, info=info)

    def _rejected(self, theta: Array, info: dict[str, float]) -> Moved:
        self.damping *= self._growth
        self._growth *= 2.0
        return Moved(theta, np.inf, accepted=False, info=info)

    @property
    def _has_failed(self) -> bool:
        """Whether the latest step was rejected."""
        return self._growth > _FIRST_GROWTH

    def _linearized(
        self, problem: LeastSquaresProblem, theta: Array, trial: Trial
    ) -> NormalSystem:
        if self._system is None or self._latent is not trial.latent:
            # A model that overflows has no finite step, and is rejected for that.
            with np.errstate(over="ignore", invalid="ignore"):
                self._system = problem.normal_system(theta, trial.latent)
            self._latent, self._solution = trial.latent, None
        return self._system

    def _solved(
        self, problem: LeastSquaresProblem, theta: Array, trial: Trial
    ) -> tuple[Array, float] | None:
        """Step and predicted decrease; None if there is no finite one."""
        system = self._linearized(problem, theta, trial)
        if self._solution is None or self._solution[0] != self.damping:
            with np.errstate(over="ignore", invalid="ignore"):
                solved = system.damped_step(self.damping)
                if solved is not None:
                    norm = float(np.linalg.norm(solved[0]))
                    if not np.isfinite([norm, solved[1]]).all():
                        solved = None
            self._solution = self.damping, solved
        return self._solution[1]

    def _restart(self) -> None:
        self.damping, self._growth = self.initial_damping, _FIRST_GROWTH

    def _shrink(self, quality: float) -> None:
        factor = max(1.0 / self.max_shrink, 1.0 - (2.0 * quality - 1.0) ** 3)
        self.damping = max(self.damping * factor, self.min_damping)
        self._growth = _FIRST_GROWTH
