"""Baselines without truncated inference.

Objects of this module can be passed instead of a criterion to the following estimators
and functions:

===============  ==============================================================
`Joint`          `robust_least_squares` (``criterion="joint"``)
`Alternating`    the contrastive Hebbian estimators (``criterion="alternating"``)
===============  ==============================================================

Graduated optimisation, the third baseline of the paper, is available as the criterion
:class:`sklearn_mm.criteria.Graduated`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sklearn_mm.criteria import Criterion, Memory, Trial

__all__ = ["Alternating", "Joint"]


@dataclass(frozen=True)
class Joint(Criterion):
    """Joint half-quadratic minimisation over theta and the weights.

    Nothing is inferred. The weights, written as squares and initialised to one, are
    additional unknowns, which are eliminated from each linear system. Only supported by
    :func:`sklearn_mm.robust_least_squares`, for kernels whose penalty is smooth at a
    weight of one (neither "huber" nor "quadratic").

    References
    ----------
    C. Zach, "Robust Bundle Adjustment Revisited", ECCV 2014.
    """

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Always, since nothing is inferred."""
        return True

    def prescribe(self, memory: Memory) -> float:
        """Zero effort."""
        return 0.0


@dataclass(frozen=True)
class Alternating(Criterion):
    """Alternating minimisation over theta and stored latent variables of all rows.

    Each iteration makes a fixed number of inference passes, starting from the latent
    variables of the previous iteration, and then updates theta. Memory grows with the
    number of rows. Only supported by the contrastive Hebbian estimators.

    Parameters
    ----------
    effort : float or None, default=None
        Number of passes. If None, the ``n_passes`` of the estimator.
    """

    needs_full_batch: ClassVar[bool] = True

    effort: float | None = None

    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        """Always, since the number of passes is fixed."""
        return True
