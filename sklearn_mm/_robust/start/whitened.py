"""Deciding rows in coordinates in which the design is orthonormal.

Contains the batched computations on rows for the choice of a plane: candidates are
arrays of shape (n_candidates, n_parameters, n_outputs), and weights of rows have shape
(n_candidates, n_rows). Weights are masses: k copies of a row and one row of weight k
give the same sums, medians and halves.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import ndtri

# Masses, residuals, masks and indices alike.
Array = NDArray[Any]
# Rows with a larger root mean square of standardised entries are scaled down to this
# size for whitening. Otherwise all others would look like rounding errors.
_FAR_OUT = 30.0
# Largest number of columns that are whitened.
MAX_WHITENED = 1_000
# Directions with a smaller variance relative to the largest one are undetermined.
_RANK_TOLERANCE = 1e-10
# Part of the variance in each direction that rows must have to determine a plane.
_LEAST_PART = 1e-6
# Largest number of parameters for which batches of normal equations are formed, twice
# that with a penalty, where hat matrices are needed. Beyond it, conjugate gradients
# need only products with the design.
_MAX_DIRECT = 32
_CG_STEPS, _CG_TOLERANCE = 40, 1e-4
# Smallest scale of an output relative to the unit of another one, for turned outputs.
_LEAST_RATIO = 1e-3
# Median of the absolute value of a standard normal variable.
NORMAL_MEDIAN = float(ndtri(0.75))
# Smaller residuals relative to the spread of y are rounding errors of an exact fit.
_EXACT = 1e-11


def weighted_quantile(values: Array, weight: Array, share: float) -> Array:
    """Weighted quantile along the last axis.

    It is the mean of two values if the weight is split exactly between them.
    """
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    mass = np.cumsum(weight[order], axis=-1)
    goal, rounding = share * mass[..., -1:], 1e-12 * mass[..., -1:]
    lower = np.argmax(mass >= goal - rounding, axis=-1)[..., None]
    upper = np.argmax(mass > goal + rounding, axis=-1)[..., None]
    ends = [np.take_along_axis(ordered, i, axis=-1)[..., 0] for i in (lower, upper)]
    return ends[0] / 2.0 + ends[1] / 2.0


def weighted_median(values: Array, weight: Array) -> Array:
    """Weighted median along the last axis."""
    if np.all(weight == weight[0]):
        # As np.median, without its search for NaN, which takes as long again.
        middle = values.shape[-1] // 2
        if values.shape[-1] % 2:
            return np.partition(values, middle, axis=-1)[..., middle]
        ends = np.partition(values, (middle - 1, middle), axis=-1)
        return ends[..., middle - 1] / 2.0 + ends[..., middle] / 2.0
    return weighted_quantile(values, weight, 0.5)


def row_labels(table: Array) -> Array:
    """Number of each row among the distinct rows, in their lexicographic order.

    Column by column: `np.unique(table, axis=0)` compares records, and NumPy reports an
    interrupt during that as a TypeError.
    """
    label = np.zeros(len(table), np.intp)
    for column in table.T:
        values, inverse = np.unique(column, return_inverse=True)
        joined = label * len(values) + inverse
        values, label = np.unique(joined, return_inverse=True)
        if len(values) == len(table):
            break
    return label


def rounding_step(y: Array, weight: Array) -> float:
    """Smallest gap between repeated values of y if most rows have such values.

    Otherwise it is zero: y is continuous, or only some values, such as codes, repeat.
    The same holds for the rows between the smallest and the largest of these values,
    which may be the ends of a range to which y was clipped.
    """
    values, inverse, count = np.unique(y, return_inverse=True, return_counts=True)
    tied = count > 1
    if tied.sum() < 2:
        return 0.0
    ends = values[tied][[0, -1]]
    for among in (np.ones(len(y), bool), (y > ends[0]) & (y < ends[1])):
        mass = among * weight
        if mass[tied[inverse]].sum() < 0.5 * mass.sum():
            return 0.0
    gaps = np.diff(values[tied])
    return float(gaps[gaps > 1e-9 * gaps.max()].min())


@dataclass(frozen=True)
class WhitenedRows:
    """Rows with a dense and orthonormal design.

    Theta contains the coefficients of the whitened columns, followed by the intercept.
    """

    Z: Any  # (n, r); Z' diag(weight) Z = n I up to rows that are far out
    Y: Array  # (n, d), every output in its own unit
    weight: Array  # sums to the number of rows
    back: Array  # (q, r) maps whitened coefficients to those of the design
    forth: Array  # (r, q), its pseudo-inverse
    ridge: Array | None  # (r, r), the penalty
    unit: Array  # (d,) of the outputs: a robust spread about least squares
    floor: Array  # (d,) smallest scales: rounding of y, or of the arithmetic
    exact: Array  # (d,) rounding of the arithmetic alone
    has_intercept: bool
    products: Array | None  # upper triangles of z z' where normal equations are formed
    effective: float  # parameters that the penalty leaves: the trace of the hat matrix

    @classmethod
    def of(
        cls, X: Array, Y: Array, weight: Array, penalty: Array, intercept: bool
    ) -> WhitenedRows:
        """Whiten rows of standardised columns with a penalty each."""
        n, p = X.shape
        size = np.sqrt(np.mean(np.square(X), axis=1)) if p else np.zeros(n)
        tame = weight * np.square(np.minimum(1.0, _FAR_OUT / np.maximum(size, 1e-300)))
        mean = tame @ X / tame.sum() if intercept else np.zeros(p)
        centred = X - mean
        values, vectors = np.linalg.eigh((centred * tame[:, None]).T @ centred / n)
        keep = values > _RANK_TOLERANCE * max(values.max(initial=0.0), 1e-300)
        root = np.sqrt(values[keep])
        inner = vectors[:, keep] / root
        Z, back, forth = centred @ inner, inner, (vectors[:, keep] * root).T
        ridge = inner.T @ (penalty[:, None] * inner) if np.any(penalty) else None
        if intercept:
            Z = np.hstack([Z, np.ones((n, 1))])
            back = scipy.linalg.block_diag(back, 1.0)
            back[-1, :-1] = -mean @ inner
            forth = scipy.linalg.block_diag(forth, 1.0)
            forth[-1, :-1] = mean
            if ridge is not None:
                ridge = scipy.linalg.block_diag(ridge, 0.0)
        return cls.scaled(Z, Y, weight, back, forth, ridge, intercept)

    @classmethod
    def scaled(
        cls,
        Z: Any,
        Y: Array,
        weight: Array,
        back: Array,
        forth: Array,
        ridge: Array | None,
        intercept: bool,
    ) -> WhitenedRows:
        """Scale each output to the unit of its residuals."""
        ones = np.ones(Y.shape[1])
        units = (ones, ones, ones)
        raw = cls(Z, Y, weight, back, forth, ridge, *units, intercept, None, np.nan)
        if raw.is_direct:
            raw = replace(raw, products=_products(Z))
        theta = raw.solve(np.ones((1, len(weight))))[0]
        rounding = _EXACT * np.maximum(weighted_median(np.abs(Y.T), weight), 1.0)
        step = np.array([rounding_step(y, weight) for y in Y.T])
        floor = np.maximum(0.5 * step, rounding)
        middle = weighted_median(np.abs(raw.residuals(theta)[0]), weight)
        unit = np.maximum(middle / NORMAL_MEDIAN, floor)
        return replace(
            raw,
            Y=Y / unit,
            unit=unit,
            floor=floor / unit,
            exact=rounding / unit,
            effective=raw._effective(),
        )

    def with_floor(self, floor: Array) -> WhitenedRows:
        """With scales not below given ones, nor far below those of other outputs."""
        least = np.maximum(floor, _LEAST_RATIO * self.unit.max()) / self.unit
        return replace(self, floor=np.maximum(self.floor, least))

    @property
    def n_rows(self) -> int:
        return len(self.weight)

    @property
    def n_parameters(self) -> int:
        return self.Z.shape[1]

    @property
    def n_outputs(self) -> int:
        return self.Y.shape[1]

    @property
    def is_direct(self) -> bool:
        """Whether normal equations are formed."""
        return self.n_parameters <= _MAX_DIRECT * (1 if self.ridge is None else 2)

    def _effective(self) -> float:
        if self.ridge is None:
            return float(self.n_parameters)
        shrunk = np.linalg.eigvalsh(self.ridge)
        return float(np.sum(self.n_rows / (self.n_rows + np.maximum(shrunk, 0.0))))

    @property
    def is_interpolating(self) -> bool:
        """Whether planes would almost pass through all rows without the penalty."""
        return self.ridge is not None and self.effective > 0.5 * self.n_rows

    @property
    def majority(self) -> float:
        """Mass of the smallest majority that outliers cannot imitate.

        This is the coverage of least trimmed squares for the highest breakdown point.
        """
        n, r = self.n_rows, self.effective
        return float(min(n, max(np.floor((n + r + 1.0) / 2.0), r + 2.0)))

    def whiten(self, theta: Array) -> Array:
        """A batch of one candidate from coefficients of the design."""
        return (self.forth @ theta / self.unit)[None]

    def unwhiten(self, theta: Array) -> Array:
        """Coefficients of the design in the units of y."""
        return self.back @ theta * self.unit

    def fitted(self, theta: Array) -> Array:
        """Fitted values, of shape (n_candidates, n_outputs, n_rows)."""
        c, r, d = theta.shape
        flat = np.swapaxes(theta, 1, 2).reshape(c * d, r)
        return (flat @ self.Z.T).reshape(c, d, self.n_rows)

    def gradient(self, values: Array) -> Array:
        """Products of the design with numbers of shape (c, d, n): (c, r, d)."""
        c, d, n = values.shape
        flat = values.reshape(c * d, n) @ self.Z
        return np.swapaxes(flat.reshape(c, d, self.n_parameters), 1, 2)

    def residuals(self, theta: Array) -> Array:
        """Residuals, of shape (n_candidates, n_outputs, n_rows)."""
        fitted = self.fitted(theta if theta.ndim == 3 else theta[None])
        return np.subtract(self.Y.T, fitted, out=fitted)

    def solve(self, confidence: Array, guess: Array | None = None) -> Array:
        """Weighted least squares for many weightings of the rows at once."""
        w = confidence * self.weight
        if not self.is_direct:
            return self._conjugate_gradients(w, guess)
        gram, right = self._normal_equations(w)
        return _solve(gram, right)

    def refined(self, confidence: Array, theta: Array) -> Array:
        """Solutions of `solve` without the error that its ridge leaves.

        It is far below any noise, but not below the rounding of an exact fit.
        """
        if not self.is_direct:
            return theta
        w = confidence * self.weight
        gram, _ = self._normal_equations(w)
        right = self.gradient(w[:, None, :] * self.residuals(theta))
        if self.ridge is not None:
            right -= self.ridge_times(theta)
        refined: Array = theta + _solve(gram, right)
        return refined

    def determined(self, part: Array) -> Array:
        """Whether parts of the rows, masks of shape (c, n), determine a plane each.

        Requires `is_direct`. The whole design is orthonormal, so that the smallest
        eigenvalue of a part is the share of the variance that it contains.
        """
        values = np.linalg.eigvalsh(self._gram(part * self.weight))
        determined: Array = np.all(values > _LEAST_PART * self.n_rows, axis=1)
        return determined

    def completed(self, theta: Array, part: Array, guess: Array) -> Array:
        """Planes with the directions that their rows leave open taken from a guess.

        These are the directions of a dummy column, say, that is zero in all rows of
        a part.
        """
        if not self.is_direct:
            return theta
        values, vectors = np.linalg.eigh(self._gram(part * self.weight))
        open_ = vectors * (values <= _LEAST_PART * self.n_rows)[:, None, :]
        return theta + open_ @ (np.swapaxes(open_, 1, 2) @ (guess - theta))

    def spent(self, confidence: Array) -> Array:
        """Degrees of freedom of weighted fits: the traces of their hat matrices."""
        if self.ridge is None:
            return np.full(len(confidence), float(self.n_parameters))
        w = confidence * self.weight
        if not self.is_direct:
            return self.effective * w.sum(axis=1) / self.n_rows
        gram, _ = self._normal_equations(w)
        return np.trace(_solve(gram, gram - self.ridge), axis1=1, axis2=2)

    def leverage(self, part: Array) -> Array:
        """Leverage of all rows on fits to some of them, as if each had been left out.

        That is z' G^-1 z with the Gram matrix G of the other rows. `part` is a mask of
        shape (c, n), which is also the shape of the result. Requires `is_direct`.
        """
        w = part * self.weight
        gram, _ = self._normal_equations(w)
        inverse = _solve(gram, np.broadcast_to(np.eye(self.n_parameters), gram.shape))
        h = np.einsum("cnr,nr->cn", self.Z @ inverse, self.Z)
        return h / np.maximum(1.0 - w * h, 1e-9)

    def _normal_equations(self, w: Array) -> tuple[Array, Array]:
        gram = self._gram(w)
        if self.ridge is not None:
            gram += self.ridge
        return gram, self.gradient(w[:, None, :] * self.Y.T)

    def _gram(self, w: Array) -> Array:
        assert self.products is not None
        r = self.n_parameters
        i, j = _upper_triangle(r)
        gram = np.empty((len(w), r, r))
        gram[:, i, j] = gram[:, j, i] = w @ self.products
        return gram

    def _conjugate_gradients(self, w: Array, guess: Array | None) -> Array:
        right = self.gradient(w[:, None, :] * self.Y.T)
        total = np.maximum(w.sum(axis=1), 1e-200)[:, None, None]
        diagonal = total + (0.0 if self.ridge is None else self._ridge_diagonal)
        theta = np.zeros_like(right) if guess is None else guess.copy()

        def product(v: Array) -> Array:
            out = self.gradient(w[:, None, :] * self.fitted(v)) + 1e-9 * total * v
            return out if self.ridge is None else out + self.ridge_times(v)

        residual = right - product(theta)
        goal = _CG_TOLERANCE**2 * np.sum(right * right / diagonal, axis=1)
        step = residual / diagonal
        square = np.sum(residual * step, axis=1)
        for _ in range(_CG_STEPS):
            if np.all(square <= goal):
                break
            image = product(step)
            curvature = np.maximum(np.sum(step * image, axis=1), 1e-300)
            length = (square / curvature)[:, None, :]
            theta += length * step
            residual -= length * image
            preconditioned = residual / diagonal
            new = np.sum(residual * preconditioned, axis=1)
            step *= (new / np.maximum(square, 1e-300))[:, None, :]
            step += preconditioned
            square = new
        return theta

    @property
    def _ridge_diagonal(self) -> Array:
        assert self.ridge is not None
        return np.diag(self.ridge)[:, None]

    def ridge_times(self, v: Array) -> Array:
        assert self.ridge is not None
        return self.ridge @ v


@dataclass(frozen=True)
class WideRows(WhitenedRows):
    """Rows with too many columns for whitening; the design may be sparse.

    Theta contains coefficients of the design, and `ridge` the penalties of its columns.
    """

    @classmethod
    def of(
        cls, X: Any, Y: Array, weight: Array, penalty: Array, intercept: bool
    ) -> WhitenedRows:
        if intercept:
            ones = np.ones((X.shape[0], 1))
            if scipy.sparse.issparse(X):
                X = scipy.sparse.hstack([X, ones], format="csr")
            else:
                X = np.hstack([X, ones])
            penalty = np.append(penalty, 0.0)
        none = np.empty((0, 0))
        return cls.scaled(X, Y, weight, none, none, penalty, intercept)

    @property
    def is_direct(self) -> bool:
        return False

    def _effective(self) -> float:
        """Estimate from products of the hat matrix with random signs."""
        n, q = self.Z.shape
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(4, 1, n))
        probe = replace(self, Y=signs[:, 0].T)
        fitted = probe.fitted(probe.solve(np.ones((1, n))))[0]
        trace = float(np.mean(np.sum(fitted * signs[:, 0], axis=1)))
        return float(np.clip(trace, 1.0, min(n, q)))

    def whiten(self, theta: Array) -> Array:
        return (theta / self.unit)[None]

    def unwhiten(self, theta: Array) -> Array:
        return theta * self.unit

    def fitted(self, theta: Array) -> Array:
        c, r, d = theta.shape
        flat = np.swapaxes(theta, 1, 2).reshape(c * d, r)
        return np.ascontiguousarray((self.Z @ flat.T).T).reshape(c, d, self.n_rows)

    def gradient(self, values: Array) -> Array:
        c, d, n = values.shape
        flat = (self.Z.T @ values.reshape(c * d, n).T).T
        return np.swapaxes(flat.reshape(c, d, self.n_parameters), 1, 2)

    @property
    def _ridge_diagonal(self) -> Array:
        assert self.ridge is not None
        return self.ridge[:, None]

    def ridge_times(self, v: Array) -> Array:
        return self._ridge_diagonal * v


@functools.lru_cache(maxsize=64)
def _upper_triangle(r: int) -> tuple[Array, Array]:
    return np.triu_indices(r)


def _products(Z: Array) -> Array:
    """Upper triangles of z_i z_i', so that Gram matrices are a single product."""
    n, r = Z.shape
    out = np.empty((n, r * (r + 1) // 2))
    end = 0
    for j in range(r):  # column by column to avoid large temporary arrays
        start, end = end, end + r - j
        np.multiply(Z[:, j:], Z[:, j : j + 1], out=out[:, start:end])
    return out


def _solve(gram: Array, right: Array) -> Array:
    """Solve a batch of systems; undetermined directions are zero.

    In whitened coordinates, a relative ridge of 1e-9 has no effect if the rows
    determine the plane, and selects the smallest solution otherwise (dummy columns).
    """
    r = gram.shape[-1]
    trace = np.trace(gram, axis1=1, axis2=2)
    diagonal = np.arange(r)
    gram[:, diagonal, diagonal] += (1e-9 / max(r, 1) * trace + 1e-200)[:, None]
    return np.linalg.solve(gram, right)
