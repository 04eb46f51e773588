"""Damped steps of least-squares problems with dense or sparse Jacobians."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

from sklearn_mm._solver.roles import Array

_TINY = np.finfo(np.float64).tiny


class DenseSystem:
    """Damped steps from one singular value decomposition of the scaled Jacobian."""

    def __init__(self, J: Array, r: Array) -> None:
        self.gradient = J.T @ r
        norms = np.sqrt(np.einsum("ij,ij->j", J, J))
        self._scale = np.where(norms > _TINY, norms, 1.0)
        left, self._values, self._right = scipy.linalg.svd(
            J / self._scale, full_matrices=False, check_finite=False
        )
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

    def __init__(self, J: Any, r: Array) -> None:
        self.gradient = J.T @ r
        self._H = (J.T @ J).tocsc()
        diagonal = self._H.diagonal()
        self._scale = np.where(diagonal > _TINY, diagonal, 1.0)

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
