"""Scores for data with outliers."""

import pickle

import numpy as np
import pytest
from sklearn import config_context
from sklearn.datasets import make_regression
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_mm import HalfQuadraticRobustRegressor, RobustRegressor
from sklearn_mm.kernels import KERNELS, get_kernel
from sklearn_mm.metrics import bounded_loss, robust_r2_score, robust_scorer

BOUNDED = ["smooth_truncated_quadratic", "geman_mcclure", "welsch", "tukey"]
UNBOUNDED = ["cauchy", "huber", "quadratic"]


@pytest.fixture
def pair(rng):
    pred = rng.normal(size=(200, 2))
    return pred + [0.5, 5.0] * rng.normal(size=(200, 2)), pred


class TestBoundedLoss:
    @pytest.mark.parametrize("kernel", BOUNDED)
    def test_is_the_mean_of_the_kernel(self, pair, kernel):
        true, pred = (y[:, 0] for y in pair)
        tau = 0.5 * get_kernel(kernel).tuning_constant()
        expected = get_kernel(kernel).loss(((true - pred) / tau) ** 2).mean()
        expected /= get_kernel(kernel).loss(np.inf)
        assert bounded_loss(true, pred, scale=0.5, kernel=kernel) == pytest.approx(
            expected
        )

    @pytest.mark.parametrize("kernel", BOUNDED)
    def test_is_between_zero_and_one(self, pair, kernel):
        true, pred = pair
        for factor in (1e-200, 1.0, 1e200):
            loss = bounded_loss(factor * true, pred, scale=0.5, kernel=kernel)
            assert 0.0 <= loss <= 1.0
        assert bounded_loss(true, true, scale=0.5, kernel=kernel) == 0.0
        assert bounded_loss(true, true + 1e9, scale=0.5, kernel=kernel) > 1 - 1e-6

    def test_weights_are_copies(self, pair, rng):
        true, pred = pair
        weight = rng.integers(0, 3, size=200)
        copies = (np.repeat(y, weight, axis=0) for y in pair)
        found = bounded_loss(true, pred, scale=[0.5, 5.0], sample_weight=weight)
        assert found == pytest.approx(bounded_loss(*copies, scale=[0.5, 5.0]))

    def test_outputs_in_unlike_units(self, pair):
        true, pred = pair
        found = bounded_loss(true, pred, scale=[0.5, 5.0])
        units = np.array([0.5, 5.0])
        assert found == pytest.approx(bounded_loss(true / units, pred / units, scale=1))
        assert found != pytest.approx(bounded_loss(true, pred, scale=0.5))

    def test_bad_input(self, pair):
        true, pred = pair
        with pytest.raises(ValueError, match="scale must be a number or a vector"):
            bounded_loss(true, pred, scale=[[1.0]])
        for scale in (0.0, -1.0, np.nan, np.inf):
            with pytest.raises(ValueError, match="scale must be positive"):
                bounded_loss(true, pred, scale=scale)
        with pytest.raises(ValueError, match="scale has 3 values for 2 outputs"):
            bounded_loss(true, pred, scale=[1.0, 2.0, 3.0])
        for tuning in (0.0, -1.0, np.nan, np.inf, "wide"):
            with pytest.raises(ValueError, match="tuning must be positive and finite"):
                bounded_loss(true, pred, scale=1.0, tuning=tuning)
            with pytest.raises(ValueError, match="tuning must be positive and finite"):
                robust_scorer(1.0, tuning=tuning)
        with pytest.raises(ValueError, match="different number of output"):
            bounded_loss(true, pred[:, 0], scale=1.0)
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            bounded_loss(true, pred[:5], scale=1.0)
        with pytest.raises(ValueError, match="y_pred contains NaN"):
            bounded_loss(true, np.nan * pred, scale=1.0)
        for kernel in UNBOUNDED:
            with pytest.raises(ValueError, match="kernel must be bounded"):
                bounded_loss(true, pred, scale=1.0, kernel=kernel)


class TestRobustR2:
    def test_quadratic_kernel_is_r2(self, pair, rng):
        weight = rng.uniform(size=200)
        for multioutput in ("raw_values", "uniform_average"):
            options = {"sample_weight": weight, "multioutput": multioutput}
            np.testing.assert_allclose(
                robust_r2_score(*pair, kernel="quadratic", **options),
                r2_score(*pair, **options),
            )

    @pytest.mark.parametrize("kernel", sorted(KERNELS))
    @pytest.mark.parametrize("share", [0.3, 0.8, 0.99])
    def test_consistent_under_gaussian_noise(self, rng, kernel, share):
        pred = np.sqrt(share) * rng.normal(size=200_000)
        true = pred + np.sqrt(1 - share) * rng.normal(size=200_000)
        scale = np.sqrt(1 - share)
        for given in (scale, None):
            found = robust_r2_score(true, pred, kernel=kernel, scale=given)
            assert found == pytest.approx(share, abs=0.01)

    def test_outliers(self, rng):
        pred = rng.normal(size=20_000)
        true = pred + 0.5 * rng.normal(size=20_000)
        true[:4000] += 1000.0
        assert robust_r2_score(true, pred, scale=0.5) == pytest.approx(0.8, abs=0.01)

    def test_limits(self, rng):
        y = rng.normal(size=50)
        assert robust_r2_score(y, y) == 1.0
        assert robust_r2_score(y, y, scale=0.1) == 1.0
        assert np.isnan(robust_r2_score(y, y + 1e3, scale=0.1))
        with pytest.raises(ValueError, match="multioutput must be one of"):
            robust_r2_score(y, y, multioutput="variance")

    @pytest.mark.parametrize("kernel", ["quadratic", "tukey"])
    def test_constant_targets(self, kernel):
        for pred in ([2.0, 2.0, 2.0], [1.0, 2.0, 2.5]):
            found = robust_r2_score([2.0] * 3, pred, kernel=kernel, scale=1.0)
            assert found == r2_score([2.0] * 3, pred)

    def test_most_predictions_are_exact(self, rng):
        """A scale of zero: all others are outliers, however small or large."""
        y = rng.normal(size=50)
        for error in (1e-9, 1.0, 1e60):
            pred = y.copy()
            pred[:10] += error
            assert robust_r2_score(y, pred) == 1.0


class TestScorer:
    def test_picks_the_model_that_predicts_inliers(self, rng):
        X, y = make_regression(150, 40, noise=1.0, random_state=0)
        wrong = rng.uniform(size=150) < 0.2
        y[wrong] = rng.uniform(-1e5, 1e5, size=wrong.sum())
        model = HalfQuadraticRobustRegressor(alpha=1.0, random_state=0)
        scoring = robust_scorer(model.fit(X, y))
        search = GridSearchCV(model, {"alpha": [1.0, 1e6]}, scoring=scoring, cv=3)
        assert search.fit(X, y).best_params_ == {"alpha": 1.0}

    def test_value(self, pair):
        X, y = pair[1], pair[0][:, 0]
        model = LinearRegression().fit(X, y)
        weight = np.arange(200.0)
        for keywords in ({}, {"sample_weight": weight}):
            expected = -bounded_loss(y, model.predict(X), scale=0.7, **keywords)
            assert robust_scorer(0.7)(model, X, y, **keywords) == expected

    def test_references(self, data):
        X, y = data
        model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
        pipeline = make_pipeline(StandardScaler(), clone_of(model)).fit(X, y)
        # The outliers come first: they would be most of an unshuffled fold.
        folds = KFold(2, shuffle=True, random_state=0)
        search = GridSearchCV(clone_of(model), {"alpha": [0.0]}, cv=folds).fit(X, y)
        meta = RobustRegressor(Ridge(), random_state=0).fit(X, y)
        for reference in (model, pipeline, search):
            scale = robust_scorer(reference)._kwargs["scale"]
            assert scale == pytest.approx(0.1, rel=0.3)
        assert robust_scorer(meta)._kwargs["scale"] == meta.scale_
        outputs = RobustRegressor(Ridge(), random_state=0).fit(X, np.c_[y, 10 * y])
        score = robust_scorer(outputs)(outputs, X, np.c_[y, 10 * y])
        assert -0.5 < score < -0.25  # 30 % outliers

    def test_bad_references(self, data):
        with pytest.raises(NotFittedError):
            robust_scorer(HalfQuadraticRobustRegressor())
        with pytest.raises(
            ValueError, match=r"Ridge is not a regressor with .* scale_"
        ):
            robust_scorer(Ridge().fit(*data))
        for wrong in ("large", [[1.0], [1.0, 2.0]]):
            with pytest.raises(ValueError, match="scale must be a positive number"):
                robust_scorer(wrong)
        with pytest.raises(ValueError, match="scale must be positive"):
            robust_scorer(-1.0)
        with pytest.raises(ValueError, match="kernel must be bounded"):
            robust_scorer(1.0, kernel="huber")

    def test_routing_and_pickle(self, data):
        X, y = data
        scorer = pickle.loads(pickle.dumps(robust_scorer(0.1)))
        weight = np.ones(300)
        with config_context(enable_metadata_routing=True):
            result = cross_validate(
                Ridge().set_fit_request(sample_weight=True),
                X,
                y,
                scoring=scorer.set_score_request(sample_weight=True),
                params={"sample_weight": weight},
            )
        assert (result["test_score"] < 0).all()


def clone_of(model):
    return type(model)(**model.get_params())


def test_width_of_a_scorer_is_checked_when_it_is_made():
    with pytest.raises(ValueError, match="tuning must be positive"):
        robust_scorer(1.0, tuning=-3.0)
