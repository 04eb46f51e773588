"""Laws of half-quadratic estimation, at every iterate of random problems."""

import numpy as np
import pytest
from decay_curve import upper_at
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_problem import make_model, make_problem
from numpy.testing import assert_allclose

from sklearn_mm._robust.problem import squared_norms
from sklearn_mm._robust.reweighting import ReweightedLeastSquares
from sklearn_mm._solver.history import History
from sklearn_mm._solver.inference import EffortBisection
from sklearn_mm._solver.loop import minimize
from sklearn_mm._solver.roles import ALL_ROWS, Inferred, Memory, Trial
from sklearn_mm.criteria import Fixed, RelaxedGeneralized, SufficientDescent
from sklearn_mm.kernels import KERNELS

ROUNDING = 1e-9  # relative to the first upper bound


@st.composite
def problems(draw):
    """A contaminated regression with any kernel, width, penalty and weights."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, p, d = draw(st.integers(8, 60)), draw(st.integers(1, 5)), draw(st.integers(1, 2))
    X = rng.normal(size=(n, p)) * 10.0 ** rng.integers(-3, 4, size=p) + rng.normal()
    Y = X @ rng.normal(size=(p, d)) / np.abs(X).max() + 0.1 * rng.normal(size=(n, d))
    bad = rng.random(n) < draw(st.floats(0.0, 0.5))
    Y[bad] += draw(st.floats(-5.0, 5.0)) + rng.normal(size=(bad.sum(), d))
    weight = rng.integers(1, 4, size=n).astype(float)
    alpha = draw(st.sampled_from([0.0, 0.1, 10.0]))
    model = make_model(X, Y, weight, alpha=alpha)
    kernel = KERNELS[draw(st.sampled_from(sorted(KERNELS)))]
    tau = draw(st.floats(0.05, 5.0))
    theta = rng.normal(size=model.shape).ravel()
    return make_problem(model, weight, kernel, tau), theta


def run(problem, theta, criterion, effort=0.0, max_iter=40):
    """Thetas and history of a run."""
    iterates = [theta]

    class Recorder(ReweightedLeastSquares):
        def take(self, problem, point, inferred):
            moved = super().take(problem, point, inferred)
            iterates.append(moved.point.theta)
            return moved

    history = History()
    point = problem.at(theta)
    minimize(
        problem,
        point,
        inference=EffortBisection(criterion, effort=effort),
        step=Recorder(),
        memory=Memory.start(upper_at(problem, point, effort)),
        history=history,
        max_iter=max_iter,
        tol=0.0,
    )
    return iterates, history.to_bunch()


@given(problems(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_bounds_enclose_the_objective_and_tighten_with_effort(case, low, high):
    problem, theta = case
    low, high = sorted([low, high])
    point, latent = problem.at(theta), problem.start(ALL_ROWS)
    loose = problem.evaluate(point, problem.infer(point, latent, low))
    tight = problem.evaluate(point, problem.infer(point, latent, high))
    objective = problem.objective(point)
    slack = ROUNDING * loose.upper
    assert objective <= tight.upper + slack
    assert tight.upper <= loose.upper + slack
    assert_allclose([loose.lower, tight.lower], objective)
    exact = problem.evaluate(point, problem.infer(point, latent, 1.0))
    assert exact.gap == 0.0
    # u = 1: the bound is (ridge) least squares.
    ones = problem.evaluate(point, problem.infer(point, latent, 0.0))
    squares = squared_norms(point.residual)
    plain = problem.sample_weight @ squares / 2 + problem.model.penalty(theta)
    assert_allclose(ones.upper, plain)


@given(problems(), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4))
def test_what_a_latent_carries_on_is_what_a_cold_one_finds(case, efforts):
    problem, theta = case
    point = problem.at(theta)
    latent = problem.start(ALL_ROWS)
    for effort in efforts:
        latent = problem.infer(point, latent, effort)
        cold = problem.infer(point, problem.start(ALL_ROWS), effort)
        assert latent == cold
        assert upper_at(problem, point, effort) == latent.upper


@given(problems(), st.floats(0.0, 1.0))
def test_weights_define_the_bound(case, effort):
    problem, theta = case
    point = problem.at(theta)
    latent = problem.infer(point, problem.start(ALL_ROWS), effort)
    u = problem.confidence(point, effort)
    assert np.all((u >= 0.0) & (u <= 1.0))
    assert_allclose(problem.weights(point, latent), problem.sample_weight * u)
    z = squared_norms(point.residual, problem.tau)
    data = problem.tau**2 * problem.sample_weight @ problem.kernel.upper_bound(z, u)
    assert_allclose(data + point.penalty, latent.upper, rtol=1e-12)
    # Memory that is handed in is used.
    memory = np.full(len(u), np.nan)
    assert problem.confidence(point, effort, memory) is memory
    assert_allclose(memory, u, rtol=0)


@given(problems(), st.floats(0.0, 1.0))
def test_step_minimises_the_upper_bound(case, effort):
    problem, theta = case
    point = problem.at(theta)
    latent = problem.infer(point, problem.start(ALL_ROWS), effort)
    bounds = problem.evaluate(point, latent)
    before, u = bounds.upper, problem.confidence(point, effort)
    step = ReweightedLeastSquares()
    trial = Trial(
        bounds, effort, latent, lambda trial: step.propose(problem, point, trial)
    )

    def upper(at):
        z = squared_norms(problem.at(at).residual, problem.tau)
        value = problem.kernel.upper_bound(z, u)
        data = problem.tau**2 * (problem.sample_weight @ value)
        return data + problem.model.penalty(at)

    decrease = trial.decrease
    moved = step.take(problem, point, Inferred(trial, True, 1.0))
    new = moved.point.theta
    assert moved.info["decrease"] == decrease
    assert_allclose(before - upper(new), decrease, rtol=1e-6, atol=1e-8 * before)
    # No point nearby is lower.
    rng = np.random.default_rng(0)
    for _ in range(5):
        other = new + 1e-3 * rng.normal(size=new.shape)
        assert upper(other) >= upper(new) - ROUNDING * before


@given(problems(), st.sampled_from([0.0, 0.5, 1.0]))
def test_regemm(case, effort):
    problem, theta = case
    eta, eta_prime = 0.5, 0.75
    iterates, history = run(problem, theta, RelaxedGeneralized(eta, eta_prime), effort)
    slack = ROUNDING * history.previous_upper[0]
    upper, lower = history.upper_bound, history.lower_bound
    objectives = [problem.objective(problem.at(theta)) for theta in iterates]
    # J <= upper bound at every iterate, and the lower bound is J.
    assert np.all(np.array(objectives[:-1]) <= upper + slack)
    assert_allclose(lower, objectives[:-1], atol=slack)
    # The accepted bounds never increase, and J stays below the previous one.
    assert np.all(upper <= history.previous_upper + slack)
    assert np.all(lower <= history.previous_upper + slack)
    # Telescoping sum: c_t >= 0 and its sum is bounded.
    c = history.previous_upper - lower
    assert c.sum() <= (history.previous_upper[0] - upper[-1]) / eta + 40 * slack
    # The window, where it can be met: the upper inequality always holds; the lower one
    # unless even u = 1 is tighter, or the search has hit its resolution.
    allowed = eta * lower + (1 - eta) * history.previous_upper
    assert np.all(upper <= allowed + slack)
    wanted = eta_prime * lower + (1 - eta_prime) * history.previous_upper
    missed = upper < wanted - 1e-3 * history.previous_upper[0]
    assert np.all(history.effort[missed] == 0.0)


@settings(max_examples=25)
@given(problems())
def test_sudemm(case):
    problem, theta = case
    rho = 0.5
    iterates, history = run(problem, theta, SufficientDescent(rho), max_iter=15)
    slack = ROUNDING * history.previous_upper[0]
    objectives = np.array([problem.objective(problem.at(theta)) for theta in iterates])
    # J(new) <= J(old) - (1 - rho) * decrease wherever the criterion was satisfied.
    held = history.satisfied.astype(bool)
    guaranteed = objectives[:-1] - (1 - rho) * history.decrease
    assert np.all(objectives[1:][held] <= guaranteed[held] + slack)
    assert np.all(history.gap[held] <= rho * history.decrease[held] + slack)
    # Exact weights satisfy it but for rounding.
    assert np.all(history.decrease[~held] <= slack)


@given(problems())
def test_exact_weights_never_increase_the_objective(case):
    problem, theta = case
    _, history = run(problem, theta, Fixed(1.0), effort=1.0)
    slack = ROUNDING * history.upper_bound[0]
    assert np.all(np.diff(history.upper_bound) <= slack)
    assert np.all(history.gap == 0.0)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_regemm_drives_its_certificate_to_zero(name):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 3))
    Y = (X @ [1.0, 2.0, 3.0] + 0.1 * rng.normal(size=80))[:, None]
    Y[:25] += 4.0
    weight = np.ones(80)
    problem = make_problem(make_model(X, Y, weight), weight, KERNELS[name], 0.5)
    theta = np.zeros(4)
    _, history = run(problem, theta, RelaxedGeneralized(), max_iter=60)
    c = history.previous_upper - history.lower_bound
    assert c[-1] <= 1e-5 * c[0]
