r"""When is an upper bound good enough? The criteria of the paper, as objects.

In round t the parameters are :math:`\theta = \theta^{(t-1)}` and inference has found
an upper bound :math:`\bar J(\theta)` and a lower bound :math:`\underline J(\theta)` of
the objective. Before theta is moved on the upper bound, the criterion has to hold:

========================  =====================================================
`RelaxedGeneralized`      upper <= eta * lower + (1 - eta) * previous upper
`SufficientDescent`       upper - lower <= rho * (decrease of the next step)
`Fixed`                   a given effort, whatever the bounds say
`Graduated`               an effort that grows with the iterations (a baseline)
========================  =====================================================

To try one of your own, derive from `Criterion`, define ``satisfied`` and pass the
object as ``criterion`` to any estimator of the package. It receives a `Trial`, with the
bounds that inference has arrived at, and a `Memory` of earlier rounds; ``converged``
also receives the `Moved` that the step has returned. Methods that need no criterion at
all are in :mod:`sklearn_mm.baselines`.

References
----------
C. Zach and H. Le, "Truncated Inference for Latent Variable Optimization Problems",
ECCV 2020: the first is its Eq. 11 (ReGeMM), the second its Eq. 16 (SuDeMM).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn_mm._solver.roles import Bounds, Memory, Moved, Trial

__all__ = [
    "Bounds",
    "Criterion",
    "Fixed",
    "Graduated",
    "Memory",
    "Moved",
    "RelaxedGeneralized",
    "SufficientDescent",
    "Trial",
    "get_criterion",
]

# An objective this far below the start's is zero to rounding: relative tolerances on
# it would never be met when the model can fit the data exactly.
_ZERO = 1e-12


def _check(criterion: Criterion, name: str, kind: Any, sound: Any, wanted: str) -> None:
    """Raise a ValueError unless an attribute is of a kind and passes a test."""
    value = getattr(criterion, name)
    # A nan passes no test.
    if not (isinstance(value, kind) and sound(value)):
        owner = type(criterion).__name__
        raise ValueError(f"{owner}: {name} must be {wanted}, got {value!r}.")


@dataclass(frozen=True)
class Criterion:
    """Base class of the criteria.

    Only :meth:`satisfied` has to be defined. A `Trial` offers ``upper``, ``lower``,
    ``gap``, ``effort`` and ``decrease``; the `Memory` ``previous_upper``,
    ``first_upper`` and ``iteration``.

    Attributes
    ----------
    needs_full_batch : bool
        Whether the criterion compares bounds of one objective from round to round,
        which bounds of different mini-batches are not. False by default.

    Examples
    --------
    A criterion that asks for a relative duality gap:

    >>> from sklearn_mm.criteria import Criterion
    >>> class RelativeGap(Criterion):
    ...     def satisfied(self, trial, memory):
    ...         return trial.gap <= 0.1 * trial.lower
    ...     def excessive(self, trial, memory):
    ...         return trial.gap < 0.05 * trial.lower
    """

    needs_full_batch: ClassVar[bool] = False

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Whether theta may be moved on this trial's upper bound."""
        raise NotImplementedError

    def attainable(self, trial: Trial, memory: Memory) -> bool:
        """Whether more effort can help; strategies give up where it cannot.

        By default, as long as the gap is more than rounding.
        """
        return trial.gap > _ZERO * memory.first_upper

    def excessive(self, trial: Trial, memory: Memory) -> bool:
        """Whether less effort would do; strategies that can loosen then do so."""
        return False

    def prescribe(self, memory: Memory) -> float | None:
        """The effort to make, for criteria that do not look at the bounds."""
        return None

    def converged(self, trial: Trial, moved: Moved, memory: Memory, tol: float) -> bool:
        """Whether the run may end after this update; here, if theta hardly moved."""
        return moved.accepted and moved.change <= tol


@dataclass(frozen=True)
class RelaxedGeneralized(Criterion):
    """ReGeMM: close a fraction of the gap left by the previous upper bound.

    Parameters
    ----------
    eta : float, default=0.5
        Fraction of ``c_t = previous_upper - lower`` by which the upper bound has to
        fall, in (0, 1).

    eta_prime : float, default=0.75
        Fraction that the bound should not exceed where inference can be loosened, in
        (eta, 1]: meeting the criterion without surpassing it much is what makes
        ReGeMM find better minima of non-convex objectives.
    """

    needs_full_batch: ClassVar[bool] = True

    eta: float = 0.5
    eta_prime: float = 0.75

    def __post_init__(self) -> None:
        _check(self, "eta", Real, lambda eta: 0 < eta < 1, "a number in (0, 1)")
        wanted = f"a number in (eta, 1] with eta={self.eta!r}"
        _check(self, "eta_prime", Real, lambda end: self.eta < end <= 1, wanted)

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Eq. 11 of the paper.

        A step that raised J above the previous bound, as momentum may, leaves no
        effort that meets it; then the gap has to be as small compared with the rise.
        """
        if trial.lower > memory.previous_upper:
            rise = trial.lower - memory.previous_upper
            return trial.gap <= (1.0 - self.eta) * rise
        return trial.upper <= self._mix(self.eta, trial, memory)

    def excessive(self, trial: Trial, memory: Memory) -> bool:
        """The second inequality of section 6.1 fails."""
        return trial.upper < self._mix(self.eta_prime, trial, memory)

    def converged(self, trial: Trial, moved: Moved, memory: Memory, tol: float) -> bool:
        """``c_t <= tol * J``: the quantity that Proposition 1 drives to zero."""
        # Negative after a step that has raised J by as much.
        c_t = abs(memory.previous_upper - trial.lower)
        small = c_t <= tol * trial.lower + _ZERO * memory.first_upper
        # In the first round, theta has not moved since the previous bound was taken.
        return memory.iteration > 0 and moved.accepted and small

    @staticmethod
    def _mix(eta: float, trial: Trial, memory: Memory) -> float:
        # previous_upper - eta * c_t, written as in the paper.
        return eta * trial.lower + (1.0 - eta) * memory.previous_upper


@dataclass(frozen=True)
class SufficientDescent(Criterion):
    """SuDeMM: the gap stays below a fraction of what the next step gains.

    Parameters
    ----------
    rho : float, default=0.5
        The fraction, positive. The proofs need it below one.

    power_t : float, default=0.0
        In round t the fraction is ``rho / t**power_t``. The stochastic method's proof
        needs a summable sequence, i.e. a power above one; full batches need none.
    """

    rho: float = 0.5
    power_t: float = 0.0

    def __post_init__(self) -> None:
        wanted = "a positive, finite number"
        _check(self, "rho", Real, lambda rho: 0 < rho < math.inf, wanted)
        wanted = "a non-negative, finite number"
        _check(self, "power_t", Real, lambda power: 0 <= power < math.inf, wanted)

    # Where inference can be loosened, "the largest gap allowed" is found to this
    # fraction.
    _window = 0.9

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Eq. 16 of the paper, with the step's own decrease on the right."""
        return trial.gap <= self.rho_at(memory.iteration) * trial.decrease

    def attainable(self, trial: Trial, memory: Memory) -> bool:
        """Whether the gap is more than rounding, by itself or in the gradient.

        Where the curvature is large, a gap that is nothing compared with J still
        spoils the gradient.
        """
        spoils = trial.bounds.gap_curvature > 0.0 and trial.decrease > 0.0
        return spoils or super().attainable(trial, memory)

    def excessive(self, trial: Trial, memory: Memory) -> bool:
        """The gap is well below what is allowed."""
        allowed = self._window * self.rho_at(memory.iteration)
        return trial.gap < allowed * trial.decrease

    def converged(self, trial: Trial, moved: Moved, memory: Memory, tol: float) -> bool:
        """The decrease, which bounds the gap, is small, or theta hardly moved."""
        small = tol * trial.lower + _ZERO * memory.first_upper
        return moved.accepted and (trial.decrease <= small or moved.change <= tol)

    def rho_at(self, iteration: int) -> float:
        """Value of rho in a round, counted from zero."""
        return self.rho * math.pow(iteration + 1.0, -self.power_t)


@dataclass(frozen=True)
class Fixed(Criterion):
    """A given effort in every round.

    The robust solvers finish with exact weights, whatever the effort.

    Parameters
    ----------
    effort : float or None, default=None
        Number of inference passes, or 1/sigma for half-quadratic weights (1 means
        exact weights, i.e. iteratively reweighted least squares). None takes the
        estimator's own: ``n_passes``, or exact weights.
    """

    effort: float | None = None

    def __post_init__(self) -> None:
        if self.effort is not None:
            wanted = "None or a non-negative number"
            _check(self, "effort", Real, lambda effort: effort >= 0, wanted)

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Always."""
        return True

    def prescribe(self, memory: Memory) -> float | None:
        """The given effort."""
        return self.effort


@dataclass(frozen=True)
class Graduated(Criterion):
    """Graduated optimisation: kernels of shrinking width, level by level.

    The baseline of the paper's experiments: the width starts ``2**n_levels`` times too
    large and is halved after every ``n_iter_per_level`` rounds.

    Parameters
    ----------
    n_levels : int, default=5
        Number of halvings.

    n_iter_per_level : int, default=4
        Rounds at each width but the last.
    """

    n_levels: int = 5
    n_iter_per_level: int = 4

    def __post_init__(self) -> None:
        _check(self, "n_levels", Integral, lambda n: n >= 0, "an integer >= 0")
        _check(self, "n_iter_per_level", Integral, lambda n: n >= 1, "an integer >= 1")

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Always: the schedule does not look at the bounds."""
        return True

    def prescribe(self, memory: Memory) -> float:
        """The inverse width of this round's level."""
        return 2.0 ** (self.level(memory.iteration) - self.n_levels)

    def level(self, iteration: int) -> int:
        """Level of a round, counted from zero."""
        return min(iteration // self.n_iter_per_level, self.n_levels)

    def converged(self, trial: Trial, moved: Moved, memory: Memory, tol: float) -> bool:
        """Theta hardly moved, on the last level."""
        last = self.level(memory.iteration) == self.n_levels
        return last and super().converged(trial, moved, memory, tol)


CRITERIA = {
    "fixed": Fixed,
    "graduated": Graduated,
    "regemm": RelaxedGeneralized,
    "sudemm": SufficientDescent,
}


def get_criterion(
    criterion: Any,
    *,
    eta: float = 0.5,
    eta_prime: float = 0.75,
    rho: float = 0.5,
    power_t: float = 0.0,
    effort: float | None = None,
    n_iter_per_level: int = 4,
) -> Any:
    """Criterion of a name, or the object itself.

    Parameters
    ----------
    criterion : {"regemm", "sudemm", "fixed", "graduated"} or Criterion
        The name or the object.

    eta, eta_prime : float, default=0.5 and 0.75
        Constants of "regemm".

    rho, power_t : float, default=0.5 and 0.0
        Constants of "sudemm".

    effort : float, default=None
        The effort of "fixed", and of `Fixed` objects that leave it open.

    n_iter_per_level : int, default=4
        Rounds at each level of "graduated".

    Returns
    -------
    criterion : Criterion
        The object.

    Examples
    --------
    >>> from sklearn_mm.criteria import get_criterion
    >>> get_criterion("regemm", eta=0.25)
    RelaxedGeneralized(eta=0.25, eta_prime=0.75)
    """
    if isinstance(criterion, type):
        raise ValueError(
            f"criterion must be a string or an object, got the class "
            f"{criterion.__name__}; pass {criterion.__name__}() instead."
        )
    if isinstance(criterion, str):
        if criterion == "regemm":
            return RelaxedGeneralized(eta, eta_prime)
        if criterion == "sudemm":
            return SufficientDescent(rho, power_t)
        if criterion == "fixed":
            return Fixed(effort)
        if criterion == "graduated":
            return Graduated(n_iter_per_level=n_iter_per_level)
        raise ValueError(
            f"criterion must be one of {sorted(CRITERIA)} or an object, got "
            f"{criterion!r}."
        )
    return Fixed(effort) if criterion == Fixed() else criterion
