"""Steps that move theta on the upper bound."""

from __future__ import annotations

from dataclasses import dataclass

from sklearn_mm._solver.roles import Array, Inferred, Moved, SurrogateProblem, Trial


@dataclass(frozen=True)
class SurrogateMinimizer:
    """Go to the minimiser of the upper bound (line 3 of Algorithm 1).

    The problem keeps the solution with the latent, so a criterion that asked for the
    decrease has not made the step dearer.
    """

    def decrease(self, problem: SurrogateProblem, theta: Array, trial: Trial) -> float:
        """Upper bound here minus upper bound at its minimiser."""
        return problem.minimize_upper(theta, trial.latent)[1]

    def __call__(
        self, problem: SurrogateProblem, theta: Array, inferred: Inferred
    ) -> Moved:
        trial = inferred.trial
        new, decrease, change = problem.minimize_upper(theta, trial.latent)
        return Moved(new, change, info={"decrease": decrease})
