"""Gradient steps on the upper bound.

`GradientDescent`
    the plain step of length 1/L, found by backtracking: the setting of the paper's
    theorems. Its guaranteed decrease ||g||^2/(2L) is what SuDeMM compares the gap with.
`MomentumDescent`, `Adam`
    for mini-batches. Their criterion is the stochastic one, gap <= rho_t/(2L) ||g||^2,
    with the problem's estimate of L and no step length in it: L is the curvature of
    the bound in theta where the gap arose, so that the test reads "the error that the
    gap leaves in the gradient, squared, is at most rho_t ||g||^2". (The paper has no L
    there, which for a constant L is a matter of units. It matters in practice: an
    error of the latents that opens a gap can contribute 2L times that gap to ||g||^2,
    so that without L a gradient that is mostly error passes for accurate.) The paper
    proves convergence for plain steps (momentum 0) with alpha_t = alpha / t^p and
    rho_t = rho / t^(2p), 1/2 < p <= 1. Under momentum or Adam the criterion says that
    the gradient in use is accurate beside its own size, and no more.

Where inference could not meet the criterion, only part of a step is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sklearn_mm._solver.roles import Array, Inferred, Moved, Proposal, Trial

# Largest share of a step that is made on a gradient which failed the criterion.
_UNTRUSTED_SHARE = 0.5


def _relative_norm(change: Array, theta: Array) -> float:
    size = max(float(theta @ theta), float(np.finfo(float).tiny))
    return float(np.sqrt(float(change @ change) / size))


@dataclass
class Descent(Proposal):
    """A gradient step of verified length; theta is None if there is none."""

    step_size: float
    theta: Array | None


@dataclass
class GradientDescent:
    """Steps -g/L with an L for which the upper bound decreases as a quadratic would.

    Parameters
    ----------
    upper_bound : callable
        ``upper_bound(problem, point, candidate, trial)`` is the upper bound at the
        candidate, a theta, with the latents that the trial inferred at the point.
    step_size : float
        1/L to try first. It doubles with every step and is halved until it fits.
    """

    guaranteed: ClassVar[bool] = True

    upper_bound: Callable[[Any, Any, Array, Trial], float]
    step_size: float = 1.0
    growth: float = 2.0
    max_halvings: int = 60
    fitted: bool = False  # the step size is one that fitted an earlier trial here

    def propose(
        self, problem: Any, point: Any, trial: Trial, rejected: Proposal | None = None
    ) -> Descent:
        """The step of the largest size that decreases the bound by ||g||^2/(2L)."""
        gradient = trial.bounds.gradient
        assert gradient is not None
        square = float(gradient @ gradient)
        size = self.step_size * (1.0 if self.fitted else self.growth)
        self.fitted = True
        for _ in range(self.max_halvings):
            candidate = point.theta - size * gradient
            goal = trial.upper - 0.5 * size * square
            if goal < trial.upper and (
                self.upper_bound(problem, point, candidate, trial) <= goal
            ):
                self.step_size = size
                return Descent(0.5 * size * square, size, candidate)
            size *= 0.5
        return Descent(0.0, self.step_size, None)

    def take(self, problem: Any, point: Any, inferred: Inferred) -> Moved:
        """Make the step, or half of it on latents that failed the criterion."""
        step = inferred.trial.proposal
        assert isinstance(step, Descent)
        info = {"decrease": step.decrease, "step_size": self.step_size}
        if step.theta is None:
            return Moved(point, 0.0, accepted=False, info=info)
        change = step.theta - point.theta
        new = step.theta
        if not inferred.satisfied:
            change = _UNTRUSTED_SHARE * change
            new = point.theta + change
        self.fitted = False
        return Moved(problem.at(new), _relative_norm(change, point.theta), info=info)


@dataclass
class _StochasticStep:
    """What momentum and Adam share."""

    # Whether the step makes the decrease that it promises.
    guaranteed: ClassVar[bool] = False

    learning_rate: float
    power_t: float = 0.0  # the rate of update t is learning_rate / t**power_t
    n_updates: int = 0

    def propose(
        self, problem: Any, point: Any, trial: Trial, rejected: Proposal | None = None
    ) -> Proposal:
        """||g||^2/(2L), the yardstick of the stochastic criterion, and no more."""
        gradient = trial.bounds.gradient
        assert gradient is not None
        if not (trial.bounds.gap_curvature > 0.0 and trial.gap > 0.0):
            return Proposal(np.inf)  # no error but rounding
        inverse = trial.gap / trial.bounds.gap_curvature
        return Proposal(0.5 * float(gradient @ gradient) * inverse)

    def take(self, problem: Any, point: Any, inferred: Inferred) -> Moved:
        """Make the step, or a part of it on latents that failed the criterion."""
        gradient = inferred.trial.bounds.gradient
        assert gradient is not None
        self.n_updates += 1
        rate = self.learning_rate / self.n_updates**self.power_t
        change = self._direction(gradient, rate)
        if not inferred.satisfied:
            gap = inferred.trial.gap
            allowed = inferred.trial.decrease / gap if gap > 0.0 else 1.0
            change = change * min(_UNTRUSTED_SHARE, allowed)
        size = _relative_norm(change, point.theta)
        change += point.theta
        return Moved(problem.at(change), size, info={"step_size": rate})

    def _direction(self, gradient: Array, rate: float) -> Array:
        """A new array with the change of theta."""
        raise NotImplementedError


@dataclass
class MomentumDescent(_StochasticStep):
    """Stochastic gradient descent with (heavy-ball) momentum."""

    momentum: float = 0.0
    velocity: Array | None = field(default=None, repr=False)

    def _direction(self, gradient: Array, rate: float) -> Array:
        if self.velocity is None:
            self.velocity = np.zeros_like(gradient)
        self.velocity *= self.momentum
        self.velocity -= rate * gradient
        return self.velocity.copy()


@dataclass
class Adam(_StochasticStep):
    """Adam with the usual constants."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    mean: Array | None = field(default=None, repr=False)
    square: Array | None = field(default=None, repr=False)

    def _direction(self, gradient: Array, rate: float) -> Array:
        if self.mean is None or self.square is None:
            self.mean = np.zeros_like(gradient)
            self.square = np.zeros_like(gradient)
        buffer = (1.0 - self.beta_1) * gradient
        self.mean *= self.beta_1
        self.mean += buffer
        np.square(gradient, out=buffer)
        buffer *= 1.0 - self.beta_2
        self.square *= self.beta_2
        self.square += buffer
        # Bias corrections are folded into the rate; epsilon stays outside of them.
        t = self.n_updates
        scale = rate * np.sqrt(1.0 - self.beta_2**t) / (1.0 - self.beta_1**t)
        np.sqrt(self.square, out=buffer)
        buffer += self.epsilon
        np.divide(self.mean, buffer, out=buffer)
        buffer *= -scale
        return buffer
