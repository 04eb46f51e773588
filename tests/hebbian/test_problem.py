"""Laws of the contrastive problem and of training on it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from test_energy import minimum

from sklearn_mm._hebbian.problem import (
    ContrastiveProblem,
    infer_free,
    sweep_dtype,
)
from sklearn_mm._solver.gradient_steps import GradientDescent
from sklearn_mm._solver.history import History
from sklearn_mm._solver.inference import DoublingRestart
from sklearn_mm._solver.loop import Status, minimize
from sklearn_mm._solver.roles import ALL_ROWS, Memory, Monitor, Moved, Proposal
from sklearn_mm.criteria import Fixed, RelaxedGeneralized, SufficientDescent

SIZES = (4, 6, 5, 3, 2)
GAMMAS = (1.0, 0.5, 0.3, 0.1)


def make(seed=0, feedback=0.5, n=12, sizes=SIZES, alpha=0.0, scale=0.6, **kwargs):
    rng = np.random.default_rng(seed)
    n_matrices = sum(a * b for a, b in pairwise(sizes))
    theta = scale * rng.normal(size=n_matrices + sum(sizes[1:]))
    X = rng.normal(size=(n, sizes[0]))
    Y = rng.normal(size=(n, sizes[-1]))
    weight = rng.uniform(0.2, 2.0, size=n)
    dtype = kwargs.pop("dtype", np.float64)
    problem = ContrastiveProblem(
        X.astype(dtype), Y.astype(dtype), weight, sizes, feedback, alpha, **kwargs
    )
    return problem, theta


def exact(problem, theta):
    """J by an independent solver, penalty included."""
    network = problem.at(theta).network
    drive = problem.X.astype(float) @ network.coefs[0] + network.intercepts[0]
    losses = [
        minimum(network, d, y) - minimum(network, d)
        for d, y in zip(drive, problem.Y.astype(float), strict=True)
    ]
    return np.average(losses, weights=problem.sample_weight) + problem.penalty(theta)


def bounds_at(problem, theta, effort, rows=ALL_ROWS, point=None):
    point = problem.at(theta) if point is None else point
    latent = problem.infer(point, problem.start(rows), effort)
    return problem.evaluate(point, latent), latent


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    feedback=st.sampled_from(GAMMAS),
    effort=st.integers(1, 30),
    coordinate=st.booleans(),
    dtype=st.sampled_from([np.float64, np.float32]),
)
def test_bounds_enclose_the_loss(seed, feedback, effort, coordinate, dtype):
    problem, theta = make(
        seed, feedback, n=3, alpha=0.1, coordinate=coordinate, dtype=dtype
    )
    bounds, _ = bounds_at(problem, theta, effort)
    J = exact(problem, theta)
    largest = problem.at(theta).network.weights[0]
    slack = 1e-8 if dtype == np.float64 else 1e-5 * largest
    assert bounds.lower - slack <= J <= bounds.upper + slack
    assert bounds.gap >= 0.0
    assert bounds.lower >= problem.penalty(theta)


@pytest.mark.parametrize("feedback", GAMMAS)
def test_gap_vanishes_with_effort(feedback):
    problem, theta = make(1, feedback)
    bounds, _ = bounds_at(problem, theta, 5000)
    assert bounds.gap <= 1e-9 * bounds.upper
    assert_allclose(bounds.upper, exact(problem, theta), rtol=1e-7)


@pytest.mark.parametrize("coordinate", [False, True])
@pytest.mark.parametrize("feedback", GAMMAS)
@pytest.mark.parametrize("seed", range(5))
def test_more_passes_never_loosen_the_bounds(seed, feedback, coordinate):
    problem, theta = make(seed, feedback, scale=0.9, coordinate=coordinate)
    point, latent = problem.at(theta), problem.start(ALL_ROWS)
    upper, lower = np.inf, -np.inf
    for _ in range(20):
        latent = problem.infer(point, latent, 1)
        bounds = problem.evaluate(point, latent)
        rounding = 1e-12 * bounds.upper
        assert bounds.upper <= upper + rounding
        assert bounds.lower >= lower - rounding
        upper, lower = bounds.upper, bounds.lower


@pytest.mark.parametrize("feedback", GAMMAS)
@pytest.mark.parametrize("effort", [1, 3, 40])
def test_gradient_agrees_with_central_differences(feedback, effort):
    problem, theta = make(2, feedback, alpha=0.3)
    point = problem.at(theta)
    latent = problem.infer(point, problem.start(ALL_ROWS), effort)
    problem.evaluate(point, latent)
    # A second look, at slacks some of which may be those of the first.
    latent = problem.infer(point, latent, 1)
    bounds = problem.evaluate(point, latent)
    numeric = np.empty_like(theta)
    for j in range(len(theta)):
        ahead, behind = theta.copy(), theta.copy()
        ahead[j] += 1e-5
        behind[j] -= 1e-5
        numeric[j] = problem.upper_bound(ahead, latent)
        numeric[j] -= problem.upper_bound(behind, latent)
    scale = np.abs(bounds.gradient).max()
    assert_allclose(bounds.gradient, numeric / 2e-5, atol=1e-7 * scale)


@pytest.mark.parametrize("feedback", [*GAMMAS, 0.03])
@pytest.mark.parametrize("effort", [2, 4, 6])
def test_gap_curvature_tells_the_error_of_the_gradient(feedback, effort):
    shares = []
    for seed in range(10):
        problem, theta = make(seed, feedback)
        found, _ = bounds_at(problem, theta, effort)
        error = found.gradient - bounds_at(problem, theta, 400)[0].gradient
        shares.append(error @ error / (2.0 * found.gap_curvature))
    assert max(shares) <= 1.5  # an estimate: latents of all layers err together
    # The curvature of all layers at once, which is of order feedback**-3, would leave
    # a share that vanishes with the feedback.
    assert np.median(shares) > 1e-3


def test_upper_bound_holds_when_theta_moves_under_a_fixed_latent():
    problem, theta = make(3, 0.5)
    bounds, latent = bounds_at(problem, theta, 2)
    assert_allclose(problem.upper_bound(theta, latent), bounds.upper, rtol=1e-12)
    rng = np.random.default_rng(0)
    for size in (0.01, 0.1, 1.0):
        other = theta + size * rng.normal(size=theta.shape)
        assert problem.upper_bound(other, latent) >= exact(problem, other) - 1e-9


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_chunks_add_up_to_the_whole_batch(alpha):
    problem, theta = make(4, 0.3, n=23, alpha=alpha)
    point = problem.at(theta)
    whole, _ = bounds_at(problem, theta, 3, point=point)
    for chunk_size, n_jobs in [(7, None), (11, None), (11, 2), (1, 2)]:
        split = replace(problem, chunk_size=chunk_size, n_jobs=n_jobs)
        total = split.cold_bounds(point, 3)
        assert_allclose(total.upper, whole.upper, rtol=1e-12)
        assert_allclose(total.lower, whole.lower, rtol=1e-12)
        assert_allclose(total.gradient, whole.gradient, atol=1e-12)
        assert_allclose(total.gap_curvature, whole.gap_curvature, rtol=1e-12)


def test_mini_batch_divides_by_its_own_weight():
    problem, theta = make(5, 0.5, alpha=0.1)
    rows = np.array([3, 8, 1])
    small = ContrastiveProblem(
        problem.X[rows],
        problem.Y[rows],
        problem.sample_weight[rows],
        SIZES,
        0.5,
        0.1,
    )
    batch, _ = bounds_at(problem, theta, 3, rows)
    alone, _ = bounds_at(small, theta, 3)
    assert_allclose(batch.upper, alone.upper, rtol=1e-12)
    assert_allclose(batch.gradient, alone.gradient, atol=1e-12)


def test_gradient_tends_to_that_of_back_propagation():
    sizes = (4, 6, 5, 2)
    errors = []
    for feedback in (1e-2, 1e-3, 1e-4):
        problem, theta = make(6, feedback, sizes=sizes)
        bounds, _ = bounds_at(problem, theta, 60)
        network = problem.at(theta).network
        inputs, z = [], problem.X
        for k, (W, b) in enumerate(zip(network.coefs, network.intercepts, strict=True)):
            inputs.append(z)
            z = z @ W + b
            if k < network.n_hidden:
                z = np.maximum(z, 0)
        delta = (z - problem.Y) * problem.sample_weight[:, None]
        delta /= problem.sample_weight.sum()
        matrices, biases = [], []
        for k in reversed(range(len(network.coefs))):
            matrices.insert(0, (inputs[k].T @ delta).ravel())
            biases.insert(0, delta.sum(axis=0))
            delta = (delta @ network.coefs[k].T) * (inputs[k] > 0)
        expected = np.concatenate([*matrices, *biases])
        errors.append(np.abs(bounds.gradient - expected).max())
    assert errors[2] < 1e-3 * np.abs(expected).max()
    assert errors[2] < errors[1] < errors[0]


def test_float32_and_float64_agree():
    double, theta = make(7, 0.3)
    single, _ = make(7, 0.3, dtype=np.float32)
    expected, _ = bounds_at(double, theta, 6)
    found, latent = bounds_at(single, theta, 6)
    assert latent.free.z[0].dtype == np.float32
    assert_allclose(found.upper, expected.upper, rtol=1e-5)
    assert_allclose(found.gradient, expected.gradient, atol=1e-4)


def test_small_feedback_is_swept_in_double_precision():
    assert sweep_dtype(np.dtype("f4"), 0.3, 4) == np.float32
    assert sweep_dtype(np.dtype("f4"), 0.05, 4) == np.float64


def test_latents_survive_a_change_of_theta():
    problem, theta = make(8, 0.5)
    latent = problem.infer(problem.at(theta), problem.start(ALL_ROWS), 3)
    other = problem.at(theta + 0.01)
    latent = problem.infer(other, latent, 200)
    bounds = problem.evaluate(other, latent)
    assert_allclose(bounds.upper, exact(problem, other.theta), rtol=1e-6)


def test_rows_are_inferred_independently_of_each_other():
    problem, theta = make(9, 1.0, n=30)
    network = problem.at(theta).network
    drive = problem.drive(network, problem.X)
    together, n_open = infer_free(network, drive, 1e-10, 500)
    assert n_open == 0
    for i in (0, 11, 29):
        alone, _ = infer_free(network, drive[i : i + 1], 1e-10, 500)
        for one, all_rows in zip(alone, together, strict=True):
            assert_allclose(one[0], all_rows[i], atol=1e-12)
    _, n_open = infer_free(network, drive, 1e-10, 1)
    assert n_open > 0


def run(problem, theta, criterion, max_iter=40, effort=1):
    """Full-batch gradient descent in constant memory."""
    problem = replace(problem, chunk_size=5)

    def upper_bound(problem, point, candidate, trial):
        latent = problem.infer(point, problem.start(ALL_ROWS), trial.effort)
        problem.settle(point, latent)
        return problem.upper_bound(candidate, latent)

    thetas = [theta]

    class Recorder(Monitor):
        def end(self, point, record):
            thetas.append(point.theta)
            return False

    history = History()
    point = problem.at(theta)
    start = problem.cold_bounds(point, 1).upper
    result = minimize(
        problem,
        point,
        inference=DoublingRestart(criterion, effort, 4096),
        step=GradientDescent(upper_bound),
        memory=Memory.start(start),
        history=history,
        max_iter=max_iter,
        tol=0.0,
        monitor=Recorder(),
    )
    return result, history.to_bunch(), thetas, start


@pytest.mark.parametrize("feedback", [1.0, 0.3])
def test_sudemm_decreases_the_objective_as_promised(feedback):
    problem, theta = make(10, feedback, alpha=0.01)
    rho = 0.5
    _, history, thetas, _ = run(problem, theta, SufficientDescent(rho))
    assert history.satisfied.all() and history.accepted.all()
    objective = np.array([exact(problem, t) for t in thetas])
    # upper(theta+) <= lower(theta) - (1 - rho) ||g||^2 / (2L), with J in between.
    gain = (1 - rho) * history.decrease
    assert np.all(objective[1:] <= history.lower_bound - gain + 1e-9)
    assert np.all(np.diff(objective) < 0)


@pytest.mark.parametrize("feedback", [1.0, 0.3])
@pytest.mark.parametrize("eta", [0.25, 0.5, 0.75])
def test_regemm_telescopes(feedback, eta):
    problem, theta = make(11, feedback, alpha=0.01)
    _, history, _, start = run(problem, theta, RelaxedGeneralized(eta, 0.9))
    assert history.satisfied.all()
    upper = np.concatenate([[start], history.upper_bound])
    assert np.all(np.diff(upper) <= 1e-12)
    c = history.previous_upper - history.lower_bound
    assert np.all(c >= 0)
    assert c.sum() <= (upper[0] - upper[-1]) / eta + 1e-9


def test_divergence_returns_the_parameters_before():
    problem, theta = make(12, 0.5)

    class Leap:
        def propose(self, problem, point, trial, rejected=None):
            return Proposal(0.0)

        def take(self, problem, point, inferred):
            return Moved(problem.at(point.theta * 1e200), 1.0)

    with np.errstate(all="ignore"):
        result = minimize(
            problem,
            problem.at(theta),
            inference=DoublingRestart(Fixed(2)),
            step=Leap(),
            memory=Memory.start(1.0),
            history=History(),
            max_iter=5,
            tol=0.0,
        )
    assert result.status is Status.DIVERGED
    assert_allclose(result.point.theta, theta)
