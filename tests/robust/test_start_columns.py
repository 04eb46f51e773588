"""The search for the few columns that explain most rows."""

import itertools

import numpy as np
import pytest
from scipy.optimize import brentq

from sklearn_mm import HalfQuadraticRobustRegressor
from sklearn_mm._robust.start import columns as module
from sklearn_mm._robust.start.columns import explain, wrap
from sklearn_mm._robust.start.sparse import SparseRows


def contaminated(seed, n=100, p=300, share=0.3, leverage=False):
    rng = np.random.default_rng([seed, n, p])
    X = rng.normal(size=(n, p))
    y = X[:, :5] @ [3.0, -2.0, 3.0, 2.0, -2.5] + 1.0 + rng.normal(size=n)
    bad = rng.permutation(n) < share * n
    y[bad] += rng.uniform(10, 30, size=bad.sum())
    if leverage:
        X[np.ix_(bad, range(20, 25))] += 8.0
    return (X - X.mean(axis=0)) / X.std(axis=0), y, bad


def search(Z, y, weight=None, fit_intercept=True, seed=0):
    weight = np.ones(len(y)) if weight is None else weight
    return explain(Z, y, weight, fit_intercept, np.random.RandomState(seed))


def biweight_scale(residual):
    """The scale with which Tukey's loss is one half on average, by a root finder."""

    def excess(scale):
        z = np.minimum(np.square(residual / (1.5476 * scale)), 1.0)
        return np.mean(1.0 - (1.0 - z) ** 3) - 0.5

    return brentq(excess, 1e-6, 1e6)


@pytest.mark.parametrize("leverage", [False, True])
@pytest.mark.parametrize(("p", "seed"), [(150, 0), (150, 1), (600, 2), (600, 3)])
def test_true_columns_and_rows(p, seed, leverage):
    Z, y, bad = contaminated(seed, p=p, leverage=leverage)
    assert set(range(5)) <= set(search(Z, y).columns)
    rows = SparseRows(Z, y, np.ones(len(y)), True)
    keep, width = rows.good(np.random.RandomState(0))
    assert not keep[bad].any()
    assert keep[~bad].mean() > 0.9
    assert 0.75 < width < 1.3


@pytest.mark.parametrize("share", [0.0, 0.3, 0.45])
def test_outliers_do_not_widen_the_scale(rng, share):
    noise, bad = rng.normal(size=1000), np.arange(1000) < 1000 * share
    noise[bad] += rng.uniform(10.0, 30.0, size=bad.sum())
    rows = SparseRows(np.zeros((1000, 1)), noise, np.ones(1000), False)
    width, near = rows._near(noise, 0)
    assert width == pytest.approx(1.0, rel=0.1)
    assert not near[bad].any()
    assert near[~bad].mean() > 0.99


@pytest.mark.parametrize("n", [1, 4, 5])
def test_best_half_is_a_majority(rng, n):
    residual = rng.normal(size=n)
    rows = SparseRows(np.zeros((n, 1)), residual, np.ones(n), False)
    best = rows._best_half(residual) > 0.0
    assert 0.5 * n < best.sum() <= 0.5 * n + 1.0
    assert np.abs(residual[best]).max() <= np.abs(residual[~best]).min(initial=np.inf)


@pytest.mark.parametrize("alpha", [0.1, 3.0, 30.0])
def test_whatever_the_penalty(alpha):
    """A small penalty lets a lasso fit every outlier: it must not choose the rows."""
    Z, y, bad = contaminated(5, p=150)
    model = HalfQuadraticRobustRegressor(alpha=alpha, l1_ratio=1.0, random_state=0)
    model.fit(Z, y)
    assert not model.inlier_mask_[bad].any()
    assert model.inlier_mask_[~bad].mean() > 0.85


def test_far_values_are_drawn_to_the_middle(rng):
    values = np.append(rng.normal(size=999), 50.0)[:, None]
    wrapped = wrap(values, np.ones(1000), True)
    assert abs(wrapped[-1, 0]) < 0.1
    central = np.abs(values) < 1.2
    np.testing.assert_allclose(wrapped[central], values[central])


def test_criterion_by_its_definition():
    Z, y, _ = contaminated(6, p=120)
    found = search(Z, y)
    slopes = Z[:, found.columns] @ found.coef
    intercept = y - slopes - found.residual
    np.testing.assert_allclose(intercept, intercept[0], atol=1e-9)
    assert found.scale == pytest.approx(biweight_scale(found.residual), rel=0.02)
    n, p = Z.shape
    penalty = 1.4 * len(found.columns) * (np.log(n) + 2.0 * np.log(p))
    value = 2.0 * n * np.log(found.scale) + penalty
    assert found.value == pytest.approx(value)


def test_no_worse_than_all_subsets():
    """With six columns, least squares on the clean rows for all subsets of three."""
    rng = np.random.default_rng(1)
    for _ in range(5):
        Z = rng.normal(size=(30, 6))
        y = Z[:, :2] @ [3.0, -3.0] + rng.normal(size=30)
        y[:7] += 12.0
        values = []
        for k in range(4):
            for subset in itertools.combinations(range(6), k):
                design = np.column_stack([Z[:, subset], np.ones(30)])
                coef, *_ = np.linalg.lstsq(design[7:], y[7:], rcond=None)
                scale = biweight_scale(y - design @ coef)
                penalty = 1.4 * k * (np.log(30) + 2.0 * np.log(6))
                values.append(60.0 * np.log(scale) + penalty)
        assert search(Z, y).value <= min(values) + 2.0


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_units_of_y(factor):
    Z, y, _ = contaminated(7, p=120)
    one, other = search(Z, y), search(Z, factor * (y + 3.0))
    np.testing.assert_array_equal(one.columns, other.columns)
    np.testing.assert_allclose(other.residual / factor, one.residual, atol=1e-6)


def test_weights_are_copies():
    Z, y, _ = contaminated(8, n=60, p=80, share=0.2)
    copies = np.tile([1, 2, 3], 20)
    weight = copies * 60 / copies.sum()
    found = search(Z, y, weight)
    many = search(np.repeat(Z, copies, axis=0), np.repeat(y, copies))
    both = set(found.columns) & set(many.columns)
    assert set(range(5)) <= both


def test_bad_leverage_points_are_left_out_together(monkeypatch):
    """Columns of leverage points are exchanged even if all searches have them."""
    Z, y, _ = contaminated(9, p=100, leverage=True)
    monkeypatch.setattr(module, "_LEAST_SEARCHES", 4)
    monkeypatch.setattr(module, "_WORK", 1.0)
    values = []
    for exchanges in (0, 20):
        monkeypatch.setattr(module, "_EXCHANGES", exchanges)
        values.append([search(Z, y, seed=seed).value for seed in range(10)])
    without, exchanged = np.array(values)
    assert np.all(exchanged <= without)
    assert np.ptp(without) > 100.0  # four searches are too few
    assert np.ptp(exchanged) < 10.0


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("shape", [(3, 5), (2, 1), (12, 40)])
def test_tiny_constant_and_exact(rng, shape, fit_intercept):
    Z = rng.normal(size=shape)
    for y in (np.zeros(shape[0]), np.ones(shape[0]), Z[:, 0].copy()):
        found = search(Z, y, fit_intercept=fit_intercept)
        assert np.isfinite(found.residual).all()
        assert np.isfinite(found.value)
        rows = SparseRows(Z, y, np.ones(len(y)), fit_intercept)
        keep, width = rows.good(np.random.RandomState(0))
        assert np.isfinite(width)
        assert keep.sum() >= 0.5 * len(y)
