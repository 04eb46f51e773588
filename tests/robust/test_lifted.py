"""Weights as unknowns beside theta: gradients and steps."""

import numpy as np
import pytest
from decay_curve import START, make_problem

from sklearn_mm._robust.lifted import LiftedProblem
from sklearn_mm.kernels import KERNELS

LIFTABLE = sorted(set(KERNELS) - {"huber", "quadratic"})


@pytest.mark.parametrize("kernel", LIFTABLE)
@pytest.mark.parametrize("dim", [1, 2])
def test_lifted_gradient(kernel, dim):
    lifted = LiftedProblem(make_problem(kernel, dim=dim))
    rng = np.random.default_rng(0)
    n = 40 // dim
    theta = np.r_[START, rng.uniform(0.3, 1.2, n)]
    gradient = lifted.normal_system(lifted.at(theta), None).gradient
    for k in [0, 1, 2, 5, 11]:
        h = np.zeros_like(theta)
        h[k] = 1e-6
        ahead, behind = lifted.at(theta + h), lifted.at(theta - h)
        slope = (lifted.upper(ahead) - lifted.upper(behind)) / 2e-6
        np.testing.assert_allclose(gradient[k], slope, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", LIFTABLE)
@pytest.mark.parametrize("dim", [1, 2])
def test_lifted_step_solves_the_full_system(kernel, dim):
    """Elimination of the weights against Gauss-Newton on the lifted residuals."""
    problem = make_problem(kernel, dim=dim)
    lifted = LiftedProblem(problem)
    tau = problem.tau
    rng = np.random.default_rng(1)
    n = 40 // dim
    v = rng.uniform(0.3, 1.2, n)
    damping = 0.05
    point = lifted.at(np.r_[START, v])
    delta, predicted = lifted.normal_system(point, None).damped_step(damping)

    def gamma(v):
        kappa = problem.kernel.penalty(v**2)
        return tau * np.sign(v**2 - 1) * np.sqrt(2 * kappa)

    r = point.inner.residual
    J = lifted.linearized(point).inner.jacobian
    G = np.zeros((n * dim + n, 3 + n))
    G[: n * dim, :3] = np.repeat(v, dim)[:, None] * J
    G[np.arange(n * dim), 3 + np.repeat(np.arange(n), dim)] = r.ravel()
    G[n * dim :, 3:] = np.diag((gamma(v + 1e-6) - gamma(v - 1e-6)) / 2e-6)
    full = np.r_[(v[:, None] * r).ravel(), gamma(v)]
    H = G.T @ G
    # Theta is damped relative to the system that is left after the elimination.
    s = (1 + damping) * np.diag(H)[3:]
    reduced = H[:3, :3] - H[:3, 3:] @ (H[3:, :3] / s[:, None])
    added = damping * np.r_[np.diag(reduced), np.diag(H)[3:]]
    expected = -np.linalg.solve(H + np.diag(added), G.T @ full)
    np.testing.assert_allclose(delta, expected, rtol=1e-4, atol=1e-7)
    decrease = (np.sum(full**2) - np.sum((full + G @ expected) ** 2)) / 2
    np.testing.assert_allclose(predicted, decrease, rtol=1e-4)


@pytest.mark.parametrize("dim", [1, 2])
def test_points_of_the_lifted_problem(dim):
    problem = make_problem(dim=dim)
    lifted = LiftedProblem(problem)
    n = 40 // dim
    inner = problem.at(START)
    start = lifted.lift(inner)
    # All weights one: least squares, above J.
    assert start.inner is inner
    squares = np.sum(np.square(inner.residual)) / 2
    np.testing.assert_allclose(lifted.upper(start), squares)
    bounds = lifted.evaluate(start, None)
    assert bounds.lower == problem.objective(inner) < bounds.upper
    # A move of both parts, and the decrease on the way.
    rng = np.random.default_rng(0)
    delta = 0.1 * rng.normal(size=3 + n)
    new = lifted.at(lifted.retract(start, delta))
    np.testing.assert_array_equal(new.inner.theta, START + delta[:3])
    np.testing.assert_array_equal(new.v, 1.0 + delta[3:])
    np.testing.assert_allclose(
        lifted.decrease(start, None, new), lifted.upper(start) - lifted.upper(new)
    )
    with np.errstate(over="ignore"):
        away = lifted.at(np.r_[1.0, -1e6, 0.0, np.ones(n)])
    assert np.isnan(lifted.decrease(start, None, away))
