"""Batched work on deciding rows: against plain least squares, and weights as copies."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import Ridge

from sklearn_mm._robust.start.whitened import (
    WhitenedRows,
    WideRows,
    rounding_step,
    row_labels,
    weighted_median,
    weighted_quantile,
)


def problem(rng, n=80, p=4, d=2):
    X, Y = rng.normal(size=(n, p)), rng.normal(size=(n, d))
    return X, Y, rng.uniform(size=(3, n))


@pytest.mark.parametrize("p", [4, 70])  # normal equations; conjugate gradients
@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_solutions_are_those_of_ridge(rng, p, alpha):
    X, Y, u = problem(rng, 300, p)
    rows = WhitenedRows.of(X, Y, np.ones(300), np.full(p, alpha), True)
    found = rows.solve(u)
    for weight, theta in zip(u, found, strict=True):
        plain = Ridge(alpha).fit(X, Y, weight)
        coef = rows.unwhiten(theta)
        assert_allclose(coef[:-1].T, plain.coef_, atol=1e-3)
        assert_allclose(coef[-1], plain.intercept_, atol=1e-3)
        assert_allclose(rows.whiten(coef)[0], theta, atol=1e-9)


def test_leverage_is_that_of_rows_left_out(rng):
    X, Y, _ = problem(rng, 30, 3, 1)
    weight = rng.integers(1, 4, size=30).astype(float)
    weight *= 30 / weight.sum()
    rows = WhitenedRows.of(X, Y, weight, np.zeros(3), True)
    part = rng.uniform(size=(2, 30)) < 0.6
    Z = np.hstack([X, np.ones((30, 1))])  # leverage does not depend on coordinates
    for mask, found in zip(part, rows.leverage(part), strict=True):
        for i in range(30):
            others = mask & (np.arange(30) != i)
            gram = (Z[others] * weight[others, None]).T @ Z[others]
            assert_allclose(found[i], Z[i] @ np.linalg.solve(gram, Z[i]), rtol=1e-5)


def test_wide_rows_are_the_same(rng):
    X, Y, u = problem(rng, 60, 20)
    penalty = rng.uniform(1, 2, size=20)
    narrow = WhitenedRows.of(X, Y, np.ones(60), penalty, True)
    wide = WideRows.of(scipy.sparse.csr_array(X), Y, np.ones(60), penalty, True)
    assert_allclose(narrow.floor, wide.floor, rtol=1e-3)
    for a, b in zip(narrow.solve(u), wide.solve(u), strict=True):
        assert_allclose(narrow.unwhiten(a), wide.unwhiten(b), atol=1e-3)
    # The trace is estimated, to the error of a few random signs.
    assert_allclose(wide.effective, narrow.effective, rtol=0.3)


def test_effective_parameters_are_the_trace_of_the_hat_matrix(rng):
    X, Y, u = problem(rng, 50, 80, 1)
    rows = WhitenedRows.of(X, Y, np.ones(50), np.full(80, 5.0), False)
    hat = X @ np.linalg.solve(X.T @ X + 5.0 * np.eye(80), X.T)
    assert_allclose(rows.effective, np.trace(hat), rtol=1e-6)
    assert_allclose(rows.spent(np.ones((1, 50)))[0], np.trace(hat), rtol=1e-6)
    XWX = (X * u[0][:, None]).T @ X
    expected = np.trace(np.linalg.solve(XWX + 5.0 * np.eye(80), XWX))
    assert_allclose(rows.spent(u[:1])[0], expected, rtol=1e-6)
    assert rows.is_interpolating


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("shape", [(20,), (3, 20), (3, 2, 20)])
def test_weights_are_copies_in_quantiles(rng, share, shape):
    values = rng.normal(size=shape)
    copies = rng.integers(1, 4, size=20)
    many = np.repeat(values, copies, axis=-1)
    expected = weighted_quantile(many, np.ones(many.shape[-1]), share)
    assert_allclose(weighted_quantile(values, 2.0 * copies, share), expected)
    assert_allclose(
        weighted_median(values, 1.0 * copies), np.median(many, axis=-1), rtol=1e-12
    )


def test_rounding_step(rng):
    y, one = rng.normal(size=200), np.ones(200)
    assert rounding_step(y, one) == 0.0
    assert rounding_step(np.round(y), one) == 1.0
    assert rounding_step(np.round(y, 1), one) == pytest.approx(0.1)
    coded = np.where(np.arange(200) < 120, 999.0, y)
    assert rounding_step(coded, one) == 0.0  # one value tells nothing about a step
    assert rounding_step(np.clip(y, -0.5, 0.5), one) == 0.0  # nor do two ends
    assert rounding_step(np.clip(np.round(y, 1), -0.5, 0.5), one) == pytest.approx(0.1)
    assert rounding_step(np.sign(y), one) == 2.0


@pytest.mark.parametrize("shape", [(1, 1), (50, 1), (200, 3), (40, 0)])
def test_rows_are_labelled_as_by_numpy(shape):
    table = np.random.default_rng(0).integers(-2, 3, size=shape) * 0.5
    _, inverse = np.unique(table, axis=0, return_inverse=True)
    assert_array_equal(row_labels(table), inverse.ravel())
