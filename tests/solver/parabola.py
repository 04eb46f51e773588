"""A problem small enough to know everything about."""

import functools
import operator
from dataclasses import dataclass

import numpy as np

from sklearn_mm._solver.history import History
from sklearn_mm._solver.loop import minimize
from sklearn_mm._solver.roles import Bounds, Memory, Moved, Proposal

START = np.array([3.0, -1.0])


@dataclass(frozen=True)
class At:
    """A point at which nothing is known but theta."""

    theta: np.ndarray

    @property
    def square(self):
        return float(self.theta @ self.theta)


@dataclass(frozen=True)
class Parabola:
    """J(theta) = |theta|**2 / 2, bounded with a gap of 2**-effort on every row.

    The latent is the number of passes made, so that gap and work can be told exactly.
    """

    n_samples: int = 8
    chunks: tuple = (slice(0, 8),)  # of cold bounds

    def at(self, theta):
        return At(theta)

    def start(self, batch):
        return (batch, 0.0)

    def infer(self, point, latent, effort):
        return (latent[0], latent[1] + effort)

    def evaluate(self, point, latent):
        batch, passes = latent
        theta = point.theta
        share = len(range(self.n_samples)[batch]) / self.n_samples
        objective = share * float(theta @ theta) / 2
        gap = share * 2.0**-passes
        return Bounds(objective + gap / 2, objective - gap / 2, share * theta)

    def cold_bounds(self, point, effort):
        parts = (
            self.evaluate(point, self.infer(point, self.start(chunk), effort))
            for chunk in self.chunks
        )
        return functools.reduce(operator.add, parts)


@dataclass
class GradientStep:
    """A plain gradient step of length 1/L, with L = 2 known."""

    step_size: float = 0.5

    def propose(self, problem, point, trial, rejected=None):
        gradient = trial.bounds.gradient
        return Proposal(self.step_size / 2 * float(gradient @ gradient))

    def take(self, problem, point, inferred):
        new = point.theta - self.step_size * inferred.trial.bounds.gradient
        return Moved(problem.at(new), float(np.linalg.norm(new - point.theta)))


def run(inference, max_iter=200, tol=1e-6, step=None, problem=None, **kwargs):
    problem = Parabola() if problem is None else problem
    history = History()
    result = minimize(
        problem,
        problem.at(START),
        inference=inference,
        step=GradientStep() if step is None else step,
        memory=Memory.start(10.0),
        history=history,
        max_iter=max_iter,
        tol=tol,
        **kwargs,
    )
    return result, history.to_bunch()


whole = (slice(0, 8),)
halves = (slice(0, 3), slice(3, 8))
