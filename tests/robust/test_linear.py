"""Residuals of linear models on implicitly standardised rows."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from linear_problem import frame_of, make_model
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression, Ridge

from sklearn_mm._robust.linear import (
    Frame,
    dense_sums,
    fitted,
    products,
    residuals,
    sparse_sums,
)
from sklearn_mm._robust.normal_equations import least_squares, solve
from sklearn_mm._rows.table import Rows

CONTAINERS = [np.asarray, scipy.sparse.csr_array]


def fit(model, weight):
    return model.frame.unpack(least_squares(model, weight).theta)


@pytest.mark.parametrize("alpha", [0.0, 3.0])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("container", CONTAINERS)
def test_equals_ridge(rng, alpha, fit_intercept, container):
    X = rng.normal(size=(50, 4)) * [1.0, 10.0, 0.1, 5.0] + 2.0
    Y = rng.normal(size=(50, 2))
    weight = rng.random(50)
    reference = Ridge(alpha=alpha or 1e-12, fit_intercept=fit_intercept)
    reference.fit(X, Y, weight)
    model = make_model(container(X), Y, weight, fit_intercept, alpha)
    coef, intercept = fit(model, weight)
    assert_allclose(coef.T, reference.coef_, rtol=1e-7)
    assert_allclose(intercept, reference.intercept_, rtol=1e-7, atol=1e-12)


def test_large_offsets_do_not_cost_digits(rng):
    # Millisecond timestamps of a day: the offset is 2e4 spreads.
    stamp = 1.7e12 + 8.64e7 * rng.random(300)
    X = np.column_stack([stamp, rng.normal(size=300)])
    y = 1e-7 * (stamp - 1.7e12) + 2.0 * X[:, 1]
    weight = np.ones(300)
    coef, _ = fit(make_model(X, y[:, None], weight), weight)
    assert_allclose(coef[:, 0], [1e-7, 2.0], rtol=1e-8)


def test_constant_and_duplicate_columns_get_the_minimum_norm(rng):
    X = rng.normal(size=(40, 2))
    X = np.column_stack([X, X[:, 0], np.full(40, 7.0)])
    y = X[:, :2] @ [3.0, -1.0] + 1.0
    weight = np.ones(40)
    coef, intercept = fit(make_model(X, y[:, None], weight), weight)
    assert_allclose(coef[:, 0], [1.5, -1.0, 1.5, 0.0], atol=1e-8)
    assert_allclose(intercept, 1.0, atol=1e-8)


def test_float32_is_summed_in_double_precision(rng):
    X = rng.normal(size=(400, 3)).astype(np.float32) + np.float32(50.0)
    y = rng.normal(size=(400, 1))
    weight = np.ones(400)
    single = fit(make_model(X, y, weight), weight)
    double = fit(make_model(X.astype(float), y, weight), weight)
    assert_allclose(single[0], double[0], rtol=1e-6)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_chunks_do_not_matter(rng, container, n_jobs):
    X, Y = container(rng.normal(size=(101, 3))), rng.normal(size=(101, 2))
    weight, theta = rng.random(101), rng.normal(size=8)
    whole = make_model(X, Y, weight)
    split = make_model(X, Y, weight, chunk_size=17, n_jobs=n_jobs)
    residual = whole.at(theta).residual
    assert_allclose(split.at(theta).residual, residual, rtol=1e-12)
    for first, second in zip(
        whole.normal_equations(residual, weight),
        split.normal_equations(residual, weight),
        strict=True,
    ):
        assert_allclose(first, second, rtol=1e-12, atol=1e-12)
    assert_allclose(
        whole.gradient(residual, weight), split.gradient(residual, weight), rtol=1e-10
    )
    assert_allclose(whole.fitted(theta), split.fitted(theta), rtol=1e-12)


def test_n_jobs_give_identical_sums(rng):
    X, Y = rng.normal(size=(1000, 3)), rng.normal(size=(1000, 1))
    weight, theta = rng.random(1000), rng.normal(size=4)
    one = make_model(X, Y, weight, chunk_size=64, n_jobs=1)
    two = make_model(X, Y, weight, chunk_size=64, n_jobs=2)
    residual = one.at(theta).residual
    assert_array_equal(two.at(theta).residual, residual)
    for a, b in zip(
        one.normal_equations(residual, weight),
        two.normal_equations(residual, weight),
        strict=True,
    ):
        assert_array_equal(a, b)
    assert_array_equal(one.gradient(residual, weight), two.gradient(residual, weight))


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_residuals_gradient_and_matrix_belong_together(rng, container, fit_intercept):
    X, Y = container(rng.normal(size=(60, 3)) + 2.0), rng.normal(size=(60, 2))
    weight = rng.random(60)
    model = make_model(X, Y, weight, fit_intercept, alpha=0.7)
    theta, delta = rng.normal(size=(2, model.shape[0] * 2))
    point, new = model.at(theta), model.at(theta + delta)
    assert_allclose(point.residual, Y - model.fitted(theta), atol=1e-12)
    assert_allclose(new.residual - point.residual, -model.fitted(delta), atol=1e-12)
    H, G = model.normal_equations(point.residual, weight)
    assert_allclose(model.gradient(point.residual, weight), G, atol=1e-10)
    # Z' diag(w) Z delta, by way of the fitted values of delta.
    product = model.gradient(model.fitted(delta), weight)
    assert_allclose(product, H @ delta.reshape(model.shape), atol=1e-10)
    # The penalty is that of the coefficients in the units of X.
    coef, _ = model.frame.unpack(theta)
    assert_allclose(point.penalty, 0.35 * np.sum(coef**2))
    right = model.right_side(theta, G)
    slope = (model.at(theta + 1e-6 * delta).penalty - point.penalty) / 1e-6
    assert_allclose(np.sum((G - right).ravel() * delta), slope, rtol=1e-4)


class TestPoints:
    def test_at_the_origin_X_is_not_read(self, rng):
        class Unreadable:
            shape, dtype = (20, 3), np.dtype(float)

            def __getitem__(self, rows):
                raise AssertionError("read")

        X, Y = rng.normal(size=(20, 3)), rng.normal(size=(20, 1))
        model = make_model(X, Y, np.ones(20))
        closed = replace(model, rows=Rows(Unreadable(), 20))
        point = closed.at(np.zeros(4))
        assert_array_equal(point.residual, Y)
        assert not np.shares_memory(point.residual, Y)

    def test_memory_is_used_again(self, rng):
        X, Y = rng.normal(size=(20, 3)), rng.normal(size=(20, 2))
        model = make_model(X, Y, np.ones(20))
        theta, other = rng.normal(size=(2, 8))
        memory = np.empty((20, 2))
        point = model.at(theta, memory)
        assert point.residual is memory
        assert_array_equal(memory, model.at(theta).residual)
        change = model.at(other).residual - memory
        new = model.moved(point, other, change)
        assert new.residual is change
        assert_allclose(new.residual, model.at(other).residual, atol=1e-12)
        assert new.theta is other

    def test_data_stay_as_they_are(self, rng):
        X, Y = rng.normal(size=(20, 3)), rng.normal(size=(20, 2))
        for array in (X, Y):
            array.flags.writeable = False
        model = make_model(X, Y, np.ones(20))
        least_squares(model, np.ones(20))


def test_equals_linear_regression_on_polynomials():
    # Condition number 1e7 after standardisation; a step refines the previous one.
    t = np.linspace(0.0, 1.0, 200)
    X = np.column_stack([t**k for k in range(1, 8)])
    y = np.sin(6 * t)
    weight = np.ones(200)
    model = make_model(X, y[:, None], weight)
    point = model.at(np.zeros(8))
    for _ in range(3):
        delta, _, _ = solve(model, point, weight)
        point = model.at(point.theta + delta.ravel())
    reference = LinearRegression().fit(X, y)
    coef, intercept = model.frame.unpack(point.theta)
    assert_allclose(X @ coef[:, 0] + intercept, reference.predict(X), atol=1e-7)


# Tasks on the rows of one chunk

LAYOUTS = [
    np.asarray,
    np.asfortranarray,
    lambda X: X.astype(np.float32),
    scipy.sparse.csr_array,
]


def standardised(X, frame):
    """The design that the sums are of, in full."""
    Z = (X - frame.mean) / frame.scale
    return np.column_stack([Z, np.ones(len(Z))]) if frame.fit_intercept else Z


@pytest.mark.parametrize("offset", [0.0, 3.0, 1e6])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_sums_of_dense_rows(rng, fit_intercept, offset):
    X = rng.normal(size=(400, 3)) * [1.0, 10.0, 0.1] + offset
    R, weight = rng.normal(size=(400, 2)), rng.random(400)
    frame = frame_of(X, weight, fit_intercept)
    H, G = dense_sums(X, R, weight, frame)
    Z = standardised(X, frame)
    assert_allclose(H, Z.T @ (weight[:, None] * Z), rtol=1e-7, atol=1e-7)
    assert_allclose(G, Z.T @ (weight[:, None] * R), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_sums_of_sparse_rows(rng, fit_intercept):
    X = scipy.sparse.random(200, 6, density=0.3, random_state=0, format="csr")
    R, weight = rng.normal(size=(200, 2)), rng.random(200)
    frame = frame_of(X, weight, fit_intercept)
    assert_array_equal(frame.mean, 0.0)  # centring would fill it
    H, G = sparse_sums(X, R, weight, frame)
    Z = standardised(X.toarray(), frame)
    assert_allclose(H, Z.T @ (weight[:, None] * Z), rtol=1e-12)
    assert_allclose(G, Z.T @ (weight[:, None] * R), rtol=1e-10)


@pytest.mark.parametrize("container", LAYOUTS)
@pytest.mark.parametrize("d", [1, 2])
def test_products(rng, container, d):
    X = container(rng.normal(size=(150, 3)))
    dense = X.toarray() if scipy.sparse.issparse(X) else X.astype(float)
    coef, intercept = rng.normal(size=(3, d)), rng.normal(size=d)
    Y, weight = rng.normal(size=(150, d)), rng.random(150)
    expected = dense @ coef + intercept
    assert_allclose(fitted(X, coef, intercept), expected, rtol=1e-12, atol=1e-12)
    memory = np.full((150, d), np.nan)
    assert residuals(X, Y, coef, intercept, np.zeros(d), np.ones(d), memory) is memory
    assert_allclose(memory, Y - expected, rtol=1e-12, atol=1e-12)
    raw, total = products(X, weight, Y)
    assert_allclose(raw, dense.T @ (weight[:, None] * Y), rtol=1e-12, atol=1e-12)
    assert_allclose(total, weight @ Y)


def test_single_precision_is_not_copied_whole(rng):
    """A copy in double precision would be twice as large as the rows."""
    X = rng.normal(size=(100_000, 20)).astype(np.float32)
    V, weight = rng.normal(size=(100_000, 1)), np.ones(100_000)
    memory = np.empty((100_000, 1))
    for function, args in (
        (fitted, (rng.normal(size=(20, 1)), np.zeros(1), memory)),
        (products, (weight, V)),
        (dense_sums, (V, weight, Frame(np.zeros(20), np.ones(20), True))),
    ):
        tracemalloc.start()
        function(X, *args)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < X.nbytes


class TestFrame:
    @pytest.mark.parametrize("fit_intercept", [True, False])
    def test_pack_is_the_inverse_of_unpack(self, rng, fit_intercept):
        X = rng.normal(size=(30, 3)) * 5 + 2
        frame = frame_of(X, np.ones(30), fit_intercept)
        theta = rng.normal(size=2 * frame.n_parameters)
        coef, intercept = frame.unpack(theta)
        assert coef.shape == (3, 2) and intercept.shape == (2,)
        assert_allclose(frame.pack(coef, intercept), theta)

    @pytest.mark.parametrize("fit_intercept", [True, False])
    def test_both_are_the_same_plane(self, rng, fit_intercept):
        X = rng.normal(size=(30, 3)) * 5 + 2
        frame = frame_of(X, np.ones(30), fit_intercept)
        theta = rng.normal(size=2 * frame.n_parameters)
        coef, intercept = frame.unpack(theta)
        Z = standardised(X, frame)
        B = theta.reshape(frame.n_parameters, 2)
        assert_allclose(X @ coef + intercept, Z @ B, rtol=1e-10)

    def test_only_far_columns_are_shifted(self):
        mean = np.array([0.0, 5.0, -300.0])
        assert Frame(mean[:2], np.ones(2), True).shift is None
        assert_array_equal(Frame(mean, np.ones(3), True).shift, [0.0, 0.0, -300.0])
