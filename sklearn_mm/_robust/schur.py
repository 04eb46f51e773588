r"""Damped Gauss-Newton steps for parameters in two groups.

The residual vector of observation i depends on a block c of the first group ("camera")
and a block p of the second ("point"), with block Jacobians A_i and B_i. The damped
normal equations are ::

    [ U   W  ] [ x ]     [ g ]        U_c = sum A'A + damping,   g_c = sum A'r
    [ W'  V  ] [ y ] = - [ h ]        V_p = sum B'B + damping,   h_p = sum B'r

with block-diagonal U and V and one block A_i'B_i of W for each observation. Points are
eliminated: with V_p = L_p L_p' and Z_i = A_i' B_i L_p^-T,

    S = U - Z Z',    S x = -g + W V^-1 h,    V y = -h - W'x.

The full matrix is never formed. Every pair of observations of one point adds a product
Z_i Z_j' to a block of S. Pairs are listed once, sorted by the block they belong to, so
that a block is one matrix product of stacked Z. The lists are processed in batches that
fit in the cache. S is dense up to a certain size and block-sparse beyond.

All other arrays are stored component by component, with the blocks last, so that
operations on many small matrices become a few operations on long vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

from sklearn_mm._robust.block_structure import BlockStructure
from sklearn_mm._robust.covariance import inverse_symmetric, undetermined
from sklearn_mm._robust.systems import damping_scale
from sklearn_mm._solver.roles import Array

# Size of S up to which it is dense: 4000 unknowns take 128 MB and half a second.
_DENSE_SIZE = 4000
# Number of observations, and of pairs, that are processed at a time: a few megabytes.
_BATCH_OBSERVATIONS, _BATCH_PAIRS = 4096, 16384
# Pivots of V below this fraction of its diagonal are rounding errors.
_PIVOT = 1e-14


@dataclass(frozen=True)
class _Batch:
    """Consecutive pairs, and the segments of them that share a block of S."""

    left: Any  # observations
    right: Any
    segments: list[tuple[int, int, int]]  # block, begin, end


class SchurPlan:
    """What only depends on the structure: the order of observations, and pairs."""

    def __init__(self, structure: BlockStructure) -> None:
        self.structure = structure
        self.dense = structure.first_dim * structure.n_first <= _DENSE_SIZE
        self.order = np.lexsort((structure.first, structure.second))
        self.first = structure.first[self.order]
        self.second = structure.second[self.order]
        # Observations are often in order already.
        self.is_sorted = bool(np.all(self.order[:-1] < self.order[1:]))
        left, right = self._pairs()
        # Upper triangle of S: the pair's first camera is not above its second.
        key = self.first[left] * structure.n_first + self.first[right]
        by_block = np.argsort(key, kind="stable")
        left, right, key = left[by_block], right[by_block], key[by_block]
        blocks, starts = np.unique(key, return_index=True)
        self.rows, self.columns = np.divmod(blocks, structure.n_first)
        self.batches = list(_batches(left, right, np.append(starts, len(key))))

    def _pairs(self) -> tuple[Any, Any]:
        """All pairs of observations of one point, each in the order of cameras."""
        n = len(self.first)
        # Half the memory, if the indices fit.
        every = np.arange(n, dtype=np.int32 if n < 2**31 else np.intp)
        lefts, rights = [every], [every]
        distance = 1
        while True:
            left = every[: n - distance]
            left = left[self.second[left] == self.second[left + distance]]
            if not left.size:
                return np.concatenate(lefts), np.concatenate(rights)
            right = left + distance
            # Two observations of a point by one camera contribute to a diagonal block,
            # in both orders.
            same = self.first[left] == self.first[right]
            lefts += [left, right[same]]
            rights += [right, left[same]]
            distance += 1


def _batches(left: Any, right: Any, bounds: Any) -> Iterator[_Batch]:
    """Cut the list of pairs, which `bounds` divides into blocks, into batches."""
    for begin in range(0, len(left), _BATCH_PAIRS):
        end = min(begin + _BATCH_PAIRS, len(left))
        low = np.searchsorted(bounds, begin, side="right") - 1
        high = np.searchsorted(bounds, end, side="left")
        edges = np.clip(bounds[low : high + 1], begin, end) - begin
        blocks = range(int(low), int(high))
        segments = zip(blocks, edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        yield _Batch(left[begin:end], right[begin:end], list(segments))


class SchurSystem:
    """Normal equations of block Jacobians A, B and residuals r.

    Parameters
    ----------
    plan : SchurPlan
        Made from the structure.
    A, B, r : ndarray of shape (n, d, p), (n, d, q) and (n, d)
        Block Jacobians and residuals, weights multiplied in by their square roots
        `root` of shape (n,).
    unit : ndarray of shape (n_parameters,) or None
        Characteristic size of each parameter, see `systems.py`.
    """

    def __init__(
        self,
        plan: SchurPlan,
        A: Array,
        B: Array,
        r: Array,
        root: Any,
        unit: Array | None = None,
    ) -> None:
        self._plan = plan
        structure, order = plan.structure, plan.order
        weight = root[order]

        def ordered(blocks: Array) -> Array:
            """Weighted components, observations last, in the plan's order."""
            moved = np.moveaxis(blocks, 0, -1)
            if plan.is_sorted:
                out = np.empty(moved.shape)  # in this order, whatever that of moved
                return np.multiply(moved, weight, out=out)
            taken = np.take(moved.reshape(-1, len(order)), order, axis=1)
            taken *= weight
            return taken.reshape(moved.shape)

        self._A, self._B = ordered(A), ordered(B)
        residual = r.T if plan.is_sorted else np.take(r.T, order, axis=1)
        self._U = self._gram(self._A, plan.first, structure.n_first)
        self._V = self._gram(self._B, plan.second, structure.n_second)
        self._g = self._first_sum(residual)
        self._h = self._second_sum(residual)
        self.gradient = self._join(self._g, self._h)
        du, dv = (np.einsum("kkn->kn", gram) for gram in (self._U, self._V))
        scale = damping_scale(self._join(du, dv), unit)
        first, second = np.split(scale, [du.size])
        self._du = first.reshape(structure.n_first, -1).T
        self._dv = second.reshape(structure.n_second, -1).T

    def damped_step(self, damping: float) -> tuple[Array, float] | None:
        """Minimiser of the damped model, and the decrease of the model without damping.

        None if the matrix is not positive definite up to rounding errors.
        """
        du, dv = damping * self._du, damping * self._dv
        U, T = _damped(self._U, du), _inverse_factor(_damped(self._V, dv))
        # Arrays with one entry per observation are not bound to names, since memory use
        # is largest here.
        reduced = self._first_sum(self._second_product(_solve(T, self._h))) - self._g
        x = self._solve_reduced(U, T, reduced)
        if x is None or not np.isfinite(x).all():
            return None
        pushed = self._second_sum(self._first_product(x))
        y = -_solve(T, self._h + pushed)
        decrease = -0.5 * (np.vdot(self._g, x) + np.vdot(self._h, y))
        with np.errstate(over="ignore"):  # of steps that will be rejected
            decrease += 0.5 * (np.vdot(du, x * x) + np.vdot(dv, y * y))
        return self._join(x, y), float(decrease)

    def inverse_blocks(self) -> tuple[Array, Array, Any]:
        """Blocks of the inverse of the normal matrix, without damping.

        If it is singular, the block of the first group is a pseudo-inverse of S, from
        which those of the second group follow.

        Returns
        -------
        first : ndarray of shape (p * n_first, p * n_first)
            The whole block of the first group.
        second : ndarray of shape (n_second, q, q)
            Diagonal blocks of the second group.
        undetermined : ndarray of bool
            Parameters of the first group that the data do not determine.
        """
        plan = self._plan
        p, m = self._g.shape
        q = len(self._V)
        # Points may be undetermined too: V^+ = T'T.
        values, vectors = np.linalg.eigh(self._V.transpose(2, 0, 1))
        kept = values > _PIVOT * values[:, -1:]
        root = np.where(kept, 1.0 / np.sqrt(np.where(kept, values, 1.0)), 0.0)
        T = root[:, :, None] * vectors.transpose(0, 2, 1)
        coupling = np.einsum("dqn,dpn->nqp", self._B, self._A)
        Z = T[plan.second] @ coupling
        S = _full_matrix(self._reduced_blocks(self._U, Z), plan.rows, plan.columns, m)
        first, null_space = inverse_symmetric(S)
        second = T.transpose(0, 2, 1) @ T
        # V^-1 W' S^-1 W V^-1, as a sum over pairs of observations of one point.
        Q = T.transpose(0, 2, 1)[plan.second] @ Z
        blocks = first.reshape(m, p, m, p)
        for batch in plan.batches:
            left, right = batch.left, batch.right
            middle = blocks[plan.first[left], :, plan.first[right], :]
            terms = Q[left] @ middle @ Q[right].transpose(0, 2, 1)
            # Pairs are listed once, except for two views of a point by one camera.
            twice = plan.first[left] != plan.first[right]
            terms[twice] += terms[twice].transpose(0, 2, 1)
            np.add.at(second, plan.second[left], terms)
        return first, second.reshape(-1, q, q), undetermined(null_space)

    def _solve_reduced(self, U: Array, T: Array, right: Array) -> Array | None:
        p, m = right.shape
        blocks = self._reduced_blocks(U, self._couplings(T))
        right = right.T.ravel()
        solve = _solve_dense if self._plan.dense else _solve_sparse
        x = solve(blocks, self._plan.rows, self._plan.columns, m, right)
        return None if x is None else x.reshape(m, p).T

    def _couplings(self, T: Array) -> Array:
        """Z' = L^-1 B'A of every observation, shape (n, q, p)."""
        (_, q, n), p = self._B.shape, self._A.shape[1]
        Z = np.empty((n, q * p))
        for begin in range(0, n, _BATCH_OBSERVATIONS):
            part = slice(begin, begin + _BATCH_OBSERVATIONS)
            A, B = self._A[..., part], self._B[..., part]
            second = self._plan.second[part]
            BT = np.empty(B.shape)
            for k in range(q):
                np.multiply(B[:, 0], T[k, 0][second], out=BT[:, k])
                for j in range(1, k + 1):
                    BT[:, k] += B[:, j] * T[k, j][second]
            product = BT[0, :, None] * A[0]
            for d in range(1, len(B)):
                product += BT[d, :, None] * A[d]
            Z[part] = product.reshape(q * p, -1).T
        return Z.reshape(n, q, p)

    def _reduced_blocks(self, U: Array, Z: Array) -> Array:
        """Blocks of S in the upper triangle, in the plan's order."""
        plan = self._plan
        _, q, p = Z.shape
        blocks = np.zeros((len(plan.rows), p, p))
        diagonal = plan.rows == plan.columns
        blocks[diagonal] = U.transpose(2, 0, 1)[plan.rows[diagonal]]
        gathered = np.empty((2, min(_BATCH_PAIRS, len(plan.batches[0].left)), q, p))
        for batch in plan.batches:
            size = len(batch.left)
            left, right = gathered[:, :size]
            # mode: the indices are in range, so that no checks are needed.
            np.take(Z, batch.left, axis=0, out=left, mode="clip")
            np.take(Z, batch.right, axis=0, out=right, mode="clip")
            left, right = left.reshape(-1, p).T, right.reshape(-1, p)
            for block, begin, end in batch.segments:
                rows = slice(q * begin, q * end)
                blocks[block] -= left[:, rows] @ right[rows]
        return blocks

    @staticmethod
    def _gram(blocks: Array, index: Any, size: int) -> Array:
        """Sums of X'X over the observations of each block, shape (k, k, size)."""
        k = blocks.shape[1]
        gram = np.empty((k, k, size))
        for a in range(k):
            for b in range(a, k):
                product = blocks[0, a] * blocks[0, b]
                for row in blocks[1:]:
                    product += row[a] * row[b]
                gram[a, b] = np.bincount(index, product, size)
                gram[b, a] = gram[a, b]
        return gram

    def _first_sum(self, v: Array) -> Array:
        return _pull(self._A, v, self._plan.first, self._plan.structure.n_first)

    def _second_sum(self, v: Array) -> Array:
        return _pull(self._B, v, self._plan.second, self._plan.structure.n_second)

    def _first_product(self, x: Array) -> Array:
        return _push(self._A, np.take(x, self._plan.first, axis=1))

    def _second_product(self, y: Array) -> Array:
        return _push(self._B, np.take(y, self._plan.second, axis=1))

    @staticmethod
    def _join(x: Array, y: Array) -> Array:
        return np.concatenate([x.T.ravel(), y.T.ravel()])


def _pull(blocks: Array, v: Array, index: Any, size: int) -> Array:
    """Sums of X'v over the observations of each block."""
    total = np.empty((blocks.shape[1], size))
    for k in range(blocks.shape[1]):
        product = blocks[0, k] * v[0]
        for d in range(1, len(v)):
            product += blocks[d, k] * v[d]
        total[k] = np.bincount(index, product, size)
    return total


def _push(blocks: Array, x: Array) -> Array:
    """X x for every observation."""
    out = blocks[:, 0] * x[0]
    for k in range(1, len(x)):
        out += blocks[:, k] * x[k]
    return out


def _damped(gram: Array, added: Array) -> Array:
    """Blocks with the damping on their diagonals."""
    k = np.arange(len(gram))
    damped = gram.copy()
    damped[k, k] += added
    return damped


def _inverse_factor(V: Array) -> Array:
    """Inverse T of the Cholesky factor of each block: V^-1 = T'T, T lower."""
    q = len(V)
    L = np.zeros_like(V)
    for j in range(q):
        pivot = V[j, j] - np.sum(L[j, :j] ** 2, axis=0)
        L[j, j] = np.sqrt(np.maximum(pivot, _PIVOT * V[j, j]))
        for i in range(j + 1, q):
            L[i, j] = (V[i, j] - np.sum(L[i, :j] * L[j, :j], axis=0)) / L[j, j]
    T = np.zeros_like(V)
    for j in range(q):
        T[j, j] = 1.0 / L[j, j]
        for i in range(j + 1, q):
            T[i, j] = -np.sum(L[i, j:i] * T[j:i, j], axis=0) / L[i, i]
    return T


def _solve(T: Array, h: Array) -> Array:
    """V^-1 h for each block."""
    half = np.einsum("ijn,jn->in", T, h)
    return np.einsum("jin,jn->in", T, half)


def _full_matrix(blocks: Array, rows: Any, columns: Any, m: int) -> Array:
    """S with both triangles; zero for cameras without observations."""
    p = blocks.shape[1]
    S = np.zeros((m, p, m, p))
    S[columns, :, rows] = blocks.transpose(0, 2, 1)
    S[rows, :, columns] = blocks
    return S.reshape(m * p, m * p)


def _solve_dense(
    blocks: Array, rows: Any, columns: Any, m: int, right: Array
) -> Array | None:
    """Cholesky factorisation. Cameras without observations are not moved."""
    p = blocks.shape[1]
    S = np.zeros((m, p, m, p))
    S[np.arange(m), :, np.arange(m)] = np.eye(p)
    S[rows, :, columns] = blocks
    try:
        # The transpose is in LAPACK's order, with our upper triangle as its lower one.
        factor = scipy.linalg.cho_factor(
            S.reshape(m * p, m * p).T, lower=True, overwrite_a=True, check_finite=False
        )
    except scipy.linalg.LinAlgError:
        return None
    return scipy.linalg.cho_solve(factor, right, check_finite=False)


def _solve_sparse(
    blocks: Array, rows: Any, columns: Any, m: int, right: Array
) -> Array | None:
    """Sparse factorisation without pivoting: S is positive definite."""
    p = blocks.shape[1]
    indptr = np.searchsorted(rows, np.arange(m + 1))
    shape = (m * p, m * p)
    upper = scipy.sparse.bsr_array((blocks, columns, indptr), shape=shape).tocsc()
    S = scipy.sparse.triu(upper) + scipy.sparse.triu(upper, 1).T
    unseen = np.repeat(~np.isin(np.arange(m), rows), p).astype(float)
    S = (S + scipy.sparse.diags_array(unseen)).tocsc()
    try:
        factor = scipy.sparse.linalg.splu(
            S,
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
    except RuntimeError:  # exactly singular
        return None
    return factor.solve(right)
