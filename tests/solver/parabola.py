"""A problem small enough to know everything about."""

from dataclasses import dataclass, replace

import numpy as np

from sklearn_mm._solver.history import History
from sklearn_mm._solver.loop import minimize
from sklearn_mm._solver.roles import Bounds, Memory, Moved


@dataclass(frozen=True)
class Parabola:
    """J(theta) = |theta|**2 / 2, bounded with a gap of 2**-effort on every row.

    The latent is the number of passes made, so that gap and work can be told exactly.
    """

    n_samples: int = 8
    total: int = 0  # where these rows are a part

    def start(self, rows):
        return (rows, 0.0)

    def infer(self, theta, latent, effort):
        return (latent[0], latent[1] + effort)

    def map_parts(self, function, theta, chunks, n_jobs, *arguments):
        for chunk in chunks:
            size = len(range(self.n_samples)[chunk])
            part = replace(self, n_samples=size, total=self.n_samples)
            yield function(part, theta, *arguments)

    def evaluate(self, theta, latent):
        rows, passes = latent
        share = len(range(self.n_samples)[rows]) / (self.total or self.n_samples)
        objective = share * float(theta @ theta) / 2
        gap = share * 2.0**-passes
        return Bounds(objective + gap / 2, objective - gap / 2, share * theta)


@dataclass
class GradientStep:
    """A plain gradient step of length 1/L, with L = 2 known."""

    step_size: float = 0.5

    def decrease(self, problem, theta, trial):
        gradient = trial.bounds.gradient
        return self.step_size / 2 * float(gradient @ gradient)

    def __call__(self, problem, theta, inferred):
        new = theta - self.step_size * inferred.trial.bounds.gradient
        return Moved(new, float(np.linalg.norm(new - theta)))


def run(inference, max_iter=200, tol=1e-6, step=None, **kwargs):
    history = History()
    result = minimize(
        Parabola(),
        np.array([3.0, -1.0]),
        inference=inference,
        step=GradientStep() if step is None else step,
        memory=Memory.start(10.0),
        history=history,
        max_iter=max_iter,
        tol=tol,
        **kwargs,
    )
    return result, history.to_bunch()


whole = [slice(0, 8)]
halves = [slice(0, 3), slice(3, 8)]
