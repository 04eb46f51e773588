"""HalfQuadraticRobustRegressor as its users meet it."""

import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import make_regression
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import (
    HuberRegressor,
    LinearRegression,
    RANSACRegressor,
    Ridge,
)
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_mm import HalfQuadraticRobustRegressor, criteria, robust_least_squares
from sklearn_mm._robust import normal_equations
from sklearn_mm.baselines import Alternating, Joint
from sklearn_mm.kernels import KERNELS, Kernel, get_kernel

CRITERIA = ["regemm", "sudemm", "fixed"]


def make(**kwargs):
    return HalfQuadraticRobustRegressor(random_state=0, **kwargs)


# -- It does what it is for ----------------------------------------------------------


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("kernel", sorted(set(KERNELS) - {"quadratic", "huber"}))
def test_gross_outliers_are_found(contaminated, criterion, kernel):
    X, y = contaminated
    model = make(kernel=kernel, criterion=criterion).fit(X, y)
    assert_allclose(model.coef_, [1.0, -2.0, 0.5], atol=0.1)
    assert_allclose(model.intercept_, 3.0, atol=0.1)
    assert 0.07 < model.scale_ < 0.15
    assert not model.inlier_mask_[:40].any()
    assert model.inlier_mask_[40:].mean() > 0.95
    assert model.weights_[:40].max() < 0.05
    assert np.all((model.weights_ >= 0) & (model.weights_ <= 1))


@pytest.mark.parametrize("share", [0.2, 0.4])
@pytest.mark.parametrize("seed", range(3))
def test_bad_leverage_points_are_found_and_good_ones_kept(share, seed):
    rng = np.random.default_rng(seed)
    n, bad = 200, int(200 * share)
    X = rng.normal(size=(n, 5))
    coef = rng.normal(size=5)
    X[:bad] = 10.0 * coef / np.linalg.norm(coef) + 0.5 * rng.normal(size=(bad, 5))
    good = slice(bad, bad + 10)
    X[good] = -12.0 * coef / np.linalg.norm(coef) + rng.normal(size=(10, 5))
    y = X @ coef + rng.normal(size=n)
    y[:bad] += 40.0
    model = make().fit(X, y)
    assert not model.inlier_mask_[:bad].any()
    assert model.weights_[good].mean() > 0.8
    assert_allclose(model.coef_, coef, atol=0.5)


def test_clean_data_are_fitted_as_well_as_by_least_squares():
    errors = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        X, coef = rng.normal(size=(200, 5)), rng.normal(size=5)
        y = X @ coef + rng.normal(size=200)
        errors.append(
            [
                np.sum(np.square(model.fit(X, y).coef_ - coef))
                for model in (make(), LinearRegression())
            ]
        )
    robust, ols = np.sqrt(np.mean(errors, axis=0))
    assert robust <= 1.06 * ols


def test_several_outputs_share_a_weight(rng):
    X = rng.normal(size=(150, 3))
    B = rng.normal(size=(3, 4))
    Y = X @ B + [1.0, 2.0, 3.0, 4.0] + 0.1 * rng.normal(size=(150, 4))
    Y[:40, 2] += 5.0  # one output is enough to give a row away
    model = make().fit(X, Y)
    assert model.coef_.shape == (4, 3)
    assert model.intercept_.shape == (4,)
    assert model.predict(X).shape == Y.shape
    assert_allclose(model.coef_.T, B, atol=0.06)
    assert not model.inlier_mask_[:40].any()
    assert model.inlier_mask_[40:].mean() > 0.95


def test_column_target_keeps_its_shape(contaminated):
    X, y = contaminated
    flat, column = make().fit(X, y), make().fit(X, y[:, None])
    assert column.coef_.shape == (1, 3)
    assert column.predict(X).shape == (100, 1)
    assert_allclose(column.coef_[0], flat.coef_)
    assert isinstance(float(flat.intercept_), float)


def test_many_rows_decide_on_a_sample(rng):
    X = rng.normal(size=(12_000, 4))
    coef = rng.normal(size=4)
    y = X @ coef - 1.0 + 0.5 * rng.normal(size=12_000)
    bad = rng.random(12_000) < 0.4
    y[bad] += rng.uniform(5, 50, size=bad.sum())
    model = make().fit(X, y)
    oracle = LinearRegression().fit(X[~bad], y[~bad])
    assert_allclose(model.coef_, oracle.coef_, atol=0.01)
    assert 0.45 < model.scale_ < 0.55
    # The end is a stationary point of J on all rows.
    residual = y - model.predict(X)
    score = X.T @ (model.weights_ * residual)
    assert np.abs(score).max() < 1e-4 * np.abs(X.T @ residual).max()


# -- References ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "norm"), [("huber", "HuberT"), ("tukey", "TukeyBiweight")]
)
def test_fixed_equals_statsmodels(contaminated, name, norm):
    sm = pytest.importorskip("statsmodels.api")
    X, y = contaminated
    tuning, scale = 2.0, 1.3
    reference = sm.RLM(
        y, sm.add_constant(X), M=getattr(sm.robust.norms, norm)(tuning)
    ).fit(
        start_scale=scale,
        update_scale=False,
        maxiter=1000,
        tol=1e-14,
        conv="coefs",
    )
    model = make(
        kernel=name,
        criterion="fixed",
        scale=scale,
        tuning=tuning,
        init="ols",
        tol=1e-12,
        max_iter=1000,
    ).fit(X, y)
    expected = np.asarray(reference.params)
    # RLM counts the scale of its start in, so the first weights differ; the fixed
    # point is the same where the objective has one basin.
    if name == "huber":
        assert_allclose(np.append(model.intercept_, model.coef_), expected, atol=1e-7)
        assert_allclose(model.weights_, reference.weights, atol=1e-6)
    else:
        z = np.square((y - model.predict(X)) / (tuning * scale))
        assert_allclose(model.weights_, get_kernel(name).weight(z), atol=1e-8)


def test_huber_minimum_equals_scipy(contaminated):
    from scipy.optimize import least_squares

    X, y = contaminated
    scale = 0.7
    model = make(kernel="huber", scale=scale, tuning=1.0, tol=1e-12, max_iter=2000)
    model.fit(X, y)
    design = np.column_stack([X, np.ones(len(y))])
    reference = least_squares(
        lambda b: design @ b - y,
        np.zeros(4),
        loss="huber",
        f_scale=scale,
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-12,
    )
    assert_allclose(np.append(model.coef_, model.intercept_), reference.x, atol=1e-6)
    assert_allclose(model.history_.lower_bound[-1], reference.cost, rtol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 5.0])
@pytest.mark.parametrize("kwargs", [{"kernel": "quadratic"}, {"tuning": 1e6}])
def test_wide_kernels_are_ridge(contaminated, alpha, kwargs):
    X, y = contaminated
    model = make(alpha=alpha, **kwargs).fit(X, y)
    reference = Ridge(alpha=alpha).fit(X, y)
    assert_allclose(model.coef_, reference.coef_, rtol=1e-6)
    assert_allclose(model.intercept_, reference.intercept_, rtol=1e-6)
    assert model.weights_.min() > 0.999


def test_stationary_point_of_the_objective(contaminated):
    X, y = contaminated
    alpha = 2.0
    model = make(alpha=alpha, tol=1e-10).fit(X, y)
    weighted = model.weights_ * (y - model.predict(X))
    assert_allclose(X.T @ weighted, alpha * model.coef_, atol=1e-6)
    assert_allclose(weighted.sum(), 0.0, atol=1e-6)


def test_history_is_in_the_units_of_the_data(contaminated):
    X, y = contaminated
    model = make(tol=1e-10).fit(X, y)
    tau = model.scale_ * get_kernel(model.kernel).tuning_constant()
    z = np.square((y - model.predict(X)) / tau)
    objective = tau**2 * get_kernel(model.kernel).loss(z).sum()
    assert_allclose(model.history_.lower_bound[-1], objective, rtol=1e-6)
    assert model.n_iter_ == len(model.history_.gap)


# -- Sample weights, invariances -----------------------------------------------------


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
def test_weights_are_repeated_rows(contaminated, criterion, container):
    X, y = contaminated
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 4, size=len(y))
    order = rng.permutation(counts.sum())
    repeated = make(criterion=criterion, alpha=0.3).fit(
        container(np.repeat(X, counts, axis=0)[order]), np.repeat(y, counts)[order]
    )
    weighted = make(criterion=criterion, alpha=0.3).fit(
        container(X), y, sample_weight=counts
    )
    assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-8)
    assert_allclose(weighted.intercept_, repeated.intercept_, rtol=1e-8)
    assert_allclose(weighted.scale_, repeated.scale_, rtol=1e-8)


def test_weights_are_repeated_rows_on_a_sample(rng):
    X = rng.normal(size=(3000, 3))
    y = X @ [1.0, 2.0, 3.0] + rng.normal(size=3000)
    y[:900] += rng.uniform(5, 50, size=900)
    counts = rng.integers(0, 4, size=3000)
    repeated = make().fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    weighted = make().fit(X, y, sample_weight=counts)
    assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6)
    assert_allclose(weighted.scale_, repeated.scale_, rtol=1e-6)


def test_equivariance(contaminated):
    X, y = contaminated
    plain = make(tol=1e-10).fit(X, y)
    rng = np.random.default_rng(3)
    order = rng.permutation(len(y))
    permuted = make(tol=1e-10).fit(X[order], y[order])
    assert_allclose(permuted.coef_, plain.coef_, rtol=1e-7)
    scaled = make(tol=1e-10).fit(X, 1e6 * y - 4e6)
    assert_allclose(scaled.coef_, 1e6 * plain.coef_, rtol=1e-7)
    assert_allclose(scaled.scale_, 1e6 * plain.scale_, rtol=1e-7)
    A = rng.normal(size=(3, 3))
    mixed = make(tol=1e-10).fit(X @ A + [5.0, -2.0, 1.0], y)
    assert_allclose(
        mixed.predict(X @ A + [5.0, -2.0, 1.0]), plain.predict(X), rtol=1e-6
    )


UNITS = "Rescale the data"


@pytest.mark.parametrize("unit", [1e-66, 1e-40, 1e40, 1e66])
@pytest.mark.parametrize("params", [{}, {"init": "ols", "criterion": "sudemm"}])
def test_extreme_units(contaminated, unit, params):
    X, y = contaminated
    plain = make(**params).fit(X, y)
    model = make(**params).fit(X, y * unit)
    assert_allclose(model.coef_ / unit, plain.coef_, rtol=1e-9)
    assert_allclose(model.intercept_ / unit, plain.intercept_, rtol=1e-9)
    assert_allclose(model.scale_ / unit, plain.scale_, rtol=1e-9)
    assert_allclose(model.weights_, plain.weights_, atol=1e-9)
    upper = model.history_.upper_bound
    assert_allclose(upper / unit**2, plain.history_.upper_bound, rtol=1e-9)


@pytest.mark.parametrize("unit", [1e-300, 1e-150, 1e-75, 1e75, 1e150, 1e300])
def test_units_beyond_the_limit(contaminated, unit):
    X, y = contaminated
    model = make()
    with pytest.raises(ValueError, match=UNITS):
        model.fit(X, y * unit / 100)
    assert not hasattr(model, "n_features_in_")


def test_sample_weight_of_any_size(contaminated):
    X, y = contaminated
    plain = make().fit(X, y)
    for unit in (1e-200, 1e200):
        model = make().fit(X, y, sample_weight=np.full(len(y), unit))
        assert_allclose(model.coef_, plain.coef_, rtol=1e-8)


# -- Data containers and parameters --------------------------------------------------


@pytest.mark.parametrize(
    "container",
    [
        scipy.sparse.csr_array,
        scipy.sparse.csc_matrix,
        scipy.sparse.coo_array,
        np.asfortranarray,
        lambda X: X.astype(np.float32),
        lambda X: X.tolist(),
    ],
)
def test_containers(contaminated, container):
    X, y = contaminated
    model = make().fit(container(X), y)
    assert_allclose(model.coef_, make().fit(X, y).coef_, rtol=1e-4)


def test_float32_stays_float32(contaminated):
    X, y = contaminated
    model = make().fit(X.astype(np.float32), y.astype(np.float32))
    assert model.coef_.dtype == np.float32
    assert model.predict(X.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(contaminated, library):
    frames = pytest.importorskip(library)
    X, y = contaminated
    frame = frames.DataFrame({name: X[:, i] for i, name in enumerate("abc")})
    if not hasattr(LinearRegression().fit(frame, y), "feature_names_in_"):
        pytest.skip(f"this scikit-learn does not know this version of {library}")
    model = make().fit(frame, y)
    assert_array_equal(model.feature_names_in_, ["a", "b", "c"])
    assert_allclose(model.predict(frame), make().fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["c", "b", "a"]])


def test_n_jobs_and_chunk_size_do_not_matter(rng):
    X = rng.normal(size=(3000, 4))
    y = X @ rng.normal(size=4) + rng.normal(size=3000)
    y[:800] += 30.0
    one = make(chunk_size=500).fit(X, y)
    two = make(chunk_size=500, n_jobs=2).fit(X, y)
    assert_array_equal(one.coef_, two.coef_)
    assert_array_equal(one.weights_, two.weights_)
    whole = make().fit(X, y)
    assert_allclose(one.coef_, whole.coef_, rtol=1e-8)


def test_random_state(contaminated):
    X, y = contaminated
    assert_array_equal(make().fit(X, y).coef_, make().fit(X, y).coef_)
    first, second = np.random.RandomState(3), np.random.RandomState(3)
    model = HalfQuadraticRobustRegressor(random_state=first).fit(X, y)
    again = HalfQuadraticRobustRegressor(random_state=second).fit(X, y)
    assert_array_equal(model.coef_, again.coef_)


def test_pickle_and_clone(contaminated):
    X, y = contaminated
    model = make(criterion=criteria.RelaxedGeneralized(0.25, 0.5)).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(X), model.predict(X))
    fresh = clone(model)
    assert fresh.criterion == model.criterion
    with pytest.raises(NotFittedError):
        fresh.predict(X)


def test_grid_search_in_a_pipeline(contaminated):
    X, y = (part[25:] for part in contaminated)  # every fold keeps a clean majority
    search = GridSearchCV(
        make_pipeline(StandardScaler(), make()),
        {
            "halfquadraticrobustregressor__criterion": CRITERIA,
            "halfquadraticrobustregressor__kernel": ["tukey", "cauchy"],
            "halfquadraticrobustregressor__tuning": [None, 3.0],
        },
        scoring="neg_median_absolute_error",
        cv=KFold(3, shuffle=True, random_state=0),
        n_jobs=2,
        error_score="raise",
    )
    search.fit(X, y)
    assert search.best_score_ > -1.0


def test_metadata_routing(contaminated):
    import sklearn

    X, y = contaminated
    weight = np.ones(len(y))
    with sklearn.config_context(enable_metadata_routing=True):
        model = make().set_fit_request(sample_weight=True)
        model.set_score_request(sample_weight=True)
        search = GridSearchCV(model, {"tuning": [3.0, 4.0]}, cv=2)
        search.fit(X, y, sample_weight=weight)
    assert search.best_params_["tuning"] in (3.0, 4.0)


# -- Starts, criteria, baselines -----------------------------------------------------


def test_starts(contaminated):
    X, y = contaminated
    truth = [1.0, -2.0, 0.5]
    starts = [
        truth,
        [*truth, 3.0],
        [truth],
        RANSACRegressor(random_state=0),
        HalfQuadraticRobustRegressor(random_state=1),
    ]
    for init in starts:
        model = make(init=init).fit(X, y)
        assert_allclose(model.coef_, truth, atol=0.1)
    assert make(init=HuberRegressor()).fit(X, y).n_iter_ > 1
    no_intercept = make(init=truth, fit_intercept=False).fit(X, y - 3.0)
    assert_allclose(no_intercept.coef_, truth, atol=0.1)
    assert no_intercept.intercept_ == 0.0


@pytest.mark.parametrize("init", [[1.0], [[1.0, 2.0, 3.0]] * 2, np.ones(5)])
def test_init_of_the_wrong_shape(contaminated, init):
    X, y = contaminated
    with pytest.raises(ValueError, match="init must have shape"):
        make(init=init).fit(X, y)


def test_ols_start_is_the_papers_setting():
    # One-sided contamination: ReGeMM finds the bulk from least squares, IRLS with the
    # same known scale does not always.
    found = {}
    for criterion in ("regemm", "fixed"):
        found[criterion] = 0
        for seed in range(20):
            rng = np.random.default_rng(seed)
            X = rng.normal(size=(200, 5))
            y = X @ np.ones(5) + rng.normal(size=200)
            y[:100] += rng.uniform(5, 50, size=100)
            model = make(criterion=criterion, init="ols", scale=1.0)
            model.set_params(max_iter=1000).fit(X, y)
            found[criterion] += bool(np.linalg.norm(model.coef_ - 1.0) < 1.0)
    assert found["regemm"] >= 18
    assert found["regemm"] > found["fixed"]


def test_known_scale_chooses_by_the_objective(contaminated):
    X, y = contaminated
    model = make(scale=0.1).fit(X, y)
    assert model.scale_ == pytest.approx(0.1)
    assert_allclose(model.coef_, [1.0, -2.0, 0.5], atol=0.1)


def test_warm_start(contaminated):
    X, y = contaminated
    model = make(warm_start=True).fit(X, y)
    first = model.coef_
    model.fit(X, y + 0.01)
    assert_allclose(model.coef_, first, atol=0.02)
    with pytest.raises(
        ValueError, match="warm_start=True requires data of the same shape"
    ):
        model.fit(X[:, :2], y)
    assert model.n_features_in_ == 3
    model.set_params(warm_start=False).fit(X[:, :2], y)


def test_graduated_baseline(contaminated):
    X, y = contaminated
    schedule = criteria.Graduated(n_levels=7)
    model = make(criterion=schedule, init="ols", scale=0.1).fit(X, y)
    assert_array_equal(model.history_.effort[:4], 1 / 128)
    assert_allclose(model.coef_, [1.0, -2.0, 0.5], atol=0.1)
    named = make(criterion="graduated", scale=0.1).fit(X, y)
    assert_array_equal(named.history_.effort[:5], [1 / 32] * 4 + [1 / 16])
    default = make(criterion=criteria.Graduated(), scale=0.1).fit(X, y)
    assert_array_equal(named.coef_, default.coef_)
    assert_array_equal(named.history_.upper_bound, default.history_.upper_bound)


def test_joint_baseline(contaminated):
    # Joint minimisation over coefficients and weights is the nonlinear solver's; it
    # reaches a stationary point of the same objective.
    X, y = contaminated
    design = np.column_stack([X, np.ones(len(y))])
    start = LinearRegression().fit(X, y)
    joint = robust_least_squares(
        lambda b: design @ b - y,
        np.append(start.coef_, start.intercept_),
        lambda b: design,
        tau=8.0,
        criterion="joint",
    )
    ours = make(init="ols", scale=8.0, tuning=1.0).fit(X, y)
    assert_allclose(joint.cost, ours.history_.lower_bound[-1], rtol=1e-6)
    assert_allclose(joint.x[:3], ours.coef_, atol=1e-4)
    with pytest.raises(ValueError, match="only supported by robust_least_squares"):
        make(criterion=Joint()).fit(X, y)
    with pytest.raises(
        ValueError, match="is only supported by the contrastive Hebbian"
    ):
        make(criterion=Alternating()).fit(X, y)


def test_criterion_of_ones_own(contaminated):
    class RelativeGap(criteria.Criterion):
        def satisfied(self, trial, memory):
            return trial.gap <= 0.1 * trial.lower

        def excessive(self, trial, memory):
            return trial.gap < 0.05 * trial.lower

    X, y = contaminated
    model = make(criterion=RelativeGap(), max_iter=200).fit(X, y)
    assert_allclose(model.coef_, [1.0, -2.0, 0.5], atol=0.1)
    assert np.all(model.history_.gap <= 0.1 * model.history_.lower_bound + 1e-12)


def test_kernel_of_ones_own(contaminated):
    class Logistic(Kernel):
        """psi = log cosh, with its half-quadratic form taken numerically."""

        def loss(self, z):
            r = np.sqrt(z)
            return r + np.log1p(np.exp(-2 * r)) - np.log(2)

        def weight(self, z):
            r = np.sqrt(np.maximum(z, 1e-12))
            return np.tanh(r) / r

        def penalty(self, u):
            # kappa(omega(z)) = psi(z) - omega(z) z / 2, interpolated over z.
            z = np.linspace(0, 50, 20_001) ** 2
            u_of_z = self.weight(z)
            return np.interp(u, u_of_z[::-1], (self.loss(z) - u_of_z * z / 2)[::-1])

    X, y = contaminated
    model = make(kernel=Logistic(), criterion="fixed", max_iter=1000).fit(X, y)
    assert np.isfinite(model.coef_).all()


# -- Progress ------------------------------------------------------------------------


def test_silent_by_default(contaminated, capsys):
    X, y = contaminated
    make().fit(X, y)
    assert capsys.readouterr().out == ""


def test_verbose_prints_a_line_per_iteration(contaminated, capsys):
    X, y = contaminated
    model = make(verbose=1).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_ + 1
    assert len({len(line) for line in lines}) == 1
    last = float(lines[-1].split()[2])
    assert_allclose(last, model.history_.lower_bound[-1], rtol=1e-4)


def test_callbacks(contaminated):
    callback = pytest.importorskip("sklearn.callback")
    X, y = contaminated

    class Stop:
        def __init__(self, after):
            self.after, self.seen, self.torn_down = after, [], False

        def setup(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context):
            pass

        def on_fit_task_end(self, estimator, context, *, fitted_estimator):
            if context.task_name == "epoch":
                self.seen.append(fitted_estimator.predict(X))
            return len(self.seen) >= self.after

        def teardown(self, estimator, context):
            self.torn_down = True

    stop = Stop(after=2)
    assert isinstance(stop, callback.FitCallback)
    model = make().set_callbacks(stop).fit(X, y)
    assert model.n_iter_ == 2 == len(stop.seen)
    assert stop.torn_down
    assert_allclose(stop.seen[-1], model.predict(X))

    patient = Stop(after=1000)
    model = make().set_callbacks(patient).fit(X, y)
    assert model.n_iter_ == len(patient.seen)


def test_callback_errors_tear_down_and_restore(contaminated):
    pytest.importorskip("sklearn.callback")
    X, y = contaminated

    class Broken:
        torn_down = False

        def setup(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context):
            pass

        def on_fit_task_end(self, estimator, context):
            raise RuntimeError("from the callback")

        def teardown(self, estimator, context):
            self.torn_down = True

    broken = Broken()
    model = make().fit(X, y)
    before = model.coef_
    model.set_callbacks(broken)
    with pytest.raises(RuntimeError, match="from the callback"):
        model.fit(X, 2 * y)
    assert broken.torn_down
    assert model.coef_ is before


# -- Bad and difficult input ---------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"kernel": "cosine"}, "'kernel' parameter"),
        ({"criterion": "exact"}, "'criterion' parameter"),
        ({"scale": 0.0}, "'scale' parameter"),
        ({"scale": -1.0}, "'scale' parameter"),
        ({"tuning": 0.0}, "'tuning' parameter"),
        ({"alpha": -1.0}, "'alpha' parameter"),
        ({"init": "zeros"}, "'init' parameter"),
        ({"eta": 0.0}, "'eta' parameter"),
        ({"eta_prime": 1.0}, "'eta_prime' parameter"),
        ({"eta": 0.8, "eta_prime": 0.7}, r"eta_prime must be a number in \(eta, 1\]"),
        ({"rho": 1.0}, "'rho' parameter"),
        ({"max_iter": 0}, "'max_iter' parameter"),
        ({"tol": -1e-3}, "'tol' parameter"),
        ({"chunk_size": 0}, "'chunk_size' parameter"),
        ({"n_jobs": 0}, "'n_jobs' parameter"),
    ],
)
def test_parameters_out_of_range(contaminated, kwargs, message):
    X, y = contaminated
    model = make().fit(X, y)
    before = dict(vars(model))
    with pytest.raises(ValueError, match=message):
        model.set_params(**kwargs).fit(X, y)
    assert model.coef_ is before["coef_"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["X", "y", "sample_weight"])
def test_non_finite_input_leaves_the_fit_alone(contaminated, value, where):
    X, y = contaminated
    model = make().fit(X, y)
    before = dict(vars(model))
    bad = {"X": X[:, :2].copy(), "y": y.copy(), "sample_weight": np.ones(len(y))}
    bad[where].flat[3] = value
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        model.fit(**bad)
    assert vars(model) == before  # n_features_in_ included


@pytest.mark.parametrize("weight", [np.zeros(100), -np.ones(100)])
def test_useless_weights(contaminated, weight):
    X, y = contaminated
    with pytest.raises(ValueError, match=r"weight"):
        make().fit(X, y, sample_weight=weight)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_too_few_rows_interpolate_with_a_warning(rng, n):
    X, y = rng.normal(size=(n, 5)), rng.normal(size=n)
    with pytest.warns(ConvergenceWarning, match="do not show which rows are outliers"):
        model = make().fit(X, y)
    assert_allclose(model.predict(X), y, atol=1e-8)
    reference = LinearRegression().fit(X, y)
    assert_allclose(model.predict(X), reference.predict(X), atol=1e-8)


def test_more_features_than_rows_with_a_penalty(rng):
    X = rng.normal(size=(40, 100))
    y = X[:, 0] + 0.1 * rng.normal(size=40)
    y[:5] += 100.0
    model = make(alpha=1.0).fit(X, y)
    assert np.isfinite(model.coef_).all()


@pytest.mark.parametrize("criterion", CRITERIA)
def test_exact_plane(rng, criterion):
    X = rng.normal(size=(60, 3))
    y = X @ [1.0, 2.0, 3.0] + 4.0
    model = make(criterion=criterion).fit(X, y)
    assert_allclose(model.coef_, [1.0, 2.0, 3.0], atol=1e-9)
    assert model.inlier_mask_.all()
    y[:20] += rng.uniform(1, 100, size=20)
    with pytest.warns(ConvergenceWarning, match="67% of the rows lie exactly"):
        model = make(criterion=criterion).fit(X, y)
    assert_allclose(model.coef_, [1.0, 2.0, 3.0], atol=1e-9)
    assert_array_equal(model.inlier_mask_, np.arange(60) >= 20)
    assert 0.0 < model.scale_ < 1e-8


def test_constant_target(rng):
    X = rng.normal(size=(30, 2))
    model = make().fit(X, np.full(30, 5.0))
    assert_allclose(model.coef_, 0.0, atol=1e-12)
    assert_allclose(model.intercept_, 5.0)


def test_degenerate_columns(contaminated):
    X, y = contaminated
    plain = make().fit(X, y)
    wide = np.column_stack([X, X[:, 0], np.full(100, 3.0), np.zeros(100)])
    model = make().fit(wide, y)
    assert_allclose(model.predict(wide), plain.predict(X), atol=1e-3)
    assert_allclose(model.coef_[0], model.coef_[3], atol=1e-6)
    assert_allclose(model.coef_[4:], 0.0, atol=1e-8)


def test_only_constant_columns(rng):
    y = rng.normal(size=50)
    y[:10] += 100
    model = make().fit(np.ones((50, 2)), y)
    assert abs(model.predict(np.ones((1, 2)))[0] - np.median(y[10:])) < 1.0


def test_dummy_columns(rng):
    # Levels of a factor: most random subsets of the rows are singular.
    n, levels = 300, 12
    factor = rng.integers(levels, size=n)
    dummies = np.eye(levels)[factor][:, 1:]
    X = np.column_stack([dummies, rng.normal(size=n)])
    effect = rng.normal(size=levels - 1)
    y = dummies @ effect + 2.0 * X[:, -1] + 0.1 * rng.normal(size=n)
    y[: n // 5] += rng.uniform(3, 30, size=n // 5)
    model = make().fit(X, y)
    assert_allclose(model.coef_[-1], 2.0, atol=0.05)
    assert_allclose(model.coef_[:-1], effect, atol=0.3)


def test_columns_of_very_different_size(rng):
    n = 400
    stamp = 1.7e12 + 8.64e7 * rng.random(n)
    X = np.column_stack([stamp, 1e-6 * rng.normal(size=n), rng.normal(size=n)])
    y = 2e-7 * (stamp - 1.7e12) + 3e6 * X[:, 1] - X[:, 2] + 0.1 * rng.normal(size=n)
    y[: n // 4] += rng.uniform(5, 50, size=n // 4)
    model = make().fit(X, y)
    assert_allclose(model.coef_, [2e-7, 3e6, -1.0], rtol=0.05)


@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e-72, 1e72, 1e160, 1e300])
@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
def test_columns_beyond_the_limit(contaminated, unit, container):
    X, y = contaminated
    X = X.copy()
    X[:, 1] *= unit
    model = make()
    with pytest.raises(ValueError, match=f"^Column 1 of X is .*{UNITS}"):
        model.fit(container(X), y)
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize("unit", [1e-68, 1e-40, 1e40, 1e68])
@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
def test_columns_of_extreme_size(contaminated, unit, container):
    X, y = contaminated
    X = X.copy()
    X[:, 1] *= unit
    model = make().fit(container(X), y)
    assert_allclose(model.coef_[1] * unit, -2.0, atol=0.1)
    assert_allclose(model.coef_[[0, 2]], [1.0, 0.5], atol=0.1)
    # A penalty in these units holds small columns' coefficients at zero.
    ridge = make(alpha=0.1).fit(container(X), y)
    assert np.isfinite(ridge.coef_).all()
    if unit > 1.0:
        assert_allclose(ridge.coef_[1] * unit, -2.0, atol=0.1)
    else:
        assert abs(ridge.coef_[1] * unit) < 1e-3


@pytest.mark.filterwarnings("ignore:.*two rows per parameter")
@pytest.mark.parametrize("n", [5, 6, 8, 12])
def test_few_rows_are_not_taken_for_an_exact_fit(n):
    errors = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, 3))
        y = X @ [1.0, 2.0, 3.0] + 0.1 * rng.normal(size=n)
        model, ols = make().fit(X, y), LinearRegression().fit(X, y)
        errors.append(
            [np.sum(np.square(m.coef_ - [1.0, 2.0, 3.0])) for m in (model, ols)]
        )
    robust, plain = np.sqrt(np.median(errors, axis=0))
    assert robust <= 2.0 * plain


def test_cap_on_iterations_names_the_parameter(contaminated):
    X, y = contaminated
    with pytest.warns(ConvergenceWarning, match="Increase max_iter"):
        make(max_iter=2).fit(X, y)


def test_one_giant_outlier(contaminated):
    X, y = contaminated
    spoiled = y.copy()
    for giant in (1e20, 1e60, 1e70):
        spoiled[0] = giant
        model = make().fit(X, spoiled)
        assert_allclose(model.coef_, [1.0, -2.0, 0.5], atol=0.1)
    for giant in (1.1e70, 1e150, 1e300):
        spoiled[0] = -giant
        with pytest.raises(ValueError, match=f"^The largest value of y is .*{UNITS}"):
            make().fit(X, spoiled)


def test_heavily_duplicated_rows(rng):
    X, y = make_regression(n_samples=30, n_features=2, noise=1.0, random_state=0)
    model = make().fit(np.tile(X, (40, 1)), np.tile(y, 40))
    assert_allclose(model.coef_, make().fit(X, y).coef_, rtol=1e-6)


def test_integer_input():
    X = np.arange(40).reshape(-1, 1)
    y = 3 * np.arange(40)
    y[::5] = 0
    with pytest.warns(ConvergenceWarning, match="lie exactly on the fitted plane"):
        model = make().fit(X, y)
    assert_allclose(model.coef_, [3.0], atol=1e-8)


def test_wide_sparse_data_are_never_made_dense(rng, monkeypatch):
    monkeypatch.setattr(normal_equations, "_MAX_GRAM", 1000)
    X = scipy.sparse.random(6000, 1100, density=0.01, random_state=0, format="csr")
    coef = np.zeros(1100)
    coef[:20] = rng.normal(size=20) * 5
    y = X @ coef + 0.1 * rng.normal(size=6000)
    y[:400] += 50.0
    tracemalloc.start()
    model = make(alpha=0.5, tol=1e-4).fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * 8 * X.shape[0] * X.shape[1]
    assert np.isfinite(model.coef_).all()
    assert model.weights_[:400].mean() < 0.1 < 0.5 < model.weights_[400:].mean()


@pytest.mark.parametrize(
    ("share", "size"), [(1 / 20_000, 1e4), (1e-3, 1e3), (0.01, 100.0), (0.1, 10.0)]
)
def test_leverage_in_many_rows_does_not_stall(rng, share, size):
    # A small change of the weights, but nearly all of the Gram matrix.
    n = 20_000
    X = rng.normal(size=(n, 3))
    y = X @ [1.0, 2.0, 3.0] + rng.normal(size=n)
    bad = round(share * n)
    X[:bad] = size * rng.normal(size=(bad, 3))
    y[:bad] = 0.0
    model = make().fit(X, y)
    assert model.n_iter_ <= 20
    weighted = model.weights_ * (y - model.predict(X))
    assert np.abs(X.T @ weighted).max() < 1e-3 * np.sqrt(n)


@pytest.mark.parametrize("size", [1e6, 1e8, 1e12])
@pytest.mark.parametrize("where", ["row", "cell"])
def test_giant_entries_of_X(rng, size, where):
    X = rng.normal(size=(300, 3))
    y = X @ [1.0, 2.0, 3.0] + rng.normal(size=300)
    clean = make().fit(X[1:], y[1:])
    X[0, : 1 if where == "cell" else 3] = size
    model = make().fit(X, y)
    assert_allclose(model.coef_, clean.coef_, atol=0.01)
    assert not model.inlier_mask_[0]


@pytest.mark.parametrize("kwargs", [{"scale": 1e70}, {"tuning": 1e70}])
def test_widths_beyond_any_data_are_least_squares(contaminated, kwargs):
    X, y = contaminated
    model = make(**kwargs).fit(X, y)
    assert_allclose(model.coef_, LinearRegression().fit(X, y).coef_, rtol=1e-6)
    if "scale" in kwargs:
        assert model.inlier_mask_.all()
    assert model.weights_.min() > 0.999


@pytest.mark.parametrize("name", ["scale", "tuning"])
@pytest.mark.parametrize("value", [1e-200, 1e-71, 1e71, 1e160])
def test_widths_beyond_the_limit(contaminated, name, value):
    model = make(**{name: value})
    with pytest.raises(ValueError, match=f"^{name} is .*{UNITS}"):
        model.fit(*contaminated)
    assert not hasattr(model, "n_features_in_")


def test_over_relaxation_knows_the_number_of_outputs(rng):
    X = rng.normal(size=(400, 3))
    Y = X @ rng.normal(size=(3, 3)) + rng.normal(size=(400, 3))
    assert make(tol=1e-10).fit(X, Y).n_iter_ <= 10


def test_warnings_point_at_the_caller(contaminated):
    X, y = contaminated
    with pytest.warns(ConvergenceWarning) as caught:
        make(max_iter=2).fit(X, y)
    assert caught[0].filename == __file__


def test_init_estimator_sees_the_weights_of_the_user(contaminated):
    X, y = contaminated
    counts = np.random.default_rng(5).integers(0, 4, size=len(y))
    init = Ridge(alpha=100.0)
    weighted = make(init=init).fit(X, y, sample_weight=counts)
    repeated = make(init=init).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-8)


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.arange(9, dtype=np.float32)[:, None], 1e40 * np.arange(9.0)),
        (np.float32(1e-30) * np.arange(9, dtype="f4")[:, None], 1e10 * np.arange(9.0)),
    ],
)
def test_coefficients_that_no_float_can_hold_are_refused(X, y):
    with pytest.raises(ValueError, match=r"too large for float.*comparable units"):
        HalfQuadraticRobustRegressor().fit(X, y)


def test_coefficients_at_the_limits_of_units_are_held():
    X, y = 1e-60 * np.arange(9.0)[:, None], 1e60 * np.arange(9.0)
    model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    assert_allclose(model.coef_, 1e120)
    assert_allclose(model.predict(X), y, rtol=1e-9, atol=1e50)


@pytest.mark.filterwarnings("ignore:.*lie exactly on the fitted plane")
def test_history_has_no_nan_where_its_unit_overflows():
    X, y = np.arange(9.0)[:, None], 1e20 * np.arange(9.0)
    y[0] = 5e20
    model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y, np.full(9, 1e300))
    assert not any(np.isnan(column).any() for column in model.history_.values())


@pytest.mark.parametrize(
    "large",
    [
        np.array([1.7e308]),
        np.array([1.1e70]),
        np.array([-np.finfo(float).max]),
        np.array([np.inf], object),
        np.longdouble([1e300]),
        np.longdouble([np.finfo(np.longdouble).max]),
    ],
)
def test_targets_too_large_to_add_are_refused(large):
    X = np.arange(9.0)[:, None]
    y = np.arange(9).astype(large.dtype)
    y[3] = large[0]
    # scikit-learn itself finds an infinity among objects.
    with pytest.raises(ValueError, match=f"{UNITS}|infinity or a value too large"):
        HalfQuadraticRobustRegressor().fit(X, y)


@pytest.mark.parametrize("size", [1e12, 1e60])
@pytest.mark.parametrize("period", [2.5, 3, 4, 20])
def test_giant_outliers_at_regular_places(rng, size, period):
    n = 100_000
    X = rng.normal(size=(n, 2))
    y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=n)
    y[np.arange(n) % period < 1] += size
    model = make().fit(X, y)
    assert_allclose(model.coef_, [1.0, 2.0], atol=0.01)
    assert_allclose(model.scale_, 0.1, rtol=0.05)
    assert model.inlier_mask_.sum() < n * (1 - 1 / period) + 1


def test_small_chunks_take_little_memory(rng):
    X = rng.normal(size=(30_000, 2))
    y = X @ [1.0, 2.0] + np.exp(10 * rng.normal(size=30_000))  # residuals of all sizes
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            make(chunk_size=300, max_iter=2).fit(X, y)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30 * X.nbytes


def test_nothing_but_zeros_in_X_and_no_intercept():
    """There is no parameter, and the scale is that of y."""
    y = np.array([0.1, -0.3, 0.2, 50.0])
    for alpha in (0.0, 1e-300, 1.0):
        for targets in (y, np.column_stack([y, -y])):
            model = HalfQuadraticRobustRegressor(alpha=alpha, fit_intercept=False)
            model.fit(np.zeros((4, 2)), targets)
            assert_array_equal(model.coef_, 0.0)
            assert_array_equal(model.inlier_mask_, [True, True, True, False])


@pytest.mark.parametrize("kernel", ["smooth_truncated_quadratic", "tukey", "welsch"])
@pytest.mark.parametrize("alpha", [1e-9, 1e-6, 1e-3])
def test_a_plane_through_one_row_is_no_population(kernel, alpha):
    """A weak penalty changes little, also where values repeat."""
    x = np.array([2, 2, -2, 0, 2, -2, 2, 0, 1, 2, -2, 2, -2, -1, 1, 1.0])
    y = np.array([-1, 5, 10, -43, 0, 0, 0, -4, -1, 0, -2, 14, 1, 1, 4, -8.0])
    model = HalfQuadraticRobustRegressor(kernel=kernel, alpha=alpha, random_state=0)
    model.fit(x[:, None], y)
    assert model.inlier_mask_.sum() >= 9  # was one
    assert abs(model.intercept_) < 2.0


@pytest.mark.parametrize("init", ["auto", np.array([0.5, 0.1])])
@pytest.mark.parametrize(("alpha", "weight"), [(1e300, 1.0), (1e60, 4e-302)])
def test_penalties_whose_squares_overflow(init, alpha, weight):
    X, y = np.array([[2.0], [1.0], [0.0]]), np.array([0.1, 0.2, 0.3])
    model = HalfQuadraticRobustRegressor(alpha=alpha, init=init)
    with pytest.raises(ValueError, match="alpha is too large in view of"):
        model.fit(X, y, sample_weight=np.full(3, weight))
