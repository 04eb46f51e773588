"""A problem of the user's own: three methods, and the laws hold."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from own_problem import KMeans, make_blobs

from sklearn_mm.criteria import RelaxedGeneralized
from sklearn_mm.solver import Bounds, Problem, Status, solve


@pytest.fixture
def blobs(rng):
    X = make_blobs(rng, n_clusters=5, n_rows=120)
    start = X[rng.choice(len(X), 5, replace=False)].ravel()
    return KMeans(X, 5), start


@pytest.mark.parametrize("criterion", ["regemm", "sudemm", "fixed", "graduated"])
def test_bounds_enclose_and_the_end_is_a_fixed_point(blobs, criterion):
    problem, start = blobs
    solution = solve(problem, start, criterion=criterion, effort=0.3, max_iter=500)
    history = solution.history
    assert solution.status is Status.CONVERGED
    assert np.all(history.lower_bound <= history.upper_bound)
    # Lloyd's algorithm has nothing left to do.
    owner = np.argmin(solution.point.squares, axis=1)
    centres = solution.theta.reshape(5, -1)
    for k in range(5):
        if np.any(owner == k):
            mean = problem.X[owner == k].mean(axis=0)
            assert_allclose(centres[k], mean, atol=1e-5)


def test_regemm_never_raises_its_bound(blobs):
    problem, start = blobs
    criterion = RelaxedGeneralized(0.25, 0.5)
    history = solve(problem, start, criterion=criterion, effort=0.3).history
    assert np.all(np.diff(history.upper_bound) <= 1e-12 * history.upper_bound[0])
    c_t = history.previous_upper - history.lower_bound
    ruled = history.effort < 1.0
    satisfied = history.upper_bound <= history.previous_upper - 0.25 * c_t + 1e-9
    assert np.all(satisfied[ruled])


def test_decreases_are_those_of_the_bound(blobs, rng):
    problem, start = blobs
    for effort in (0.3, 0.8, 1.0):
        point = problem.at(start)
        latent = problem.infer(point, None, effort)
        theta, decrease, _ = problem.minimize_upper(point, latent)
        before = problem.evaluate(point, latent).upper
        after = 0.5 * np.sum(latent * problem.at(theta).squares)
        assert_allclose(before - after, decrease, rtol=1e-9)
        # It is a minimiser.
        other = theta + 1e-3 * rng.normal(size=theta.shape)
        assert 0.5 * np.sum(latent * problem.at(other).squares) > after


def test_max_iter(blobs):
    problem, start = blobs
    solution = solve(problem, start, effort=0.3, max_iter=2)
    assert solution.n_iter == 2
    assert solution.status is Status.MAX_ITER


def test_methods_are_asked_for():
    problem = Problem()
    point = problem.at(np.zeros(2))
    assert problem.start(slice(None)) is None
    for call in (
        lambda: problem.infer(point, None, 1.0),
        lambda: problem.evaluate(point, None),
        lambda: problem.minimize_upper(point, None),
    ):
        with pytest.raises(NotImplementedError):
            call()


def test_bounds_that_are_not_finite_end_the_run():
    class Broken(Problem):
        def infer(self, point, latent, effort):
            return effort

        def evaluate(self, point, latent):
            size = abs(float(point.theta[0]))
            return Bounds(np.inf if size > 10 else size, 0.0)

        def minimize_upper(self, point, latent):
            return point.theta * 3, 1.0, 1.0

    solution = solve(Broken(), np.array([1.0]), criterion="fixed")
    assert solution.status is Status.DIVERGED
    assert np.isfinite(abs(solution.theta[0])) and abs(solution.theta[0]) <= 10
