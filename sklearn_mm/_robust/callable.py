r"""Residuals given by a function, their Jacobian, and weighted normal equations.

Residuals are grouped into vectors r_i of `residual_dim` entries that share one weight.
The systems that this module hands out are all of the form ::

    H = sum_i J_i' M_i J_i,    g = sum_i s_i J_i' r_i,    M_i = w_i (I - c_i r_i r_i')

With c = 0 and s = w that is weighted least squares. The general form comes from
eliminating a latent variable per residual (`lifted.py`). M_i has the square root
sqrt(w_i) (I - b_i r_i r_i'), and r_i is one of its eigenvectors, so that the solvers
only ever see a plain least-squares problem: J multiplied by that root, and r by a
scalar.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._robust.block_structure import BlockStructure
from sklearn_mm._robust.schur import SchurPlan, SchurSystem
from sklearn_mm._robust.systems import DenseSystem, SparseSystem
from sklearn_mm._solver.roles import Array, NormalSystem

_TINY = np.finfo(np.float64).tiny
# Relative steps of finite differences: the roots of the machine precision that balance
# truncation and rounding for one-sided and central differences.
_DIFFERENCE = {
    "2-point": np.finfo(np.float64).eps ** (1 / 2),
    "3-point": np.finfo(np.float64).eps ** (1 / 3),
}


@dataclass(frozen=True)
class CallablePoint:
    """A theta, the residuals there, and on demand their Jacobian."""

    theta: Array
    residual: Array  # (n, residual_dim)
    model: CallableResidual

    penalty = 0.0

    @functools.cached_property
    def jacobian(self) -> Any:
        """Dense or sparse matrix, or two arrays of blocks if there is a structure."""
        return self.model.jacobian(self.theta, self.residual)


class CallableResidual:
    """Residual vectors r_i(theta) of a user's function.

    Parameters
    ----------
    fun : callable
        Maps theta to the residuals, flat; checked on every call.
    jac : callable or {"2-point", "3-point"}
        Maps theta to the Jacobian in the coordinates of `retract`'s second argument.
    residual_dim : int
        Entries of a residual vector.
    structure : BlockStructure or None
        Two groups of parameters, if the problem has them.
    retract : callable or None
        Moves theta; addition if None.
    """

    def __init__(
        self,
        fun: Callable[[Array], Any],
        jac: Any,
        residual_dim: int = 1,
        structure: BlockStructure | None = None,
        retract: Callable[[Array, Array], Any] | None = None,
    ) -> None:
        self._fun, self._jac = fun, jac
        self.residual_dim = residual_dim
        self._structure = structure
        self._plan = None if structure is None else SchurPlan(structure)
        self._retract = retract
        self.n_fun = self.n_jac = 0
        self._size: int | None = None  # of the residuals, once known

    def at(self, theta: Array) -> CallablePoint:
        """Residual vectors at theta."""
        self.n_fun += 1
        return CallablePoint(theta, self._evaluate(theta), self)

    def retract(self, theta: Array, delta: Array) -> Array:
        """Theta moved by delta."""
        if self._retract is None:
            return theta + delta
        new = np.asarray(self._retract(theta, delta), dtype=np.float64)
        if new.shape != theta.shape:
            raise ValueError(
                f"retract must return an array of shape {theta.shape}, got {new.shape}."
            )
        return new

    def normal_system(
        self,
        point: CallablePoint,
        weight: Array,
        bend: Array | None = None,
        slope: Array | None = None,
    ) -> NormalSystem:
        """The system of the module's head with w = weight, c = bend, s = slope."""
        r, J = point.residual, point.jacobian
        root = np.sqrt(weight)
        right = root[:, None] * r
        if bend is not None and slope is not None:
            z = np.einsum("ij,ij->i", r, r)
            left = np.sqrt(np.maximum(1.0 - bend * z, 0.0))
            J = self._bent(J, r, (1.0 - left) / np.maximum(z, _TINY))
            right = (slope / np.maximum(root * left, _TINY))[:, None] * r
        if self._plan is not None:
            first, second = J
            return SchurSystem(self._plan, first, second, right, root)
        root = np.repeat(root, self.residual_dim)
        if scipy.sparse.issparse(J):
            return SparseSystem(scipy.sparse.diags_array(root) @ J, right.ravel())
        return DenseSystem(root[:, None] * J, right.ravel())

    def product(self, point: CallablePoint, delta: Array) -> Array:
        """J delta, shape (n, residual_dim)."""
        J = point.jacobian
        if self._structure is None:
            return (J @ delta).reshape(-1, self.residual_dim)
        s = self._structure
        x, y = np.split(delta, [s.n_first * s.first_dim])
        x, y = x.reshape(s.n_first, -1)[s.first], y.reshape(s.n_second, -1)[s.second]
        return np.einsum("ndp,np->nd", J[0], x) + np.einsum("ndp,np->nd", J[1], y)

    def gradient(self, point: CallablePoint, weight: Array) -> Array:
        """Gradient of sum_i weight_i |r_i|**2 / 2."""
        J = point.jacobian
        if self._structure is not None:
            J = self._structure.to_sparse(*J)
        return J.T @ (weight[:, None] * point.residual).ravel()

    def jacobian(self, theta: Array, residual: Array) -> Any:
        """The Jacobian where the residuals are known."""
        self.n_jac += 1
        if callable(self._jac):
            return self._checked(self._jac(theta))
        if self._structure is not None:
            return self._block_differences(theta, residual)
        return self._differences(theta, residual)

    # Checks.

    def _evaluate(self, theta: Array) -> Array:
        # A copy: the function may return the same buffer every time.
        value = np.atleast_1d(np.array(self._fun(theta), dtype=np.float64))
        if value.ndim != 1:
            raise ValueError(
                f"fun must return a one-dimensional array, got shape {value.shape}."
            )
        if self._size is None:
            if value.size == 0 or value.size % self.residual_dim:
                raise ValueError(
                    f"fun returned {value.size} residuals, which is not a positive "
                    f"multiple of residual_dim={self.residual_dim}."
                )
            self._size = value.size
        if value.size != self._size:
            raise ValueError(
                f"fun returned {value.size} residuals after {self._size} at the start."
            )
        return value.reshape(-1, self.residual_dim)

    def _checked(self, value: Any) -> Any:
        """The Jacobian that a user's function returned, if it fits the residuals."""
        assert self._size is not None
        if self._structure is not None:
            s, n = self._structure, self._size // self.residual_dim
            shapes = [(n, self.residual_dim, k) for k in (s.first_dim, s.second_dim)]
            parts = [np.asarray(part, dtype=np.float64) for part in value]
            if [part.shape for part in parts] != shapes:
                raise ValueError(
                    "With a structure, jac must return two arrays of shapes "
                    f"{shapes[0]} and {shapes[1]}, got "
                    f"{[part.shape for part in parts]}."
                )
            return tuple(self._finite(part) for part in parts)
        if scipy.sparse.issparse(value):
            value = scipy.sparse.csr_array(value).astype(np.float64)
            self._finite(value.data)
        else:
            value = self._finite(np.atleast_2d(np.asarray(value, dtype=np.float64)))
        if value.ndim != 2 or value.shape[0] != self._size:
            raise ValueError(
                f"jac must return a matrix with {self._size} rows, got shape "
                f"{value.shape}."
            )
        return value

    @staticmethod
    def _finite(values: Array) -> Array:
        if not np.isfinite(values).all():
            raise ValueError("The Jacobian contains NaN or infinity.")
        return values

    # Jacobians.

    def _bent(self, J: Any, r: Array, b: Array) -> Any:
        """(I - b r r') J for each residual vector."""
        if self._structure is not None:
            return tuple(
                part
                - (b[:, None] * r)[:, :, None]
                * np.einsum("nd,ndp->np", r, part)[:, None]
                for part in J
            )
        n, d = r.shape
        rows = np.repeat(np.arange(n), d)
        R = scipy.sparse.csr_array((r.ravel(), (rows, np.arange(n * d))))
        bent = R.T @ (scipy.sparse.diags_array(b) @ (R @ J))
        return J - bent

    def _difference(self, theta: Array, residual: Array, delta: Array) -> Array:
        """Change of r along delta, one-sided or central."""
        forward = self._evaluate(self.retract(theta, delta))
        if self._jac == "2-point":
            return forward - residual
        return (forward - self._evaluate(self.retract(theta, -delta))) / 2

    def _differences(self, theta: Array, residual: Array) -> Array:
        step = _DIFFERENCE[self._jac] * np.maximum(1.0, np.abs(theta))
        J = np.empty((residual.size, theta.size))
        for k in range(theta.size):
            delta = np.zeros_like(theta)
            delta[k] = step[k]
            J[:, k] = self._difference(theta, residual, delta).ravel() / step[k]
        return self._finite(J)

    def _block_differences(self, theta: Array, residual: Array) -> tuple[Array, Array]:
        """Differences in one component of all blocks of a group at a time."""
        s = self._structure
        assert s is not None
        step = _DIFFERENCE[self._jac] * np.maximum(1.0, np.abs(theta))
        end = s.n_first * s.first_dim
        blocks = []
        for part, index, dim in (
            (slice(0, end), s.first, s.first_dim),
            (slice(end, None), s.second, s.second_dim),
        ):
            columns = []
            for k in range(dim):
                delta = np.zeros_like(theta)
                delta[part][k::dim] = step[part][k::dim]
                change = self._difference(theta, residual, delta)
                columns.append(change / delta[part][k::dim][index][:, None])
            blocks.append(self._finite(np.stack(columns, axis=2)))
        return blocks[0], blocks[1]
