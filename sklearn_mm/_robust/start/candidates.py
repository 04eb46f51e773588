"""Candidate planes: halves of the rows, graduated fits, random subsets, remaining rows.

Distances in X are computed in equivariant coordinates, along the eigenvectors of the
covariance of the spatial signs of the whitened design around its spatial median.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import scipy.linalg
from scipy.stats import chi

from sklearn_mm._robust.start.whitened import (
    NORMAL_MEDIAN,
    Array,
    WhitenedRows,
    weighted_median,
)
from sklearn_mm.kernels import SmoothTruncatedQuadratic

# Widths of the kernel in a graduated fit, in units of the median residual at its start,
# and the widths that give candidates.
_WIDTHS = 2.0 ** (-0.4 * np.arange(11))
_KEPT_WIDTHS = (0, 4, 8, 10)
# Largest number of fits to rows that are predicted by others, and largest error in
# scales.
_PREDICTIONS, _PREDICTED = 10, 3.0
# Concentration steps of the covariance.
_COVARIANCE_STEPS = 2
# Number of columns beyond which one distance fewer is considered.
_MANY_COLUMNS = 64
# Random subsets are as many as it takes to contain a clean one except with this
# probability, for this share of inliers. If these are too many, the number is limited
# to the cost of the largest number with that many parameters. If only a small part of
# those required remains (with 14 parameters and more), there are none.
_SUBSET_FAILURE, _SUBSET_INLIERS = 1e-3, 0.55
_MIN_SUBSETS, _MAX_SUBSETS, _SUBSET_PARAMETERS = 100, 2_000, 11
_HOPELESS = 0.05
# Number of rows for screening, of subsets that are concentrated, and of those kept.
_SCREEN_ROWS, _SCREENED, _KEPT_SUBSETS = 500, 30, 8
_CONCENTRATIONS = 2
# Share of a population that the window of the density score contains.
_DENSE = 0.5

_KERNEL = SmoothTruncatedQuadratic()


def half_masks(rows: WhitenedRows, distance: Array) -> Array:
    """For each row of `distance`, the majority of rows with the smallest distances."""
    order = np.argsort(distance, axis=1, kind="stable")
    before = np.cumsum(rows.weight[order], axis=1) - rows.weight[order]
    masks = np.empty(distance.shape)
    np.put_along_axis(
        masks, order, (before < rows.majority - 1e-9).astype(float), axis=1
    )
    return masks


def middle_scale(rows: WhitenedRows, theta: Array) -> Array:
    """Scales of planes, (c, d), from median residuals under the normal law."""
    middle = weighted_median(np.abs(rows.residuals(theta)), rows.weight)
    return np.maximum(middle / NORMAL_MEDIAN, rows.floor)


def central_in_y(rows: WhitenedRows, own: Array) -> Array:
    """Least squares on the half of the rows with central targets, and the median."""
    centre = weighted_median(rows.Y.T, rows.weight) * rows.has_intercept
    away = np.abs(rows.Y - centre)
    spread = np.maximum(weighted_median(away.T, rows.weight), rows.floor)
    half = half_masks(rows, (away / spread).max(axis=1)[None])
    theta = rows.completed(rows.solve(half), half, own)
    if rows.has_intercept:
        constant = np.zeros_like(theta)
        constant[0, -1] = centre
        theta = np.concatenate([theta, constant])
    return theta


def central_in_x(rows: WhitenedRows) -> Array:
    """Masks of halves of the rows that are central in X.

    There are two or three initial distances, and for each of them also the half after
    concentration steps of the covariance.
    """
    U = rows.Z[:, :-1] if rows.has_intercept else rows.Z
    if not U.shape[1]:
        return np.empty((0, rows.n_rows))
    w = rows.weight
    D = _standardized(_along_signs(U - _spatial_median(U, w), w), w)
    signs = D / np.maximum(np.linalg.norm(D, axis=1), 1e-12)[:, None]
    found = [D]
    if D.shape[1] > 1:
        # If there are many columns, signs are as informative as bounded values.
        many = D.shape[1] > _MANY_COLUMNS
        for bounded in (signs,) if many else (np.tanh(D), signs):
            turned = D @ _principal_axes(bounded, w)
            found.append(_standardized(turned, w))
    first = np.array([np.square(A).sum(axis=1) for A in found])
    masks = [half_masks(rows, first)]
    mask = masks[0]
    for _ in range(_COVARIANCE_STEPS):
        distance = np.array([_mahalanobis(D, m * w) for m in mask])
        mask = half_masks(rows, distance)
    masks.append(mask)
    return np.concatenate(masks)


def predictable(rows: WhitenedRows) -> tuple[Array, Array, float]:
    """Ridge regression on rows that are predicted by the others, and these rows.

    If a plane is close to all rows, residuals are not informative, but predictions from
    the other rows are. The residual of a row of the fit is r / (1 - h) if the row is
    left out. If a constant predicts better, rows are judged by the constant. The last
    value is the size of the residuals of left-out rows relative to those from a
    constant.
    """
    central = _from_the_middle(rows.Y, rows)
    keep = half_masks(rows, central)
    theta = rows.solve(keep)
    for _ in range(_PREDICTIONS):
        residual = _left_out(rows, theta, keep)
        away = _from_the_middle(residual.T, rows) * NORMAL_MEDIAN
        new = (away <= _PREDICTED).astype(float)
        if np.array_equal(new, keep):
            break
        keep = new
        theta = rows.solve(keep, theta)
    kept = keep[0] > 0
    w = rows.weight[kept]
    sizes = weighted_median(np.abs(_left_out(rows, theta, keep)[:, kept]), w)
    around = np.abs(rows.Y - weighted_median(rows.Y.T, rows.weight))[kept]
    worse = float(np.max(sizes / np.maximum(weighted_median(around.T, w), rows.floor)))
    if worse > 1.0:
        keep = (central * NORMAL_MEDIAN <= _PREDICTED).astype(float)
        theta = rows.solve(keep)
    return theta, keep, worse


def _left_out(rows: WhitenedRows, theta: Array, keep: Array) -> Array:
    """Residuals (d, n) of a fit to some rows, as if each row had been left out."""
    h = np.minimum(rows.spent(keep) / np.maximum(keep @ rows.weight, 1.0), 1 - 1e-9)
    return rows.residuals(theta)[0] / np.where(keep > 0, 1.0 - h, 1.0)


def _from_the_middle(values: Array, rows: WhitenedRows) -> Array:
    """Largest distance from the median over the outputs, in median distances."""
    away = np.abs(values - weighted_median(values.T, rows.weight))
    spread = np.maximum(weighted_median(away.T, rows.weight), rows.floor)
    return (away / spread).max(axis=1)[None]


def _spatial_median(U: Array, w: Array) -> Array:
    centre = w @ U / w.sum()
    squares = np.einsum("ij,ij->i", U, U)
    for _ in range(8):
        away = squares - 2.0 * (U @ centre) + centre @ centre
        part = w / np.sqrt(np.maximum(away, 1e-18))
        centre = part @ U / part.sum()
    return centre


def _along_signs(U: Array, w: Array) -> Array:
    signs = U / np.maximum(np.linalg.norm(U, axis=1), 1e-12)[:, None]
    return U @ np.linalg.eigh((signs * w[:, None]).T @ signs)[1]


def _principal_axes(A: Array, w: Array) -> Array:
    A = A - w @ A / w.sum()
    C = (A * w[:, None]).T @ A
    size = np.sqrt(np.maximum(np.diag(C), 1e-300))
    return np.linalg.eigh(C / np.outer(size, size))[1]


def _standardized(A: Array, w: Array) -> Array:
    """Columns centred at their median, in median absolute deviations."""
    A = A - weighted_median(A.T, w)
    spread = weighted_median(np.abs(A.T), w) / NORMAL_MEDIAN
    usual = np.sqrt(w @ np.square(A) / w.sum())
    spread = np.where(spread > 1e-9 * usual, spread, np.where(usual > 0, usual, 1.0))
    return A / spread


def _mahalanobis(D: Array, w: Array) -> Array:
    q = D.shape[1]
    centred = D - w @ D / w.sum()
    part = centred[w > 0] * np.sqrt(w[w > 0])[:, None]
    C = part.T @ part / w.sum()
    C[np.diag_indices(q)] += 1e-3 * np.trace(C) / q + 1e-300
    L = np.linalg.cholesky(C)
    scaled = scipy.linalg.solve_triangular(
        L, centred.T, lower=True, overwrite_b=True, check_finite=False
    )
    return np.square(scaled).sum(axis=0)


def graduated(rows: WhitenedRows, theta: Array) -> tuple[Array, Array]:
    """Planes and scales of fits with narrowing kernels that start from given planes."""
    tuning = _KERNEL.tuning_constant(rows.n_outputs)
    scale = middle_scale(rows, theta)
    found = []
    for i, width in enumerate(_WIDTHS):
        s = np.maximum(scale * width, rows.floor)
        tau = tuning * s[:, :, None]
        z = np.square(rows.residuals(theta) / tau).sum(axis=1)
        theta = rows.solve(_KERNEL.weight(z), theta)
        if i in _KEPT_WIDTHS:
            found.append((theta, s))
    planes, scales = zip(*found, strict=True)
    return np.concatenate(planes), np.concatenate(scales)


def the_rest(rows: WhitenedRows, rest: Array) -> Array:
    """Least squares on the rows that remain without some others, if they are enough."""
    enough = rest @ rows.weight > rows.effective + 1.0
    return rows.solve(rest[enough].astype(float))


def n_subsets(rows: WhitenedRows) -> int:
    """Number of random subsets that is worth the cost."""
    r = rows.n_parameters
    needed = np.log(_SUBSET_FAILURE) / np.log1p(-(_SUBSET_INLIERS**r))
    affordable = _MAX_SUBSETS * min(1.0, (_SUBSET_PARAMETERS / r) ** 3)
    if affordable < _HOPELESS * needed:
        return 0
    return int(max(min(needed, affordable), _MIN_SUBSETS))


def subset_planes(
    rows: WhitenedRows, random_state: np.random.RandomState
) -> tuple[Array, Array]:
    """Planes through random subsets after concentration steps, and their scales.

    There are two rankings: by the root mean square of the smallest residuals of a
    majority (least trimmed squares), and by the densest window.
    """
    n, r, d = rows.n_rows, rows.n_parameters, rows.n_outputs
    index = random_state.randint(n, size=(n_subsets(rows), r))
    design = rows.Z[index]
    gram = design.transpose(0, 2, 1) @ design
    right = design.transpose(0, 2, 1) @ rows.Y[index]
    diagonal = np.arange(r)
    gram[:, diagonal, diagonal] += 1e-9 * np.trace(gram, axis1=1, axis2=2)[:, None] / r
    theta = np.linalg.solve(gram, right)
    screen = slice(0, None, -(-n // _SCREEN_ROWS))
    few = replace(
        rows,
        Z=rows.Z[screen],
        Y=rows.Y[screen],
        weight=rows.weight[screen],
        products=None,
    )
    norms = _norms(few, theta)
    planes, scales = [], []
    for judge in (_trimmed, _densest):
        score, _ = judge(few, norms)
        best = np.argsort(score, kind="stable")[:_SCREENED]
        chosen = theta[best]
        score, radius = judge(rows, _norms(rows, chosen))
        for _ in range(_CONCENTRATIONS):
            inside = _norms(rows, chosen) <= radius[:, None]
            new = rows.solve(inside.astype(float), chosen)
            new_score, new_radius = judge(rows, _norms(rows, new))
            better = new_score < score
            chosen = np.where(better[:, None, None], new, chosen)
            score = np.where(better, new_score, score)
            radius = np.where(better, new_radius, radius)
        scale = radius / (1.5 * _dense_window(d)[0])
        if judge is _trimmed:
            scale = 1.5 * np.exp(score)
        kept = distinct(chosen, scale[:, None], score, _KEPT_SUBSETS, 1.0)
        planes.append(chosen[kept])
        scales.append(np.repeat(scale[kept, None], d, axis=1))
    return np.concatenate(planes), np.concatenate(scales)


@functools.lru_cache(maxsize=64)
def _dense_window(d: int) -> tuple[float, float]:
    """Radius of the window in scales, and the exponent c for which it is optimal."""
    radius = float(chi.ppf(_DENSE, d))
    return radius, _DENSE / (radius * float(chi.pdf(radius, d)))


def _norms(rows: WhitenedRows, theta: Array) -> Array:
    residual = rows.residuals(theta)
    if residual.shape[1] == 1:
        return np.abs(residual[:, 0], out=residual[:, 0])
    return np.sqrt(np.einsum("cdn,cdn->cn", residual, residual))


def _ordered(rows: WhitenedRows, norms: Array) -> tuple[Array, Array]:
    """Sorted norms, at least the floor, and the share of rows up to each of them."""
    w, floor = rows.weight, float(np.linalg.norm(rows.floor))
    if np.all(w == w[0]):
        t = np.sort(norms, axis=1)
        share = np.round(np.arange(1.0, len(w) + 1.0) / len(w), 9)
        share = np.broadcast_to(share, t.shape)
    else:
        order = np.argsort(norms, axis=1)
        t = np.take_along_axis(norms, order, axis=1)
        share = np.round(np.cumsum(w[order], axis=1) / w.sum(), 9)
    return np.maximum(t, floor), share


def _trimmed(rows: WhitenedRows, norms: Array) -> tuple[Array, Array]:
    """Log root mean square of the smallest norms of a majority, and the largest one."""
    t, share = _ordered(rows, norms)
    n, r = rows.n_rows, rows.effective
    part = min(1.0, max((n + r + 1.0) / (2.0 * n), (r + 2.0) / n))
    inside = share <= part + 0.5 / len(rows.weight)
    mean = np.sum(np.square(t) * inside, axis=1) / np.maximum(inside.sum(axis=1), 1)
    last = np.maximum(inside.sum(axis=1) - 1, 0)[:, None]
    return 0.5 * np.log(mean / rows.n_outputs), np.take_along_axis(t, last, axis=1)[
        :, 0
    ]


def _densest(rows: WhitenedRows, norms: Array) -> tuple[Array, Array]:
    """min over t of log t - c log F(t), and 1.5 times the t of the minimum.

    F(t) is the share of rows within t, excluding two per parameter. With this c, the
    window of the smallest score contains half of a normal population.
    """
    _, exponent = _dense_window(rows.n_outputs)
    t, share = _ordered(rows, norms)
    n, r = rows.n_rows, rows.effective
    spent = min(2.0 * r / n, 1.0 / 3.0)
    believed = (share >= r / n + 0.15) & (share > spent)
    believed[:, -1] = True
    part = np.where(believed, (share - spent) / (1.0 - spent), 1.0)
    score = np.where(
        believed, np.log(t) - exponent * np.log(np.maximum(part, 1e-9)), np.inf
    )
    best = np.argmin(score, axis=1)[:, None]
    return (
        np.take_along_axis(score, best, axis=1)[:, 0],
        1.5 * np.take_along_axis(t, best, axis=1)[:, 0],
    )


def distinct(
    theta: Array, scale: Array, score: Array, limit: int, apart: float
) -> Array:
    """Indices of the best candidates that are some noise scales apart.

    Without the distance, variants of a wrong plane would displace the right one.
    """
    chosen: list[int] = []
    unit = np.square(apart) * np.square(scale)
    for i in np.argsort(score, kind="stable"):
        distance = np.square(theta[i] - theta[chosen]).sum(axis=1)
        if np.all((distance > unit[chosen]).any(axis=1)):
            chosen.append(int(i))
            if len(chosen) == limit:
                break
    return np.asarray(chosen)
