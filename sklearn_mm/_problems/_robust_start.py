r"""Where to start, and how wide to make the kernel: robust decisions on few rows.

A redescending kernel finds the right plane only from a start in its basin and with a
width that matches the noise. Both are chosen here from a pool of candidate planes:

1. the runs of the user's criterion from least squares, at a ladder of kernel widths
   (they find the bulk under symmetric and one-sided contamination);
2. least squares without the half of the rows that is extreme along each principal
   sensitivity component (Peña & Yohai, 1999): deterministic, a few dozen candidates,
   strong against clusters of bad leverage points in any dimension;
3. planes through random r-subsets of the rows, in a number that grows with r.

Every candidate is judged by the window of residuals it explains best. With F(t) the
share of rows whose residual norm is at most t, the score is::

    min over t of   log t - c log F(t)

The exponent c is not free. For Gaussian residuals and a window that holds the share
`_WINDOW` of them, the minimum lies at the right t for exactly one c, namely
c = F / (t F'(t)). With half of the inliers in the window, t is their median absolute
residual and c = 1.17 for one output. F is counted after `_SPENT` rows for each
parameter have been taken off, since a plane passes through r of them for free.

The best distinct candidates are then improved together: weighted least squares with
the user's kernel in turn with EM for the scale mixture
(1 - e) N(0, s**2) + e N(0, S**2) of the residuals; the score with the mixture's own s
and share decides.

Everything is done in coordinates in which the design is orthonormal, on distinct rows
in an order given by their least-squares residuals, so that the decision does not depend
on the order of the rows, on how weights are split between copies of a row, or on the
units of X and y.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.stats import chi

from sklearn_mm._core._protocols import Array
from sklearn_mm._problems._half_quadratic import HalfQuadraticProblem
from sklearn_mm._problems._linear_residual import LinearResidual
from sklearn_mm.kernels import Kernel

# Rows that the decision looks at; its cost does not grow with the data beyond. Fifty
# for each parameter, within limits.
_DECIDING_ROWS, _MIN_DECIDING, _MAX_DECIDING = 50, 1_000, 2_000
# Rows that random subsets are screened on before the best see all of the above.
_SCREEN_ROWS = 500
# Share of the inliers in the window that scores a candidate, and rows it costs per
# parameter. In a sweep over (0.4, 0.5, 0.6, 0.73) x (1, 2) at 200 x 5, 100 x 10 and
# 40 x 4, these failed least.
_WINDOW = 0.5
_SPENT = 2.0
# Inlier shares below are not believed. With few rows a parameter, a dense subset turns
# up by chance in almost any data; then a majority is asked for, the one that least
# trimmed squares takes for the highest breakdown point.
_MIN_SHARE, _ROWS_PER_PARAMETER = 0.3, 5.0
# Random subsets: enough to hold a clean one but for this probability at that share of
# inliers. Where that is too many, subsets are a gamble, and as many are drawn as cost
# no more than the largest number does for that many parameters.
_SUBSET_FAILURE, _SUBSET_INLIERS = 1e-3, 0.55
_MIN_SUBSETS, _MAX_SUBSETS, _SUBSET_PARAMETERS = 100, 2_000, 11
# Beyond this many parameters subsets cannot help, and the batched normal equations
# would take gigabytes; the ladder and the sensitivity components remain.
_MAX_BATCHED_PARAMETERS = 64
_MAX_WHITENED_PARAMETERS = 1_000
_KEPT_SUBSETS, _KEPT_HALVES = 20, 8
# Sensitivity components that are looked along, from either end of their order:
# isolated outliers show in those of the largest influence, and a cluster that has drawn
# the plane to itself, so that its residuals vanish, in those of the smallest.
_COMPONENTS = 5
_ROUNDS = 2
_FINALISTS = 10
# Order statistics at which the score is evaluated.
_GRID = 64
_LADDER = (1.0, 0.35, 0.125)
# Relative to the spread of y, a residual below is rounding: the fit is exact.
_EXACT = 1e-11


@dataclass(frozen=True)
class Start:
    """A plane, the noise scale around it, and the share of rows that follow it."""

    theta: Array
    scale: float
    share: float
    determined: bool = True  # more rows than parameters: outliers can show
    sampled: bool = False  # decided on a part of the rows


Climb = Callable[[HalfQuadraticProblem, Array], Array]


def least_squares(model: LinearResidual, sample_weight: Array) -> Array:
    """Theta of (ridge) least squares."""
    return model.minimize(np.zeros(model.shape).ravel(), sample_weight)[0]


def robust_start(
    model: LinearResidual,
    sample_weight: Array,
    *,
    kernel: Kernel,
    tuning: float,
    scale: float | None,
    climb: Climb,
    theta: Array | None,
    random_state: np.random.RandomState,
) -> Start:
    """Choose a start, and the scale unless it is given.

    Parameters
    ----------
    model : LinearResidual
        All rows.
    sample_weight : ndarray of shape (n_samples,)
        Weight of each row.
    kernel, tuning : Kernel, float
        The kernel, and its width in noise scales.
    scale : float or None
        The noise scale if it is known; then the robust objective itself is the score.
    climb : callable
        Runs the user's criterion on a problem from a theta and returns where it ended.
    theta : ndarray or None
        A start of the user's; only the scale is then chosen.
    random_state : RandomState
        Source of the random subsets.
    """
    rows = _Rows.draw(model, sample_weight, theta)
    wide = model.shape[0] > _MAX_WHITENED_PARAMETERS
    pool = (_WidePool if wide else _Pool).of(rows, kernel, tuning, scale)
    own = rows.theta if theta is None else theta
    candidates = [pool.whiten(own)]
    for width in _ladder(pool, candidates[0], scale):
        problem = HalfQuadraticProblem(rows.model, kernel, width, rows.weight)
        candidates.append(pool.whiten(climb(problem, own)))
    if theta is None and pool.is_batched:
        candidates.append(_sensitivity_candidates(pool))
        candidates.append(_subset_candidates(pool, random_state))
    best = pool.choose(np.concatenate(candidates))
    chosen = pool.unwhiten(best.theta) if theta is None else theta
    determined = pool.n_rows > pool.n_parameters
    return Start(chosen, best.scale, best.share, determined, rows.sampled)


def refined_scale(
    squared_norms: Array, weight: Array, start: Start, n_outputs: int
) -> float:
    """Scale of the mixture around a fitted plane, from all rows."""
    squares, weight = squared_norms[None, :], weight / weight.sum()
    mixture = _Mixture.around(
        squares, weight, np.array([start.scale]), np.array([start.share])
    )
    return float(mixture.em(squares, weight, 0.0, n_outputs, 4).s[0])


def _ladder(pool: _Pool, own: Array, scale: float | None) -> list[float]:
    if scale is not None:
        return [pool.tuning * scale]
    order = np.sort(pool.norms(own)[0])
    middle = order[len(order) // 2] / float(chi.median(pool.n_outputs))
    return [pool.tuning * max(middle, pool.floor) * factor for factor in _LADDER]


@dataclass(frozen=True)
class _Rows:
    """The distinct rows that decide, with their weights."""

    model: LinearResidual
    weight: Array
    theta: Array  # least squares on all rows
    sampled: bool

    @classmethod
    def draw(
        cls, model: LinearResidual, sample_weight: Array, theta: Array | None
    ) -> _Rows:
        ols = least_squares(model, sample_weight)
        norms = model.squared_norms(ols if theta is None else theta)
        # Least-squares residuals give an order that moves with the rows and stays the
        # same under affine changes of X and y.
        order = np.argsort(norms)
        weight = sample_weight[order]
        if not weight.all():
            order, weight = order[weight > 0], weight[weight > 0]
        q = model.shape[0]
        n_rows = int(np.clip(_DECIDING_ROWS * q, _MIN_DECIDING, _MAX_DECIDING))
        n_rows = max(n_rows, int(_ROWS_PER_PARAMETER * q))
        sampled = _n_distinct(norms[order]) > n_rows
        if sampled:
            # Systematic sampling along the order: equal weights, every stratum of
            # residuals represented, and a row counts by its weight alone.
            mass = np.cumsum(weight)
            grid = (np.arange(n_rows) + 0.5) / n_rows * mass[-1]
            order = order[np.minimum(np.searchsorted(mass, grid), len(order) - 1)]
            weight = np.ones(len(order))
        X, Y = model.X[order].astype(np.float64), model.Y[order]
        first, total = _merge_copies(np.hstack([_fingerprint(X), Y]), weight)
        weight = total * (len(first) / total.sum())
        small = LinearResidual(
            X[first],
            Y[first],
            model.mean,
            model.scale,
            model.fit_intercept,
            model.alpha * len(first) / sample_weight.sum(),
        )
        return cls(small, weight, ols, sampled)


def _n_distinct(norms: Array) -> int:
    """Number of distinct rows, told from their sorted residuals.

    Copies of a row have the same residual but for rounding, and other rows another one
    almost surely. So k copies and a weight of k lead to the same decision.
    """
    return 1 + int(np.count_nonzero(np.diff(norms) > 1e-9 * norms[1:]))


def _fingerprint(X: Any) -> Array:
    """Columns that are equal for copies of a row, and for them alone.

    Dense rows speak for themselves. Products of a sparse row with random vectors are
    summed in the order of its entries, so they are the same to the last bit as well.
    """
    if not scipy.sparse.issparse(X):
        return X
    directions = np.random.default_rng(0).standard_normal((X.shape[1], 4))
    return X @ directions


def _merge_copies(table: Array, weight: Array) -> tuple[Array, Array]:
    """Index of the first copy of each distinct row, in order, and the summed weights.

    Copies have the same least-squares residual, so they are neighbours but for
    rounding; comparing exact values makes the result independent of that.
    """
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    total = np.bincount(inverse.ravel(), weights=weight)
    order = np.argsort(first)
    return first[order], total[order]


@functools.lru_cache(maxsize=64)
def _window(d: int) -> tuple[float, float]:
    """Radius of the scoring window in noise scales, and its exponent c."""
    radius = float(chi.ppf(_WINDOW, d))
    return radius, _WINDOW / (radius * float(chi.pdf(radius, d)))


@dataclass(frozen=True)
class _Chosen:
    theta: Array
    scale: float
    share: float


@dataclass(frozen=True)
class _Pool:
    """Batched work on candidates theta of shape (n_candidates, r, d), whitened."""

    Z: Array  # orthonormal design, Z' diag(w) Z = n I
    Y: Array
    weight: Array  # sums to the number of rows
    back: Array  # (q, r) maps whitened coefficients to the model's
    forth: Array  # (r, q), its pseudo-inverse
    ridge: Array  # (r, r)
    kernel: Kernel
    tuning: float
    known_scale: float | None
    floor: float

    @classmethod
    def of(
        cls, rows: _Rows, kernel: Kernel, tuning: float, scale: float | None
    ) -> _Pool:
        model, weight = rows.model, rows.weight
        n = len(weight)
        X = model.X.toarray() if scipy.sparse.issparse(model.X) else model.X
        design = (X - model.mean) / model.scale
        if model.fit_intercept:
            design = np.hstack([design, np.ones((n, 1))])
        values, vectors = scipy.linalg.eigh((design * weight[:, None]).T @ design / n)
        keep = values > 1e-10 * values[-1]
        root = np.sqrt(values[keep])
        back = vectors[:, keep] / root
        penalty = np.zeros(design.shape[1])
        penalty[: len(model.mean)] = model.alpha / np.square(model.scale)
        return cls(
            design @ back,
            model.Y,
            weight,
            back,
            (vectors[:, keep] * root).T,
            back.T @ (penalty[:, None] * back),
            kernel,
            tuning,
            scale,
            _floor(model.Y),
        )

    @property
    def n_rows(self) -> int:
        return len(self.weight)

    @property
    def n_parameters(self) -> int:
        return self.Z.shape[1]

    @property
    def n_outputs(self) -> int:
        return self.Y.shape[1]

    @property
    def is_batched(self) -> bool:
        """Whether candidates beyond the ladder make sense and are affordable."""
        r = self.n_parameters
        return 0 < r <= _MAX_BATCHED_PARAMETERS and self.n_rows > r + 1

    @property
    def min_share(self) -> float:
        n, r = self.n_rows, self.n_parameters
        if n <= 2.0 * _ROWS_PER_PARAMETER * r:
            return min(1.0, (n + r + 1) / (2.0 * n))
        return max(_MIN_SHARE, _ROWS_PER_PARAMETER * r / n)

    @property
    def spent(self) -> float:
        """Rows that a candidate explains for free."""
        return min(_SPENT * self.n_parameters, self.n_rows / 3.0)

    @functools.cached_property
    def products(self) -> Array:
        """Upper triangles of z_i z_i' for all rows: makes Gram matrices one product."""
        r = self.n_parameters
        out = np.empty((self.n_rows, r * (r + 1) // 2))
        end = 0
        for j in range(r):
            start, end = end, end + r - j
            np.multiply(self.Z[:, j:], self.Z[:, j : j + 1], out=out[:, start:end])
        return out

    def whiten(self, theta: Array) -> Array:
        return (self.forth @ theta.reshape(self.back.shape[0], -1))[None]

    def unwhiten(self, theta: Array) -> Array:
        return (self.back @ theta).ravel()

    def norms(self, thetas: Array, rows: slice = slice(None)) -> Array:
        """Residual norms, one candidate a row of the result."""
        m, r, d = thetas.shape
        flat = np.swapaxes(thetas, 1, 2).reshape(m * d, r)
        residual = (flat @ self.Z[rows].T).reshape(m, d, -1) - self.Y[rows].T
        if d == 1:
            return np.abs(residual[:, 0])
        return np.sqrt(np.einsum("cdn,cdn->cn", residual, residual))

    def solve(self, confidence: Array, rows: slice = slice(None)) -> Array:
        """Weighted least squares for many weightings of the same rows at once."""
        m, r = len(confidence), self.n_parameters
        w = confidence * self.weight[rows]
        upper = np.triu_indices(r)
        gram = np.zeros((m, r, r))
        gram[:, upper[0], upper[1]] = w @ self.products[rows]
        gram += np.triu(gram, 1).transpose(0, 2, 1)
        gram += self.ridge * (w.shape[1] / self.n_rows)
        right = np.stack([(w * y) @ self.Z[rows] for y in self.Y[rows].T], axis=-1)
        return _solve_regularized(gram, right)

    def score(self, norms: Array, rows: slice = slice(None)) -> tuple[Array, Array]:
        """Score of each candidate, and the noise scale at which it is attained."""
        weight = self.weight[rows]
        n = float(weight.sum())
        if self.known_scale is not None:
            z = np.square(norms / (self.tuning * self.known_scale))
            losses = self.kernel.loss(z) @ weight
            return losses, np.full(len(norms), self.known_scale)
        radius, exponent = _window(self.n_outputs)
        # A grid of order statistics is as good as all of them.
        grid = np.unique(np.linspace(0, len(weight) - 1, _GRID).round().astype(int))
        if np.all(weight == weight[0]):
            t = np.sort(norms, axis=1)[:, grid]
            count = np.broadcast_to((grid + 1.0) * weight[0], t.shape)
        else:
            order = np.argsort(norms, axis=1)
            t = np.take_along_axis(norms, order, axis=1)[:, grid]
            count = np.cumsum(weight[order], axis=1)[:, grid]
        t = np.maximum(t, self.floor)
        spent = self.spent * n / self.n_rows
        share = (count - spent) / (n - spent)
        # The window holds a part of the inliers, and the rows that come for free.
        free = self.n_parameters * n / self.n_rows
        allowed = count >= free + _WINDOW * max(self.min_share * n - free, 0.0)
        allowed &= count > spent
        allowed[:, -1] = True
        value = np.log(t) - exponent * np.log(np.where(allowed, share, 1.0))
        value[~allowed] = np.inf
        best = np.argmin(value, axis=1)[:, None]
        return (
            np.take_along_axis(value, best, axis=1)[:, 0],
            np.take_along_axis(t, best, axis=1)[:, 0] / radius,
        )

    def confidence(self, norms: Array, scale: Array) -> Array:
        return self.kernel.weight(np.square(norms / (self.tuning * scale[:, None])))

    def concentrate(
        self, thetas: Array, n_steps: int, rows: slice = slice(None)
    ) -> tuple[Array, Array, Array]:
        """Refit candidates to the rows in their window, as long as it helps.

        Returns the candidates, their scores and scales.
        """
        radius, _ = _window(self.n_outputs)
        norms = self.norms(thetas, rows)
        score, scale = self.score(norms, rows)
        for _ in range(n_steps):
            # The window, widened to 1.5 times its radius for efficiency.
            inside = norms <= 1.5 * radius * scale[:, None]
            new = self.solve(inside.astype(float), rows)
            new_norms = self.norms(new, rows)
            new_score, new_scale = self.score(new_norms, rows)
            better = new_score < score
            thetas = np.where(better[:, None, None], new, thetas)
            norms = np.where(better[:, None], new_norms, norms)
            score = np.where(better, new_score, score)
            scale = np.where(better, new_scale, scale)
        return thetas, score, scale

    def choose(self, thetas: Array) -> _Chosen:
        """Improve the best distinct candidates and return the winner."""
        if self.is_batched:
            thetas, score, scale = self.concentrate(thetas, 2)
        else:
            score, scale = self.score(self.norms(thetas))
        chosen = _distinct(thetas, score, scale, _FINALISTS)
        thetas, scale = thetas[chosen], scale[chosen]
        squares = np.square(self.norms(thetas))
        mixture = _Mixture.around(squares, self.weight, scale, None)
        if self.known_scale is None:
            thetas, mixture = self._alternate(thetas, squares, mixture)
            score = self._final_score(mixture)
            scale = np.maximum(mixture.s, self.floor)
        else:
            score = score[chosen]
        best = int(np.argmin(score))
        return _Chosen(thetas[best], float(scale[best]), float(mixture.share[best]))

    def _alternate(
        self, thetas: Array, squares: Array, mixture: _Mixture
    ) -> tuple[Array, _Mixture]:
        r, d = self.n_parameters, self.n_outputs
        mixture = mixture.em(squares, self.weight, r, d, 5, self.floor)
        if not self.is_batched:
            return thetas, mixture
        for _ in range(10):
            before = mixture.s
            thetas = self.solve(self.confidence(np.sqrt(squares), mixture.s))
            squares = np.square(self.norms(thetas))
            mixture = mixture.em(squares, self.weight, r, d, 3, self.floor)
            if np.all(np.abs(mixture.s - before) <= 1e-3 * before):
                break
        return thetas, mixture

    def _final_score(self, mixture: _Mixture) -> Array:
        _, exponent = _window(self.n_outputs)
        n, spent = self.n_rows, self.spent
        share = np.maximum((mixture.share * n - spent) / (n - spent), 1e-3)
        score = np.log(np.maximum(mixture.s, self.floor)) - exponent * np.log(share)
        believed = mixture.share >= self.min_share
        # If none is believed, the one that explains most rows has to do.
        return np.where(believed, score, np.inf) if believed.any() else -mixture.share


@dataclass(frozen=True)
class _WidePool(_Pool):
    """Candidates in the model's own coordinates: too many parameters to whiten.

    There are few candidates then, one run each, and they are judged as they are.
    """

    model: LinearResidual | None = None

    @classmethod
    def of(
        cls, rows: _Rows, kernel: Kernel, tuning: float, scale: float | None
    ) -> _WidePool:
        model, none = rows.model, np.empty((0, 0))
        floor = _floor(model.Y)
        own = (none, model.Y, rows.weight, none, none, none)
        return cls(*own, kernel, tuning, scale, floor, model)

    @property
    def n_parameters(self) -> int:
        assert self.model is not None
        return min(self.model.shape[0], self.n_rows)

    @property
    def is_batched(self) -> bool:
        return False

    def whiten(self, theta: Array) -> Array:
        return theta.reshape(1, -1, self.n_outputs)

    def unwhiten(self, theta: Array) -> Array:
        return theta.ravel()

    def norms(self, thetas: Array, rows: slice = slice(None)) -> Array:
        assert self.model is not None
        squares = [self.model.squared_norms(theta.ravel()) for theta in thetas]
        return np.sqrt(squares)[:, rows]


def _floor(Y: Array) -> float:
    """Scale below which residuals of these targets are rounding."""
    return _EXACT * max(float(np.median(np.abs(Y))), 1.0)


@dataclass(frozen=True)
class _Mixture:
    """(1 - e) N(0, s**2) + e N(0, S**2) for the residuals of several candidates."""

    s: Array
    share: Array  # 1 - e
    S: Array

    @classmethod
    def around(
        cls, squares: Array, weight: Array, scale: Array, share: Array | None
    ) -> _Mixture:
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
    ) -> _Mixture:
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
        return _Mixture(s, share, S)


def _distinct(thetas: Array, score: Array, scale: Array, limit: int) -> Array:
    """Indices of the best candidates that are at least a noise scale apart.

    Without the distance, variants of one wrong plane would crowd out the right one.
    """
    chosen: list[int] = []
    for i in np.argsort(score, kind="stable"):
        distance = np.square(thetas[i] - thetas[chosen]).sum(axis=(1, 2))
        if np.all(distance > np.square(scale[chosen])):
            chosen.append(int(i))
        if len(chosen) == limit:
            break
    return np.asarray(chosen)


def _solve_regularized(gram: Array, right: Array) -> Array:
    """Batched solve; directions that a weighting leaves open get nothing.

    In whitened coordinates a relative ridge of 1e-9 does not show where the rows
    determine the plane, and picks the smallest one where they do not (dummy columns).
    """
    r = gram.shape[-1]
    trace = np.trace(gram, axis1=1, axis2=2)
    diagonal = np.arange(r)
    gram[:, diagonal, diagonal] += (1e-9 / r * trace + 1e-200)[:, None]
    return np.linalg.solve(gram, right)


def _sensitivity_candidates(pool: _Pool) -> Array:
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
        chosen = _distinct(candidates, score, scale, _KEPT_HALVES)
        found.append(candidates[chosen])
        best = chosen[0]
        explained = norms[best] <= 3.0 * np.sqrt(pool.n_outputs) * scale[best]
        if np.array_equal(explained, base) or explained.sum() <= pool.n_parameters + 1:
            break
        base = explained
    return np.concatenate(found)


def _sensitivity_masks(pool: _Pool, base: Array) -> Array:
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


def _subset_candidates(pool: _Pool, random_state: np.random.RandomState) -> Array:
    """Planes through random subsets, the best of them concentrated."""
    n, r = pool.n_rows, pool.n_parameters
    needed = np.log(_SUBSET_FAILURE) / np.log1p(-(_SUBSET_INLIERS**r))
    affordable = _MAX_SUBSETS * min(1.0, (_SUBSET_PARAMETERS / r) ** 3)
    n_subsets = int(max(min(needed, affordable), _MIN_SUBSETS))
    index = random_state.randint(n, size=(n_subsets, r))
    design = pool.Z[index]
    transposed = design.transpose(0, 2, 1)
    thetas = _solve_regularized(transposed @ design, transposed @ pool.Y[index])
    step = -(-n // _SCREEN_ROWS)
    screen = slice(0, None, step)
    score, _ = pool.score(pool.norms(thetas, screen), screen)
    best = np.argsort(score, kind="stable")[: 5 * _KEPT_SUBSETS]
    thetas, score, scale = pool.concentrate(thetas[best], 2, screen)
    return thetas[_distinct(thetas, score, scale, _KEPT_SUBSETS)]
