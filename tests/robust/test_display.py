"""The display draws what a robust fit has found."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from sklearn_mm import (
    HalfQuadraticRobustRegressor,
    RobustFitDisplay,
    RobustRegressor,
)


@pytest.fixture
def robust(contaminated):
    return HalfQuadraticRobustRegressor(init="ols", random_state=0).fit(*contaminated)


@pytest.fixture
def line(rng):
    X = rng.uniform(0, 10, size=(60, 1))
    y = 2.0 * X[:, 0] + 1.0 + 0.3 * rng.normal(size=60)
    y[:20] -= 15.0
    return X, y


def labels(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def n_points(artist):
    return len(artist.get_offsets())


@pytest.mark.parametrize("kernel", ["smooth_truncated_quadratic", "tukey", "welsch"])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_weights_and_outliers_are_those_of_the_fit(
    pyplot, contaminated, kernel, n_outputs
):
    X, y = contaminated
    if n_outputs == 2:
        y = np.stack([y, y[::-1]], axis=1)
    model = HalfQuadraticRobustRegressor(kernel, random_state=0).fit(X, y)
    display = RobustFitDisplay.from_estimator(model, X, y)
    assert_allclose(display.weights, model.weights_, atol=1e-9)
    assert n_points(display.outliers_) == np.sum(~model.inlier_mask_)
    assert n_points(display.scatter_) == np.sum(model.inlier_mask_)
    assert f"outliers ({np.sum(~model.inlier_mask_)})" in labels(display)
    expected = model.weights_[model.inlier_mask_]
    assert_allclose(display.scatter_.get_array(), expected, atol=1e-9)


def test_residuals_against_predictions(pyplot, contaminated, robust):
    X, y = contaminated
    display = RobustFitDisplay.from_estimator(robust, X, y)
    mask = robust.inlier_mask_
    predicted = robust.predict(X)
    assert_allclose(
        display.scatter_.get_offsets(),
        np.stack([predicted, y - predicted], axis=1)[mask],
    )
    assert display.ax_.get_xlabel() == "predicted value"
    assert "residual" in display.ax_.get_ylabel()
    low, high = (
        display.band_.get_y(),
        display.band_.get_y() + display.band_.get_height(),
    )
    assert_allclose([low, high], [-3 * robust.scale_, 3 * robust.scale_])


def test_a_far_outlier_does_not_hide_the_band(pyplot, contaminated, robust):
    X, y = contaminated
    far = y.copy()
    far[0] += 1e6
    display = RobustFitDisplay.from_estimator(robust, X, far)
    assert display.ax_.get_yscale() == "symlog"
    assert display.figure_ is display.ax_.figure


def frames(X):
    return {
        "array": X,
        "list": X.tolist(),
        "sparse": csr_array(X),
        "pandas": pd.DataFrame(X, columns=["hours"]),
        "polars": pl.DataFrame(X, schema=["hours"]),
    }


@pytest.mark.parametrize("container", ["array", "list", "sparse", "pandas", "polars"])
def test_line_over_a_single_feature(pyplot, line, container):
    X, y = line
    X = frames(X)[container]
    model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    display = RobustFitDisplay.from_estimator(model, X, y)
    across, up = display.line_.get_data()
    assert_allclose(up, model.coef_[0] * across + model.intercept_)
    assert n_points(display.outliers_) == np.sum(~model.inlier_mask_) >= 20
    # Taken from X: scikit-learn 1.7 does not see the names in newer versions of polars.
    named = container in ("pandas", "polars")
    assert display.ax_.get_xlabel() == ("hours" if named else "feature")
    assert display.ax_.get_ylabel() == "target"
    display.plot(kind="residuals")
    assert display.ax_.get_xlabel() == "predicted value"


def test_curve_of_a_pipeline(pyplot, line):
    X, y = line
    model = make_pipeline(
        PolynomialFeatures(2), HalfQuadraticRobustRegressor(random_state=0)
    ).fit(X, y)
    display = RobustFitDisplay.from_estimator(model, X, y)
    across, up = display.line_.get_data()
    assert_allclose(up, model.predict(across[:, None]))
    _, ax = pyplot.subplots()
    display.plot(
        ax=ax,
        line_kwargs={"c": "red"},
        scatter_kwargs={"s": 5},
        outlier_kwargs={"c": "k"},
    )
    assert display.ax_ is ax
    assert display.line_.get_color() == "red"
    assert_array_equal(display.scatter_.get_sizes(), [5])


@pytest.mark.parametrize("size", [(6.4, 4.8), (4.0, 3.0)])
@pytest.mark.parametrize("shift", [5.0, 1e6])  # the latter on a logarithmic axis
def test_legend_hides_no_point(pyplot, rng, size, shift):
    X = rng.normal(size=(200, 2))
    y = X @ [1.0, 2.0] + rng.normal(size=200)
    y[:60] += shift
    model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    _, ax = pyplot.subplots(figsize=size, layout="constrained")
    display = RobustFitDisplay.from_estimator(model, X, y, ax=ax)
    display.figure_.canvas.draw()
    box = ax.get_legend().get_window_extent()
    for points in (display.scatter_, display.outliers_):
        places = ax.transData.transform(points.get_offsets())
        assert not any(box.contains(*place) for place in places)


def test_any_regressor_made_robust(pyplot, line):
    X, y = line
    model = RobustRegressor(LinearRegression(), random_state=0).fit(X, y)
    display = RobustFitDisplay.from_estimator(model, X, y)
    assert n_points(display.outliers_) == np.sum(~model.inlier_mask(X, y)) >= 20
    assert_allclose(display.weights, model.confidence(X, y))
    assert display.radius == 3.0 * model.scale_
    with pytest.raises(ValueError, match="has no leverages"):
        RobustFitDisplay.from_estimator(model, X, y, kind="influence")
    with pytest.raises(NotFittedError):
        RobustFitDisplay.from_estimator(RobustRegressor(), X, y)


def test_wrong_robust_fit_arguments(pyplot, contaminated, robust):
    X, y = contaminated
    with pytest.raises(ValueError, match="kind must be one of"):
        RobustFitDisplay.from_estimator(robust, X, y, kind="line")
    with pytest.raises(ValueError, match="single feature"):
        RobustFitDisplay.from_estimator(robust, X, y, kind="fit")
    with pytest.raises(TypeError, match="got LinearRegression"):
        RobustFitDisplay.from_estimator(LinearRegression().fit(X, y), X, y)
    with pytest.raises(NotFittedError):
        RobustFitDisplay.from_estimator(HalfQuadraticRobustRegressor(), X, y)
    for targets, match in [
        (y[:-1], "inconsistent numbers"),
        (None, "y must be passed"),
        (np.where(np.arange(len(y)) == 3, np.nan, y), "y contains NaN"),
        (np.column_stack([y, y]), r"y has shape .*, 2\), but the predictions"),
        (["a"] * len(y), "could not convert string"),
    ]:
        with pytest.raises(ValueError, match=match):
            RobustFitDisplay.from_estimator(robust, X, targets)


def test_new_rows(pyplot, contaminated, robust, rng):
    X, y = contaminated
    X, y = X[:7] + 0.1, y[:7].copy()
    y[-1] = 1e6
    display = RobustFitDisplay.from_estimator(robust, X, y)
    assert_allclose(display.weights, robust.confidence(X, y))
    assert n_points(display.outliers_) == np.sum(~robust.inlier_mask(X, y))


@pytest.mark.parametrize("kind", ["residuals", "influence"])
def test_best_estimator_of_a_search(pyplot, line, kind):
    X, y = line
    X, y = X[20:], y[20:]
    search = GridSearchCV(
        make_pipeline(
            PolynomialFeatures(include_bias=False), HalfQuadraticRobustRegressor()
        ),
        {"polynomialfeatures__degree": [1, 2]},
        cv=3,
    ).fit(X, y)
    drawn = RobustFitDisplay.from_estimator(search, X, y, kind=kind)
    assert_allclose(drawn.y_pred, search.predict(X))


@pytest.mark.parametrize("kind", ["residuals", "influence"])
def test_dask_arrays(pyplot, contaminated, robust, kind):
    da = pytest.importorskip("dask.array")
    X, y = contaminated
    expected = RobustFitDisplay.from_estimator(robust, X, y, kind=kind)
    blocks = da.from_array(X, chunks=(40, -1)), da.from_array(y, chunks=40)
    display = RobustFitDisplay.from_estimator(robust, *blocks, kind=kind)
    assert_allclose(display.y_pred, expected.y_pred)
    assert_allclose(display.weights, expected.weights)
    assert n_points(display.outliers_) == n_points(expected.outliers_)
    if kind == "influence":
        assert_allclose(display.leverage, expected.leverage)


class TestInfluence:
    def test_axes(self, pyplot, contaminated, robust):
        X, y = contaminated
        display = RobustFitDisplay.from_estimator(robust, X, y, kind="influence")
        assert display.ax_.get_xscale() == "log"
        assert "leverage" in display.ax_.get_xlabel()
        assert "high leverage" in labels(display)
        leverage, mean = robust._leverages(X)
        assert_allclose(display.leverage, leverage)
        assert display.high_leverage == pytest.approx(3.0 * mean)
        drawn = np.concatenate(
            [a.get_offsets()[:, 0] for a in (display.scatter_, display.outliers_)]
        )
        assert_allclose(np.sort(drawn), np.sort(leverage))

    def test_several_outputs(self, pyplot, contaminated):
        X, y = contaminated
        Y = np.stack([y, y[::-1]], axis=1)
        model = HalfQuadraticRobustRegressor(random_state=0).fit(X, Y)
        display = RobustFitDisplay.from_estimator(model, X, Y, kind="influence")
        assert display.leverage.shape == (len(X),)

    def test_not_to_be_had(self, pyplot, contaminated):
        X, y = contaminated
        model = HalfQuadraticRobustRegressor(alpha=1.0, l1_ratio=1.0, random_state=0)
        model.fit(X, y)
        with pytest.raises(ValueError, match="There are no leverages"):
            RobustFitDisplay.from_estimator(model, X, y, kind="influence")
        display = RobustFitDisplay.from_estimator(model, X, y)
        with pytest.raises(ValueError, match="requires leverages"):
            display.plot(kind="influence")

    def test_no_row_has_weight(self, pyplot, contaminated):
        X, y = contaminated
        model = HalfQuadraticRobustRegressor(scale=1e-9, random_state=0)
        with pytest.warns(ConvergenceWarning, match="close to the fitted plane"):
            model.fit(X, y)
        with pytest.raises(ValueError, match="No training row has weight"):
            RobustFitDisplay.from_estimator(model, X, y, kind="influence")
        assert "Noise scale: 1e-09" in str(model.summary())
