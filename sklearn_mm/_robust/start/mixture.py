"""A narrow and a wide normal law for the residuals of inliers and outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import expit

from sklearn_mm._robust.problem import squared_norms
from sklearn_mm._rows.table import Column, Rows
from sklearn_mm._solver.roles import Array


@dataclass(frozen=True)
class SquaredResiduals:
    """Squared residual norms of several candidates on few rows."""

    squares: Array  # (n_candidates, n_rows)
    weight: Array
    residual_dim: int

    def sum(self, function: Callable[[Array, Array], Array]) -> Array:
        """Sum over rows of a function of squares and weights."""
        return function(self.squares, self.weight)


@dataclass(frozen=True)
class ColumnOfResiduals:
    """Residuals of one candidate on any number of rows, summed chunk by chunk."""

    rows: Rows
    residual: Column
    weight: Array

    @property
    def residual_dim(self) -> int:
        """Number of outputs."""
        return int(self.residual.shape[1])

    def sum(self, function: Callable[[Array, Array], Array]) -> Array:
        """Sum over rows of a function of squares and weights."""
        total: Array = self.rows.sum(
            _on_squares, self.residual, self.weight, args=(function,)
        )
        return total


def _on_squares(
    residual: Array, weight: Array, function: Callable[[Array, Array], Array]
) -> Array:
    return function(squared_norms(residual)[None, :], weight)


Residuals = SquaredResiduals | ColumnOfResiduals


@dataclass(frozen=True)
class ScaleMixture:
    """(1 - e) N(0, s**2) + e N(0, S**2) for the residuals of several candidates."""

    s: Array
    share: Array  # 1 - e
    S: Array

    @classmethod
    def around(
        cls,
        residuals: Residuals,
        scale: Array,
        share: Array | None,
    ) -> ScaleMixture:
        total = residuals.weight.sum()
        if share is None:
            limit = np.square(2.5 * scale)[:, None]
            share = residuals.sum(lambda z, w: (z <= limit) @ w) / total
        mean = residuals.sum(np.matmul) / total
        wide = np.maximum(3.0 * scale, np.sqrt(mean))
        return cls(scale, np.clip(share, 0.05, 0.95), wide)

    def em(
        self,
        residuals: Residuals,
        n_parameters: float,
        n_iter: int,
        floor: float = 0.0,
    ) -> ScaleMixture:
        """Iterate; the wide component stays at least three times as wide."""
        d = residuals.residual_dim
        mixture = ScaleMixture(np.maximum(self.s, floor), self.share, self.S)
        n, n_rows = float(residuals.weight.sum()), len(residuals.weight)
        everything = residuals.sum(np.matmul)
        for _ in range(n_iter):
            count, total = residuals.sum(partial(mixture.inliers, d=d))
            freedom = np.maximum(count - n_parameters, 0.5 * n / n_rows)
            s = np.maximum(np.sqrt(total / freedom / d), floor)
            share = np.clip(count / n, 1e-3, 1.0 - 1e-3)
            rest = np.maximum(everything - total, 0.0)
            S = np.sqrt(rest / np.maximum(n - count, 1e-3 * n) / d)
            mixture = ScaleMixture(s, share, np.maximum(S, 3.0 * s))
        return mixture

    def inliers(self, squares: Array, weight: Array, d: int) -> Array:
        """Expected number of inliers, and the sum of their squares."""
        s, share, S = self.s, self.share, self.S
        # Posterior odds in logarithms: densities of far rows underflow.
        log_odds = squares * (0.5 / np.square(S) - 0.5 / np.square(s))[:, None]
        log_odds += (np.log(share / (1.0 - share)) + d * np.log(S / s))[:, None]
        np.clip(log_odds, -500.0, 500.0, out=log_odds)
        inlier = expit(log_odds, out=log_odds)
        inlier *= weight
        return np.array([inlier.sum(axis=1), np.einsum("cn,cn->c", inlier, squares)])
