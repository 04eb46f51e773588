"""Gradient steps on the upper bound.

`GradientDescent`
    the plain step of length 1/L, found by backtracking: the setting of the paper's
    theorems. Its guaranteed decrease ||g||^2/(2L) is what SuDeMM compares the gap with.
`MomentumDescent`, `Adam`
    for mini-batches. Two tests have to hold, both relative to the squared gradient: the
    paper's, gap <= rho_t/2 ||g||^2, and gap_curvature <= rho_t/2 ||g||^2, where the
    curvature bounds half the squared error that inexact latents leave in g. (The first
    alone is not enough: an error of the latents that opens a gap can contribute 2L
    times that gap to ||g||^2, L the curvature of the bound in theta, so that a gradient
    that is mostly error passes for accurate.) The paper proves convergence for plain
    steps (momentum 0) with alpha_t = alpha / t^p and rho_t = rho / t^(2p),
    1/2 < p <= 1. Under momentum or Adam the criterion says that the gradient in use is
    accurate relative to its own size, and no more.

If inference could not satisfy the criterion, only part of a step is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sklearn_mm._solver.roles import Array, Inferred, Moved, Proposal, Trial
from sklearn_mm._solver.vectors import DecayingSum, add_multiple

# Largest fraction of a step that is made with a gradient that does not satisfy the
# criterion, and the gap, relative to the bound, that is due to rounding errors.
_UNTRUSTED_SHARE, _EXACT = 0.5, 1e-12
_TINY = float(np.finfo(float).tiny)


def _relative_norm(change: Array, square: float) -> float:
    """Norm of a change, relative to a norm of which the square is given."""
    return math.sqrt(float(np.vdot(change, change)) / max(square, _TINY))


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
        1/L to try first. It is doubled in each step and halved until the bound
        decreases sufficiently.
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
        square = float(point.theta @ point.theta)
        return Moved(problem.at(new), _relative_norm(change, square), info=info)


# Averages of theta include one update in this many, from this fraction of all updates,
# but at most from this number of them. (Chosen on validation rows of image data.)
_AVERAGE_EVERY, _AVERAGE_SHARE, _LONGEST_AVERAGE = 4, 0.1, 500


@dataclass
class _StochasticStep:
    """Common parts of momentum and Adam.

    Points have to know the squared norm of theta, `square`.

    With `average`, `averaged` is an exponential average of theta over the last updates;
    `theta` itself, which the next step starts from, is not touched.
    """

    # Whether the step makes the decrease that it promises.
    guaranteed: ClassVar[bool] = False

    learning_rate: float
    power_t: float = 0.0  # the rate of update t is learning_rate / t**power_t
    n_updates: int = 0
    average: bool = False
    mean_theta: DecayingSum | None = field(default=None, repr=False)

    def propose(
        self, problem: Any, point: Any, trial: Trial, rejected: Proposal | None = None
    ) -> Proposal:
        """``||g||^2/2``, or less: the yardstick of the stochastic criterion."""
        gradient = trial.bounds.gradient
        assert gradient is not None
        decrease = 0.5 * float(np.vdot(gradient, gradient))
        curvature = trial.bounds.gap_curvature
        if curvature > trial.gap:
            decrease *= trial.gap / curvature
        return Proposal(decrease)

    def take(self, problem: Any, point: Any, inferred: Inferred) -> Moved:
        """Make the step, or a part of it on latents that failed the criterion.

        The memory of the gradient is used for the direction.
        """
        trial, theta = inferred.trial, point.theta
        gradient, decrease = trial.bounds.gradient, trial.decrease
        assert gradient is not None
        self.n_updates += 1
        rate = self.learning_rate / self.n_updates**self.power_t
        direction, factor = self._direction(gradient, rate)
        gap = trial.gap
        if not inferred.satisfied and gap > _EXACT * abs(trial.upper):
            allowed = decrease / gap
            factor *= min(_UNTRUSTED_SHARE, allowed)
        size = abs(factor) * _relative_norm(direction, point.square)
        theta = theta.copy()
        add_multiple(theta, factor, direction)
        if self.average and self.n_updates % _AVERAGE_EVERY == 0:
            self._take_in(theta)
        return Moved(problem.at(theta), size, info={"step_size": rate})

    def averaged(self, theta: Array) -> Array:
        """The average, or theta itself where there is none."""
        return theta if self.mean_theta is None else self.mean_theta.value

    def _take_in(self, theta: Array) -> None:
        if self.mean_theta is None:
            self.mean_theta = DecayingSum(theta.copy())
            return
        updates = _AVERAGE_SHARE * self.n_updates + 1.0
        length = min(updates, float(_LONGEST_AVERAGE))
        keep = (1.0 - 1.0 / length) ** _AVERAGE_EVERY
        self.mean_theta.add(keep, theta, 1.0 - keep)

    def _direction(self, gradient: Array, rate: float) -> tuple[Array, float]:
        """The change of theta, as a vector and its factor.

        The vector may take the place of the gradient in memory: what a mini-batch
        touches should fit into the processor's cache.
        """
        raise NotImplementedError


@dataclass
class MomentumDescent(_StochasticStep):
    """Stochastic gradient descent with (heavy-ball) momentum."""

    momentum: float = 0.0
    velocity: Array | None = field(default=None, repr=False)

    def _direction(self, gradient: Array, rate: float) -> tuple[Array, float]:
        if self.velocity is None:
            self.velocity = np.zeros_like(gradient)
        self.velocity *= self.momentum
        add_multiple(self.velocity, -rate, gradient)
        return self.velocity, 1.0


@dataclass
class Adam(_StochasticStep):
    """Adam with the usual constants.

    Moments are kept without the factors ``1 - beta``, which go into the rate with the
    corrections of the bias.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    mean: DecayingSum | None = field(default=None, repr=False)
    square: DecayingSum | None = field(default=None, repr=False)

    def _direction(self, gradient: Array, rate: float) -> tuple[Array, float]:
        if self.mean is None or self.square is None:
            self.mean = DecayingSum.like(gradient)
            self.square = DecayingSum.like(gradient)
        mean, square, t = self.mean, self.square, self.n_updates
        mean.add(self.beta_1, gradient)
        square.add(self.beta_2, np.multiply(gradient, gradient, out=gradient))
        # From the stored sums to moments without bias.
        first = mean.factor * (1.0 - self.beta_1) / (1.0 - self.beta_1**t)
        second = math.sqrt(square.factor * (1.0 - self.beta_2))
        correction = math.sqrt(1.0 - self.beta_2**t)
        direction = np.sqrt(square.stored, out=gradient)
        direction += direction.dtype.type(self.epsilon / second)
        np.divide(mean.stored, direction, out=direction)
        return direction, -rate * first * correction / second
