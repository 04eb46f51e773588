"""Methods without truncated inference, to compare it with.

An object of this module may be passed where an estimator or function expects a
criterion, if that knows how to run it:

===============  ==============================================================
`Joint`          `robust_least_squares` (``criterion="joint"``)
`Alternating`    the contrastive Hebbian estimators (``criterion="alternating"``)
===============  ==============================================================

Graduated optimisation, the third baseline of the paper, is a criterion like others:
:class:`sklearn_mm.criteria.Graduated`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sklearn_mm.criteria import Criterion, Memory, Trial

__all__ = ["Alternating", "Joint"]


@dataclass(frozen=True)
class Joint(Criterion):
    """Joint half-quadratic minimisation: weights are moved together with theta.

    Nothing is inferred. The weights, written as squares and started at one, are
    unknowns next to theta, and are eliminated from each linear system. For
    :func:`sklearn_mm.robust_least_squares` only, and for kernels whose penalty is
    smooth at a weight of one (neither "huber" nor "quadratic").

    References
    ----------
    C. Zach, "Robust Bundle Adjustment Revisited", ECCV 2014.
    """

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Always: there is nothing to infer."""
        return True

    def prescribe(self, memory: Memory) -> float:
        """No effort is made."""
        return 0.0


@dataclass(frozen=True)
class Alternating(Criterion):
    """Alternating minimisation: latents of all rows are kept and improved.

    Every round makes a fixed number of inference passes from the latents of the
    previous round, then moves theta. Memory grows with the number of rows. For the
    contrastive Hebbian estimators.

    Parameters
    ----------
    effort : float or None, default=None
        Number of passes. None takes the estimator's ``n_passes``.
    """

    needs_full_batch: ClassVar[bool] = True

    effort: float | None = None

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Always: the number of passes is fixed."""
        return True
