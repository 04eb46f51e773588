"""Laws of the contrastive problem and of training on it."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from reference import (
    LOSSES,
    SIZES,
    loss_of_rows,
    make_energy,
    make_rows,
    make_theta,
)

import sklearn_mm._hebbian.problem as problem_module
from sklearn_mm._hebbian.energy import BOXES, Network
from sklearn_mm._hebbian.inputs import NO_UNITS, Units
from sklearn_mm._hebbian.point import contraction
from sklearn_mm._hebbian.problem import ContrastiveProblem, upper_after
from sklearn_mm._hebbian.to_the_end import certified_bounds, free_outputs
from sklearn_mm._solver.gradient_steps import GradientDescent
from sklearn_mm._solver.history import History
from sklearn_mm._solver.inference import DoublingRestart
from sklearn_mm._solver.loop import Monitor, minimize
from sklearn_mm._solver.roles import ALL_ROWS, Memory
from sklearn_mm.criteria import RelaxedGeneralized, SufficientDescent

GAMMAS = (1.0, 0.3, 0.03)


def make(seed=0, feedback=0.3, n=12, alpha=0.0, scale=0.6, dtype=float, **kwargs):
    names = ("loss", "activation", "sizes")
    energy = make_energy(feedback, **{k: kwargs.pop(k) for k in names if k in kwargs})
    theta = make_theta(seed, energy.sizes, scale)
    X, Y = make_rows(seed, energy, n)
    weight = np.random.default_rng(seed).uniform(0.2, 2.0, size=n)
    weight = kwargs.pop("weight", weight)
    problem = ContrastiveProblem(
        X.astype(dtype), Y.astype(dtype), weight, energy, alpha, **kwargs
    )
    return problem, problem.at(theta.astype(problem.dtype))


def exact(problem, point):
    """J by an independent solver, penalty included."""
    network = Network.at(point.theta.astype(float), problem.energy)
    drive = problem.X.astype(float) @ network.coefs[0] + network.intercepts[0]
    losses = loss_of_rows(network, drive, problem.Y.astype(float))
    mean = np.average(losses, weights=problem.sample_weight)
    return mean + problem.penalty(point)


def bounds_at(problem, point, effort, rows=ALL_ROWS):
    latent = problem.infer(point, problem.start(rows), effort)
    return problem.evaluate(point, latent)


@given(
    seed=st.integers(0, 10_000),
    feedback=st.sampled_from(GAMMAS),
    effort=st.integers(1, 30),
    coordinate=st.booleans(),
    certified=st.booleans(),
    loss=st.sampled_from(sorted(LOSSES)),
    activation=st.sampled_from(sorted(BOXES)),
)
def test_bounds_enclose_the_loss(
    seed, feedback, effort, coordinate, certified, loss, activation
):
    problem, point = make(
        seed,
        feedback,
        n=2,
        alpha=0.1,
        coordinate=coordinate,
        certified=certified,
        loss=loss,
        activation=activation,
    )
    bounds = bounds_at(problem, point, effort)
    J = exact(problem, point)
    slack = (1e-7 + 1e-12 * problem.energy.weights[0]) * (1.0 + J)
    assert bounds.lower - slack <= J <= bounds.upper + slack
    assert bounds.gap >= 0.0 and bounds.gap_curvature >= 0.0
    assert bounds.lower >= (1.0 - 1e-12) * problem.penalty(point)


@pytest.mark.parametrize("feedback", GAMMAS)
def test_the_method_follows_the_feedback(feedback):
    for scale, small in ((0.05, True), (2.0, False)):
        _, point = make(1, feedback, scale=scale)
        assert point.prepared().method == ("difference" if small else "modulus")
    assert make(1, feedback, coordinate=True)[1].method == "coordinate"
    norms = [np.linalg.norm(W, 2) ** 2 for W in point.network.coefs[1:]]
    assert_allclose(contraction(point.network), feedback * max(norms), rtol=0.1)
    assert contraction(point.network, 0.0) > 0.0  # ends early


@pytest.mark.parametrize("coordinate", [False, True])
@pytest.mark.parametrize("feedback", GAMMAS)
def test_gap_vanishes_with_effort(feedback, coordinate):
    problem, point = make(1, feedback, coordinate=coordinate)
    bounds = bounds_at(problem, point, 3000)
    assert bounds.gap <= 1e-9 * bounds.upper
    # Which leaves no error in the gradient.
    assert bounds.gap_curvature <= 1e-9 * bounds.gradient @ bounds.gradient
    assert_allclose(bounds.upper, exact(problem, point), rtol=1e-6)


@pytest.mark.parametrize("certified", [True, False])
@pytest.mark.parametrize("feedback", GAMMAS)
def test_chunks_add_up_to_the_whole_batch(feedback, certified):
    problem, point = make(4, feedback, n=23, alpha=0.2, certified=certified)
    whole = bounds_at(problem, point, 3)
    for chunk_size, n_jobs in ((7, None), (10, 2)):
        split, _ = make(
            4,
            feedback,
            n=23,
            alpha=0.2,
            certified=certified,
            chunk_size=chunk_size,
            n_jobs=n_jobs,
        )
        total = split.cold_bounds(point, 3)
        assert_allclose(total.upper, whole.upper, rtol=1e-12)
        assert_allclose(total.lower, whole.lower, rtol=1e-12)
        assert_allclose(total.gradient, whole.gradient, atol=1e-10)
        assert_allclose(total.gap_curvature, whole.gap_curvature, rtol=1e-9)


@pytest.mark.parametrize(
    "units", [NO_UNITS, Units(np.full(SIZES[0], 0.3), np.full(SIZES[0], 2.0))]
)
@pytest.mark.parametrize("feedback", [1.0, 0.03])
def test_pieces_share_memory_without_a_trace(monkeypatch, feedback, units):
    problem, point = make(3, feedback, n=23, alpha=0.1, units=units)
    before = problem.X.copy()
    expected = bounds_at(problem, point, 3)
    monkeypatch.setattr(problem_module, "_PIECE", 5)  # the last one has three rows
    found = problem.cold_bounds(point, 3)
    assert_array_equal(problem.X, before)
    assert_allclose(found.upper, expected.upper, rtol=1e-12)
    assert_allclose(found.lower, expected.lower, rtol=1e-12)
    assert_allclose(found.gradient, expected.gradient, rtol=1e-9, atol=1e-12)


def test_mini_batch_divides_by_its_own_weight():
    problem, point = make(5, 0.03, alpha=0.1)
    rows = np.array([3, 8, 1])
    small = ContrastiveProblem(
        problem.X[rows],
        problem.Y[rows],
        problem.sample_weight[rows],
        problem.energy,
        0.1,
    )
    batch, alone = bounds_at(problem, point, 3, rows), bounds_at(small, point, 3)
    assert_allclose(batch.upper, alone.upper, rtol=1e-12)
    assert_allclose(batch.gradient, alone.gradient, atol=1e-12)


def test_equal_weights_are_no_weights():
    known, point = make(5, 0.03, weight=np.ones(12))
    none, _ = make(5, 0.03, weight=np.broadcast_to(1.0, 12))
    assert_allclose(
        bounds_at(known, point, 3).gradient,
        bounds_at(none, point, 3).gradient,
        atol=1e-13,
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_units_of_features_are_folded_into_the_first_layer(sparse):
    problem, point = make(6, 0.03)
    rng = np.random.default_rng(0)
    centre, scale = rng.normal(size=4), rng.uniform(0.1, 10, size=4)
    units = Units(None if sparse else centre, scale)
    raw = problem.X * scale + (0.0 if sparse else centre)
    X = scipy.sparse.csr_array(raw) if sparse else raw
    other = ContrastiveProblem(
        X, problem.Y, problem.sample_weight, problem.energy, units=units
    )
    assert_allclose(
        bounds_at(other, point, 3).upper, bounds_at(problem, point, 3).upper
    )
    folded = units.fold_into(point.theta, SIZES)
    plain = ContrastiveProblem(X, problem.Y, problem.sample_weight, problem.energy)
    assert_allclose(
        bounds_at(plain, plain.at(folded), 3).upper, bounds_at(problem, point, 3).upper
    )
    assert_allclose(units.unfold(folded, SIZES), point.theta, atol=1e-12)
    assert np.shares_memory(problem.gather(ALL_ROWS).x, problem.X)
    before = raw.copy()
    other.gather(ALL_ROWS)
    assert_allclose(raw, before)  # rows are converted in a copy


def test_gradient_tends_to_that_of_back_propagation():
    sizes = (4, 6, 5, 2)
    errors = []
    for feedback in (1e-2, 1e-4, 1e-8, 1e-30, 1e-160):
        problem, point = make(6, feedback, sizes=sizes)
        found = bounds_at(problem, point, 6).gradient
        network = point.network
        inputs, z = [], problem.X
        for k, (W, b) in enumerate(zip(network.coefs, network.intercepts, strict=True)):
            inputs.append(z)
            z = z @ W + b
            if k < problem.energy.n_hidden:
                z = np.maximum(z, 0)
        delta = (z - problem.Y) * problem.sample_weight[:, None]
        delta /= problem.sample_weight.sum()
        matrices, biases = [], []
        for k in reversed(range(len(network.coefs))):
            matrices.insert(0, (inputs[k].T @ delta).ravel())
            biases.insert(0, delta.sum(axis=0))
            delta = (delta @ network.coefs[k].T) * (inputs[k] > 0)
        expected = np.concatenate([*matrices, *biases])
        errors.append(np.abs(found - expected).max() / np.abs(expected).max())
    assert errors[0] < 0.2
    assert errors[1] < 1e-2 * errors[0] * 2
    assert max(errors[2:]) < 1e-6


@pytest.mark.parametrize("feedback", [1.0, 0.3])
@pytest.mark.parametrize("effort", [4, 8, 16])
def test_gap_curvature_tells_the_error_of_the_gradient(feedback, effort):
    shares = []
    for seed in range(10):
        problem, point = make(seed, feedback, certified=True)
        found = bounds_at(problem, point, effort)
        error = found.gradient - bounds_at(problem, point, 800).gradient
        shares.append(error @ error / (2.0 * found.gap_curvature))
    assert max(shares) <= 2.0  # an estimate: latents of all layers err together


@pytest.mark.parametrize("feedback", [1.0, 0.03])
def test_upper_bound_holds_when_theta_moves_under_a_fixed_latent(feedback):
    problem, point = make(3, feedback, certified=True)
    bounds = bounds_at(problem, point, 2)
    assert_allclose(upper_after(problem, point, 2, point), bounds.upper, rtol=1e-9)
    rng = np.random.default_rng(0)
    for size in (0.01, 0.1, 1.0):
        other = problem.at(point.theta + size * rng.normal(size=point.theta.shape))
        J = exact(problem, other)
        assert upper_after(problem, point, 2, other) >= J * (1 - 1e-7) - 1e-9


def test_latents_survive_a_change_of_theta():
    for feedback in (1.0, 0.03):
        problem, point = make(8, feedback)
        latent = problem.infer(point, problem.start(ALL_ROWS), 3)
        other = problem.at(point.theta + 0.01)
        latent = problem.infer(other, latent, 400)
        bounds = problem.evaluate(other, latent)
        assert_allclose(bounds.upper, exact(problem, other), rtol=1e-6)


@pytest.mark.parametrize("coordinate", [False, True])
@pytest.mark.parametrize("feedback", GAMMAS)
def test_rows_are_inferred_independently_of_each_other(feedback, coordinate):
    problem, point = make(9, feedback, n=30, coordinate=coordinate)
    together, layers, n_open = free_outputs(problem, point, 1e-10, 1000)
    assert n_open == 0
    for i in (0, 11, 29):
        row = ContrastiveProblem(
            problem.X[i : i + 1],
            problem.Y[i : i + 1],
            problem.sample_weight[i : i + 1],
            problem.energy,
            coordinate=coordinate,
        )
        alone, own, _ = free_outputs(row, point, 1e-10, 1000)
        assert_allclose(alone[0], together[i], atol=1e-12)
        assert_allclose(own[0][0], layers[0][i], atol=1e-12)
    *_, n_open = free_outputs(problem, point, 1e-10, 1)
    assert n_open > 0


@pytest.mark.parametrize("feedback", GAMMAS)
def test_bounds_to_the_end_agree_with_an_independent_solver(feedback):
    problem, point = make(10, feedback, n=4)
    lower, upper = certified_bounds(problem, point, 1e-10, 1000)
    assert lower <= upper <= lower * (1 + 1e-9)
    assert_allclose(upper, exact(problem, point), rtol=1e-6)
    low, high = certified_bounds(problem, point, 1e-10, 2)
    assert low <= lower and upper <= high


def run(problem, point, criterion, max_iter=40, effort=1):
    """Full-batch gradient descent in constant memory."""

    def upper_bound(problem, point, candidate, trial):
        at = problem.at(candidate)
        return sum(problem.map_parts(upper_after, point, trial.effort, at))

    thetas = [point]

    class Recorder(Monitor):
        def end(self, point, record):
            thetas.append(point)
            return False

    history = History()
    start = problem.cold_bounds(point, 1).upper
    minimize(
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
    return history.to_bunch(), thetas, start


SETTINGS = {"alpha": 0.01, "certified": True, "chunk_size": 5}


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("feedback", [1.0, 0.3])
def test_sudemm_decreases_the_objective_as_promised(feedback, loss):
    problem, point = make(10, feedback, n=8, loss=loss, **SETTINGS)
    rho = 0.5
    history, thetas, _ = run(problem, point, SufficientDescent(rho), max_iter=20)
    assert history.satisfied.all() and history.accepted.all()
    objective = np.array([exact(problem, t) for t in thetas])
    # upper(theta+) <= lower(theta) - (1 - rho) ||g||^2 / (2L), with J in between.
    gain = (1 - rho) * history.decrease
    assert np.all(objective[1:] <= history.lower_bound - gain + 1e-7)
    assert np.all(np.diff(objective) < 1e-7)


@pytest.mark.parametrize("feedback", [1.0, 0.3])
@pytest.mark.parametrize("eta", [0.25, 0.5, 0.75])
def test_regemm_telescopes(feedback, eta):
    problem, point = make(11, feedback, **SETTINGS)
    history, _, start = run(problem, point, RelaxedGeneralized(eta, 0.9))
    assert history.satisfied.all()
    upper = np.concatenate([[start], history.upper_bound])
    assert np.all(np.diff(upper) <= 1e-12)
    c = history.previous_upper - history.lower_bound
    assert np.all(c >= 0)
    assert c.sum() <= (upper[0] - upper[-1]) / eta + 1e-9


def test_float32_is_kept_unless_bounds_are_compared():
    single, point = make(7, 0.03, dtype=np.float32)
    assert bounds_at(single, point, 6).gradient.dtype == np.float32
    double, at = make(7, 0.03)
    expected = bounds_at(double, at, 6)
    found = bounds_at(single, point, 6)
    assert_allclose(found.upper, expected.upper, rtol=1e-5)
    assert_allclose(found.gradient, expected.gradient, atol=1e-4)
    assert make(7, 0.03, dtype=np.float32, certified=True)[0].dtype == np.float64
    assert make(7, 1e-6, dtype=np.float32)[0].dtype == np.float64
