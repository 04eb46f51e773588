"""Damped steps of dense and sparse systems."""

import numpy as np
import pytest
import scipy.sparse

from sklearn_mm._robust.callable import CallableResidual
from sklearn_mm._robust.systems import SparseSystem, make_system
from sklearn_mm._solver.roles import LargestColumns


@pytest.mark.parametrize("damping", [1e-6, 1e-2, 1.0])
@pytest.mark.parametrize("sparse", [False, True])
def test_predicted_decrease_is_that_of_the_linear_model(damping, sparse):
    rng = np.random.default_rng(0)
    J, r, w = rng.normal(size=(9, 3)), rng.normal(size=9), rng.uniform(size=9)
    matrix = scipy.sparse.csr_array(J) if sparse else J
    model = CallableResidual(lambda x: r + J @ x, lambda x: matrix)
    system = model.normal_system(model.at(np.zeros(3)), w)
    delta, predicted = system.damped_step(damping)
    H = J.T @ (w[:, None] * J)
    expected = -np.linalg.solve(H + damping * np.diag(np.diag(H)), J.T @ (w * r))
    np.testing.assert_allclose(delta, expected, rtol=1e-9)
    moved = r + J @ delta
    np.testing.assert_allclose(predicted, w @ (r**2 - moved**2) / 2, rtol=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
def test_damping_is_relative_to_the_largest_columns(sparse):
    rng = np.random.default_rng(1)
    before, J, r = rng.normal(size=(9, 3)), rng.normal(size=(9, 3)), rng.normal(size=9)
    J[:, 0] *= 1e-3
    convert = scipy.sparse.csr_array if sparse else np.asarray
    columns = LargestColumns()
    make_system(convert(before), r, columns=columns)
    delta, predicted = make_system(convert(J), r, columns=columns).damped_step(0.1)
    D = np.diag(np.maximum(np.sum(before**2, axis=0), np.sum(J**2, axis=0)))
    np.testing.assert_allclose(delta, -np.linalg.solve(J.T @ J + 0.1 * D, J.T @ r))
    np.testing.assert_allclose(predicted, (r @ r - np.sum((r + J @ delta) ** 2)) / 2)


def test_sparse_system_that_cannot_be_solved():
    J = scipy.sparse.csr_array(np.array([[1.0, 1.0], [2.0, 2.0]]))
    system = SparseSystem(J, np.ones(2))
    assert system.damped_step(0.0) is None  # singular
    delta, decrease = system.damped_step(1e-3)
    assert np.isfinite(delta).all()
    assert decrease > 0.0
    # A step past the largest number.
    J = scipy.sparse.csr_array(np.diag([1e-150, 1.0]))
    assert SparseSystem(J, np.array([1e170, 1.0])).damped_step(0.0) is None
