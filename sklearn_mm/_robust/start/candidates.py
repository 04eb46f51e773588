"""Candidate planes for a robust start: halves of the rows, and random subsets."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from sklearn_mm._robust.start.pool import (
    CandidatePool,
    distinct,
    solve_regularized,
)
from sklearn_mm._solver.roles import Array

# Rows that random subsets are screened on before the best see all deciding rows.
_SCREEN_ROWS = 500
# Random subsets: enough to hold a clean one but for this probability at that share of
# inliers. Where that is too many, as many are drawn as cost no more than the largest
# number does for that many parameters; and none where that is a hopeless share of them
# (from 14 parameters on), since the other candidates do not depend on luck.
_SUBSET_FAILURE, _SUBSET_INLIERS = 1e-3, 0.55
_MIN_SUBSETS, _MAX_SUBSETS, _SUBSET_PARAMETERS = 100, 2_000, 11
_HOPELESS = 0.05
_KEPT_SUBSETS, _KEPT_HALVES = 20, 8
# Sensitivity components that are looked along, from either end of their order:
# isolated outliers show in those of the largest influence, and a cluster that has drawn
# the plane to itself, so that its residuals vanish, in those of the smallest.
_COMPONENTS = 5
_ROUNDS = 2


def sensitivity_candidates(pool: CandidatePool) -> Array:
    """Least squares on halves along principal sensitivity components, repeated.

    With Q an orthonormal basis of the design, e the residuals and h the leverages, the
    components are Q b for eigenvectors b of Q' diag(e / (1 - h))**2 Q. Each round looks
    for them among the rows that the best candidate so far explains.
    """
    base = np.ones(pool.n_rows, dtype=bool)
    found = []
    for _ in range(_ROUNDS):
        candidates = pool.solve(_sensitivity_masks(pool, base))
        norms = pool.norms(candidates)
        score, scale = pool.score(norms)
        chosen = distinct(candidates, score, scale, _KEPT_HALVES)
        found.append(candidates[chosen])
        best = chosen[0]
        explained = norms[best] <= 3.0 * np.sqrt(pool.n_outputs) * scale[best]
        if np.array_equal(explained, base) or explained.sum() <= pool.n_parameters + 1:
            break
        base = explained
    return np.concatenate(found)


def _sensitivity_masks(pool: CandidatePool, base: Array) -> Array:
    Z, Y = pool.Z[base], pool.Y[base]
    w = pool.weight[base]
    gram = (Z * w[:, None]).T @ Z
    values, vectors = scipy.linalg.eigh(gram)
    values = np.maximum(values, 1e-10 * values[-1])
    Q = Z @ (vectors / np.sqrt(values))
    residual = Y - Q @ (Q.T @ (w[:, None] * Y))
    leverage = np.minimum(w * np.square(Q).sum(axis=1), 1.0 - 1e-6)
    influence = w * np.square(residual).sum(axis=1) / np.square(1.0 - leverage)
    peak = influence.max()
    influence = influence / peak if peak > 0 else influence
    _, directions = scipy.linalg.eigh((Q * influence[:, None]).T @ Q)
    if directions.shape[1] > 2 * _COMPONENTS:
        directions = np.delete(directions, np.s_[_COMPONENTS:-_COMPONENTS], axis=1)
    component = Q @ directions
    middle = np.median(component, axis=0)
    size = np.abs(component)
    halves = [component <= middle, component >= middle, size <= np.median(size, axis=0)]
    masks = np.zeros((3 * component.shape[1] + 1, pool.n_rows))
    masks[0, base] = 1.0
    masks[1:, base] = np.hstack(halves).T
    return masks


def subset_candidates(
    pool: CandidatePool, random_state: np.random.RandomState
) -> Array:
    """Planes through random subsets, the best of them concentrated."""
    n, r = pool.n_rows, pool.n_parameters
    needed = np.log(_SUBSET_FAILURE) / np.log1p(-(_SUBSET_INLIERS**r))
    affordable = _MAX_SUBSETS * min(1.0, (_SUBSET_PARAMETERS / r) ** 3)
    if affordable < _HOPELESS * needed:
        return np.empty((0, r, pool.n_outputs))
    n_subsets = int(max(min(needed, affordable), _MIN_SUBSETS))
    index = random_state.randint(n, size=(n_subsets, r))
    design = pool.Z[index]
    transposed = design.transpose(0, 2, 1)
    thetas = solve_regularized(transposed @ design, transposed @ pool.Y[index])
    step = -(-n // _SCREEN_ROWS)
    screen = slice(0, None, step)
    score, _ = pool.score(pool.norms(thetas, screen), screen)
    best = np.argsort(score, kind="stable")[: 5 * _KEPT_SUBSETS]
    thetas, score, scale = pool.concentrate(thetas[best], 2, screen)
    return thetas[distinct(thetas, score, scale, _KEPT_SUBSETS)]
