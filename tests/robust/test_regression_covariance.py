"""Covariance of coefficients: least squares, statsmodels, simulation."""

import numpy as np
import pytest
from scipy.optimize import curve_fit

from sklearn_mm import HalfQuadraticRobustRegressor
from sklearn_mm._robust.regression_covariance import (
    Influence,
    count_rows,
    nonrobust_covariance,
    sandwich_covariance,
    weighted_gram,
)
from sklearn_mm.kernels import KERNELS, get_kernel

LEAST_SQUARES = {"scale": 0.7, "kernel": get_kernel("quadratic"), "width": np.inf}


def sample(rng, n=120, p=4, noise=1.0):
    X = np.column_stack([rng.normal(size=(n, p - 1)), np.ones(n)])
    beta = np.arange(1.0, p + 1)
    return X, beta, X @ beta + noise * rng.normal(size=n)


def irls(X, y, kernel, width, scale, penalty=0.0, n_iter=200):
    """Exact weights to convergence, from least squares: an independent small solver."""
    beta = np.linalg.lstsq(X, y, rcond=None)[0]
    for _ in range(n_iter):
        w = kernel.weight(np.square((y - X @ beta) / (width * scale)))
        gram = weighted_gram(X, w) + penalty * np.eye(X.shape[1])
        beta = np.linalg.solve(gram, X.T @ (w * y))
    return beta, w


class TestLeastSquares:
    def test_nonrobust_is_ols(self, rng):
        sm = pytest.importorskip("statsmodels.api")
        X, _, y = sample(rng)
        ols = sm.OLS(y, X).fit()
        found = nonrobust_covariance(X.T @ X, ols.resid, **LEAST_SQUARES)
        np.testing.assert_allclose(found.matrix, ols.cov_params(), rtol=1e-10)
        assert found.freedom == pytest.approx(ols.df_resid)
        half = found.quantile(0.9) * found.standard_errors
        interval = np.column_stack([ols.params - half, ols.params + half])
        np.testing.assert_allclose(interval, ols.conf_int(0.1), rtol=1e-9)

    def test_sandwich_is_hc3(self, rng):
        sm = pytest.importorskip("statsmodels.api")
        X, _, y = sample(rng)
        ols = sm.OLS(y, X).fit()
        found = sandwich_covariance(X, ols.resid, **LEAST_SQUARES)
        np.testing.assert_allclose(found.matrix, ols.cov_HC3, rtol=1e-8)

    def test_jacobian_of_a_curve(self, rng):
        x = np.linspace(0, 4, 60)

        def decay(x, a, b, c):
            return a * np.exp(-b * x) + c

        y = decay(x, 2.5, 1.3, 0.5) + 0.1 * rng.normal(size=60)
        (a, b, c), expected = curve_fit(decay, x, y, p0=(1, 1, 0))
        J = np.column_stack([np.exp(-b * x), -a * x * np.exp(-b * x), np.ones(60)])
        residual = y - decay(x, a, b, c)
        found = nonrobust_covariance(J.T @ J, residual, **LEAST_SQUARES)
        np.testing.assert_allclose(found.matrix, expected, rtol=1e-4)

    def test_ridge(self, rng):
        # The estimate is A X'y: its covariance is known, its bias is left out.
        X, _, y = sample(rng, 40, 5)
        A = np.linalg.inv(X.T @ X + 20.0 * np.eye(5))
        residual = y - X @ A @ X.T @ y
        found = nonrobust_covariance(X.T @ X, residual, penalty=20.0, **LEAST_SQUARES)
        q = np.trace(X @ A @ X.T)
        assert found.n_parameters == pytest.approx(q)
        noise = residual @ residual / (40 - q)
        np.testing.assert_allclose(found.matrix, noise * A @ X.T @ X @ A, rtol=1e-8)


class TestInfluence:
    @pytest.mark.parametrize("name", sorted(KERNELS))
    def test_slope(self, name):
        kernel = get_kernel(name)
        width = kernel.tuning_constant()
        t = np.array([0.0, 1e-9, 0.3, -1.0, 2.0, 50.0])
        found = Influence.of(t, 1.0, kernel, width)
        wide = width if np.isfinite(width) else 1.0
        # The derivative of the loss in the residual is psi.
        h = 1e-5
        ahead, behind = (kernel.loss(np.square((t + e) / wide)) for e in (h, -h))
        psi = wide**2 * (ahead - behind) / (2 * h)
        np.testing.assert_allclose(found.psi, psi, rtol=1e-5, atol=1e-7)
        assert found.slope[0] == pytest.approx(1.0)

    @pytest.mark.parametrize("name", sorted(KERNELS))
    def test_rows_that_take_part(self, rng, name):
        kernel = get_kernel(name)
        width = kernel.tuning_constant()
        t = rng.normal(size=5000)
        ones = np.ones(5000)
        for share in (0.0, 0.3):
            bad = rng.uniform(size=5000) < share
            t[bad] = 1e4
            influence = Influence.of(t, 1.0, kernel, width)
            m = count_rows(influence, kernel, width, ones)
            expected = 5000 if name == "quadratic" else np.sum(~bad)
            assert m == pytest.approx(expected, rel=0.02)


class TestStatsmodels:
    @pytest.mark.parametrize("name", ["huber", "tukey"])
    @pytest.mark.parametrize("outliers", [0, 12])
    def test_h1(self, rng, name, outliers):
        sm = pytest.importorskip("statsmodels.api")
        X, _, y = sample(rng, 200)
        y[:outliers] += 15.0
        kernel = get_kernel(name)
        width = kernel.tuning_constant()
        norm = {
            "huber": sm.robust.norms.HuberT(width),
            "tukey": sm.robust.norms.TukeyBiweight(width),
        }[name]
        rlm = sm.RLM(y, X, M=norm).fit(cov="H1", tol=1e-12, maxiter=500)
        beta, w = irls(X, y, kernel, width, rlm.scale)
        np.testing.assert_allclose(beta, rlm.params, atol=1e-6)
        found = nonrobust_covariance(
            weighted_gram(X, w),
            y - X @ beta,
            scale=rlm.scale,
            kernel=kernel,
            width=width,
        )
        np.testing.assert_allclose(found.standard_errors, rlm.bse, rtol=0.05)


class TestProperties:
    @pytest.mark.parametrize("name", ["smooth_truncated_quadratic", "welsch", "huber"])
    @pytest.mark.parametrize("kind", ["nonrobust", "HC3"])
    def test_weights_are_copies_and_units_are_free(self, rng, name, kind):
        X, _, y = sample(rng, 60)
        kernel = get_kernel(name)
        options = {"kernel": kernel, "width": kernel.tuning_constant()}
        beta, w = irls(X, y, kernel, options["width"], 1.0)
        residual = y - X @ beta
        copies = rng.integers(0, 3, size=60)

        def covariance(X, r, w, scale, f=None):
            if kind == "HC3":
                return sandwich_covariance(
                    X, r, scale=scale, sample_weight=f, **options
                ).matrix
            f_ = np.ones(len(r)) if f is None else f
            return nonrobust_covariance(
                weighted_gram(X, w * f_), r, scale=scale, sample_weight=f, **options
            ).matrix

        many = covariance(*(np.repeat(a, copies, axis=0) for a in (X, residual, w)), 1)
        weighted = covariance(X, residual, w, 1.0, copies.astype(float))
        np.testing.assert_allclose(weighted, many, rtol=1e-8, atol=1e-12)
        units = np.array([1e6, 1.0, 1e-6, 1.0])
        scaled = covariance(X * units, 3.0 * residual, w, 3.0)
        plain = covariance(X, residual, w, 1.0)
        np.testing.assert_allclose(
            scaled * np.outer(units, units), 9.0 * plain, rtol=1e-6, atol=1e-12
        )

    def test_rank_deficient(self, rng):
        X, _, y = sample(rng)
        twice = np.column_stack([X, X[:, 0]])
        residual = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
        found = nonrobust_covariance(twice.T @ twice, residual, **LEAST_SQUARES)
        assert found.deficient
        assert found.rank == 4
        assert found.n_parameters == pytest.approx(4.0)

    def test_nothing_left(self):
        found = nonrobust_covariance(
            np.eye(3), np.ones(3), **{**LEAST_SQUARES, "scale": 1.0}
        )
        assert found.freedom == 0.0
        assert found.quantile(0.95) == np.inf
        far = nonrobust_covariance(
            np.zeros((2, 2)),
            1e9 * np.ones(5),
            scale=1.0,
            kernel=get_kernel("tukey"),
            width=4.685,
        )
        assert np.isnan(far.matrix).all()
        for level in (0.0, 1.0, -1, np.nan):
            with pytest.raises(ValueError, match="level must be in"):
                found.quantile(level)


def coverage(seeds, n, p, contaminate, kind="nonrobust", hetero=False):
    """Share of 95 % intervals that hold the true coefficient."""
    hits = []
    for seed in seeds:
        rng = np.random.default_rng([seed, n, p])
        X, beta, _ = sample(rng, n, p)
        noise = 0.5 + np.abs(X[:, 0]) if hetero else 1.0
        y = X @ beta + noise * rng.normal(size=n)
        y = contaminate(rng, y)
        fit = HalfQuadraticRobustRegressor(random_state=0).fit(X[:, :-1], y)
        found = np.append(fit.coef_, fit.intercept_)
        kernel = get_kernel(fit.kernel)
        options = {
            "scale": fit.scale_,
            "kernel": kernel,
            "width": kernel.tuning_constant(),
        }
        residual = y - fit.predict(X[:, :-1])
        if kind == "HC3":
            cov = sandwich_covariance(X, residual, **options)
        else:
            gram = weighted_gram(X, fit.weights_)
            cov = nonrobust_covariance(gram, residual, **options)
        half = cov.quantile(0.95) * cov.standard_errors
        hits.append(np.abs(found - beta) <= half)
    return np.mean(hits)


def clean(rng, y):
    return y


def one_sided(rng, y):
    bad = rng.permutation(len(y)) < 0.3 * len(y)
    return np.where(bad, y + rng.uniform(10, 50, size=len(y)), y)


def coded(rng, y):
    return np.where(rng.permutation(len(y)) < 0.3 * len(y), 999.0, y)


class TestCoverage:
    def test_short(self):
        assert 0.90 < coverage(range(60), 100, 5, one_sided) < 0.99

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("n", "p", "low"), [(50, 4, 0.92), (100, 11, 0.92), (500, 11, 0.93)]
    )
    @pytest.mark.parametrize("kind", [clean, one_sided, coded])
    def test_long(self, n, p, low, kind):
        assert low < coverage(range(500), n, p, kind) < 0.98

    @pytest.mark.long
    def test_heteroscedastic(self):
        assert coverage(range(500), 200, 4, clean, "HC3", hetero=True) > 0.91
