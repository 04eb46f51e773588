"""Stages of a run with an effort in [0, 1].

In the first stage, a criterion decides how accurate the latent variables are. Once its
certificate is tight, exact latent variables (effort 1) take over, which converge
faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sklearn_mm._solver.history import History
from sklearn_mm._solver.inference import EffortBisection
from sklearn_mm._solver.loop import Monitor, Result, Status, minimize
from sklearn_mm._solver.roles import (
    ALL_ROWS,
    Criterion,
    LatentProblem,
    Memory,
    Step,
)


@dataclass(frozen=True)
class Stage:
    """A run of the loop: what it minimises, how, and how far."""

    problem: LatentProblem
    criterion: Criterion
    step: Step
    tol: float
    effort: float  # of the latents that give the first previous bound
    monitor: Monitor | None = None

    def run(
        self,
        point: Any,
        history: History,
        max_iter: int,
        *,
        max_rejected: int = 10,
        interruptible: bool = False,
    ) -> Result:
        """Run from a point."""
        latent = self.problem.infer(point, self.problem.start(ALL_ROWS), self.effort)
        first = self.problem.evaluate(point, latent).upper
        return minimize(
            self.problem,
            point,
            inference=EffortBisection(
                self.criterion, effort=self.effort, latent=latent
            ),
            step=self.step,
            memory=Memory(previous_upper=first, first_upper=first),
            history=history,
            max_iter=max_iter,
            tol=self.tol,
            monitor=self.monitor,
            max_rejected=max_rejected,
            interruptible=interruptible,
        )


def run_stages(
    first: Stage | None,
    last: Stage,
    point: Any,
    history: History,
    max_iter: int,
    *,
    between: Callable[[Any], Any] | None = None,
    max_rejected: int = 10,
    interruptible: bool = False,
) -> Result:
    """The criterion's own stage, if there is one, then the exact one.

    Parameters
    ----------
    first, last : Stage
        The stages.
    point : Point
        Starting point of the first stage.
    history : History
        Records the updates of both stages.
    max_iter : int
        Maximum number of iterations of both stages together.
    between : callable or None, default=None
        Maps the last point of the first stage to the first of the last.
    max_rejected, interruptible : int, bool
        Passed on to the loop.
    """
    options: dict[str, Any] = {
        "max_rejected": max_rejected,
        "interruptible": interruptible,
    }
    if first is not None:
        result = first.run(point, history, max_iter, **options)
        max_iter -= result.n_iter
        if between is not None:
            result = replace(result, point=between(result.point))
        if result.status not in (Status.CONVERGED, Status.STALLED):
            return result
        if max_iter <= 0:
            return replace(result, status=Status.MAX_ITER)
        point = result.point
    return last.run(point, history, max_iter, **options)
