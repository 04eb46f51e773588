r"""Half-quadratic weights for residuals that are reduced by a refit.

With z the squared residuals in widths of the kernel, the robust loss and its upper
bound are

.. math:: J(z) = \sum_i c_i \psi(z_i) \le \bar J(z, u)
          = \sum_i c_i (u_i z_i / 2 + \kappa(u_i))

A weighted fit makes :math:`\sum_i c_i u_i z_i` small on the rows that it is fitted to,
but the upper bound of the out-of-fold residuals need not decrease. If it does not, the
effort is not changed.

This module is the only place where the meta-estimator uses the solver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.utils import Bunch

from sklearn_mm._solver.history import History
from sklearn_mm._solver.inference import EffortBisection
from sklearn_mm._solver.roles import (
    ALL_ROWS,
    Array,
    Batch,
    Bounds,
    Criterion,
    Inferred,
    Memory,
    Moved,
    Proposal,
    Trial,
)
from sklearn_mm.kernels import Kernel


@dataclass(frozen=True)
class RobustLoss:
    """The problem: weights are latent, and the squares z stand in for theta."""

    kernel: Kernel
    unit: Array  # c, one per row

    def at(self, theta: Array) -> Array:
        """The squares themselves."""
        return theta

    def start(self, batch: Batch) -> None:
        """None, since weights have a closed form."""

    def infer(self, point: Array, latent: Any, effort: float) -> Array:
        """Weights of a kernel that is 1/effort times as wide."""
        return self.kernel.weight(point * effort**2)

    def evaluate(self, point: Array, latent: Array) -> Bounds:
        """The upper bound for these weights, and the loss itself as the lower one."""
        return Bounds(self.upper(point, latent), self.value(point))

    def value(self, z: Array) -> float:
        """The robust loss."""
        return float(self.unit @ self.kernel.loss(z))

    def upper(self, z: Array, u: Array) -> float:
        """Its upper bound for given weights."""
        return float(self.unit @ self.kernel.upper_bound(z, u))


@dataclass
class Refit:
    """Expected gain of a refit, for criteria that use it: that of the last refit."""

    gain: float

    def propose(
        self, problem: Any, point: Array, trial: Trial, rejected: Proposal | None = None
    ) -> Proposal:
        """Decrease of the upper bound, guessed."""
        return Proposal(self.gain)

    def take(self, problem: Any, point: Array, inferred: Inferred) -> Moved:
        """Not here: the refit is made by the caller."""
        raise NotImplementedError


@dataclass
class Reweighting:
    """Rounds of "infer weights, refit, judge", each recorded."""

    loss: RobustLoss
    criterion: Criterion
    z: Array  # current squared residuals, in widths of the kernel
    effort: float  # of the first upper bound
    history: History = field(default_factory=History)
    # Number of consecutive refits without a lower loss after which the run ends.
    patience: int = 2

    def __post_init__(self) -> None:
        first = self.loss.upper(self.z, self.loss.infer(self.z, None, self.effort))
        self.memory = Memory.start(first)
        self._inference = EffortBisection(self.criterion, effort=self.effort)
        self._refit = Refit(max(first - self.loss.value(self.z), 0.0))
        self._inferred: Inferred | None = None
        self._best, self._without_success = math.inf, 0
        self._change = math.inf  # of the weights from one round to the next

    def weights(self) -> Array:
        """Weights for the next refit, as accurate as the criterion requires."""
        memory, last = self.memory, self._inferred
        if memory.rejected and last is not None:
            effort = last.trial.effort
            u = self.loss.infer(self.z, None, effort)
            gain = Proposal(self._refit.gain)
            bounds = self.loss.evaluate(self.z, u)
            trial = Trial(bounds, effort, u, lambda _: gain)
            satisfied = self.criterion.satisfied(trial, memory)
            self._inferred = Inferred(trial, satisfied, 1.0)
        else:
            self._inferred = self._inference(
                self.loss, self.z, ALL_ROWS, memory, self._refit
            )
        weights: Array = self._inferred.trial.latent
        if last is not None:
            change = np.abs(weights - last.trial.latent)
            self._change = float(np.average(change, weights=self.loss.unit))
        return weights

    def settled(self, tol: float) -> bool:
        """Whether the weights hardly changed, so that a refit is not necessary.

        Their mean change, with the rows weighted as in the loss, is less than `tol`.
        """
        return self._change < tol

    def refitted(self, z: Array, change: float, tol: float) -> bool:
        """Store the residuals of the refit; True if the run may end."""
        assert self._inferred is not None
        trial, memory = self._inferred.trial, self.memory
        gain = trial.upper - self.loss.upper(z, trial.latent)
        lowered = gain > 0.0
        loss = self.loss.value(z)
        moved = Moved(z, change, lowered, {"loss": loss})
        self.history.append(self._inferred, moved, memory)
        self.history.end_epoch()
        converged = self.criterion.converged(trial, moved, memory, tol)
        self.memory = memory.after(trial, lowered)
        self._refit.gain = max(gain, 0.0)
        self.z = z
        self._without_success = 0 if loss < self._best else self._without_success + 1
        self._best = min(self._best, loss)
        stuck = self._without_success >= self.patience
        return bool(converged or stuck or not math.isfinite(trial.upper))

    def record(self) -> Bunch:
        """History of the rounds so far."""
        return self.history.to_bunch()
