"""Starts that the user gives: arrays, estimators, a previous fit."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression, Ridge

from sklearn_mm import HalfQuadraticRobustRegressor
from sklearn_mm._robust.init import given_start
from sklearn_mm._robust.scaling import Scaling
from sklearn_mm._rows.sources import lazy_rows
from sklearn_mm._rows.statistics import unit_weights
from sklearn_mm._rows.table import Rows


class Data:
    """A regression, and its start in the units of the user."""

    def __init__(self, rng, d=None, fit_intercept=True, alpha=0.0, X=None):
        self.X = rng.normal(size=(80, 3)) * [1.0, 20.0, 0.1] + 2.0 if X is None else X
        size = 80 if d is None else (80, d)
        self.y = 5.0 * rng.normal(size=size) + 40.0
        self.sample_weight = 3.0 * rng.random(80)
        self.fit_intercept, self.alpha = fit_intercept, alpha

    def start(self, init, previous=None, rows=None):
        weight, unit = unit_weights(self.sample_weight, self.X)
        rows = Rows.of(self.X) if rows is None else rows
        scaling = Scaling.of(rows, self.y, weight, unit, self.fit_intercept, "Model")
        model = scaling.model(rows, self.y, self.alpha)
        point = given_start(init, previous, model, scaling, self.y, weight)
        if point is None:
            return None
        expected = model.at(point.theta)
        assert_allclose(point.residual, expected.residual, atol=1e-9)
        assert point.penalty == expected.penalty
        plane = scaling.plane(point.theta)
        return plane["coef_"], plane["intercept_"]


@pytest.fixture(params=[None, 2], ids=["flat", "two outputs"])
def data(request, rng):
    return Data(rng, request.param)


def test_auto_is_left_to_the_search(data):
    assert data.start("auto") is None


@pytest.mark.parametrize("alpha", [0.0, 5.0])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_ols(rng, fit_intercept, alpha):
    data = Data(rng, 2, fit_intercept, alpha)
    coef, intercept = data.start("ols")
    reference = Ridge(alpha=alpha or 1e-12, fit_intercept=fit_intercept)
    reference.fit(data.X, data.y, data.sample_weight)
    assert_allclose(coef, reference.coef_, rtol=1e-6)
    assert_allclose(intercept, reference.intercept_, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("init", ["auto", "ols", [0.0, 0.0, 0.0]])
def test_a_previous_fit_comes_first(data, init):
    coef = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
    intercept = np.array([7.0, -8.0])
    if data.y.ndim == 1:
        coef, intercept = coef[0], intercept[0]
    found = data.start(init, (coef, intercept))
    assert_allclose(found[0], coef)
    assert_allclose(found[1], intercept)
    # In single precision as well.
    found = data.start(init, (coef.astype("f4"), intercept.astype("f4")))
    assert found[0].dtype == np.float64
    assert_allclose(found[0], coef)


def test_a_previous_fit_of_another_shape(rng):
    data = Data(rng)
    for coef in (np.ones(2), np.ones((2, 3))):
        with pytest.raises(ValueError, match="requires data of the same shape"):
            data.start("auto", (coef, np.zeros(len(np.atleast_2d(coef)))))


class TestArrays:
    def test_with_an_intercept(self, data):
        init = np.array([[1.0, -2.0, 3.0, 4.0], [5.0, 6.0, 7.0, -8.0]])
        if data.y.ndim == 1:
            init = init[0]
        for given in (init, init.tolist(), init.astype("f4")):
            coef, intercept = data.start(given)
            assert_allclose(coef, init[..., :3])
            assert_allclose(intercept, init[..., 3])

    def test_the_best_intercept_is_a_median(self, data):
        init = np.array([[1.0, -2.0, 3.0], [5.0, 6.0, 7.0]])
        if data.y.ndim == 1:
            init = init[0]
        coef, intercept = data.start(init)
        assert_allclose(coef, init, rtol=1e-9)
        offset = (data.y - data.X @ init.T - intercept).reshape(80, -1)
        # Half of the weight on either side.
        above = data.sample_weight @ (offset > 1e-6)
        below = data.sample_weight @ (offset < -1e-6)
        half = data.sample_weight.sum() / 2
        assert np.all((above <= half) & (below <= half))

    def test_without_an_intercept(self, rng):
        data = Data(rng, fit_intercept=False)
        coef, intercept = data.start([1.0, -2.0, 3.0])
        assert_allclose(coef, [1.0, -2.0, 3.0])
        assert intercept == 0.0

    @pytest.mark.parametrize(
        "init", [[1.0], [1.0] * 5, [[1.0] * 3] * 2, np.ones((1, 1, 3))]
    )
    def test_of_the_wrong_shape(self, rng, init):
        with pytest.raises(ValueError, match=r"init must have shape|dim <= 2"):
            Data(rng).start(init)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_of_no_numbers(self, rng, value):
        with pytest.raises(ValueError, match="init contains"):
            Data(rng).start([1.0, value, 3.0])

    def test_so_far_away_that_squares_overflow(self, rng):
        with pytest.raises(ValueError, match=r"^init is so far .* squares overflow"):
            Data(rng).start([1e200, 0.0, 0.0])
        with pytest.raises(ValueError, match=r"^The model of warm_start=True is so"):
            Data(rng).start("auto", (np.array([1e200, 0.0, 0.0]), np.array(0.0)))


class TestEstimators:
    def test_linear_ones_are_met(self, data):
        coef, intercept = data.start(Ridge(alpha=30.0))
        reference = Ridge(alpha=30.0).fit(data.X, data.y, data.sample_weight)
        assert_allclose(coef, reference.coef_, rtol=1e-7)
        assert_allclose(intercept, reference.intercept_, rtol=1e-7)

    def test_others_are_approached(self, rng):
        data = Data(rng)

        class Squares(RegressorMixin, BaseEstimator):
            def fit(self, X, y):
                return self

            def predict(self, X):
                return np.square(X).sum(axis=1)

        coef, intercept = data.start(Squares())
        reference = LinearRegression().fit(
            data.X, np.square(data.X).sum(axis=1), data.sample_weight
        )
        assert_allclose(coef, reference.coef_, rtol=1e-7)
        assert_allclose(intercept, reference.intercept_, rtol=1e-7)

    def test_they_see_the_data_and_weights_of_the_user(self, rng):
        data, seen = Data(rng), {}

        class Spy(DummyRegressor):
            def fit(self, X, y, sample_weight=None):
                seen.update(X=X, y=y, sample_weight=sample_weight, owner=self)
                return super().fit(X, y, sample_weight)

        given = Spy()
        data.start(given)
        assert seen["X"] is data.X and seen["y"] is data.y
        assert_allclose(seen["sample_weight"], data.sample_weight)
        assert seen["owner"] is not given  # a clone

    def test_they_see_the_array_that_is_read_on_demand(self, rng):
        data, seen = Data(rng), []

        class File:
            shape, dtype = data.X.shape, data.X.dtype

            def __getitem__(self, rows):
                return data.X[rows]

        class Spy(RegressorMixin, BaseEstimator):
            def fit(self, X, y):
                seen.append(X)
                return self

            def predict(self, X):
                return X[:][:, 0]

        file = File()
        coef, intercept = data.start(Spy(), rows=Rows.of(lazy_rows(file), 20))
        assert seen == [file]
        assert_allclose(coef, [1.0, 0.0, 0.0], atol=1e-9)
        assert_allclose(intercept, 0.0, atol=1e-9)

    def test_their_penalty_is_none_of_ours(self, rng):
        """The plane closest to the predictions, whatever alpha."""
        data = Data(rng, alpha=1e6)
        coef, _ = data.start(LinearRegression())
        reference = LinearRegression().fit(data.X, data.y, data.sample_weight)
        assert_allclose(coef, reference.coef_, rtol=1e-7)


def test_the_targets_are_left_as_they_are(rng):
    data = Data(rng)
    before = data.y.copy()
    for init in ("ols", [1.0, 2.0, 3.0], LinearRegression()):
        data.start(init)
    assert_array_equal(data.y, before)


@pytest.mark.parametrize("n", [200, 3000])
@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_scale_about_a_start_that_outliers_have_moved(rng, n, noise):
    # Inliers and outliers lie on either side of the plane of least squares.
    X = rng.normal(size=(n, 3))
    y = X @ [1.0, 2.0, 3.0] + noise * rng.normal(size=n)
    y[: n // 4] += 9.0
    model = HalfQuadraticRobustRegressor(init="ols", random_state=0).fit(X, y)
    assert_allclose(model.coef_, [1.0, 2.0, 3.0], atol=0.3 * noise)
    assert_allclose(model.scale_, noise, rtol=0.15)


@pytest.mark.parametrize("far", [0.0, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("n", [100, 3000])
def test_a_start_far_from_the_data_does_no_harm(rng, n, far):
    X = rng.normal(size=(n, 6))
    coef = np.array([1.0, -2.0, 0.5, 1.5, -1.0, 2.0])
    y = X @ coef + 0.1 * rng.normal(size=n)
    y[: n // 5] += rng.uniform(1.0, 20.0, size=n // 5)
    model = HalfQuadraticRobustRegressor(init=np.full(6, far)).fit(X, y)
    assert_allclose(model.coef_, coef, atol=0.07)
    assert_allclose(model.scale_, 0.1, rtol=0.25)


def test_a_good_start_is_kept_among_many_outliers(rng):
    # Most rows are elsewhere, and least squares is no start.
    X = rng.normal(size=(300, 2))
    y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=300)
    y[:180] = 30.0 + 3.0 * rng.normal(size=180)
    params = {"init": [1.1, 1.9, 0.0], "scale": 0.1}
    model = HalfQuadraticRobustRegressor(**params).fit(X, y)
    assert_allclose(model.coef_, [1.0, 2.0], atol=0.05)
