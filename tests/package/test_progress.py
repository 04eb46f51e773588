"""What a user hears of a fit: lines, callbacks, and the view in notebooks."""

import inspect
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_mm import (
    ContrastiveHebbianClassifier,
    ContrastiveHebbianRegressor,
    HalfQuadraticRobustRegressor,
)
from sklearn_mm._estimator import clock

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ESTIMATORS = {
    "robust": HalfQuadraticRobustRegressor(random_state=0),
    "robust_fixed": HalfQuadraticRobustRegressor(criterion="fixed", random_state=0),
    "regressor": ContrastiveHebbianRegressor((8,), max_iter=5, random_state=0),
    "regressor_full": ContrastiveHebbianRegressor(
        (8,), criterion="regemm", max_iter=5, random_state=0
    ),
    "classifier": ContrastiveHebbianClassifier((8,), max_iter=5, random_state=0),
    "classifier_stopping": ContrastiveHebbianClassifier(
        (8,), max_iter=5, early_stopping=True, random_state=0
    ),
}


@pytest.fixture(params=ESTIMATORS)
def estimator(request):
    # A fresh object: callbacks are set on it.
    model = ESTIMATORS[request.param]
    return type(model)(**model.get_params())


@pytest.fixture
def data(contaminated, estimator):
    X, y = contaminated
    return X, (y > 5).astype(int) if hasattr(estimator, "predict_proba") else y


# -- Lines ---------------------------------------------------------------------------


def test_nothing_is_printed_by_default(estimator, data, capsys):
    estimator.fit(*data).predict(data[0])
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_one_aligned_line_an_iteration(estimator, data, capsys):
    estimator.set_params(verbose=1).fit(*data)
    header, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == estimator.n_iter_
    assert {len(line) for line in lines} == {len(header)}
    words = re.split(r"\s{2,}", header.strip())
    assert words[:4] == ["iter", "upper bound", "lower bound", "gap"]
    assert words[4] == ("1/sigma" if hasattr(estimator, "scale_") else "passes")
    scores = getattr(estimator, "validation_scores_", None)
    assert words[5:] == [*(["validation score"] if scores else []), "time", "at most"]
    columns = [line.split() for line in lines]
    if scores:
        assert_allclose([float(column[5]) for column in columns], scores, rtol=1e-5)
    assert [int(column[0]) for column in columns] == list(range(1, len(lines) + 1))
    history = estimator.history_
    for epoch, column in enumerate(columns):
        rows = history.epoch == epoch
        upper, lower, gap, effort = (float(word) for word in column[1:5])
        assert_allclose(upper, history.upper_bound[rows].mean(), rtol=1e-4)
        assert_allclose(lower, history.lower_bound[rows].mean(), rtol=1e-4)
        assert_allclose(effort, history.effort[rows].mean(), rtol=1e-3)
        assert_allclose(gap, history.gap[rows].mean(), rtol=1e-2, atol=1e-9 * upper)
    if estimator.n_iter_ == estimator.max_iter:
        assert columns[-1][-1] == "0.00s"  # nothing is left


def test_durations():
    durations = {0.004: "0.00s", 12.3: "12.30s", 245: "4m05s", 7980: "2h13m"}
    assert {seconds: clock(seconds) for seconds in durations} == durations
    assert all(len(clock(10.0**k)) <= 8 for k in range(-9, 8))


# -- Callbacks -----------------------------------------------------------------------


class Recorder:
    """Keeps what an estimator tells, and may ask it to stop."""

    def __init__(self, stop_after=np.inf):
        self.stop_after = stop_after
        self.events, self.predictions = [], []

    def setup(self, estimator, context):
        self.events.append("setup")

    def on_fit_task_begin(self, estimator, context):
        self.events.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, *, X, fitted_estimator):
        self.events.append(f"end {context.task_name}")
        self.predictions.append(fitted_estimator.predict(X))
        return self.events.count("end epoch") >= self.stop_after

    def teardown(self, estimator, context):
        self.events.append("teardown")


@pytest.fixture
def callback():
    return pytest.importorskip("sklearn.callback")  # scikit-learn >= 1.9


def test_events_come_in_order(callback, estimator, data):
    recorder = Recorder()
    estimator.set_callbacks(recorder).fit(*data)
    epochs = ["begin epoch", "end epoch"] * estimator.n_iter_
    assert recorder.events == ["setup", "begin fit", *epochs, "end fit", "teardown"]
    assert_allclose(recorder.predictions[-1], estimator.predict(data[0]))


def test_several_outputs_are_reported_in_their_units(callback, contaminated):
    X, y = contaminated
    model, recorder = HalfQuadraticRobustRegressor(random_state=0), Recorder()
    model.set_callbacks(recorder).fit(X, np.column_stack([y, 100.0 * y[::-1]]))
    assert_allclose(recorder.predictions[-1], model.predict(X))


def test_early_stop(callback, estimator, data):
    recorder = Recorder(stop_after=2)
    estimator.set_callbacks(recorder).fit(*data)
    assert estimator.n_iter_ == 2
    assert len(np.unique(estimator.history_.epoch)) == 2
    assert recorder.events[-2:] == ["end fit", "teardown"]


def test_scoring_monitor(callback, estimator, data):
    pytest.importorskip("pandas")
    classifies = hasattr(estimator, "predict_proba")
    scoring = "accuracy" if classifies else "neg_mean_absolute_error"
    monitor = callback.ScoringMonitor(scoring=scoring)
    estimator.set_callbacks(monitor).fit(*data)
    log = monitor.get_logs().data_as_pandas
    epochs = log[log["task_name"] == "epoch"]
    assert len(epochs) == estimator.n_iter_
    error = np.abs(estimator.predict(data[0]) - data[1])
    expected = np.mean(error == 0) if classifies else -error.mean()
    assert_allclose(log[log["task_name"] == "fit"][scoring], expected)


def test_progress_bar(callback, estimator, data, capsys):
    pytest.importorskip("rich")
    estimator.set_callbacks(callback.ProgressBar()).fit(*data)
    shown = capsys.readouterr().out
    assert type(estimator).__name__ in shown
    assert "100%" in shown


def test_progress_bar_of_a_pipeline(callback, estimator, data, capsys):
    pytest.importorskip("rich")
    pipe = make_pipeline(StandardScaler(), estimator)
    pipe.set_callbacks(callback.ProgressBar()).fit(*data)
    shown = capsys.readouterr().out
    assert "Pipeline" in shown and type(estimator).__name__ in shown


def test_partial_fit_calls_back(callback, contaminated):
    X, y = contaminated
    model = ContrastiveHebbianRegressor((8,), random_state=0)
    recorder = Recorder()
    model.set_callbacks(recorder).partial_fit(X, y).partial_fit(X, y)
    assert recorder.events.count("end epoch") == model.n_iter_ == 2


# -- Notebooks -----------------------------------------------------------------------


def test_view_documents_parameters_and_attributes(estimator, data):
    html = estimator.fit(*data)._repr_html_()
    assert type(estimator).__name__ in html
    if "param-doc-description" not in html:
        pytest.skip("scikit-learn shows documentation from 1.8 on")
    documented = set(re.findall(r'"position-anchor: --doc-link-(\w+);"', html))
    assert set(estimator.get_params()) <= documented
    if "Fitted attributes" in html:  # scikit-learn >= 1.9
        public = {
            name
            for name, _ in inspect.getmembers(estimator)
            if name.endswith("_") and not name.startswith("_")
        }
        assert public <= documented
    assert "How accurately" in html or "accurate enough" in html
