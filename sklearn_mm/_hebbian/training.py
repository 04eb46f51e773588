"""Training of layered energies: connects the estimators with the solver."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from sklearn_mm._hebbian.blocks import EpochOnBlocks, batches_of_epoch
from sklearn_mm._hebbian.inference import FullBatches, MiniBatches
from sklearn_mm._hebbian.problem import LARGE_CHUNK, upper_after
from sklearn_mm._rows.sources import DaskRows
from sklearn_mm._solver.gradient_steps import Adam, GradientDescent, MomentumDescent
from sklearn_mm._solver.inference import DoublingRestart, Persistent
from sklearn_mm._solver.loop import minimize, whole_batch
from sklearn_mm._solver.roles import ALL_ROWS, Memory
from sklearn_mm.baselines import Alternating
from sklearn_mm.criteria import Fixed

# The smallest number of passes in full batches. Far from the minimum, the gradient of
# fewer passes can be so wrong, and so large, that SuDeMM's test is satisfied.
_MIN_PASSES = 2
# Passes for the first bound of ReGeMM. If it were very loose, the first rounds, which
# only have to halve the gap, would use gradients that are mostly error.
_START_PASSES = 8


def initial_theta(sizes, random_state):
    """Draw uniform weights and biases as Glorot and Bengio do, matrices first."""
    matrices, biases = [], []
    for fan_in, fan_out in pairwise(sizes):
        bound = np.sqrt(6.0 / (fan_in + fan_out))
        matrices.append(random_state.uniform(-bound, bound, fan_in * fan_out))
        biases.append(random_state.uniform(-bound, bound, fan_out))
    return np.concatenate([*matrices, *biases])


class Trainer:
    """Sets up the roles of the solver from the parameters of an estimator.

    Parameters
    ----------
    estimator : estimator
        The estimator that is fitted.
    criterion : Criterion
        Its criterion.
    batch_size : int or None
        Rows of a mini-batch; None for full batches.
    learning_rate : float
        Step length of stochastic steps.
    memory : tuple or None
        `memory()` of the previous call of `partial_fit`. It is not changed, since the
        call may fail.
    """

    def __init__(self, estimator, criterion, batch_size, learning_rate, memory=None):
        self.estimator = estimator
        self.learning_rate = learning_rate
        self.criterion = criterion
        self.batch_size = batch_size
        self.step: Any
        self.inference: Any
        self.step, self.inference = copy.deepcopy(memory) or (None, None)

    def memory(self):
        """Step and inference, from which the next call of `partial_fit` continues.

        Criteria belong to the user and are not stored. Full batches do not store what
        was learnt about efforts.
        """
        if self.batch_size is None:
            return self.step, None
        return self.step, replace(
            self.inference,
            criterion=None,
            spaces={},
            continuation=replace(self.inference.continuation, criterion=Fixed()),
        )

    def averaged(self, theta):
        """The weights that are fitted if training ends at theta."""
        if hasattr(self.step, "averaged"):
            return self.step.averaged(theta)
        return theta

    def prepare(self, problem, point):
        """Choose step and inference; the upper bound of the start."""
        est = self.estimator
        if self.batch_size is None:
            self._full_batch(problem)
            start: Any = ALL_ROWS
        else:
            if self.inference is None:
                self.inference = MiniBatches(self.criterion)
            self.inference = replace(
                self.inference, criterion=self.criterion, max_effort=est.max_passes
            )
            if self.step is None:
                self.step = self._stochastic_step()
            start = np.arange(min(self.batch_size, problem.n_samples))
            if not problem.sample_weight[start].any():
                start = np.flatnonzero(problem.sample_weight)[: self.batch_size]
        upper = self.upper_bound(problem, point, start)
        if not np.isfinite(upper):
            raise ValueError(
                "The loss of the initial weights is not finite: squares of activations "
                "overflow. Scale X, e.g. with StandardScaler."
            )
        return upper

    def run(self, problem, point, upper, monitor, random_state, max_iter):
        """Run `max_iter` epochs at most, from a point with this upper bound."""
        est = self.estimator
        if self.batch_size is None:
            # If a step does not guarantee the decrease with which its criterion
            # compares the gap, `Safeguard` decides when to stop.
            compares = getattr(self.criterion, "needs_full_batch", False)
            alternating = isinstance(self.criterion, Alternating)
            told = self.step.guaranteed or (compares and not alternating)
            tol = est.tol if told else None
            batches = whole_batch
        else:  # the same holds for bounds of mini-batches
            batches, tol = self._batches(problem, random_state), None
        elsewhere = None
        if self.batch_size is not None and isinstance(problem.X, DaskRows):
            elsewhere = EpochOnBlocks.of(self, problem, monitor, random_state)
        updates = getattr(self.step, "n_updates", 0)
        return minimize(
            problem,
            point,
            inference=self.inference,
            step=self.step,
            memory=replace(Memory.start(upper), iteration=updates),
            history=monitor.history,
            max_iter=max_iter,
            tol=tol,
            batches=batches,
            monitor=monitor,
            interruptible=True,
            epoch_elsewhere=elsewhere,
        )

    def _full_batch(self, problem):
        """Use constant memory, except for the baseline that keeps latents."""
        est = self.estimator

        def upper_bound(problem, point, candidate, trial):
            at = problem.at(candidate)
            if trial.latent is not None:
                latents = problem.row_bounds(point, trial.latent).phases
                return problem.upper_bound(at, latents, trial.latent.batch)
            # The latent of a chunk is a function of theta, effort and rows.
            return self._sum_upper(problem, point, trial.effort, at)

        if isinstance(self.criterion, Alternating):
            passes = float(self.criterion.effort or 1.0)
            self.inference = Persistent(self.criterion, effort=passes)
        elif est.inference == "coordinate":  # the paper's Algorithm 4
            self.inference = DoublingRestart(
                self.criterion,
                effort=min(_MIN_PASSES, est.max_passes),
                max_effort=est.max_passes,
            )
        else:
            self.inference = FullBatches(
                self.criterion,
                max_effort=est.max_passes,
                min_effort=min(_MIN_PASSES, est.max_passes),
            )
        if est.solver == "gd":
            self.step = GradientDescent(upper_bound)
        elif self.step is None:
            self.step = self._stochastic_step()

    def _stochastic_step(self):
        est = self.estimator
        average = est.average and not getattr(self.criterion, "needs_full_batch", False)
        if est.solver == "adam":
            return Adam(self.learning_rate, average=average)
        power_t = est.power_t if est.learning_rate == "invscaling" else 0.0
        return MomentumDescent(
            self.learning_rate, power_t, average=average, momentum=est.momentum
        )

    def _batches(self, problem, random_state):
        n_samples, size = problem.n_samples, self.batch_size
        # Rows that are read on demand are drawn from one block after another, since a
        # batch from all blocks would have to read all of them.
        blocks = getattr(problem.X, "batch_blocks", [slice(0, n_samples)])
        source = random_state if self.estimator.shuffle else None
        weight = problem.sample_weight
        return functools.partial(batches_of_epoch, blocks, weight, size, source)

    def upper_bound(self, problem, point, rows):
        """Upper bound at any point, of all rows or some."""
        if isinstance(rows, slice):
            return self._sum_upper(problem, point, _START_PASSES, point)
        return upper_after(problem, point, _START_PASSES, point, rows)

    def _sum_upper(self, problem, point, effort, candidate):
        """`upper_after` of all rows, a chunk at a time."""
        task = upper_after, point, effort, candidate
        return problem.sum_parts(*task, chunk=LARGE_CHUNK)
