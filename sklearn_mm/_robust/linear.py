r"""Residuals of a linear model in standardised columns.

The design is standardised implicitly: column j enters as (x_j - m_j) / s_j, so that
columns of very different size or offset (timestamps) do not affect the accuracy of the
normal equations. X is neither copied nor changed::

    H = Z' diag(w) Z + P,     G = Z' diag(w) R - P theta,     theta+ = theta + H^-1 G

where Z has a column of ones for the intercept and P is the penalty alpha / s_j**2,
which is alpha for the coefficients in the units of X. Since the *change* of theta is
computed from its residuals, each iteration is a step of iterative refinement.

Sparse X is scaled but not centred, which would make it dense.

Sums over rows are tasks of `Rows`: plain functions of the rows of one chunk and of the
numbers that belong to them. Blocks of rows that fit in the cache are multiplied
unchanged, and the products are converted to standardised columns afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.extmath import safe_sparse_dot

from sklearn_mm._rows.table import Column, Rows, SumOver, row_chunks
from sklearn_mm._solver.roles import Array, Indices

# Entries of a block of standardised rows, 2 MB. On one thread, sizes from an eighth of
# this take the same time within 10%. On two threads, smaller blocks mean more short
# calls, which wait for the interpreter lock.
_BLOCK_ENTRIES = 256_000
# Means beyond this many spreads are subtracted from the rows before they are multiplied
# (four of sixteen digits would be lost otherwise).
_FAR = 100.0
# The square of the scale that makes up for the bias of a larger penalty overflows.
_LARGEST_RIDGE = 1e150


@dataclass(frozen=True)
class Frame:
    """How columns are standardised."""

    mean: Array
    scale: Array
    fit_intercept: bool

    @property
    def n_parameters(self) -> int:
        """Number of coefficients, including the intercept."""
        return len(self.mean) + int(self.fit_intercept)

    @property
    def shift(self) -> Array | None:
        """What is subtracted from rows so that moments about the mean keep digits."""
        far = np.abs(self.mean) > _FAR * self.scale
        return np.where(far, self.mean, 0.0) if far.any() else None

    def pack(self, coef: Array, intercept: Array) -> Array:
        """Theta of coefficients (n_features, n_outputs) in the units of X."""
        parts = [coef * self.scale[:, None]]
        if self.fit_intercept:
            parts.append((intercept + self.mean @ coef)[None, :])
        return np.concatenate(parts).ravel()

    def unpack(self, theta: Array) -> tuple[Array, Array]:
        """Coefficients (n_features, n_outputs) and intercepts in the units of X."""
        B = theta.reshape(self.n_parameters, -1)
        coef = B[: len(self.mean)] / self.scale[:, None]
        if not self.fit_intercept:
            return coef, np.zeros(B.shape[1])
        return coef, B[-1] - self.mean @ coef


@dataclass(frozen=True)
class LinearPoint:
    """A theta, the residuals of all rows there, and the penalty."""

    theta: Array
    residual: Column  # (n_samples, n_outputs)
    penalty: float


@dataclass(frozen=True)
class LinearResidual:
    """r_i = y_i - B' z_i for standardised rows z_i; theta is B, flattened.

    Targets are stored in the units of the user; tasks convert them.

    Attributes
    ----------
    shape : tuple of int
        Shape of theta when unpacked: rows of coefficients, the intercept last.
    ridge : ndarray of shape (n_parameters,)
        Diagonal of P.
    is_sparse : bool
        Whether X is sparse.
    """

    rows: Rows
    y: Column  # (n_samples,) or (n_samples, n_outputs), in the user's units
    frame: Frame  # how columns are standardised
    centre: Array  # of the targets, one per output
    spread: Array  # of the targets, one per output
    alpha: float = 0.0  # L2 penalty of coefficients in the units of X
    l1: tuple[float, ...] = ()  # L1 penalties, one per output, if there are any
    shape: tuple[int, int] = field(init=False)
    ridge: Array = field(init=False, repr=False)
    is_sparse: bool = field(init=False)

    def __post_init__(self) -> None:
        frame = self.frame
        ridge = np.zeros(frame.n_parameters)
        ridge[: len(frame.mean)] = self.alpha / np.square(frame.scale)
        largest = float(ridge.max(initial=0.0))
        if not largest <= _LARGEST_RIDGE:
            raise ValueError(
                "alpha is too large in view of the sample weights and the columns of "
                f"X: relative to them, it is {largest:g}. Decrease alpha, or rescale "
                "the data."
            )
        object.__setattr__(self, "shape", (frame.n_parameters, len(self.centre)))
        object.__setattr__(self, "ridge", ridge)
        object.__setattr__(self, "is_sparse", scipy.sparse.issparse(self.rows.X))

    def at(self, theta: Array, out: Column | None = None) -> LinearPoint:
        """The point of a theta, its residuals in the memory of `out`."""
        if out is None:
            out = self.rows.column(self.shape[1])
        units = (self.centre, self.spread)
        if theta.any():
            args = (*self.frame.unpack(theta), *units)
            residual = self.rows.keep(self.rows.fill(out, residuals, self.y, args=args))
        else:  # X need not be read, and it takes little to compute them again
            residual = self.rows.beside.fill(out, targets, self.y, args=units)
        return LinearPoint(theta, residual, self.penalty(theta))

    def moved(self, point: LinearPoint, theta: Array, change: Column) -> LinearPoint:
        """The point of a theta where residuals differ by a known change.

        The memory of the change becomes that of the residuals.
        """
        residual = self.rows.beside.fill(change, _sum, point.residual, change)
        return LinearPoint(theta, self.rows.keep(residual), self.penalty(theta))

    def penalty(self, theta: Array) -> float:
        """The part of the objective that depends on theta alone."""
        if not (self.alpha or self.l1):
            return 0.0
        B = theta.reshape(self.shape)
        penalty = 0.5 * float(np.sum(self.ridge[:, None] * np.square(B)))
        if self.l1:
            coef = B[: len(self.frame.mean)] / self.frame.scale[:, None]
            penalty += float(np.sum(np.abs(coef) @ self.l1))
        return penalty

    def pull(self, theta: Array) -> Array:
        """Inner product of theta and the penalty's gradient there, per output."""
        B = theta.reshape(self.shape)
        pull: Array = self.ridge @ np.square(B)
        if self.l1:
            coef = B[: len(self.frame.mean)] / self.frame.scale[:, None]
            pull = pull + np.abs(coef).sum(axis=0) * self.l1
        return pull

    def take(self, index: Indices) -> tuple[Any, Array]:
        """Some rows of X in double precision, and their targets."""
        return self.of_entries(*self.rows.take(index, self.y))

    def of_entries(self, X: Any, y: Array) -> tuple[Any, Array]:
        """Some rows of X in double precision, and targets in the solver's units."""
        return X.astype(np.float64), targets(y, self.centre, self.spread)

    def fitted(self, theta: Array, out: Column | None = None) -> Column:
        """Z B of all rows."""
        args = self.frame.unpack(theta)
        if out is None:
            out = self.rows.column(args[0].shape[1])
        return self.rows.keep(self.rows.fill(out, fitted, args=args))

    def gradient(self, residual: Column, weights: Column) -> Array:
        """Z' diag(w) R."""
        return self.centred(*self.rows.sum(products, weights, residual))

    def centred(self, raw: Array, total: Array) -> Array:
        """Z' V from the sums X' V and 1' V of `products`."""
        frame = self.frame
        G = (raw - np.outer(frame.mean, total)) / frame.scale[:, None]
        return np.vstack([G, total]) if frame.fit_intercept else G

    def normal_equations(
        self, residual: Column, weights: Column
    ) -> tuple[Array, Array]:
        """Z' diag(w) Z and Z' diag(w) R."""
        ((H, G),) = self.rows.sums([self.normal_sums(residual, weights)])
        return H, G

    def normal_sums(self, residual: Column, weights: Column) -> SumOver:
        """The sums of `normal_equations`."""
        function = sparse_sums if self.is_sparse else dense_sums
        return SumOver(function, (residual, weights), (self.frame,))

    def sparse_diagonal(self, weights: Column) -> Array:
        """The diagonal of Z' diag(w) Z for sparse rows, which are not centred."""
        squares, total = self.rows.sum(weighted_squares, weights)
        squares = squares / np.square(self.frame.scale)
        return np.append(squares, total) if self.frame.fit_intercept else squares

    def right_side(self, theta: Array, G: Array) -> Array:
        """G with the gradient of the penalty at theta."""
        right: Array = G - self.ridge[:, None] * theta.reshape(self.shape)
        return right


def _columnwise(A: Array, B: Array, out: Array) -> None:
    """A @ B; a single column is passed as a vector, which takes BLAS half the time."""
    if B.shape[1] == 1:
        np.matmul(A, B[:, 0], out=out[:, 0])
    else:
        np.matmul(A, B, out=out)


def columns_times(X: Array, v: Array) -> Array:
    """X' v. BLAS would be as fast on one thread, but not faster on two."""
    product: Array = np.einsum("ij,i->j", X, v)
    return product


def _block_rows(n_columns: int) -> int:
    return max(64, _BLOCK_ENTRIES // max(1, n_columns))


def cache_blocks(X: Array) -> Iterator[tuple[slice, Array]]:
    """Blocks of rows that fit in the cache, each with memory for a copy of it.

    All blocks share this memory, since new pages take longer than the computation.
    """
    height = max(1, min(_block_rows(X.shape[1]), X.shape[0]))
    buffer = np.empty((height, X.shape[1]))
    for block in row_chunks(X.shape[0], height):
        yield block, buffer[: block.stop - block.start]


def _blocks_in_double(X: Array) -> Iterator[tuple[slice, Array]]:
    """Blocks of rows in double precision."""
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
    X: Any,
    y: Array,
    coef: Array,
    intercept: Array,
    centre: Array,
    spread: Array,
    out: Array | None = None,
) -> Array:
    values = fitted(X, coef, intercept, out)
    return np.subtract(targets(y, centre, spread), values, out=values)


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


def weighted_squares(X: Any, weights: Array) -> tuple[Array, Array]:
    """Sums of weighted squares of sparse columns, and of the weights."""
    return X.multiply(X).T @ weights, weights.sum(keepdims=True)


def dense_sums(
    X: Array, residual: Array, weights: Array, frame: Frame
) -> tuple[Array, Array]:
    """Sums over blocks of rows, brought to standardised columns at the end.

    Moments about `shift` are accumulated. It is zero, and the rows are used unchanged,
    unless the mean of a column is so large compared with its spread that the
    transformation to moments about the mean would lose digits.
    """
    (n, p), d = X.shape, residual.shape[1]
    shift = frame.shift
    root = np.sqrt(weights)[:, None]
    # One matrix with all columns, and few calls per block: threads wait for the
    # interpreter lock in each call.
    height = min(_block_rows(p), n)
    buffer = np.empty((height, p + d + 1))
    moments: Any = 0.0
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
        # NumPy recognises the same matrix and computes half of the products. Unlike
        # SciPy's wrapper of that routine, it releases the interpreter lock.
        moments = moments + rows.T @ rows
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


def targets(y: Array, centre: Array, spread: Array, out: Array | None = None) -> Array:
    """Targets of shape (n, n_outputs) in the solver's units."""
    unit = np.subtract(y.reshape(-1, len(centre)), centre, out=out)
    unit /= spread
    return unit


def _sum(values: Array, change: Array, out: Array | None = None) -> Array:
    return np.add(values, change, out=out)
