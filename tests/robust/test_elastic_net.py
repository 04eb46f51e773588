"""Elastic nets: scikit-learn's where it applies, certificates, outliers, p > n."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import ElasticNet, Ridge

from sklearn_mm import HalfQuadraticRobustRegressor
from sklearn_mm._robust.elastic_net import minimize_bound
from sklearn_mm._robust.scaling import Scaling
from sklearn_mm._rows.table import Rows


def regressor(**kwargs):
    return HalfQuadraticRobustRegressor(random_state=0, **kwargs)


def sample(rng, n, p, offset=5.0):
    X = rng.normal(size=(n, p)) * np.geomspace(0.1, 10, p) + offset
    coef = np.zeros(p)
    coef[:4] = [10.0, -5.0, 3.0, 2.0]
    return X, coef, X @ coef + 1.0 + rng.normal(size=n)


def sparse_problem(seed, n=100, p=200, share=0.1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    coef = np.zeros(p)
    coef[:5] = [3.0, -2.0, 3.0, 2.0, 2.5]
    y = X @ coef + 1.0 + rng.normal(size=n)
    bad = rng.permutation(n) < share * n
    y[bad] += rng.uniform(10, 30, size=bad.sum())
    return X, y, coef, bad


@pytest.mark.parametrize("shape", [(200, 10), (60, 90)])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.4])
@pytest.mark.parametrize("fit_intercept", [True, False])
class TestAgainstScikitLearn:
    def test_quadratic_kernel(self, rng, shape, l1_ratio, fit_intercept):
        """alpha is n times that of ElasticNet."""
        X, _, y = sample(rng, *shape, offset=5.0 * fit_intercept)
        options = {"l1_ratio": l1_ratio, "fit_intercept": fit_intercept}
        options_of_ours = {
            "kernel": "quadratic",
            "alpha": 30.0,
            "scale": 1.0,
            **options,
        }
        ours = regressor(**options_of_ours).fit(X, y)
        theirs = ElasticNet(alpha=30.0 / len(y), tol=1e-12, max_iter=10**6, **options)
        theirs.fit(X, y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)
        np.testing.assert_array_equal(ours.coef_ == 0.0, np.abs(theirs.coef_) < 1e-9)

    def test_stationary(self, rng, shape, l1_ratio, fit_intercept):
        """At the end weighted residuals balance the penalty's subgradient."""
        X, _, y = sample(rng, *shape, offset=5.0 * fit_intercept)
        y[:5] += 100.0
        alpha = 20.0
        model = regressor(
            alpha=alpha, l1_ratio=l1_ratio, fit_intercept=fit_intercept, tol=1e-10
        ).fit(X, y)
        score = X.T @ (model.weights_ * (y - model.predict(X)))
        score -= alpha * (1 - l1_ratio) * model.coef_
        limit = alpha * l1_ratio
        used = model.coef_ != 0.0
        scale = 1e-5 * np.abs(X).sum(axis=0)
        expected = limit * np.sign(model.coef_)
        assert np.all(np.abs(score - expected)[used] <= scale[used])
        assert np.all(np.abs(score[~used]) <= limit + scale[~used])


class TestCertificates:
    @pytest.mark.parametrize("criterion", ["regemm", "sudemm", "fixed", "graduated"])
    @pytest.mark.parametrize("p", [10, 150])
    def test_bounds(self, criterion, p):
        X, y, *_ = sparse_problem(0, p=p)
        model = regressor(alpha=10.0, l1_ratio=0.9, criterion=criterion).fit(X, y)
        history = model.history_
        upper, lower = history.upper_bound, history.lower_bound
        assert np.all(lower <= upper * (1 + 1e-12))
        if criterion in ("regemm", "fixed"):
            assert np.all(np.diff(upper) <= 1e-9 * upper[0])
        # The objective, from its definition.
        kernel, tuning = model._kernel(1)
        tau = tuning * model.scale_
        loss = tau**2 * kernel.loss(np.square((y - model.predict(X)) / tau)).sum()
        loss += 9.0 * np.abs(model.coef_).sum()
        loss += 0.5 * np.square(model.coef_).sum()
        assert lower[-1] == pytest.approx(loss, rel=1e-6)

    @pytest.mark.parametrize("p", [8, 80])
    def test_every_step_decreases_the_bound_as_told(self, rng, p):
        X, _, y = sample(rng, 40, p)
        weight = rng.uniform(size=40)
        rows = Rows.of(X)
        scaling = Scaling.of(rows, y, np.ones(40), 1.0, True, "")
        model = scaling.model(rows, y, 0.5, 3.0)
        point = model.at(rng.normal(size=p + 1))
        theta, decrease = minimize_bound(model, point, weight)

        def bound(at):
            return 0.5 * weight @ np.square(at.residual[:, 0]) + at.penalty

        found = model.at(theta)
        assert bound(point) - bound(found) == pytest.approx(decrease, rel=1e-9)
        # It is the minimiser: a step from there on gains nothing.
        assert minimize_bound(model, found, weight)[1] <= 1e-8 * bound(found)

    @pytest.mark.parametrize("p", [30, 300])
    def test_zeros_are_exact(self, rng, p):
        """Whatever the coefficients were: 0.1 + (0 - 0.1) may be rounded."""
        X, _, y = sample(rng, 60, p)
        X *= rng.uniform(0.1, 10.0, size=p)
        rows = Rows.of(X)
        model = Scaling.of(rows, y, np.ones(60), 1.0, True, "").model(rows, y, 0.5, 9.0)
        theta, _ = minimize_bound(model, model.at(rng.normal(size=p + 1)), np.ones(60))
        sizes = np.abs(model.frame.unpack(theta)[0])
        assert 0 < np.count_nonzero(sizes) < 0.8 * p
        assert sizes[sizes > 0.0].min() > 1e-9


class TestManyColumns:
    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize("shift", [0.0, 8.0])
    def test_outliers(self, seed, shift):
        X, y, coef, bad = sparse_problem(seed)
        X[np.ix_(bad, range(20, 25))] += shift
        model = regressor(alpha=12.0, l1_ratio=1.0).fit(X, y)
        assert not model.inlier_mask_[bad].any()
        assert model.inlier_mask_[~bad].mean() > 0.9
        oracle = ElasticNet(alpha=12.0 / 90, l1_ratio=1.0).fit(X[~bad], y[~bad])
        error, best = (np.linalg.norm(m.coef_ - coef) for m in (model, oracle))
        assert error < 2.0 * best
        assert set(np.flatnonzero(coef)) <= set(np.flatnonzero(model.coef_))

    def test_clean(self):
        X, y, coef, _ = sparse_problem(3, share=0.0)
        model = regressor(alpha=12.0, l1_ratio=1.0).fit(X, y)
        oracle = ElasticNet(alpha=0.12, l1_ratio=1.0).fit(X, y)
        error, best = (np.linalg.norm(m.coef_ - coef) for m in (model, oracle))
        assert error < 1.3 * best
        assert model.inlier_mask_.mean() > 0.95

    def test_sparse_rows_and_chunks(self):
        X, y, *_ = sparse_problem(0)
        options = {"alpha": 12.0, "l1_ratio": 1.0, "fit_intercept": False}
        plain = regressor(**options).fit(X, y)
        for other, data in (
            (regressor(**options), scipy.sparse.csr_array(X)),
            (regressor(chunk_size=30, **options), X),
        ):
            other.fit(data, y)
            np.testing.assert_allclose(other.coef_, plain.coef_, atol=1e-5)

    def test_several_outputs(self):
        X, y, *_ = sparse_problem(0)
        model = regressor(alpha=12.0, l1_ratio=1.0).fit(X, np.column_stack([y, -3 * y]))
        assert model.coef_.shape == (2, 200)
        assert 0 < np.count_nonzero(model.coef_) < 100


def test_weights_are_copies(rng):
    X, _, y = sample(rng, 80, 6)
    y[:6] += 60.0
    copies = rng.integers(0, 4, size=80)
    options = {"alpha": 15.0, "l1_ratio": 0.7, "scale": 1.0, "tol": 1e-10}
    one = regressor(**options).fit(X, y, sample_weight=copies)
    many = regressor(**options)
    many.fit(np.repeat(X, copies, axis=0), np.repeat(y, copies))
    np.testing.assert_allclose(one.coef_, many.coef_, atol=1e-6)


def test_no_l1_is_ridge(rng):
    X, _, y = sample(rng, 80, 6)
    ours = regressor(kernel="quadratic", alpha=5.0, l1_ratio=0.0).fit(X, y)
    np.testing.assert_allclose(ours.coef_, Ridge(5.0).fit(X, y).coef_, rtol=1e-8)


def test_what_is_not_told(rng):
    X, _, y = sample(rng, 80, 6)
    model = regressor(alpha=5.0, l1_ratio=0.5).fit(X, y)
    assert model.covariance_ is None
    for ask in (model.conf_int, lambda: model.predict_interval(X)):
        with pytest.raises(ValueError, match="not defined with an L1 penalty"):
            ask()
    assert "L1 penalty" in str(model.summary())
    with pytest.raises(ValueError, match="'l1_ratio' parameter"):
        regressor(l1_ratio=1.5).fit(X, y)


@pytest.mark.parametrize("l1_ratio", [1.0, 0.5])
@pytest.mark.parametrize("alpha", [1e5, 1e9])
def test_large_penalties_leave_outliers_out(rng, alpha, l1_ratio):
    """No coefficient is left, and the intercept is that of the clean rows."""
    X, _, y = sample(rng, 200, 20)
    clean = y[40:]
    y[:40] = 9999.0
    model = regressor(alpha=alpha, l1_ratio=l1_ratio).fit(X, y)
    np.testing.assert_allclose(model.coef_, 0.0, atol=0.02)
    assert abs(model.intercept_ - clean.mean()) < 0.5 * clean.std()
    assert model.scale_ < 5.0 * clean.std()
    assert not model.inlier_mask_[:40].any()
