"""The four roles of the solver, and the records that are passed between them.

A *problem* gives lower and upper bounds of J(theta) for a given effort, a *criterion*
decides whether the bounds are close enough, an *inference* strategy increases the
effort until they are, and a *step* updates theta on the upper bound. The loop in
`loop.py` only depends on these four.

What is known at a theta is a *point*: it is made by the problem and passed to inference
and step by the loop, and a step returns the next one. What outlives a theta (a damping,
a momentum, an effort learnt from earlier iterations) is declared as state of the step
or of the inference.

A larger *effort* always means tighter bounds. Its unit depends on the problem: passes
of an iterative scheme, or 1/sigma in [0, 1] for half-quadratic weights.
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
        Gradient of the upper bound with respect to theta for fixed latent variables.
        Only needed by gradient steps.
    gap_curvature : float, default=0.0
        The gap with each of its terms multiplied by the corresponding curvature in
        theta. It is about half the squared error that the gap may cause in the
        gradient. Only needed by the stochastic criterion.
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
    """Proposed step for a trial. Subclasses add what the step needs."""

    decrease: float  # of the upper bound, achieved or guaranteed
    # The point with what was computed there for the proposal, such as a Jacobian. None
    # if nothing was.
    point: Any = field(default=None, kw_only=True)


@dataclass(slots=True)
class Trial:
    """Result of inference with one effort, which is passed to the criterion.

    Parameters
    ----------
    bounds : Bounds
        Bounds of J at the current theta.
    effort : float
        The effort that was used.
    latent : object, default=None
        The latent variables, in the form used by the problem.
    propose : callable, default=None
        Computes the proposal of the step. It is called on first access, since it may
        require the solution of a linear system.
    point : Point, default=None
        What is known at theta, including what was computed for the proposal.

    Attributes
    ----------
    upper, lower, gap : float
        The bounds and their difference.
    """

    bounds: Bounds
    effort: float
    latent: Any = None
    propose: Callable[[Trial], Proposal] | None = None
    _proposal: Proposal | None = None
    point: Any = None
    upper: float = field(init=False)
    lower: float = field(init=False)
    gap: float = field(init=False)

    def __post_init__(self) -> None:
        bounds = self.bounds
        self.upper, self.lower = bounds.upper, bounds.lower
        self.gap = self.upper - self.lower

    @property
    def proposal(self) -> Proposal:
        """The proposed step."""
        if self._proposal is None:
            assert self.propose is not None
            self._proposal = self.propose(self)
            if self._proposal.point is not None:
                self.point = self._proposal.point
        return self._proposal

    @property
    def decrease(self) -> float:
        """Decrease of the upper bound that the next step guarantees."""
        return self.proposal.decrease


@dataclass(frozen=True, slots=True)
class Memory:
    """What criteria know about earlier iterations.

    Parameters
    ----------
    previous_upper : float
        The upper bound accepted in the previous iteration.
    first_upper : float
        The upper bound at the start, relative to which values are considered zero.
    iteration : int, default=0
        Number of earlier iterations.
    rejected : int, default=0
        Number of consecutive steps that were not accepted.
    """

    previous_upper: float
    first_upper: float
    iteration: int = 0
    rejected: int = 0

    @classmethod
    def start(cls, upper: float) -> Memory:
        """Memory of a run that starts from the given upper bound."""
        return cls(previous_upper=upper, first_upper=upper)

    def after(self, trial: Trial, accepted: bool) -> Memory:
        """Memory for the next iteration; a rejected step keeps the previous bound."""
        return Memory(
            trial.upper if accepted else self.previous_upper,
            self.first_upper,
            self.iteration + 1,
            0 if accepted else self.rejected + 1,
        )


@dataclass(frozen=True, slots=True)
class Inferred:
    """Result of an inference strategy."""

    trial: Trial
    satisfied: bool
    work: float  # total effort, including discarded trials
    prescribed: bool = False  # the criterion fixed the effort in advance
    capped: bool = False  # the maximum effort did not satisfy the criterion


@dataclass(frozen=True, slots=True)
class Moved:
    """Result of a step: the next point and its distance from the last one.

    Parameters
    ----------
    point : Point
        What is known at the next theta.
    change : float
        Size of the change of theta, in the relative measure of the step.
    accepted : bool, default=True
        Whether the step was accepted. If False, the point is the previous one.
    info : dict
        Additional columns of the history.
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
        """Latent variables of a cold start on the given rows."""

    def infer(self, point: Any, latent: Any, effort: float) -> Any:
        """Improve the latent variables by an effort; may reuse the given buffers."""

    def evaluate(self, point: Any, latent: Any) -> Bounds:
        """Bounds of J, and the gradient if the step needs it."""


class RestartedProblem(LatentProblem, Protocol):
    """A problem with latent variables that are recomputed in each iteration."""

    def cold_bounds(self, point: Any, effort: float) -> Bounds:
        """Bounds of all rows with latent variables inferred from scratch."""


class SurrogateProblem(LatentProblem, Protocol):
    """A problem whose upper bound can be minimised over theta in closed form."""

    def minimize_upper(self, point: Any, latent: Any) -> tuple[Array, float, float]:
        """Minimiser, decrease of the upper bound, and relative change of theta."""


class NormalSystem(Protocol):
    """Linearised least-squares problem that can be solved for several dampings."""

    @property
    def gradient(self) -> Array:
        """Gradient of the upper bound."""

    def damped_step(self, damping: float) -> tuple[Array, float] | None:
        """Step and the decrease predicted by the linear model.

        The damping is relative to the diagonal of the normal matrix. None if the
        system cannot be solved.
        """


@dataclass
class LargestColumns:
    """The largest squared norm so far of each column of the Jacobians of a run."""

    squares: Any = 0.0


class LeastSquaresProblem(LatentProblem, Protocol):
    """A problem whose upper bound is a sum of squares of nonlinear residuals."""

    def linearized(self, point: Any) -> Any:
        """The point with the Jacobian of the residuals there."""

    def normal_system(
        self, point: Any, latent: Any, columns: LargestColumns
    ) -> NormalSystem:
        """Gauss-Newton model of the upper bound."""

    def retract(self, point: Any, delta: Array) -> Array:
        """Theta moved by a step."""

    def decrease(self, point: Any, latent: Any, new: Any) -> float:
        """Decrease of the upper bound between two points; nan if undefined."""


class Criterion(Protocol):
    """Decides when an upper bound is accurate enough to update theta.

    Public base class: `sklearn_mm.criteria.Criterion`.
    """

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Whether theta may be updated on this upper bound."""

    def attainable(self, trial: Trial, memory: Memory) -> bool:
        """Whether more effort can satisfy the criterion."""

    def excessive(self, trial: Trial, memory: Memory) -> bool:
        """Whether the bound is tighter than the criterion requires."""

    def prescribe(self, memory: Memory) -> float | None:
        """The effort to use, for criteria that fix it in advance."""

    def converged(self, trial: Trial, moved: Moved, memory: Memory, tol: float) -> bool:
        """Whether the run may end after this update."""


class Step(Protocol):
    """Moves theta so that the upper bound decreases.

    State that outlives a theta is declared as fields of the step.
    """

    def propose(
        self, problem: Any, point: Any, trial: Trial, rejected: Proposal | None = None
    ) -> Proposal:
        """Propose a step for this trial.

        After a rejected step, `rejected` is the proposal for the same point and latent
        variables.
        """

    def take(self, problem: Any, point: Any, inferred: Inferred) -> Moved:
        """Make the step; the memory of the gradient may be used for it."""


class Inference(Protocol):
    """Increases the effort until the criterion holds; owns the latent variables."""

    criterion: Any

    def __call__(
        self, problem: Any, point: Any, batch: Batch, memory: Memory, step: Step
    ) -> Inferred:
        """Infer latent variables of these rows accurately enough at the point."""
