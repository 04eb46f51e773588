"""A narrow and a wide normal law for the residuals of inliers and outliers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sklearn_mm._core._protocols import Array


@dataclass(frozen=True)
class ScaleMixture:
    """(1 - e) N(0, s**2) + e N(0, S**2) for the residuals of several candidates."""

    s: Array
    share: Array  # 1 - e
    S: Array

    @classmethod
    def around(
        cls, squares: Array, weight: Array, scale: Array, share: Array | None
    ) -> ScaleMixture:
        total = weight.sum()
        if share is None:
            share = (squares <= np.square(2.5 * scale)[:, None]) @ weight / total
        wide = np.maximum(3.0 * scale, np.sqrt(squares @ weight / total))
        return cls(scale, np.clip(share, 0.05, 0.95), wide)

    def em(
        self,
        squares: Array,
        weight: Array,
        n_parameters: float,
        d: int,
        n_iter: int,
        floor: float = 0.0,
    ) -> ScaleMixture:
        """Iterate; the wide component stays at least three times as wide."""
        s, share, S = np.maximum(self.s, floor), self.share, self.S
        n = float(weight.sum())
        for _ in range(n_iter):
            # Posterior odds in logarithms: densities of far rows underflow.
            log_odds = (np.log(share / (1.0 - share)) + d * np.log(S / s))[
                :, None
            ] - squares * (0.5 / np.square(s) - 0.5 / np.square(S))[:, None]
            inlier = 1.0 / (1.0 + np.exp(-np.clip(log_odds, -500.0, 500.0)))
            inlier *= weight
            count = inlier.sum(axis=1)
            total = np.einsum("cn,cn->c", inlier, squares)
            freedom = np.maximum(count - n_parameters, 0.5 * n / len(weight))
            s = np.maximum(np.sqrt(total / freedom / d), floor)
            share = np.clip(count / n, 1e-3, 1.0 - 1e-3)
            rest = np.maximum(squares @ weight - total, 0.0)
            S = np.sqrt(rest / np.maximum(n - count, 1e-3 * n) / d)
            S = np.maximum(S, 3.0 * s)
        return ScaleMixture(s, share, S)
