"""Strategies that increase the effort until the criterion holds.

`EffortBisection`
    for latents with a closed form that is made *less accurate* on purpose: effort 1 is
    exact, effort 0 is least accurate, and the criterion requires a value in between.
`DoublingRestart`
    for latents that are recomputed from scratch with R passes (constant memory:
    Algorithm 4 of the paper's appendix); R doubles until the criterion holds on the
    sums over all chunks of rows.
`Continuation`
    for the latents of one mini-batch, which are kept and improved.
`Persistent`
    for latents of all rows that are never discarded: a baseline.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sklearn_mm._solver.roles import (
    Batch,
    Bounds,
    Criterion,
    Inferred,
    LatentProblem,
    Memory,
    Proposal,
    RestartedProblem,
    Step,
    Trial,
)


def _trial(
    problem: Any,
    point: Any,
    latent: Any,
    bounds: Bounds,
    effort: float,
    step: Step,
    rejected: Proposal | None = None,
) -> Trial:
    """A trial whose proposal is made by the step on first access."""
    propose = functools.partial(step.propose, problem, point, rejected=rejected)
    return Trial(bounds, effort, latent, propose, point=point)


def _is_final(criterion: Criterion, trial: Trial, memory: Memory) -> bool:
    """Whether more effort is of no use, satisfied or not."""
    return not (math.isfinite(trial.upper) and criterion.attainable(trial, memory))


@dataclass
class EffortBisection:
    """Search effort in [0, 1] for the loosest bound that the criterion accepts.

    The search is geometric in the slack sigma**2 - 1, where sigma = 1/effort, which is
    natural at either end, and starts near the effort of the previous round. Effort 1
    (exact latents) is accepted whatever the criterion says, since nothing can be
    tighter; effort 0 is taken when even that is tighter than the criterion cares for.
    After a rejected step the latents stay as they are.
    """

    criterion: Criterion
    effort: float = 1.0
    # The first guess shrinks 1 - effort**2 by this factor. Latents deviate from exact
    # ones in proportion to it, and the gap with its square, which ReGeMM reduces by a
    # factor between 1 - eta_prime and 1 - eta: 0.61**2 lies in the middle.
    contraction: float = 0.61
    resolution: float = 1e-4  # of effort, where the search gives up
    floor: float = 1e-8  # efforts below are tried as 0
    last: Inferred | None = None  # the previous round's outcome
    latent: Any = None  # of the first round's point, where there is one already

    def __call__(
        self,
        problem: LatentProblem,
        point: Any,
        batch: Batch,
        memory: Memory,
        step: Step,
    ) -> Inferred:
        prescribed = self.criterion.prescribe(memory)
        if prescribed is not None and not 0.0 <= prescribed <= 1.0:
            raise ValueError(
                f"{type(self.criterion).__name__} prescribes an effort of "
                f"{prescribed:g}. Efforts of half-quadratic weights are in [0, 1]: 1 "
                "for exact weights, 0 for all-ones."
            )
        last = self.last if memory.rejected else None
        if last is not None and prescribed in (None, last.trial.effort):
            again = self._again(problem, point, memory, step, last)
            if again is not None:
                return again
        latent = problem.start(batch) if self.latent is None else self.latent
        self.latent = self.last = last = None
        n_trials, latest = 0, None

        def attempt(effort: float) -> Trial:
            nonlocal latent, n_trials, latest
            # What an earlier proposal has computed at the point is used again.
            here = point if latest is None else latest.point
            n_trials += 1
            latent = problem.infer(here, latent, effort)
            bounds = problem.evaluate(here, latent)
            latest = _trial(problem, here, latent, bounds, effort, step)
            return latest

        if prescribed is None:
            trial = self._search(attempt, attempt(self.guess), memory)
            # A round of zero effort says nothing about the next one's.
            self.effort = trial.effort or self.effort
        else:
            trial = attempt(prescribed)
        satisfied = self.criterion.satisfied(trial, memory)
        self.last = Inferred(trial, satisfied, float(n_trials), prescribed is not None)
        return self.last

    @property
    def guess(self) -> float:
        """The effort that the next search begins with."""
        return math.sqrt(1.0 - self.contraction * (1.0 - self.effort**2))

    def _again(
        self, problem: Any, point: Any, memory: Memory, step: Step, last: Inferred
    ) -> Inferred | None:
        """The latents of a rejected step, unless they no longer suffice.

        The step may promise less than before the rejection.
        """
        old = last.trial
        trial = _trial(
            problem, point, old.latent, old.bounds, old.effort, step, old.proposal
        )
        if last.satisfied and not self.criterion.satisfied(trial, memory):
            return None
        self.last = replace(last, trial=trial, work=0.0)
        return self.last

    def _search(
        self, attempt: Callable[[float], Trial], trial: Trial, memory: Memory
    ) -> Trial:
        tight: Trial | None = None  # the loosest trial that satisfied the criterion
        loose = 0.0  # the largest effort that did not
        while True:
            if self.criterion.satisfied(trial, memory):
                tight = trial
                if trial.effort == 0.0 or not self.criterion.excessive(trial, memory):
                    return trial
            else:
                # Effort 0 counts as the floor: there is a bracket from there on.
                loose = max(trial.effort, self.floor)
                if trial.effort >= 1.0:
                    return trial
            trial = self._next(attempt, tight, loose)
            if tight is not None and trial is tight:
                return tight

    def _next(
        self, attempt: Callable[[float], Trial], tight: Trial | None, loose: float
    ) -> Trial:
        """The next trial, or `tight` itself when the bracket cannot be narrowed."""
        if tight is None:  # not satisfied yet: tighten towards exact latents
            slack = _slack(loose) / _TIGHTEN
            return attempt(_effort(slack) if slack > self.resolution else 1.0)
        if loose == 0.0:  # satisfied all the way: loosen, in strides where far out
            slack = max(_slack(tight.effort), self.resolution)
            effort = _effort(slack * (_LOOSEN if slack < 1.0 else _LOOSEN_FAR))
            return attempt(effort if effort > self.floor else 0.0)
        if math.log(tight.effort / loose) < self.resolution:
            return tight
        if tight.effort == 1.0:  # its slack of zero has no logarithm
            return attempt(_effort(_slack(loose) / _TIGHTEN))
        return attempt(_effort(math.sqrt(_slack(tight.effort) * _slack(loose))))


# Factors of the slack in the search for a bracket.
_TIGHTEN, _LOOSEN, _LOOSEN_FAR = 4.0, 2.0, 16.0


def _slack(effort: float) -> float:
    """The slack sigma**2 - 1 of an effort 1/sigma in (0, 1]."""
    return (1.0 - effort) * (1.0 + effort) / effort**2


def _effort(slack: float) -> float:
    """The effort of a slack."""
    return 1.0 / math.sqrt(1.0 + slack)


@dataclass
class DoublingRestart:
    """Infer all chunks of rows from scratch, doubling the number of passes each time.

    Latents are discarded after use, so that memory does not grow with the number of
    rows. Doubling takes at most four times the smallest sufficient number of passes.
    """

    criterion: Criterion
    effort: float = 1.0
    max_effort: float = math.inf

    def __call__(
        self,
        problem: RestartedProblem,
        point: Any,
        batch: Batch,
        memory: Memory,
        step: Step,
    ) -> Inferred:
        prescribed = self.criterion.prescribe(memory)
        effort = self.effort if prescribed is None else prescribed
        work = 0.0
        while True:
            effort = min(effort, self.max_effort)
            bounds = problem.cold_bounds(point, effort)
            work += effort
            trial = _trial(problem, point, None, bounds, effort, step)
            satisfied = self.criterion.satisfied(trial, memory)
            capped = not satisfied and effort >= self.max_effort
            if satisfied or capped or _is_final(self.criterion, trial, memory):
                return Inferred(trial, satisfied, work, capped=capped)
            effort *= 2.0


@dataclass
class Continuation:
    """Improve the latents of one mini-batch until the criterion holds.

    The effort before the first test is learnt from batch to batch: it grows by one when
    it was not enough, and shrinks by one after `patience` batches in a row for which it
    was. So about one batch in `patience` takes a second test, which costs as much as
    several passes.
    """

    criterion: Criterion
    effort: float = 1.0
    min_effort: float = 1.0
    max_effort: float = math.inf
    growth: float = 1.5  # of the effort from test to test of one batch
    patience: int = 8
    successes: int = 0

    def __call__(
        self,
        problem: LatentProblem,
        point: Any,
        batch: Batch,
        memory: Memory,
        step: Step,
    ) -> Inferred:
        prescribed = self.criterion.prescribe(memory)
        latent = problem.start(batch)
        made, wanted = 0.0, self.effort if prescribed is None else prescribed
        first = True
        while True:
            wanted = min(wanted, self.max_effort)
            latent = problem.infer(point, latent, wanted - made)
            made = wanted
            bounds = problem.evaluate(point, latent)
            trial = _trial(problem, point, latent, bounds, made, step)
            satisfied = self.criterion.satisfied(trial, memory)
            capped = not satisfied and made >= self.max_effort
            if satisfied or capped or _is_final(self.criterion, trial, memory):
                self._learn(first)
                return Inferred(trial, satisfied, made, capped=capped)
            first = False
            wanted = max(made + 1.0, math.floor(made * self.growth))

    def _learn(self, enough: bool) -> None:
        """Adapt the effort to whether it was enough for a batch."""
        self.successes = self.successes + 1 if enough else 0
        if not enough:
            self.effort = min(self.max_effort, self.effort + 1.0)
        elif self.successes >= self.patience:
            self.successes = 0
            self.effort = max(self.min_effort, self.effort - 1.0)


@dataclass
class Persistent:
    """Keep the latents of all rows and improve them by a fixed effort in every round.

    The alternating baseline of the paper's experiments; its memory grows with the
    number of rows.
    """

    criterion: Criterion
    effort: float = 1.0
    latent: Any = None

    def __call__(
        self,
        problem: LatentProblem,
        point: Any,
        batch: Batch,
        memory: Memory,
        step: Step,
    ) -> Inferred:
        if self.latent is None:
            self.latent = problem.start(batch)
        self.latent = problem.infer(point, self.latent, self.effort)
        bounds = problem.evaluate(point, self.latent)
        trial = _trial(problem, point, self.latent, bounds, self.effort, step)
        satisfied = self.criterion.satisfied(trial, memory)
        return Inferred(trial, satisfied, self.effort)
