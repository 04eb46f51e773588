"""Units of the features, and conversion of rows as they are read.

Networks are trained on features of mean zero and comparable size, whatever the units of
X. Rows are converted as they are gathered, a mini-batch or a chunk at a time: there is
no second copy of X. Fitted weights are brought back to the units of X (`fold_into`).

*Size.* A column is divided by its standard deviation, unless it is one of many columns
of the same kind, such as the pixels of an image: then all are divided by the same
number. (The edge of an image is nearly constant, and a single bright pixel there would
dominate.) This number, `Units.common`, is not applied to the rows, but to their
products with matrices, which have fewer entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._hebbian.energy import Array, unpack
from sklearn_mm._rows.table import Rows
from sklearn_mm._solver.vectors import add_to_rows

_CHUNK = 256  # rows of a chunk, whose copy stays in the processor's cache
_FEW = 64  # rows of a chunk that ranges of columns are taken from
_LARGEST_COMMON = 1e6
_SMALLEST_SQUARE = 1e-30  # smaller ones lose digits in single precision
_TINY = 4.0 * np.finfo(float).tiny  # the inverse of 0.3 times it is finite
_NO_SQUARE = 1e-305  # and in double precision


@dataclass(frozen=True)
class Units:
    """Centre and scale of the features; None where there is nothing to do."""

    centre: Array | None = None
    scale: Array | None = None
    factors: Any = field(init=False, repr=False, compare=False)  # of the rows, and
    common: float = field(init=False, repr=False, compare=False)  # of their products

    def __post_init__(self) -> None:
        factors: Any = None
        common = 1.0
        if self.scale is not None:
            first = float(self.scale[0])
            alike = bool(np.all(self.scale == first))
            # Squares of rows that are not scaled must neither overflow nor vanish.
            if alike and 1.0 / _LARGEST_COMMON <= first <= _LARGEST_COMMON:
                common = 1.0 / first
            else:
                factors = 1.0 / self.scale
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "common", common)

    def astype(self, dtype: Any) -> Units:
        """The same in the precision of the rows to be converted."""
        if self.scale is None:
            return self
        centre = None if self.centre is None else self.centre.astype(dtype)
        return Units(centre, self.scale.astype(dtype))

    def convert(self, x: Any, out: Array | None = None) -> Any:
        """Rows in these units but for the common factor.

        They are written to the memory `out`, which may be x, if it fits.
        """
        scale = self.scale
        if scale is None or (self.centre is None and self.factors is None):
            return x
        if not isinstance(x, np.ndarray):  # sparse: scaled, not centred
            if self.factors is None:
                return x
            return x @ scipy.sparse.diags_array(self.factors)
        if out is None or out.shape != x.shape:
            out = np.empty(x.shape, scale.dtype)
        if self.centre is not None:
            if x is out:
                add_to_rows(x, -1.0, self.centre)
            else:
                x = np.subtract(x, self.centre, out=out)
        if self.factors is not None:
            x = np.multiply(x, self.factors, out=out)
        return x

    def fold_into(self, theta: Array, sizes: tuple[int, ...]) -> Array:
        """Parameters that do to rows of X what `theta` does to converted ones."""
        if self.scale is None:
            return theta
        folded = theta.astype(np.float64)
        coefs, intercepts = unpack(folded, sizes)
        coefs[0] /= self.scale[:, None]
        if self.centre is not None:
            intercepts[0] -= self.centre @ coefs[0]
        return folded

    def unfold(self, theta: Array, sizes: tuple[int, ...]) -> Array:
        """The inverse of `fold_into`."""
        if self.scale is None:
            return theta
        unfolded = theta.astype(np.float64)
        coefs, intercepts = unpack(unfolded, sizes)
        if self.centre is not None:
            intercepts[0] += self.centre @ coefs[0]
        coefs[0] *= self.scale[:, None]
        return unfolded


NO_UNITS = Units()  # those of X

# Columns are of like kind if there are so many that vary, and at least half of them
# span nearly the largest range. They are divided by so many times the root mean square
# of their standard deviations. (Of 1, 2 and 3, the best compromise on validation rows
# of MNIST, Fashion-MNIST and greyscale CIFAR-10. Centring is worth five points of
# accuracy on the last, and nothing is lost by it on the others.)
_MANY_COLUMNS, _NEARLY, _WIDE = 16, 0.9, 2.0


def units_of(
    X: Any,
    sample_weight: Array,
    chunk_size: int | None = None,
    n_jobs: int | None = None,
) -> Units:
    """Units of the features, from one pass over X."""
    total = float(sample_weight.sum())
    n_features = X.shape[1]
    sparse = scipy.sparse.issparse(X)
    if sparse:
        origin = np.zeros(n_features)
    else:  # near enough to the mean for sums of squares to keep their digits
        start = int(np.argmax(sample_weight > 0))  # others may be of any size
        head = slice(start, start + 64)
        few = np.asarray(X[head], dtype=np.float64)
        origin = few[sample_weight[head] > 0].mean(axis=0)

    rows = Rows.of(X, chunk_size or _CHUNK, n_jobs)
    parts = list(rows.map(_moments, sample_weight, args=(origin, total)))
    first, second = (sum(part[i] for part in parts) for i in (0, 1))
    low = np.min([part[2] for part in parts], axis=0)
    high = np.max([part[3] for part in parts], axis=0)
    if sparse:
        first = np.zeros(n_features)
    spread = np.sqrt(np.maximum(second - first**2, 0.0))
    span = high - low
    # If squares vanish even in double precision, about that of uniform numbers.
    spread = np.where(second < _NO_SQUARE, 0.3 * span, spread)
    # Rounding in a column that is constant but for it.
    constant = spread <= 1e-7 * np.maximum(np.abs(low), np.abs(high))
    varying = ~(constant | (span <= _TINY))
    scale = np.where(varying, spread, 1.0)
    if _are_alike(span[varying]):
        common = _WIDE * np.sqrt(np.mean(spread[varying] ** 2))
        scale = np.full(n_features, common)
    return Units(None if sparse else origin + first, scale)


def _are_alike(spans: Array) -> bool:
    if len(spans) < _MANY_COLUMNS:
        return False
    return bool(np.mean(spans >= _NEARLY * spans.max()) >= 0.5)


def _moments(X: Any, weight: Array, origin: Array, total: float) -> tuple[Array, ...]:
    """Weighted first and second moments about the origin, smallest and largest."""
    share = weight / total
    kept = share > 0
    if not kept.all():
        X, share = X[kept], share[kept]
    if not X.shape[0]:
        zero = np.zeros(len(origin))
        return zero, zero, zero + np.inf, zero - np.inf
    if scipy.sparse.issparse(X):
        X = X.astype(np.float64)  # in which squares of single numbers are finite
        square = X.multiply(X)
        second = np.asarray(square.T @ share).ravel()
        low = np.asarray(X.min(axis=0).todense()).ravel()
        high = np.asarray(X.max(axis=0).todense()).ravel()
        return np.zeros(len(origin)), second, low, high
    # In the precision of X, unless squares overflow or vanish: the scale need not be
    # known to the last digit.
    for dtype in (X.dtype, np.float64):
        centred = X - origin.astype(dtype)
        few = centred[:: max(1, len(centred) // _FEW)]
        low, high = few.min(axis=0) + origin, few.max(axis=0) + origin
        first = (share.astype(dtype) @ centred).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            np.square(centred, out=centred)
            second = (share.astype(dtype) @ centred).astype(np.float64)
        vanish = (second < _SMALLEST_SQUARE) & (high > low)
        if np.isfinite(second).all() and not vanish.any():
            break
    return first, second, low, high
