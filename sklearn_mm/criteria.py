r"""Criteria for the accuracy of inference.

In iteration t, the parameters are :math:`\theta = \theta^{(t-1)}`, and inference has
found an upper bound :math:`\bar J(\theta)` and a lower bound
:math:`\underline J(\theta)` of the objective. The criterion must hold before theta is
updated by a step on the upper bound:

========================  =====================================================
`RelaxedGeneralized`      upper <= eta * lower + (1 - eta) * previous upper
`SufficientDescent`       upper - lower <= rho * (decrease of the next step)
`Fixed`                   a given effort, regardless of the bounds
`Graduated`               an effort that increases with the iterations (a baseline)
========================  =====================================================

The first is ReGeMM and the second SuDeMM, Eq. 11 and Eq. 16 of C. Zach and H. Le,
"Truncated Inference for Latent Variable Optimization Problems", ECCV 2020.

To use a custom criterion, derive a class from `Criterion`, define ``satisfied``, and
pass an object of it as ``criterion`` to any estimator of the package. The method
receives a `Trial`, which contains the current bounds, and a `Memory` of earlier
iterations. ``converged`` also receives the `Moved` returned by the step. Methods that
do not use a criterion are in :mod:`sklearn_mm.baselines`.
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

# An objective this small relative to the first one is zero up to rounding. Relative
# tolerances could otherwise not be met if the model fits the data exactly.
_ZERO = 1e-12


def _check(criterion: Criterion, name: str, kind: Any, sound: Any, wanted: str) -> None:
    """Raise a ValueError unless an attribute has the right type and passes a test."""
    value = getattr(criterion, name)
    # A nan passes no test.
    if not (isinstance(value, kind) and sound(value)):
        owner = type(criterion).__name__
        raise ValueError(f"{owner}: {name} must be {wanted}, got {value!r}.")


@dataclass(frozen=True)
class Criterion:
    """Base class for criteria.

    Only :meth:`satisfied` must be defined. A `Trial` has the attributes ``upper``,
    ``lower``, ``gap``, ``effort`` and ``decrease``, and a `Memory` has
    ``previous_upper``, ``first_upper`` and ``iteration``.

    Attributes
    ----------
    needs_full_batch : bool
        Whether the criterion compares bounds of successive iterations, which is not
        meaningful for bounds of different mini-batches. False by default.

    Examples
    --------
    A criterion that requires a relative duality gap:

    >>> from sklearn_mm.criteria import Criterion
    >>> class RelativeGap(Criterion):
    ...     def satisfied(self, trial, memory):
    ...         return trial.gap <= 0.1 * trial.lower
    ...     def excessive(self, trial, memory):
    ...         return trial.gap < 0.05 * trial.lower
    """

    needs_full_batch: ClassVar[bool] = False

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Whether theta may be updated on the upper bound of this trial."""
        raise NotImplementedError

    def attainable(self, trial: Trial, memory: Memory) -> bool:
        """Whether more effort can help. If not, the search for an effort stops.

        By default, it can help as long as the gap exceeds rounding errors.
        """
        return trial.gap > _ZERO * memory.first_upper

    def excessive(self, trial: Trial, memory: Memory) -> bool:
        """Whether less effort would be sufficient. If so, it is reduced if possible."""
        return False

    def prescribe(self, memory: Memory) -> float | None:
        """The effort to use, for criteria that do not depend on the bounds."""
        return None

    def converged(self, trial: Trial, moved: Moved, memory: Memory, tol: float) -> bool:
        """Whether to stop after this update. By default, if theta hardly changed."""
        return moved.accepted and moved.change <= tol


@dataclass(frozen=True)
class RelaxedGeneralized(Criterion):
    """ReGeMM: close a fraction of the gap left by the previous upper bound.

    Parameters
    ----------
    eta : float, default=0.5
        Fraction of ``c_t = previous_upper - lower`` by which the upper bound must
        decrease, in (0, 1).

    eta_prime : float, default=0.75
        Fraction that the decrease should not exceed if inference can be less accurate,
        in (eta, 1]. ReGeMM finds better minima of non-convex objectives because it
        meets the criterion without exceeding it by much.
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

        After a step that raised J above the previous bound, as momentum may do, no
        effort can satisfy it. The gap must then be small compared with the increase.
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
        # The difference is negative after a step that has raised J by that much.
        c_t = abs(memory.previous_upper - trial.lower)
        small = c_t <= tol * trial.lower + _ZERO * memory.first_upper
        # In the first iteration, theta is still where the previous bound was evaluated.
        return memory.iteration > 0 and moved.accepted and small

    @staticmethod
    def _mix(eta: float, trial: Trial, memory: Memory) -> float:
        # previous_upper - eta * c_t, written as in the paper.
        return eta * trial.lower + (1.0 - eta) * memory.previous_upper


@dataclass(frozen=True)
class SufficientDescent(Criterion):
    """SuDeMM: keep the gap below a fraction of the decrease of the next step.

    Parameters
    ----------
    rho : float, default=0.5
        The fraction, positive. The proofs require a value below one.

    power_t : float, default=0.0
        In iteration t, the fraction is ``rho / t**power_t``. The proof for the
        stochastic method requires a summable sequence, i.e. a power above one. Full
        batches do not need it.
    """

    rho: float = 0.5
    power_t: float = 0.0

    def __post_init__(self) -> None:
        wanted = "a positive, finite number"
        _check(self, "rho", Real, lambda rho: 0 < rho < math.inf, wanted)
        wanted = "a non-negative, finite number"
        _check(self, "power_t", Real, lambda power: 0 <= power < math.inf, wanted)

    # If inference can be less accurate, the gap is brought up to at least this fraction
    # of the largest one allowed.
    _window = 0.9

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Eq. 16 of the paper, with the step's own decrease on the right."""
        return trial.gap <= self.rho_at(memory.iteration) * trial.decrease

    def attainable(self, trial: Trial, memory: Memory) -> bool:
        """Whether the gap exceeds rounding errors, by itself or in the gradient.

        If the curvature is large, even a gap that is negligible compared with J can
        spoil the gradient.
        """
        spoils = trial.bounds.gap_curvature > 0.0 and trial.decrease > 0.0
        return spoils or super().attainable(trial, memory)

    def excessive(self, trial: Trial, memory: Memory) -> bool:
        """The gap is well below what is allowed."""
        allowed = self._window * self.rho_at(memory.iteration)
        return trial.gap < allowed * trial.decrease

    def converged(self, trial: Trial, moved: Moved, memory: Memory, tol: float) -> bool:
        """Whether the decrease, which bounds the gap, or the change is small."""
        small = tol * trial.lower + _ZERO * memory.first_upper
        return moved.accepted and (trial.decrease <= small or moved.change <= tol)

    def rho_at(self, iteration: int) -> float:
        """Value of rho in an iteration, counted from zero."""
        return self.rho * math.pow(iteration + 1.0, -self.power_t)


@dataclass(frozen=True)
class Fixed(Criterion):
    """Use the same effort in all iterations.

    The robust solvers finish with exact weights, regardless of the effort.

    Parameters
    ----------
    effort : float or None, default=None
        Number of inference passes, or 1/sigma for half-quadratic weights (1 means
        exact weights, i.e. iteratively reweighted least squares). If None, the effort
        is chosen by the estimator: ``n_passes``, or exact weights.
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
    """Graduated optimisation with kernels of decreasing width.

    This is a baseline in the experiments of the paper. The width is initially
    ``2**n_levels`` times too large and is halved every ``n_iter_per_level`` iterations.

    Parameters
    ----------
    n_levels : int, default=5
        Number of halvings.

    n_iter_per_level : int, default=4
        Number of iterations at each width except the last.
    """

    n_levels: int = 5
    n_iter_per_level: int = 4

    def __post_init__(self) -> None:
        _check(self, "n_levels", Integral, lambda n: n >= 0, "an integer >= 0")
        _check(self, "n_iter_per_level", Integral, lambda n: n >= 1, "an integer >= 1")

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Always, since the schedule does not depend on the bounds."""
        return True

    def prescribe(self, memory: Memory) -> float:
        """The inverse width of the current level."""
        return 2.0 ** (self.level(memory.iteration) - self.n_levels)

    def level(self, iteration: int) -> int:
        """Level of an iteration, counted from zero."""
        return min(iteration // self.n_iter_per_level, self.n_levels)

    def converged(self, trial: Trial, moved: Moved, memory: Memory, tol: float) -> bool:
        """Whether theta hardly changed on the last level."""
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
    """Get a criterion by name, or return the given object.

    Parameters
    ----------
    criterion : {"regemm", "sudemm", "fixed", "graduated"} or Criterion
        The name or the object.

    eta, eta_prime : float, default=0.5 and 0.75
        Constants of "regemm".

    rho, power_t : float, default=0.5 and 0.0
        Constants of "sudemm".

    effort : float, default=None
        Effort of "fixed", and of `Fixed` objects without an effort.

    n_iter_per_level : int, default=4
        Number of iterations at each level of "graduated".

    Returns
    -------
    criterion : Criterion
        The criterion.

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
