"""Laws of half-quadratic estimation, at every iterate of random problems."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from sklearn_mm._robust.linear import LinearResidual
from sklearn_mm._robust.problem import HalfQuadraticProblem
from sklearn_mm._robust.standardization import standardization
from sklearn_mm._solver.history import History
from sklearn_mm._solver.inference import EffortBisection
from sklearn_mm._solver.loop import minimize
from sklearn_mm._solver.roles import ALL_ROWS, Memory
from sklearn_mm._solver.steps import SurrogateMinimizer
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
    mean, scale = standardization(X, weight, True)
    alpha = draw(st.sampled_from([0.0, 0.1, 10.0]))
    model = LinearResidual(X, Y, mean, scale, True, alpha)
    kernel = KERNELS[draw(st.sampled_from(sorted(KERNELS)))]
    tau = draw(st.floats(0.05, 5.0))
    theta = rng.normal(size=model.shape).ravel()
    return HalfQuadraticProblem(model, kernel, tau, weight), theta


def run(problem, theta, criterion, effort=0.0, max_iter=40):
    """Iterates, history and first memory of a run."""
    iterates = [theta]

    class Recorder(SurrogateMinimizer):
        def __call__(self, problem, theta, inferred):
            moved = super().__call__(problem, theta, inferred)
            iterates.append(moved.theta)
            return moved

    history = History()
    minimize(
        problem,
        theta,
        inference=EffortBisection(criterion, effort=effort),
        step=Recorder(),
        memory=Memory.start(problem.upper_at(theta, effort)),
        history=history,
        max_iter=max_iter,
        tol=0.0,
    )
    return iterates, history.to_bunch()


@given(problems(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_bounds_enclose_the_objective_and_tighten_with_effort(case, low, high):
    problem, theta = case
    low, high = sorted([low, high])
    latent = problem.start(ALL_ROWS)
    loose = problem.evaluate(theta, problem.infer(theta, latent, low))
    tight = problem.evaluate(theta, problem.infer(theta, latent, high))
    objective = problem.objective(theta)
    slack = ROUNDING * loose.upper
    assert objective <= tight.upper + slack
    assert tight.upper <= loose.upper + slack
    assert_allclose([loose.lower, tight.lower], objective)
    exact = problem.evaluate(theta, problem.infer(theta, latent, 1.0))
    assert exact.gap == 0.0
    # u = 1: the bound is (ridge) least squares.
    ones = problem.evaluate(theta, problem.infer(theta, latent, 0.0))
    squares = problem.model.squared_norms(theta)
    plain = problem.sample_weight @ squares / 2 + problem.model.penalty(theta)
    assert_allclose(ones.upper, plain)


@given(problems(), st.floats(0.0, 1.0))
def test_step_minimises_the_upper_bound(case, effort):
    problem, theta = case
    latent = problem.infer(theta, problem.start(ALL_ROWS), effort)
    before = problem.evaluate(theta, latent).upper
    new, decrease, _ = problem.minimize_upper(theta, latent)

    def upper(at):
        z = problem.z(at)
        value = problem.kernel.upper_bound(z, latent.u)
        data = problem.tau**2 * (problem.sample_weight @ value)
        return data + problem.model.penalty(at)

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
    objectives = [problem.objective(theta) for theta in iterates]
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
    objectives = np.array([problem.objective(theta) for theta in iterates])
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
    mean, scale = standardization(X, weight, True)
    model = LinearResidual(X, Y, mean, scale, True)
    problem = HalfQuadraticProblem(model, KERNELS[name], 0.5, weight)
    theta = np.zeros(4)
    _, history = run(problem, theta, RelaxedGeneralized(), max_iter=60)
    c = history.previous_upper - history.lower_bound
    assert c[-1] <= 1e-5 * c[0]
