"""The sample of rows on which start and scale are decided."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sklearn_mm._robust.start.sample import RowNorms
from sklearn_mm._rows.table import Rows


def sample(norms, weight, n_rows, chunk_size=10**6, n_jobs=None):
    rows = Rows(None, len(norms), chunk_size, n_jobs)
    return RowNorms(rows, np.sqrt(norms)[:, None], weight).sample(n_rows)[:3]


def squares(norms):
    """Numbers whose roots have them as squares, to the last bit."""
    return np.square(np.sqrt(norms))


def along_the_whole_order(norms, weight, n_rows):
    """The same sample by sorting all rows."""
    order = np.argsort(norms)
    order = order[weight[order] > 0]
    mass = np.cumsum(weight[order])
    grid = (np.arange(n_rows) + 0.5) / n_rows * mass[-1]
    return order[np.searchsorted(mass, grid)]


@pytest.mark.parametrize("spread", [0.0, 1.0, 40.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("chunk_size", [777, 10**6])
def test_sample_is_that_of_the_whole_order(rng, spread, weighted, chunk_size):
    norms = np.exp(spread * rng.normal(size=30_000)) * (1 + rng.random(30_000))
    norms = squares(norms)
    # Small integers: sums are exact in any order.
    weight = rng.integers(0, 4, 30_000).astype(float) if weighted else np.ones(30_000)
    rows, _, sampled = sample(norms, weight, 1_000, chunk_size)
    assert sampled
    again, _, _ = sample(norms, weight, 1_000, chunk_size, n_jobs=2)
    assert_array_equal(again, rows)
    assert_array_equal(rows, along_the_whole_order(norms, weight, 1_000))


def test_sample_of_one_long_bin(rng):
    norms = squares(1.0 + 1e-5 * rng.random(30_000))  # equal in their leading digits
    weight = np.ones(30_000)
    rows, _, sampled = sample(norms, weight, 1_000)
    assert sampled
    assert_array_equal(rows, along_the_whole_order(norms, weight, 1_000))


def test_copies_are_not_distinct_rows(rng):
    norms = np.repeat(rng.random(900), 100)
    norms *= 1.0 + 1e-15 * rng.normal(size=norms.shape)
    rows, _, sampled = sample(norms, np.ones(len(norms)), 1_000)
    assert not sampled
    found = np.square(np.sqrt(norms))[rows]
    assert_array_equal(found, np.sort(found))
    assert_array_equal(np.sort(rows), np.arange(len(norms)))
    assert sample(norms, np.ones(len(norms)), 800)[2]


def test_rows_without_weight_do_not_count(rng):
    norms = rng.random(5_000)
    weight = np.where(np.arange(5_000) < 900, 1.0, 0.0)
    rows, _, sampled = sample(norms, weight, 1_000)
    assert not sampled
    assert_array_equal(np.sort(rows), np.arange(900))
    rows, _, sampled = sample(norms, weight, 800)
    assert sampled
    assert rows.max() < 900


def test_residuals_of_any_size(rng):
    norms = np.concatenate([np.zeros(300), 10.0 ** rng.uniform(-300, 300, 3_000)])
    norms = squares(norms)
    weight = np.ones(len(norms))
    rows, _, sampled = sample(norms, weight, 1_000)
    assert sampled
    expected = along_the_whole_order(norms, weight, 1_000)
    assert_array_equal(norms[rows], norms[expected])
