"""Solutions of weighted least squares: the normal equations ``H delta = G``.

`linear.py` adds up H and G over the rows; here they are solved for the change of theta.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from scipy.linalg.lapack import dpotrf, dpotrs

from sklearn_mm._robust.elastic_net import minimize_bound
from sklearn_mm._robust.linear import LinearPoint, LinearResidual
from sklearn_mm._rows.table import Column
from sklearn_mm._solver.roles import Array

# Eigenvalues of the standardised Gram matrix below this fraction of the largest belong
# to directions that the data do not determine. The minimum-norm solution ignores them.
_RANK_TOLERANCE = 1e-13
# H is not formed for more sparse columns than this.
_MAX_GRAM = 2_000
_CG_TOLERANCE = 1e-8


def forms_gram(model: LinearResidual) -> bool:
    """Whether `solve` adds up the normal equations."""
    return not (model.l1 or (model.is_sparse and model.shape[0] > _MAX_GRAM))


def solve(
    model: LinearResidual,
    point: LinearPoint,
    weights: Column,
    found: tuple[Array, Array] | None = None,
) -> tuple[Array, Array, SymmetricFactor | None]:
    """The change of theta that minimises the bound, G, and a factor of H.

    `found` are the normal equations, if they have been added up already.
    """
    if not forms_gram(model):
        return *_conjugate_gradients(model, point, weights), None
    H, G = model.normal_equations(point.residual, weights) if found is None else found
    H.flat[:: len(H) + 1] += model.ridge  # the diagonal
    G = model.right_side(point.theta, G)
    factor = SymmetricFactor(H)
    return factor.solve(G), G, factor


def least_squares(model: LinearResidual, weights: Column) -> LinearPoint:
    """The point of least squares, with the model's penalties."""
    origin = model.at(np.zeros(model.shape).ravel())
    if model.l1:
        theta, _ = minimize_bound(model, origin, weights)
    else:
        theta = solve(model, origin, weights)[0].ravel()
    return model.at(theta, origin.residual)


def _conjugate_gradients(
    model: LinearResidual, point: LinearPoint, weights: Column
) -> tuple[Array, Array]:
    """The same minimiser without forming H, for many sparse columns.

    Conjugate gradients minimise over subspaces: delta' H delta = delta' G. Standardised
    columns with few entries have large penalties, for which the diagonal of H
    compensates as a preconditioner.
    """
    q, d = model.shape
    G = model.right_side(point.theta, model.gradient(point.residual, weights))
    memory = model.rows.column(1)

    def product(v: Array) -> Array:
        fitted = model.fitted(v, memory)
        products: Array = model.gradient(fitted, weights)[:, 0] + model.ridge * v
        return products

    H = scipy.sparse.linalg.LinearOperator((q, q), matvec=product, dtype=float)
    diagonal = model.sparse_diagonal(weights) + model.ridge
    M = scipy.sparse.diags_array(1.0 / np.maximum(diagonal, np.finfo(float).tiny))
    cg: Any = scipy.sparse.linalg.cg
    options = {"rtol": _CG_TOLERANCE, "maxiter": q, "M": M}
    columns = [cg(H, G[:, j], **options)[0] for j in range(d)]
    return np.column_stack(columns), G


class SymmetricFactor:
    """Minimum-norm solutions of H x = g for a symmetric, semidefinite H.

    A Cholesky factor if H is safely definite. Otherwise, eigenvectors, without those
    that the data do not determine.
    """

    def __init__(self, H: Array) -> None:
        # A unit diagonal, so that the rank does not depend on the size of columns.
        self._scale = np.sqrt(np.maximum(np.diag(H), np.finfo(float).tiny))[:, None]
        balanced = H / (self._scale * self._scale.T)
        self._cholesky = None
        # LAPACK itself: scipy's functions take longer than it does for a few columns.
        lower, failed = dpotrf(balanced, lower=True)
        if not failed and lower.diagonal().min() ** 2 > 1e3 * _RANK_TOLERANCE:
            self._cholesky = lower
            return
        values, vectors = scipy.linalg.eigh(H, check_finite=False)
        keep = values > _RANK_TOLERANCE * max(values[-1], 0.0)
        self._values, self._vectors = values[keep], vectors[:, keep]

    def solve(self, g: Array) -> Array:
        """Solution for the columns of g."""
        if self._cholesky is not None:
            x, _ = dpotrs(self._cholesky, g / self._scale, lower=True)
            return x / self._scale
        return self._vectors @ ((self._vectors.T @ g) / self._values[:, None])
