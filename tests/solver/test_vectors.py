"""Operations on parameter vectors."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sklearn_mm._solver.gradient_steps import Adam
from sklearn_mm._solver.vectors import DecayingSum, add_multiple


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_add_multiple(dtype):
    y, x = np.ones((3, 4), dtype), np.arange(12, dtype=dtype).reshape(3, 4)
    add_multiple(y, 0.5, x)
    assert_allclose(y, 1.0 + 0.5 * x)
    add_multiple(y, -0.5, x, 5)
    assert_allclose(y.ravel()[:5], 1.0)
    assert_allclose(y.ravel()[5:], 1.0 + 0.5 * x.ravel()[5:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.999, 1.0])
def test_decaying_sum(decay, dtype):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(200, 3)).astype(dtype)
    found, expected = DecayingSum.like(vectors[0]), np.zeros(3)
    for vector in vectors:
        found.add(decay, vector, 0.3)
        expected = decay * expected + 0.3 * vector
        assert_allclose(found.value, expected, rtol=1e-5, atol=1e-5)
    assert found.value.dtype == dtype


def test_adam_makes_the_published_steps():
    rng = np.random.default_rng(0)
    step, m, v = Adam(0.01), np.zeros(4), np.zeros(4)
    for t in range(1, 300):
        g = rng.normal(size=4) * [1.0, 1e-3, 1e3, 1e-9]
        step.n_updates = t
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        rate = 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        expected = -rate * m / (np.sqrt(v) + 1e-8)
        direction, factor = step._direction(g, 0.01)
        assert_allclose(factor * direction, expected, rtol=1e-9)
