"""The gradient of an upper bound in the parameters, as products of stacked rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sklearn_mm._hebbian.energy import Array, Energy, Layers, Network, Phases

# Matrices and biases, as `unpack` gives them.
Parameters = tuple[list[Array], list[Array]]


@dataclass
class Stacks:
    """The factors of the gradient: h stacked above z^, and mu above eps."""

    left: Layers
    right: Layers
    error: Array
    # Views by matrix, from zero, made once for all mini-batches in the same memory.
    _left: Layers = field(init=False, repr=False)  # transposed; h does not reach W_H
    _right: Layers = field(init=False, repr=False)
    _eps: Layers = field(init=False, repr=False)
    ones: Array = field(init=False, repr=False)  # sums as products, which are faster

    def __post_init__(self) -> None:
        n_rows = len(self.error)
        *inner, last = self.left[1:]
        self._left = [None, *(stack.T for stack in inner), last[-n_rows:].T]
        self._eps = [*(stack[-n_rows:] for stack in self.right[1:]), self.error]
        self._right = [self._eps[0], *self.right[2:], self.error]
        self.ones = np.ones(n_rows, self.error.dtype)

    @classmethod
    def certified(cls, network: Network, phases: Phases) -> Stacks:
        """Factors of the gradient of the upper bound itself, with all misses."""
        left: Layers = [None]
        right: Layers = [None]
        h = None
        for k in network.energy.hidden:
            eps = phases.dr[k] + phases.miss[k]
            h = eps if h is None else eps + h @ network.coefs[k - 1]
            left.append(np.concatenate([h, phases.z[k] + phases.d[k]]))
            right.append(np.concatenate([phases.mu[k], eps]))
        return cls(left, right, phases.error)

    def gradient(
        self, energy: Energy, x: Any, share: Any, out: Parameters, common: float = 1.0
    ) -> None:
        """Write the gradient to `out`.

        Rows are weighted by `share`: one number, or one for each row. The input of the
        network is `common` times x.
        """
        H, w = energy.n_hidden, energy.weights
        n_rows, real = len(self.error), self.error.dtype.type
        uniform = not isinstance(share, np.ndarray)
        twice = None if uniform else np.concatenate([share, share])[:, None]
        for k, (W, b) in enumerate(zip(*out, strict=True)):
            scale = -w[k] * (share if uniform else 1.0)
            both, eps = self._right[k], self._eps[k]
            if twice is not None:
                both = (both * twice[-len(both) :]).astype(real, copy=False)
                eps = both[-n_rows:]
            elif k in (0, H):  # fewer numbers than the product has
                both = eps = both * real(scale)
                scale = 1.0
            np.dot(self.ones, eps, out=b)
            if k > 0:
                np.dot(self._left[k], both, out=W)
            else:
                if common != 1.0:
                    both *= real(common)
                if isinstance(x, np.ndarray):
                    np.dot(x.T, both, out=W)
                else:
                    W[:] = x.T @ both
            if scale != 1.0:
                W *= real(scale)
                b *= real(scale)
