"""Cancel and carry on: interrupts, and checkpoints by callbacks."""

import copy
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import joblib
import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.utils.fixes import parse_version

from sklearn_mm import (
    ContrastiveHebbianClassifier,
    ContrastiveHebbianRegressor,
    HalfQuadraticRobustRegressor,
    robust_least_squares,
)
from sklearn_mm._rows.workers import _OTHERS, _SCIPYS
from sklearn_mm.criteria import RelaxedGeneralized, SufficientDescent
from sklearn_mm.kernels import Tukey

has_callbacks = parse_version(sklearn.__version__) >= parse_version("1.9")


class Interrupting:
    """Passes everything on to a criterion, and presses Ctrl-C in the given call."""

    def __init__(self, criterion, when):
        self._criterion, self._left = criterion, when

    def __getattr__(self, name):
        return getattr(self._criterion, name)

    def __deepcopy__(self, memo):
        return self

    def satisfied(self, trial, memory):
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return self._criterion.satisfied(trial, memory)


def make(name, criterion):
    if name == "robust":
        return HalfQuadraticRobustRegressor(
            init="ols", scale=0.1, criterion=criterion, random_state=0, warm_start=True
        )
    return ContrastiveHebbianRegressor(
        (8, 5), criterion=criterion, max_iter=30, random_state=0, warm_start=True
    )


def cut_short_often(name, n_jobs):
    """Interrupt fits at random moments."""
    rng = np.random.default_rng()
    X = rng.normal(size=(2000, 5))
    y = X @ np.arange(1.0, 6.0) + rng.normal(size=2000)
    y[::4] += 30.0
    model = {
        "robust": HalfQuadraticRobustRegressor(random_state=0),
        "hebbian": ContrastiveHebbianRegressor((8, 5), max_iter=3),
        "full batch": ContrastiveHebbianRegressor(
            (8, 5), max_iter=5, batch_size=None, criterion="regemm"
        ),
    }[name].set_params(n_jobs=n_jobs, chunk_size=300)
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    clone(model).fit(X, y)
    duration = time.perf_counter() - start
    outcomes = {
        cut_short(clone(model), X, y, delay)
        for delay in [1e-4, *rng.uniform(0.0, 1.2, size=12) * duration]
    }
    assert "raised" in outcomes


def cut_short(model, X, y, delay):
    """Fit, interrupt, and check what is left."""
    before = dict(vars(model))
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-6))
        model.fit(X, y)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python's own locks do not survive an interrupt at every instruction.
        assert isinstance(error, KeyboardInterrupt) or "lock" in str(error)
        if vars(model).keys() == before.keys():
            assert all(vars(model)[name] is before[name] for name in before)
            return "raised"
        # It came between the end of the fit and that of the clock.
    finally:
        signal.signal(signal.SIGALRM, old)
    assert np.isfinite(model.predict(X)).all()
    n_updates = len(model.history_.upper_bound)
    assert {len(column) for column in model.history_.values()} == {n_updates}
    assert np.isfinite(model.history_.upper_bound).all()
    return "kept"


class TestInterrupt:
    def test_before_the_first_update_nothing_changes(self, data):
        model = make("hebbian", Interrupting(SufficientDescent(0.1), 1))
        before = copy.copy(vars(model))
        with pytest.raises(KeyboardInterrupt):
            model.fit(*data)
        assert vars(model) == before

    def test_a_fitted_model_survives_an_interrupted_start(self, data):
        model = make("robust", "regemm").fit(*data)
        coef = model.coef_.copy()
        model.set_params(
            criterion=Interrupting(RelaxedGeneralized(0.5, 0.75), 1), warm_start=False
        )
        with pytest.raises(KeyboardInterrupt):
            model.fit(*data)
        assert_array_equal(model.coef_, coef)

    @pytest.mark.parametrize("name", ["robust", "hebbian"])
    def test_the_last_finished_update_is_kept_and_continued(self, data, name):
        X, y = data
        criterion = {
            "robust": RelaxedGeneralized(0.5, 0.75),
            "hebbian": SufficientDescent(0.1),
        }[name]
        counting = Interrupting(criterion, 10**9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make(name, counting).fit(X, y)
        n_calls = 10**9 - counting._left
        # The robust start runs the criterion too, on its way to candidates.
        for when in (n_calls - 1, n_calls) if name == "robust" else (5, 40):
            model = make(name, Interrupting(criterion, when))
            with pytest.warns(match="was interrupted.*warm_start=True"):
                model.fit(X, y)
            n_updates = len(model.history_.upper_bound)
            assert n_updates > 0
            assert {len(column) for column in model.history_.values()} == {n_updates}
            assert np.isfinite(model.predict(X)).all()
            model.set_params(criterion=criterion)
            if name == "robust":
                model.fit(X, y)
                assert_allclose(model.coef_, [1.0, -2.0, 0.5, 3.0], atol=0.05)
            else:
                before = model.bounds(X, y)[1]
                with pytest.warns(match="did not converge"):
                    model.fit(X, y)
                assert model.bounds(X, y)[1] < before

    @pytest.mark.parametrize("n_jobs", [1, 2])
    @pytest.mark.parametrize("name", ["robust", "hebbian", "full batch"])
    def test_at_any_moment(self, name, n_jobs):
        # In a process of its own: an interrupt may also hit a tool that watches the
        # tests while it holds a lock.
        code = f"import test_interrupts as t; t.cut_short_often({name!r}, {n_jobs})"
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("COV", "PYTEST"))
        }
        paths = [str(Path(__file__).parents[n]) for n in range(3)]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        subprocess.run(
            [sys.executable, "-c", code], env=environment, check=True, timeout=300
        )

    def test_the_function_raises_as_scipy_does(self):
        def fun(x):
            calls.append(x)
            if len(calls) == 5:
                raise KeyboardInterrupt
            return x - np.arange(3.0)

        calls = []
        with pytest.raises(KeyboardInterrupt):
            robust_least_squares(fun, np.full(3, 9.0))


class TestExceptions:
    """What users' objects raise goes through, and the state stays."""

    class Broken(Tukey):
        def __init__(self, when):
            object.__setattr__(self, "_calls", [when])

        def __hash__(self):
            return id(self)

        def weight(self, z):
            self._calls[0] -= 1
            if self._calls[0] == 0:
                raise OSError(28, "No space left on device")
            return super().weight(z)

    @pytest.mark.parametrize("n_jobs", [1, 2])
    @pytest.mark.parametrize("when", [1, 10, 25])
    def test_kernel(self, data, when, n_jobs):
        params = {"scale": 0.1, "chunk_size": 64, "n_jobs": n_jobs, "random_state": 0}
        model = HalfQuadraticRobustRegressor("tukey", **params).fit(*data)
        coef = model.coef_.copy()
        model.kernel = self.Broken(when)
        with pytest.raises(OSError, match="No space left"):
            model.fit(*data)
        assert_array_equal(model.coef_, coef)
        assert _OTHERS.number == _SCIPYS.number == 0

    def test_no_threads_are_left(self, data):
        params = {"scale": 0.1, "chunk_size": 64, "n_jobs": 2, "random_state": 0}
        n_threads = threading.active_count()
        for when in (5, 15, 25):
            model = HalfQuadraticRobustRegressor(self.Broken(when), **params)
            with pytest.raises(OSError, match="No space left"):
                model.fit(*data)
        deadline = time.monotonic() + 30.0
        while threading.active_count() > n_threads and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() <= n_threads

    @pytest.mark.parametrize("n_jobs", [1, 2])
    def test_read_errors_are_reported_as_they_are(self, data, n_jobs):
        X, y = data

        class Disk:
            shape, dtype, ndim = X.shape, X.dtype, 2

            def __getitem__(self, rows):
                if rows.stop > 128:
                    raise OSError(5, "Input/output error")
                return X[rows]

        for model in (HalfQuadraticRobustRegressor(), ContrastiveHebbianRegressor()):
            model.set_params(chunk_size=64, n_jobs=n_jobs)
            with pytest.raises(OSError, match="Input/output error"):
                model.fit(Disk(), y)
            assert not hasattr(model, "n_features_in_")

    def test_residual_functions(self):
        def fun(x):
            calls.append(x)
            if len(calls) > 3:
                raise RuntimeError("the simulator has crashed")
            return x - np.arange(3.0)

        calls = []
        with pytest.raises(RuntimeError, match="simulator has crashed"):
            robust_least_squares(fun, np.full(3, 9.0))

    @pytest.mark.skipif(not has_callbacks, reason="scikit-learn has no callbacks yet")
    @pytest.mark.parametrize(
        "model", [HalfQuadraticRobustRegressor(), ContrastiveHebbianRegressor((8,))]
    )
    def test_callbacks(self, data, model):
        class Broken(Checkpoint):
            def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
                raise RuntimeError("the logbook is full")

        model = clone(model).set_callbacks(Broken(None))
        with pytest.raises(RuntimeError, match="logbook is full"):
            model.fit(*data)
        assert not hasattr(model, "n_features_in_")


class Checkpoint:
    """Writes the model of the second epoch."""

    def __init__(self, path):
        self.path = path

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context, *, X=None):
        pass

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.task_name == "epoch" and context.task_id == 1:
            joblib.dump(fitted_estimator, self.path)


@pytest.mark.skipif(not has_callbacks, reason="scikit-learn has no callbacks yet")
@pytest.mark.parametrize(
    "model",
    [
        HalfQuadraticRobustRegressor(init="ols", warm_start=True, random_state=0),
        ContrastiveHebbianClassifier((8,), max_iter=4, warm_start=True, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore:.*did not converge")
def test_a_callback_can_checkpoint(data, model, tmp_path):
    X, y = data
    if isinstance(model, ContrastiveHebbianClassifier):
        y = y > 0
    path = tmp_path / "checkpoint.joblib"
    clone(model).set_callbacks(Checkpoint(path)).fit(X, y)
    restored = joblib.load(path)
    restored.predict(X)
    restored.set_callbacks().fit(X, y)
    finished = clone(model).fit(X, y)
    assert restored.score(X, y) >= finished.score(X, y) - 0.02
