"""RobustRegressor: any regressor with sample weights, made robust."""

import pickle

import joblib
import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.datasets import make_friedman1
from sklearn.ensemble import (
    BaggingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    StackingRegressor,
    VotingRegressor,
)
from sklearn.exceptions import (
    ConvergenceWarning,
    DataConversionWarning,
    NotFittedError,
)
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, TimeSeriesSplit
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, SplineTransformer, StandardScaler
from sklearn.svm import SVR
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_param_validation,
    parametrize_with_checks,
)

from sklearn_mm import ConvergenceDisplay, RobustRegressor
from sklearn_mm._robust.learner.binning import binned_once
from sklearn_mm._robust.learner.out_of_fold import OutOfFold, halves
from sklearn_mm._robust.learner.rounds import Reweighting, RobustLoss
from sklearn_mm._robust.learner.scale import by_prediction, core_scale, shorth
from sklearn_mm._robust.learner.start import Targets, estimate_noise, robust_start
from sklearn_mm._robust.learner.weighting import fit_weighted, weight_keyword
from sklearn_mm.criteria import Fixed, Graduated, RelaxedGeneralized
from sklearn_mm.kernels import KERNELS, get_kernel

COPIES = "copies of a row fall into different folds"
EQUIVALENCE = "check_sample_weight_equivalence_on_{}_data"
SMALL_BOOSTING = HistGradientBoostingRegressor(max_iter=20, min_samples_leaf=5)
CHECKED = [
    RobustRegressor(Ridge()),
    RobustRegressor(make_pipeline(StandardScaler(), Ridge()), criterion="fixed"),
    RobustRegressor(HistGradientBoostingRegressor(max_iter=15), max_iter=1, cv=2),
]


def failing(estimator):
    # With Ridge the dense data of that check are found to be clean, whatever the folds.
    on = "sparse" if isinstance(estimator.estimator, Ridge) else "dense"
    return {EQUIVALENCE.format(on): COPIES}


@parametrize_with_checks(CHECKED, expected_failed_checks=failing)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_checks_that_check_estimator_omits():
    estimator = RobustRegressor(Ridge())
    check_param_validation("RobustRegressor", estimator)
    check_dataframe_column_names_consistency("RobustRegressor", estimator)


def wavy(rng, n=600):
    X = rng.uniform(-3, 3, size=(n, 2))
    truth = np.sin(2 * X[:, 0]) + X[:, 1] / 2
    return X, truth, truth + 0.1 * rng.normal(size=n)


def spoil(rng, y, share, one_sided=True):
    y, bad = y.copy(), rng.permutation(len(y)) < share * len(y)
    shift = rng.uniform(3, 10, size=bad.sum())
    y[bad] += shift if one_sided else shift * rng.choice([-1, 1], size=bad.sum())
    return y, bad


def rmse(model, X, truth):
    return np.sqrt(np.mean((model.predict(X) - truth) ** 2))


def spline():
    return make_pipeline(SplineTransformer(8, extrapolation="linear"), Ridge(0.1))


LEARNERS = {
    "forest": RandomForestRegressor(10, min_samples_leaf=3, random_state=0),
    "spline": spline(),
    "kernel ridge": KernelRidge(alpha=0.1, kernel="rbf", gamma=0.5),
}


class TestRobustness:
    @pytest.mark.parametrize("name", LEARNERS)
    @pytest.mark.parametrize("one_sided", [True, False])
    @pytest.mark.parametrize("share", [0.1, 0.4])
    def test_close_to_the_fit_that_knows_the_inliers(self, rng, name, one_sided, share):
        self.check(rng, LEARNERS[name], share, one_sided)

    def test_boosting(self, rng):
        # With five rows per leaf, 40 % of outliers on one side are too many.
        self.check(rng, SMALL_BOOSTING, 0.3, True)
        larger = clone(SMALL_BOOSTING).set_params(min_samples_leaf=20)
        self.check(rng, larger, 0.4, True)

    def check(self, rng, learner, share, one_sided):
        X, truth, y = wavy(rng)
        y, bad = spoil(rng, y, share, one_sided)
        oracle = clone(learner).fit(X[~bad], y[~bad])
        model = RobustRegressor(learner, random_state=0).fit(X, y)
        assert rmse(model, X, truth) < 1.5 * rmse(oracle, X, truth)
        assert not model.inlier_mask_[bad].any()
        assert model.inlier_mask_[~bad].mean() > 0.9

    @pytest.mark.parametrize("name", LEARNERS)
    def test_clean_data_are_left_alone(self, rng, name):
        X, truth, y = wavy(rng)
        plain = clone(LEARNERS[name]).fit(X, y)
        model = RobustRegressor(LEARNERS[name], random_state=0).fit(X, y)
        assert rmse(model, X, truth) <= 1.02 * rmse(plain, X, truth)

    def test_rows_that_are_hard_to_predict_are_no_outliers(self, rng):
        # The sketch that this class began with made errors grow here, round by round.
        X = rng.uniform(size=(800, 4))
        truth = np.exp(2 * X[:, 0] + 1.5 * X[:, 1]) * (0.3 + X[:, 2])
        y = truth + 0.2 * rng.normal(size=800)
        learner = KernelRidge(alpha=0.1, kernel="rbf", gamma=0.5)
        plain = clone(learner).fit(X, y)
        model = RobustRegressor(learner, random_state=0).fit(X, y)
        assert rmse(model, X, truth) <= 1.05 * rmse(plain, X, truth)

    def test_plain_fit_is_the_estimator_itself(self, rng):
        X, _, y = wavy(rng)
        model = RobustRegressor(spline(), random_state=0).fit(X, y)
        assert model.best_iter_ == 0
        np.testing.assert_array_equal(model.weights_, 1.0)
        np.testing.assert_array_equal(model.predict(X), spline().fit(X, y).predict(X))

    def test_contaminated_region(self, rng):
        ratios = []
        for _ in range(3):  # one of them may be missed
            X, truth, y = wavy(rng, 900)
            bad = (X[:, 1] < 0) & (rng.uniform(size=900) < 0.4)
            y[bad] += rng.uniform(3, 10, size=bad.sum())
            learner = LEARNERS["forest"]
            oracle = clone(learner).fit(X[~bad], y[~bad])
            model = RobustRegressor(learner, random_state=0).fit(X, y)
            ratios.append(rmse(model, X, truth) / rmse(oracle, X, truth))
        assert np.median(ratios) < 1.5

    def test_several_outputs_in_unlike_units(self, rng):
        X, truth, y = wavy(rng)
        other, bad = spoil(rng, 1000 * y, 0.0)[0], rng.uniform(size=600) < 0.3
        y[bad] += rng.uniform(3, 10, size=bad.sum())
        Y = np.column_stack([y, other])
        model = RobustRegressor(spline(), random_state=0).fit(X, Y)
        assert model.predict(X).shape == Y.shape
        assert model.scale_.shape == (2,)
        assert not model.inlier_mask_[bad].any()
        assert np.sqrt(np.mean((model.predict(X)[:, 0] - truth) ** 2)) < 0.1

    @pytest.mark.parametrize("kernel", sorted(set(KERNELS) - {"quadratic", "huber"}))
    def test_kernels(self, rng, kernel):
        X, truth, y = wavy(rng)
        y, _ = spoil(rng, y, 0.3)
        model = RobustRegressor(spline(), kernel=kernel, random_state=0).fit(X, y)
        assert rmse(model, X, truth) < 0.1

    def test_quadratic_kernel_is_the_plain_fit(self, rng):
        X, _, y = wavy(rng)
        y, _ = spoil(rng, y, 0.3)
        model = RobustRegressor(spline(), kernel="quadratic", random_state=0).fit(X, y)
        np.testing.assert_array_equal(model.predict(X), spline().fit(X, y).predict(X))

    @pytest.mark.long
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.3])
    def test_default_estimator(self, seed, share):
        rng = np.random.default_rng(seed)
        X, y = make_friedman1(1000, noise=1.0, random_state=seed)
        truth = make_friedman1(1000, noise=0.0, random_state=seed)[1]
        y, bad = spoil(rng, y, 0.0)[0], rng.uniform(size=1000) < share
        y[bad] += rng.uniform(15, 50, size=bad.sum())
        plain = HistGradientBoostingRegressor(random_state=0).fit(X[~bad], y[~bad])
        model = RobustRegressor(random_state=seed).fit(X, y)
        limit = 1.5 if share else 1.05
        assert rmse(model, X, truth) < limit * rmse(plain, X, truth)


class TestHistory:
    def fit(self, rng, share=0.3, **params):
        X, _, y = wavy(rng)
        y, _ = spoil(rng, y, share)
        return RobustRegressor(spline(), random_state=0, **params).fit(X, y), X, y

    @pytest.mark.parametrize(
        "criterion",
        ["regemm", "sudemm", "fixed", Graduated(2, 1), RelaxedGeneralized(0.3, 0.6)],
    )
    def test_bounds_are_those_of_the_out_of_fold_residuals(self, rng, criterion):
        model, X, y = self.fit(rng, criterion=criterion, max_iter=3)
        history = model.history_
        assert len(history.loss) == model.n_iter_ <= 3
        assert (history.lower_bound <= history.upper_bound * (1 + 1e-12)).all()
        # Weights of one round lead to the residuals of the next.
        np.testing.assert_allclose(history.lower_bound[1:], history.loss[:-1])
        assert history.upper_bound[0] > 0
        # The kept round, made again: its weights, its folds, its loss.
        best = model.best_iter_ - 1
        assert history.loss[best] == history.loss.min() < history.plain_loss
        seeds = np.random.RandomState(0)
        splits = KFold(5, shuffle=True, random_state=seeds).split(X)
        learner = OutOfFold(spline(), X, list(splits))
        residual = (y - learner.predict(y, model.weights_)) / model.scale_
        inlier = np.abs(residual) <= 3.0
        # The local scale can only make rows inliers.
        assert (model.inlier_mask_ >= inlier).all()

    def test_loss_with_a_given_scale(self, rng):
        model, X, y = self.fit(rng, scale=0.1, tuning=4.0)
        kernel = get_kernel(model.kernel)
        seeds = np.random.RandomState(0)
        splits = KFold(5, shuffle=True, random_state=seeds).split(X)
        learner = OutOfFold(spline(), X, list(splits))
        for weight, loss in (
            (None, model.history_.plain_loss),
            (model.weights_, model.history_.loss[model.best_iter_ - 1]),
        ):
            residual = y - learner.predict(y, weight)
            expected = 16.0 * kernel.loss(np.square(residual / 0.4)).sum()
            assert loss == pytest.approx(expected, rel=1e-9)
        assert model.scale_ == 0.1

    def test_display(self, rng, pyplot):
        model, _, _ = self.fit(rng)
        display = ConvergenceDisplay.from_estimator(model)
        assert len(display.lines_) == 2

    def test_effort_is_not_raised_where_a_refit_fails(self):
        loss = RobustLoss(get_kernel("welsch"), np.ones(50))
        z = np.linspace(0.0, 9.0, 50)
        run = Reweighting(loss, RelaxedGeneralized(), z, 0.5)
        efforts = []
        for _ in range(3):  # residuals that grow
            u, at = run.weights(), z
            z = 1.1 * z
            run.refitted(z, 0.1, 1e-6)
            efforts.append(run.record()["effort"][-1])
            np.testing.assert_array_equal(u, loss.infer(at, None, efforts[-1]))
        assert efforts == [efforts[0]] * 3
        assert not run.record()["accepted"].any()

    def test_effort_grows_where_refits_help(self):
        loss = RobustLoss(get_kernel("welsch"), np.ones(50))
        z = np.linspace(0.0, 9.0, 50)
        run = Reweighting(loss, RelaxedGeneralized(), z, 0.5)
        for _ in range(4):
            run.weights()
            z = 0.98 * z
            run.refitted(z, 0.1, 1e-6)
        history = run.record()
        assert (np.diff(history["effort"]) > 0).all()
        # ReGeMM's guarantee, as long as refits lower the upper bound.
        assert (np.diff(history["upper_bound"]) < 0).all()

    def test_settles_when_weights_hardly_change(self):
        loss = RobustLoss(get_kernel("welsch"), np.ones(50))
        z = np.linspace(0.0, 9.0, 50)
        run = Reweighting(loss, Fixed(1.0), z, 0.5)
        u = run.weights()
        assert not run.settled(1.0)  # there is nothing to compare with
        run.refitted(0.9 * z, 0.1, 0.0)
        change = np.abs(run.weights() - u).mean()
        assert not run.settled(0.99 * change)
        assert run.settled(1.01 * change)

    def test_tolerance_saves_rounds(self, rng):
        X, _, y = wavy(rng)
        y, _ = spoil(rng, y, 0.3)
        rounds = [
            RobustRegressor(spline(), random_state=0, tol=tol).fit(X, y).n_iter_
            for tol in (0.0, 0.2, 1.0)
        ]
        assert rounds[0] == 4 >= rounds[1] >= rounds[2] == 1

    def test_stops_without_success(self):
        loss = RobustLoss(get_kernel("welsch"), np.ones(5))
        run = Reweighting(loss, RelaxedGeneralized(), np.ones(5), 0.5)
        outcomes = []
        for factor in (2.0, 3.0, 4.0):
            run.weights()
            outcomes.append(run.refitted(factor * np.ones(5), 1.0, 1e-6))
        assert outcomes == [False, False, True]


class Constant(RegressorMixin, BaseEstimator):
    """Predicts one value; `fit` does not return it."""

    def __init__(self, value=0.0, interrupted=False):
        self.value = value
        self.interrupted = interrupted

    def fit(self, X, y, sample_weight=None):
        if self.interrupted and sample_weight is not None:
            raise KeyboardInterrupt

    def predict(self, X):
        return np.full(len(X), self.value)


class TestPipelines:
    """Weights reach the last step, with metadata routing on and off."""

    ROUTES = {
        "alone": Ridge(),
        "pipeline": make_pipeline(StandardScaler(), Ridge()),
        "nested": make_pipeline(StandardScaler(), make_pipeline(Ridge())),
        "target": TransformedTargetRegressor(Ridge(), transformer=StandardScaler()),
        "target of pipeline": TransformedTargetRegressor(
            make_pipeline(StandardScaler(), Ridge())
        ),
        "bagging": BaggingRegressor(Ridge(), n_estimators=5, random_state=0),
        "voting": VotingRegressor(
            [("a", Ridge()), ("b", "drop"), ("c", LinearRegression())]
        ),
        "stacking": StackingRegressor([("a", Ridge()), ("c", SVR(kernel="linear"))]),
        "target of voting": TransformedTargetRegressor(
            VotingRegressor([("a", Ridge()), ("b", LinearRegression())])
        ),
    }

    @pytest.mark.parametrize("name", ROUTES)
    def test_same_with_routing_on_and_off(self, data, name):
        X, y = data
        truth = X @ [1.0, -2.0, 0.5, 3.0]
        predictions = []
        for routing in (False, True):
            with config_context(enable_metadata_routing=routing):
                model = RobustRegressor(self.ROUTES[name], random_state=0).fit(X, y)
                predictions.append(model.predict(X))
        np.testing.assert_allclose(*predictions, rtol=1e-12)
        # Without the weights the outliers would shift everything by six.
        assert np.abs(predictions[0] - truth).mean() < 0.5

    def test_requests_of_the_user_are_respected_and_kept(self, data):
        X, y = data
        with config_context(enable_metadata_routing=True):
            scaler = StandardScaler().set_fit_request(sample_weight=True)
            pipeline = make_pipeline(scaler, Ridge())
            model = RobustRegressor(pipeline, random_state=0).fit(X, y)
            requests = pipeline[-1].get_metadata_routing().fit.requests
            assert requests["sample_weight"] is None
        weighted = StandardScaler().fit(X, sample_weight=model.weights_)
        np.testing.assert_allclose(model.estimator_[0].mean_, weighted.mean_)

    def test_sample_weight_is_routed_to_it(self, data):
        X, y = data
        with config_context(enable_metadata_routing=True):
            inner = RobustRegressor(Ridge(), random_state=0)
            pipeline = make_pipeline(
                StandardScaler().set_fit_request(sample_weight=False),
                inner.set_fit_request(sample_weight=True),
            )
            weight = np.where(np.arange(300) < 90, 0.0, 2.0)
            pipeline.fit(X, y, sample_weight=weight)
        assert pipeline[-1].best_iter_ == 0  # nothing is left to be robust against

    def test_frames_with_strings(self, rng):
        pandas = pytest.importorskip("pandas")
        X, _, y = wavy(rng)
        y, bad = spoil(rng, y, 0.3)
        colour = rng.choice(["red", "blue"], size=600)
        y = y + 2.0 * (colour == "red")
        frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "colour": colour})
        columns = ColumnTransformer(
            [("number", SplineTransformer(), ["a", "b"])],
            remainder=OneHotEncoder(drop="first"),
        )
        pipeline = make_pipeline(columns, Ridge(0.1))
        model = RobustRegressor(pipeline, random_state=0).fit(frame, y)
        assert not model.inlier_mask_[bad].any()
        assert list(model.feature_names_in_) == ["a", "b", "colour"]

    def test_missing_values(self, rng):
        X, _, y = wavy(rng, 300)
        y, bad = spoil(rng, y, 0.2)
        X[::10, 1] = np.nan
        model = RobustRegressor(SMALL_BOOSTING, random_state=0).fit(X, y)
        assert not model.inlier_mask_[bad].any()


class TestParameters:
    def test_grid_search_over_the_estimator(self, rng):
        X, truth, y = wavy(rng, 300)
        y, _ = spoil(rng, y, 0.2)
        search = GridSearchCV(
            RobustRegressor(spline(), random_state=0),
            {"estimator__ridge__alpha": [0.1, 1e4]},
            scoring="neg_median_absolute_error",
            cv=3,
        ).fit(X, y)
        assert search.best_params_ == {"estimator__ridge__alpha": 0.1}
        assert rmse(search, X, truth) < 0.15

    @pytest.mark.parametrize(
        "estimator",
        [
            KNeighborsRegressor(),
            make_pipeline(StandardScaler(), KNeighborsRegressor()),
            TransformedTargetRegressor(KNeighborsRegressor()),
            GridSearchCV(KNeighborsRegressor(), {}),
            VotingRegressor([("a", Ridge()), ("b", KNeighborsRegressor())]),
            VotingRegressor([("a", make_pipeline(StandardScaler(), Ridge()))]),
            StackingRegressor([("a", Ridge())], KNeighborsRegressor()),
        ],
    )
    def test_without_sample_weight(self, data, estimator):
        assert weight_keyword(estimator) is None
        with pytest.raises(ValueError, match="does not support sample weights"):
            RobustRegressor(estimator).fit(*data)

    def test_searches_belong_outside(self, data):
        search = GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]})
        with pytest.raises(ValueError, match=r"outside: GridSearchCV\(RobustRegressor"):
            RobustRegressor(search).fit(*data)

    @pytest.mark.parametrize(
        ("estimator", "what"),
        [
            (LogisticRegression(), "LogisticRegression is a classifier"),
            (make_pipeline(StandardScaler(), LogisticRegression()), "a classifier"),
            (StandardScaler(), "StandardScaler is not one"),
            (make_pipeline(StandardScaler(), "passthrough"), "Pipeline is not one"),
        ],
    )
    def test_not_a_regressor(self, data, estimator, what):
        X, y = data
        with pytest.raises(ValueError, match=f"requires a regressor.* {what}"):
            RobustRegressor(estimator).fit(X, y > 0)

    def test_predictions_must_be_finite(self, data):
        with pytest.raises(ValueError, match="Constant predicted NaN or infinity"):
            RobustRegressor(Constant(value=np.nan)).fit(*data)

    def test_fit_need_not_return_the_estimator(self, data):
        model = RobustRegressor(Constant(value=1.0), random_state=0).fit(*data)
        np.testing.assert_array_equal(model.predict(data[0][:2]), [1.0, 1.0])

    def test_interrupt(self, data):
        X, y = data
        model = RobustRegressor(Ridge(), random_state=0).fit(X, y)
        before = model.predict(X)
        model.estimator = Constant(interrupted=True)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y)
        np.testing.assert_array_equal(model.predict(X), before)

    def test_default_is_boosting(self, data):
        model = RobustRegressor(max_iter=1, random_state=0).fit(*data)
        assert isinstance(model.estimator_, HistGradientBoostingRegressor)

    def test_cv_objects(self, data):
        X, y = data
        groups = np.arange(300) % 7
        splits = list(GroupKFold(3).split(X, y, groups))
        model = RobustRegressor(Ridge(), cv=splits).fit(X, y)
        assert model.inlier_mask_.sum() == 210
        for fit, predict in halves(splits):
            assert not set(groups[fit]) & set(groups[predict])
        with pytest.raises(ValueError, match="cv must be a partition"):
            RobustRegressor(Ridge(), cv=TimeSeriesSplit(3)).fit(X, y)
        with pytest.raises(ValueError, match="n_splits=5 greater than"):
            RobustRegressor(Ridge()).fit(X[:3], y[:3])

    def test_splits_as_masks(self, data):
        X, y = data
        indices = list(KFold(3).split(X))
        masks = [[np.isin(np.arange(300), rows) for rows in pair] for pair in indices]
        fits = [RobustRegressor(Ridge(), cv=cv).fit(X, y) for cv in (indices, masks)]
        np.testing.assert_array_equal(*(fit.weights_ for fit in fits))

    def test_residuals_must_be_out_of_fold(self, data):
        rows = np.arange(300)
        with pytest.raises(ValueError, match="at least two splits, got 1"):
            RobustRegressor(Ridge(), cv=[(rows, rows)]).fit(*data)
        splits = [(rows, rows[:150]), (rows, rows[150:])]
        with pytest.raises(ValueError, match="must be out of fold"):
            RobustRegressor(Ridge(), cv=splits).fit(*data)

    def test_state_is_kept_on_error(self, data):
        X, y = data
        model = RobustRegressor(Ridge(), random_state=0).fit(X, y)
        before = model.predict(X)
        with pytest.raises(ValueError, match="NaN"):
            model.fit(X, np.where(y > 1, np.nan, y))
        np.testing.assert_array_equal(model.predict(X), before)

    def test_zero_weight_is_no_row(self, data):
        X, y = data
        weight = np.where(np.arange(300) % 3 == 0, 0.0, 1.5)
        model = RobustRegressor(Ridge(), random_state=0).fit(X, y, weight)
        y = np.where(weight == 0.0, 1e6, y)
        other = RobustRegressor(Ridge(), random_state=0).fit(X, y, weight)
        # The huge targets are multiplied by zero; BLAS may add up in another order.
        np.testing.assert_allclose(model.predict(X), other.predict(X), rtol=1e-12)

    def test_seeds_make_it_reproducible(self, rng):
        X, _, y = wavy(rng, 200)
        forest = RandomForestRegressor(5)
        fits = [RobustRegressor(forest, random_state=1).fit(X, y) for _ in range(2)]
        np.testing.assert_array_equal(*(fit.predict(X) for fit in fits))
        assert forest.random_state is None

    def test_n_jobs(self, data):
        fits = [RobustRegressor(Ridge(), random_state=0, n_jobs=n) for n in (1, 2)]
        with joblib.parallel_config(backend="threading"):
            weights = [fit.fit(*data).weights_ for fit in fits]
        np.testing.assert_array_equal(*weights)

    def test_verbose(self, data, capsys):
        model = RobustRegressor(Ridge(), random_state=0, verbose=1).fit(*data)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 1 + model.n_iter_

    def test_constant_and_exact_targets(self, rng):
        X = rng.normal(size=(60, 2))
        for y in (np.full(60, 3.0), X[:, 0], np.zeros(60)):
            model = RobustRegressor(LinearRegression(), random_state=0).fit(X, y)
            np.testing.assert_allclose(model.predict(X), y, atol=1e-9)

    @pytest.mark.parametrize("outputs", [1, 2])
    def test_scale_of_a_penalised_fit(self, rng, outputs):
        X = rng.normal(size=(200, 3))
        noise = 0.1 * rng.normal(size=(200, outputs))
        y = (X @ [1.0, 2.0, 3.0])[:, None] + noise
        y = y[:, 0] if outputs == 1 else y
        model = RobustRegressor(Ridge(alpha=1.0), random_state=0).fit(X, y)
        # Small weights would make a large penalty, and large residuals.
        assert (np.abs(np.log(model.scale_ / 0.1)) < np.log(2.0)).all()

    def test_several_outputs(self, rng, data):
        X, y = data
        Y = np.column_stack([y, -2.0 * y])
        with pytest.raises(ValueError, match=r"2 outputs, but .* supports only one"):
            RobustRegressor().fit(X, Y)
        alone = RobustRegressor(Ridge(), random_state=0)
        together = clone(alone).fit(X, Y)
        np.testing.assert_array_equal(
            together.inlier_mask_, clone(alone).fit(X, y).inlier_mask_
        )
        each = MultiOutputRegressor(alone).fit(X, Y)
        inside = clone(alone).set_params(estimator=MultiOutputRegressor(Ridge()))
        inside.fit(X, Y)
        for model in (each, inside):
            np.testing.assert_allclose(model.predict(X), together.predict(X), rtol=1e-2)

    def test_targets_too_large(self, data):
        X, y = data
        with pytest.raises(
            ValueError, match=r"largest absolute target is .*Rescale the data"
        ):
            RobustRegressor(Ridge()).fit(X, 1e300 * y)

    def test_pickle_and_clone(self, data):
        X, y = data
        model = RobustRegressor(Ridge(), random_state=0).fit(X, y)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert not hasattr(clone(model), "estimator_")
        assert clone(model).get_params()["estimator__alpha"] == 1.0

    @pytest.mark.parametrize("kind", ["stars", "zero or one"])
    def test_everyday_targets_are_left_alone(self, rng, kind):
        X = rng.normal(size=(400, 3))
        line = X @ [1.0, 0.5, 0.0]
        y = {
            "stars": np.clip(np.round(3 + line + 0.7 * rng.normal(size=400)), 1, 5),
            "zero or one": (rng.uniform(size=400) < 1 / (1 + np.exp(-line))).astype(
                int
            ),
        }[kind]
        for estimator in (Ridge(), SMALL_BOOSTING):
            model = RobustRegressor(estimator, random_state=0).fit(X, y)
            assert model.best_iter_ == 0
            assert model.inlier_mask_.mean() > 0.97

    def test_codes_for_missing_values(self, rng):
        X = rng.normal(size=(400, 3))
        y = X @ [1.0, 0.5, 0.0] + 0.3 * rng.normal(size=400)
        code = rng.uniform(size=400) < 0.25
        y[code] = 999.0
        model = RobustRegressor(SMALL_BOOSTING, random_state=0).fit(X, y)
        assert not model.inlier_mask_[code].any()
        assert model.inlier_mask_[~code].mean() > 0.95
        assert np.abs(model.predict(X)).max() < 10.0

    @pytest.mark.parametrize(
        "estimator",
        [
            PoissonRegressor(alpha=1e-3),
            HistGradientBoostingRegressor(loss="poisson", max_iter=30),
            HistGradientBoostingRegressor(loss="gamma", max_iter=30),
        ],
    )
    def test_learners_of_positive_targets(self, rng, estimator):
        X = rng.normal(size=(400, 2))
        truth = np.exp(0.5 * X[:, 0] + 2.0)
        y = 1.0 + rng.poisson(truth)
        y[:60] += 200.0
        robust = RobustRegressor(estimator, random_state=0).fit(X, y)
        assert rmse(robust, X, truth + 1.0) < 3.0
        assert rmse(clone(estimator).fit(X, y), X, truth + 1.0) > 20.0
        assert not robust.inlier_mask_[:60].any()

    def test_estimator_that_predicts_columns(self, data):
        class Columns(RegressorMixin, BaseEstimator):
            def fit(self, X, y, sample_weight=None):
                self.model_ = Ridge().fit(X, y, sample_weight)
                return self

            def predict(self, X):
                return self.model_.predict(X)[:, None]

        model = RobustRegressor(Columns(), random_state=0).fit(*data)
        assert model.inlier_mask_.sum() == 210


class TestBinning:
    """Features of histogram gradient boosting, binned once for all fits."""

    @pytest.mark.parametrize("max_bins", [255, 16])
    def test_same_trees(self, rng, max_bins):
        X = np.column_stack(
            [rng.normal(size=900), rng.integers(5, size=900), rng.exponential(size=900)]
        )
        X[::7, 2] = np.nan
        X[1::3, 0] = np.floor(X[1::3, 0])  # many equal values
        y = np.sin(3 * X[:, 0]) + X[:, 1] + np.nan_to_num(X[:, 2])
        boosting = HistGradientBoostingRegressor(max_iter=20, max_bins=max_bins)
        binned = binned_once(boosting, X)
        assert (np.array([len(np.unique(c)) for c in binned.T]) <= max_bins + 1).all()
        np.testing.assert_array_equal(np.isnan(binned), np.isnan(X))
        for column, original in zip(binned.T, X.T, strict=True):
            known = ~np.isnan(original)
            assert (column[known] >= original[known]).all()  # the largest in the bin
            order = np.argsort(original[known])
            assert (np.diff(column[known][order]) >= 0).all()
        ours = clone(boosting).fit(binned, y).predict(binned)
        theirs = clone(boosting).fit(X, y).predict(X)
        # A tied value at an edge may fall to either side.
        assert np.corrcoef(ours, theirs)[0, 1] > 0.999

    def test_others_are_left_alone(self, rng):
        X = rng.normal(size=(400, 2))
        assert binned_once(RandomForestRegressor(), X) is X
        boosting = HistGradientBoostingRegressor
        assert binned_once(boosting(categorical_features=[0]), X) is X
        assert binned_once(boosting(), X.tolist()) == X.tolist()
        integers = np.arange(10)[:, None]
        assert binned_once(boosting(), integers) is integers

    def test_prediction_is_for_features_as_they_are(self, rng):
        X, _, y = wavy(rng)
        model = RobustRegressor(SMALL_BOOSTING, random_state=0).fit(X, y)
        expected = clone(model.estimator_).fit(X, y, model.weights_).predict(X)
        np.testing.assert_allclose(model.predict(X), expected)


class TestScales:
    def test_shorth_against_all_halves(self, rng):
        for n in (1, 2, 5, 20, 31):
            values = rng.normal(size=n)
            ordered, half = np.sort(values), -(-n // 2)
            widths = ordered[half - 1 :] - ordered[: n - half + 1]
            centre, scale = shorth(values, np.ones(n))
            i = np.argmin(widths)
            assert centre == pytest.approx((ordered[i] + ordered[i + half - 1]) / 2)
            assert scale == pytest.approx(widths[i] / 2 / 0.6744897501960817)

    def test_weights_are_copies(self, rng):
        values, weight = rng.normal(size=40), rng.integers(0, 4, size=40)
        copies, ones = np.repeat(values, weight), np.ones(weight.sum())
        weight = weight.astype(float)
        np.testing.assert_allclose(shorth(values, weight), shorth(copies, ones))
        assert core_scale(values, weight) == pytest.approx(core_scale(copies, ones))

    @pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
    @pytest.mark.parametrize("far", [8.0, 100.0])
    def test_core_scale(self, rng, share, far):
        residual = 2.0 * rng.normal(size=20_000)
        outliers = rng.uniform(size=20_000) < share
        residual[outliers] = 2.0 * rng.uniform(-far, far, size=outliers.sum())
        assert core_scale(residual, np.ones(20_000)) == pytest.approx(2.0, rel=0.08)

    def test_centre_and_scale_by_prediction(self, rng):
        prediction = rng.uniform(1, 5, size=4000)
        residual = 2.0 * prediction + prediction * rng.normal(size=4000)
        residual[:1600] += 200.0
        centre, scale = by_prediction(residual, prediction, np.ones(4000), 50, 20)
        assert np.abs(centre - 2.0 * prediction).mean() < 1.5
        assert np.corrcoef(scale, prediction)[0, 1] > 0.9

    def test_local_scale_where_it_can_be_predicted(self, rng):
        X = rng.uniform(0, 1, size=(2000, 2))
        noise = np.where(X[:, 0] > 0.7, 5.0, 1.0)
        learner = OutOfFold(
            HistGradientBoostingRegressor(max_iter=30),
            X,
            list(KFold(2, shuffle=True, random_state=0).split(X)),
        )
        for sizes, ratio in ((noise, 5.0), (np.ones(2000), 1.0)):
            y = sizes * rng.normal(size=2000)
            targets = Targets(y, np.ones(2000), weighted=False)
            found = estimate_noise(learner, targets, np.zeros(2000))
            hard, easy = found.local[noise > 1.0], found.local[noise == 1.0]
            assert np.median(hard) / np.median(easy) == pytest.approx(ratio, rel=0.3)

    def test_many_outliers_are_no_noise(self, rng):
        """Two fifths of a part are outliers; the scale there is that of the others."""
        X = rng.uniform(0, 1, size=(2000, 2))
        y = rng.normal(size=2000)
        part = X[:, 0] > 0.7
        bad = part & (rng.uniform(size=2000) < 0.4)
        y[bad] += rng.uniform(9, 30, size=bad.sum())
        learner = OutOfFold(
            HistGradientBoostingRegressor(max_iter=30),
            X,
            list(KFold(2, shuffle=True, random_state=0).split(X)),
        )
        targets = Targets(y, np.ones(2000), weighted=False)
        found = estimate_noise(learner, targets, np.zeros(2000))
        assert np.median(found.local[part]) < 1.3

    def test_copies_of_an_output_change_nothing(self, rng):
        """Neither confidence nor local scale: sizes are means over the outputs."""
        X, truth, y = wavy(rng)
        y = truth + (y - truth) * np.where(X[:, 1] > 0.0, 4.0, 1.0)
        y, _ = spoil(rng, y, 0.3)
        learner = OutOfFold(spline(), X, list(KFold(2).split(X)))
        found = []
        for Y in (y[:, None], np.column_stack([y] * 3)):
            targets = Targets(Y, np.ones(len(y)), weighted=False)
            start = robust_start(learner, targets, learner.predict(Y, None))
            noise = estimate_noise(learner, targets, start)
            assert noise.local.max() > 1.5
            found.append(np.column_stack([start[:, 0], noise.local]))
        np.testing.assert_allclose(*found, rtol=1e-6)


class Recorder(RegressorMixin, BaseEstimator):
    """Remembers the weights that it is given."""

    def fit(self, X, y, sample_weight=None):
        self.weight_ = sample_weight
        return self


class TestWeights:
    def test_a_fold_without_weight_is_fitted_as_it_is(self, rng):
        X = rng.normal(size=(5, 2))
        y = X @ [1.0, 2.0]
        model = make_pipeline(StandardScaler(), LinearRegression())
        fitted = fit_weighted(clone(model), X, y, np.zeros(5))
        np.testing.assert_allclose(fitted.predict(X), y)

    def test_weights_of_one_are_not_passed(self, rng):
        """But other equal ones are: a penalty is compared with them."""
        X = rng.normal(size=(5, 2))
        for weight in (None, np.ones(5)):
            assert fit_weighted(Recorder(), X, X[:, 0], weight).weight_ is None
        for weight in (np.full(5, 2.0), np.arange(1.0, 6.0)):
            fitted = fit_weighted(Recorder(), X, X[:, 0], weight)
            np.testing.assert_array_equal(fitted.weight_, weight)


class TestGivenScale:
    @pytest.mark.parametrize("setting", [{"scale": 1e-6}, {"scale": 0.01}])
    def test_too_small(self, rng, setting):
        X = rng.normal(size=(100, 2))
        y = X[:, 0] + 0.1 * rng.normal(size=100)
        model = RobustRegressor(Ridge(), random_state=0, **setting)
        with pytest.warns(ConvergenceWarning, match="of the given scale"):
            model.fit(X, y)
        np.testing.assert_allclose(model.predict(X), X[:, 0], atol=0.3)

    def test_a_narrow_kernel_rejects_all_rows(self, rng):
        X = rng.normal(size=(100, 2))
        y = X[:, 0] + 0.1 * rng.normal(size=100)
        model = RobustRegressor(Ridge(), tuning=1e-9, random_state=0)
        with pytest.warns(ConvergenceWarning, match="Increase tuning"):
            model.fit(X, y)
        assert model.n_iter_ == 0
        np.testing.assert_allclose(model.predict(X), X[:, 0], atol=0.3)


def test_graduated_takes_more_refits_than_there_are(rng):
    X = rng.normal(size=(30, 2))
    with pytest.raises(ValueError, match="criterion"):
        RobustRegressor(Ridge(), criterion="graduated").fit(X, X[:, 0])


class TestNewRows:
    def test_weights_and_mask_follow_the_residual(self, rng):
        X, _, y = wavy(rng)
        y, _ = spoil(rng, y, 0.2)
        model = RobustRegressor(spline(), random_state=0).fit(X, y)
        new = rng.uniform(-3, 3, size=(4, 2))
        off = model.scale_ * np.array([0.0, 2.9, -3.1, 50.0])
        y_new = model.predict(new) + off
        weights = model.confidence(new, y_new)
        assert weights[0] == 1.0
        assert weights[3] == 0.0
        assert weights[0] > weights[1] > weights[2] > weights[3]
        np.testing.assert_array_equal(
            model.inlier_mask(new, y_new), [True, True, False, False]
        )

    @pytest.mark.parametrize("tuning", [None, 2.0])
    def test_weights_are_those_of_the_kernel(self, rng, tuning):
        X = rng.normal(size=(100, 2))
        Y = np.column_stack([X[:, 0], 10.0 * X[:, 1]])
        Y += rng.normal(size=Y.shape) * [0.1, 1.0]
        model = RobustRegressor(Ridge(), tuning=tuning, random_state=0).fit(X, Y)
        kernel = get_kernel(model.kernel)
        width = 1.2 * kernel.tuning_constant(2) if tuning is None else tuning
        scaled = (Y - model.predict(X)) / model.scale_ / width
        expected = kernel.weight(np.square(scaled).sum(axis=1))
        np.testing.assert_allclose(model.confidence(X, Y), expected)
        off = model.predict(X) + np.array([0.0, 20.0]) * model.scale_
        assert not model.inlier_mask(X, off).any()

    @pytest.mark.parametrize("method", ["confidence", "inlier_mask"])
    def test_bad_input(self, data, method):
        X, y = data
        with pytest.raises(NotFittedError):
            getattr(RobustRegressor(Ridge()), method)(X, y)
        judge = getattr(RobustRegressor(Ridge(), random_state=0).fit(X, y), method)
        with pytest.raises(ValueError, match="y has 2 outputs"):
            judge(X, np.column_stack([y, y]))
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            judge(X, y[:-1])
        with pytest.raises(ValueError, match="y contains NaN"):
            judge(X, np.full(len(y), np.nan))
        with pytest.raises(ValueError, match="features"):
            judge(np.zeros((len(y), 17)), y)


def test_core_scale_without_a_core(rng):
    """If the background explains all that is inside, the shorth remains."""
    near, far = np.repeat([0.0, 1.0], [45, 10]), np.full(45, 2.0)
    size = np.concatenate([near, far]) * rng.choice([-1.0, 1.0], 100)
    doubled = np.concatenate([-np.abs(size), np.abs(size)])
    kept = shorth(doubled, np.ones(200))[1]
    assert core_scale(size, np.ones(100)) == pytest.approx(kept)
    normal = 3.0 * rng.normal(size=4000)
    assert core_scale(normal, np.ones(4000)) == pytest.approx(3.0, rel=0.05)


def test_column_of_targets_is_a_vector(data):
    X, y = data
    flat = RobustRegressor(Ridge(), random_state=0).fit(X, y)
    with pytest.warns(DataConversionWarning, match="column-vector"):
        column = RobustRegressor(Ridge(), random_state=0).fit(X, y[:, None])
    np.testing.assert_array_equal(column.predict(X), flat.predict(X))
