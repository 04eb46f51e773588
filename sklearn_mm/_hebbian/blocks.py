"""Mini-batches from the blocks of a Dask array, where these are.

An epoch visits one block after another, as it does for files. The state of training
(theta, the state of the step, what inference has learnt, the random number generator)
travels from block to block, and the updates are computed by the worker that holds the
block: neither rows nor targets pass through the caller, and updates, batches and random
numbers are those of a fit that reads the same blocks from a file.

The state is a value of a task, not that of an actor. If a worker is lost, Dask repeats
the epoch from its first state, which the graph contains.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sklearn_mm._hebbian.energy import Array
from sklearn_mm._hebbian.problem import ContrastiveProblem
from sklearn_mm._hebbian.safeguard import Safeguard, is_sound
from sklearn_mm._rows.sources import DaskTargets
from sklearn_mm._rows.table import row_chunks
from sklearn_mm._solver.history import History
from sklearn_mm._solver.loop import Monitor, Progress, run_epoch
from sklearn_mm._solver.roles import Indices, Inferred, Memory


def shuffled(numbers: Indices, random_state: np.random.RandomState | None) -> Indices:
    """Numbers, shuffled in place unless there is no source of random numbers."""
    if random_state is not None:
        random_state.shuffle(numbers)
    return numbers


def _weighted_rows(weight: Array) -> Indices:
    """Numbers of the rows that have weight. A mini-batch of others has no mean."""
    if not weight.strides[0]:  # all weights are the same number
        return np.arange(len(weight))
    return np.flatnonzero(weight > 0)


def batches_of_block(
    weight: Array, batch_size: int, random_state: np.random.RandomState | None
) -> Iterator[Indices]:
    """Mini-batches of all rows of a block that have weight."""
    order = shuffled(_weighted_rows(weight), random_state)
    for rows in row_chunks(len(order), batch_size):
        yield order[rows]


def batches_of_epoch(
    blocks: list[slice],
    weight: Array,
    batch_size: int,
    random_state: np.random.RandomState | None,
) -> Iterator[Indices]:
    """Mini-batches of all rows that have weight, from one block after another."""
    for i in shuffled(np.arange(len(blocks)), random_state):
        for rows in batches_of_block(weight[blocks[i]], batch_size, random_state):
            yield blocks[i].start + rows


class _Watch(Monitor):
    """Remembers the last theta whose bound has not blown up."""

    def __init__(self, first_upper: float) -> None:
        self._first = first_upper
        self.theta: Array | None = None

    def inferred(self, point: Any, inferred: Inferred) -> None:
        if is_sound(inferred.trial.upper, self._first):
            self.theta = point.theta


@dataclass(frozen=True)
class Training:
    """The state of training between two blocks."""

    theta: Array
    previous: Array  # theta before the last update
    memory: Memory
    step: Any
    inference: Any
    random_state: np.random.RandomState | None
    sound: Array | None = None  # the last theta that was seen to be sound
    finite: bool = True
    history: History = field(default_factory=History)  # of this epoch


def train_on_block(
    X: Array,
    Y: Array,
    weight: Array,
    state: Training,
    bare: ContrastiveProblem,
    batch_size: int,
    first_upper: float,
) -> Training:
    """Visit all rows of a block; the state is left as it is."""
    if not state.finite:
        return state
    state = copy.deepcopy(state)
    problem = replace(bare, X=X, Y=Y, sample_weight=weight)
    watch = _Watch(first_upper)
    with np.errstate(over="ignore", invalid="ignore"):
        progress = Progress(problem.at(state.theta), state.memory, state.previous)
        finite = run_epoch(
            progress,
            problem,
            batches_of_block(weight, batch_size, state.random_state),
            inference=state.inference,
            step=state.step,
            history=state.history,
            tol=None,
            monitor=watch,
        )
    return Training(
        progress.point.theta,
        progress.previous,
        progress.memory,
        state.step,
        state.inference,
        state.random_state,
        state.sound if watch.theta is None else watch.theta,
        finite,
        state.history,
    )


@dataclass(frozen=True)
class EpochOnBlocks:
    """An epoch of the loop whose updates are made by the workers of a cluster."""

    trainer: Any
    problem: ContrastiveProblem
    monitor: Safeguard
    random_state: np.random.RandomState
    rows: Any  # BlockRows
    columns: tuple[Any, Any]  # targets and sample weights, beside the rows

    @classmethod
    def of(
        cls,
        trainer: Any,
        problem: ContrastiveProblem,
        monitor: Safeguard,
        random_state: np.random.RandomState,
    ) -> EpochOnBlocks:
        """Place targets and weights beside the rows."""
        rows = problem.X.in_blocks()
        targets = problem.Y.array
        if isinstance(targets, DaskTargets):
            targets = targets.array
        Y = replace(problem.Y, array=rows.keep(rows.place(targets)))
        columns = (Y, rows.place(problem.sample_weight))
        return cls(trainer, problem, monitor, random_state, rows, columns)

    def __call__(self, progress: Progress) -> bool:
        """Run an epoch; False if a bound is not finite."""
        trainer, random_state = self.trainer, self.random_state
        source = random_state if trainer.estimator.shuffle else None
        order = shuffled(np.arange(len(self.rows.chunks)), source)
        state = Training(
            progress.point.theta,
            progress.previous,
            progress.memory,
            trainer.step,
            trainer.inference,
            source,
        )
        first = self.monitor.first_upper
        args = (self.problem.without_rows(), trainer.batch_size, first)
        state = self.rows.fold(
            train_on_block, state, *self.columns, args=args, order=order
        )
        trainer.step, trainer.inference = state.step, state.inference
        if state.random_state is not None:
            random_state.set_state(state.random_state.get_state())
        self.monitor.history.extend(state.history)
        if state.sound is not None:
            self.monitor.sound = self.problem.at(state.sound)
        progress.point = self.problem.at(state.theta)
        progress.memory, progress.previous = state.memory, state.previous
        return state.finite
