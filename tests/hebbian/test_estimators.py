"""Behaviour of the contrastive Hebbian estimators."""

import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_mm import ContrastiveHebbianClassifier, ContrastiveHebbianRegressor
from sklearn_mm._hebbian.classifier import project_to_simplex
from sklearn_mm._hebbian.settings import (
    criterion_of,
    feedback_weight,
    learning_rate_of,
    penalty_of,
    supports_partial_fit,
)
from sklearn_mm.baselines import Alternating, Joint
from sklearn_mm.criteria import (
    Fixed,
    Graduated,
    RelaxedGeneralized,
    SufficientDescent,
)

BOTH = [ContrastiveHebbianRegressor, ContrastiveHebbianClassifier]
# Many fits here are too short to converge, which is not what they are about.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*did not converge:sklearn.exceptions.ConvergenceWarning"
)


@pytest.fixture(scope="module")
def friedman():
    X, y = make_friedman1(300, random_state=0)
    return StandardScaler().fit_transform(X), y


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def regressor(**kwargs):
    defaults = {"hidden_layer_sizes": (10, 8), "max_iter": 5, "random_state": 0}
    return ContrastiveHebbianRegressor(**{**defaults, **kwargs})


def test_default_settings_learn():
    X, y = load_diabetes(return_X_y=True)
    model = make_pipeline(StandardScaler(), ContrastiveHebbianRegressor(random_state=0))
    assert model.fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.3


def test_attributes(friedman):
    model = regressor().fit(*friedman)
    assert [W.shape for W in model.coefs_] == [(10, 10), (10, 8), (8, 1)]
    assert [b.shape for b in model.intercepts_] == [(10,), (8,), (1,)]
    assert (model.n_layers_, model.n_outputs_, model.n_iter_) == (4, 1, 5)
    assert len(model.loss_curve_) == 5
    assert model.best_loss_ == min(model.loss_curve_)
    assert model.validation_scores_ is None
    history = model.history_
    assert len(history.upper_bound) == 5 * 2  # 300 rows in batches of 200
    assert np.all(history.gap >= 0) and np.all(history.passes >= 1)


def test_one_hidden_layer_predicts_as_the_relu_network_does(friedman):
    X, y = friedman
    model = regressor(hidden_layer_sizes=9).fit(X, y)
    hidden = np.maximum(X @ model.coefs_[0] + model.intercepts_[0], 0)
    output = hidden @ model.coefs_[1] + model.intercepts_[1]
    expected = output * model.target_scale_ + model.target_mean_
    assert_allclose(model.predict(X), expected[:, 0], rtol=1e-12)
    assert_allclose(model.activations(X)[0], hidden, rtol=1e-12)


def test_activations_minimise_the_free_energy(friedman):
    X, y = friedman
    model = regressor(feedback=1.0, inference_tol=1e-14, max_passes=5000).fit(X, y)
    z_1, z_2 = model.activations(X)
    r_0 = z_1 - X @ model.coefs_[0] - model.intercepts_[0]
    r_1 = z_2 - z_1 @ model.coefs_[1] - model.intercepts_[1]
    gradient = r_0 - r_1 @ model.coefs_[1].T
    for z, g in ((z_1, gradient), (z_2, r_1)):
        assert np.all(z >= 0)
        assert_allclose(np.minimum(z, g), 0.0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_bounds_enclose_and_agree(friedman, dtype):
    X, y = friedman
    model = regressor().fit(X.astype(dtype), y)
    lower, upper = model.bounds(X, y)
    assert lower <= upper <= lower * (1 + 1e-9)
    loose = clone(model).set_params(max_passes=2)
    loose.__dict__.update({k: v for k, v in vars(model).items() if k.endswith("_")})
    loose._flat_targets = True
    low, high = loose.bounds(X, y)
    assert low <= lower and upper <= high
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    repeated = model.bounds(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    assert_allclose(model.bounds(X, y, weight), repeated, rtol=1e-9)


def test_units_of_targets_do_not_matter(friedman):
    X, y = friedman
    plain = regressor().fit(X, y).predict(X)
    scaled = regressor().fit(X, 1e6 * y - 5e6).predict(X)
    assert_allclose(scaled, 1e6 * plain - 5e6, rtol=1e-6)
    constant = regressor().fit(X, np.full(len(y), 3.0))
    assert np.all(np.isfinite(constant.predict(X)))


def test_multi_output_and_sparse(friedman):
    X, y = friedman
    Y = np.column_stack([y, -y, y**2])
    dense = regressor().fit(X, Y)
    sparse = regressor().fit(scipy.sparse.csr_matrix(X), Y)
    assert dense.predict(X).shape == Y.shape
    assert_allclose(sparse.predict(X), dense.predict(X), rtol=1e-6, atol=1e-8)


def test_float32_is_kept(friedman):
    X, y = friedman
    model = regressor().fit(X.astype(np.float32), y)
    assert model.coefs_[0].dtype == np.float32
    assert model.predict(X.astype(np.float32)).dtype == np.float32
    expected = regressor().fit(X, y).predict(X)
    assert_allclose(model.predict(X), expected, atol=0.01 * np.std(y))


@pytest.mark.parametrize("criterion", ["sudemm", "regemm", "fixed"])
@pytest.mark.parametrize("solver", ["adam", "gd"])
def test_full_batch_is_invariant_to_chunks_and_workers(friedman, criterion, solver):
    X, y = friedman
    kwargs = {"criterion": criterion, "solver": solver, "batch_size": None}
    expected = regressor(**kwargs).fit(X, y).predict(X)
    for chunk_size, n_jobs in ((64, None), (64, 2), (17, 2)):
        model = regressor(chunk_size=chunk_size, n_jobs=n_jobs, **kwargs).fit(X, y)
        assert_allclose(model.predict(X), expected, rtol=1e-5)


@pytest.mark.parametrize("criterion", ["sudemm", "regemm"])
def test_gradient_descent_never_raises_the_bound(friedman, criterion):
    X, y = friedman
    model = regressor(criterion=criterion, solver="gd", max_iter=30).fit(X, y)
    history = model.history_
    assert history.satisfied.all()
    if criterion == "regemm":
        assert np.all(np.diff(history.upper_bound) <= 1e-12)
    else:
        assert np.all(np.diff(history.lower_bound) <= 1e-12)


def test_regemm_does_not_stop_before_theta_has_moved(friedman):
    X, y = friedman
    model = regressor(criterion="regemm", max_iter=100, learning_rate_init=0.01)
    assert model.fit(X, y).score(X, y) > 0.6


def test_inference_by_coordinates_reaches_the_same_model(friedman):
    X, y = friedman
    kwargs = {"criterion": "fixed", "n_passes": 100, "batch_size": None}
    block = regressor(**kwargs).fit(X, y)
    coordinate = regressor(inference="coordinate", **kwargs).fit(X, y)
    assert_allclose(coordinate.predict(X), block.predict(X), atol=1e-4 * np.std(y))


def test_alternating_baseline_keeps_latents(friedman):
    X, y = friedman
    # A feedback with which two passes are not enough to finish.
    model = regressor(
        criterion="alternating", n_passes=2, max_iter=20, feedback=1.0
    ).fit(X, y)
    assert np.all(model.history_.passes == 2)
    assert model.history_.gap[-1] < model.history_.gap[0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"criterion": "regemm", "batch_size": 50}, "successive updates"),
        ({"criterion": RelaxedGeneralized(), "batch_size": 50}, "successive updates"),
        ({"criterion": "alternating", "batch_size": 50}, "all rows"),
        ({"solver": "gd", "batch_size": 50}, "step length"),
        ({"solver": "sgd", "learning_rate": "invscaling", "power_t": 0.5}, "power_t"),
        ({"solver": "sgd", "learning_rate": "invscaling", "power_t": 1.1}, "power_t"),
        ({"hidden_layer_sizes": ()}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": (3, 0)}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": (3.5,)}, "hidden_layer_sizes"),
        ({"feedback": 0.0}, "feedback"),
        ({"early_stopping": True, "validation_fraction": 0.001}, "validation"),
    ],
)
def test_impossible_settings_are_refused(friedman, params, message):
    with pytest.raises(ValueError, match=message):
        regressor(**params).fit(*friedman)


def test_grid_search_over_criteria(friedman):
    grid = {"criterion": ["sudemm", "regemm", "fixed", SufficientDescent(0.1)]}
    search = GridSearchCV(regressor(max_iter=3), grid, cv=2, error_score="raise")
    assert np.all(np.isfinite(search.fit(*friedman).cv_results_["mean_test_score"]))


def test_schedules_of_sgd(friedman):
    model = regressor(
        solver="sgd", learning_rate="invscaling", momentum=0.0, power_t=0.75
    ).fit(*friedman)
    rates = model.history_.step_size
    t = np.arange(1, len(rates) + 1)
    assert_allclose(rates, 1e-3 / t**0.75)
    criterion = criterion_of(model)
    assert criterion.power_t == 1.5
    assert_allclose(criterion.rho_at(3), 0.5 / 4**1.5)


@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_partial_fit_is_a_pass_over_the_rows(friedman, solver):
    X, y = friedman
    kwargs = {"solver": solver, "shuffle": False, "max_iter": 4}
    kwargs |= {"learning_rate_init": 0.002, "alpha": 1e-3}  # "auto" looks at n_samples
    whole = regressor(**kwargs).fit(X, y)
    stream = regressor(**kwargs)
    for _ in range(4):
        stream.partial_fit(X, y)
    assert stream.n_iter_ == 4 and len(stream.loss_curve_) == 4
    assert_allclose(stream.predict(X), whole.predict(X), rtol=1e-6)
    revived = pickle.loads(pickle.dumps(stream)).partial_fit(X, y)
    assert_allclose(revived.predict(X), stream.partial_fit(X, y).predict(X))


def test_partial_fit_is_refused_where_it_makes_no_sense(friedman):
    for params in (
        {"criterion": "regemm"},
        {"criterion": RelaxedGeneralized()},
        {"criterion": RelaxedGeneralized(0.1, 0.2)},
        {"criterion": "alternating"},
        {"criterion": Alternating()},
        {"solver": "gd"},
    ):
        assert not hasattr(regressor(**params), "partial_fit")
        with pytest.raises(AttributeError, match="requires all rows in each update"):
            supports_partial_fit(regressor(**params))
    assert hasattr(regressor(criterion=SufficientDescent(0.1)), "partial_fit")
    with pytest.raises(ValueError, match="early_stopping"):
        regressor(early_stopping=True).partial_fit(*friedman)
    model = regressor().partial_fit(*friedman)
    with pytest.raises(ValueError, match="2 outputs"):
        model.partial_fit(friedman[0], np.column_stack([friedman[1]] * 2))


def test_alternating_by_name_and_as_an_object(friedman):
    X, y = friedman
    params = {"n_passes": 3, "max_iter": 4}
    named = regressor(criterion="alternating", **params).fit(X, y)
    for criterion in (Alternating(), Alternating(3)):
        model = regressor(criterion=criterion, **params).fit(X, y)
        assert_array_equal(model.coefs_[0], named.coefs_[0])
        assert_array_equal(model.history_.effort, 3)
    other = regressor(criterion=Alternating(7), **params).fit(X, y)
    assert_array_equal(other.history_.effort, 7)
    with pytest.raises(ValueError, match="stores the activations of all rows"):
        regressor(criterion=Alternating(), batch_size=50).fit(X, y)


@pytest.mark.parametrize("criterion", [Joint(), Graduated()])
def test_criteria_of_robust_estimation_are_refused(friedman, criterion):
    model = regressor(criterion=criterion)
    name = type(criterion).__name__
    with pytest.raises(ValueError, match=rf"{name}\(\) is only supported in robust"):
        model.fit(*friedman)
    assert not hasattr(model, "coefs_")


@pytest.mark.parametrize(
    "params", [{}, {"batch_size": None}, {"batch_size": None, "solver": "gd"}]
)
def test_criteria_need_the_methods_alone(friedman, params):
    """They do not compare rounds unless they say so."""

    class Own:
        def __init__(self, criterion):
            names = ("satisfied", "attainable", "excessive", "prescribe", "converged")
            for name in names:
                setattr(self, name, getattr(criterion, name))

    found, expected = (
        regressor(criterion=criterion, tol=0.1, **params).fit(*friedman)
        for criterion in (Own(SufficientDescent()), SufficientDescent())
    )
    assert found.n_iter_ == expected.n_iter_
    assert_array_equal(found.coefs_[0], expected.coefs_[0])


def test_warm_start_continues(friedman):
    X, y = friedman
    model = regressor(warm_start=True, max_iter=10).fit(X, y)
    first = model.loss_curve_[0]
    model.fit(X, y)
    assert model.loss_curve_[0] < first
    model.set_params(hidden_layer_sizes=(3,))
    with pytest.raises(ValueError, match="warm_start"):
        model.fit(X, y)


def test_early_stopping_keeps_the_best_weights(friedman):
    X, y = friedman
    model = regressor(
        early_stopping=True, max_iter=300, n_iter_no_change=3, learning_rate_init=0.02
    ).fit(X, y)
    assert model.n_iter_ == len(model.validation_scores_) < 300
    assert max(model.validation_scores_) > 0.5


def test_divergence_warns_and_keeps_finite_weights(friedman):
    X, y = friedman
    model = regressor(
        criterion="fixed", n_passes=1, solver="sgd", learning_rate_init=10.0
    )
    with pytest.warns(ConvergenceWarning, match="learning_rate_init"):
        model.fit(X, y)
    assert np.all(np.isfinite(model.predict(X)))


def test_cap_on_passes_warns(friedman):
    model = regressor(max_passes=1, feedback=1.0)
    with pytest.warns(ConvergenceWarning, match="max_passes=1"):
        model.fit(*friedman)
    assert not model.history_.satisfied.all()
    with pytest.warns(ConvergenceWarning, match="max_passes=1"):
        model.predict(friedman[0])


def test_max_iter_warns(friedman):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConvergenceWarning, match="max_iter"):
            regressor().fit(*friedman)


def test_fixed_takes_the_effort_of_the_object_or_the_parameter(friedman):
    assert np.all(regressor(criterion="fixed").fit(*friedman).history_.passes == 8)
    model = regressor(criterion=Fixed(3)).fit(*friedman)
    assert np.all(model.history_.passes == 3)


def test_classifier(iris):
    X, y = iris
    labels = np.array(["setosa", "versicolor", "virginica"])[y]
    model = ContrastiveHebbianClassifier(
        (16, 8), learning_rate_init=0.01, max_iter=60, random_state=0
    ).fit(X, labels)
    assert_array_equal(model.classes_, np.unique(labels))
    assert model.score(X, labels) > 0.9
    probabilities = model.predict_proba(X)
    assert_allclose(probabilities.sum(axis=1), 1.0)
    assert np.all(probabilities >= 0)
    assert_array_equal(model.classes_[probabilities.argmax(axis=1)], model.predict(X))
    lower, upper = model.bounds(X, labels)
    assert 0 <= lower <= upper


def test_class_weight_is_a_sample_weight(iris):
    X, y = iris
    kwargs = {"criterion": "regemm", "max_iter": 5, "random_state": 0}
    weights = {0: 1.0, 1: 2.0, 2: 5.0}
    by_class = ContrastiveHebbianClassifier((8,), class_weight=weights, **kwargs)
    by_row = ContrastiveHebbianClassifier((8,), **kwargs)
    sample_weight = np.array([weights[label] for label in y])
    assert_allclose(
        by_class.fit(X, y).predict_proba(X),
        by_row.fit(X, y, sample_weight).predict_proba(X),
    )
    balanced = by_class.set_params(class_weight="balanced").fit(X, y)
    equal = by_row.fit(X, y)
    assert_allclose(balanced.predict_proba(X), equal.predict_proba(X))


def test_classifier_refuses_other_targets(iris):
    X, y = iris
    model = ContrastiveHebbianClassifier((4,), max_iter=2)
    with pytest.raises(ValueError, match="multilabel"):
        model.fit(X, np.eye(3, dtype=int)[y])
    with pytest.raises(ValueError, match="class"):
        model.fit(X, np.zeros(len(y)))
    with pytest.raises(ValueError, match="balanced"):
        model.set_params(class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])


def test_classifier_partial_fit(iris):
    X, y = iris
    model = ContrastiveHebbianClassifier(
        (8,), learning_rate_init=0.01, batch_size=60, random_state=0
    )
    model.partial_fit(X[:60], y[:60], classes=[0, 1, 2])
    for _ in range(80):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.9
    with pytest.raises(ValueError, match="not among the classes"):
        model.partial_fit(X, y + 1)


def test_projection_onto_the_simplex():
    outputs = np.random.default_rng(0).normal(size=(200, 4))
    projected = project_to_simplex(outputs)
    assert_allclose(projected.sum(axis=1), 1.0)
    corners = np.eye(4)
    # Variational inequality of the nearest point of a convex set.
    for corner in corners:
        inner = np.sum((outputs - projected) * (corner - projected), axis=1)
        assert np.all(inner <= 1e-12)
    inside = np.array([[0.2, 0.3, 0.5, 0.0]])
    assert_allclose(project_to_simplex(inside), inside)


def test_memory_of_full_batches_does_not_grow_with_rows():
    rng = np.random.default_rng(0)
    peaks = []
    for n in (4000, 32000):
        X = rng.normal(size=(n, 10))
        y = X[:, 0]
        model = regressor(
            hidden_layer_sizes=(32, 32),
            criterion="regemm",
            max_iter=2,
            chunk_size=500,
        )
        tracemalloc.start()
        model.fit(X, y)
        peaks.append(tracemalloc.get_traced_memory()[1] / 2**20)
        tracemalloc.stop()
    # Targets, weights and masks: a few numbers a row, beside 64 activations in each of
    # two phases with their residuals.
    per_row = (peaks[1] - peaks[0]) * 2**20 / 28000
    assert per_row < 8 * 10


@pytest.mark.parametrize("cls", BOTH)
def test_errors_leave_the_estimator_as_it_was(cls, iris):
    X, y = iris
    model = cls((4,), max_iter=2, random_state=0).fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError):
        model.fit(X[:, :2], np.full(len(y), np.nan))
    assert_array_equal(model.predict(X), before)


def test_verbose_prints_a_line_an_epoch(friedman, capsys):
    regressor(verbose=1, max_iter=3).fit(*friedman)
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_automatic_feedback_can_be_held_in_single_precision():
    for n_hidden in (1, 4):
        assert feedback_weight("auto", "adam", n_hidden) == 0.003
    for n_hidden in (5, 10, 50):
        feedback = feedback_weight("auto", "adam", n_hidden)
        assert_allclose(feedback**-n_hidden, 1e12)
    assert feedback_weight("auto", "gd", 3) == 1.0
    assert feedback_weight(0.5, "gd", 3) == 0.5


def test_rate_and_penalty_by_default():
    model = ContrastiveHebbianRegressor()
    rates = [learning_rate_of(model, n) for n in (10, 12_500, 50_000, 10**7, None)]
    assert_allclose(rates, [0.004, 0.002, 0.001, 0.001, 0.001])
    penalties = [penalty_of(model, n) for n in (100, 20_000, 10**7, None)]
    assert_allclose(penalties, [0.01, 5e-5, 5e-5, 5e-5])
    for loss, least in (("log_loss", 2e-4), ("squared_error", 5e-5)):
        classifier = ContrastiveHebbianClassifier(loss=loss)
        penalties = [penalty_of(classifier, n) for n in (100, 10**7, None)]
        assert_allclose(penalties, [0.01, least, least])
    model.set_params(learning_rate_init=0.7, alpha=0.3)
    assert (learning_rate_of(model, 10), penalty_of(model, 10)) == (0.7, 0.3)
    assert learning_rate_of(ContrastiveHebbianRegressor(solver="sgd"), 10) == 0.001


def test_rate_and_penalty_where_rows_are_not_all_or_copies(friedman):
    X, y = friedman
    for params in ({}, {"batch_size": None}):
        auto, given = (
            regressor(**params, **more)
            for more in ({}, {"learning_rate_init": 1e-3, "alpha": 5e-5})
        )
        train = "fit" if params else "partial_fit"
        for model in (auto, given):
            getattr(model, train)(X, y)
        assert_array_equal(auto.predict(X), given.predict(X))


def test_deep_networks_are_trained_with_defaults(friedman):
    X, y = friedman
    model = regressor(hidden_layer_sizes=(16,) * 10, max_iter=60).fit(X, y)
    assert model.score(X, y) > 0.5
    lower, upper = model.bounds(X, y)
    assert 0 < upper < 0.5 and lower >= 0.9 * upper


@pytest.mark.parametrize("hidden", [(64,), (16, 16, 16, 16)])
def test_small_gaps_do_not_end_training(friedman, hidden):
    # With a small feedback the yardstick of the stochastic criterion is tiny.
    X, y = friedman
    for batch_size in (100, None):
        model = regressor(hidden_layer_sizes=hidden, batch_size=batch_size)
        assert model.fit(X, y).n_iter_ == 5


@pytest.mark.parametrize("max_iter", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [None, 60, 20])
def test_an_update_into_nowhere_is_taken_back(batch_size, max_iter):
    X, y = make_friedman1(60, random_state=0)
    model = ContrastiveHebbianRegressor(
        (5, 4),
        learning_rate_init=1e200,
        alpha=0.0,
        max_iter=max_iter,
        batch_size=batch_size,
    )
    with pytest.warns(ConvergenceWarning, match=r"diverged within \d epochs"):
        model.fit(X, y)
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("batch_size", [None, 20])
def test_inputs_whose_squares_overflow_are_refused(batch_size):
    X, y = make_friedman1(60, random_state=0)
    model = ContrastiveHebbianRegressor((5, 4), batch_size=batch_size)
    with pytest.raises(ValueError, match=r"is not finite.*Scale X"):
        model.fit(1e160 * X, y)
    assert not hasattr(model, "coefs_")


def test_a_class_of_one_row_is_named(rng):
    X, y = rng.normal(size=(41, 2)), np.repeat(["a", "b"], [40, 1])
    model = ContrastiveHebbianClassifier(early_stopping=True)
    with pytest.raises(ValueError, match=r"\['b'\] have only one row"):
        model.fit(X, y)
