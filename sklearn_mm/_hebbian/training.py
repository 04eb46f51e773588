"""Training of layered energies: what lies between the estimators and the core."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from sklearn_mm._estimator import FitMonitor
from sklearn_mm._hebbian.problem import DEFAULT_CHUNK, upper_after
from sklearn_mm._rows.sources import LazyRows
from sklearn_mm._rows.workers import row_chunks
from sklearn_mm._solver.gradient_steps import Adam, GradientDescent, MomentumDescent
from sklearn_mm._solver.inference import Continuation, DoublingRestart, Persistent
from sklearn_mm._solver.loop import Status, minimize, whole_batch
from sklearn_mm._solver.roles import ALL_ROWS, Memory
from sklearn_mm.baselines import Alternating

# A bound that is so many times the one of the start is on its way to infinity.
BLOWN_UP = 10.0
# Fewer passes are never tried: far from the minimum, the gradient can be so wrong, and
# so large, that SuDeMM's test passes.
_MIN_PASSES = 2
# Passes for the bound that ReGeMM starts from. From a very loose one its first rounds,
# which need only halve the gap, would move theta on gradients that are mostly error.
_START_PASSES = 8
# Passes before the first test of the first mini-batch.
_FIRST_PASSES = 4


# The feedback that "auto" stands for. On validation parts of MNIST, Fashion-MNIST and
# greyscale CIFAR-10, larger ones are less accurate: the loss of an output error e is
# about e' (I + feedback W'W)^-1 e / 2, which large weights W of the last layer make
# small without making e small.
_FEEDBACK = 0.01
# In deep networks it is larger. The first residuals have the weight
# feedback**-n_hidden, and this much leaves them half of the digits of float64.
_LARGEST_WEIGHT = 1e8


def feedback_weight(feedback, solver, n_hidden):
    """The value of the parameter `feedback` for a solver and number of layers."""
    if isinstance(feedback, str):  # "auto"
        if solver == "gd":  # its steps are as short as those weights are large
            return 1.0
        return max(_FEEDBACK, _LARGEST_WEIGHT ** (-1.0 / n_hidden))
    return float(feedback)


def initial_theta(sizes, random_state):
    """Uniform weights and biases after Glorot and Bengio, matrices first."""
    matrices, biases = [], []
    for fan_in, fan_out in pairwise(sizes):
        bound = np.sqrt(6.0 / (fan_in + fan_out))
        matrices.append(random_state.uniform(-bound, bound, fan_in * fan_out))
        biases.append(random_state.uniform(-bound, bound, fan_out))
    return np.concatenate([*matrices, *biases])


class Trainer:
    """The roles of the core, put together from an estimator's parameters.

    Parameters
    ----------
    estimator : estimator
        The one being fitted.
    criterion : Criterion
        Its criterion.
    batch_size : int or None
        Rows of a mini-batch; None for full batches.
    memory : tuple or None
        `memory()` of the previous call of `partial_fit`, which is left as it is: the
        call may fail.
    """

    def __init__(self, estimator, criterion, batch_size, memory=None):
        self.estimator = estimator
        self.criterion = criterion
        self.batch_size = batch_size
        self.step: Any
        self.inference: Any
        self.step, self.inference = copy.deepcopy(memory) or (None, None)

    def memory(self):
        """What the next call of `partial_fit` goes on from: step and inference.

        Criteria are the user's and not remembered; full batches learn no effort.
        """
        if self.batch_size is None:
            return self.step, None
        return self.step, replace(self.inference, criterion=None)

    def run(self, problem, theta, monitor, random_state, max_iter):
        """Run `max_iter` epochs at most."""
        est = self.estimator
        if self.batch_size is None:
            self._full_batch(problem)
            # Where a step does not make the decrease that its criterion compares the
            # gap with, epochs tell when to stop (EpochMonitor).
            compares = getattr(self.criterion, "needs_full_batch", False)
            alternating = isinstance(self.criterion, Alternating)
            told = self.step.guaranteed or (compares and not alternating)
            tol = est.tol if told else None
            start: Any = ALL_ROWS
            batches = whole_batch
        else:
            if self.inference is None:
                self.inference = Continuation(self.criterion, effort=_FIRST_PASSES)
            self.inference = replace(
                self.inference,
                criterion=self.criterion,
                min_effort=min(_MIN_PASSES, est.max_passes),
                max_effort=est.max_passes,
            )
            if self.step is None:
                self.step = self._stochastic_step()
            # Nor do bounds of mini-batches tell.
            batches, tol = self._batches(problem, random_state), None
            start = np.arange(min(self.batch_size, problem.n_samples))
        updates = getattr(self.step, "n_updates", 0)
        point = problem.at(theta)
        upper = self._upper(problem, point, start)
        if not np.isfinite(upper):
            raise ValueError(
                "The loss of the initial weights is not finite: squares of activations "
                "overflow. Scale X, e.g. with StandardScaler."
            )
        memory = replace(Memory.start(upper), iteration=updates)
        monitor.expect(point, upper)
        result = minimize(
            problem,
            point,
            inference=self.inference,
            step=self.step,
            memory=memory,
            history=monitor.history,
            max_iter=max_iter,
            tol=tol,
            batches=batches,
            monitor=monitor,
            interruptible=True,
        )
        sound = monitor.sound
        if result.status is Status.DIVERGED or self._leapt(problem, result, sound):
            return replace(result, point=sound, status=Status.DIVERGED)
        return result

    def _leapt(self, problem, result, sound):
        """Whether the last update, which no bound has seen yet, blew the loss up."""
        theta = result.point.theta
        if np.linalg.norm(theta - sound.theta) <= np.linalg.norm(sound.theta):
            return False  # the rule
        rows = np.arange(min(problem.n_samples, DEFAULT_CHUNK))
        after, before = (self._upper(problem, at, rows) for at in (result.point, sound))
        return not after <= BLOWN_UP * max(before, result.memory.first_upper)

    def _full_batch(self, problem):
        """Constant memory, unless the baseline is asked for that keeps latents."""
        est = self.estimator

        def upper_bound(problem, point, candidate, trial):
            if trial.latent is not None:
                return problem.upper_bound(candidate, trial.latent)
            # The latent of a chunk is a function of theta, effort and rows.
            return self._sum_upper(problem, point, trial.effort, candidate)

        if isinstance(self.criterion, Alternating):
            passes = float(self.criterion.effort or 1.0)
            self.inference = Persistent(self.criterion, effort=passes)
        else:
            self.inference = DoublingRestart(
                self.criterion,
                effort=min(_MIN_PASSES, est.max_passes),
                max_effort=est.max_passes,
            )
        if est.solver == "gd":
            self.step = GradientDescent(upper_bound)
        elif self.step is None:
            self.step = self._stochastic_step()

    def _stochastic_step(self):
        est = self.estimator
        if est.solver == "adam":
            return Adam(est.learning_rate_init)
        power_t = est.power_t if est.learning_rate == "invscaling" else 0.0
        return MomentumDescent(est.learning_rate_init, power_t, momentum=est.momentum)

    def _batches(self, problem, random_state):
        n_samples, size = problem.n_samples, self.batch_size
        # Rows that are read on demand are drawn from one block after another: a batch
        # from everywhere would have to read everything.
        lazy = isinstance(problem.X, LazyRows)
        blocks = problem.X.batch_blocks if lazy else [slice(0, n_samples)]

        def ordered(start, stop):
            order = np.arange(start, stop)
            if self.estimator.shuffle:
                random_state.shuffle(order)
            return order

        def batches():
            for i in ordered(0, len(blocks)):
                order = ordered(blocks[i].start, blocks[i].stop)
                for rows in row_chunks(len(order), size):
                    yield order[rows]

        return batches

    def _upper(self, problem, point, rows):
        """Upper bound of the start."""
        if isinstance(rows, slice):
            return self._sum_upper(problem, point, _START_PASSES, point.theta)
        return upper_after(problem, point, _START_PASSES, point.theta, rows)

    def _sum_upper(self, problem, point, effort, candidate):
        """`upper_after` of all rows, a chunk at a time."""
        return sum(problem.map_parts(upper_after, point, effort, candidate))


class EpochMonitor(FitMonitor):
    """Keeps the loss of every epoch, and ends training that no longer improves.

    Parameters
    ----------
    history : History
        Record of the run.
    validate : callable or None
        Maps theta to a score on data held out.
    tol, n_iter_no_change : float, int
        Training ends after so many epochs that were better by less than `tol`.
    **kwargs : dict
        Parameters of `FitMonitor`.
    """

    effort_name = "passes"

    def __init__(self, *, history, validate, tol, n_iter_no_change, **kwargs):
        super().__init__(**kwargs)
        self.history = history
        self.losses, self.scores = [], []
        self.best_theta = self._pending = None
        self.exhausted = False
        self.n_capped = 0  # updates of the last epoch that met the cap on passes
        self._validate = validate
        self._tol = tol
        self._patience = n_iter_no_change
        self._n_poor = 0
        self._seen = 0

    def expect(self, point, first_upper):
        """Begin a run from a point with this upper bound."""
        self.sound = point  # the last one whose bound is known not to have blown up
        self._first_upper = first_upper

    def inferred(self, point, inferred):
        """Remember a point whose bound has not blown up."""
        if inferred.trial.upper <= BLOWN_UP * self._first_upper:
            self.sound = point

    def end(self, point, record):
        theta = point.theta
        epoch = self.history.since(self._seen)
        self._seen = len(self.history)
        self.losses.append(float(np.mean(epoch["upper_bound"])))
        self.n_capped = int(np.sum(epoch["capped"]))
        record = {**record, "upper_bound": self.losses[-1]}
        record["lower_bound"] = float(np.mean(epoch["lower_bound"]))
        record["effort"] = float(np.mean(epoch["effort"]))
        self._judge(theta)
        return super().end(point, record) or self.exhausted

    def blew_up(self, first_upper):
        """Whether the last epoch ended far above the start."""
        return bool(self.losses) and not self.losses[-1] <= BLOWN_UP * first_upper

    def _judge(self, theta):
        """Count epochs without improvement; keep the best theta.

        The loss of an epoch is that before its last update; only the next one tells
        that this update did not blow it up.
        """
        if self._validate is None:
            values, sign = self.losses, -1.0
            if self._pending is not None and values[-1] <= BLOWN_UP * values[-2]:
                self.best_theta, self._pending = self._pending, None
        else:
            self.scores.append(self._validate(theta))
            values, sign = self.scores, 1.0
        best = max((sign * value for value in values[:-1]), default=-np.inf)
        value = sign * values[-1]
        self._n_poor = 0 if value > best + self._tol else self._n_poor + 1
        if value > best and self._validate is None:
            self._pending = theta
        elif value > best:
            self.best_theta = theta
        self.exhausted = self._n_poor > self._patience
