"""Sums over rows for weighted least squares, and their solutions."""

import numpy as np
import pytest
import scipy.sparse
from linear_problem import frame_of
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mm._robust.normal_equations import (
    Frame,
    SymmetricFactor,
    dense_sums,
    fitted,
    products,
    residuals,
    sparse_sums,
)

CONTAINERS = [
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


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("d", [1, 2])
def test_products(rng, container, d):
    X = container(rng.normal(size=(150, 3)))
    dense = X.toarray() if scipy.sparse.issparse(X) else X.astype(float)
    coef, intercept = rng.normal(size=(3, d)), rng.normal(size=d)
    Y, weight = rng.normal(size=(150, d)), rng.random(150)
    expected = dense @ coef + intercept
    assert_allclose(fitted(X, coef, intercept), expected, rtol=1e-12, atol=1e-12)
    memory = np.full((150, d), np.nan)
    assert residuals(X, Y, coef, intercept, memory) is memory
    assert_allclose(memory, Y - expected, rtol=1e-12, atol=1e-12)
    raw, total = products(X, weight, Y)
    assert_allclose(raw, dense.T @ (weight[:, None] * Y), rtol=1e-12, atol=1e-12)
    assert_allclose(total, weight @ Y)


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


class TestSymmetricFactor:
    def test_definite(self, rng):
        basis = rng.normal(size=(5, 8)) * 10.0 ** rng.uniform(-6, 6, size=(5, 1))
        H, x = basis @ basis.T, rng.normal(size=(5, 2))
        assert_allclose(SymmetricFactor(H).solve(H @ x), x, rtol=1e-6)

    def test_singular(self, rng):
        basis = rng.normal(size=(5, 3))
        H = basis @ basis.T
        g = H @ rng.normal(size=(5, 1))
        x = SymmetricFactor(H).solve(g)
        assert_allclose(H @ x, g, atol=1e-10)
        assert_allclose(x, np.linalg.pinv(H) @ g, atol=1e-8)

    def test_nothing_at_all(self):
        assert_array_equal(SymmetricFactor(np.zeros((2, 2))).solve(np.ones((2, 1))), 0)
