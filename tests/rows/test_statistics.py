"""Medians and weights of rows, against copies of rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mm._rows.sources import lazy_rows
from sklearn_mm._rows.statistics import (
    moments_in_blocks,
    unit_weights,
    weighted_median,
)


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 20),
    d=st.integers(1, 3),
    unit=st.sampled_from([1.0, 0.1, 1e-200, 1e200]),
)
def test_a_weight_of_k_is_k_copies(seed, n, d, unit):
    rng = np.random.default_rng(seed)
    values = rng.integers(-5, 6, size=(n, d)) + rng.normal(size=d)
    copies = rng.integers(0, 4, size=n)
    copies[rng.integers(n)] += 1
    expected = np.median(np.repeat(values, copies, axis=0), axis=0)
    assert_allclose(weighted_median(values, unit * copies), expected, rtol=1e-12)


def test_equal_weights_are_none(rng):
    values = rng.normal(size=(10, 2))
    expected = np.median(values, axis=0)
    for weight in (1.0, 0.3, 1e300):
        assert_array_equal(weighted_median(values, np.full(10, weight)), expected)


class TestUnitWeights:
    X = np.zeros((4, 2))

    def test_the_largest_is_one(self):
        weight, unit = unit_weights([2.0, 0.0, 8.0, 1.0], self.X)
        assert unit == 8.0
        assert_array_equal(weight, [0.25, 0.0, 1.0, 0.125])

    @pytest.mark.parametrize("unit", [1e-300, 1e300])
    def test_of_any_size(self, unit):
        weight, found = unit_weights(unit * np.arange(4), self.X)
        assert_allclose(weight, np.arange(4) / 3.0)
        assert_allclose(found, 3 * unit)

    def test_none_takes_no_memory(self):
        weight, unit = unit_weights(None, np.broadcast_to(0.0, (10**9, 1)))
        assert unit == 1.0
        assert weight.shape == (10**9,)
        assert weight.strides == (0,)
        assert weight[0] == 1.0

    @pytest.mark.parametrize(
        "weight", [[1.0, -1.0, 1.0, 1.0], [1.0, np.nan, 1.0, 1.0], [1.0] * 3]
    )
    def test_bad_ones(self, weight):
        with pytest.raises(ValueError):
            unit_weights(weight, self.X)

    def test_all_zero(self):
        with pytest.raises(ValueError, match="at least one non-zero"):
            unit_weights(np.zeros(4), self.X)


@pytest.mark.parametrize("unit", [1.0, 1e-200, 1e200])
@pytest.mark.parametrize("n_outputs", [None, 2])
def test_moments_of_targets_in_blocks(rng, n_outputs, unit):
    array = pytest.importorskip("dask.array")
    dask = pytest.importorskip("dask")
    shape = 23 if n_outputs is None else (23, n_outputs)
    y = (5.0 + rng.normal(size=shape)) * unit
    if n_outputs:
        y[:, 1] = 3.0 * unit  # no spread at all
    weight = rng.integers(0, 4, size=23).astype(float)
    X = lazy_rows(array.zeros((23, 1), chunks=(5, 1)))
    with dask.config.set(scheduler="synchronous"):
        mean, spread = moments_in_blocks(X, array.from_array(y, chunks=5), weight)
    copies = np.repeat(y.reshape(23, -1), weight.astype(int), axis=0) / unit
    assert_allclose(mean / unit, copies.mean(axis=0))
    assert_allclose(spread / unit, copies.std(axis=0), atol=1e-12)
