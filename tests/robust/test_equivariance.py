"""What must not matter: units, axes, the order of rows, how weights are split."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from sklearn_mm import (
    ContrastiveHebbianClassifier,
    ContrastiveHebbianRegressor,
    HalfQuadraticRobustRegressor,
)
from sklearn_mm.kernels import KERNELS

# Few rows, or fewer than half on a plane (as without an intercept): it says so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(rows per parameter|follow the fitted plane|lie exactly):"
    "sklearn.exceptions.ConvergenceWarning"
)
# Converged to far below this, in units of the noise.
CLOSE = 1e-5


@st.composite
def regressions(draw):
    """Rows with noise, a part of them contaminated in one of several ways."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, p = draw(st.sampled_from([(30, 1), (60, 3), (150, 5), (1500, 2)]))
    X = rng.normal(size=(n, p))
    y = X @ rng.normal(size=p) + rng.normal() + 0.3 * rng.normal(size=n)
    bad = rng.random(n) < draw(st.sampled_from([0.0, 0.1, 0.3]))
    kind = draw(st.sampled_from(["shift", "scatter", "leverage"]))
    if kind == "shift":
        y[bad] += 15.0
    elif kind == "scatter":
        y[bad] += 30.0 * rng.normal(size=bad.sum())
    else:
        X[bad] += 8.0
        y[bad] -= 20.0
    return X, y, rng


def models(**params):
    params = {"tol": 1e-10, "max_iter": 1000, "random_state": 0, **params}
    return HalfQuadraticRobustRegressor(**params)


kinds = st.fixed_dictionaries(
    {
        # Quadratic and Huber need no start; the others have many minima.
        "kernel": st.sampled_from(sorted(set(KERNELS))),
        "criterion": st.sampled_from(["regemm", "sudemm", "fixed"]),
        "fit_intercept": st.booleans(),
    }
)


def assert_same(model, other, X, noise):
    """Fitted values, weights and scale agree, in units of the noise."""
    assert_allclose(
        model.predict(X) / noise, other.predict(X) / noise, rtol=0, atol=CLOSE
    )
    assert_allclose(model.weights_, other.weights_, rtol=0, atol=CLOSE)
    assert_allclose(model.scale_, other.scale_, rtol=CLOSE)


law = settings(max_examples=25, deadline=None)


@given(regressions(), kinds, st.floats(-6, 6), st.floats(-100, 100), st.booleans())
@law
def test_units_of_y(data, params, exponent, shift, flip):
    X, y, _ = data
    unit = 10.0**exponent * (-1 if flip else 1)
    shift = shift if params["fit_intercept"] else 0.0
    plain = models(**params).fit(X, y)
    moved = models(**params).fit(X, unit * (y + shift))
    moved.coef_, moved.intercept_ = moved.coef_ / unit, moved.intercept_ / unit - shift
    moved.scale_ /= abs(unit)
    assert_same(moved, plain, X, 0.3)


@given(regressions(), kinds)
@law
def test_axes_of_X(data, params):
    X, y, rng = data
    p = X.shape[1]
    A = np.linalg.qr(rng.normal(size=(p, p)))[0] * 10.0 ** rng.uniform(-2, 2, size=p)
    offset = rng.normal(size=p) if params["fit_intercept"] else 0.0
    plain = models(**params).fit(X, y)
    moved = models(**params).fit(X @ A + offset, y)
    moved.coef_ = A @ moved.coef_
    if params["fit_intercept"]:
        moved.intercept_ += offset @ np.linalg.solve(A, moved.coef_)
    assert_same(moved, plain, X, 0.3)


@given(regressions(), kinds)
@law
def test_order_of_rows(data, params):
    X, y, rng = data
    weight = rng.integers(1, 4, size=len(y)).astype(float)
    order = rng.permutation(len(y))
    plain = models(**params).fit(X, y, weight)
    moved = models(**params).fit(X[order], y[order], weight[order])
    plain.weights_ = plain.weights_[order]
    assert_same(moved, plain, X, 0.3)


@given(regressions(), kinds)
@law
def test_splitting_of_weights(data, params):
    X, y, rng = data
    copies = rng.integers(0, 4, size=len(y))
    rows = rng.permutation(np.repeat(np.arange(len(y)), copies))
    whole = models(**params).fit(X, y, 2.0 * copies)
    split = models(**params).fit(X[rows], y[rows], np.full(len(rows), 2.0))
    whole.weights_ = whole.weights_[rows]
    assert_same(split, whole, X, 0.3)
    kept = copies > 0
    fewer = models(**params).fit(X[kept], y[kept], copies[kept])
    whole = models(**params).fit(X, y, copies)
    whole.weights_ = whole.weights_[kept]
    assert_same(fewer, whole, X, 0.3)


@pytest.mark.parametrize("criterion", ["sudemm", "regemm", "fixed"])
@pytest.mark.parametrize(
    "cls", [ContrastiveHebbianRegressor, ContrastiveHebbianClassifier]
)
def test_order_of_rows_in_full_batches(rng, cls, criterion):
    X = rng.normal(size=(120, 3))
    y = X[:, 0] * X[:, 1] + 0.1 * rng.normal(size=120)
    if cls is ContrastiveHebbianClassifier:
        y = y > 0
    order = rng.permutation(120)
    fits = []
    for rows in (np.arange(120), order):
        # Adam divides gradients by their own size, and so makes steps of rounding
        # errors; ReGeMM's gradient of a dead unit is one.
        model = cls(
            (6, 4),
            criterion=criterion,
            solver="gd" if criterion == "regemm" else "adam",
            batch_size=None,
            max_iter=20,
            random_state=0,
        )
        with pytest.warns(match="did not converge"):
            fits.append(model.fit(X[rows], y[rows]))
    for W, V in zip(fits[0].coefs_, fits[1].coefs_, strict=True):
        assert_allclose(W, V, rtol=1e-6, atol=1e-9)


@given(st.floats(-100, 68), st.floats(-3, 3))
@settings(max_examples=10, deadline=None)
def test_units_of_targets_of_a_network(exponent, shift):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 3)), rng.normal(size=(80, 2))
    unit = 10.0**exponent
    params = {"hidden_layer_sizes": (5, 4), "max_iter": 5, "random_state": 0}
    fits = []
    for targets in (y, unit * (y + shift)):
        with pytest.warns(match="did not converge"):
            fits.append(ContrastiveHebbianRegressor(**params).fit(X, targets))
    expected = fits[0].predict(X)
    assert_allclose(fits[1].predict(X) / unit - shift, expected, rtol=0, atol=1e-9)
