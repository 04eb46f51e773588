r"""Residuals of a linear model, and weighted least squares on them.

The design is standardised implicitly: column j enters as (x_j - m_j) / s_j, so that
columns of very different size or offset (timestamps) do not spoil the normal equations,
while X itself is neither copied nor changed: sums over blocks of rows that fit in the
cache are brought to standardised columns afterwards.

    H = Z' diag(w) Z + P,     G = Z' diag(w) R - P theta,     theta+ = theta + H^-1 G

where Z has a column of ones for the intercept and P is the penalty alpha / s_j**2,
which is alpha for the coefficients in the user's units. Solving for the *change* of
theta from its residuals makes every iteration one of iterative refinement.

H costs p times as much as G. On many rows it is therefore kept while the weights change
little, and theta moves along H_old^-1 G by exact line search. That decreases the upper
bound by half of (delta' G)**2 / delta' H delta, which the line search computes: a
sufficient descent in the sense of the paper's appendix, and all but the minimiser
itself, since what matters of H is its shape and not its size.

Sparse X is scaled but not centred, which would fill it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from sklearn.utils.extmath import safe_sparse_dot

from sklearn_mm._rows.workers import (
    chunks_of,
    fill_chunks,
    fill_rows,
    map_chunks,
    map_rows,
    row_chunks,
)
from sklearn_mm._solver.roles import ALL_ROWS, Array

# Entries of a block of standardised rows, 2 MB. On one thread sizes from an eighth of
# this took within 10 % of each other; two threads that share a smaller one's many short
# calls wait for the interpreter's lock.
_BLOCK_ENTRIES = 256_000
# Rows and entries of a task: large enough that handing it to a worker costs nothing
# beside it, and small enough that rows read from a file are a small part of memory.
_CHUNK_ROWS, _CHUNK_ENTRIES = 262_144, 8_388_608
# Rows whose residuals and weights are one piece of work. They are passed through a few
# short calls, at each of which threads wait for the interpreter's lock.
STATE_ROWS = 262_144
# Eigenvalues of the standardised Gram matrix below this share of the largest are
# directions that the data do not determine; the minimum-norm solution ignores them.
_RANK_TOLERANCE = 1e-13
# Means beyond this many spreads are subtracted from the rows before they are multiplied
# (four of sixteen digits would be lost otherwise).
_FAR = 100.0
# H is kept on more rows than this, while the weights' mean relative change is below.
_KEEP_ROWS, _KEEP_DRIFT = 10_000, 0.2
# H is not formed for more sparse columns than this.
_MAX_GRAM = 2_000
_CG_TOLERANCE = 1e-8


def linear_chunks(X: Any, chunk_size: int | None) -> list[slice]:
    """Rows of a task; None lets their number depend on that of the columns."""
    rows = min(_CHUNK_ROWS, _CHUNK_ENTRIES // max(1, X.shape[1]))
    return chunks_of(X, chunk_size or max(64, rows))


def _columnwise(A: Array, B: Array, out: Array) -> None:
    """A @ B; a single column goes as a vector, which BLAS does in half the time."""
    if B.shape[1] == 1:
        np.matmul(A, B[:, 0], out=out[:, 0])
    else:
        np.matmul(A, B, out=out)


def columns_times(X: Array, v: Array) -> Array:
    """X' v; BLAS, as fast on one thread, takes as long on two."""
    return np.einsum("ij,i->j", X, v)


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


def _fitted(X: Any, coef: Array, intercept: Array, out: Array | None = None) -> Array:
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


def _residual(
    X: Any, Y: Array, coef: Array, intercept: Array, out: Array | None = None
) -> Array:
    fitted = _fitted(X, coef, intercept, out)
    return np.subtract(Y, fitted, out=fitted)


def _products(X: Any, weights: Array, residual: Array) -> tuple[Array, Array]:
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


@dataclass
class _Kept:
    """What a model remembers between calls; never more than n_samples numbers each.

    The arrays are filled again and again; what they hold is told by the thetas.
    """

    theta: Array | None = None
    residual: Array | None = None  # at that theta
    ahead: Array | None = None  # a theta that was tried from there
    change: Array | None = None  # of the residuals on the way
    weights: Array | None = None  # in single precision
    factor: SymmetricFactor | None = None  # of H at those weights
    slope: float = np.inf  # G' H^-1 G of the latest step, a squared distance


@dataclass(frozen=True)
class LinearResidual:
    """r_i = y_i - B' z_i for standardised rows z_i; theta is B, flattened."""

    X: Any
    Y: Array  # (n_samples, n_outputs)
    mean: Array
    scale: Array
    fit_intercept: bool
    alpha: float | Array = 0.0  # penalty of coefficients in the units of X
    chunk_size: int | None = None
    n_jobs: int | None = None
    _kept: _Kept = field(default_factory=lambda: _Kept(), compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of theta when unpacked: rows of coefficients, the intercept last."""
        return len(self.mean) + int(self.fit_intercept), self.Y.shape[1]

    def pack(self, coef: Array, intercept: Array) -> Array:
        """Theta of coefficients (n_features, n_outputs) in the units of X."""
        parts = [coef * self.scale[:, None]]
        if self.fit_intercept:
            parts.append((intercept + self.mean @ coef)[None, :])
        return np.concatenate(parts).ravel()

    def unpack(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients (n_features, n_outputs) and intercepts in the units of X."""
        B = theta.reshape(self.shape)
        coef = B[: len(self.mean)] / self.scale[:, None]
        if not self.fit_intercept:
            return coef, np.zeros(self.shape[1])
        return coef, B[-1] - self.mean @ coef

    def squared_norms(self, theta: Array, rows: slice = ALL_ROWS) -> Array:
        residual = self.residual(theta)[rows]
        if residual.shape[1] == 1:
            return np.square(residual[:, 0])
        return np.einsum("ij,ij->i", residual, residual)

    def residual(self, theta: Array) -> Array:
        """Residuals of all rows; those of the latest theta are kept."""
        kept = self._kept
        if kept.theta is not theta:
            # Nothing is known while it changes: an interrupt may come at any time.
            ahead, kept.theta, kept.ahead = kept.ahead, None, None
            if ahead is theta:
                old, new, kept.change = kept.residual, kept.change, None
                kept.residual = np.add(old, new, out=new)
                kept.change = old
            else:
                kept.residual = self._residual(theta, kept.residual)
            kept.theta = theta
        assert kept.residual is not None
        return kept.residual

    def _residual(self, theta: Array, out: Array | None) -> Array:
        if out is None:
            out = np.empty(self.Y.shape)
        if not theta.any():  # X need not be read
            return fill_chunks(self.Y.__getitem__, self.chunks, self.n_jobs, out)
        coef, intercept = self.unpack(theta)
        return self._fill(
            _residual, lambda chunk: (self.Y[chunk], coef, intercept), out
        )

    def penalty(self, theta: Array) -> float:
        if not np.any(self.alpha):
            return 0.0
        B = theta.reshape(self.shape)
        return 0.5 * float(np.sum(self._ridge()[:, None] * np.square(B)))

    def minimize(
        self, theta: Array, weights: Array, relaxation: float = 1.0
    ) -> tuple[Array, float]:
        kept = self._kept
        if kept.factor is not None and self._is_close(weights):
            found = self._line_search(theta, weights, relaxation)
            if found is not None:
                return found
        if scipy.sparse.issparse(self.X) and self.shape[0] > _MAX_GRAM:
            return self._conjugate_gradients(theta, weights, relaxation)
        H, G = self.normal_equations(theta, weights)
        ridge = self._ridge()
        H[np.diag_indices_from(H)] += ridge
        G -= ridge[:, None] * theta.reshape(self.shape)
        factor = SymmetricFactor(H)
        if self.X.shape[0] > _KEEP_ROWS:
            self._keep(weights, factor)
        delta = factor.solve(G)
        kept.slope = float(np.sum(delta * G))
        share = relaxation * (2.0 - relaxation)
        return theta + relaxation * delta.ravel(), 0.5 * share * float(
            np.sum(delta * G)
        )

    def _keep(self, weights: Array, factor: SymmetricFactor) -> None:
        kept = self._kept
        kept.factor = None  # until the weights are those that belong to it
        if kept.weights is None:
            kept.weights = np.empty(len(weights), dtype=np.float32)
        np.copyto(kept.weights, weights, casting="same_kind")
        kept.factor = factor

    def _is_close(self, weights: Array) -> bool:
        old = self._kept.weights

        def drift(chunk: slice) -> tuple[float, float]:
            change = np.abs(weights[chunk] - old[chunk])
            return float(change.sum()), float(old[chunk].sum(dtype=np.float64))

        sums = np.array(list(map_chunks(drift, self.state_chunks, self.n_jobs)))
        change, size = sums.sum(axis=0)
        return bool(change <= _KEEP_DRIFT * size)

    def forget(self) -> None:
        """Drop the kept matrix: the next weights have nothing to do with the last."""
        self._kept.factor = None

    def _line_search(
        self, theta: Array, weights: Array, relaxation: float
    ) -> tuple[Array, float] | None:
        """Exact minimisation of the upper bound along H_old^-1 G.

        None if the distance has not halved since the last step. A small change of the
        weights is a large one of H where it falls on a row of high leverage; then H is
        due to be computed anew.
        """
        ridge = self._ridge()[:, None]
        residual = self.residual(theta)
        G = self._gradient(weights, residual) - ridge * theta.reshape(self.shape)
        delta = self._kept.factor.solve(G)
        slope = float(np.sum(delta * G))
        if slope > 0.25 * self._kept.slope:
            return None
        self._kept.slope = slope
        self._kept.ahead = None
        change = self.fitted(*self.unpack(delta.ravel()), out=self._kept.change)

        def squares(chunk: slice) -> float:
            moved = change[chunk]
            return float(np.einsum("i,ij,ij->", weights[chunk], moved, moved))

        curvature = sum(map_chunks(squares, self.state_chunks, self.n_jobs))
        curvature += float(np.sum(ridge * np.square(delta)))
        if not (slope > 0.0 and curvature > 0.0):
            return theta, 0.0
        step = relaxation * slope / curvature
        new = theta + step * delta.ravel()
        change *= -step
        self._kept.change, self._kept.ahead = change, new
        return new, 0.5 * (2.0 - relaxation) * step * slope

    def _conjugate_gradients(
        self, theta: Array, weights: Array, relaxation: float
    ) -> tuple[Array, float]:
        """The same minimiser without forming H, for many sparse columns."""
        q, d = self.shape
        ridge = self._ridge()
        G = self._gradient(weights, self.residual(theta))
        G -= ridge[:, None] * theta.reshape(self.shape)

        def product(v: Array) -> Array:
            fitted = self.fitted(*self._unpack_column(v))
            return self._gradient(weights, fitted)[:, 0] + ridge * v

        H = scipy.sparse.linalg.LinearOperator((q, q), matvec=product, dtype=float)
        delta = np.column_stack(
            [
                scipy.sparse.linalg.cg(H, G[:, j], rtol=_CG_TOLERANCE, maxiter=q)[0]
                for j in range(d)
            ]
        )
        # Conjugate gradients minimise over subspaces: delta' H delta = delta' G.
        share = relaxation * (2.0 - relaxation)
        return theta + relaxation * delta.ravel(), 0.5 * share * float(
            np.sum(delta * G)
        )

    def _unpack_column(self, v: Array) -> tuple[Array, Array]:
        """Coefficients and intercept of a single output, as `unpack` for all."""
        p = len(self.mean)
        coef = v[:p, None] / self.scale[:, None]
        intercept = v[p:] - self.mean @ coef if self.fit_intercept else np.zeros(1)
        return coef, intercept

    def _gradient(self, weights: Array, residual: Array) -> Array:
        """Z' diag(w) R."""

        def arguments(chunk: slice) -> tuple[Array, Array]:
            return weights[chunk], residual[chunk]

        raw, total = 0.0, 0.0
        for raw_chunk, total_chunk in self._tasks(_products, arguments):
            raw, total = raw + raw_chunk, total + total_chunk
        G = (raw - np.outer(self.mean, total)) / self.scale[:, None]
        return np.vstack([G, total]) if self.fit_intercept else G

    def fitted(self, coef: Array, intercept: Array, out: Array | None = None) -> Array:
        """X coef + intercept of all rows."""
        if out is None:
            out = np.empty((self.X.shape[0], coef.shape[1]))
        return self._fill(_fitted, lambda chunk: (coef, intercept), out)

    def _tasks(self, function: Any, arguments: Any) -> Any:
        return map_rows(function, self.X, self.chunks, self.n_jobs, arguments)

    def _fill(self, function: Any, arguments: Any, out: Array) -> Array:
        return fill_rows(function, self.X, self.chunks, self.n_jobs, arguments, out)

    def normal_equations(self, theta: Array, weights: Array) -> tuple[Array, Array]:
        """Z' diag(w) Z and Z' diag(w) R, summed over chunks in order."""
        residual = self.residual(theta)
        frame = Frame(self.mean, self.scale, self.fit_intercept)
        function = sparse_sums if scipy.sparse.issparse(self.X) else dense_sums

        def arguments(chunk: slice) -> tuple[Frame, Array, Array]:
            return frame, residual[chunk], weights[chunk]

        H = np.zeros((self.shape[0], self.shape[0]))
        G = np.zeros(self.shape)
        for H_chunk, G_chunk in self._tasks(function, arguments):
            H += H_chunk
            G += G_chunk
        return H, G

    @functools.cached_property
    def chunks(self) -> list[slice]:
        """Rows of a task."""
        return linear_chunks(self.X, self.chunk_size)

    @functools.cached_property
    def state_chunks(self) -> list[slice]:
        """Rows whose residuals and weights are worked on together."""
        return row_chunks(self.X.shape[0], self.chunk_size or STATE_ROWS)

    def _ridge(self) -> Array:
        ridge = np.zeros(self.shape[0])
        ridge[: len(self.mean)] = self.alpha / np.square(self.scale)
        return ridge


@dataclass(frozen=True)
class Frame:
    """How columns are standardised."""

    mean: Array
    scale: Array
    fit_intercept: bool

    @property
    def shift(self) -> Array | None:
        """What to subtract from rows lest moments about the mean lose digits."""
        far = np.abs(self.mean) > _FAR * self.scale
        return np.where(far, self.mean, 0.0) if far.any() else None


def dense_sums(
    X: Array, frame: Frame, residual: Array, weights: Array
) -> tuple[Array, Array]:
    """Sums over blocks of rows, brought to standardised columns at the end.

    Moments about `shift` are accumulated. It is zero, and the rows are used as they
    stand, unless a column's mean is so large beside its spread that the transformation
    to moments about the mean would lose digits.
    """
    (n, p), d = X.shape, residual.shape[1]
    shift = frame.shift
    root = np.sqrt(weights)[:, None]
    right = np.hstack([residual, np.ones((n, 1))])
    right *= root
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
        rows[:, p:] = right[block]
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
    H = np.block([[gram, centred[:, d:]], [centred[:, d:].T, ones[d:, d:]]])
    return H, np.vstack([centred[:, :d], ones[d:, :d]])


def sparse_sums(
    X: Any, frame: Frame, residual: Array, weights: Array
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
