"""The sample of rows on which start and scale are decided."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sklearn_mm._problems._deciding_rows import _along


def along_the_whole_order(norms, weight, n_rows):
    """The same sample by sorting all rows."""
    order = np.argsort(norms)
    order = order[weight[order] > 0]
    mass = np.cumsum(weight[order])
    grid = (np.arange(n_rows) + 0.5) / n_rows * mass[-1]
    return order[np.searchsorted(mass, grid)]


@pytest.mark.parametrize("spread", [0.0, 1.0, 40.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_sample_is_that_of_the_whole_order(rng, spread, weighted):
    norms = np.exp(spread * rng.normal(size=30_000)) * (1 + rng.random(30_000))
    # Small integers: sums are exact in any order.
    weight = rng.integers(0, 4, 30_000).astype(float) if weighted else np.ones(30_000)
    sample = _along(norms, weight, 1_000)
    assert_array_equal(sample, along_the_whole_order(norms, weight, 1_000))


def test_sample_of_one_long_bin(rng):
    norms = 1.0 + 1e-5 * rng.random(30_000)  # equal in their leading digits
    weight = np.ones(30_000)
    sample = _along(norms, weight, 1_000)
    assert_array_equal(sample, along_the_whole_order(norms, weight, 1_000))


def test_copies_are_not_distinct_rows(rng):
    norms = np.repeat(rng.random(900), 100)
    norms *= 1.0 + 1e-15 * rng.normal(size=norms.shape)
    assert _along(norms, np.ones(len(norms)), 1_000) is None
    assert _along(norms, np.ones(len(norms)), 800) is not None


def test_rows_without_weight_do_not_count(rng):
    norms = rng.random(5_000)
    weight = np.where(np.arange(5_000) < 900, 1.0, 0.0)
    assert _along(norms, weight, 1_000) is None
    assert _along(norms, weight, 800).max() < 900
