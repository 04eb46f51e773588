"""Sums over rows of X for weighted least squares, and solutions of what they add up to.

Every function here is a task of `Rows`: it takes the rows of one chunk and the numbers
beside them, and returns a part of a sum, or numbers for the same rows. Rows are neither
copied nor changed: blocks of them that fit in the cache are multiplied as they stand,
and the products are brought to standardised columns afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from sklearn.utils.extmath import safe_sparse_dot

from sklearn_mm._rows.workers import row_chunks
from sklearn_mm._solver.roles import Array

# Entries of a block of standardised rows, 2 MB. On one thread sizes from an eighth of
# this took within 10 % of each other; two threads that share a smaller one's many short
# calls wait for the interpreter's lock.
_BLOCK_ENTRIES = 256_000
# Eigenvalues of the standardised Gram matrix below this share of the largest are
# directions that the data do not determine; the minimum-norm solution ignores them.
_RANK_TOLERANCE = 1e-13
# Means beyond this many spreads are subtracted from the rows before they are multiplied
# (four of sixteen digits would be lost otherwise).
_FAR = 100.0


def _columnwise(A: Array, B: Array, out: Array) -> None:
    """A @ B; a single column goes as a vector, which BLAS does in half the time."""
    if B.shape[1] == 1:
        np.matmul(A, B[:, 0], out=out[:, 0])
    else:
        np.matmul(A, B, out=out)


def columns_times(X: Array, v: Array) -> Array:
    """X' v; BLAS, as fast on one thread, takes as long on two."""
    product: Array = np.einsum("ij,i->j", X, v)
    return product


def _block_rows(n_columns: int) -> int:
    return max(64, _BLOCK_ENTRIES // max(1, n_columns))


def cache_blocks(X: Array) -> Iterator[tuple[slice, Array]]:
    """Blocks of rows that fit in the cache, each with memory for a copy of it.

    It is the same memory for all: fresh pages take longer than the work on them.
    """
    height = max(1, min(_block_rows(X.shape[1]), X.shape[0]))
    buffer = np.empty((height, X.shape[1]))
    for block in row_chunks(X.shape[0], height):
        yield block, buffer[: block.stop - block.start]


def _blocks_in_double(X: Array) -> Iterator[tuple[slice, Array]]:
    """Blocks of rows, converted if need be."""
    for block, rows in cache_blocks(X):
        if X.dtype == np.float64:
            yield block, X[block]
        else:
            np.copyto(rows, X[block])
            yield block, rows


def fitted(X: Any, coef: Array, intercept: Array, out: Array | None = None) -> Array:
    """X coef + intercept in double precision."""
    if out is None:
        out = np.empty((X.shape[0], coef.shape[1]))
    if scipy.sparse.issparse(X):
        out[:] = safe_sparse_dot(X, coef, dense_output=True)
    elif X.dtype == np.float64:
        _columnwise(X, coef, out)
    else:
        for block, rows in _blocks_in_double(X):
            _columnwise(rows, coef, out[block])
    out += intercept
    return out


def residuals(
    X: Any, Y: Array, coef: Array, intercept: Array, out: Array | None = None
) -> Array:
    values = fitted(X, coef, intercept, out)
    return np.subtract(Y, values, out=values)


def products(X: Any, weights: Array, residual: Array) -> tuple[Array, Array]:
    """X' V and 1' V for V = diag(weights) residual, in double precision."""
    V = weights[:, None] * residual
    if scipy.sparse.issparse(X):
        return X.T @ V, V.sum(axis=0)
    raw = np.zeros((X.shape[1], V.shape[1]))
    for block, rows in _blocks_in_double(X):
        if V.shape[1] == 1:
            raw[:, 0] += columns_times(rows, V[block, 0])
        else:
            raw += rows.T @ V[block]
    return raw, V.sum(axis=0)


@dataclass(frozen=True)
class Frame:
    """How columns are standardised."""

    mean: Array
    scale: Array
    fit_intercept: bool

    @property
    def n_parameters(self) -> int:
        """Number of coefficients, the intercept included."""
        return len(self.mean) + int(self.fit_intercept)

    def pack(self, coef: Array, intercept: Array) -> Array:
        """Theta of coefficients (n_features, n_outputs) of X as it stands."""
        parts = [coef * self.scale[:, None]]
        if self.fit_intercept:
            parts.append((intercept + self.mean @ coef)[None, :])
        return np.concatenate(parts).ravel()

    def unpack(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients (n_features, n_outputs) and intercepts of X as it stands."""
        B = theta.reshape(self.n_parameters, -1)
        coef = B[: len(self.mean)] / self.scale[:, None]
        if not self.fit_intercept:
            return coef, np.zeros(B.shape[1])
        return coef, B[-1] - self.mean @ coef

    @property
    def shift(self) -> Array | None:
        """What to subtract from rows lest moments about the mean lose digits."""
        far = np.abs(self.mean) > _FAR * self.scale
        return np.where(far, self.mean, 0.0) if far.any() else None


def dense_sums(
    X: Array, residual: Array, weights: Array, frame: Frame
) -> tuple[Array, Array]:
    """Sums over blocks of rows, brought to standardised columns at the end.

    Moments about `shift` are accumulated. It is zero, and the rows are used as they
    stand, unless a column's mean is so large beside its spread that the transformation
    to moments about the mean would lose digits.
    """
    (n, p), d = X.shape, residual.shape[1]
    shift = frame.shift
    root = np.sqrt(weights)[:, None]
    # One matrix with all columns side by side, and few calls a block: threads wait for
    # the interpreter's lock at every one.
    height = min(_block_rows(p), n)
    buffer = np.empty((height, p + d + 1))
    moments = np.zeros((p + d + 1, p + d + 1))
    for block in row_chunks(n, height):
        rows = buffer[: block.stop - block.start]
        x = rows[:, :p]
        if shift is None:
            np.multiply(X[block], root[block], out=x)
        else:
            np.subtract(X[block], shift, out=x)
            x *= root[block]
        np.multiply(residual[block], root[block], out=rows[:, p:-1])
        rows[:, -1:] = root[block]
        # NumPy sees the same matrix twice and computes half of the products; unlike
        # SciPy's wrapper of that routine, it lets other threads run meanwhile.
        moments += rows.T @ rows
    gram, sums, ones = moments[:p, :p], moments[:p, p:], moments[p:, p:]
    offset = (frame.mean if shift is None else frame.mean - shift)[:, None]
    first = sums[:, d:]
    gram += ones[d, d] * (offset @ offset.T) - first @ offset.T - offset @ first.T
    gram /= np.outer(frame.scale, frame.scale)
    centred = (sums - offset @ ones[d:]) / frame.scale[:, None]
    if not frame.fit_intercept:
        return gram, centred[:, :d]
    H, G = np.empty((p + 1, p + 1)), np.empty((p + 1, d))
    H[:p, :p], H[:p, p], H[p, :p] = gram, centred[:, d], centred[:, d]
    H[p, p] = ones[d, d]
    G[:p], G[p] = centred[:, :d], ones[d, :d]
    return H, G


def sparse_sums(
    X: Any, residual: Array, weights: Array, frame: Frame
) -> tuple[Array, Array]:
    """The same for sparse rows, which are not centred."""
    Z = X.astype(np.float64) @ scipy.sparse.diags_array(1 / frame.scale)
    if frame.fit_intercept:
        ones = scipy.sparse.csr_array(np.ones((Z.shape[0], 1)))
        Z = scipy.sparse.hstack([Z, ones], format="csr")
    WZ = scipy.sparse.diags_array(weights) @ Z
    return (WZ.T @ Z).toarray(), WZ.T @ residual


class SymmetricFactor:
    """Minimum-norm solutions of H x = g for a symmetric, semidefinite H.

    Cholesky where H is safely definite; otherwise eigenvectors, with those dropped
    that the data do not determine.
    """

    def __init__(self, H: Array) -> None:
        # Unit diagonal: columns of any size are judged alike.
        self._scale = np.sqrt(np.maximum(np.diag(H), np.finfo(float).tiny))[:, None]
        balanced = H / (self._scale * self._scale.T)
        self._cholesky = None
        try:
            lower = scipy.linalg.cholesky(balanced, lower=True, check_finite=False)
            if lower.diagonal().min() ** 2 > 1e3 * _RANK_TOLERANCE:
                self._cholesky = lower
                return
        except scipy.linalg.LinAlgError:
            pass
        values, vectors = scipy.linalg.eigh(H, check_finite=False)
        keep = values > _RANK_TOLERANCE * max(values[-1], 0.0)
        self._values, self._vectors = values[keep], vectors[:, keep]

    def solve(self, g: Array) -> Array:
        """Solution for the columns of g."""
        if self._cholesky is not None:
            factor = (self._cholesky, True)
            x = scipy.linalg.cho_solve(factor, g / self._scale, check_finite=False)
            return x / self._scale
        return self._vectors @ ((self._vectors.T @ g) / self._values[:, None])
