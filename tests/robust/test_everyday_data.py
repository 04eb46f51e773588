"""Default settings on everyday data: no catastrophe, and a warning where data are mute.

A catastrophe is an error many times that of least squares on the clean rows.
"""

import warnings

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Ridge

from sklearn_mm import HalfQuadraticRobustRegressor

# Where fewer than half of the rows follow the plane, or few rows are left, it says so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(rows per parameter|follow the fitted plane)"
    ":sklearn.exceptions.ConvergenceWarning"
)


def fit(X, y, **params):
    return HalfQuadraticRobustRegressor(random_state=0, **params).fit(X, y)


def plane(rng, n, p):
    X, coef = rng.normal(size=(n, p)), rng.normal(size=p + 1)
    return X, X @ coef[:p] + coef[p] + rng.normal(size=n), coef


def least_squares(X, y):
    return np.linalg.lstsq(np.column_stack([X, np.ones(len(X))]), y, rcond=None)[0]


def distance(model, coef):
    return np.linalg.norm(np.append(model.coef_, model.intercept_) - coef)


def standard_error(X):
    """Root mean square error of least squares with unit noise."""
    design = np.column_stack([X, np.ones(len(X))])
    return np.sqrt(np.trace(np.linalg.inv(design.T @ design)))


def assert_close(model, coef, X, clean=None, times=3.0):
    rows = slice(None) if clean is None else clean
    assert distance(model, coef) <= times * standard_error(X[rows])


# -- Targets that are not continuous -------------------------------------------------


@pytest.mark.parametrize("size", [(60, 1), (200, 3), (1000, 10)])
def test_rounded_targets(rng, size):
    X, y, coef = plane(rng, *size)
    model = fit(X, np.round(y))
    assert_close(model, coef, X)
    assert 0.8 < model.scale_ < 1.3
    assert model.inlier_mask_.mean() > 0.97


@pytest.mark.parametrize("seed", range(3))
def test_rounded_targets_with_outliers(seed):
    rng = np.random.default_rng(seed)
    X, y, coef = plane(rng, 200, 3)
    y[:60] += rng.uniform(8, 50, size=60)
    model = fit(X, np.round(y))
    assert_close(model, coef, X, slice(60, None))
    assert not model.inlier_mask_[:60].any()


def targets(kind, X, rng):
    index = X @ np.full(X.shape[1], 0.8 / np.sqrt(X.shape[1]))
    if kind == "ratings":
        noise = 0.7 * rng.normal(size=len(X))
        return np.clip(np.round(3.2 + index + noise), 1, 5)
    if kind == "counts":
        return rng.poisson(np.exp(1.5 + 0.5 * index)).astype(float)
    if kind == "binary":
        return (index + 0.7 * rng.normal(size=len(X)) > 0.3).astype(float)
    return np.round((20.0 + 8.0 * index + 3.0 * rng.normal(size=len(X))) / 5.0) * 5.0


@pytest.mark.parametrize("kind", ["ratings", "counts", "binary", "heaped"])
@pytest.mark.parametrize("size", [(80, 2), (500, 4)])
def test_few_values(rng, kind, size):
    X = rng.normal(size=size)
    y = targets(kind, X, rng)
    model, reference = fit(X, y), least_squares(X, y)
    error = distance(model, reference) / np.linalg.norm(reference[:-1])
    assert error < 0.35  # counts are skewed: the fit is not quite least squares
    assert model.inlier_mask_.mean() > 0.9
    assert model.scale_ > 0.2


def test_censored_targets(rng):
    X, y, coef = plane(rng, 300, 3)
    limit = np.quantile(y, 0.7)
    model = fit(X, np.minimum(y, limit))
    reference = least_squares(X, np.minimum(y, limit))
    # No worse than least squares, which does not know either.
    assert distance(model, coef) <= 1.2 * np.linalg.norm(reference - coef)
    assert model.scale_ > 0.3


# -- Codes and units -----------------------------------------------------------------


@pytest.mark.parametrize("code", [-99.0, 99.0, 999.0])
@pytest.mark.parametrize("share", [0.1, 0.35, 0.45])
@pytest.mark.parametrize("size", [(100, 1), (100, 3), (300, 10)])
def test_codes_for_missing_values(rng, code, share, size):
    X, y, coef = plane(rng, *size)
    bad = np.arange(len(y)) < share * len(y)
    y[bad] = code
    model = fit(X, y)
    assert_close(model, coef, X, ~bad)
    assert not model.inlier_mask_[bad].any()


def test_codes_and_noise_with_a_peak():
    # The noise of the clean rows looks like that of 40 % of them, for which there must
    # be enough rows per parameter. (The scale was 472, without a warning.)
    rng = np.random.default_rng([770030, 50, 3, 2])
    X, coef, noise = rng.normal(size=(51, 3)), rng.normal(size=4), rng.normal(size=51)
    y = X @ coef[:3] + coef[3] + noise
    bad = rng.permutation(50) < 15
    X, y = X[:50], np.where(bad, 999.0, y[:50])
    model = fit(X, y)
    assert_close(model, coef, X, ~bad)
    assert not model.inlier_mask_[bad].any()


@pytest.mark.parametrize("n", [38, 40, 41, 43, 50])
def test_more_rows_do_not_ask_for_a_larger_share(n):
    rng = np.random.default_rng(n)
    for _ in range(5):
        X, y, coef = plane(rng, n, 3)
        bad = np.arange(n) < 0.45 * n
        y[bad] = 999.0
        model = fit(X, y)
        assert distance(model, coef) <= 5.0 * standard_error(X[~bad])


@pytest.mark.filterwarnings("ignore:.*lie exactly on the fitted plane")
@pytest.mark.parametrize("noise", [0.0, 1e-10, 1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("size, skewed", [((12, 1), 1), ((30, 2), 0), ((40, 1), 2)])
def test_codes_and_hardly_any_noise(noise, size, skewed):
    # Between rounding errors and noise, where there are rows of high leverage.
    for seed in range(12):
        rng = np.random.default_rng([seed, *size])
        X, coef = rng.normal(size=size), rng.normal(size=size[1] + 1)
        X = np.exp(skewed * X) if skewed else X
        y = X @ coef[:-1] + coef[-1] + noise * rng.normal(size=len(X))
        y[: len(X) // 4] = 999.0
        model = fit(X, y)
        assert distance(model, coef) <= 1e-6 + 50.0 * noise


@pytest.mark.parametrize("code", [0.0, -1.0])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.35, 0.45])
def test_codes_among_the_usual_values(code, share):
    # A code that y takes anyway cannot be told from a row of the plane that has it, and
    # its rows are a part of the noise: no collapse, and no worse than least squares.
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, y, coef = plane(rng, 300, 4)
        y[: round(share * 300)] = code
        model, reference = fit(X, y), least_squares(X, y)
        assert model.scale_ > 0.5
        assert distance(model, coef) <= 1.2 * np.linalg.norm(reference - coef)


@pytest.mark.parametrize("share", [0.2, 0.4, 0.45])
def test_zero_inflated_targets(rng, share):
    X = rng.normal(size=(400, 3))
    y = 12.0 + X @ [1.0, -0.5, 0.5] + rng.normal(size=400)
    zero = np.arange(400) < share * 400
    y[zero] = 0.0
    model = fit(X, y)
    assert_close(model, [1.0, -0.5, 0.5, 12.0], X, ~zero)


@pytest.mark.parametrize("n", [100, 1000])
@pytest.mark.parametrize("shift", [30.0, 1e8])
def test_of_two_parallel_planes_the_larger_is_fitted(rng, n, shift):
    X, y, coef = plane(rng, n, 2)
    y[: round(0.4 * n)] += shift
    model = fit(X, y)
    assert_close(model, coef, X, slice(round(0.4 * n), None))


def test_majority_on_one_value_is_fitted_and_said(rng):
    X, y, _ = plane(rng, 100, 2)
    y[:60] = 0.0
    with pytest.warns(ConvergenceWarning, match="60% of the rows lie exactly"):
        model = fit(X, y)
    assert_allclose(model.coef_, 0.0, atol=1e-6)


def test_rounding_errors_of_different_size_are_no_outliers(rng):
    X = rng.normal(size=(120, 3))
    X[:9] *= 10.0
    for coef in ([1.0, 0.0, 0.0], [1.0, 2.0, 3.0]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_allclose(fit(X, X @ coef).coef_, coef, atol=1e-12)


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_thousands_by_mistake(rng, share):
    X = rng.normal(size=(200, 3))
    y = 10.0 + X @ [1.0, -2.0, 0.5] + rng.normal(size=200)
    bad = np.arange(200) < share * 200
    y[bad] *= 1000.0
    model = fit(X, y)
    assert_close(model, [1.0, -2.0, 0.5, 10.0], X, ~bad)


def test_few_rows_with_codes(rng):
    errors = []
    for seed in range(10):
        X, y, coef = plane(np.random.default_rng(seed), 30, 5)
        y[:12] = 999.0
        errors.append(distance(fit(X, y), coef) / standard_error(X[12:]))
    assert np.median(errors) < 2.0
    assert np.mean(np.array(errors) > 10.0) <= 0.2


# -- Leverage ------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.05, 0.5])
@pytest.mark.parametrize(
    ("share", "away", "size"),
    [
        *((share, 10.0, (200, 5)) for share in (0.1, 0.2, 0.3, 0.4)),
        *((0.2, away, (200, 5)) for away in (4.0, 30.0, 100.0)),
        *((0.4, away, (300, 3)) for away in (4.0, 10.0, 30.0, 100.0)),
        *((0.1, 10.0, size) for size in ((50, 3), (1000, 20), (1500, 60))),
        *((0.2, 10.0, size) for size in ((100, 1), (1000, 10), (1000, 20))),
    ],
)
def test_clusters_of_leverage_points(rng, share, away, spread, size):
    X, y, coef = plane(rng, *size)
    n, p = size
    m = round(share * n)
    direction = rng.normal(size=p)
    direction /= np.linalg.norm(direction)
    X[:m] = away * direction + spread * rng.normal(size=(m, p))
    offset = 3.0 * max(away, 10.0)
    y[:m] = X[:m] @ coef[:p] + coef[p] + offset + rng.normal(size=m)
    model = fit(X, y)
    assert_close(model, coef, X, slice(m, None))
    assert not model.inlier_mask_[:m].any()


@pytest.mark.parametrize("p", [15, 40, 100])
def test_scattered_leverage_at_many_parameters(rng, p):
    n = 15 * p
    X, y, coef = plane(rng, n, p)
    m = n // 5
    X[:m] *= 5.0
    y[:m] = 10.0 * rng.normal(size=m)
    assert_close(fit(X, y), coef, X, slice(m, None))


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3])
def test_bad_cells(rng, share):
    X, y, coef = plane(rng, 300, 6)
    bad = np.arange(round(share * 300))
    column = rng.integers(6, size=len(bad))
    X[bad, column] = np.where(bad % 2, 99.0, 0.0)
    model = fit(X, y)
    assert_close(model, coef, X, slice(len(bad), None))


def test_a_column_in_other_units_for_some_rows(rng):
    X, y, coef = plane(rng, 200, 4)
    clean = X.copy()
    X[:50, 1] *= 1000.0
    model = fit(X, y)
    assert_close(model, coef, clean, slice(50, None))


def test_good_leverage_points_are_kept(rng):
    X, y, coef = plane(rng, 200, 3)
    X[:20] *= 10.0
    y[:20] = X[:20] @ coef[:-1] + coef[-1] + rng.normal(size=20)
    model = fit(X, y)
    assert model.inlier_mask_[:20].mean() >= 0.9
    assert_close(model, coef, X)


def test_near_outliers_on_one_side():
    # A quarter of the rows at four to eight noise scales.
    errors, scales = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X, y, coef = plane(rng, 100, 3)
        y[:25] += rng.uniform(4.0, 8.0, size=25)
        model = fit(X, y)
        errors.append(distance(model, coef) / standard_error(X[25:]))
        scales.append(model.scale_)
    assert np.mean(np.array(errors) > 3.0) <= 0.1
    assert_allclose(np.mean(scales), 1.0, atol=0.15)


# -- Columns, sizes, outputs ---------------------------------------------------------


def test_factor_with_rare_levels(rng):
    n, levels = 300, 10
    odds = 0.6 ** np.arange(levels)
    level = rng.choice(levels, size=n, p=odds / odds.sum())
    level[: 5 * levels] = np.repeat(np.arange(levels), 5)
    dummies = np.eye(levels)[level][:, 1:]
    X = np.column_stack([dummies, rng.normal(size=(n, 2))])
    coef = rng.normal(size=levels + 1)
    y = X @ coef + rng.normal(size=n)
    bad = rng.permutation(n)[:60]
    y[bad] += rng.uniform(8, 50, size=60)
    model = fit(X, y)
    clean = np.setdiff1d(np.arange(n), bad)
    assert_close(model, np.append(coef, 0.0), X, clean)


def test_collinear_and_constant_columns(rng):
    X, y, _ = plane(rng, 200, 3)
    y[:60] += 30.0
    wide = np.column_stack([X, X[:, 0] - X[:, 1], np.ones(200)])
    assert_allclose(fit(wide, y).predict(wide), fit(X, y).predict(X), atol=1e-3)


def test_outputs_in_unlike_units(rng):
    X = rng.normal(size=(300, 3))
    B = rng.normal(size=(3, 3))
    Y = X @ B + rng.normal(size=(300, 3))
    Y[:60, 1] += 20.0
    plain = fit(X, Y)
    unit = np.array([1e-6, 1.0, 1e5])
    scaled = fit(X, Y * unit)
    assert plain.scale_.shape == (3,)
    assert_allclose(plain.scale_, 1.0, rtol=0.25)
    assert_allclose(scaled.scale_ / unit, plain.scale_, rtol=1e-4)
    assert_allclose(scaled.coef_ / unit[:, None], plain.coef_, atol=1e-4)
    assert not scaled.inlier_mask_[:60].any()
    assert scaled.inlier_mask_[60:].mean() > 0.97


def test_output_of_much_noise_does_not_hide_another(rng):
    X = rng.normal(size=(200, 2))
    Y = np.column_stack([X[:, 0], X[:, 1]]) + rng.normal(size=(200, 2)) * [100.0, 0.1]
    Y[:40, 1] += 5.0
    model = fit(X, Y)
    assert not model.inlier_mask_[:40].any()
    assert_allclose(model.scale_, [100.0, 0.1], rtol=0.2)


def test_five_points_and_a_gross_outlier():
    X = np.arange(5.0)[:, None]
    y = np.array([0.1, 0.9, 2.1, 2.9, 100.0])
    model = fit(X, y)
    assert abs(model.coef_[0] - 1.0) < 0.3
    assert not model.inlier_mask_[4]


@pytest.mark.parametrize("n", [8, 12, 20])
def test_tiny_samples(n):
    errors = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 1))
        y = 2.0 * x[:, 0] + 1.0 + 0.1 * rng.normal(size=n)
        y[0] += 50.0
        errors.append(distance(fit(x, y), [2.0, 1.0]))
    assert np.median(errors) < 0.3


@pytest.mark.parametrize("size", [(30, 10), (60, 20)])
def test_clean_data_with_few_rows(size):
    flagged = []
    for seed in range(20):
        X, y, _ = plane(np.random.default_rng(seed), *size)
        flagged.append(1.0 - fit(X, y).inlier_mask_.mean())
    assert np.mean(flagged) < 0.1
    assert np.median(flagged) < 0.02


@pytest.mark.filterwarnings("error")
def test_at_most_two_rows_per_parameter_is_said(rng):
    X, y, _ = plane(rng, 12, 6)
    with pytest.warns(ConvergenceWarning, match="at most two rows per parameter"):
        fit(X, y)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [2, 5, 7])
def test_no_more_rows_than_parameters_is_said(rng, n):
    X, y, _ = plane(rng, n, 6)
    with pytest.warns(ConvergenceWarning, match=r"minimum norm.*alpha > 0"):
        model = fit(X, y)
    assert_allclose(model.predict(X), y, atol=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_penalty_that_is_too_weak_is_said():
    # Ridge regression close to interpolation predicts nothing; y alone tells outliers.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 55))
    y = X[:, :5].sum(axis=1) + 0.5 * rng.normal(size=60)
    y[:6] += 50.0
    with pytest.warns(ConvergenceWarning, match=r"constant predicts.*larger alpha"):
        model = fit(X, y, alpha=1e-3)
    assert not model.inlier_mask_[:6].any()
    assert_allclose(
        model.coef_, Ridge(alpha=1e-3).fit(X[6:], y[6:]).coef_, atol=0.5, rtol=0.2
    )


@pytest.mark.filterwarnings("ignore:.*lie exactly on the fitted plane")
@pytest.mark.parametrize("l1_ratio", [0.0, 0.5])
@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("n_bad", [0, 8])
def test_a_penalty_does_not_outweigh_exact_rows(rng, alpha, l1_ratio, n_bad):
    # The loss is bounded by the noise, of which there is none, and the penalty is not.
    X = rng.normal(size=(40, 2))
    y = X @ [2.0, -1.0] + 3.0
    exact = Ridge(alpha)
    if l1_ratio:
        exact = ElasticNet(alpha / (40 - n_bad), l1_ratio=l1_ratio, tol=1e-10)
    expected = exact.fit(X[n_bad:], y[n_bad:]).coef_
    y[:n_bad] += 100.0
    model = fit(X, y, alpha=alpha, l1_ratio=l1_ratio)
    assert_allclose(model.coef_, expected, rtol=0.05)
    assert model.inlier_mask_.sum() == 40 - n_bad


@pytest.mark.filterwarnings("error")
def test_a_minority_is_said(rng):
    X, y, coef = plane(rng, 300, 2)
    y[:174] += rng.uniform(8, 80, size=174)
    with pytest.warns(ConvergenceWarning, match="of the rows follow the fitted plane"):
        model = fit(X, y)
    assert_close(model, coef, X, slice(174, None))


def test_more_columns_than_rows_with_a_penalty():
    ratios = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(60, 200))
        coef = np.zeros(200)
        coef[:5] = 2.0
        y = X @ coef + 0.5 * rng.normal(size=60)
        test = rng.normal(size=(500, 200))
        y[:6] += 50.0
        model = fit(X, y, alpha=1.0)
        assert not model.inlier_mask_[:6].any()
        assert model.inlier_mask_[6:].mean() > 0.9
        errors = [
            np.mean(np.square(test @ coef - m.predict(test)))
            for m in (model, Ridge(alpha=1.0).fit(X[6:], y[6:]))
        ]
        ratios.append(errors[0] / errors[1])
    assert np.median(ratios) < 1.2


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_many_sparse_columns(alpha):
    # Of very unequal frequency, like words; rare ones have large penalties.
    rng = np.random.default_rng(0)
    n, p = 400, 3000
    odds = 1.0 / np.arange(1.0, p + 1.0)
    X = scipy.sparse.lil_array((n, p))
    for i in range(n):
        X[i, rng.choice(p, 20, replace=False, p=odds / odds.sum())] = 1.0
    X = X.tocsr()
    y = X @ rng.normal(size=p) + 0.3 * rng.normal(size=n)
    y[:40] += 60.0
    model = fit(X, y, alpha=alpha)
    assert not model.inlier_mask_[:40].any()
    assert model.inlier_mask_[40:].mean() > 0.9
    reference = Ridge(alpha=alpha, solver="cholesky").fit(X[40:].toarray(), y[40:])
    # Weights below one of clean rows make the penalty a little stronger.
    error = np.linalg.norm(model.coef_ - reference.coef_)
    assert error < 0.4 * np.linalg.norm(reference.coef_)


def test_two_hundred_columns_with_leverage(rng):
    X, y, coef = plane(rng, 2000, 200)
    X[:200] = 10.0 / np.sqrt(200) + 0.5 * rng.normal(size=(200, 200))
    y[:200] = X[:200] @ coef[:-1] + coef[-1] + 30.0
    model = fit(X, y)
    assert_close(model, coef, X, slice(200, None))


@pytest.mark.long
def test_a_million_rows(rng):
    X, y, coef = plane(rng, 1_000_000, 2)
    y = np.round(y)
    y[:300_000] = 99.0
    model = fit(X, y)
    assert_allclose(np.append(model.coef_, model.intercept_), coef, atol=0.02)


# -- Several outputs with correlated noise -------------------------------------------


@pytest.mark.parametrize("n", [200, 3000])
@pytest.mark.parametrize("correlation", [0.8, 0.95, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_outputs_with_correlated_noise(rng, n, correlation, share):
    X = rng.normal(size=(n, 2))
    common = np.sqrt(correlation) * rng.normal(size=(n, 1))
    noise = common + np.sqrt(1.0 - correlation) * rng.normal(size=(n, 2))
    unit = np.array([1.0, 1000.0])
    coef = np.array([[2.0, 1.0], [-1.0, 3.0]])
    Y = (X @ coef + noise) * unit
    bad = np.arange(n) < share * n
    Y[bad] += rng.uniform(10, 50, size=(bad.sum(), 2)) * unit
    model = fit(X, Y)
    assert_allclose(model.coef_.T / unit, coef, atol=5.0 / np.sqrt(n))
    assert_allclose(model.scale_ / unit, 1.0, rtol=0.2)
    assert not model.inlier_mask_[bad].any()
    assert model.inlier_mask_[~bad].mean() > 0.95


class TestGroups:
    """Clean data whose noise differs between the levels of a factor."""

    @staticmethod
    def treated(rng, n, ratio, n_covariates=0):
        group = (np.arange(n) < 0.3 * n).astype(float)
        X = np.column_stack([group, rng.normal(size=(n, n_covariates))])
        noise = rng.normal(size=n) * np.where(group, 0.3 * ratio, 0.3)
        return X, 2.0 + X @ np.r_[5.0, np.ones(n_covariates)] + noise

    @pytest.mark.parametrize("n_covariates", [0, 3])
    @pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0, 3.0])
    def test_no_level_is_lost(self, rng, ratio, n_covariates):
        for _ in range(5):
            X, y = self.treated(rng, 300, ratio, n_covariates)
            model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
            assert abs(model.coef_[0] - 5.0) < 0.8 * ratio / 3.0
            assert model.weights_[X[:, 0] == 1].mean() > 0.3

    def test_levels_of_a_factor(self, rng):
        for _ in range(5):
            level = rng.integers(8, size=400)
            X = np.eye(8)[level][:, 1:]
            spread = np.exp(0.5 * rng.normal(size=8))
            y = X @ np.arange(1.0, 8.0) + 0.3 * spread[level] * rng.normal(size=400)
            model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
            least = [model.weights_[level == k].mean() for k in range(8)]
            assert min(least) > 0.1
            np.testing.assert_allclose(model.coef_, np.arange(1.0, 8.0), atol=1.0)


def test_a_scale_in_other_units_is_told(rng):
    X = rng.normal(size=(100, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=100)
    for scale in (1e-6, 1e-4, 1e-2):
        model = HalfQuadraticRobustRegressor(scale=scale, random_state=0)
        with pytest.warns(ConvergenceWarning, match="of the given scale"):
            model.fit(X, y)
        np.testing.assert_allclose(model.coef_, [1.0, 0.0], atol=0.2)


def test_percentages_are_clipped_not_rounded(rng):
    x = rng.uniform(-3, 3, 400)
    y = np.clip(50.0 + 40.0 * x + 20.0 * rng.normal(size=400), 0.0, 100.0)
    model = HalfQuadraticRobustRegressor(random_state=0).fit(x[:, None], y)
    assert 10.0 < model.scale_ < 25.0
