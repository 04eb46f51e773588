"""Candidate planes: what they do not depend on, and that a good one is among them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mm._robust.start.candidates import (
    central_in_x,
    central_in_y,
    distinct,
    graduated,
    half_masks,
    middle_scale,
    n_subsets,
    predictable,
    subset_planes,
    the_rest,
)
from sklearn_mm._robust.start.whitened import WhitenedRows


def skewed(rng, n=120, p=4):
    """Skewed columns with a cluster: no axis is like another."""
    X = rng.exponential(size=(n, p)) * np.arange(1.0, p + 1.0)
    y = X.sum(axis=1) + rng.normal(size=n)
    X[: n // 5] += 4.0
    return X, y[:, None]


def whitened(X, Y, weight=None, alpha=0.0):
    n, p = X.shape
    weight = np.ones(n) if weight is None else weight * (n / weight.sum())
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return WhitenedRows.of(X, Y, weight, np.full(p, alpha), True)


def planes(rows):
    """Fitted values of all candidates that need no luck, in the units of y."""
    own = rows.solve(np.ones((1, rows.n_rows)))
    central = rows.solve(central_in_x(rows))
    found = [own, central_in_y(rows, own), central, graduated(rows, own)[0]]
    return rows.fitted(np.concatenate(found))[:, 0] * rows.unit


@pytest.mark.parametrize("seed", range(5))
def test_axes_of_X_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    X, Y = skewed(rng)
    A = rng.normal(size=(4, 4)) + 2.0 * np.eye(4)
    moved = planes(whitened(X @ A + rng.normal(size=4), Y))
    assert_allclose(moved, planes(whitened(X, Y)), atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_order_of_rows_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    X, Y = skewed(rng)
    order = rng.permutation(len(X))
    moved = planes(whitened(X[order], Y[order]))
    assert_allclose(moved, planes(whitened(X, Y))[:, order], atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_halves_and_medians_count_weights(seed):
    # Copies of rows against weights, where halves do not split a row's copies.
    rng = np.random.default_rng(seed)
    X, Y = skewed(rng, 61)
    rows = whitened(X, Y, np.full(61, 3.0))
    assert_allclose(planes(rows), planes(whitened(X, Y)), atol=1e-9)
    weight = np.where(np.arange(61) < 20, 2.0, 1.0)
    rows = whitened(X, Y, weight)
    mask = half_masks(rows, rng.random((2, 61)))
    mass = mask @ (weight * 61 / weight.sum())
    assert np.all(mass >= rows.majority - 1e-9)
    assert np.all(mass < rows.majority + 2.0)


def test_central_halves_avoid_leverage_points(rng):
    X, Y = rng.normal(size=(600, 20)), rng.normal(size=(600, 1))
    X[:120] += 10.0 / np.sqrt(20)
    Y[:120] += 30.0
    rows = whitened(X, Y)
    central = rows.solve(central_in_x(rows))
    error = np.square(rows.fitted(central)[:, 0, 120:] * rows.unit)
    # Least squares on 311 clean rows with 21 parameters errs by 0.07.
    assert error.mean(axis=1).min() < 0.2


def test_a_large_cluster_is_central_in_x(rng):
    # Its columns vary less. The rows that remain are clean, but for a few of it.
    X, Y = rng.normal(size=(500, 10)), rng.normal(size=(500, 1))
    X[:225] = 10.0 / np.sqrt(10) + 0.5 * rng.normal(size=(225, 10))
    Y[:225] += 30.0
    rows = whitened(X, Y)
    central = central_in_x(rows)
    assert np.all(central[:, :225].mean(axis=1) > 0.8)

    def least_error(theta):
        error = np.square(rows.fitted(theta)[:, 0, 225:] * rows.unit)
        return error.mean(axis=1).min()

    rest = the_rest(rows, central == 0.0)
    assert least_error(rest) < 0.6 * least_error(rows.solve(central))


def test_subsets_hold_a_clean_one(rng):
    X, Y = rng.normal(size=(100, 3)), rng.normal(size=(100, 1))
    Y[:40] = 50.0 + 20.0 * rng.normal(size=(40, 1))
    rows = whitened(X, Y)
    theta, scale = subset_planes(rows, np.random.RandomState(0))
    assert len(theta) == len(scale)
    error = np.square(rows.fitted(theta)[:, 0] * rows.unit).mean(axis=1)
    assert error.min() < 0.3
    assert (
        n_subsets(whitened(rng.normal(size=(300, 40)), rng.normal(size=(300, 1)))) == 0
    )


def test_the_rest_is_the_other_regime(rng):
    x = rng.normal(size=(100, 1))
    Y = np.where(np.arange(100) < 60, x[:, 0], 20.0 - 3.0 * x[:, 0])[:, None]
    rows = whitened(x, Y + 0.1 * rng.normal(size=(100, 1)))
    distance = np.square((Y[:, 0] - x[:, 0]) / 0.1)[None]
    fitted = rows.fitted(the_rest(rows, distance > 16.0))[0, 0] * rows.unit
    assert_allclose(fitted, 20.0 - 3.0 * x[:, 0], atol=0.2)


@pytest.mark.parametrize(("alpha", "worse"), [(1e-6, True), (10.0, False)])
def test_predictable_rows(alpha, worse):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 58))
    Y = (X[:, :5].sum(axis=1) + 0.3 * rng.normal(size=60))[:, None]
    Y[:6] += 40.0
    _, keep, ratio = predictable(whitened(X, Y, alpha=alpha))
    assert (ratio > 1.5) == worse
    assert not keep[0, :6].any()
    assert keep[0, 6:].mean() > 0.9


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_a_constant_predicts_better_it_judges_the_rows(seed):
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(60, 30)), rng.standard_t(2, size=(60, 1))
    rows = whitened(X, Y, alpha=1e-6)
    theta, keep, ratio = predictable(rows)
    assert ratio > 1.0  # nothing can be predicted
    away = np.abs(Y[:, 0] - np.median(Y))
    deviation = np.median(away) / 0.6745
    assert_array_equal(keep[0] > 0.0, away <= 3.0 * deviation)
    assert_allclose(theta, rows.solve(keep))


def test_distinct_candidates():
    theta = np.array([0.0, 0.1, 5.0, 5.2])[:, None, None]
    chosen = distinct(theta, np.ones((4, 1)), np.array([2.0, 1.0, 4.0, 3.0]), 3, 1.0)
    assert_array_equal(chosen, [1, 3])


@pytest.mark.parametrize("output", [0, 1])
def test_candidates_are_as_far_apart_as_their_coefficients_together(output):
    """In one of the outputs, in units of its own noise."""
    theta, scale = np.zeros((2, 3, 2)), np.array([[1.0, 10.0]] * 2)
    for share, n_chosen in ((0.55, 1), (0.6, 2)):  # of a noise scale, three times
        theta[1, :, output] = share * scale[0, output]
        assert len(distinct(theta, scale, np.zeros(2), 2, 1.0)) == n_chosen


def test_middle_scale_is_the_deviation_of_normal_residuals(rng):
    X = rng.normal(size=(2000, 2))
    rows = whitened(X, 3.0 * rng.normal(size=(2000, 1)))
    theta = rows.solve(np.ones((1, rows.n_rows)))
    deviation = rows.residuals(theta).std(axis=-1)
    assert_allclose(middle_scale(rows, theta), deviation, rtol=0.1)
