"""The Schur solver against dense normal equations."""

import numpy as np
import pytest
import scipy.sparse

from sklearn_mm import BlockStructure
from sklearn_mm._robust import schur
from sklearn_mm._robust.schur import SchurPlan, SchurSystem


def random_problem(rng, n_first=5, n_second=17, n=70, d=2, p=4, q=3, repeats=False):
    pairs = rng.permutation(n_first * n_second)[:n]
    first, second = np.divmod(pairs, n_second)
    if repeats:
        first[: n // 4], second[: n // 4] = first[-(n // 4) :], second[-(n // 4) :]
    structure = BlockStructure(
        first,
        second,
        first_dim=p,
        second_dim=q,
        n_first=n_first,
        n_second=n_second,
    )
    A, B = rng.normal(size=(n, d, p)), rng.normal(size=(n, d, q))
    return structure, A, B, rng.normal(size=(n, d)), rng.uniform(0.1, 1.0, n)


def reference(structure, A, B, r, root, damping):
    J = structure.to_sparse(A, B).toarray() * np.repeat(root, A.shape[1])[:, None]
    H, g = J.T @ J, J.T @ (root[:, None] * r).ravel()
    added = damping * np.where(np.diag(H) > 0, np.diag(H), 1.0)
    delta = -np.linalg.solve(H + np.diag(added), g)
    return g, delta, -g @ delta - delta @ H @ delta / 2


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("shape", [(2, 4, 3), (1, 1, 2), (3, 6, 1)])
def test_step_solves_the_damped_normal_equations(shape, dense, repeats, monkeypatch):
    if not dense:
        monkeypatch.setattr(schur, "_DENSE_SIZE", 0)
    d, p, q = shape
    rng = np.random.default_rng(d)
    structure, A, B, r, root = random_problem(rng, d=d, p=p, q=q, repeats=repeats)
    system = SchurSystem(SchurPlan(structure), A, B, root[:, None] * r, root)
    for damping in (1e-6, 1e-2, 10.0):
        g, expected, decrease = reference(structure, A, B, r, root, damping)
        delta, predicted = system.damped_step(damping)
        np.testing.assert_allclose(system.gradient, g, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(delta, expected, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(predicted, decrease, rtol=1e-7)


@pytest.mark.parametrize("dense", [True, False])
def test_batches_do_not_matter(dense, monkeypatch):
    rng = np.random.default_rng(0)
    structure, A, B, r, root = random_problem(rng)
    if not dense:
        monkeypatch.setattr(schur, "_DENSE_SIZE", 0)
    whole = SchurSystem(SchurPlan(structure), A, B, r, root).damped_step(0.1)
    monkeypatch.setattr(schur, "_BATCH_PAIRS", 7)
    monkeypatch.setattr(schur, "_BATCH_OBSERVATIONS", 3)
    cut = SchurSystem(SchurPlan(structure), A, B, r, root).damped_step(0.1)
    np.testing.assert_allclose(cut[0], whole[0], rtol=1e-10)


@pytest.mark.parametrize("dense", [True, False])
def test_unseen_blocks_and_zero_weights_stay(dense, monkeypatch):
    if not dense:
        monkeypatch.setattr(schur, "_DENSE_SIZE", 0)
    rng = np.random.default_rng(1)
    structure = BlockStructure(
        [0, 0, 2, 2, 2], [0, 1, 0, 1, 3], first_dim=1, second_dim=1, n_first=4
    )
    A, B = rng.normal(size=(5, 2, 1)), rng.normal(size=(5, 2, 1))
    root = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
    r = root[:, None] * rng.normal(size=(5, 2))
    delta, _ = SchurSystem(SchurPlan(structure), A, B, r, root).damped_step(1e-3)
    assert np.isfinite(delta).all()
    # Blocks 1 and 3 of the first group, 2 and 3 of the second have no weight.
    np.testing.assert_array_equal(delta[[1, 3, 6, 7]], 0.0)
    assert (delta[[0, 2, 4, 5]] != 0).all()


def test_order_of_observations_does_not_matter():
    rng = np.random.default_rng(2)
    structure, A, B, r, root = random_problem(rng)
    mixed = rng.permutation(len(A))
    other = BlockStructure(
        structure.first[mixed],
        structure.second[mixed],
        first_dim=4,
        second_dim=3,
        n_first=5,
        n_second=17,
    )
    one = SchurSystem(SchurPlan(structure), A, B, r, root).damped_step(0.1)
    two = SchurSystem(SchurPlan(other), A[mixed], B[mixed], r[mixed], root[mixed])
    np.testing.assert_allclose(two.damped_step(0.1)[0], one[0], rtol=1e-9)


def test_to_sparse():
    rng = np.random.default_rng(3)
    structure = BlockStructure([1, 0], [0, 2], first_dim=2, second_dim=1)
    A, B = rng.normal(size=(2, 1, 2)), rng.normal(size=(2, 1, 1))
    J = structure.to_sparse(A, B)
    assert scipy.sparse.issparse(J) and J.shape == (2, 7)
    expected = np.zeros((2, 7))
    expected[0, 2:4], expected[0, 4] = A[0, 0], B[0, 0, 0]
    expected[1, 0:2], expected[1, 6] = A[1, 0], B[1, 0, 0]
    np.testing.assert_array_equal(J.toarray(), expected)


@pytest.mark.parametrize(
    ("first", "second", "kwargs", "message"),
    [
        ([0, 1], [0], {}, "same length"),
        ([0.5], [0], {}, "array of integers"),
        ([[0]], [0], {}, "one-dimensional"),
        ([], [], {}, "one-dimensional array of integers"),
        (np.array([], int), np.array([], int), {}, "no residuals"),
        ([-1], [0], {}, r"first must be in \[0, 0\)|first must be"),
        ([0], [5], {"n_second": 5}, r"second must be in \[0, 5\)"),
        ([0], [0], {"first_dim": 0}, "first_dim must be a positive integer"),
    ],
)
def test_bad_structure(first, second, kwargs, message):
    with pytest.raises(ValueError, match=message):
        BlockStructure(first, second, **{"first_dim": 1, "second_dim": 1, **kwargs})
