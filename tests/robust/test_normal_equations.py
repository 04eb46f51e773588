"""Solutions of the normal equations."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mm._robust.normal_equations import SymmetricFactor


class TestSymmetricFactor:
    def test_definite(self, rng):
        basis = rng.normal(size=(5, 8)) * 10.0 ** rng.uniform(-6, 6, size=(5, 1))
        H, x = basis @ basis.T, rng.normal(size=(5, 2))
        assert_allclose(SymmetricFactor(H).solve(H @ x), x, rtol=1e-6)

    def test_columns_of_unlike_size(self, rng):
        """Small columns are not taken for undetermined ones."""
        basis = rng.normal(size=(5, 8)) * 10.0 ** np.array([[-9], [-4], [0], [4], [9]])
        H, x = basis @ basis.T, rng.normal(size=(5, 2))
        size = np.sqrt(H.diagonal())[:, None]
        assert_allclose(SymmetricFactor(H).solve(H @ (x / size)), x / size, rtol=1e-6)

    @pytest.mark.parametrize("unit", [1.0, 1e-20, 1e20])
    def test_singular(self, rng, unit):
        basis = rng.normal(size=(5, 3))
        H = unit * basis @ basis.T
        g = H @ rng.normal(size=(5, 1))
        x = SymmetricFactor(H).solve(g)
        assert_allclose(H @ x, g, atol=1e-10 * unit)
        assert_allclose(x, np.linalg.pinv(H) @ g, atol=1e-8)

    def test_nothing_at_all(self):
        assert_array_equal(SymmetricFactor(np.zeros((2, 2))).solve(np.ones((2, 1))), 0)
