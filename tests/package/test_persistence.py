"""Fitted estimators survive being written and read, and say so if versions differ."""

import ast
import functools
import io
import pickle
from pathlib import Path

import joblib
import pytest
from estimator_modes import MODES, assert_same, data_for, fit, results
from sklearn.base import clone
from sklearn.exceptions import InconsistentVersionWarning, NotFittedError
from sklearn.utils import Bunch

import sklearn_mm
from sklearn_mm import HalfQuadraticRobustRegressor

# A few epochs are not meant to converge.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
MODULES = sorted(Path(sklearn_mm.__file__).parent.rglob("*.py"))
each_mode = pytest.mark.parametrize("name", MODES)
STREAMS = [
    name
    for name, model in MODES.items()
    if hasattr(model, "partial_fit") and not model.early_stopping
]


@functools.cache
def fitted(name):
    """Not to be changed by a test."""
    return fit(MODES[name])


def by_pickle(model):
    return pickle.loads(pickle.dumps(model))


def by_joblib(model):
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)


def by_cloudpickle(model):
    cloudpickle = pytest.importorskip("cloudpickle")
    return pickle.loads(cloudpickle.dumps(model))


def by_skops(model):
    skops = pytest.importorskip("skops.io")
    written = skops.dumps(model)
    trusted = skops.get_untrusted_types(data=written)
    assert all(name.startswith("sklearn_mm.") for name in trusted)
    return skops.loads(written, trusted=trusted)


round_trips = pytest.mark.parametrize(
    "round_trip", [by_pickle, by_joblib, by_cloudpickle, by_skops]
)


@round_trips
@each_mode
def test_round_trip(name, round_trip):
    model = fitted(name)
    restored = round_trip(model)
    assert_same(results(restored), results(model))
    assert type(restored.history_) is type(model.history_) is Bunch
    for parameter, value in model.get_params().items():
        assert getattr(restored, parameter) == value


@round_trips
@pytest.mark.parametrize("name", STREAMS)
def test_round_trip_in_the_middle_of_a_stream(name, round_trip):
    model = fit(MODES[name], "partial_fit", n_calls=2)
    restored = round_trip(model)
    assert_same(results(restored), results(model))
    X, y = data_for(model)
    # The optimiser's memory has come along.
    assert_same(results(restored.partial_fit(X, y)), results(model.partial_fit(X, y)))


@pytest.mark.parametrize("round_trip", [by_pickle, by_skops])
@each_mode
def test_unfitted(name, round_trip):
    model = MODES[name]
    restored = round_trip(model)
    assert restored.get_params() == model.get_params()
    X, _ = data_for(model)
    with pytest.raises(NotFittedError):
        restored.predict(X)


def test_a_fit_forgets_the_stream():
    name = STREAMS[0]
    streamed = fit(MODES[name], "partial_fit", n_calls=2)
    X, y = data_for(streamed)
    streamed.fit(X, y).partial_fit(X, y)
    fresh = clone(streamed).fit(X, y).partial_fit(X, y)
    assert_same(results(streamed), results(fresh))


def test_a_stream_follows_changed_parameters_and_sizes():
    # The first call has few rows; later mini-batches are as large as asked for.
    model = clone(MODES["ContrastiveHebbianRegressor mini-batch"])
    model.set_params(random_state=0, n_passes=3)
    X, y = data_for(model)
    model.partial_fit(X[::20], y[::20])
    assert len(model.history_.upper_bound) == 1
    model.partial_fit(X, y)
    assert len(model.history_.upper_bound) == 4  # 200 rows, 50 a batch
    model.set_params(criterion="fixed", n_passes=7).partial_fit(X, y)
    assert set(model.history_.passes) == {7.0}


def test_a_failed_call_leaves_the_stream_as_it_was():
    class Failing(type(MODES["ContrastiveHebbianRegressor object"].criterion)):
        def satisfied(self, trial, memory):
            raise OSError("no")

    name = "ContrastiveHebbianRegressor mini-batch"
    model, undisturbed = (fit(MODES[name], "partial_fit") for _ in range(2))
    X, y = data_for(model)
    criterion = model.criterion
    with pytest.raises(OSError, match="no"):
        model.set_params(criterion=Failing()).partial_fit(X, y)
    model.set_params(criterion=criterion).partial_fit(X, y)
    assert_same(results(model), results(undisturbed.partial_fit(X, y)))


class TestVersions:
    @pytest.mark.parametrize("other", ["0.0.1", "99.0"])
    @pytest.mark.parametrize("round_trip", [by_pickle, by_skops])
    @pytest.mark.parametrize("name", ["robust regemm", STREAMS[0], STREAMS[-1]])
    def test_another_version_warns(self, monkeypatch, name, round_trip, other):
        model = fitted(name)
        with monkeypatch.context() as patch:
            patch.setattr(sklearn_mm, "__version__", other)
            written = pickle.dumps(model)
        with pytest.warns(InconsistentVersionWarning) as caught:
            restored = pickle.loads(written)
        (warning,) = caught
        assert f"{type(model).__name__} of sklearn_mm" in str(warning.message)
        assert f"from version {other}" in str(warning.message)
        assert f"using version {sklearn_mm.__version__}" in str(warning.message)
        assert warning.message.original_sklearn_version == other
        assert_same(results(restored), results(model))
        # Written again, it belongs to this version.
        round_trip(restored)

    def test_a_state_without_version_warns(self):
        model = fitted("robust regemm")
        with pytest.warns(InconsistentVersionWarning, match="from version unknown"):
            HalfQuadraticRobustRegressor().__setstate__(dict(vars(model)))

    def test_the_mark_is_in_the_file_only(self):
        model = fitted("robust regemm")
        assert "_sklearn_mm_version" in model.__getstate__()
        before = set(vars(model))
        assert set(vars(by_pickle(model))) == before == set(vars(model))


def calls(path):
    """Dotted names that a module calls."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


# Generators of NumPy's that do not touch the global state.
_LOCAL = {"default_rng", "Generator", "RandomState", "SeedSequence", "PCG64"}
_DANGEROUS = {"eval", "exec", "compile", "__import__", "pickle.loads", "pickle.load"}


def forbidden(name):
    head, _, function = name.rpartition(".")
    if head in ("np.random", "numpy.random"):
        return function not in _LOCAL
    loads = function in ("load", "loads") and head.endswith(("pickle", "joblib"))
    return name in _DANGEROUS or loads


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_dangerous_calls(path):
    assert [call for call in calls(path) if forbidden(call[0])] == []
    modules = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not modules & {"pickle", "random", "marshal", "shelve", "cloudpickle"}


def test_the_scan_finds_what_it_looks_for():
    for name in ("eval", "np.random.seed", "numpy.random.rand", "joblib.load"):
        assert forbidden(name)
    for name in ("np.random.default_rng", "model.evaluate", "np.load", "rng.shuffle"):
        assert not forbidden(name)
