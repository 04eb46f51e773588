"""Bounds on parameters, and damped steps that respect them.

Within the box, the damped model is minimised over the parameters that are free. Those
that would leave it are set to their bound, and the system is solved again for the
others. A parameter on its bound stays there as long as the gradient pushes it out. The
more a step is damped, the closer it comes to a projected step along the (scaled)
negative gradient, which decreases the objective: so a decrease is always found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_mm._solver.roles import Array, NormalSystem


@dataclass(frozen=True)
class Box:
    """Lower and upper bounds of all parameters."""

    lower: Array
    upper: Array

    def reach(self, theta: Array) -> tuple[Array, Array]:
        """The smallest and the largest step that stays inside."""
        return self.lower - theta, self.upper - theta

    def move(self, theta: Array, delta: Array) -> Array:
        """Theta plus delta; exactly on a bound where delta reaches it."""
        low, high = self.reach(theta)
        new = np.where(delta <= low, self.lower, theta + delta)
        return np.clip(np.where(delta >= high, self.upper, new), self.lower, self.upper)

    def active(self, theta: Array) -> Any:
        """-1 on a lower bound, 1 on an upper one, 0 inside."""
        return (theta >= self.upper).astype(int) - (theta <= self.lower).astype(int)

    def stuck(self, theta: Array, gradient: Array) -> Any:
        """Where descent would leave the box."""
        low, high = self.reach(theta)
        return ((low >= 0.0) & (gradient > 0.0)) | ((high <= 0.0) & (gradient < 0.0))


class BoxSystem:
    """Damped steps inside a box.

    Parameters
    ----------
    build : callable
        Maps a mask of parameters to hold, or None, and residuals to a `NormalSystem`.
    push : callable
        Maps a step to the change of the linearised residuals.
    residual : ndarray
        Residuals of the system.
    box, theta : Box, ndarray
        The bounds, and where the system was made.
    """

    def __init__(
        self,
        build: Callable[[Any, Array], NormalSystem],
        push: Callable[[Array], Array],
        residual: Array,
        box: Box,
        theta: Array,
    ) -> None:
        self._build, self._push, self._residual = build, push, residual
        self._low, self._high = box.reach(theta)
        system = build(None, residual)
        self._held = box.stuck(theta, system.gradient)
        self.gradient = np.where(self._held, 0.0, system.gradient)
        self._system = build(self._held, residual) if self._held.any() else system

    def damped_step(self, damping: float) -> tuple[Array, float] | None:
        """Step inside the box and the decrease of the undamped model."""
        system, held = self._system, self._held
        moved, gained = np.zeros(len(held)), 0.0
        while True:
            solved = system.damped_step(damping)
            if solved is None:
                return None
            delta, decrease = solved
            out = ~held & ((delta < self._low) | (delta > self._high))
            if not out.any():
                break
            moved[out] = np.clip(delta, self._low, self._high)[out]
            held = held | out
            change = self._push(moved)
            # |r|**2 - |r + change|**2, without cancellation.
            gained = -float(np.vdot(change, self._residual + 0.5 * change))
            system = self._build(held, self._residual + change)
        delta, decrease = delta + moved, decrease + gained
        if decrease <= 0.0 and delta.any():
            return None  # more damping leads to a decrease, see above
        return delta, decrease
