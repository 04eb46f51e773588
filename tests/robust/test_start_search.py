"""The choice of plane and scale from plain values."""

import numpy as np
import pytest
import scipy.sparse
from linear_problem import make_model
from numpy.testing import assert_allclose

from sklearn_mm import HalfQuadraticRobustRegressor
from sklearn_mm._robust.normal_equations import least_squares
from sklearn_mm._robust.start import search
from sklearn_mm._robust.start.decision import _bias, robust_start
from sklearn_mm._robust.start.search import Verdict, all_rows, choose_plane
from sklearn_mm.kernels import SmoothTruncatedQuadratic

KERNEL = SmoothTruncatedQuadratic()


def choose(X, Y, weight=None, alpha=0.0, **params):
    n, p = X.shape
    params = {"scale": None, "random_state": np.random.RandomState(0), **params}
    weight = np.ones(n) if weight is None else weight
    tuning = KERNEL.tuning_constant(Y.shape[1])
    penalty = np.full(p, alpha)
    return choose_plane(
        X, Y, weight, penalty, True, kernel=KERNEL, tuning=tuning, **params
    )


def data(rng, n=120, p=3, share=0.3):
    X = rng.normal(size=(n, p))
    Y = (X.sum(axis=1) + rng.normal(size=n))[:, None]
    Y[: round(share * n)] += 30.0
    return X, Y


def test_values_are_enough(rng):
    X, Y = data(rng)
    choice = choose(X, Y)
    assert_allclose(choice.theta[:, 0], [1.0, 1.0, 1.0, 0.0], atol=0.4)
    assert choice.scale.shape == (1,)
    assert_allclose(choice.scale, 1.0, atol=0.2)
    assert_allclose(choice.share, 0.7, atol=0.05)
    assert choice.verdict == Verdict.SOUND


def test_weights_are_masses(rng):
    X, Y = data(rng)
    weight = rng.integers(1, 4, size=120).astype(float)
    weight *= 120 / weight.sum()
    order = rng.permutation(120)
    # The order matters to random subsets alone, which are not needed here.
    a, b = choose(X, Y, weight), choose(X[order], Y[order], weight[order])
    assert_allclose(a.theta, b.theta, atol=1e-9)
    assert_allclose(a.scale, b.scale, rtol=1e-9)


def test_given_plane_and_known_scale(rng):
    X, Y = data(rng)
    theta = np.array([[1.0], [1.0], [1.0], [0.0]])
    given = choose(X, Y, theta=theta)
    assert_allclose(given.theta, theta, atol=0.3)  # the population it leads to
    assert_allclose(given.scale, 1.0, atol=0.25)
    known = choose(X, Y, scale=np.array([0.5]))
    assert_allclose(known.scale, 0.5)
    assert_allclose(known.theta, theta, atol=0.5)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_planes_of_single_outputs_are_candidates_for_all(rng, monkeypatch, unit):
    found_in = search._populations

    def in_one_output(rows, own, *args):
        if rows.n_outputs > 1:
            return all_rows(rows, own)
        return found_in(rows, own, *args)

    monkeypatch.setattr(search, "_populations", in_one_output)
    X, y = data(rng)
    noise = rng.normal(size=(120, 1))
    choice = choose(X, unit * np.column_stack([y, y + noise]))
    assert_allclose(choice.theta / unit, [[1, 1], [1, 1], [1, 1], [0, 0]], atol=0.6)
    assert_allclose(choice.scale / unit, [1.0, np.sqrt(2.0)], rtol=0.3)


@pytest.mark.parametrize("alpha", [1.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_bias_is_the_part_of_the_residuals_along_the_fit(rng, alpha, fit_intercept):
    X = rng.normal(size=(100, 3))
    Y = X @ rng.normal(size=(3, 2)) + rng.normal(size=(100, 2)) + 5.0
    weight = rng.uniform(0.5, 2.0, size=100)
    model = make_model(X, Y, weight, fit_intercept, alpha)
    point = least_squares(model, weight)
    fitted = Y - point.residual
    if fit_intercept:
        fitted -= np.average(fitted, axis=0, weights=weight)
    root = np.sqrt(weight)[:, None]
    direction = root * fitted / np.linalg.norm(root * fitted, axis=0)
    along = np.sum(direction * root * point.residual, axis=0)
    expected = along / np.sqrt(weight.sum())
    assert_allclose(_bias(model, weight, point, shrinks=False), expected, rtol=1e-6)


@pytest.mark.parametrize("known", [None, np.array([1.0])])
def test_a_penalty_widens_a_scale_unless_it_is_known(rng, known):
    X, Y = data(rng, share=0.0)
    weight, random = np.ones(120), np.random.RandomState(0)
    model = make_model(X, Y, weight, alpha=300.0)
    kernel = {"kernel": KERNEL, "tuning": KERNEL.tuning_constant()}
    options = {"scale": known, "point": None, "random_state": random}
    start = robust_start(model, weight, **kernel, **options)
    least = 3.0 * _bias(model, weight, start.point, shrinks=False)
    assert least > 1.5
    assert start.scale >= least if known is None else start.scale == known


@pytest.mark.parametrize(
    ("n", "verdict"), [(3, Verdict.UNDETERMINED), (8, Verdict.FEW_ROWS)]
)
def test_verdicts_on_few_rows(rng, n, verdict):
    X, Y = rng.normal(size=(n, 3)), rng.normal(size=(n, 1))
    assert verdict in choose(X, Y).verdict


def test_verdicts_on_minorities_and_exact_fits(rng):
    X, Y = data(rng, 300, 2, 0.0)
    Y[:170] += rng.uniform(8.0, 80.0, size=(170, 1))
    assert Verdict.MINORITY in choose(X, Y).verdict
    exact = X.sum(axis=1)[:, None]
    assert choose(X, exact).verdict == Verdict.SOUND
    exact[:50] += rng.normal(size=(50, 1))
    assert Verdict.EXACT in choose(X, exact).verdict


def test_wide_sparse_rows(rng):
    X = scipy.sparse.csr_array((rng.uniform(size=(400, 1500)) - 0.98).clip(0) * 50)
    Y = (X @ np.r_[np.full(20, 3.0), np.zeros(1480)] + rng.normal(size=400))[:, None]
    Y[:40] += 60.0
    choice = choose(X, Y, alpha=5.0)
    assert np.isfinite(choice.theta).all()
    assert choice.theta.shape == (1501, 1)
    residual = Y - X @ choice.theta[:-1] - choice.theta[-1]
    assert np.abs(residual[:40]).min() > 20.0


@pytest.mark.parametrize("seed", range(8))
def test_of_two_regimes_the_larger_one_is_chosen(seed):
    # There is more evidence for the smaller one, which differs more from all rows.
    rng = np.random.default_rng(seed)
    X, coef = rng.normal(size=(300, 5)), rng.normal(size=6)
    y = X @ coef[:5] + coef[5] + rng.normal(size=300)
    other = 3.0 * rng.normal(size=5)
    y[:135] = X[:135] @ other + 10.0 * rng.normal() + rng.normal(size=135)
    model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    assert np.linalg.norm(model.coef_ - coef[:5]) < 1.0
    assert np.linalg.norm(model.coef_ - coef[:5]) < np.linalg.norm(model.coef_ - other)


def test_one_exact_output_of_two_is_told(rng):
    X, Y = data(rng)
    exact = X.sum(axis=1, keepdims=True)
    exact[:36] += 30.0
    for outputs in ([exact, Y], [Y, exact]):
        assert Verdict.EXACT in choose(X, np.column_stack(outputs)).verdict
    assert Verdict.EXACT not in choose(X, np.column_stack([Y, Y])).verdict
