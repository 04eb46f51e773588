"""Divergence and early stopping: when training ends, and which weights are kept.

Both are handled only in this module. An epoch is *sound* if its bounds are finite and
its last bound is not far above the first one of the run. The loss of an epoch is that
before its last update. Whether this update has made it diverge is only known after the
next epoch; after the last epoch, `settle` checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_mm._estimator import FitMonitor
from sklearn_mm._hebbian.energy import Array
from sklearn_mm._solver.history import History
from sklearn_mm._solver.loop import Status
from sklearn_mm._solver.roles import Inferred

# A bound that exceeds that of the start by this factor is considered to diverge.
BLOWN_UP = 10.0


def is_sound(upper: float, first: float) -> bool:
    """Whether a bound is not far above the first one of the run."""
    return bool(upper <= BLOWN_UP * first)


@dataclass(frozen=True)
class Weights:
    """Where training stands (`iterate`), and the weights that are its result."""

    iterate: Array
    fitted: Array  # the iterate itself, or an average

    @property
    def theta(self) -> Array:
        """As points have it: what callbacks are told of."""
        return self.fitted


class Safeguard(FitMonitor):
    """Keeps the loss of every epoch, and ends training that no longer improves.

    Parameters
    ----------
    history : History
        Record of the run.
    first_upper : float
        Upper bound of the start.
    start : Point
        Where training starts.
    averaged : callable
        Maps theta to the weights that are fitted if training ends there.
    dtype : dtype
        Precision in which they are stored.
    validate : callable or None
        Maps fitted weights to a score on data held out.
    tol, n_iter_no_change : float, int
        Training ends after so many epochs that were better by less than `tol`.
    **kwargs : dict
        Parameters of `FitMonitor`.
    """

    effort_name = "passes"

    def __init__(
        self,
        *,
        history: History,
        first_upper: float,
        start: Any,
        averaged: Callable[[Array], Array],
        dtype: Any,
        validate: Callable[[Array], float] | None,
        tol: float,
        n_iter_no_change: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.history = history
        self.losses: list[float] = []
        self.scores: list[float] = []
        self.exhausted = self.diverged = False
        self.n_capped = 0  # updates of the last epoch that met the cap on passes
        self.first_upper = first_upper
        self._averaged, self._dtype = averaged, dtype
        self._validate = validate
        self._tol, self._patience = tol, n_iter_no_change
        self._n_poor = self._seen = 0
        # The best weights that are known to be sound, and those of the last epoch.
        self._best = self._last = self._first = Weights(start.theta, start.theta)
        self.sound = start  # the last point that is known to be sound
        self._best_loss, self._last_loss = first_upper, first_upper

    def inferred(self, point: Any, inferred: Inferred) -> None:
        """Remember the last point whose bound has not blown up."""
        if self._is_sound(inferred.trial.upper):
            self.sound = point

    def end(self, point: Any, record: dict[str, float]) -> bool:
        """Close an epoch; True ends training."""
        epoch = self.history.since(self._seen)
        self._seen = len(self.history)
        loss = float(np.mean(epoch["upper_bound"]))
        self.losses.append(loss)
        self.n_capped = int(np.sum(epoch["capped"]))
        record = {
            **record,
            "upper_bound": loss,
            "lower_bound": float(np.mean(epoch["lower_bound"])),
            "effort": float(np.mean(epoch["effort"])),
        }
        sound = self._is_sound(epoch["upper_bound"][-1])
        if sound and self._is_sound(epoch["upper_bound"][0]):
            self._confirm()
        self._last = self._weights(point)
        self._last_loss = loss if sound else np.inf
        if self._validate is None:
            self._judge(-loss, [-value for value in self.losses[:-1]])
        else:
            self._judge_score(record, sound and not self._leapt(point.theta))
        self.diverged = not sound
        return bool(super().end(self._last, record)) or self.exhausted

    def settle(
        self, point: Any, status: Status, upper_of: Callable[[Array], float]
    ) -> Weights:
        """The weights to keep; `diverged` says whether they are not the last ones.

        Bounded activations can hide that weights grow beyond all numbers that the
        precision of the fitted ones has.
        """
        weights = self._settled(point, status, upper_of)
        with np.errstate(over="ignore"):
            stored = weights.fitted.astype(self._dtype)
        if not np.isfinite(stored).all():
            self.diverged = True
            return self._first
        return weights

    def _settled(
        self, point: Any, status: Status, upper_of: Callable[[Array], float]
    ) -> Weights:
        weights = self._weights(point)
        self.diverged = self.diverged or status is Status.DIVERGED
        if not self.diverged and self._leapt(point.theta):
            self.diverged = not self._is_sound(upper_of(point.theta))
        if self.diverged and self._best_loss >= self.first_upper and not self.scores:
            return Weights(self.sound.theta, self.sound.theta)
        if self.diverged or (self._validate is not None and self.scores):
            return self._best
        return weights

    def _leapt(self, theta: Array) -> bool:
        """Whether the last update, which no bound has seen yet, was a large one."""
        known = self.sound.theta
        small = float(np.linalg.norm(theta - known)) <= float(np.linalg.norm(known))
        return not small

    def _weights(self, point: Any) -> Weights:
        """What training that ends at a point has fitted; kept, so copied."""
        fitted = self._averaged(point.theta)
        return Weights(point.theta, fitted.copy())

    def _is_sound(self, upper: float) -> bool:
        return is_sound(upper, self.first_upper)

    def _confirm(self) -> None:
        """The last epoch's weights did not blow the loss up."""
        if self._validate is None and self._last_loss <= self._best_loss:
            self._best, self._best_loss = self._last, self._last_loss

    def _judge(self, value: float, earlier: list[float]) -> bool:
        """Count epochs without improvement; whether this one is the best so far."""
        best = max(earlier, default=-np.inf)
        self._n_poor = 0 if value > best + self._tol else self._n_poor + 1
        self.exhausted = self._n_poor > self._patience
        return value > best

    def _judge_score(self, record: dict[str, float], sound: bool) -> None:
        """Score the weights; those that have blown up may score well by chance."""
        assert self._validate is not None
        score = self._validate(self._last.fitted)
        record["validation_score"] = score
        if self._judge(score, self.scores) and sound:
            self._best = self._last
        self.scores.append(score)
