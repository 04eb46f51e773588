"""Steps that update theta on the upper bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sklearn_mm._solver.roles import (
    Array,
    Inferred,
    Moved,
    Proposal,
    SurrogateProblem,
    Trial,
)


@dataclass
class Minimizer(Proposal):
    """The minimiser of an upper bound."""

    theta: Array
    change: float


@dataclass(frozen=True)
class SurrogateMinimizer:
    """Go to the minimiser of the upper bound (line 3 of Algorithm 1)."""

    def propose(
        self,
        problem: SurrogateProblem,
        point: Any,
        trial: Trial,
        rejected: Proposal | None = None,
    ) -> Minimizer:
        """The minimiser and the decrease of the upper bound."""
        theta, decrease, change = problem.minimize_upper(point, trial.latent)
        return Minimizer(decrease, theta, change)

    def take(self, problem: SurrogateProblem, point: Any, inferred: Inferred) -> Moved:
        """Move theta to the minimiser."""
        proposal = inferred.trial.proposal
        assert isinstance(proposal, Minimizer)
        info = {"decrease": proposal.decrease}
        return Moved(problem.at(proposal.theta), proposal.change, info=info)
