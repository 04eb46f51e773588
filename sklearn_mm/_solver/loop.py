"""The only outer loop of the package."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sklearn_mm._solver.history import History
from sklearn_mm._solver.roles import (
    ALL_ROWS,
    Array,
    Inference,
    LatentProblem,
    Memory,
    Monitor,
    Rows,
    Step,
)

# A bound that is so many times the one of the start is on its way to infinity.
BLOWN_UP = 10.0


class Status(enum.Enum):
    """Why a run ended; the value is a message for users."""

    CONVERGED = "the stopping rule of the criterion was met"
    MAX_ITER = "the maximum number of iterations was reached"
    STOPPED = "a callback asked to stop"
    INTERRUPTED = "interrupted by the user"
    STALLED = "no step was accepted any more"
    DIVERGED = "the upper bound is no longer finite"


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of a run."""

    theta: Array
    n_iter: int
    status: Status
    memory: Memory
    sound: Array  # the last theta whose bound is known not to have blown up


def whole_batch() -> Iterable[Rows]:
    """One batch that holds every row."""
    return (ALL_ROWS,)


def minimize(
    problem: LatentProblem,
    theta: Array,
    *,
    inference: Inference,
    step: Step,
    memory: Memory,
    history: History,
    max_iter: int,
    tol: float | None,
    batches: Callable[[], Iterable[Rows]] = whole_batch,
    monitor: Monitor | None = None,
    max_rejected: int = 10,
    interruptible: bool = False,
) -> Result:
    """Majorize and minimize until the criterion's stopping rule holds.

    An epoch goes through ``batches()``; on each, latents are inferred as accurately as
    the criterion asks and theta is moved on the upper bound that they define
    (Algorithms 1 to 3 of the paper, and 4 with a restarting inference). With a `tol` of
    None, the criterion is not asked when to stop. If `interruptible`, a
    KeyboardInterrupt ends the run with the last update that was finished; before the
    first one it is raised, as it always is otherwise.
    """
    monitor = Monitor() if monitor is None else monitor
    sound = theta
    epoch = 0
    try:
        for epoch in range(max_iter):
            monitor.begin()
            converged = True
            for rows in batches():
                inferred = inference(problem, theta, rows, memory, step)
                if not math.isfinite(inferred.trial.upper):
                    return Result(sound, epoch + 1, Status.DIVERGED, memory, sound)
                if inferred.trial.upper <= BLOWN_UP * memory.first_upper:
                    sound = theta
                moved = step(problem, theta, inferred)
                history.append(inferred, moved, memory)
                converged &= tol is not None and inference.criterion.converged(
                    inferred.trial, moved, memory, tol
                )
                memory = memory.after(inferred.trial, moved.accepted)
                theta = moved.theta
            history.end_epoch()
            if monitor.end(theta, history.last()):
                return Result(theta, epoch + 1, Status.STOPPED, memory, sound)
            if converged:
                return Result(theta, epoch + 1, Status.CONVERGED, memory, sound)
            if memory.rejected > max_rejected:
                return Result(theta, epoch + 1, Status.STALLED, memory, sound)
    except KeyboardInterrupt:
        if not (interruptible and len(history)):
            raise
        return Result(theta, epoch, Status.INTERRUPTED, memory, sound)
    return Result(theta, max_iter, Status.MAX_ITER, memory, sound)
