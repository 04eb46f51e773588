"""The four roles of the solver, and the small records that pass between them.

A *problem* bounds J(theta) from both sides for a given effort, a *criterion* says
whether the bounds are close enough, an *inference* strategy raises the effort until
they are, and a *step* moves theta on the upper bound. The loop in `loop.py` knows these
four and nothing else.

What is known at a theta is a *point*: the problem makes it, the loop carries it and
hands it to inference and step, and a step returns the next one. What outlives a theta
(a damping, a momentum, an effort learnt from earlier rounds) is declared state of the
step or of the inference.

*Effort* always means "more is tighter". What it counts is up to the problem: passes of
an iterative scheme, or 1/sigma in [0, 1] for half-quadratic weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Indices = NDArray[np.intp]
Batch = slice | Indices  # a slice is a part of the whole sum
ALL_ROWS = slice(None)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Certified bounds of J at one theta: ``lower <= J(theta) <= upper``.

    Bounds of disjoint parts of the rows add up to the bounds of their union.

    Parameters
    ----------
    upper, lower : float
        The bounds.
    gradient : ndarray or None, default=None
        Gradient of the upper bound in theta with the latents held fixed; needed by
        gradient steps only.
    gap_curvature : float, default=0.0
        The gap, each part of it multiplied by the curvature in theta where it arose:
        about half the square of the error that it may leave in the gradient. Needed by
        the stochastic criterion only.
    """

    upper: float
    lower: float
    gradient: Array | None = None
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


@dataclass
class Proposal:
    """What a step would do on a trial; steps add what they need to do it."""

    decrease: float  # of the upper bound, achieved or guaranteed


@dataclass(slots=True)
class Trial:
    """What inference at one effort arrived at; what a criterion looks at.

    Parameters
    ----------
    bounds : Bounds
        Bounds of J at the current theta.
    effort : float
        The effort that was made.
    latent : object, default=None
        The latent variables, in the problem's own form.
    propose : callable, default=None
        Makes the step's proposal; called when that is first asked for, since it may
        cost a linear solve.

    Attributes
    ----------
    upper, lower, gap : float
        The bounds, and their difference.
    """

    bounds: Bounds
    effort: float
    latent: Any = None
    propose: Callable[[Trial], Proposal] | None = None
    _proposal: Proposal | None = None
    upper: float = field(init=False)
    lower: float = field(init=False)
    gap: float = field(init=False)

    def __post_init__(self) -> None:
        bounds = self.bounds
        self.upper, self.lower = bounds.upper, bounds.lower
        self.gap = self.upper - self.lower

    @property
    def proposal(self) -> Proposal:
        """What the step would do."""
        if self._proposal is None:
            assert self.propose is not None
            self._proposal = self.propose(self)
        return self._proposal

    @property
    def decrease(self) -> float:
        """Decrease of the upper bound that the next step guarantees."""
        return self.proposal.decrease


@dataclass(frozen=True, slots=True)
class Memory:
    """All that criteria know of earlier rounds.

    Parameters
    ----------
    previous_upper : float
        The upper bound accepted in the previous round.
    first_upper : float
        The one of the start, as a yardstick for "zero".
    iteration : int, default=0
        Number of earlier rounds.
    rejected : int, default=0
        Number of steps in a row that were not accepted.
    """

    previous_upper: float
    first_upper: float
    iteration: int = 0
    rejected: int = 0

    @classmethod
    def start(cls, upper: float) -> Memory:
        """Memory of a run that begins at that upper bound."""
        return cls(previous_upper=upper, first_upper=upper)

    def after(self, trial: Trial, accepted: bool) -> Memory:
        """Memory for the next round; a rejected step keeps the previous bound."""
        return Memory(
            trial.upper if accepted else self.previous_upper,
            self.first_upper,
            self.iteration + 1,
            0 if accepted else self.rejected + 1,
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
    """Outcome of a step: the next point, and how far it is from the last one.

    Parameters
    ----------
    point : Point
        What is known at the next theta.
    change : float
        Size of the move in the step's own relative measure.
    accepted : bool, default=True
        False if the point is the old one.
    info : dict
        Further columns of the history.
    """

    point: Any
    change: float
    accepted: bool = True
    info: dict[str, float] = field(default_factory=dict)


class Point(Protocol):
    """Everything that is known at one theta."""

    @property
    def theta(self) -> Array:
        """The parameters."""


class LatentProblem(Protocol):
    """A sum over rows of objectives, each a minimum over a latent variable."""

    def at(self, theta: Array) -> Any:
        """The point of a theta."""

    def start(self, batch: Batch) -> Any:
        """Latent of a cold start on these rows."""

    def infer(self, point: Any, latent: Any, effort: float) -> Any:
        """Improve the latent by that effort; the argument's buffers may be reused."""

    def evaluate(self, point: Any, latent: Any) -> Bounds:
        """Bounds of J, and the gradient where the step needs it."""


class RestartedProblem(LatentProblem, Protocol):
    """A problem whose latents are recomputed in every round, chunk by chunk."""

    def cold_bounds(self, point: Any, effort: float) -> Bounds:
        """Bounds of all rows with latents inferred from scratch, and thrown away."""


class SurrogateProblem(LatentProblem, Protocol):
    """A problem whose upper bound can be minimised over theta in closed form."""

    def minimize_upper(self, point: Any, latent: Any) -> tuple[Array, float, float]:
        """Minimiser, decrease of the upper bound, and relative size of the move."""


class NormalSystem(Protocol):
    """Linearised least squares, ready to be solved for several dampings."""

    @property
    def gradient(self) -> Array:
        """Gradient of the upper bound."""

    def damped_step(self, damping: float) -> tuple[Array, float] | None:
        """Step, and the decrease that the linear model predicts for it.

        The damping is relative to the diagonal of the normal matrix. None if the
        system cannot be solved.
        """


class LeastSquaresProblem(LatentProblem, Protocol):
    """A problem whose upper bound is a sum of squares of nonlinear residuals."""

    def normal_system(self, point: Any, latent: Any) -> NormalSystem:
        """The upper bound's Gauss-Newton model."""

    def retract(self, point: Any, delta: Array) -> Array:
        """Theta moved by a step."""

    def decrease(self, point: Any, latent: Any, new: Any) -> float:
        """Decrease of the upper bound from a point to another; nan if undefined."""


class Criterion(Protocol):
    """Says when an upper bound is good enough to move theta on it.

    Public base class: `sklearn_mm.criteria.Criterion`.
    """

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Whether theta may be moved on this upper bound."""

    def attainable(self, trial: Trial, memory: Memory) -> bool:
        """Whether more effort can satisfy the criterion."""

    def excessive(self, trial: Trial, memory: Memory) -> bool:
        """Whether the bound is tighter than the criterion asks for."""

    def prescribe(self, memory: Memory) -> float | None:
        """The effort to make, for criteria that fix it in advance."""

    def converged(self, trial: Trial, moved: Moved, memory: Memory, tol: float) -> bool:
        """Whether the run may end after this update."""


class Step(Protocol):
    """Moves theta so that the upper bound decreases.

    State that outlives a theta is declared as fields of the step.
    """

    def propose(
        self, problem: Any, point: Any, trial: Trial, rejected: Proposal | None = None
    ) -> Proposal:
        """What the step would do on this trial.

        After a rejected step, `rejected` is the proposal that was made for the same
        point and latent.
        """

    def take(self, problem: Any, point: Any, inferred: Inferred) -> Moved:
        """Make the step."""


class Inference(Protocol):
    """Raises the effort until the criterion holds; owns latents and their buffers."""

    criterion: Any

    def __call__(
        self, problem: Any, point: Any, batch: Batch, memory: Memory, step: Step
    ) -> Inferred:
        """Infer latents of these rows, accurately enough at the point."""


class Monitor:
    """Hears of every update and every epoch; this one keeps silent."""

    def begin(self) -> None:
        """Called before an epoch."""

    def inferred(self, point: Any, inferred: Inferred) -> None:
        """Called before every step with what it is made on."""

    def end(self, point: Any, record: dict[str, float]) -> bool:
        """Called after an epoch with its last record; True stops the run."""
        return False
