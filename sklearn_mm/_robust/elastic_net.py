r"""Weighted elastic nets, as the step of robust regression with an L1 penalty.

For fixed weights, the upper bound is a convex function of theta, ::

    sum_i w_i (r_i - z_i' delta)**2 / 2 + l1 ||coef||_1 + l2 ||coef||**2 / 2

scikit-learn's coordinate descent minimises it, starting from the current coefficients,
so that the bound never increases, whatever the accuracy. It stops at a given duality
gap. The intercept is not penalised and is eliminated with weighted means.

Coordinate descent needs rows. With more columns than rows, these are the rows of X
times the square roots of their weights. Otherwise, a Cholesky factor of the Gram
matrix, which is a sum over chunks of rows, is used instead.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import enet_path

from sklearn_mm._robust.linear import LinearPoint, LinearResidual
from sklearn_mm._rows.table import Column
from sklearn_mm._solver.roles import Array

# Duality gap at which coordinate descent ends, relative to the sum of squared targets.
_GAP, _MAX_ITER = 1e-10, 20_000
# Added to a unit diagonal, so that Gram matrices of any rank have a factor.
_JITTER = 1e-13


def elastic_net(
    rows: Array, targets: Array, l1: float, l2: float, coef: Array, gap: float = _GAP
) -> Array:
    """Coefficients without intercept, starting from the given ones.

    The sum over rows is penalised, not their mean. The rows are in Fortran order.
    """
    n, total = len(targets), l1 + l2
    if not n:
        return np.zeros_like(coef)
    coefs = path(rows, targets, l1 / total, [total / n], coef, gap)
    found: Array = coefs[:, 0]
    return found


def path(
    rows: Array,
    targets: Array,
    l1_ratio: float,
    alphas: Any,
    coef: Array | None,
    gap: float,
) -> Array:
    """scikit-learn's path, (n_features, n_alphas), without checks.

    If coordinate descent ends early, it has still decreased the bound, and continues in
    the next iteration. Its warning would not be useful.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        _, coefs, _ = enet_path(
            rows,
            targets,
            l1_ratio=l1_ratio,
            alphas=np.asarray(alphas),
            precompute=False,
            coef_init=None if coef is None else coef.copy(),  # modified in place
            check_input=False,
            tol=gap,
            max_iter=_MAX_ITER,
        )
    return coefs


def weighted_elastic_net(
    X: Array,
    y: Array,
    weight: Array,
    l1: float,
    l2: float,
    coef: Array,
    fit_intercept: bool,
    gap: float = _GAP,
) -> tuple[Array, float]:
    """Coefficients and intercept for weighted rows."""
    total, some = float(weight.sum()), weight > 0.0
    if not some.all():
        X, y, weight = X[some], y[some], weight[some]
    centre, middle = np.zeros(X.shape[1]), 0.0
    if fit_intercept and total > 0.0:
        centre, middle = weight @ X / total, float(weight @ y) / total
    root = np.sqrt(weight)
    rows = np.empty(X.shape, order="F")
    np.multiply(X - centre, root[:, None], out=rows)
    coef = elastic_net(rows, (y - middle) * root, l1, l2, coef, gap)
    return coef, middle - float(centre @ coef)


def minimize_bound(
    model: LinearResidual, point: LinearPoint, weights: Column
) -> tuple[Array, float]:
    """Theta that minimises the upper bound, and the decrease of the bound."""
    X = model.rows.X
    wide = model.rows.n_rows < len(model.frame.mean)
    if wide and isinstance(X, np.ndarray):
        theta, quadratic = _by_rows(model, point, weights, X)
    elif wide and scipy.sparse.issparse(X):
        theta, quadratic = _by_rows(model, point, weights, X.toarray())
    else:
        theta, quadratic = _by_gram(model, point, weights)
    decrease = quadratic + point.penalty - model.penalty(theta)
    if not decrease > 0.0:  # at the minimum, up to rounding
        return point.theta, 0.0
    return theta, decrease


def _by_rows(
    model: LinearResidual, point: LinearPoint, weights: Column, X: Array
) -> tuple[Array, float]:
    frame = model.frame
    A = X - frame.mean
    coef, _ = frame.unpack(point.theta)
    targets = point.residual + A @ coef
    new, offsets = np.empty_like(coef), np.zeros(coef.shape[1])
    for k, l1 in enumerate(model.l1):
        new[:, k], offsets[k] = weighted_elastic_net(
            A,
            targets[:, k],
            weights,
            l1,
            model.alpha,
            coef[:, k],
            frame.fit_intercept,
        )
    # The coefficients are replaced rather than changed: zeros have to be exact.
    theta = point.theta.reshape(model.shape).copy()
    theta[: len(new)] = new * frame.scale[:, None]
    theta[len(new) :] += offsets  # of columns that are centred
    moved = A @ (new - coef) + offsets
    half = point.residual - 0.5 * moved
    return theta.ravel(), float(np.einsum("i,ij,ij->", weights, moved, half))


def _by_gram(
    model: LinearResidual, point: LinearPoint, weights: Column
) -> tuple[Array, float]:
    frame = model.frame
    H, G = model.normal_equations(point.residual, weights)
    p = len(frame.mean)
    B = point.theta.reshape(model.shape)
    inner, right, ones = H[:p, :p], G[:p], np.zeros((p, 1))
    if frame.fit_intercept and H[p, p] > 0.0:
        ones = H[:p, p:] / H[p, p]
        inner, right = inner - ones @ H[p:, :p], right - ones @ G[p:]
    size = np.sqrt(np.maximum(inner.diagonal(), np.finfo(float).tiny))
    unit = inner / np.outer(size, size)
    unit.flat[:: p + 1] += _JITTER * p
    upper = scipy.linalg.cholesky(unit, check_finite=False)
    # In the units of X the penalty is the same for all coefficients.
    rows = np.asfortranarray(upper * (size * frame.scale))
    targets: Any = scipy.linalg.solve_triangular(
        upper, (right + inner @ B[:p]) / size[:, None], trans="T", check_finite=False
    )
    new = B.copy()
    for k, l1 in enumerate(model.l1):
        start = B[:p, k] / frame.scale
        found = elastic_net(rows, targets[:, k].copy(), l1, model.alpha, start)
        new[:p, k] = found * frame.scale
    if frame.fit_intercept:
        new[p] += G[p] / max(H[p, p], np.finfo(float).tiny)
        new[p] -= ones[:, 0] @ (new[:p] - B[:p])
    change = new - B
    return new.ravel(), float(np.sum(change * (G - 0.5 * (H @ change))))
