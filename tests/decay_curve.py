"""A curve with outliers, as a half-quadratic problem: for tests of nonlinear steps."""

import numpy as np

from sklearn_mm._robust.callable import CallableResidual
from sklearn_mm._robust.problem import HalfQuadraticProblem
from sklearn_mm._rows.table import Rows
from sklearn_mm.kernels import get_kernel

START = np.array([1.0, 1.0, 0.0])


def exponential(seed=0, n=40, outliers=8):
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 4, n)
    y = 2.5 * np.exp(-1.3 * t) + 0.5 + 0.02 * rng.normal(size=n)
    y[rng.permutation(n)[:outliers]] += rng.uniform(1, 3, outliers)
    return lambda x: x[0] * np.exp(-x[1] * t) + x[2] - y


def make_problem(kernel="smooth_truncated_quadratic", tau=0.3, fun=None, dim=1):
    fun = exponential() if fun is None else fun
    model = CallableResidual(fun, "3-point", dim)
    n = len(model.at(START).residual)
    rows = Rows(None, n)
    return HalfQuadraticProblem(model, rows, get_kernel(kernel), tau, np.ones(n))


def upper_at(problem, point, effort):
    """Upper bound at the latents of an effort."""
    return problem.infer(point, problem.start(slice(None)), effort).upper
