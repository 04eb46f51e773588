"""From the user's units to the solver's and back."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from linear_problem import frame_of
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mm._robust.scaling import ColumnMoments, Scaling
from sklearn_mm._rows import ranks
from sklearn_mm._rows.sources import lazy_rows
from sklearn_mm._rows.statistics import unit_weights
from sklearn_mm._rows.table import Rows


def scaling_of(X, y, sample_weight=None, fit_intercept=True, **rows):
    weight, unit = unit_weights(sample_weight, X)
    rows = Rows.of(X, **rows)
    scaling = Scaling.of(rows, y, weight, unit, fit_intercept, "Estimator")
    return scaling, rows, weight


def make(rng, n=60, p=3, d=None, dtype=np.float64):
    X = (rng.normal(size=(n, p)) * [1.0, 50.0, 0.02][:p] + 4.0).astype(dtype)
    y = rng.normal(size=n if d is None else (n, d)) * 7.0 - 30.0
    return X, y


@given(
    seed=st.integers(0, 10_000),
    d=st.sampled_from([None, 1, 3]),
    fit_intercept=st.booleans(),
    exponent=st.floats(-60, 60),
)
def test_theta_and_plane_are_inverse_to_each_other(seed, d, fit_intercept, exponent):
    rng = np.random.default_rng(seed)
    X, y = make(rng, d=d)
    scaling, _, _ = scaling_of(X, y * 10.0**exponent, fit_intercept=fit_intercept)
    n_outputs = 1 if d is None else d
    theta = rng.normal(size=scaling.frame.n_parameters * n_outputs)
    plane = scaling.plane(theta)
    assert plane["coef_"].shape == ((3,) if d is None else (d, 3))
    assert np.shape(plane["intercept_"]) == (() if d is None else (d,))
    coef, intercept = np.atleast_2d(plane["coef_"]), plane["intercept_"]
    assert_allclose(scaling.theta(coef, intercept), theta, rtol=1e-8, atol=1e-8)
    if not fit_intercept:
        assert_array_equal(intercept, 0.0)


@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("d", [None, 2])
def test_both_units_have_the_same_residuals(rng, container, fit_intercept, d):
    X, y = make(rng, d=d)
    weight = rng.random(60)
    scaling, rows, _ = scaling_of(container(X), y, weight, fit_intercept)
    model = scaling.model(rows, y, alpha=0.3)
    theta = rng.normal(size=model.shape).ravel()
    point, plane = model.at(theta), scaling.plane(theta)
    predicted = X @ plane["coef_"].T + plane["intercept_"]
    residual = (y - predicted).reshape(60, -1)
    assert_allclose(point.residual * scaling.spread, residual, rtol=1e-7, atol=1e-9)
    # And the same objective, its penalty included.
    unit = weight / weight.max()
    solver = unit @ np.square(point.residual).sum(axis=1) / 2 + point.penalty
    # Several outputs have units of their own; their objective has none.
    spread = scaling.spread if d else np.ones(1)
    user = weight @ np.square(residual / spread).sum(axis=1) / 2
    coef = np.atleast_2d(plane["coef_"]) / spread[:, None]
    user += 0.15 * np.sum(coef**2)
    assert_allclose(solver * scaling.objective, user, rtol=1e-7)


def test_targets_have_median_zero_and_spread_one(rng):
    X, y = make(rng, n=101, d=2)
    scaling, rows, _ = scaling_of(X, y)
    model = scaling.model(rows, y)
    targets = model.at(np.zeros(model.shape).ravel()).residual
    assert_allclose(np.median(targets, axis=0), 0.0, atol=1e-12)
    assert_allclose(np.median(np.abs(targets), axis=0), 1.0)
    some, theirs = model.take(np.array([6, 3]))
    assert_array_equal(some, X[[6, 3]])
    assert_array_equal(theirs, targets[[6, 3]])


def test_targets_without_an_intercept_are_not_moved(rng):
    X, y = make(rng)
    scaling, _, _ = scaling_of(X, y, fit_intercept=False)
    assert_array_equal(scaling.centre, 0.0)
    assert_allclose(scaling.spread, np.median(np.abs(y)))


def test_targets_most_of_which_are_equal(rng):
    X, _ = make(rng)
    y = np.zeros(60)
    assert scaling_of(X, y)[0].spread == 1.0
    y[3] = -8.0
    assert scaling_of(X, y)[0].spread == 8.0
    # Rows without weight do not count.
    weight = np.ones(60)
    weight[3] = 0.0
    assert scaling_of(X, y, weight)[0].spread == 1.0


@pytest.mark.parametrize("unit", [1e-300, 1e-3, 1e300])
def test_weights_are_repeated_rows(rng, unit):
    X, y = make(rng)
    copies = rng.integers(0, 4, size=60)
    one, _, _ = scaling_of(X, y, unit * copies)
    two, _, _ = scaling_of(np.repeat(X, copies, axis=0), np.repeat(y, copies))
    assert_allclose(one.centre, two.centre)
    assert_allclose(one.spread, two.spread)
    assert_allclose(one.frame.mean, two.frame.mean)
    assert_allclose(one.frame.scale, two.frame.scale)
    assert one.weight == unit * copies.max()


def test_the_unit_of_the_objective_is_finite(rng):
    X, y = make(rng)
    scaling, _, _ = scaling_of(X, 1e60 * y, np.full(60, 1e300))
    assert scaling.objective == np.finfo(float).max


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_coefficients_are_in_the_precision_of_the_data(rng, dtype):
    X, y = make(rng, dtype=dtype)
    scaling, _, _ = scaling_of(X, y)
    plane = scaling.plane(np.ones(4))
    assert plane["coef_"].dtype == plane["intercept_"].dtype == dtype
    scaling, _, _ = scaling_of(X, 1e60 * y)
    if dtype == np.float32:
        with pytest.raises(ValueError, match=r"too large for float32.*StandardScaler"):
            scaling.plane(np.ones(4))
    else:
        scaling.plane(np.ones(4))


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_a_single_coefficient_may_be_too_large(rng, fit_intercept):
    X, y = make(rng, dtype=np.float32)
    scaling, _, _ = scaling_of(X, y, fit_intercept=fit_intercept)
    theta = np.ones(3 + fit_intercept)
    theta[1] = 1e60
    with pytest.raises(ValueError, match="too large for float32"):
        scaling.plane(theta)


@pytest.mark.parametrize("few", [0, 10**5])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("kind", ["spread", "half equal"])
def test_targets_in_blocks_have_the_same_units(
    rng, monkeypatch, few, fit_intercept, kind
):
    """Also where medians take more than one visit to the rows."""
    dask = pytest.importorskip("dask")
    da = pytest.importorskip("dask.array")
    monkeypatch.setattr(ranks, "_FEW_ROWS", few)
    X, y = make(rng, d=2)
    if kind == "half equal":
        y[:40, 0] = 0.0 if not fit_intercept else -7.0
    copies = rng.integers(1, 4, 60).astype(float)
    expected, _, weight = scaling_of(X, y, copies, fit_intercept)
    rows = Rows.of(lazy_rows(da.from_array(X, chunks=(25, -1))))
    with dask.config.set(scheduler="synchronous"):
        columns = rows.place(y), rows.place(weight)
        found = Scaling.of(rows, *columns, 1.0, fit_intercept, "Estimator")
    assert_array_equal(found.centre, expected.centre)
    assert_array_equal(found.spread, expected.spread)
    if kind == "half equal":
        assert found.spread[0] == np.abs(y[:, 0] - found.centre[0]).max()


class TestBadData:
    @pytest.mark.parametrize("value", [np.nan, np.inf])
    @pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
    @pytest.mark.parametrize("chunks", [{}, {"chunk_size": 7, "n_jobs": 2}])
    def test_entries_that_are_not_finite(self, rng, value, container, chunks):
        X, y = make(rng)
        X[50, 1] = value
        with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
            scaling_of(container(X), y, **chunks)

    def test_overflow_is_not_taken_for_infinity(self, rng):
        X, y = make(rng)
        X[50, 1] = 1e200
        with pytest.raises(ValueError, match=r"Column 1 of X is .* Rescale the data"):
            scaling_of(X, y)

    @pytest.mark.parametrize("unit", [1e-75, 1e75])
    def test_spread(self, rng, unit):
        X, y = make(rng)
        with pytest.raises(ValueError, match=r"The spread of y is .* Rescale the data"):
            scaling_of(X, y * unit)


def test_workers_and_readers_do_not_matter(rng):
    X, y = make(rng, n=2_000)
    one, _, _ = scaling_of(X, y, chunk_size=77)
    two, _, _ = scaling_of(X, y, chunk_size=77, n_jobs=2)
    assert_array_equal(one.frame.mean, two.frame.mean)
    assert_array_equal(one.frame.scale, two.frame.scale)
    assert one.spread == two.spread


# Centre and scale of columns from one pass over the rows


def standardization(X, weight, fit_intercept, **rows):
    frame = frame_of(X, weight, fit_intercept, **rows)
    assert frame.fit_intercept == fit_intercept
    return frame.mean, frame.scale


def test_matches_numpy(rng):
    X = rng.normal(size=(2000, 30)) * 3 + 7
    weight = rng.random(2000)
    mean, scale = standardization(X, weight, True)
    assert_allclose(mean, np.average(X, axis=0, weights=weight))
    variance = np.average(np.square(X - mean), axis=0, weights=weight)
    assert_allclose(scale, np.sqrt(variance))


@pytest.mark.parametrize("offset", [0.0, 7.0, 1e9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_of_columns_far_from_zero(rng, offset, dtype):
    X = (rng.normal(size=(5_000, 3)) * [1.0, 10.0, 0.1] + offset).astype(dtype)
    weight = rng.random(5_000)
    mean, scale = standardization(X, weight, True, chunk_size=700)
    X = X.astype(float)
    expected = np.average(X, axis=0, weights=weight)
    variance = np.average(np.square(X - expected), axis=0, weights=weight)
    rounding = 10 * np.finfo(dtype).eps * offset
    known = np.sqrt(variance) > rounding  # the others count as constant
    assert_allclose(mean[known], expected[known], rtol=1e-12)
    assert_allclose(scale[known], np.sqrt(variance)[known], rtol=1e-9)
    assert_array_equal(scale[~known], 1.0)


def test_without_centre_it_is_the_root_mean_square(rng):
    X = rng.normal(size=(300, 4)) + 3.0
    mean, scale = standardization(X, np.ones(300), False)
    assert_array_equal(mean, 0.0)
    assert_allclose(scale, np.sqrt(np.mean(np.square(X), axis=0)))
    sparse = scipy.sparse.csr_array(X)
    assert_allclose(standardization(sparse, np.ones(300), True)[1], scale)


def test_rows_without_weight_tell_nothing(rng):
    X = rng.normal(size=(2_000, 2))
    weight = np.ones(2_000)
    weight[::4] = 0.0  # all rows that an even choice of some would see
    expected = standardization(X[weight > 0], weight[weight > 0], True)
    X[::4] = 1e30
    assert_allclose(standardization(X, weight, True), expected)


def test_a_few_giant_entries_do_not_blow_it_up(rng):
    X = rng.normal(size=(2_000, 2))
    X[7] = 1e12
    mean, scale = standardization(X, np.ones(2_000), True)
    assert np.all(np.abs(mean) < 0.2)
    assert np.all((scale > 0.5) & (scale < 2.0))


@pytest.mark.parametrize("period", [3, 4, 100])
def test_giant_entries_at_regular_places(rng, period):
    X = rng.normal(size=(50_000, 1))
    X[::period] += 1e12
    mean, scale = standardization(X, np.ones(50_000), True)
    assert abs(mean[0]) < 2.0
    assert 0.5 < scale[0] < 3.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
def test_a_single_bad_entry_shows(rng, value, weight, centred, container):
    X = rng.normal(size=(3_001, 3))
    sample_weight = np.ones(3_001)
    rows = Rows.of(container(X), 700)
    assert ColumnMoments.of(rows, sample_weight, centred).finite
    X[2_500, 1], sample_weight[2_500] = value, weight
    rows = Rows.of(container(X), 700)
    assert not ColumnMoments.of(rows, sample_weight, centred).finite


@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("size", [1e-200, 1e-71, 1e71, 1e150, 1e200])
def test_columns_that_cannot_be_squared_are_named(rng, container, centred, size):
    X = rng.normal(size=(300, 3))
    weight = np.ones(300)
    ColumnMoments.of(Rows.of(container(X)), weight, centred).check_sizes()
    for within in (1e-69, 1e69):
        scaled = container(X * [1.0, 1.0, within])
        ColumnMoments.of(Rows.of(scaled), weight, centred).check_sizes()
    scaled = container(X * [1.0, size, 1.0])
    with pytest.raises(ValueError, match=r"^Column 1 of X is .* Rescale the data"):
        ColumnMoments.of(Rows.of(scaled), weight, centred).check_sizes()


@pytest.mark.parametrize("centred", [False, True])
def test_a_column_of_zeros_has_no_size(rng, centred):
    X = rng.normal(size=(300, 3)) * [1.0, 0.0, 1.0]
    ColumnMoments.of(Rows.of(X), np.ones(300), centred).check_sizes()
