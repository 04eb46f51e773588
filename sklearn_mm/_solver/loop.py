"""The only outer loop of the package."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sklearn_mm._solver.history import History
from sklearn_mm._solver.roles import (
    ALL_ROWS,
    Array,
    Batch,
    Inference,
    Inferred,
    LatentProblem,
    Memory,
    Step,
)


class Status(enum.Enum):
    """Reason for termination; the value is a message for users."""

    CONVERGED = "the stopping rule of the criterion was met"
    MAX_ITER = "the maximum number of iterations was reached"
    STOPPED = "a callback asked to stop"
    INTERRUPTED = "interrupted by the user"
    STALLED = "no further step was accepted"
    DIVERGED = "the upper bound is no longer finite"


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of a run."""

    point: Any  # with what is known at the last theta
    n_iter: int
    status: Status
    memory: Memory


class Monitor:
    """Notified of each update and each epoch. This base class does nothing."""

    def begin(self) -> None:
        """Called before an epoch."""

    def inferred(self, point: Any, inferred: Inferred) -> None:
        """Called before each step with the result of inference."""

    def end(self, point: Any, record: dict[str, float]) -> bool:
        """Called after an epoch with its last record; True stops the run."""
        return False


@dataclass(slots=True)
class Progress:
    """Where a run is after each update."""

    point: Any
    memory: Memory
    previous: Array  # theta before the last update
    converged: bool = False  # according to every update of the epoch


def whole_batch() -> Iterable[Batch]:
    """A single batch that contains all rows."""
    return (ALL_ROWS,)


def run_epoch(
    progress: Progress,
    problem: LatentProblem,
    batches: Iterable[Batch],
    *,
    inference: Inference,
    step: Step,
    history: History,
    tol: float | None,
    monitor: Monitor | None,
) -> bool:
    """Update theta on each of the batches; False if a bound is not finite.

    The parameters are those of `minimize`. The progress is changed in place.
    """
    progress.converged = True
    for batch in batches:
        point, memory = progress.point, progress.memory
        inferred = inference(problem, point, batch, memory, step)
        trial = inferred.trial
        if not math.isfinite(trial.upper):
            return False
        if monitor is not None:
            monitor.inferred(point, inferred)
        # Older ones are let go of before the step makes a new one.
        progress.previous = point.theta
        moved = step.take(problem, point, inferred)
        progress.converged = progress.converged and (
            tol is not None and inference.criterion.converged(trial, moved, memory, tol)
        )
        history.append(inferred, moved, memory)
        progress.memory = memory.after(trial, moved.accepted)
        progress.point = moved.point
        # They hold what was computed at the last point: not while the next one's is.
        del inferred, trial, moved, point
    return True


def minimize(
    problem: LatentProblem,
    point: Any,
    *,
    inference: Inference,
    step: Step,
    memory: Memory,
    history: History,
    max_iter: int,
    tol: float | None,
    batches: Callable[[], Iterable[Batch]] = whole_batch,
    monitor: Monitor | None = None,
    max_rejected: int = 10,
    interruptible: bool = False,
    epoch_elsewhere: Callable[[Progress], bool] | None = None,
) -> Result:
    """Majorize and minimize until the criterion's stopping rule holds.

    An epoch iterates over ``batches()``. On each batch, latent variables are inferred
    as accurately as the criterion requires, and theta is updated by a step on the upper
    bound that they define (Algorithms 1 to 3 of the paper, and 4 with a restarting
    inference).

    Parameters
    ----------
    problem : LatentProblem
        The problem to minimise.
    point : Point
        Starting point, ``problem.at(theta)``.
    inference, step : Inference, Step
        How latents are inferred, and how theta is moved.
    memory : Memory
        Memory of criteria before the first iteration.
    history : History
        Records one row per update.
    max_iter : int
        Maximum number of epochs.
    tol : float or None
        Tolerance of the criterion's stopping rule. If None, it is not used.
    batches : callable, default=whole_batch
        Returns the batches of an epoch.
    monitor : Monitor, default=None
        Notified of updates and epochs.
    max_rejected : int, default=10
        The run ends after more consecutive rejected steps.
    interruptible : bool, default=False
        Whether a KeyboardInterrupt ends the run with the last completed update. Before
        the first update, or if False, it is raised.
    epoch_elsewhere : callable or None, default=None
        Replaces `run_epoch`, with all its parameters but the first, where batches are
        processed by other machines.

    Returns
    -------
    result : Result
        The last point; if bounds there are not finite, the one before.
    """
    progress = Progress(point, memory, point.theta)
    epoch = 0
    try:
        for epoch in range(max_iter):
            if monitor is not None:
                monitor.begin()
            if epoch_elsewhere is not None:
                finite = epoch_elsewhere(progress)
            else:
                finite = run_epoch(
                    progress,
                    problem,
                    batches(),
                    inference=inference,
                    step=step,
                    history=history,
                    tol=tol,
                    monitor=monitor,
                )
            point, memory = progress.point, progress.memory
            if not finite:
                last = problem.at(progress.previous)
                return Result(last, epoch + 1, Status.DIVERGED, memory)
            history.end_epoch()
            if monitor is not None and monitor.end(point, history.last()):
                return Result(point, epoch + 1, Status.STOPPED, memory)
            if progress.converged:
                return Result(point, epoch + 1, Status.CONVERGED, memory)
            if memory.rejected > max_rejected:
                return Result(point, epoch + 1, Status.STALLED, memory)
    except KeyboardInterrupt:
        if not (interruptible and len(history)):
            raise
        return Result(progress.point, epoch, Status.INTERRUPTED, progress.memory)
    return Result(progress.point, max_iter, Status.MAX_ITER, progress.memory)
