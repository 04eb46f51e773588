"""The four roles of the solver, and the small records that pass between them.

A *problem* bounds J(theta) from both sides for a given effort, a *criterion* says
whether the bounds are close enough, an *inference* strategy raises the effort until
they are, and a *step* moves theta on the upper bound. The loop in `_loop.py` knows
these four and nothing else.

*Effort* always means "more is tighter". What it counts is the problem's affair: passes
of an iterative scheme, or 1/sigma in [0, 1] for half-quadratic weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = slice | NDArray[np.intp]
ALL_ROWS = slice(None)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Certified bounds of J at one theta: ``lower <= J(theta) <= upper``.

    Bounds of disjoint row chunks add up to the bounds of their union.
    """

    upper: float
    lower: float
    gradient: Array | None = None  # of the upper bound in theta, latent held fixed
    # The gap, every part of it times the curvature in theta where it arose: about half
    # the square of the error that it may leave in the gradient.
    gap_curvature: float = 0.0

    @property
    def gap(self) -> float:
        """Certified accuracy of the inference."""
        return self.upper - self.lower

    def __add__(self, other: Bounds) -> Bounds:
        gradient = None
        if self.gradient is not None and other.gradient is not None:
            gradient = self.gradient + other.gradient
        return Bounds(
            self.upper + other.upper,
            self.lower + other.lower,
            gradient,
            self.gap_curvature + other.gap_curvature,
        )


@dataclass(slots=True)
class Trial:
    """What inference at one effort arrived at; what a criterion looks at."""

    bounds: Bounds
    effort: float
    latent: Any = None
    _decrease: Callable[[], float] | None = None
    _known_decrease: float | None = None

    @property
    def upper(self) -> float:
        """Upper bound of J at the current theta."""
        return self.bounds.upper

    @property
    def lower(self) -> float:
        """Lower bound of J at the current theta."""
        return self.bounds.lower

    @property
    def gap(self) -> float:
        """Upper minus lower bound."""
        return self.bounds.gap

    @property
    def decrease(self) -> float:
        """Decrease of the upper bound that the next step guarantees.

        Computed when first asked for: it may cost a linear solve.
        """
        if self._known_decrease is None:
            self._known_decrease = 0.0 if self._decrease is None else self._decrease()
        return self._known_decrease


@dataclass(frozen=True, slots=True)
class Memory:
    """All that is carried from one update of theta to the next."""

    previous_upper: float  # upper bound accepted in the previous round
    first_upper: float  # the one of the start, as a yardstick for "zero"
    iteration: int = 0
    rejected: int = 0  # steps in a row that were not accepted

    @classmethod
    def start(cls, upper: float) -> Memory:
        """Memory of a run that begins at that upper bound."""
        return cls(previous_upper=upper, first_upper=upper)

    def after(self, trial: Trial, accepted: bool) -> Memory:
        """Memory for the next round; a rejected step keeps the previous bound."""
        return replace(
            self,
            previous_upper=trial.upper if accepted else self.previous_upper,
            iteration=self.iteration + 1,
            rejected=0 if accepted else self.rejected + 1,
        )


@dataclass(frozen=True, slots=True)
class Inferred:
    """Outcome of an inference strategy."""

    trial: Trial
    satisfied: bool
    work: float  # effort spent in all, discarded tries included
    prescribed: bool = False  # the criterion had fixed the effort in advance
    capped: bool = False  # the cap on effort was reached with the test unmet


@dataclass(frozen=True, slots=True)
class Moved:
    """Outcome of a step: the new theta, and how far it is from the old one."""

    theta: Array
    change: float  # size of the move in the step's own relative measure
    accepted: bool = True
    info: dict[str, float] = field(default_factory=dict)  # further history columns


class LatentProblem(Protocol):
    """A sum over rows of objectives, each a minimum over a latent variable."""

    def start(self, rows: Rows) -> Any:
        """Latent of a cold start on these rows."""

    def infer(self, theta: Array, latent: Any, effort: float) -> Any:
        """Improve the latent by that effort; the argument's buffers may be reused."""

    def evaluate(self, theta: Array, latent: Any) -> Bounds:
        """Bounds of J at theta, and the gradient where the step needs it."""


class ChunkedProblem(LatentProblem, Protocol):
    """A problem whose bounds are sums over rows, wherever these are worked on."""

    def map_parts(
        self,
        function: Callable[..., Any],
        theta: Array,
        chunks: Sequence[slice],
        n_jobs: int | None,
        *arguments: Any,
    ) -> Iterator[Any]:
        """Values of ``function(part, theta, *arguments)`` for chunks, in order.

        A part is a problem whose bounds add up to those of the whole.
        """


class SurrogateProblem(LatentProblem, Protocol):
    """A problem whose upper bound can be minimised over theta in closed form."""

    def minimize_upper(self, theta: Array, latent: Any) -> tuple[Array, float, float]:
        """Minimiser, decrease of the upper bound, and relative size of the move."""


class NormalSystem(Protocol):
    """Linearised least squares, ready to be solved for several dampings."""

    gradient: Array  # of the upper bound

    def damped_step(self, damping: float) -> tuple[Array, float] | None:
        """Step, and the decrease that the linear model predicts for it.

        The damping is relative to the diagonal of the normal matrix. None if the
        system cannot be solved.
        """


class LeastSquaresProblem(LatentProblem, Protocol):
    """A problem whose upper bound is a sum of squares of nonlinear residuals."""

    def normal_system(self, theta: Array, latent: Any) -> NormalSystem:
        """The upper bound's Gauss-Newton model at theta."""

    def retract(self, theta: Array, delta: Array) -> Array:
        """Theta moved by a step."""

    def decrease(self, theta: Array, latent: Any, new: Array) -> float:
        """Decrease of the upper bound from theta to new; nan if there is none."""


class Criterion(Protocol):
    """Says when an upper bound is good enough to move theta on it.

    Public base class: `sklearn_mm.criteria.Criterion`.
    """

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Whether theta may be moved on this upper bound."""

    def attainable(self, trial: Trial, memory: Memory) -> bool:
        """Whether more effort can satisfy the criterion."""

    def excessive(self, trial: Trial, memory: Memory) -> bool:
        """Whether the bound is tighter than the criterion cares for."""

    def prescribe(self, memory: Memory) -> float | None:
        """The effort to make, for criteria that fix it in advance."""

    def converged(self, trial: Trial, moved: Moved, memory: Memory, tol: float) -> bool:
        """Whether the run may end after this update."""


class Step(Protocol):
    """Moves theta so that the upper bound decreases."""

    def decrease(self, problem: Any, theta: Array, trial: Trial) -> float:
        """Decrease of the upper bound that a call would achieve or guarantee."""

    def __call__(self, problem: Any, theta: Array, inferred: Inferred) -> Moved:
        """Make the step."""


class Inference(Protocol):
    """Raises the effort until the criterion holds; owns latents and their buffers."""

    criterion: Criterion

    def __call__(
        self, problem: Any, theta: Array, rows: Rows, memory: Memory, step: Step
    ) -> Inferred:
        """Infer latents of these rows, accurately enough at theta."""


class Monitor:
    """Hears of every epoch; this one keeps silent. May ask the loop to stop."""

    def begin(self) -> None:
        """Called before an epoch."""

    def end(self, theta: Array, record: dict[str, float]) -> bool:
        """Called after an epoch with its last record; True stops the run."""
        return False
