"""Weighted least squares on implicitly standardised rows."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression, Ridge

from sklearn_mm._robust import linear
from sklearn_mm._robust.linear import LinearResidual, SymmetricFactor
from sklearn_mm._robust.standardization import standardization


def make(X, Y, weight, fit_intercept=True, **kwargs):
    mean, scale = standardization(X, weight, fit_intercept)
    return LinearResidual(X, Y, mean, scale, fit_intercept, **kwargs)


def fit(model, weight):
    theta = model.minimize(np.zeros(model.shape).ravel(), weight)[0]
    return model.unpack(theta)


@pytest.mark.parametrize("alpha", [0.0, 3.0])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
def test_equals_ridge(rng, alpha, fit_intercept, container):
    X = rng.normal(size=(50, 4)) * [1.0, 10.0, 0.1, 5.0] + 2.0
    Y = rng.normal(size=(50, 2))
    weight = rng.random(50)
    reference = Ridge(alpha=alpha or 1e-12, fit_intercept=fit_intercept)
    reference.fit(X, Y, weight)
    model = make(container(X), Y, weight, fit_intercept, alpha=alpha)
    coef, intercept = fit(model, weight)
    assert_allclose(coef.T, reference.coef_, rtol=1e-7)
    assert_allclose(intercept, reference.intercept_, rtol=1e-7, atol=1e-12)


def test_large_offsets_do_not_cost_digits(rng):
    # Millisecond timestamps of a day: the offset is 2e4 spreads.
    stamp = 1.7e12 + 8.64e7 * rng.random(300)
    X = np.column_stack([stamp, rng.normal(size=300)])
    y = 1e-7 * (stamp - 1.7e12) + 2.0 * X[:, 1]
    weight = np.ones(300)
    coef, _ = fit(make(X, y[:, None], weight), weight)
    assert_allclose(coef[:, 0], [1e-7, 2.0], rtol=1e-8)


def test_constant_and_duplicate_columns_get_the_minimum_norm(rng):
    X = rng.normal(size=(40, 2))
    X = np.column_stack([X, X[:, 0], np.full(40, 7.0)])
    y = X[:, :2] @ [3.0, -1.0] + 1.0
    weight = np.ones(40)
    coef, intercept = fit(make(X, y[:, None], weight), weight)
    assert_allclose(coef[:, 0], [1.5, -1.0, 1.5, 0.0], atol=1e-8)
    assert_allclose(intercept, 1.0, atol=1e-8)


def test_float32_is_summed_in_double_precision(rng):
    X = rng.normal(size=(400, 3)).astype(np.float32) + np.float32(50.0)
    y = rng.normal(size=(400, 1))
    weight = np.ones(400)
    single = fit(make(X, y, weight), weight)
    double = fit(make(X.astype(float), y, weight), weight)
    assert_allclose(single[0], double[0], rtol=1e-6)


@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_chunks_do_not_matter(rng, container, n_jobs):
    X, Y = container(rng.normal(size=(101, 3))), rng.normal(size=(101, 2))
    weight = rng.random(101)
    theta = rng.normal(size=8)
    whole = make(X, Y, weight)
    split = make(X, Y, weight, chunk_size=17, n_jobs=n_jobs)
    for first, second in zip(
        whole.normal_equations(theta, weight),
        split.normal_equations(theta, weight),
        strict=True,
    ):
        assert_allclose(first, second, rtol=1e-12, atol=1e-12)
    assert_allclose(whole.squared_norms(theta), split.squared_norms(theta))


def test_n_jobs_give_identical_sums(rng):
    X, Y = rng.normal(size=(1000, 3)), rng.normal(size=(1000, 1))
    weight = rng.random(1000)
    theta = rng.normal(size=4)
    one = make(X, Y, weight, chunk_size=64, n_jobs=1)
    two = make(X, Y, weight, chunk_size=64, n_jobs=2)
    for a, b in zip(
        one.normal_equations(theta, weight),
        two.normal_equations(theta, weight),
        strict=True,
    ):
        assert_array_equal(a, b)


@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("alpha", [0.0, 50.0])
def test_line_search_with_a_kept_matrix_is_all_but_exact(
    rng, monkeypatch, container, alpha
):
    monkeypatch.setattr(linear, "_KEEP_ROWS", 100)
    X = rng.normal(size=(500, 4)) + 1.0
    Y = X @ rng.normal(size=(4, 2)) + rng.normal(size=(500, 2))
    weight = 0.5 + rng.random(500)
    model = make(container(X), Y, weight, alpha=alpha)
    theta = model.minimize(np.zeros(10), weight)[0]
    theta = theta + 0.1 * rng.normal(size=10)
    close = weight * (1.0 + 0.1 * rng.normal(size=500))
    new, decrease = model.minimize(theta, close)
    fresh = make(container(X), Y, weight, alpha=alpha)
    exact, best = fresh.minimize(theta, close)
    assert decrease <= best * (1 + 1e-9)
    assert decrease >= 0.99 * best
    assert np.linalg.norm(new - exact) <= 0.1 * np.linalg.norm(theta - exact)

    def upper(theta):
        return close @ fresh.squared_norms(theta) / 2 + fresh.penalty(theta)

    assert_allclose(upper(theta) - upper(new), decrease, rtol=1e-8)
    # The residual that the line search updated is the one of the new theta.
    assert_allclose(model.residual(new), fresh.residual(new.copy()), atol=1e-10)


def test_far_weights_refresh_the_kept_matrix(rng, monkeypatch):
    monkeypatch.setattr(linear, "_KEEP_ROWS", 100)
    X, Y = rng.normal(size=(500, 3)), rng.normal(size=(500, 1))
    weight = np.ones(500)
    model = make(X, Y, weight)
    model.minimize(np.zeros(4), weight)
    far = weight * (np.arange(500) < 250)
    new, _ = model.minimize(np.zeros(4), far)
    exact, _ = make(X, Y, weight).minimize(np.zeros(4), far)
    assert_allclose(new, exact, atol=1e-12)


def test_line_search_at_the_minimum_stays(rng, monkeypatch):
    monkeypatch.setattr(linear, "_KEEP_ROWS", 1)
    X = rng.normal(size=(50, 2))
    Y = (X @ [1.0, 2.0])[:, None]
    weight = np.ones(50)
    model = make(X, Y, weight)
    theta = model.minimize(np.zeros(3), weight)[0]
    for _ in range(3):
        theta, decrease = model.minimize(theta, weight)
        assert 0.0 <= decrease < 1e-20
    assert_allclose(model.unpack(theta)[0][:, 0], [1.0, 2.0])


def test_pack_is_the_inverse_of_unpack(rng):
    X = rng.normal(size=(30, 3)) * 5 + 2
    model = make(X, rng.normal(size=(30, 2)), np.ones(30))
    theta = rng.normal(size=8)
    assert_allclose(model.pack(*model.unpack(theta)), theta)


def test_factor_of_a_singular_matrix(rng):
    basis = rng.normal(size=(5, 3))
    H = basis @ basis.T
    g = H @ rng.normal(size=(5, 1))
    x = SymmetricFactor(H).solve(g)
    assert_allclose(H @ x, g, atol=1e-10)
    assert_allclose(x, np.linalg.pinv(H) @ g, atol=1e-8)


def test_standardization_matches_numpy(rng):
    X = rng.normal(size=(2000, 30)) * 3 + 7
    weight = rng.random(2000)
    mean, scale = standardization(X, weight, True)
    assert_allclose(mean, np.average(X, axis=0, weights=weight))
    variance = np.average(np.square(X - mean), axis=0, weights=weight)
    assert_allclose(scale, np.sqrt(variance))


def test_equals_linear_regression_on_polynomials():
    # Condition number 1e7 after standardisation; a step refines the previous one.
    t = np.linspace(0.0, 1.0, 200)
    X = np.column_stack([t**k for k in range(1, 8)])
    y = np.sin(6 * t)
    weight = np.ones(200)
    model = make(X, y[:, None], weight)
    theta = np.zeros(8)
    for _ in range(3):
        theta = model.minimize(theta, weight)[0]
    reference = LinearRegression().fit(X, y)
    coef, intercept = model.unpack(theta)
    assert_allclose(X @ coef[:, 0] + intercept, reference.predict(X), atol=1e-7)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_many_sparse_columns_go_without_the_matrix(rng, monkeypatch, fit_intercept):
    X = scipy.sparse.random(300, 40, density=0.2, random_state=0, format="csr")
    Y = rng.normal(size=(300, 2))
    weight = rng.random(300)
    theta = rng.normal(size=2 * (40 + fit_intercept))
    exact = make(X, Y, weight, fit_intercept, alpha=0.1).minimize(theta, weight, 1.2)
    monkeypatch.setattr(linear, "_MAX_GRAM", 10)
    found = make(X, Y, weight, fit_intercept, alpha=0.1).minimize(theta, weight, 1.2)
    assert_allclose(found[0], exact[0], atol=1e-6)
    assert_allclose(found[1], exact[1], rtol=1e-6)


def test_relaxation_keeps_its_share_of_the_decrease(rng):
    X, Y = rng.normal(size=(60, 3)), rng.normal(size=(60, 1))
    weight = rng.random(60)
    model = make(X, Y, weight, alpha=2.0)
    theta = rng.normal(size=4)

    def upper(theta):
        return weight @ model.squared_norms(theta) / 2 + model.penalty(theta)

    whole = model.minimize(theta, weight)[1]
    for relaxation in (0.5, 1.0, 1.3, 1.9):
        new, decrease = model.minimize(theta, weight, relaxation)
        assert_allclose(upper(theta) - upper(new), decrease, rtol=1e-9)
        assert_allclose(decrease, relaxation * (2 - relaxation) * whole, rtol=1e-9)
