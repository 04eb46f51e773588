"""The display draws what the estimators recorded."""

import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_mm import (
    ContrastiveHebbianClassifier,
    ConvergenceDisplay,
    HalfQuadraticRobustRegressor,
    RobustFitDisplay,
    robust_least_squares,
)


@pytest.fixture
def robust(contaminated):
    return HalfQuadraticRobustRegressor(init="ols", random_state=0).fit(*contaminated)


@pytest.fixture(scope="module")
def network():
    X, y = load_digits(return_X_y=True)
    model = ContrastiveHebbianClassifier((16,), batch_size=50, max_iter=4)
    with pytest.warns(ConvergenceWarning):
        return model.set_params(random_state=0).fit(X[:200] / 16, y[:200])


def labels(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def test_bounds_and_effort_of_one_fit(pyplot, robust):
    display = ConvergenceDisplay.from_estimator(robust)
    history = robust.history_
    upper, lower = display.lines_
    (effort,) = display.effort_lines_
    assert_array_equal(upper.get_xdata(), np.arange(robust.n_iter_) + 1)
    assert_allclose(upper.get_ydata(), history.upper_bound)
    assert_allclose(lower.get_ydata(), history.lower_bound)
    assert_allclose(effort.get_ydata(), history.effort)
    assert display.ax_ is display.axes_[0] and display.figure_ is display.ax_.figure
    assert display.ax_.get_ylabel() == "objective"
    assert display.axes_[1].get_xlabel() == "update"
    assert "σ" in display.axes_[1].get_ylabel()
    assert labels(display) == ["upper bound", "lower bound"]
    assert display.ax_.get_yscale() == "linear"


def test_mini_batches_are_averaged_over_epochs(pyplot, network):
    display = ConvergenceDisplay.from_estimator(network)
    upper, lower = display.lines_
    assert_allclose(upper.get_ydata(), network.loss_curve_)
    assert_array_equal(upper.get_xdata(), [1, 2, 3, 4])
    assert np.all(lower.get_ydata() <= upper.get_ydata())
    passes = display.effort_lines_[0].get_ydata()
    assert_allclose(passes, network.history_.passes.reshape(4, -1).mean(axis=1))
    assert display.axes_[1].get_xlabel() == "epoch"


def test_what_is_counted(pyplot, network):
    work = np.cumsum(network.history_.work)
    for x, average, expected in (
        ("updates", 1, np.arange(16) + 1),
        ("updates", 5, [5, 10, 15, 16]),
        ("passes", 1, work),
        ("passes", 5, work[[4, 9, 14, 15]]),
    ):
        display = ConvergenceDisplay.from_estimator(network, x=x, average=average)
        assert_array_equal(display.lines_[0].get_xdata(), expected)
    assert_allclose(
        display.lines_[0].get_ydata()[-2:],
        [network.history_.upper_bound[10:15].mean(), network.history_.upper_bound[15]],
    )
    assert display.axes_[1].get_xlabel() == "accumulated inference passes"


def test_several_fits(pyplot, contaminated, robust):
    other = HalfQuadraticRobustRegressor(criterion="fixed", random_state=0)
    other.fit(*contaminated)
    assert labels(ConvergenceDisplay.from_estimator([robust, other]))[:2] == [
        "regemm",
        "fixed",
    ]
    assert labels(ConvergenceDisplay.from_estimator({"a": robust, "b": other}))[:2] == [
        "a",
        "b",
    ]
    display = ConvergenceDisplay.from_estimator([robust, other], name=["c", "d"])
    assert labels(display) == ["c", "d", "upper bound", "lower bound"]
    assert len(display.lines_) == 4 and len(display.gaps_) == 2
    colors = [line.get_color() for line in display.lines_]
    assert colors[0] == colors[1] != colors[2] == colors[3]


def test_results_of_least_squares(pyplot):
    t = np.linspace(0, 5, 40)
    y = 3.0 * np.exp(-0.7 * t)
    y[::4] += 2.0

    def solve(criterion):
        return robust_least_squares(
            lambda x: x[0] * np.exp(-x[1] * t) - y,
            [1.0, 0.1],
            tau=0.2,
            criterion=criterion,
        )

    result = solve("regemm")
    display = ConvergenceDisplay.from_estimator(result, name="one")
    assert_allclose(display.lines_[0].get_ydata(), result.history.upper_bound)
    assert labels(display)[0] == "one"
    display = ConvergenceDisplay.from_estimator({"a": result, "b": solve("fixed")})
    assert labels(display)[:2] == ["a", "b"]


def test_inside_of_pipelines_and_searches(pyplot, contaminated):
    X, y = contaminated
    pipe = make_pipeline(StandardScaler(), HalfQuadraticRobustRegressor(random_state=0))
    search = GridSearchCV(
        pipe, {"halfquadraticrobustregressor__kernel": ["tukey", "welsch"]}, cv=2
    ).fit(X, y)
    display = ConvergenceDisplay.from_estimator(search)
    assert display.histories == [search.best_estimator_[-1].history_]


def test_gap_on_a_third_axes(pyplot, network):
    _, axes = pyplot.subplots(3, 1)
    display = ConvergenceDisplay.from_estimator(network, ax=axes, x="updates")
    (line,) = display.gap_lines_
    history = network.history_
    assert_allclose(line.get_ydata(), history.gap / history.upper_bound)
    assert axes[2].get_yscale() == "log" and axes[2].get_xlabel() == "update"
    display.histories[0] = {**history, "gap": np.zeros_like(history.gap)}
    display.plot(ax=axes)
    assert_allclose(display.gap_lines_[0].get_ydata(), 1e-16)


def test_axes_of_the_user(pyplot, robust):
    _, ax = pyplot.subplots()
    display = ConvergenceDisplay.from_estimator(robust, ax=ax)
    assert display.ax_ is ax and display.effort_lines_ == []
    assert ax.get_xlabel() == "update"
    _, axes = pyplot.subplots(2)
    display.plot(ax=axes, line_kwargs={"c": "red"}, fill_between_kwargs={"alpha": 0.5})
    assert display.axes_[1] is axes[1]
    assert display.lines_[0].get_color() == "red"
    assert display.gaps_[0].get_alpha() == 0.5
    with pytest.raises(ValueError, match="one to three axes"):
        display.plot(ax=pyplot.subplots(4)[1])


def test_lower_bounds_of_zero_do_not_spoil_the_scale(pyplot, robust):
    history = dict(robust.history_)
    history["upper_bound"] = history["upper_bound"].copy()
    history["upper_bound"][0] *= 100.0
    history["lower_bound"] = np.where(
        np.arange(robust.n_iter_) < 2, 0.0, history["lower_bound"]
    )
    display = ConvergenceDisplay(histories=[history]).plot()
    assert display.ax_.get_yscale() == "log"
    low, high = display.ax_.get_ylim()
    assert 0 < 0.5 * history["lower_bound"][-1] < low < high


def test_divergence_can_be_drawn(pyplot, robust):
    history = dict(robust.history_)
    history["upper_bound"] = np.geomspace(1.0, 1e308, robust.n_iter_)
    display = ConvergenceDisplay(histories=[history]).plot()
    display.figure_.canvas.draw()
    assert display.ax_.get_ylim()[1] < np.inf


def test_wrong_convergence_arguments(pyplot, robust, network):
    with pytest.raises(ValueError, match="x must be one of"):
        ConvergenceDisplay.from_estimator(robust, x="time")
    with pytest.raises(ValueError, match="average"):
        ConvergenceDisplay.from_estimator(robust, average=0)
    with pytest.raises(ValueError, match="2 names for 1 histories"):
        ConvergenceDisplay.from_estimator(robust, name=["a", "b"])
    with pytest.raises(ValueError, match="cannot share an axis"):
        ConvergenceDisplay.from_estimator([robust, network])
    with pytest.raises(ValueError, match="no history to plot"):
        ConvergenceDisplay.from_estimator([])
    with pytest.raises(ValueError, match="LinearRegression has no history"):
        ConvergenceDisplay.from_estimator(LinearRegression().fit([[0], [1]], [0, 1]))
    with pytest.raises(NotFittedError):
        ConvergenceDisplay.from_estimator(HalfQuadraticRobustRegressor())


def test_matplotlib_is_asked_for_when_it_is_missing(monkeypatch, contaminated, robust):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"ConvergenceDisplay.*requires matplotlib"):
        ConvergenceDisplay.from_estimator(robust)
    with pytest.raises(ImportError, match=r"RobustFitDisplay.*requires matplotlib"):
        RobustFitDisplay.from_estimator(robust, *contaminated)
