"""The one limit on sizes, and targets of any kind."""

import numpy as np
import pytest

from sklearn_mm import (
    ContrastiveHebbianRegressor,
    HalfQuadraticRobustRegressor,
    robust_least_squares,
)
from sklearn_mm._rows.validation import check_size

UNITS = "Rescale the data"


@pytest.mark.parametrize("value", [1e-70, 1.0, 1e70, np.float32(1e30)])
def test_sizes_within_the_limit(value):
    check_size("It", value)
    check_size("It", value, smallest=0.0)


@pytest.mark.parametrize("value", [1.1e70, 1e300, np.inf, np.nan, -1.0])
def test_sizes_beyond_the_limit(value):
    for smallest in ({}, {"smallest": 0.0}):
        with pytest.raises(ValueError, match=f"^It is .*{UNITS}") as told:
            check_size("It", value, **smallest)
        assert "1e-70 and 1e+70" in str(told.value)


@pytest.mark.parametrize("value", [0.0, 1e-71, 1e-300])
def test_sizes_below_the_limit(value):
    with pytest.raises(ValueError, match=UNITS):
        check_size("It", value)
    check_size("It", value, smallest=0.0)


def test_sizes_in_single_precision():
    """Beside a float32, the limit would be infinite."""
    fit = {"scale": np.float32(0.1), "tuning": np.float32(3.0), "random_state": 0}
    X, y = plane(np.random.default_rng(0))
    found = HalfQuadraticRobustRegressor(**fit).fit(X, y)
    fit = {name: float(value) for name, value in fit.items() if name != "random_state"}
    expected = HalfQuadraticRobustRegressor(**fit, random_state=0).fit(X, y)
    np.testing.assert_array_equal(found.coef_, expected.coef_)


def plane(rng):
    X = rng.normal(size=(100, 3))
    y = X @ [1.0, -2.0, 0.5] + 3.0 + 0.1 * rng.normal(size=100)
    y[:30] += 20.0
    return X, y


@pytest.mark.filterwarnings("ignore:Only 0% .* given scale")
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("what", ["column", "y", "scale", "tuning"])
def test_every_size_that_a_regression_depends_on(rng, what, sign):
    X, y = plane(rng)
    model = HalfQuadraticRobustRegressor(random_state=0)
    before = dict(vars(model))
    for exponent in (65, 75):
        size = 10.0 ** (sign * exponent)
        data, targets, params = X, y, {}
        if what == "column":
            data = X * [1.0, size, 1.0]
        elif what == "y":
            targets = y * size
        else:
            params = {what: size}
        model.set_params(**params)
        if exponent == 75:
            with pytest.raises(ValueError, match=UNITS) as told:
                model.fit(data, targets)
            names = {"column": "Column 1 of X"}
            assert names.get(what, what) in str(told.value)
            before |= params
            assert vars(model) == before
        else:
            model_in_limit = HalfQuadraticRobustRegressor(random_state=0, **params)
            assert np.isfinite(model_in_limit.fit(data, targets).coef_).all()


def test_a_constant_column_of_zeros_has_no_size(rng):
    X, y = plane(rng)
    X[:, 1] = 0.0
    model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    assert abs(model.coef_[1]) < 1e-12


def test_tau_and_residuals():
    def fun(x):
        return x - size * np.ones(4)

    size = 1.0
    for tau in (1e-71, 1e71):
        with pytest.raises(ValueError, match=f"^tau is .*{UNITS}"):
            robust_least_squares(fun, np.zeros(4), tau=tau)
    size = 1e71
    with pytest.raises(ValueError, match=f"^The largest residual at x0.*{UNITS}"):
        robust_least_squares(fun, np.zeros(4), tau=1e60)
    size = 1e69
    result = robust_least_squares(
        fun, np.zeros(4), lambda x: np.eye(4), tau=1e69, kernel="quadratic"
    )
    np.testing.assert_allclose(result.x, size, rtol=1e-6)


@pytest.mark.parametrize(
    "cls", [HalfQuadraticRobustRegressor, ContrastiveHebbianRegressor]
)
@pytest.mark.parametrize("value", [1e71, -1e71, 1e308])
def test_targets_beyond_the_limit(rng, cls, value):
    X, y = plane(rng)
    y[3] = value
    model = cls()
    before = dict(vars(model))
    with pytest.raises(ValueError, match=f"The largest value of y is.*{UNITS}"):
        model.fit(X, y)
    assert vars(model) == before
