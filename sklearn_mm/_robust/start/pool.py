"""Batched judgement of candidate planes; the theory is in `search`."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.stats import chi

from sklearn_mm._robust.linear import LinearResidual
from sklearn_mm._robust.problem import squared_norms
from sklearn_mm._robust.start.mixture import ScaleMixture, SquaredResiduals
from sklearn_mm._robust.start.sample import ROWS_PER_PARAMETER, DecidingRows
from sklearn_mm._solver.roles import Array, Indices
from sklearn_mm.kernels import Kernel

# Share of the inliers in the window that scores a candidate, and rows it costs per
# parameter. In a sweep over (0.4, 0.5, 0.6, 0.73) x (1, 2) at 200 x 5, 100 x 10 and
# 40 x 4, these failed least.
_WINDOW = 0.5
_SPENT = 2.0
# Inlier shares below are not believed. With few rows a parameter, a dense subset turns
# up by chance in almost any data; then a majority is asked for, the one that least
# trimmed squares takes for the highest breakdown point.
_MIN_SHARE = 0.3
# Beyond this many parameters subsets cannot help, and the batched normal equations
# would take gigabytes; the criterion's own runs remain.
_MAX_BATCHED_PARAMETERS = 64
_FINALISTS = 10
# Rows whose root mean square standardised entry is larger count as one of this size
# when the design is whitened.
_FAR_OUT = 30.0
# Order statistics at which the score is evaluated.
_GRID = 64
# Relative to the spread of y, a residual below is rounding: the fit is exact.
_EXACT = 1e-11


@functools.lru_cache(maxsize=64)
def _window(d: int) -> tuple[float, float]:
    """Radius of the scoring window in noise scales, and its exponent c."""
    radius = float(chi.ppf(_WINDOW, d))
    return radius, _WINDOW / (radius * float(chi.pdf(radius, d)))


@dataclass(frozen=True)
class Chosen:
    theta: Array
    scale: float
    share: float


@dataclass(frozen=True)
class CandidatePool:
    """Batched work on candidates theta of shape (n_candidates, r, d), whitened."""

    Z: Array  # orthonormal design, Z' diag(w) Z = n I but for rows far out
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
        cls, rows: DecidingRows, kernel: Kernel, tuning: float, scale: float | None
    ) -> CandidatePool:
        model, weight = rows.model, rows.weight
        n = len(weight)
        X, frame = model.rows.X, model.frame
        X = X.toarray() if scipy.sparse.issparse(X) else X
        design = (X - frame.mean) / frame.scale
        if frame.fit_intercept:
            design = np.hstack([design, np.ones((n, 1))])
        # Rows far out in X must not make all others look like rounding.
        size = np.sqrt(np.mean(np.square(design), axis=1))
        tame = weight * np.square(np.minimum(1.0, _FAR_OUT / np.maximum(size, 1e-300)))
        values, vectors = scipy.linalg.eigh((design * tame[:, None]).T @ design / n)
        keep = values > 1e-10 * values[-1]
        root = np.sqrt(values[keep])
        back = vectors[:, keep] / root
        return cls(
            design @ back,
            model.Y,
            weight,
            back,
            (vectors[:, keep] * root).T,
            back.T @ (model.ridge[:, None] * back),
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
        if n <= 2.0 * ROWS_PER_PARAMETER * r:
            return min(1.0, (n + r + 1) / (2.0 * n))
        return max(_MIN_SHARE, ROWS_PER_PARAMETER * r / n)

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
        return solve_regularized(gram, right)

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

    def choose(self, thetas: Array) -> Chosen:
        """Improve the best distinct candidates and return the winner."""
        if self.is_batched:
            thetas, score, scale = self.concentrate(thetas, 2)
        else:
            score, scale = self.score(self.norms(thetas))
        chosen = distinct(thetas, score, scale, _FINALISTS)
        thetas, scale = thetas[chosen], scale[chosen]
        squares = np.square(self.norms(thetas))
        mixture = ScaleMixture.around(self._summable(squares), scale, None)
        if self.known_scale is None:
            thetas, mixture = self._alternate(thetas, squares, mixture)
            score = self._final_score(mixture)
            scale = np.maximum(mixture.s, self.floor)
        else:
            score = score[chosen]
        best = int(np.argmin(score))
        return Chosen(thetas[best], float(scale[best]), float(mixture.share[best]))

    def _alternate(
        self, thetas: Array, squares: Array, mixture: ScaleMixture
    ) -> tuple[Array, ScaleMixture]:
        r = self.n_parameters
        mixture = mixture.em(self._summable(squares), r, 5, self.floor)
        if not self.is_batched:
            return thetas, mixture
        for _ in range(10):
            before = mixture.s
            thetas = self.solve(self.confidence(np.sqrt(squares), mixture.s))
            squares = np.square(self.norms(thetas))
            mixture = mixture.em(self._summable(squares), r, 3, self.floor)
            if np.all(np.abs(mixture.s - before) <= 1e-3 * before):
                break
        return thetas, mixture

    def _summable(self, squares: Array) -> SquaredResiduals:
        return SquaredResiduals(squares, self.weight, self.n_outputs)

    def _final_score(self, mixture: ScaleMixture) -> Array:
        _, exponent = _window(self.n_outputs)
        n, spent = self.n_rows, self.spent
        share = np.maximum((mixture.share * n - spent) / (n - spent), 1e-3)
        score = np.log(np.maximum(mixture.s, self.floor)) - exponent * np.log(share)
        believed = mixture.share >= self.min_share
        # If none is believed, the one that explains most rows has to do.
        return np.where(believed, score, np.inf) if believed.any() else -mixture.share


@dataclass(frozen=True)
class WideCandidatePool(CandidatePool):
    """Candidates in the model's own coordinates: too many parameters to whiten.

    There are few candidates then, one run each, and they are judged as they are.
    """

    model: LinearResidual | None = None

    @classmethod
    def of(
        cls, rows: DecidingRows, kernel: Kernel, tuning: float, scale: float | None
    ) -> WideCandidatePool:
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
        points = [self.model.at(theta.ravel()) for theta in thetas]
        squares = [squared_norms(point.residual) for point in points]
        return np.sqrt(squares)[:, rows]


def _floor(Y: Array) -> float:
    """Scale below which residuals of these targets are rounding."""
    return _EXACT * max(float(np.median(np.abs(Y))), 1.0)


def distinct(thetas: Array, score: Array, scale: Array, limit: int) -> Indices:
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
    return np.asarray(chosen, dtype=np.intp)


def solve_regularized(gram: Array, right: Array) -> Array:
    """Batched solve; directions that a weighting leaves open get nothing.

    In whitened coordinates a relative ridge of 1e-9 does not show where the rows
    determine the plane, and picks the smallest one where they do not (dummy columns).
    """
    r = gram.shape[-1]
    trace = np.trace(gram, axis1=1, axis2=2)
    diagonal = np.arange(r)
    gram[:, diagonal, diagonal] += (1e-9 / r * trace + 1e-200)[:, None]
    solution: Array = np.linalg.solve(gram, right)
    return solution
