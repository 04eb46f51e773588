"""The gradient of an upper bound in the parameters, as products of stacked rows."""

from __future__ import annotations

from dataclasses import dataclass
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

    def gradient(self, energy: Energy, x: Any, share: Any, out: Parameters) -> None:
        """Write the gradient to `out`, with rows weighted by `share`."""
        H, w = energy.n_hidden, energy.weights
        coefs, intercepts = out
        n_rows, dtype = len(self.error), self.error.dtype
        ones = np.ones(n_rows, dtype)  # sums as products, which are faster
        uniform = np.ndim(share) == 0
        twice = None if uniform else np.concatenate([share, share])[:, None]
        for k in range(H + 1):
            scale = -w[k] * (share if uniform else 1.0)
            both = self.error if k == H else self.right[k + 1]
            if k in (0, H) and uniform:  # fewer numbers than the product has
                both = both[-n_rows:] * dtype.type(scale)
                scale = 1.0
            elif twice is not None:
                both = (both * twice[-len(both) :]).astype(dtype, copy=False)
            eps = both[-n_rows:]
            W, b = coefs[k], intercepts[k]
            np.matmul(ones, eps, out=b)
            if k == 0:
                _input_product(x, eps, W)
            else:
                left = self.left[k][n_rows:] if k == H else self.left[k]
                np.matmul(left.T, both, out=W)
            if scale != 1.0:
                W *= dtype.type(scale)
                b *= dtype.type(scale)


def _input_product(x: Any, right: Array, out: Array) -> None:
    """Product of the transposed input, which may be sparse."""
    if isinstance(x, np.ndarray):
        np.matmul(x.T, right, out=out)
    else:
        out[:] = x.T @ right
