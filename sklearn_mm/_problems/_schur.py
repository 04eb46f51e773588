r"""Damped Gauss-Newton steps when parameters come in two groups.

The residual vector of observation i depends on a block c of the first group ("camera")
and a block p of the second ("point"), with block Jacobians A_i and B_i. The damped
normal equations are ::

    [ U   W  ] [ x ]     [ g ]        U_c = sum A'A + damping,   g_c = sum A'r
    [ W'  V  ] [ y ] = - [ h ]        V_p = sum B'B + damping,   h_p = sum B'r

with block-diagonal U and V and one block A_i'B_i of W for each observation. Points are
eliminated: with V_p = L_p L_p' and Z_i = A_i' B_i L_p^-T,

    S = U - Z Z',    S x = -g + W V^-1 h,    V y = -h - W'x.

The full matrix is never formed, W and Z are never stored as a whole, and Z Z' is found
in one of two ways. If S is small enough to be dense, points are sorted so that
neighbours are seen by the same cameras, and cut into chunks. The Z of a chunk, written
into a small dense matrix over the cameras of that chunk alone, is multiplied with
itself by BLAS (dsyrk): the zeros that this multiplies cost less than any indexing
would. Otherwise the product is one of block-sparse matrices.

All arrays are kept component by component, blocks last, so that the operations on many
tiny matrices are a few operations on long vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.linalg.blas import dsyrk

from sklearn_mm._core._protocols import Array
from sklearn_mm._problems._block_structure import BlockStructure

# Size of S up to which it is dense: 4000 unknowns take 128 MB and half a second.
_DENSE_SIZE = 4000
# Points a chunk. More make fewer calls but sparser chunks.
_CHUNK_POINTS = 160
# Pivots of V below this share of its diagonal are rounding errors.
_PIVOT = 1e-14


@dataclass(frozen=True)
class _Chunk:
    """Consecutive observations of some points, and where their Z go."""

    observations: slice
    slots: Any  # per observation: position of Z[0, 0] in the chunk's matrix
    offsets: Any  # per entry of Z: distance from Z[0, 0]
    shape: tuple[int, int]
    rows: Any  # of S


class SchurPlan:
    """What depends on the structure alone: an order of observations, and chunks."""

    def __init__(self, structure: BlockStructure) -> None:
        self.structure = structure
        first, second = structure.first, structure.second
        p, m = structure.first_dim, structure.n_first
        self.dense = p * m <= _DENSE_SIZE
        lowest = np.full(structure.n_second, m)
        highest = np.zeros(structure.n_second, dtype=np.intp)
        np.minimum.at(lowest, second, first)
        np.maximum.at(highest, second, first)
        rank = np.empty(structure.n_second, dtype=np.intp)
        rank[np.lexsort((highest, lowest))] = np.arange(structure.n_second)
        self.order = np.lexsort((first, rank[second]))
        self.first, self.second = first[self.order], second[self.order]
        # Two observations of a point by one camera share a block of W.
        repeated = np.zeros(len(first), dtype=bool)
        repeated[1:] = (np.diff(self.first) == 0) & (np.diff(self.second) == 0)
        self.has_repeats = bool(repeated.any())
        self.chunks = self._chunks(rank[self.second]) if self.dense else []

    def _chunks(self, rank: Any) -> list[_Chunk]:
        p, q = self.structure.first_dim, self.structure.second_dim
        m = self.structure.n_first
        edges = np.arange(0, self.structure.n_second + _CHUNK_POINTS, _CHUNK_POINTS)
        bounds = np.searchsorted(rank, edges)
        chunks = []
        for lo, hi in zip(bounds[:-1], bounds[1:], strict=True):
            if lo == hi:
                continue
            cameras, camera = np.unique(self.first[lo:hi], return_inverse=True)
            points, point = np.unique(rank[lo:hi], return_inverse=True)
            n, height = len(cameras), p * len(cameras)
            # Row a * n + camera, column q * point + b, columns one after the other.
            a, b = np.meshgrid(np.arange(p), np.arange(q), indexing="ij")
            rows = (np.arange(p)[:, None] * m + cameras).ravel()
            chunks.append(
                _Chunk(
                    slice(lo, hi),
                    point * q * height + camera,
                    (b * height + a * n).reshape(p * q, 1),
                    (height, q * len(points)),
                    np.ix_(rows, rows) if n < m else np.s_[:, :],
                )
            )
        return chunks


class SchurSystem:
    """Normal equations of block Jacobians A, B and residuals r.

    Parameters
    ----------
    plan : SchurPlan
        Made from the structure.
    A, B, r : ndarray of shape (n, d, p), (n, d, q) and (n, d)
        Block Jacobians and residuals, weights multiplied in by their square roots
        `root` of shape (n,).
    """

    def __init__(self, plan: SchurPlan, A: Array, B: Array, r: Array, root: Any):
        self._plan = plan
        structure, order = plan.structure, plan.order
        weight = root[order]

        def ordered(blocks: Array) -> Array:
            """Weighted components, observations last, in the plan's order."""
            moved = np.moveaxis(blocks, 0, -1)
            taken = np.take(moved.reshape(-1, len(order)), order, axis=1)
            taken *= weight
            return taken.reshape(moved.shape)

        self._A, self._B = ordered(A), ordered(B)
        residual = np.take(r.T, order, axis=1)
        self._U = self._gram(self._A, plan.first, structure.n_first)
        self._V = self._gram(self._B, plan.second, structure.n_second)
        self._g = self._first_sum(residual)
        self._h = self._second_sum(residual)
        self.gradient = self._join(self._g, self._h)

    def damped_step(self, damping: float) -> tuple[Array, float] | None:
        """Minimiser of the damped model and the model's decrease without damping.

        None if the matrix is not positive definite to rounding.
        """
        U, du = _damped(self._U, damping)
        V, dv = _damped(self._V, damping)
        T = _inverse_factor(V)
        right = self._second_product(_solve(T, self._h))
        reduced = self._first_sum(right) - self._g
        x = self._solve_reduced(U, T, reduced)
        if x is None or not np.isfinite(x).all():
            return None
        pushed = self._second_sum(self._first_product(x))
        y = -_solve(T, self._h + pushed)
        decrease = -0.5 * (np.vdot(self._g, x) + np.vdot(self._h, y))
        decrease += 0.5 * (np.vdot(du, x * x) + np.vdot(dv, y * y))
        return self._join(x, y), float(decrease)

    def _solve_reduced(self, U: Array, T: Array, right: Array) -> Array | None:
        p, m = right.shape
        # B L^-T for each observation.
        BT = np.zeros_like(self._B)
        q = BT.shape[1]
        for k in range(q):
            for j in range(k + 1):
                BT[:, k] += self._B[:, j] * T[k, j][self._plan.second]
        if not self._plan.dense:
            return self._solve_sparse(U, BT, right)
        S = np.zeros((p * m, p * m), order="F")
        blocks = S.reshape((m, p, m, p), order="F")
        index = np.arange(m)
        for a in range(p):
            for b in range(a, p):
                blocks[index, a, index, b] = U[a, b]
        self._subtract_products(S, BT)
        try:
            factor = scipy.linalg.cho_factor(
                S, lower=False, overwrite_a=True, check_finite=False
            )
        except scipy.linalg.LinAlgError:
            return None
        x = scipy.linalg.cho_solve(factor, right.ravel(), check_finite=False)
        return x.reshape(p, m)

    def _subtract_products(self, S: Array, BT: Array) -> None:
        """S -= Z Z' in the upper triangle, chunk by chunk."""
        chunks = self._plan.chunks
        buffer = np.empty(max(chunk.shape[0] * chunk.shape[1] for chunk in chunks))
        for chunk in chunks:
            Z = self._coupling(BT, chunk.observations)
            Z = Z.reshape(-1, Z.shape[2])
            entries = buffer[: chunk.shape[0] * chunk.shape[1]]
            entries[:] = 0.0
            where = chunk.slots + chunk.offsets
            if self._plan.has_repeats:
                np.add.at(entries, where, Z)
            else:
                entries[where] = Z
            K = entries.reshape(chunk.shape, order="F")
            S[chunk.rows] -= dsyrk(1.0, K)

    def _coupling(self, BT: Array, part: slice) -> Array:
        """Z = A' B L^-T of some observations, shape (p, q, n)."""
        A, BT = self._A[:, :, None, part], BT[:, None, :, part]
        Z = A[0] * BT[0]
        for d in range(1, len(A)):
            Z += A[d] * BT[d]
        return Z

    def _solve_sparse(self, U: Array, BT: Array, right: Array) -> Array | None:
        p, m = right.shape
        structure, plan = self._plan.structure, self._plan
        q, n = structure.second_dim, len(plan.first)
        Z = self._coupling(BT, slice(None)).transpose(2, 0, 1)
        by_camera = np.argsort(plan.first, kind="stable")
        indptr = np.searchsorted(plan.first[by_camera], np.arange(m + 1))
        blocks = (Z[by_camera], plan.second[by_camera], indptr)
        E = scipy.sparse.bsr_array(blocks, shape=(p * m, q * structure.n_second))
        diagonal = (U.transpose(2, 0, 1), np.arange(m), np.arange(m + 1))
        D = scipy.sparse.bsr_array(diagonal, shape=(p * m, p * m))
        S = (D - E @ E.T).tocsc()
        try:
            factor = scipy.sparse.linalg.splu(
                S,
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=0.0,
                options={"SymmetricMode": True},
            )
        except RuntimeError:  # exactly singular
            return None
        del n
        return factor.solve(right.T.ravel()).reshape(m, p).T

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


def _damped(gram: Array, damping: float) -> tuple[Array, Array]:
    """Blocks with the damping on their diagonals, and the damping itself."""
    k = np.arange(len(gram))
    diagonal = gram[k, k]
    # Parameters that no weighted residual depends on stay where they are.
    added = damping * np.where(diagonal > np.finfo(float).tiny, diagonal, 1.0)
    damped = gram.copy()
    damped[k, k] += added
    return damped, added


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
