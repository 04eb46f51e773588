"""Operations on parameter vectors that take as few passes over memory as possible."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import get_blas_funcs

from sklearn_mm._solver.roles import Array

_AXPY, _GER = (
    {
        np.dtype(dtype): get_blas_funcs(name, dtype=dtype)
        for dtype in (np.float32, np.float64)
    }
    for name in ("axpy", "ger")
)
# A stored sum is brought back to its size before it is larger by the inverse of this.
_SMALLEST_FACTOR = 1e-3


def add_multiple(y: Array, factor: float, x: Array, n: int | None = None) -> None:
    """Add factor x to y in place, for the first n entries or all of them.

    Both must be contiguous and of the same precision. BLAS needs one pass over memory
    where NumPy needs two.
    """
    if y.ndim > 1:
        y, x = y.reshape(-1), x.reshape(-1)
    _AXPY[y.dtype](x, y, n or len(y), factor)


def add_to_rows(A: Array, factor: float, row: Array) -> None:
    """Add a multiple of the same row to each row of A in place.

    Both must be contiguous and of the same precision. BLAS takes half the time of a sum
    that is broadcast.
    """
    _GER[A.dtype](factor, row, np.ones(len(A), A.dtype), a=A.T, overwrite_a=True)


@dataclass
class DecayingSum:
    """A sum of vectors whose earlier terms decay, ``factor * stored``.

    All terms decay by a change of the factor, so that only the new one costs a pass
    over memory.
    """

    stored: Array = field(repr=False)
    factor: float = 1.0

    @classmethod
    def like(cls, vector: Array) -> DecayingSum:
        """An empty sum of such vectors."""
        return cls(np.zeros_like(vector))

    @property
    def value(self) -> Array:
        """The sum, as a new array."""
        value: Array = self.stored * self.stored.dtype.type(self.factor)
        return value

    def add(self, decay: float, vector: Array, share: float = 1.0) -> None:
        """Set the sum to ``decay`` times itself plus ``share`` times the vector."""
        self.factor *= decay
        if self.factor < _SMALLEST_FACTOR:
            self.stored *= self.stored.dtype.type(self.factor)
            self.factor = 1.0
        add_multiple(self.stored, share / self.factor, vector)
