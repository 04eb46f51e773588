r"""Residuals of a linear model in standardised columns.

The design is standardised implicitly: column j enters as (x_j - m_j) / s_j, so that
columns of very different size or offset (timestamps) do not spoil the normal equations,
while X itself is neither copied nor changed::

    H = Z' diag(w) Z + P,     G = Z' diag(w) R - P theta,     theta+ = theta + H^-1 G

where Z has a column of ones for the intercept and P is the penalty alpha / s_j**2,
which is alpha for the coefficients in the units of X. Solving for the *change* of theta
from its residuals makes every iteration one of iterative refinement.

Sparse X is scaled but not centred, which would fill it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from sklearn_mm._robust.normal_equations import (
    Frame,
    dense_sums,
    fitted,
    products,
    residuals,
    sparse_sums,
)
from sklearn_mm._rows.table import Column, Rows
from sklearn_mm._solver.roles import Array


@dataclass(frozen=True)
class LinearPoint:
    """A theta, the residuals of all rows there, and the penalty."""

    theta: Array
    residual: Column  # (n_samples, n_outputs)
    penalty: float


@dataclass(frozen=True)
class LinearResidual:
    """r_i = y_i - B' z_i for standardised rows z_i; theta is B, flattened."""

    rows: Rows
    Y: Column  # (n_samples, n_outputs)
    frame: Frame  # how columns are standardised
    alpha: float = 0.0  # L2 penalty of coefficients in the units of X
    l1: tuple[float, ...] = ()  # L1 penalties, one per output, if there are any

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of theta when unpacked: rows of coefficients, the intercept last."""
        return self.frame.n_parameters, int(self.Y.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Whether X is sparse."""
        return bool(scipy.sparse.issparse(self.rows.X))

    def at(self, theta: Array, out: Column | None = None) -> LinearPoint:
        """The point of a theta, its residuals in the memory of `out`."""
        if out is None:
            out = self.rows.column(self.shape[1])
        if theta.any():
            args = self.frame.unpack(theta)
            residual = self.rows.fill(out, residuals, self.Y, args=args)
        else:  # X need not be read
            residual = self.rows.beside.fill(out, _copy, self.Y)
        return LinearPoint(theta, residual, self.penalty(theta))

    def moved(self, point: LinearPoint, theta: Array, change: Column) -> LinearPoint:
        """The point of a theta where residuals differ by a known change.

        The memory of the change becomes that of the residuals.
        """
        residual = self.rows.beside.fill(change, _sum, point.residual, change)
        return LinearPoint(theta, residual, self.penalty(theta))

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

    @functools.cached_property
    def ridge(self) -> Array:
        """Diagonal of P."""
        ridge = np.zeros(self.shape[0])
        frame = self.frame
        ridge[: len(frame.mean)] = self.alpha / np.square(frame.scale)
        return ridge

    def fitted(self, theta: Array, out: Column | None = None) -> Column:
        """Z B of all rows."""
        args = self.frame.unpack(theta)
        if out is None:
            out = self.rows.column(args[0].shape[1])
        return self.rows.fill(out, fitted, args=args)

    def gradient(self, residual: Column, weights: Column) -> Array:
        """Z' diag(w) R."""
        raw, total = self.rows.sum(products, weights, residual)
        frame = self.frame
        G = (raw - np.outer(frame.mean, total)) / frame.scale[:, None]
        return np.vstack([G, total]) if frame.fit_intercept else G

    def normal_equations(
        self, residual: Column, weights: Column
    ) -> tuple[Array, Array]:
        """Z' diag(w) Z and Z' diag(w) R."""
        function = sparse_sums if self.is_sparse else dense_sums
        H, G = self.rows.sum(function, residual, weights, args=(self.frame,))
        return H, G

    def right_side(self, theta: Array, G: Array) -> Array:
        """G with the gradient of the penalty at theta."""
        right: Array = G - self.ridge[:, None] * theta.reshape(self.shape)
        return right


def _copy(values: Array, out: Array | None = None) -> Array:
    if out is None:
        return values
    out[:] = values
    return out


def _sum(values: Array, change: Array, out: Array | None = None) -> Array:
    return np.add(values, change, out=out)
