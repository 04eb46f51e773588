"""Damped steps of least-squares problems whose Jacobian is a single matrix.

The damping is relative to a scale of each parameter: by default the norm of its column,
the largest so far if it is known, so that steps do not depend on units. Or it is given
by the user. Given scales are multiplied by the size of the problem, so that the damping
has the same meaning: a damping of one doubles the largest diagonal entry of the normal
matrix in the scaled parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

from sklearn_mm._solver.roles import Array, LargestColumns, NormalSystem

_TINY = np.finfo(np.float64).tiny
# Relative accuracy of iterative solutions, and the number of products for an estimate
# of the size of a Jacobian that is only known by its products.
_LSMR_TOLERANCE, _POWER_ITERATIONS = 1e-12, 4


def make_system(
    J: Any,
    r: Array,
    unit: Array | None = None,
    columns: LargestColumns | None = None,
) -> NormalSystem:
    """The system of a dense or sparse Jacobian or LinearOperator.

    Parameters
    ----------
    J : ndarray, sparse array or LinearOperator of shape (m, n)
        The Jacobian.
    r : ndarray of shape (m,)
        Residuals.
    unit : ndarray of shape (n,) or None
        Characteristic size of each parameter; None for the inverse column norms.
    columns : LargestColumns or None
        Of the previous systems; updated.
    """
    if isinstance(J, scipy.sparse.linalg.LinearOperator):
        return OperatorSystem(J, r, unit)
    if scipy.sparse.issparse(J):
        return SparseSystem(J, r, unit, columns)
    return DenseSystem(J, r, unit, columns)


def damping_scale(
    diagonal: Array, unit: Array | None, columns: LargestColumns | None = None
) -> Array:
    """Diagonal matrix of the damping, given the diagonal of the normal matrix."""
    if unit is None:
        if columns is not None:
            diagonal = columns.squares = np.maximum(columns.squares, diagonal)
        # Parameters on which no residual depends are not moved.
        return np.where(diagonal > _TINY, diagonal, 1.0)
    size = float(np.max(diagonal * np.square(unit), initial=0.0))
    return (size if size > _TINY else 1.0) / np.square(unit)


class DenseSystem:
    """Damped steps from one singular value decomposition of the scaled Jacobian."""

    def __init__(
        self,
        J: Array,
        r: Array,
        unit: Array | None = None,
        columns: LargestColumns | None = None,
    ) -> None:
        self.gradient = J.T @ r
        squares = np.einsum("ij,ij->j", J, J)
        self._scale = np.sqrt(damping_scale(squares, unit, columns))
        left, self._values, self._right = scipy.linalg.svd(
            J / self._scale, full_matrices=False, check_finite=False
        )
        # Parameters of zero columns must not be moved by rounding errors.
        self._right[:, squares <= _TINY] = 0.0
        self._coordinates = left.T @ r

    def damped_step(self, damping: float) -> tuple[Array, float]:
        """Step and predicted decrease, both without squaring the condition number."""
        s, c = self._values, self._coordinates
        shrunk = s / (np.square(s) + damping)
        delta = -(self._right.T @ (shrunk * c)) / self._scale
        # |c|**2 - |c - s shrunk c|**2, half of it.
        left = damping / (np.square(s) + damping)
        return delta, 0.5 * float(np.sum(np.square(c) * (1.0 - np.square(left))))


class SparseSystem:
    """Damped steps by a sparse factorisation of the normal matrix."""

    def __init__(
        self,
        J: Any,
        r: Array,
        unit: Array | None = None,
        columns: LargestColumns | None = None,
    ) -> None:
        self.gradient = J.T @ r
        self._H = (J.T @ J).tocsc()
        self._scale = damping_scale(self._H.diagonal(), unit, columns)

    def damped_step(self, damping: float) -> tuple[Array, float] | None:
        """Step and predicted decrease; None if the matrix is singular."""
        added = damping * self._scale
        try:
            factor = scipy.sparse.linalg.splu(
                self._H + scipy.sparse.diags_array(added, format="csc"),
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=0.0,
                options={"SymmetricMode": True},
            )
        except RuntimeError:
            return None
        delta = -factor.solve(self.gradient)
        if not np.isfinite(delta).all():
            return None
        decrease = -0.5 * (self.gradient @ delta) + 0.5 * (added @ np.square(delta))
        return delta, float(decrease)


class OperatorSystem:
    """Damped steps by LSMR, for Jacobians that are only known by their products.

    Column norms are not known, so that steps depend on the units of the parameters.
    """

    def __init__(self, J: Any, r: Array, unit: Array | None = None) -> None:
        unit = np.ones(J.shape[1]) if unit is None else unit
        self._J, self._r, self._unit = J, r, unit
        self._scaled = J @ _diagonal_operator(unit)
        self.gradient = J.rmatvec(r)
        # The largest eigenvalue of the scaled normal matrix, roughly.
        v, self._size = unit * self.gradient, 0.0
        for _ in range(_POWER_ITERATIONS):
            norm = float(np.linalg.norm(v))
            if not norm > _TINY:
                break
            v = self._scaled.rmatvec(self._scaled.matvec(v / norm))
            self._size = float(np.linalg.norm(v))

    def damped_step(self, damping: float) -> tuple[Array, float]:
        """Step and predicted decrease."""
        damp = np.sqrt(damping * (self._size if self._size > _TINY else 1.0))
        solution = scipy.sparse.linalg.lsmr(
            self._scaled,
            -self._r,
            damp=damp,
            atol=_LSMR_TOLERANCE,
            btol=_LSMR_TOLERANCE,
            conlim=0.0,
            maxiter=4 * min(self._J.shape),
        )
        delta: Array = self._unit * solution[0]
        change = self._J.matvec(delta)
        return delta, -float(change @ (self._r + 0.5 * change))


def weighted_rows(root: Array, J: Any) -> Any:
    """J with its rows multiplied."""
    if isinstance(J, scipy.sparse.linalg.LinearOperator):
        return _diagonal_operator(root) @ J
    return scipy.sparse.diags_array(root) @ J if _is_sparse(J) else root[:, None] * J


def without_columns(J: Any, held: Any) -> Any:
    """J with zeros in the columns of a mask: steps leave these parameters alone."""
    kept = np.where(held, 0.0, 1.0)
    if isinstance(J, scipy.sparse.linalg.LinearOperator):
        return J @ _diagonal_operator(kept)
    return J @ scipy.sparse.diags_array(kept) if _is_sparse(J) else J * kept


def _is_sparse(J: Any) -> bool:
    return bool(scipy.sparse.issparse(J))


def _diagonal_operator(values: Array) -> Any:
    return scipy.sparse.linalg.aslinearoperator(scipy.sparse.diags_array(values))
