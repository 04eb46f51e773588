"""Losses, units of features, and what estimators make of them."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from reference import LOSSES
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from sklearn_mm import ContrastiveHebbianClassifier, ContrastiveHebbianRegressor
from sklearn_mm._hebbian.classifier import project_to_simplex
from sklearn_mm._hebbian.inputs import Units, units_of
from sklearn_mm._hebbian.targets import mean_and_deviation
from sklearn_mm._rows.sources import lazy_rows
from sklearn_mm.losses import (
    Huber,
    LogLoss,
    Loss,
    SquaredError,
    check_loss,
    get_loss,
    softmax,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*did not converge:sklearn.exceptions.ConvergenceWarning"
)


def rows(name, n=50, seed=0):
    rng = np.random.default_rng(seed)
    output = 2.0 * rng.normal(size=(n, 3))
    if name == "log_loss":
        return output, rng.dirichlet(np.ones(3), size=n)
    return output, rng.normal(size=(n, 3))


@pytest.mark.parametrize("name", sorted(LOSSES))
class TestLosses:
    def test_descent_is_minus_the_gradient(self, name):
        loss = LOSSES[name]
        output, target = rows(name)
        descent = loss.descent(output, target)
        for j in range(3):
            step = np.zeros(3)
            step[j] = 1e-6
            ahead, behind = (loss.value(output + s * step, target) for s in (1.0, -1.0))
            assert_allclose(descent[:, j], (behind - ahead) / 2e-6, atol=1e-8)
        out = np.empty_like(output)
        assert loss.descent(output, target, out=out) is out
        assert_array_equal(out, descent)

    def test_convex_non_negative_and_no_more_curved_than_it_says(self, name):
        loss = LOSSES[name]
        (f, y), (g, _) = rows(name), rows(name, seed=1)
        assert np.all(loss.value(f, y) >= 0.0)
        below = loss.value(f, y) - np.sum(loss.descent(f, y) * (g - f), axis=1)
        gain = loss.value(g, y) - below
        assert np.all(gain >= -1e-12)
        square = np.sum((g - f) ** 2, axis=1)
        assert np.all(gain <= 0.5 * loss.curvature * square + 1e-12)

    def test_single_precision_is_kept(self, name):
        output, target = (a.astype(np.float32) for a in rows(name))
        assert LOSSES[name].value(output, target).dtype == np.float32
        assert LOSSES[name].descent(output, target).dtype == np.float32


def test_huge_outputs():
    huge = np.array([[1e30, -1e30, 0.0]], dtype=np.float32)
    assert_allclose(softmax(huge), [[1.0, 0.0, 0.0]])
    assert_allclose(project_to_simplex(huge), [[1.0, 0.0, 0.0]])
    assert project_to_simplex(huge).dtype == huge.dtype
    crowd = np.array([[1e8, 1e8 + 8, -1e8]], dtype=np.float32)
    assert_allclose(project_to_simplex(crowd).sum(), 1.0)
    assert LogLoss().value(huge, np.eye(3, dtype=np.float32)[:1]) == 0.0


def test_lookup():
    assert get_loss("huber") == Huber()
    own = SquaredError()
    assert get_loss(own) is own
    with pytest.raises(ValueError, match="Unknown loss 'hinge'"):
        get_loss("hinge")
    with pytest.raises(ValueError, match="the class Huber"):
        get_loss(Huber)
    with pytest.raises(ValueError, match="width"):
        Huber(0.0)


class LogCosh(Loss):
    curvature = 1.0

    def value(self, output, target):
        error = output - target
        return np.sum(np.logaddexp(error, -error) - np.log(2), axis=1)

    def descent(self, output, target, out=None):
        return np.tanh(np.subtract(target, output, out=out), out=out)


class NoCurvature:
    value, descent = LogCosh.value, LogCosh.descent


class Infinite(LogCosh):
    curvature = np.inf


class OneNumber(LogCosh):
    def value(self, output, target):
        return float(super().value(output, target).sum())


class BelowZero(LogCosh):
    """Positive for one of the two rows that are tried."""

    def value(self, output, target):
        return super().value(output, target) - 0.1


class NewArray(LogCosh):
    def descent(self, output, target, out=None):
        return np.tanh(target - output)


class WrongSign(LogCosh):
    def descent(self, output, target, out=None):
        return np.negative(super().descent(output, target, out=out), out=out)


@pytest.mark.parametrize(
    "loss, message",
    [
        (NoCurvature(), "NoCurvature: curvature must be a positive number"),
        (Infinite(), "Infinite: curvature must be a positive number"),
        (OneNumber(), "OneNumber: value must return one non-negative number per row"),
        (BelowZero(), "BelowZero: value must return one non-negative number per row"),
        (NewArray(), "NewArray: descent must write its result to the array out"),
        (WrongSign(), "WrongSign: descent must be minus the gradient of value"),
    ],
)
def test_custom_losses_that_contradict_themselves(loss, message):
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ValueError, match=message):
        ContrastiveHebbianRegressor(loss=loss).fit(X, X[:, 0])


class Own:
    """A loss that is not derived from `Loss`, computed in a given precision."""

    curvature = 1.0

    def __init__(self, loss, dtype):
        self.loss, self.dtype = loss, dtype

    def value(self, output, target):
        return self.loss.value(output.astype(self.dtype), target.astype(self.dtype))

    def descent(self, output, target, out=None):
        exact = self.loss.descent(output.astype(self.dtype), target.astype(self.dtype))
        if out is None:
            return exact
        out[:] = exact
        return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [Huber(1e-3), Huber(1e3), LogLoss(), SquaredError()])
def test_custom_losses_that_are_sound(loss, dtype):
    for n_outputs in (2, 5) if isinstance(loss, LogLoss) else (1, 2, 5):
        check_loss(Own(loss, dtype), n_outputs)


@pytest.mark.parametrize(
    "activation", ["relu", "hard_sigmoid", "hard_tanh", "identity"]
)
@pytest.mark.parametrize("loss", ["squared_error", "huber", LogCosh()])
@pytest.mark.parametrize("feedback", ["auto", 1.0])
def test_regressor_with_any_loss_and_activation(loss, activation, feedback):
    X, y = make_friedman1(200, random_state=0)
    model = ContrastiveHebbianRegressor(
        (16, 8),
        loss=loss,
        activation=activation,
        feedback=feedback,
        learning_rate_init=0.01,
        max_iter=60,
        random_state=0,
    ).fit(X, y)
    assert model.score(X, y) > 0.5
    assert model.history_.satisfied.all()
    lower, upper = model.bounds(X, y)
    assert 0.0 <= lower <= upper <= lower * (1 + 1e-6)


def test_huber_ignores_outliers():
    X, y = make_friedman1(300, random_state=0)
    spoilt = y.copy()
    spoilt[::10] += 100.0
    scores = {}
    for loss in ("squared_error", "huber"):
        model = ContrastiveHebbianRegressor(
            loss=loss, huber_width=0.1, max_iter=300, random_state=0
        )
        scores[loss] = model.fit(X, spoilt).score(X[1::10], y[1::10])
    assert scores["huber"] > scores["squared_error"] + 0.2


def test_log_loss_is_for_classes():
    X, y = make_friedman1(30, random_state=0)
    for loss in ("log_loss", LogLoss()):
        with pytest.raises(ValueError, match="ContrastiveHebbianClassifier"):
            ContrastiveHebbianRegressor((4,), loss=loss, max_iter=2).fit(X, y)


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_and_decisions(loss, n_classes):
    X, y = load_wine(return_X_y=True)
    X, y = X[y < n_classes], y[y < n_classes]
    model = ContrastiveHebbianClassifier((8,), loss=loss, max_iter=60, random_state=0)
    probability = model.fit(X, y).predict_proba(X)
    assert_allclose(probability.sum(axis=1), 1.0)
    with np.errstate(divide="ignore"):
        assert_allclose(model.predict_log_proba(X), np.log(probability), atol=1e-9)
    scores = model.decision_function(X)
    assert scores.shape == ((len(y),) if n_classes == 2 else (len(y), n_classes))
    chosen = (scores > 0).astype(int) if n_classes == 2 else scores.argmax(axis=1)
    assert_array_equal(chosen, model.predict(X))
    if loss == "log_loss":
        # The loss of a network without feedback is its cross-entropy.
        assert_allclose(model.bounds(X, y)[1], log_loss(y, probability), rtol=0.05)


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
def test_probabilities_of_absurd_rows(loss):
    X, y = load_wine(return_X_y=True)
    X = X.astype(np.float32)
    model = ContrastiveHebbianClassifier((8, 6), loss=loss, max_iter=20, random_state=0)
    model.fit(X, y)
    for size in (1e3, 1e8, 1e12):
        probability = model.predict_proba(X * np.float32(size))
        assert np.all(probability >= 0.0)
        assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-5)


def test_early_stopping_tells_its_scores():
    X, y = load_wine(return_X_y=True)
    model = ContrastiveHebbianClassifier(
        (8,), early_stopping=True, max_iter=20, random_state=0
    ).fit(X, y)
    assert model.best_validation_score_ == max(model.validation_scores_)
    assert model.loss_ == model.loss_curve_[-1]


class TestUnits:
    def test_raw_features_do_as_well_as_scaled_ones(self):
        X, y = load_breast_cancer(return_X_y=True)
        model = ContrastiveHebbianClassifier(max_iter=60, random_state=0)
        raw = model.fit(X[::2], y[::2]).score(X[1::2], y[1::2])
        scaled = StandardScaler().fit(X[::2]).transform(X)
        assert raw >= model.fit(scaled[::2], y[::2]).score(scaled[1::2], y[1::2]) - 0.01
        assert raw > 0.95

    def test_units_do_not_matter(self):
        X, y = make_friedman1(200, random_state=0)
        scale = 10.0 ** np.arange(-5, 5)
        model = ContrastiveHebbianRegressor((8, 5), max_iter=10, random_state=0)
        expected = model.fit(X, y).predict(X)
        moved = X * scale + 100.0 * scale
        assert_allclose(model.fit(moved, y).predict(moved), expected, rtol=1e-6)

    def test_coefficients_are_those_of_the_units_of_X(self):
        X, y = make_friedman1(200, random_state=0)
        X = 50.0 + 20.0 * X
        model = ContrastiveHebbianRegressor((8,), max_iter=5, random_state=0).fit(X, y)
        hidden = np.maximum(X @ model.coefs_[0] + model.intercepts_[0], 0)
        output = hidden @ model.coefs_[1] + model.intercepts_[1]
        expected = output * model.target_scale_ + model.target_mean_
        assert_allclose(model.predict(X), expected[:, 0], rtol=1e-9)

    def test_columns_of_like_kind_have_one_scale(self):
        X, _ = load_digits(return_X_y=True)
        units = units_of(X, np.broadcast_to(1.0, len(X)))
        assert np.ptp(units.scale) == 0.0
        assert_allclose(units.centre, X.mean(axis=0))
        X, _ = load_breast_cancer(return_X_y=True)
        units = units_of(X, np.broadcast_to(1.0, len(X)), chunk_size=100)
        assert_allclose(units.scale, X.std(axis=0), rtol=1e-9)

    def test_weights_count(self):
        X = np.random.default_rng(0).normal(size=(100, 3))
        weight = np.random.default_rng(1).integers(0, 4, 100).astype(float)
        weighted, repeated = (
            units_of(X, weight),
            units_of(
                np.repeat(X, weight.astype(int), axis=0), np.ones(int(weight.sum()))
            ),
        )
        assert_allclose(weighted.centre, repeated.centre)
        assert_allclose(weighted.scale, repeated.scale)

    @pytest.mark.parametrize("size", [1.0, 1e10, 1e30])
    def test_rows_without_weight_may_be_of_any_size(self, size):
        X = np.random.default_rng(0).normal(size=(200, 3))
        weight = np.ones(200)
        weight[[90, 150]] = weight[:80] = 0.0
        expected = units_of(X[weight > 0], weight[weight > 0])
        X[weight == 0.0] *= size
        for chunk_size in (None, 3, 50):
            found = units_of(X, weight, chunk_size)
            assert_allclose(found.centre, expected.centre, rtol=1e-9)
            assert_allclose(found.scale, expected.scale, rtol=1e-9)

    @pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
    def test_a_column_may_be_constant_in_a_chunk(self, kind):
        X = np.random.default_rng(0).random((90, 2))
        X[:60, 0] = 0.0
        whole, parts = (
            units_of(kind(X), np.ones(90), chunk_size) for chunk_size in (90, 30)
        )
        assert_allclose(parts.scale, whole.scale)
        square = np.mean(X**2, axis=0)
        mean = 0.0 if kind is scipy.sparse.csr_array else X.mean(axis=0)
        assert_allclose(whole.scale, np.sqrt(square - mean**2))

    def test_constant_columns_and_large_numbers(self):
        X = np.column_stack([np.full(50, 7.0), np.arange(50.0), np.zeros(50)])
        units = units_of(X, np.ones(50))
        assert_allclose(units.scale[[0, 2]], 1.0)
        big = units_of(1e25 * X.astype(np.float32), np.ones(50))
        assert_allclose(big.scale[1], 1e25 * X[:, 1].std(), rtol=1e-5)

    @pytest.mark.parametrize("factor", [1e-160, 1e-200, 1e-300])
    def test_squares_that_vanish_in_double_precision(self, factor, rng):
        X = rng.normal(size=(150, 3))
        X[:, 2] = 1.0
        y = X[:, 0] > X[:, 1]
        units = units_of(factor * X, np.ones(150))
        # Anything of this size will do.
        ratios = units.scale[:2] / (factor * X[:, :2].std(axis=0))
        assert np.all((ratios > 0.5) & (ratios < 2.0))
        assert units.scale[2] == 1.0
        model = ContrastiveHebbianClassifier(16, max_iter=200, random_state=0)
        assert model.fit(factor * X, y).score(factor * X, y) > 0.95

    @pytest.mark.parametrize("factor", [1e-25, 1e25])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_squares_beyond_single_precision(self, factor, sparse):
        X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
        X[:, 1] = 7.0
        kind = scipy.sparse.csr_array if sparse else np.asarray
        usual, other = (units_of(kind(c * X), np.ones(60)) for c in (1.0, factor))
        expected = usual.scale * factor
        expected[1] = 1.0
        assert_allclose(other.scale, expected, rtol=1e-5)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_centred_in_place_as_in_new_memory(self, dtype):
        rng = np.random.default_rng(0)
        X = (5.0 + rng.normal(size=(30, 20))).astype(dtype)
        for scale in (np.full(20, 2.0), rng.uniform(1.0, 2.0, size=20)):
            units = Units(rng.normal(size=20), scale).astype(dtype)
            x, memory = X.copy(), np.empty_like(X)
            converted = units.convert(X, out=memory)
            assert_allclose(units.convert(x, out=x), converted, rtol=1e-5)
            expected = (X - units.centre) / scale
            assert_allclose(converted * units.common, expected, rtol=1e-5)
            assert (units.common == 1.0) == (np.ptp(scale) > 0.0)

    def test_sparse_features_are_scaled_and_not_centred(self):
        rng = np.random.default_rng(0)
        X = rng.uniform(size=(200, 30)) * (rng.uniform(size=(200, 30)) < 0.1)
        X = scipy.sparse.csr_matrix(X * 10.0 ** rng.integers(-3, 4, 30))
        y = np.asarray(X[:, :3].sum(axis=1)).ravel() > 0
        model = ContrastiveHebbianClassifier(
            (8,), learning_rate_init=0.02, max_iter=40, random_state=0
        )
        assert model.fit(X, y).score(X, y) > 0.9
        assert model._units.centre is None

    def test_first_call_of_partial_fit_decides(self):
        X, y = make_friedman1(200, random_state=0)
        model = ContrastiveHebbianRegressor((8,), random_state=0)
        model.partial_fit(X[:100], y[:100])
        units = model._units
        model.partial_fit(X[100:] + 1.0, y[100:])
        assert model._units is units
        assert_allclose(units.centre, X[:100].mean(axis=0))


class TestTargets:
    @pytest.mark.parametrize("unit", [2.0**-70, 1.0, 2.0**70])
    def test_units_do_not_matter(self, rng, unit):
        Y = [5.0, 0.0, -1e-9] + [1.0, 1e-3, 1e-3] * rng.normal(size=(50, 3))
        weight = rng.uniform(size=50)
        mean, deviation = mean_and_deviation(unit * Y, weight, None)
        expected = np.average(Y, axis=0, weights=weight)
        assert_allclose(mean / unit, expected, atol=1e-12)
        variance = np.average((Y - expected) ** 2, axis=0, weights=weight)
        assert_allclose(deviation / unit, np.sqrt(variance))

    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("kind", ["array", "dask"])
    def test_far_from_zero_at_any_number_of_rows(self, rng, kind, weighted):
        """The rounding errors of sums grow with it."""
        n, values = 30_000, np.array([0.1, -1e30 / 3, 0.0, 1e10])
        Y, weight = np.tile(values, (n, 1)), np.ones(n)
        Y[::3, 0] = np.nextafter(0.1, 1.0)  # a constant but for rounding
        Y[:, 3] += np.where(np.arange(n) % 2, 2.0**-13, -(2.0**-13))
        if weighted:
            weight = rng.uniform(size=n)
            weight[: n // 3], Y[: n // 3] = 0.0, 1e60
        if kind == "array":
            mean, deviation = mean_and_deviation(Y, weight, None)
        else:
            dask, array = map(pytest.importorskip, ("dask", "dask.array"))
            blocks = lazy_rows(array.zeros((n, 1), chunks=(7_000, -1)))
            with dask.config.set(scheduler="synchronous"):
                Y = array.from_array(Y, chunks=(7_000, -1))
                mean, deviation = mean_and_deviation(Y, weight, blocks)
        assert_allclose(mean, values, rtol=4e-16)
        assert_array_equal(deviation[:3], 1.0)
        assert_allclose(deviation[3], 2.0**-13, rtol=1e-3)


class TestAverage:
    def test_fitted_weights_are_the_average_and_training_goes_on_from_the_iterate(self):
        X, y = make_friedman1(300, random_state=0)
        kwargs = {"batch_size": 20, "random_state": 0, "shuffle": False}
        averaged = ContrastiveHebbianRegressor((8,), **kwargs)
        plain = ContrastiveHebbianRegressor((8,), average=False, **kwargs)
        for _ in range(4):
            averaged.partial_fit(X, y)
            plain.partial_fit(X, y)
        assert_allclose(averaged._iterate, plain._iterate)
        assert_allclose(averaged.loss_curve_, plain.loss_curve_)
        difference = averaged.coefs_[0] - plain.coefs_[0]
        assert 0 < np.abs(difference).max() < 0.1

    def test_warm_start_goes_on_from_the_iterate(self):
        X, y = make_friedman1(300, random_state=0)
        fits = []
        for average in (True, False):
            model = ContrastiveHebbianRegressor(
                (8,), average=average, warm_start=True, max_iter=3, random_state=0
            )
            fits.append(model.fit(X, y).fit(X, y))
        assert_allclose(fits[0].loss_curve_, fits[1].loss_curve_)
        assert_allclose(fits[0]._iterate, fits[1]._iterate)
        assert np.abs(fits[0].coefs_[0] - fits[1].coefs_[0]).max() > 0

    def test_none_where_theorems_are_about_the_last_iterate(self):
        X, y = make_friedman1(100, random_state=0)
        for params in ({"solver": "gd"}, {"criterion": "regemm"}):
            fits = [
                ContrastiveHebbianRegressor(
                    (5,), average=average, max_iter=8, random_state=0, **params
                ).fit(X, y)
                for average in (True, False)
            ]
            assert_array_equal(fits[0].coefs_[0], fits[1].coefs_[0])


def test_tiny_feedback_does_not_overflow():
    X, y = make_friedman1(100, random_state=0)
    for feedback in (1e-160, 5e-324):
        for hidden in ((8,), (8, 6, 4)):
            model = ContrastiveHebbianRegressor(
                hidden, feedback=feedback, max_iter=5, random_state=0
            ).fit(X, y)
            assert np.isfinite(model.bounds(X, y)).all()
            assert np.isfinite(model.predict(X)).all()


def test_warnings_point_at_the_line_of_the_user():
    X, y = make_friedman1(60, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_passes") as caught:
        ContrastiveHebbianRegressor(
            (6, 5), feedback=1.0, max_passes=1, max_iter=2, random_state=0
        ).fit(X, y)
    assert all(warning.filename == __file__ for warning in caught)


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_huber_loss_is_not_widened_by_gross_outliers(rng, share):
    X = rng.normal(size=(500, 3))
    truth = 3.0 * np.sin(X[:, 0]) + 2.0 * X[:, 1]
    y = truth + 0.1 * rng.normal(size=500)
    y[rng.random(500) < share] = 99_999.0
    model = ContrastiveHebbianRegressor(loss="huber", random_state=0).fit(X, y)
    assert np.median(np.abs(model.predict(X) - truth)) < 0.4
    assert 1.5 < model.target_scale_[0] < 6.0


def test_huber_loss_where_most_targets_are_equal(rng):
    X = rng.normal(size=(200, 2))
    y = np.where(X[:, 0] > 0.8, X[:, 0], 0.0)
    model = ContrastiveHebbianRegressor(loss="huber", random_state=0).fit(X, y)
    assert model.target_scale_ == pytest.approx(y.std())
    assert model.score(X, y) > 0.7
