"""Inference of mini-batches with as few passes as the criterion allows.

Batches are similar to each other. Therefore, the number of passes, the mean pulls from
which the free phase starts, the damping of its passes, and the share of the output
error that remains in the clamped phase are passed on from batch to batch, as fields of
`MiniBatches`. In full batches and in prediction, the start only depends on the row.

An update is subject to two tests (`_StochasticStep.propose`): one of the certified gap
between the bounds of J, as in the paper, and one of the error in the gradient that the
clamped part of the gap may cause. The free part causes none, in the sense that the
gradient in use is exactly that of a nearby network (`difference`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sklearn_mm._hebbian.difference import DifferencePhases, Experience
from sklearn_mm._hebbian.energy import (
    Array,
    Energy,
    row_products,
    sum_of_products,
    unpack,
)
from sklearn_mm._hebbian.point import CONTRACTS, Point, contraction
from sklearn_mm._hebbian.problem import Batch, ContrastiveProblem, clamped_passes
from sklearn_mm._hebbian.schedule import Schedule
from sklearn_mm._solver.inference import Continuation, _trial
from sklearn_mm._solver.roles import (
    Bounds,
    Inferred,
    Memory,
    Step,
    Trial,
)
from sklearn_mm._solver.vectors import add_multiple
from sklearn_mm.criteria import Fixed

# The damping is learnt in each of the first updates, and in one of eight later on.
_FIRST_LESSONS, _LESSON_EVERY = 50, 8
# A layer is refreshed once less (`schedule`) if the criterion would be satisfied with
# its gap larger by the first factor, which is tested in one of so many batches. A pass
# of the clamped phase less is tried after so many batches.
_SPARE, _ASK_EVERY, _PATIENCE = 3000.0, 4, 32
_LONGEST_PATIENCE = 64  # of full batches
# Number of updates after which the norms of the matrices, which determine the method of
# inference, are computed again.
_LOOK_EVERY = 256
# Numbers of rows that memory is kept for.
_SPACES = 2
# A gap that a pass does not halve, and that is smaller than this share of the bound, is
# due to rounding.
_ROUNDING = 1e-5


@dataclass
class Workspace:
    """Memory for batches of one size, used again by each of them."""

    phases: DifferencePhases
    x: Array
    gradient: Array
    views: tuple[list[Array], list[Array]]

    @classmethod
    def of(
        cls, energy: Energy, n_rows: int, n_parameters: int, dtype: Any
    ) -> Workspace:
        gradient = np.empty(n_parameters, dtype)
        return cls(
            DifferencePhases(energy, n_rows, dtype),
            np.empty((n_rows, energy.sizes[0]), dtype),
            gradient,
            unpack(gradient, energy.sizes),
        )


@dataclass
class MiniBatches:
    """Infer mini-batches, and learn from each of them for the next one."""

    criterion: Any
    max_effort: int = 200
    experience: Experience | None = None
    schedule: Schedule | None = None  # of the free phase
    clamped_passes: int = 1
    n_updates: int = 0
    spared: int = 0  # consecutive batches with clamped passes to spare
    slow: bool = False  # passes do not contract, according to the norms or to a batch
    continuation: Continuation = field(
        default_factory=lambda: Continuation(Fixed(), effort=4.0, min_effort=2.0)
    )
    # By number of rows: that of all batches, and that of the last one of an epoch.
    spaces: dict[int, Workspace] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "spaces": {}}

    def __call__(
        self,
        problem: ContrastiveProblem,
        point: Point,
        rows: Any,
        memory: Memory,
        step: Step,
    ) -> Inferred:
        if self.n_updates % _LOOK_EVERY == 0:
            self.slow = contraction(point.network, CONTRACTS) > CONTRACTS
        self.n_updates += 1
        if not self.slow and not problem.coordinate:
            inferred = self._difference(problem, point, rows, memory, step)
            if inferred is not None:
                return inferred
            self.slow = True
        self.continuation = replace(
            self.continuation,
            criterion=self.criterion,
            max_effort=float(self.max_effort),
            min_effort=float(min(2, self.max_effort)),
        )
        if not problem.coordinate:  # even if the norms have become smaller
            point = replace(point, method="modulus")
        problem, point = problem.in_precision(point.prepared())
        return self.continuation(problem, point, rows, memory, step)

    def _difference(
        self,
        problem: ContrastiveProblem,
        point: Point,
        rows: Any,
        memory: Memory,
        step: Step,
    ) -> Inferred | None:
        """Both phases in difference form; None if their passes do not contract."""
        network, energy = point.network, problem.energy
        space = self._space(problem, point, len(rows))
        batch = problem.gather(rows, space.x)
        squares = problem.sum_of_squares(batch)  # while the rows are in the cache
        phases = space.phases
        problem.drive(network, batch.x, out=phases.drive)
        prescribed = self.criterion.prescribe(memory)
        experience = self.experience if prescribed is None else None
        tops, clamped, kappa = self._plan(energy, prescribed)
        lesson = self.n_updates <= _FIRST_LESSONS or self.n_updates % _LESSON_EVERY == 0
        phases.free(network, tops, experience, lesson)
        free, first = len(tops), clamped
        gaps: list[float] | None = None  # by layer, if the free phase had to go on
        previous = math.inf
        while True:
            phases.clamped(network, batch.Y, clamped, kappa)
            bounds, parts = self._bounds(problem, point, batch, squares, space)
            effort = float(max(free, clamped))
            trial = _trial(problem, point, None, bounds, effort, step)
            trial.latent = parts
            gap = parts[0] + parts[1]
            if not math.isfinite(gap) or (gap > 0.5 * previous and not _tiny(trial)):
                if prescribed is None:
                    return None
            satisfied = self.criterion.satisfied(trial, memory)
            # A gap that is due to rounding cannot be reduced, and is accepted.
            satisfied = satisfied or (gap > 0.5 * previous and _tiny(trial))
            capped = not satisfied and effort >= self.max_effort
            if satisfied or capped or prescribed is not None:
                break
            previous = gap
            more_free, more_clamped = self._more(trial, parts, energy)
            if more_free:
                gaps = gaps or phases.free_gaps()
                phases.more_free(network)
            free, clamped = free + more_free, clamped + more_clamped
        if experience is not None:
            self._adapt(trial, memory, phases, gaps, clamped > first)
            if lesson or self.n_updates % _ASK_EVERY == 0:
                phases.remember_pulls(experience)
                phases.remember_error(experience)
        return Inferred(trial, satisfied, effort, capped=capped)

    def _plan(
        self, energy: Energy, prescribed: float | None
    ) -> tuple[list[int], int, float]:
        """Passes of the free and the clamped phase, and the share of the error."""
        if prescribed is None:
            assert self.schedule is not None and self.experience is not None
            tops = self.schedule.tops[: self.max_effort]
            return tops, self.clamped_passes, self.experience.kappa
        # A given effort, from a start that does not depend on other batches.
        passes = min(round(prescribed), self.max_effort)
        H = energy.n_hidden
        return [H] * passes if H > 1 else [], clamped_passes(passes), 1.0

    def _more(
        self, trial: Trial, parts: tuple[float, float], energy: Energy
    ) -> tuple[bool, bool]:
        """Which phases cause most of the gap, and need another pass."""
        free_gap, clamped_gap = parts
        curved = trial.bounds.gap_curvature > trial.gap
        # Both gaps contain what the free phase leaves.
        mostly_free = 2.0 * free_gap > 0.5 * (free_gap + clamped_gap)
        return energy.n_hidden > 1 and mostly_free, curved or not mostly_free

    def _adapt(
        self,
        trial: Trial,
        memory: Memory,
        phases: DifferencePhases,
        gaps: list[float] | None,
        more_clamped: bool,
    ) -> None:
        """Choose the passes for the next batch.

        `gaps` are those of the layers if they were too large.
        """
        schedule = self.schedule
        assert schedule is not None
        if gaps is not None:
            schedule.add(gaps, self.max_effort)
        elif self.n_updates % _ASK_EVERY == 0:
            gaps = phases.free_gaps()
            layer, needed = schedule.spare(gaps), True
            if layer is not None:
                share = gaps[layer] / (sum(gaps) or 1.0)
                needed = not self._would_do(trial, memory, share)
            schedule.tested(layer, needed)
        if more_clamped:
            self.clamped_passes = min(self.clamped_passes + 1, self.max_effort)
            self.spared = 0
        elif self.clamped_passes > 1:
            self.spared += 1
            if self.spared >= _PATIENCE:
                self.clamped_passes, self.spared = self.clamped_passes - 1, 0

    def _would_do(self, trial: Trial, memory: Memory, share: float) -> bool:
        """Whether a share of the free gap could be much larger."""
        known, free_gap = trial.bounds, trial.latent[0]
        # The gaps of both phases contain it.
        wider = known.lower - 2.0 * _SPARE * share * free_gap
        bounds = Bounds(known.upper, wider, known.gradient, known.gap_curvature)
        # Its own proposal, since the free gap does not change the gradient's error.
        wide = Trial(bounds, trial.effort, None, trial.propose)
        return bool(self.criterion.satisfied(wide, memory))

    def _space(self, problem: ContrastiveProblem, point: Point, n: int) -> Workspace:
        space = self.spaces.get(n)
        if (
            space is None
            or space.phases.energy is not problem.energy
            or space.phases.dtype != problem.dtype
        ):
            if len(self.spaces) >= _SPACES:
                self.spaces.clear()
            size = len(point.theta)
            space = Workspace.of(problem.energy, n, size, problem.dtype)
            self.spaces[n] = space
        if self.experience is None:
            self.experience = Experience.none(problem.energy)
            self.schedule = Schedule.first(problem.energy.n_hidden)
        return space

    def _bounds(
        self,
        problem: ContrastiveProblem,
        point: Point,
        batch: Batch,
        squares: float,
        space: Workspace,
    ) -> tuple[Bounds, tuple[float, float]]:
        """Bounds of a batch as a whole, and the gaps of its two phases."""
        phases, share = space.phases, batch.share
        values = problem.energy.loss.value(phases.output_hat, batch.Y)
        if not isinstance(share, np.ndarray):
            loss = float(values.sum())
            made = phases.measure(squares, sum_of_products, loss, share)
        else:

            def inner(a: Array, b: Array) -> float:
                return float(share @ row_products(a, b))

            made = phases.measure(squares, inner, float(share @ values))
        phases.gradient(batch.x, share, space.views, problem.common)
        gradient, theta = space.gradient, point.theta
        penalty = problem.penalty(point)
        if problem.alpha:
            add_multiple(gradient, problem.alpha, theta, problem.energy.n_weights)
        gap = float(made.free_gap + made.clamped_gap)
        upper = float(made.upper)
        lower = max(upper - gap, 0.0)
        bounds = Bounds(
            upper + penalty,
            min(lower, upper) + penalty,
            gradient,
            0.5 * float(made.curvature),
        )
        return bounds, (float(made.free_gap), float(made.clamped_gap))


def _tiny(trial: Trial) -> bool:
    return trial.gap <= _ROUNDING * abs(trial.upper)


@dataclass
class FullBatches:
    """Infer all rows from scratch in each round, with passes learnt from the last one.

    Latents are discarded after use, as in `DoublingRestart` of the solver. Since rounds
    are similar to each other, the first trial uses as many passes as the last round
    needed, and sometimes one less.
    """

    criterion: Any
    max_effort: float = math.inf
    min_effort: float = 2.0
    effort: float = 4.0
    growth: float = 1.5
    patience: int = 8
    successes: int = 0
    tried: bool = False  # whether the last round was the first with one pass less

    def __call__(
        self,
        problem: ContrastiveProblem,
        point: Point,
        batch: Any,
        memory: Memory,
        step: Step,
    ) -> Inferred:
        prescribed = self.criterion.prescribe(memory)
        effort = self.effort if prescribed is None else prescribed
        prepared = point.prepared()  # for all efforts that are tried
        first, work = effort, 0.0
        while True:
            effort = min(effort, self.max_effort)
            bounds = problem.cold_bounds(prepared, effort)
            work += effort
            trial = _trial(problem, point, None, bounds, effort, step)
            satisfied = self.criterion.satisfied(trial, memory)
            capped = not satisfied and effort >= self.max_effort
            final = not math.isfinite(trial.upper) or capped or satisfied
            if final or not self.criterion.attainable(trial, memory):
                if prescribed is None:
                    self._learn(effort, enough=effort <= first)
                return Inferred(trial, satisfied, work, capped=capped)
            effort = max(effort + 1.0, math.floor(effort * self.growth))

    def _learn(self, effort: float, enough: bool) -> None:
        """Choose the effort of the next round.

        If one pass less is not enough at once, it will be tried less often, since all
        passes have been in vain.
        """
        if self.tried and not enough:
            self.patience = min(2 * self.patience, _LONGEST_PATIENCE)
        self.effort, self.tried = effort, False
        self.successes = self.successes + 1 if enough else 0
        if self.successes >= self.patience:
            self.successes = 0
            self.effort = max(self.min_effort, effort - 1.0)
            self.tried = self.effort < effort
