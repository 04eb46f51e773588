"""Weighted least squares as a step: exact decreases, kept matrices, memory."""

import numpy as np
import pytest
import scipy.sparse
from linear_problem import least_squares_bound, make_model, make_problem
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mm._robust import normal_equations, reweighting
from sklearn_mm._robust.normal_equations import least_squares, solve
from sklearn_mm._robust.reweighting import (
    ReweightedLeastSquares,
    Workspace,
    curvatures,
    relaxation_of,
)
from sklearn_mm._solver.roles import ALL_ROWS, Inferred, Trial
from sklearn_mm.kernels import KERNELS

CONTAINERS = [np.asarray, scipy.sparse.csr_array]
QUADRATIC = KERNELS["quadratic"]


def curvature_ratio(problem, point):
    (sums,) = problem.model.rows.sums([curvatures(problem, point)])
    return relaxation_of(sums, problem.model.shape[1])


def minimize(model, theta, weight, step=None, kernel=QUADRATIC, tau=1.0, point=None):
    """A step on the bound of these weights: the outcome, and the decrease promised."""
    step = ReweightedLeastSquares() if step is None else step
    problem = make_problem(model, weight, kernel, tau)
    point = model.at(theta) if point is None else point
    latent = problem.infer(point, problem.start(ALL_ROWS), 1.0)
    trial = Trial(
        problem.evaluate(point, latent),
        1.0,
        latent,
        lambda trial: step.propose(problem, point, trial),
    )
    decrease = trial.decrease
    return step.take(problem, point, Inferred(trial, True, 1.0)), decrease


@pytest.fixture
def keep_many(monkeypatch):
    """Matrices are kept on few rows already."""
    monkeypatch.setattr(reweighting, "_KEEP_ROWS", 10)


class TestKeptMatrix:
    @pytest.mark.parametrize("container", CONTAINERS)
    @pytest.mark.parametrize("alpha", [0.0, 50.0])
    @pytest.mark.parametrize("chunks", [{}, {"chunk_size": 77, "n_jobs": 2}])
    def test_line_search_is_all_but_exact(
        self, rng, keep_many, container, alpha, chunks
    ):
        X = rng.normal(size=(500, 4)) + 1.0
        Y = X @ rng.normal(size=(4, 2)) + rng.normal(size=(500, 2))
        weight = 0.5 + rng.random(500)
        model = make_model(container(X), Y, weight, alpha=alpha, **chunks)
        step = ReweightedLeastSquares()
        first, _ = minimize(model, np.zeros(10), weight, step)
        theta = first.point.theta + 0.1 * rng.normal(size=10)
        close = weight * (1.0 + 0.1 * rng.normal(size=500))
        gram = step.state.gram
        moved, decrease = minimize(model, theta, close, step)
        new = moved.point.theta
        assert step.state.gram is gram  # that of the first step
        exact, best = minimize(model, theta, close)
        exact = exact.point.theta
        assert not np.array_equal(new, exact)
        assert decrease <= best * (1 + 1e-9)
        assert decrease >= 0.99 * best
        assert np.linalg.norm(new - exact) <= 0.1 * np.linalg.norm(theta - exact)
        before, after = (least_squares_bound(model, t, close) for t in (theta, new))
        assert_allclose(before - after, decrease, rtol=1e-8)
        # The residuals that the line search updated are those of the new theta.
        assert_allclose(moved.point.residual, model.at(new).residual, atol=1e-10)
        assert moved.point.penalty == model.penalty(new)

    def test_far_weights_refresh_it(self, rng, keep_many):
        X, Y = rng.normal(size=(500, 3)), rng.normal(size=(500, 1))
        weight = np.ones(500)
        model, step = make_model(X, Y, weight), ReweightedLeastSquares()
        minimize(model, np.zeros(4), weight, step)
        gram = step.state.gram
        far = weight * (np.arange(500) < 250)
        found, _ = minimize(model, np.zeros(4), far, step)
        exact, _ = minimize(model, np.zeros(4), far)
        assert_allclose(found.point.theta, exact.point.theta, atol=1e-12)
        assert step.state.gram is not gram
        assert_array_equal(step.state.gram.weights, far)
        # The memory is the same one.
        assert step.state.gram.weights is gram.weights

    def test_it_is_refreshed_where_the_distance_does_not_halve(self, rng, keep_many):
        X, Y = rng.normal(size=(500, 3)), rng.normal(size=(500, 1))
        weight = np.ones(500)
        model, step = make_model(X, Y, weight), ReweightedLeastSquares()
        minimize(model, np.zeros(4), weight, step)
        gram = step.state.gram
        # From as far away as before, with the same weights.
        far, _ = minimize(model, np.zeros(4), weight, step)
        assert step.state.gram is not gram
        exact, _ = minimize(model, np.zeros(4), weight)
        assert_array_equal(far.point.theta, exact.point.theta)

    @pytest.mark.parametrize("share", [0.45, 0.55])
    def test_half_the_distance_is_the_limit(self, rng, keep_many, share):
        X, Y = rng.normal(size=(500, 3)), rng.normal(size=(500, 1))
        weight, start = np.ones(500), rng.normal(size=4)
        model, step = make_model(X, Y, weight), ReweightedLeastSquares()
        best = minimize(model, start, weight, step)[0].point.theta
        gram = step.state.gram
        minimize(model, best + share * (start - best), weight, step)
        assert (step.state.gram is gram) == (share < 0.5)

    def test_line_search_at_the_minimum_stays(self, rng, keep_many):
        X = rng.normal(size=(50, 2))
        Y = (X @ [1.0, 2.0])[:, None]
        weight = np.ones(50)
        model, step = make_model(X, Y, weight), ReweightedLeastSquares()
        point = minimize(model, np.zeros(3), weight, step)[0].point
        for _ in range(3):
            moved, decrease = minimize(model, None, weight, step, point=point)
            assert 0.0 <= decrease < 1e-20
            point = moved.point
        coef, _ = model.frame.unpack(point.theta)
        assert_allclose(coef[:, 0], [1.0, 2.0])

    def test_few_rows_keep_nothing(self, rng):
        X, Y = rng.normal(size=(500, 3)), rng.normal(size=(500, 1))
        step = ReweightedLeastSquares()
        minimize(make_model(X, Y, np.ones(500)), np.zeros(4), np.ones(500), step)
        assert step.state.gram is None

    def test_over_relaxed_line_search(self, rng, keep_many):
        X = rng.normal(size=(500, 3))
        Y = X @ rng.normal(size=(3, 1)) + rng.normal(size=(500, 1))
        weight, kernel, tau = np.ones(500), KERNELS["cauchy"], 4.0
        model, state = make_model(X, Y, weight), Workspace()
        plain = ReweightedLeastSquares(state=state)
        first, _ = minimize(model, np.zeros(4), weight, plain, kernel, tau)
        theta = first.point.theta + 0.05 * rng.normal(size=4)
        gram = state.gram
        step = ReweightedLeastSquares(True, state=state)
        moved, decrease = minimize(model, theta, weight, step, kernel, tau)
        assert state.gram is gram
        problem = make_problem(model, weight, kernel, tau)
        point = model.at(theta)
        latent = problem.infer(point, problem.start(ALL_ROWS), 1.0)
        assert curvature_ratio(problem, point) > 1.05
        close = problem.weights(point, latent)
        before, after = (
            least_squares_bound(model, t, close) for t in (theta, moved.point.theta)
        )
        assert_allclose(before - after, decrease, rtol=1e-8)


class TestWorkspace:
    def test_a_run_takes_the_same_memory_again_and_again(self, rng, keep_many):
        X = rng.normal(size=(300, 3))
        Y = X @ rng.normal(size=(3, 1)) + rng.normal(size=(300, 1))
        weight, kernel = np.ones(300), KERNELS["cauchy"]
        model, state = make_model(X, Y, weight), Workspace()
        point, seen, weights = model.at(np.zeros(4)), set(), set()
        for stage in (False, True):  # the next stage goes on with the same
            step = ReweightedLeastSquares(stage, state=state)
            for _ in range(6):
                moved, _ = minimize(model, None, weight, step, kernel, 3.0, point)
                assert_allclose(
                    moved.point.residual,
                    model.at(moved.point.theta).residual,
                    atol=1e-10,
                )
                point = moved.point
                seen.add(point.residual.__array_interface__["data"][0])
                weights.add(state.weights.__array_interface__["data"][0])
        assert len(seen) <= 3
        assert len(weights) == 1

    def test_memory_of_a_proposal_that_was_not_taken(self, rng, keep_many):
        X = rng.normal(size=(300, 3))
        Y = X @ rng.normal(size=(3, 1)) + rng.normal(size=(300, 1))
        weight = np.ones(300)
        model = make_model(X, Y, weight)
        problem = make_problem(model, weight, KERNELS["cauchy"], 3.0)
        step = ReweightedLeastSquares()
        moved, _ = minimize(model, np.zeros(4), weight, step, KERNELS["cauchy"], 3.0)
        point = moved.point
        proposals = []
        for effort in (0.95, 1.0):
            latent = problem.infer(point, problem.start(ALL_ROWS), effort)
            bounds = problem.evaluate(point, latent)
            proposals.append(step.propose(problem, point, Trial(bounds, 1.0, latent)))
            if effort < 1.0:
                held = proposals[0].moved
        # Changes of residuals are held by the latest one alone: the memory is the next
        # one's, and what belongs to the first is computed if it is taken after all.
        assert held is not None and proposals[0].moved is None
        assert step.state.spare is held
        for proposal in reversed(proposals):
            trial = Trial(bounds, 1.0, latent, lambda trial, p=proposal: p)
            new = step.take(problem, point, Inferred(trial, True, 1.0)).point
            expected = model.at(proposal.theta).residual
            assert_allclose(new.residual, expected, atol=1e-10)
            point = model.at(point.theta)  # its memory has been given away

    def test_no_states_are_shared_by_accident(self):
        assert ReweightedLeastSquares().state is not ReweightedLeastSquares().state


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_many_sparse_columns_go_without_the_matrix(rng, monkeypatch, fit_intercept):
    X = scipy.sparse.random(300, 40, density=0.2, random_state=0, format="csr")
    Y = rng.normal(size=(300, 2))
    weight = rng.random(300)
    theta = rng.normal(size=2 * (40 + fit_intercept))
    model = make_model(X, Y, weight, fit_intercept, alpha=0.1)
    monkeypatch.setattr(reweighting, "relaxation_of", lambda *known: 1.2)
    exact, best = minimize(model, theta, weight, ReweightedLeastSquares(True))
    *_, factor = solve(model, model.at(theta), weight)
    assert factor is not None
    monkeypatch.setattr(normal_equations, "_MAX_GRAM", 10)
    found, decrease = minimize(model, theta, weight, ReweightedLeastSquares(True))
    *_, factor = solve(model, model.at(theta), weight)
    assert factor is None
    assert_allclose(found.point.theta, exact.point.theta, atol=1e-6)
    assert_allclose(decrease, best, rtol=1e-6)
    before, after = (
        least_squares_bound(model, t, weight) for t in (theta, found.point.theta)
    )
    assert_allclose(before - after, decrease, rtol=1e-6)


@pytest.mark.parametrize("relaxation", [0.5, 1.0, 1.3, 1.9])
def test_relaxation_keeps_its_share_of_the_decrease(rng, monkeypatch, relaxation):
    X, Y = rng.normal(size=(60, 3)), rng.normal(size=(60, 1))
    weight = rng.random(60)
    model = make_model(X, Y, weight, alpha=2.0)
    theta = rng.normal(size=4)
    whole = minimize(model, theta, weight)[1]
    monkeypatch.setattr(reweighting, "relaxation_of", lambda *known: relaxation)
    moved, decrease = minimize(model, theta, weight, ReweightedLeastSquares(True))
    before, after = (
        least_squares_bound(model, t, weight) for t in (theta, moved.point.theta)
    )
    assert_allclose(before - after, decrease, rtol=1e-9)
    assert_allclose(decrease, relaxation * (2 - relaxation) * whole, rtol=1e-9)


def test_size_of_a_move_is_that_of_the_fitted_values(rng):
    X, Y = rng.normal(size=(60, 3)), rng.normal(size=(60, 2))
    weight = rng.random(60)
    model, theta, tau = make_model(X, Y, weight), rng.normal(size=8), 0.3
    moved, _ = minimize(model, theta, weight, tau=tau)
    squares = np.square(moved.point.residual - model.at(theta).residual).sum(axis=1)
    root_mean_square = np.sqrt(np.average(squares, weights=weight))
    assert_allclose(moved.change, root_mean_square / tau)
    # Kernels narrower than rounding ask for no more than rounding.
    coarse = ReweightedLeastSquares(resolution=10.0)
    moved, _ = minimize(model, theta, weight, coarse, tau=tau)
    assert_allclose(moved.change, root_mean_square / 10.0)


class TestCurvatureRatio:
    def ratio(self, name, residual, weight=None, tau=1.0):
        residual = residual.reshape(len(residual), -1)
        weight = np.ones(len(residual)) if weight is None else weight
        model = make_model(np.ones((len(residual), 1)), residual, weight, False)
        problem = make_problem(model, weight, KERNELS[name], tau)
        return curvature_ratio(problem, model.at(np.zeros(residual.shape[1])))

    def test_quadratic(self, rng):
        assert self.ratio("quadratic", rng.normal(size=50)) == 1.0

    @pytest.mark.parametrize("tau", [3.0, 6.0])
    def test_one_output(self, rng, tau):
        r = rng.normal(size=5_000)
        kernel = KERNELS["cauchy"]
        # d/dr of the influence function r omega(r**2), by differences.
        h = 1e-5
        z = [np.square((r + e) / tau) for e in (-h, h)]
        influence = [
            (r + e) * kernel.weight(v) for e, v in zip((-h, h), z, strict=True)
        ]
        slope = (influence[1] - influence[0]) / (2 * h)
        expected = kernel.weight(np.square(r / tau)).mean() / slope.mean()
        assert expected > 1.02
        assert_allclose(self.ratio("cauchy", r, tau=tau), expected, rtol=1e-3)

    def test_far_from_a_minimum_there_is_none(self, rng):
        assert self.ratio("tukey", rng.normal(size=50), tau=0.5) == 1.0
        assert self.ratio("tukey", 10 + rng.normal(size=50)) == 1.0  # 0 / 0


def test_least_squares_is_a_point(rng):
    X, Y = rng.normal(size=(60, 3)), rng.normal(size=(60, 2))
    weight = rng.random(60)
    model = make_model(X, Y, weight, alpha=0.3)
    point = least_squares(model, weight)
    assert_allclose(point.residual, model.at(point.theta).residual, atol=1e-12)
    G = model.right_side(point.theta, model.gradient(point.residual, weight))
    assert_allclose(G, 0.0, atol=1e-10)
