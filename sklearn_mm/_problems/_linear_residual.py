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

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from scipy.linalg.blas import dsyrk
from sklearn.utils.extmath import safe_sparse_dot

from sklearn_mm._core._chunks import map_chunks, row_chunks
from sklearn_mm._core._protocols import Array

# Entries of a block of standardised rows: 300 kB stay in the second-level cache. On
# 100,000 x 20 and x 50 sizes from half to twice this took within 10 % of each other.
_BLOCK_ENTRIES = 40_000
# Rows a task: large enough that handing it to a worker costs nothing beside it.
_DEFAULT_CHUNK = 262_144
# Eigenvalues of the standardised Gram matrix below this share of the largest are
# directions that the data do not determine; the minimum-norm solution ignores them.
_RANK_TOLERANCE = 1e-13
# Standard deviations beyond so many median absolute deviations, on about so many rows,
# are those of outliers in X.
_BLOWN_UP, _ROBUST_ROWS = 50.0, 500
# Means beyond this many spreads are subtracted from the rows before they are multiplied
# (four of sixteen digits would be lost otherwise).
_FAR = 100.0
# H is kept on more rows than this, while the weights' mean relative change is below.
_KEEP_ROWS, _KEEP_DRIFT = 10_000, 0.2
# H is not formed for more sparse columns than this.
_MAX_GRAM = 2_000
_CG_TOLERANCE = 1e-8


def standardization(
    X: Any, sample_weight: Array, fit_intercept: bool
) -> tuple[Array, Array]:
    """Weighted mean and standard deviation of columns (1 for constant columns).

    Infinite where squares overflow: the caller may want other units.
    """
    n_features = X.shape[1]
    mean = np.zeros(n_features)
    total = sample_weight.sum()
    if scipy.sparse.issparse(X):
        with np.errstate(over="ignore"):
            square = X.astype(np.float64).power(2)
        variance = np.asarray(square.T @ sample_weight).ravel() / total
    else:
        share = sample_weight / total
        if fit_intercept:
            for block in row_chunks(X.shape[0], _block_rows(n_features)):
                mean += share[block] @ X[block]
        variance = np.zeros(n_features)
        for block in row_chunks(X.shape[0], _block_rows(n_features)):
            centred = X[block] - mean
            with np.errstate(over="ignore"):
                variance += share[block] @ np.square(centred, out=centred)
    scale = np.sqrt(variance)
    if not scipy.sparse.issparse(X):
        _resist_outliers(X, mean, scale, fit_intercept)
    # A spread that is rounding noise beside the mean is a constant column.
    constant = scale <= 10.0 * np.finfo(X.dtype).eps * np.abs(mean)
    scale[constant] = 1.0
    return mean, scale


def _resist_outliers(X: Any, mean: Array, scale: Array, fit_intercept: bool) -> None:
    """Replace centre and scale in place where a few entries have blown them up.

    They serve conditioning alone, so a part of the rows may speak for all: median and
    median absolute deviation, where that is not zero.
    """
    sample = X[:: max(1, X.shape[0] // _ROBUST_ROWS)]
    middle = np.median(sample, axis=0)
    spread = np.median(np.abs(sample - middle), axis=0)
    blown = (spread > 0) & ~(scale <= _BLOWN_UP * spread)
    scale[blown] = spread[blown]
    if fit_intercept:
        mean[blown] = middle[blown]


def _columnwise(A: Any, B: Array) -> Array:
    """A @ B; a single column goes as a vector, which BLAS does in half the time."""
    if B.shape[1] == 1:
        return safe_sparse_dot(A, B[:, 0], dense_output=True)[:, None]
    return safe_sparse_dot(A, B, dense_output=True)


def _block_rows(n_columns: int) -> int:
    return max(64, _BLOCK_ENTRIES // max(1, n_columns))


@dataclass
class _Kept:
    """What a model remembers between calls; never more than n_samples numbers each."""

    theta: Array | None = None
    residual: Array | None = None  # at that theta
    weights: Array | None = None
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

    def squared_norms(self, theta: Array) -> Array:
        residual = self.residual(theta)
        if residual.shape[1] == 1:
            return np.square(residual[:, 0])
        return np.einsum("ij,ij->i", residual, residual)

    def residual(self, theta: Array) -> Array:
        """Residuals of all rows; those of the latest theta are kept."""
        if self._kept.theta is not theta:
            fitted = self._map_rows(*self.unpack(theta))
            self._kept.residual = np.subtract(self.Y, fitted, out=fitted)
            self._kept.theta = theta
        assert self._kept.residual is not None
        return self._kept.residual

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
            kept.weights, kept.factor = weights, factor
        delta = factor.solve(G)
        kept.slope = float(np.sum(delta * G))
        share = relaxation * (2.0 - relaxation)
        return theta + relaxation * delta.ravel(), 0.5 * share * float(
            np.sum(delta * G)
        )

    def _is_close(self, weights: Array) -> bool:
        old = self._kept.weights
        return float(np.sum(np.abs(weights - old))) <= _KEEP_DRIFT * float(old.sum())

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
        G = self._gradient(weights[:, None] * residual) - ridge * theta.reshape(
            self.shape
        )
        delta = self._kept.factor.solve(G)
        slope = float(np.sum(delta * G))
        if slope > 0.25 * self._kept.slope:
            return None
        self._kept.slope = slope
        change = self._map_rows(*self.unpack(delta.ravel()))
        curvature = float(np.einsum("i,ij,ij->", weights, change, change))
        curvature += float(np.sum(ridge * np.square(delta)))
        if not (slope > 0.0 and curvature > 0.0):
            return theta, 0.0
        step = relaxation * slope / curvature
        new = theta + step * delta.ravel()
        self._kept.residual = residual - step * change
        self._kept.theta = new
        return new, 0.5 * (2.0 - relaxation) * step * slope

    def _conjugate_gradients(
        self, theta: Array, weights: Array, relaxation: float
    ) -> tuple[Array, float]:
        """The same minimiser without forming H, for many sparse columns."""
        q, d = self.shape
        ridge = self._ridge()
        G = self._gradient(weights[:, None] * self.residual(theta))
        G -= ridge[:, None] * theta.reshape(self.shape)

        def product(v: Array) -> Array:
            fitted = self._map_rows(*self._unpack_column(v))
            return self._gradient(weights[:, None] * fitted)[:, 0] + ridge * v

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

    def _gradient(self, weighted: Array) -> Array:
        """Z' V for n-by-d matrices V."""

        def products(chunk: slice) -> Array:
            rows = self.X[chunk]
            if rows.dtype != np.float64:
                rows = rows.astype(np.float64)
            return _columnwise(rows.T, weighted[chunk])

        raw = sum(map_chunks(products, self._chunks(), self.n_jobs))
        total = weighted.sum(axis=0)
        G = (raw - np.outer(self.mean, total)) / self.scale[:, None]
        return np.vstack([G, total]) if self.fit_intercept else G

    def _map_rows(self, coef: Array, intercept: Array) -> Array:
        """X coef + intercept, chunk by chunk in double precision."""

        def fitted(chunk: slice) -> Array:
            return _columnwise(self.X[chunk], coef) + intercept

        chunks = self._chunks()
        values = map_chunks(fitted, chunks, self.n_jobs)
        if len(chunks) == 1:
            return next(values)
        out = np.empty((self.X.shape[0], coef.shape[1]))
        for chunk, value in zip(chunks, values, strict=True):
            out[chunk] = value
        return out

    def normal_equations(self, theta: Array, weights: Array) -> tuple[Array, Array]:
        """Z' diag(w) Z and Z' diag(w) R, summed over chunks in order."""
        residual = self.residual(theta)
        accumulate = (
            self._sparse_sums if scipy.sparse.issparse(self.X) else self._dense_sums
        )

        def sums(chunk: slice) -> tuple[Array, Array]:
            return accumulate(chunk, residual, weights)

        H = np.zeros((self.shape[0], self.shape[0]))
        G = np.zeros(self.shape)
        for H_chunk, G_chunk in map_chunks(sums, self._chunks(), self.n_jobs):
            H += H_chunk
            G += G_chunk
        return H, G

    def _chunks(self) -> list[slice]:
        return row_chunks(self.X.shape[0], self.chunk_size or _DEFAULT_CHUNK)

    def _ridge(self) -> Array:
        ridge = np.zeros(self.shape[0])
        ridge[: len(self.mean)] = self.alpha / np.square(self.scale)
        return ridge

    def _dense_sums(
        self, chunk: slice, residual: Array, weights: Array
    ) -> tuple[Array, Array]:
        """Sums over blocks of rows, brought to standardised columns at the end.

        Moments about `shift` are accumulated. It is zero, and the rows are used as they
        stand, unless a column's mean is so large beside its spread that the
        transformation to moments about the mean would lose digits.
        """
        p, d = len(self.mean), self.Y.shape[1]
        shift = self._shift()
        gram = np.zeros((p, p), order="F")
        sums = np.zeros((p, d + 1))  # against the residuals, and against ones
        ones = np.zeros((d + 1, d + 1))
        height = min(_block_rows(p), chunk.stop - chunk.start)
        buffer = np.empty((height, p))
        right = np.ones((height, d + 1))
        for block in row_chunks(chunk.stop - chunk.start, height):
            rows = slice(chunk.start + block.start, chunk.start + block.stop)
            root = np.sqrt(weights[rows, None])
            x, y = buffer[: len(root)], right[: len(root)]
            if shift is None:
                np.multiply(self.X[rows], root, out=x)
            else:
                np.subtract(self.X[rows], shift, out=x)
                x *= root
            np.multiply(residual[rows], root, out=y[:, :d])
            y[:, d:] = root
            # Half of the products that a general multiplication would compute.
            gram = dsyrk(1.0, x.T, beta=1.0, c=gram, overwrite_c=1)
            sums += x.T @ y
            ones += y.T @ y
        offset = (self.mean if shift is None else self.mean - shift)[:, None]
        gram = np.triu(gram) + np.triu(gram, 1).T
        first = sums[:, d:]
        gram += ones[d, d] * (offset @ offset.T) - first @ offset.T - offset @ first.T
        gram /= np.outer(self.scale, self.scale)
        centred = (sums - offset @ ones[d:]) / self.scale[:, None]
        if not self.fit_intercept:
            return gram, centred[:, :d]
        H = np.block([[gram, centred[:, d:]], [centred[:, d:].T, ones[d:, d:]]])
        return H, np.vstack([centred[:, :d], ones[d:, :d]])

    def _shift(self) -> Array | None:
        far = np.abs(self.mean) > _FAR * self.scale
        return np.where(far, self.mean, 0.0) if far.any() else None

    def _sparse_sums(
        self, chunk: slice, residual: Array, weights: Array
    ) -> tuple[Array, Array]:
        w = weights[chunk]
        Z = self.X[chunk].astype(np.float64) @ scipy.sparse.diags_array(1 / self.scale)
        if self.fit_intercept:
            ones = scipy.sparse.csr_array(np.ones((Z.shape[0], 1)))
            Z = scipy.sparse.hstack([Z, ones], format="csr")
        WZ = scipy.sparse.diags_array(w) @ Z
        return (WZ.T @ Z).toarray(), WZ.T @ residual[chunk]


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
