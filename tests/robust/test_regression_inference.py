"""What the regressor says of its coefficients: least squares, statsmodels, coverage."""

import shutil
import subprocess

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from sklearn_mm import HalfQuadraticRobustRegressor
from sklearn_mm._robust.inference import MAX_COLUMNS
from sklearn_mm.kernels import KERNELS, get_kernel
from sklearn_mm.metrics import robust_r2_score

COV_TYPES = pytest.mark.parametrize("cov_type", ["nonrobust", "HC3"])


def sample(rng, n=120, p=3, noise=1.0):
    X = rng.normal(size=(n, p))
    beta = np.arange(1.0, p + 2)
    return X, beta, X @ beta[:-1] + beta[-1] + noise * rng.normal(size=n)


def one_sided(rng, y):
    bad = rng.permutation(len(y)) < 0.3 * len(y)
    return np.where(bad, y + rng.uniform(10, 50, size=len(y)), y)


def regressor(**kwargs):
    return HalfQuadraticRobustRegressor(random_state=0, **kwargs)


class TestLeastSquares:
    @pytest.mark.parametrize("fit_intercept", [True, False])
    def test_ols(self, rng, fit_intercept):
        sm = pytest.importorskip("statsmodels.api")
        X, _, y = sample(rng)
        design = np.column_stack([X, np.ones(len(X))]) if fit_intercept else X
        ols = sm.OLS(y, design).fit()
        model = regressor(kernel="quadratic", fit_intercept=fit_intercept).fit(X, y)
        np.testing.assert_allclose(model.covariance_, ols.cov_params(), rtol=1e-9)
        np.testing.assert_allclose(model.conf_int(0.9), ols.conf_int(0.1), rtol=1e-8)
        frame = pytest.importorskip("pandas") and model.summary(0.9).to_frame()
        np.testing.assert_allclose(frame["t"], ols.tvalues, rtol=1e-8)
        np.testing.assert_allclose(frame["p_value"], ols.pvalues, rtol=1e-6)
        # The others are zero at three digits.
        shown = str(model.summary()).splitlines()[-len(ols.pvalues) :]
        for line, p_value in zip(shown, ols.pvalues, strict=True):
            assert ("<0.001" in line) == (p_value < 0.001)
        if fit_intercept:
            assert model.robust_r2_ == pytest.approx(ols.rsquared)

    def test_intervals_of_predictions(self, rng):
        sm = pytest.importorskip("statsmodels.api")
        X, _, y = sample(rng)
        ols = sm.OLS(y, sm.add_constant(X)).fit()
        new = rng.normal(size=(7, 3))
        expected = ols.get_prediction(sm.add_constant(new))
        # Least squares estimates the noise from its own residuals.
        scale = float(np.sqrt(ols.scale))
        model = regressor(kernel="quadratic", scale=scale).fit(X, y)
        np.testing.assert_allclose(
            model.predict_interval(new, 0.9, kind="mean"),
            expected.conf_int(alpha=0.1),
            rtol=1e-8,
        )
        np.testing.assert_allclose(
            model.predict_interval(new, 0.9),
            expected.conf_int(obs=True, alpha=0.1),
            rtol=1e-8,
        )

    def test_hc3(self, rng):
        sm = pytest.importorskip("statsmodels.api")
        X, _, y = sample(rng)
        ols = sm.OLS(y, np.column_stack([X, np.ones(len(X))])).fit()
        model = regressor(kernel="quadratic", cov_type="HC3").fit(X, y)
        np.testing.assert_allclose(model.covariance_, ols.cov_HC3, rtol=1e-8)

    def test_inverse_variances_as_weights(self, rng):
        """With a mean of one, they give the intervals of weighted least squares."""
        sm = pytest.importorskip("statsmodels.api")
        X, _, y = sample(rng)
        weight = rng.uniform(0.1, 3.0, size=len(y))
        weight /= weight.mean()
        wls = sm.WLS(y, np.column_stack([X, np.ones(len(X))]), weight).fit()
        model = regressor(kernel="quadratic").fit(X, y, sample_weight=weight)
        np.testing.assert_allclose(model.conf_int(), wls.conf_int(), rtol=1e-8)

    @pytest.mark.parametrize("kernel", ["quadratic", "tukey", "cauchy"])
    def test_the_only_row_of_a_category(self, rng, kernel):
        """Its residual is zero, which does not mean that it has no noise."""
        X, _, y = sample(rng)
        X = np.column_stack([X, np.arange(120) == 50])
        plain, hc3 = (
            regressor(kernel=kernel, cov_type=name).fit(X, y)
            for name in ("nonrobust", "HC3")
        )
        errors, found = (np.sqrt(np.diag(m.covariance_)) for m in (plain, hc3))
        np.testing.assert_allclose(found[3], errors[3], rtol=0.05)
        # The other coefficients do not depend on this row.
        some, y = np.delete(X[:, :3], 50, axis=0), np.delete(y, 50)
        without = regressor(kernel=kernel, cov_type="HC3", scale=hc3.scale_)
        without.fit(some, y)
        expected = np.sqrt(np.diag(without.covariance_))
        np.testing.assert_allclose(found[[0, 1, 2, 4]], expected, rtol=0.02)

    def test_ridge(self, rng):
        # The estimate is A X'y: its covariance is known, its bias is left out.
        X, _, y = sample(rng, 40, 5)
        model = regressor(kernel="quadratic", alpha=20.0, fit_intercept=False)
        model.fit(X, y)
        A = np.linalg.inv(X.T @ X + 20.0 * np.eye(5))
        q = np.trace(X @ A @ X.T)
        noise = np.sum(np.square(y - model.predict(X))) / (40 - q)
        expected = noise * A @ X.T @ X @ A
        np.testing.assert_allclose(model.covariance_, expected, rtol=1e-7)


class TestStatsmodels:
    @pytest.mark.parametrize("name", ["huber", "tukey"])
    @pytest.mark.parametrize("share", [0.0, 0.06])
    @pytest.mark.parametrize("shape", [(200, 3), (500, 10)])
    def test_rlm(self, rng, name, share, shape):
        """Coefficients and standard errors (H1) of the same M-estimate."""
        sm = pytest.importorskip("statsmodels.api")
        X, _, y = sample(rng, *shape)
        y[: round(share * len(y))] += 15.0
        width = get_kernel(name).tuning_constant()
        norm = {
            "huber": sm.robust.norms.HuberT(width),
            "tukey": sm.robust.norms.TukeyBiweight(width),
        }[name]
        design = np.column_stack([X, np.ones(len(X))])
        rlm = sm.RLM(y, design, M=norm).fit(cov="H1", tol=1e-12, maxiter=500)
        model = regressor(kernel=name, scale=rlm.scale, tol=1e-10).fit(X, y)
        coef = np.append(model.coef_, model.intercept_)
        np.testing.assert_allclose(coef, rlm.params, atol=1e-6)
        errors = np.sqrt(np.diag(model.covariance_))
        np.testing.assert_allclose(errors, rlm.bse, rtol=0.05)


R_SCRIPT = """
suppressMessages({library(robustbase); library(MASS)})
data <- list(stackloss = stackloss, boston = Boston)[["%s"]]
fitted <- function(cov) {
  set.seed(1)
  design <- cbind(as.matrix(data[, -ncol(data)]), 1)
  control <- lmrob.control(max.it = 1000, k.max = 2000, cov = cov)
  lmrob.fit(design, data[, ncol(data)], control)
}
fit <- fitted(".vcov.w")
avar <- fitted(".vcov.avar1")$cov
rows <- rbind(coef(fit), sqrt(diag(fit$cov)), sqrt(diag(avar)))
write.table(as.matrix(data), "data", row.names = FALSE, col.names = FALSE)
write.table(rows, "rows", row.names = FALSE, col.names = FALSE)
writeLines(format(c(fit$scale, fit$control$tuning.psi), digits = 16), "scale")
"""


class TestLmrob:
    """MM-estimates of R's robustbase: Tukey's kernel, with their start and scale."""

    def check(self, X, y, coef, errors, scale, tuning, *, rtol, cov_type="nonrobust"):
        model = regressor(
            kernel="tukey",
            scale=scale,
            tuning=tuning,
            init=coef,
            max_iter=1000,
            cov_type=cov_type,
        )
        model.fit(X, y)
        found = np.append(model.coef_, model.intercept_)
        np.testing.assert_allclose(found, coef, rtol=1e-3, atol=1e-6)
        ratio = np.sqrt(np.diag(model.covariance_)) / errors
        assert np.all((ratio > 1 / rtol) & (ratio < rtol)), ratio

    def test_stackloss(self):
        """Figures of summary(lmrob(stack.loss ~ ., stackloss)), robustbase 0.95."""
        sm = pytest.importorskip("statsmodels.api")
        data = sm.datasets.stackloss.load()
        coef = [0.9388453, 0.5795532, -0.1129218, -41.5246165]
        errors = [0.11742919, 0.26296350, 0.06988986, 5.29779752]
        data = (np.asarray(data.exog), np.asarray(data.endog))
        # lmrob's default formula is a sandwich, and there are 21 rows.
        self.check(*data, coef, errors, 1.912355, 4.685061, rtol=1.7)

    @pytest.mark.parametrize("name", ["stackloss", "boston"])
    def test_r(self, tmp_path, name):
        """In R itself, with both of its formulas.

        One is for noise that does not depend on x. The other, a sandwich, is the
        default of `summary`.
        """
        if shutil.which("Rscript") is None:
            pytest.skip("R is not installed")
        command = ["Rscript", "-e", R_SCRIPT % name]
        if subprocess.run(command, cwd=tmp_path, capture_output=True).returncode:
            pytest.skip("robustbase or MASS is not installed")
        data, rows, (scale, tuning) = (
            np.loadtxt(tmp_path / file) for file in ("data", "rows", "scale")
        )
        coef, errors, sandwich = rows
        fit = (data[:, :-1], data[:, -1], coef)
        self.check(*fit, errors, scale, tuning, rtol=1.02)
        # There are only 21 rows in stackloss, where HC3 corrects for leverages.
        rtol = 1.5 if name == "stackloss" else 1.25
        self.check(*fit, sandwich, scale, tuning, rtol=rtol, cov_type="HC3")


class TestProperties:
    @COV_TYPES
    @pytest.mark.parametrize("kernel", ["smooth_truncated_quadratic", "welsch"])
    def test_weights_are_copies(self, rng, kernel, cov_type):
        X, _, y = sample(rng, 60)
        y[:6] += 30.0
        copies = rng.integers(0, 4, size=60)
        options = {"kernel": kernel, "cov_type": cov_type, "scale": 1.0, "tol": 1e-10}
        one = regressor(**options).fit(X, y, sample_weight=copies)
        many = regressor(**options)
        many.fit(np.repeat(X, copies, axis=0), np.repeat(y, copies))
        np.testing.assert_allclose(one.covariance_, many.covariance_, rtol=1e-6)
        np.testing.assert_allclose(one.conf_int(), many.conf_int(), rtol=1e-6)
        assert one.robust_r2_ == pytest.approx(many.robust_r2_)
        new = rng.normal(size=(4, 3))
        np.testing.assert_allclose(
            one.predict_interval(new), many.predict_interval(new), rtol=1e-6
        )

    @COV_TYPES
    def test_units(self, rng, cov_type):
        X, _, y = sample(rng, 60)
        y[:6] += 30.0
        units = np.array([1e6, 1.0, 1e-6])
        offset = np.array([0.0, 1e5, 0.0])
        plain = regressor(cov_type=cov_type).fit(X, y)
        other = regressor(cov_type=cov_type).fit(X * units + offset, 3.0 * y)
        errors, scaled = (np.sqrt(np.diag(m.covariance_))[:3] for m in (plain, other))
        np.testing.assert_allclose(scaled * units, 3.0 * errors, rtol=1e-5)
        np.testing.assert_allclose(
            other.predict_interval(X * units + offset, kind="mean"),
            3.0 * plain.predict_interval(X, kind="mean"),
            rtol=1e-5,
        )

    @COV_TYPES
    def test_chunks_workers_sparse_and_single_precision(self, rng, cov_type):
        X, _, y = sample(rng, 300)
        X = np.round(X, 2)
        y = one_sided(rng, y)
        options = {"cov_type": cov_type, "scale": 1.0}
        plain = regressor(**options).fit(X, y)
        for other, data, rtol in (
            (regressor(chunk_size=64, n_jobs=2, **options), X, 1e-6),
            (regressor(**options), scipy.sparse.csr_array(X), 1e-6),
            (regressor(**options), X.astype(np.float32), 1e-4),
        ):
            other.fit(data, y)
            np.testing.assert_allclose(other.covariance_, plain.covariance_, rtol=rtol)
            np.testing.assert_allclose(
                other.predict_interval(data[:5]),
                plain.predict_interval(X[:5]),
                rtol=1e-4,
            )
            assert other.covariance_.dtype == np.float64
            assert other.robust_r2_ == pytest.approx(plain.robust_r2_, rel=1e-5)

    def test_rows_on_demand(self, rng, tmp_path):
        X, _, y = sample(rng, 300)
        y = one_sided(rng, y)
        np.save(tmp_path / "X.npy", X)
        mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
        plain = regressor(scale=1.0).fit(X, y)
        other = regressor(scale=1.0, chunk_size=50).fit(mapped, y)
        np.testing.assert_allclose(other.covariance_, plain.covariance_, rtol=1e-7)
        np.testing.assert_allclose(
            other.predict_interval(mapped), plain.predict_interval(X)
        )
        np.testing.assert_allclose(other._leverages(mapped)[0], plain._leverages(X)[0])
        np.testing.assert_allclose(
            other.confidence(mapped, y), plain.confidence(X, y), rtol=1e-9
        )

    @pytest.mark.parametrize("kernel", sorted(KERNELS))
    def test_robust_r2_is_the_metric(self, rng, kernel):
        X, _, y = sample(rng)
        y[:10] += 40.0
        model = regressor(kernel=kernel).fit(X, y)
        expected = robust_r2_score(
            y, model.predict(X), scale=model.scale_, kernel=kernel
        )
        assert model.robust_r2_ == pytest.approx(expected, rel=1e-5)

    def test_leverages_are_the_diagonal_of_the_hat_matrix(self, rng):
        X, _, y = sample(rng)
        model = regressor(kernel="quadratic").fit(X, y)
        design = np.column_stack([X, np.ones(len(X))])
        expected = np.diag(design @ np.linalg.pinv(design))
        found, mean = model._leverages(X)
        np.testing.assert_allclose(found, expected, rtol=1e-8)
        assert mean == pytest.approx(expected.mean())
        # Rows without weight do not hide: they are far from the others.
        y[:5], X[:5] = 500.0, 30.0
        robust, least = (
            regressor(kernel=k).fit(X, y)
            for k in ("smooth_truncated_quadratic", "quadratic")
        )
        assert robust._leverages(X)[0][:5].min() > 10.0
        assert least._leverages(X)[0][:5].max() < 1.0

    def test_positive_definite(self, rng):
        X, _, y = sample(rng, 30, 6)
        for cov_type in ("nonrobust", "HC3"):
            model = regressor(cov_type=cov_type).fit(X, one_sided(rng, y))
            np.testing.assert_allclose(model.covariance_, model.covariance_.T)
            assert np.linalg.eigvalsh(model.covariance_).min() > 0.0


class TestSeveralOutputs:
    @COV_TYPES
    def test_independent_outputs(self, rng, cov_type):
        """Of least squares, the covariance of each output is that of its own fit."""
        X, _, y = sample(rng)
        Y = np.column_stack([y, 5.0 * rng.normal(size=len(y)) - 2.0 * y])
        options = {"kernel": "quadratic", "cov_type": cov_type}
        both = regressor(**options).fit(X, Y)
        assert both.covariance_.shape == (2, 4, 4)
        assert both.conf_int().shape == (2, 4, 2)
        assert both.predict_interval(X).shape == (120, 2, 2)
        for k in range(2):
            alone = regressor(**options).fit(X, Y[:, k])
            np.testing.assert_allclose(
                both.covariance_[k], alone.covariance_, rtol=1e-8
            )
            np.testing.assert_allclose(
                both.predict_interval(X, kind="mean")[:, k],
                alone.predict_interval(X, kind="mean"),
                rtol=1e-7,
            )
            assert both.robust_r2_[k] == pytest.approx(alone.robust_r2_)
        for shown in (str(both.summary()), both.summary()._repr_html_()):
            assert "Output 0" in shown and "Output 1" in shown
        alone = regressor(**options).fit(X, y).summary()
        assert "Output" not in str(alone) + alone._repr_html_()

    def test_one_column(self, rng):
        X, _, y = sample(rng)
        column = regressor().fit(X, y[:, None])
        flat = regressor().fit(X, y)
        np.testing.assert_allclose(column.covariance_[0], flat.covariance_)
        np.testing.assert_allclose(column.conf_int()[0], flat.conf_int())
        np.testing.assert_allclose(
            column.predict_interval(X)[:, 0], flat.predict_interval(X)
        )

    def test_against_simulation(self):
        """The mean estimated variance is the variance of the estimates."""
        rng = np.random.default_rng(0)
        estimates, variances = [], []
        start = np.zeros((3, 3))  # a search would find as much in three times the time
        for _ in range(100):
            X = rng.normal(size=(100, 2))
            Y = rng.normal(size=(100, 3)) * [1.0, 2.0, 10.0]
            Y[:15] += 60.0
            model = regressor(init=start).fit(X, Y)
            estimates.append(np.column_stack([model.coef_, model.intercept_]))
            variances.append(np.diagonal(model.covariance_, axis1=1, axis2=2))
        ratio = np.mean(variances, axis=0) / np.mean(np.square(estimates), axis=0)
        assert np.all((ratio > 0.7) & (ratio < 1.4)), ratio
        assert 0.85 < ratio.mean() < 1.15

    @COV_TYPES
    @pytest.mark.parametrize("kernel", ["smooth_truncated_quadratic", "welsch"])
    def test_correlated_noise(self, cov_type, kernel):
        """The outputs share weights, so that their equations are coupled."""
        rng = np.random.default_rng(0)
        root = np.linalg.cholesky(0.9 + 0.1 * np.eye(3))
        model = regressor(kernel=kernel, scale=1.0, init=np.zeros((3, 3)))
        model.set_params(cov_type=cov_type)
        squares, variances = [], []
        for _ in range(50):
            X = rng.normal(size=(200, 2))
            model.fit(X, rng.normal(size=(200, 3)) @ root.T)
            squares.append(np.square(np.column_stack([model.coef_, model.intercept_])))
            variances.append(np.diagonal(model.covariance_, axis1=1, axis2=2))
        ratio = np.mean(variances) / np.mean(squares)
        assert 0.8 < ratio < 1.25, ratio


class TestWhatCannotBeTold:
    def test_collinear_columns(self, rng):
        X, _, y = sample(rng)
        plain = regressor().fit(X, y)
        twice = np.column_stack([X, X[:, 0] + 7.0])
        model = regressor().fit(twice, y)
        errors = np.sqrt(np.diag(model.covariance_))
        open_ = [True, False, False, True, True]  # the intercept, too
        np.testing.assert_array_equal(np.isnan(errors), open_)
        np.testing.assert_allclose(
            errors[1:3], np.sqrt(np.diag(plain.covariance_))[1:3], rtol=1e-6
        )
        # Predictions of rows like these are determined.
        np.testing.assert_allclose(
            model.predict_interval(twice, kind="mean"),
            plain.predict_interval(X, kind="mean"),
            rtol=1e-5,
        )
        assert "do not determine" in str(model.summary())
        # A column and its copy leave the intercept alone.
        model = regressor().fit(np.column_stack([X + 5.0, X[:, 0] + 5.0]), y)
        np.testing.assert_array_equal(
            np.isnan(np.diag(model.covariance_)), [1, 0, 0, 1, 0]
        )

    @pytest.mark.parametrize("n", [4, 7])  # 7 parameters: no degree of freedom
    def test_too_few_rows(self, rng, n):
        X, _, y = sample(rng, n, 6)
        with pytest.warns(ConvergenceWarning, match="outliers"):
            model = regressor().fit(X, y)
        assert np.isinf(model.conf_int()[..., 1]).all()
        assert np.isinf(model.predict_interval(X)).all()
        summary = model.summary()
        assert "cannot be estimated" in str(summary)
        assert summary.columns == ("estimate",)  # and nothing that is infinite
        for part in ("inf", "Intervals", "Noise scale", "R²"):
            assert part not in str(summary)

    def test_one_degree_of_freedom_is_enough(self, rng):
        X, _, y = sample(rng, 8, 6)
        with pytest.warns(ConvergenceWarning, match="outliers"):
            model = regressor(kernel="quadratic").fit(X, y)
        design = np.column_stack([X, np.ones(8)])
        noise = np.sum(np.square(y - model.predict(X)))  # / (8 - 7)
        expected = noise * np.linalg.inv(design.T @ design)
        np.testing.assert_allclose(model.covariance_, expected, rtol=1e-6)
        assert np.isfinite(model.conf_int()).all()
        shown = str(model.summary())
        assert "cannot be estimated" not in shown
        assert "1 degree of freedom" in shown

    def test_penalty(self, rng):
        X, _, y = sample(rng)
        model = regressor(alpha=1.0).fit(X, y)
        assert np.isfinite(model.covariance_).all()
        for ask in (model.conf_int, lambda: model.predict_interval(X, kind="mean")):
            with pytest.raises(ValueError, match=r"alpha > 0.*[Nn]o .*intervals"):
                ask()
        assert np.isfinite(model.predict_interval(X)).all()
        summary = model.summary()
        assert summary.columns == ("estimate", "std_error")
        assert "tests and intervals are not available" in str(summary)

    def test_many_columns(self, rng):
        X = rng.normal(size=(30, MAX_COLUMNS + 1))
        model = regressor(alpha=10.0, scale=1.0, init="ols").fit(X, X[:, 0])
        assert model.covariance_ is None
        for ask in (model.conf_int, lambda: model.predict_interval(X)):
            with pytest.raises(ValueError, match="> 1000 coefficients is not formed"):
                ask()
        assert "not formed" in str(model.summary())
        assert model.summary().columns == ("estimate",)


class TestNewRows:
    def test_training_rows(self, rng):
        X, _, y = sample(rng)
        for targets in (one_sided(rng, y), np.column_stack([y, one_sided(rng, y)])):
            model = regressor().fit(X, targets)
            np.testing.assert_allclose(
                model.confidence(X, targets), model.weights_, atol=1e-9
            )
            np.testing.assert_array_equal(
                model.inlier_mask(X, targets), model.inlier_mask_
            )

    def test_frames_and_names(self, rng):
        pd = pytest.importorskip("pandas")
        X, _, y = sample(rng)
        frame = pd.DataFrame(X, columns=["one", "two", "three"])
        model = regressor().fit(frame, y)
        assert model.inlier_mask(frame, pd.Series(y)).mean() > 0.9
        names = ["one", "two", "three", "intercept"]
        assert list(model.summary().to_frame().index) == names


class TestSummary:
    def test_text_and_html(self, rng):
        X, _, y = sample(rng)
        y[:12] = 500.0
        model = regressor().fit(X, y)
        text, html = str(model.summary()), model.summary()._repr_html_()
        flagged = np.sum(~model.inlier_mask_)
        for part in (
            f"120 ({flagged} flagged as outliers)",
            "std_error",
            "intercept",
            "Robust R²",
        ):
            assert part in text
            assert part in html
        assert html.count("<table>") == html.count("</table>") == 2
        weighted = clone(model).fit(X, y, sample_weight=np.full(120, 2.0))
        assert "sum of sample weights 240" in str(weighted.summary())

    @pytest.mark.parametrize("offset", [0.0, 1e6])
    @pytest.mark.filterwarnings("ignore:.*lie exactly on the fitted plane")
    def test_exact_fits(self, rng, offset):
        X = rng.normal(size=(60, 3))
        y = X @ [1.0, 2.0, 3.0] + offset
        for targets in (y, np.full(60, offset), np.where(np.arange(60) < 9, 1e9, y)):
            text = str(regressor().fit(X, targets).summary())
            assert "up to rounding errors" in text
            assert max(map(len, text.splitlines()[:-1])) < 80  # values of t are huge
        noisy = y + 3e-7 * rng.normal(size=60)
        assert "rounding" not in str(regressor().fit(X, noisy).summary())

    @pytest.mark.parametrize("fit_intercept", [True, False])
    def test_adjusted_r2(self, rng, fit_intercept):
        """Both are variances in proportion: that of the noise and that of targets."""
        X, _, y = sample(rng)
        model = regressor(kernel="quadratic", fit_intercept=fit_intercept).fit(X, y)
        noise = np.sum(np.square(y - model.predict(X))) / (120 - 3 - fit_intercept)
        expected = 1.0 - noise / np.var(y, ddof=1)
        assert f"(adjusted {expected:.4g})" in str(model.summary())

    def test_names_are_escaped(self, rng):
        pd = pytest.importorskip("pandas")
        X, _, y = sample(rng)
        model = regressor().fit(pd.DataFrame(X, columns=["<b>", "two", "three"]), y)
        assert "&lt;b&gt;" in model.summary()._repr_html_()


class TestBadInput:
    @pytest.mark.parametrize("level", [0.0, 1.0, -1, np.nan, 95, "0.9", None, [0.9]])
    @pytest.mark.parametrize("method", ["conf_int", "predict_interval", "summary"])
    def test_level(self, rng, method, level):
        X, _, y = sample(rng)
        model = regressor().fit(X, y)
        args = (X,) if method == "predict_interval" else ()
        with pytest.raises(ValueError, match=r"level must be in \(0, 1\)"):
            getattr(model, method)(*args, level=level)

    def test_unfitted(self, rng):
        X, _, y = sample(rng)
        model = regressor()
        for ask in (
            model.conf_int,
            model.summary,
            lambda: model.predict_interval(X),
            lambda: model.confidence(X, y),
            lambda: model.inlier_mask(X, y),
        ):
            with pytest.raises(NotFittedError):
                ask()

    def test_data(self, rng):
        X, _, y = sample(rng)
        model = regressor().fit(X, y)
        for method in (model.confidence, model.inlier_mask):
            with pytest.raises(ValueError, match="requires y to be passed"):
                method(X, None)
            with pytest.raises(ValueError, match="inconsistent numbers of samples"):
                method(X, y[:-1])
            with pytest.raises(ValueError, match="expecting 3 features"):
                method(X[:, :2], y)
            with pytest.raises(ValueError, match=r"y has 2 outputs.* with 1"):
                method(X, np.column_stack([y, y]))
            with pytest.raises(ValueError, match="NaN"):
                method(X, np.where(np.arange(len(y)) == 3, np.nan, y))
        with pytest.raises(ValueError, match="expecting 3 features"):
            model.predict_interval(X[:, :2])
        for kind in ("confidence", None, 3):
            with pytest.raises(ValueError, match="kind must be one of"):
                model.predict_interval(X, kind=kind)
        with pytest.raises(ValueError, match="'cov_type' parameter"):
            regressor(cov_type="HC0").fit(X, y)


def coverage(seeds, n, p, contaminate=None, hetero=False, **kwargs):
    """Share of 95 % intervals that hold the true coefficient."""
    hits = []
    for seed in seeds:
        rng = np.random.default_rng([seed, n, p])
        X = rng.normal(size=(n, p))
        noise = 0.5 + np.abs(X[:, 0]) if hetero else 1.0
        _, beta, _ = sample(rng, n, p)
        y = X @ beta[:-1] + beta[-1] + noise * rng.normal(size=n)
        y = y if contaminate is None else contaminate(rng, y)
        low, high = regressor(**kwargs).fit(X, y).conf_int().T
        hits.append((low <= beta) & (beta <= high))
    return np.mean(hits)


# In one of some hundred data sets, the estimated share is near one half.
@pytest.mark.filterwarnings(
    "ignore:Only .* of the rows follow:sklearn.exceptions.ConvergenceWarning"
)
class TestCoverage:
    def test_short(self):
        assert 0.90 < coverage(range(60), 100, 5, one_sided) < 0.99

    @pytest.mark.long
    @pytest.mark.parametrize(("n", "p"), [(50, 3), (100, 10), (500, 10)])
    @pytest.mark.parametrize("kind", [None, one_sided])
    def test_long(self, n, p, kind):
        assert 0.92 < coverage(range(500), n, p, kind) < 0.98

    @pytest.mark.long
    def test_heteroscedastic(self):
        assert coverage(range(500), 200, 4, hetero=True, cov_type="HC3") > 0.91


class TestWhatIsNotDetermined:
    def test_means_along_a_null_space(self, rng):
        x = rng.normal(size=100)
        y = x + 0.1 * rng.normal(size=100)
        model = HalfQuadraticRobustRegressor(random_state=0)
        alone = model.fit(x[:, None], y).predict_interval([[5.0]], kind="mean")
        for column, inside, outside in [(x, 5.0, -5.0), (np.ones(100), 1.0, 1e3)]:
            model.fit(np.column_stack([x, column]), y)
            for kind in ("mean", "prediction"):
                found = model.predict_interval(
                    [[5.0, inside], [5.0, outside]], 0.9, kind
                )
                assert_array_equal(found[1], [-np.inf, np.inf])
            found = model.predict_interval([[5.0, inside]], kind="mean")
            assert_allclose(found, alone, rtol=1e-6)

    def test_rejected_levels_are_told(self, rng):
        group = (np.arange(100) < 30).astype(float)
        y = 2.0 + 5.0 * group + 0.1 * rng.normal(size=100)
        model = HalfQuadraticRobustRegressor(scale=0.1, init=np.array([0.0, 2.0]))
        with pytest.warns(ConvergenceWarning, match="of 30 training rows"):
            model.fit(group[:, None], y)
        assert np.isinf(model.predict_interval([[1.0]], kind="mean")).all()


def test_parameters_set_after_the_fit_do_not_change_it(rng):
    X = rng.normal(size=(60, 2))
    y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=60)
    model = HalfQuadraticRobustRegressor("tukey", random_state=0).fit(X, y)
    assert "nonrobust" in str(model.summary())
    assert "regemm" in str(model.summary())
    found = model.conf_int(), model.confidence(X, y), str(model.summary())
    model.set_params(fit_intercept=False, kernel="huber", tuning=1.0)
    model.set_params(cov_type="HC3", criterion="fixed")
    again = model.conf_int(), model.confidence(X, y), str(model.summary())
    assert_array_equal(found[0], again[0])
    assert_array_equal(found[1], again[1])
    assert found[2] == again[2]


def test_scales_of_outputs_in_unlike_units(rng):
    x = rng.normal(size=(100, 1))
    Y = x + 0.1 * rng.normal(size=(100, 2))
    Y[:, 1] *= 1e3
    Y[:20] += 1e4
    model = HalfQuadraticRobustRegressor(random_state=0).fit(x, Y)
    known = HalfQuadraticRobustRegressor(scale=model.scale_, random_state=0).fit(x, Y)
    assert_array_equal(known.scale_, model.scale_)
    assert_allclose(known.coef_, model.coef_, rtol=1e-3)
    with pytest.raises(ValueError, match=r"scale must .* \(2,\) .* \(3,\)"):
        known.set_params(scale=[1.0, 2.0, 3.0]).fit(x, Y)
