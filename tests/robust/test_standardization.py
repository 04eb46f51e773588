"""Centre and scale of columns from one pass over the rows."""

import numpy as np
import pytest
import scipy.sparse
from linear_problem import frame_of
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mm._robust.standardization import ColumnMoments
from sklearn_mm._rows.table import Rows


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
    with pytest.raises(ValueError, match=r"^Column 1 of X is .* to other units"):
        ColumnMoments.of(Rows.of(scaled), weight, centred).check_sizes()


@pytest.mark.parametrize("centred", [False, True])
def test_a_column_of_zeros_has_no_size(rng, centred):
    X = rng.normal(size=(300, 3)) * [1.0, 0.0, 1.0]
    ColumnMoments.of(Rows.of(X), np.ones(300), centred).check_sizes()
