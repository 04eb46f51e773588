r"""Search for the few columns that explain most rows of one output.

With more columns than rows, any half of the rows can be fitted exactly, so a small
scale of residuals means nothing unless the columns that were used are counted. A plane
on k columns is judged by

.. math:: 2 n \log s + c \, k \, (\log n + 2 \log p)

where s is an M-scale of the residuals of all rows that up to half of them cannot
influence much (Tukey's biweight), and the second term is that of the extended BIC (J.
Chen and Z. Chen, Biometrika 95, 2008), times a constant since this scale is easier to
reduce by chance than a standard deviation. The value of the clean rows and the true
columns is far below those of other planes unless the signal is weak.

To find it, many searches run side by side. Each of them adds the column that is most
correlated with the residuals of the rows that are close to its plane, fits these rows
again, and so on; after a few columns it removes the least significant ones and goes on
adding. What makes searches differ is the number of scales up to which rows count as
close, and that a correlation is that of a random part of these rows. In half of the
searches, far values in X are drawn to the middle for these correlations, so that bad
leverage points have no say.

A column that explains bad leverage points is significant as long as it is there. So at
last each column of the best plane, and each pair, is left out, together with the rows
that it alone brings close, and another one may come in, for as long as planes become
better.

All of this is a product of matrices per step for all searches at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from sklearn_mm._robust.start.whitened import NORMAL_MEDIAN
from sklearn_mm._rows.statistics import weighted_median
from sklearn_mm._solver.roles import Array

# Searches, fewer if there are so many rows and columns that their product with the
# number of searches is beyond the second, but not fewer than the third.
_SEARCHES, _WORK, _LEAST_SEARCHES = 400, 4e7, 40
# Rows for each column of a plane, and the most columns.
_ROWS_PER_COLUMN, _MOST_COLUMNS = 10, 15
# Rounds of adding columns, and the part of them that stays in between.
_ROUNDS, _STAY = 3, 0.3
# Scales within which rows are close for correlations, and at least for fits.
_CLOSE, _CLOSE_OF_FITS = (1.0, 2.5), 1.5
# Part of the close rows that a correlation takes.
_PART = 0.7
# Rounds of exchanging columns of the best plane, at most.
_EXCHANGES = 20
# Fits to close rows after each change of columns.
_FITS = 2
# Factor of the penalty of the extended BIC.
_PENALTY = 1.4
# Width of the biweight that has a breakdown point of one half, and steps of the scale.
_BIWEIGHT, _SCALE_STEPS = 1.5476, 5
# Added to the diagonal of normal equations, in parts of the rows.
_RIDGE = 1e-8
# Noise below this part of the largest target is rounding.
LEAST_NOISE, TINY = 1e-9, np.finfo(float).tiny ** 0.25
# Values beyond the first are drawn to the middle, those beyond the second are put there
# (in median absolute deviations, as standard deviations).
_CENTRAL, _FAR = 1.5, 4.0


@dataclass(frozen=True)
class Explained:
    """Residuals of all rows about a plane on a few columns."""

    residual: Array
    scale: float
    columns: Array  # indices
    coef: Array  # of these columns
    value: float  # of the criterion


def explain(
    Z: Array,
    y: Array,
    weight: Array,
    fit_intercept: bool,
    random_state: np.random.RandomState,
) -> Explained:
    """Search for a plane on few columns that most rows follow.

    Parameters
    ----------
    Z : ndarray of shape (n, p)
        Standardised columns.
    y : ndarray of shape (n,)
        One output.
    weight : ndarray of shape (n,)
        Weights of the rows, which sum to n.
    fit_intercept : bool
        Whether planes have an intercept.
    random_state : RandomState
        Source of the differences between searches.
    """
    n, p = Z.shape
    most = min(max(n // _ROWS_PER_COLUMN, 1), _MOST_COLUMNS, p)
    number = int(np.clip(_WORK / (n * p), _LEAST_SEARCHES, _SEARCHES))
    searches = _Searches(Z, y, weight, fit_intercept, number, random_state)
    least = min(max(round(_STAY * most), 1), most)
    for turn in range(_ROUNDS):
        while searches.columns.shape[1] < most:
            searches.add()
        while searches.columns.shape[1] > (least if turn < _ROUNDS - 1 else 1):
            searches.remove()
    best = searches.best
    for _ in range(_EXCHANGES):
        for number in (1, 2):
            searches.exchange(number)
        if not searches.best.value < best.value:
            break
        best = searches.best
    return best


class _Searches:
    """State of all searches: columns, residuals and scales; and the best plane so far.

    The first half of them see wrapped columns where they choose one.
    """

    def __init__(
        self,
        Z: Array,
        y: Array,
        weight: Array,
        fit_intercept: bool,
        number: int,
        random_state: np.random.RandomState,
    ) -> None:
        self._Z, self._y, self._weight = Z, y, weight
        self._fit_intercept, self._random_state = fit_intercept, random_state
        self._by_column = np.ascontiguousarray(Z.T)
        wrapped = wrap(Z, weight, fit_intercept)
        self._tables = [(table, np.square(table)) for table in (wrapped, Z)]
        self._close = random_state.uniform(*_CLOSE, size=number)
        self._floor = max(LEAST_NOISE * float(np.abs(y).max()), TINY)
        n, p = Z.shape
        self._per_column = _PENALTY * (np.log(n) + 2.0 * np.log(p))
        middle = weighted_median(y[:, None], weight)[0] if fit_intercept else 0.0
        self._residual = np.repeat((y - middle)[None], number, axis=0)
        first = weighted_median(np.abs(y - middle)[:, None], weight)[0]
        first = np.full(number, max(first / NORMAL_MEDIAN, self._floor))
        self._scale = self._scales(self._residual, first)
        self.columns = np.zeros((number, 0), dtype=np.intp)
        self._coef = self._significance = np.zeros((number, 0))
        self.best = self._current_best()

    def add(self) -> None:
        """Add the column with the largest correlation to each search, and fit."""
        near = self._near(self._close)
        near *= self._random_state.uniform(size=near.shape) < _PART
        residual = self._residual
        if self._fit_intercept:
            mass = np.maximum(near.sum(axis=1), TINY)
            means = np.einsum("ij,ij->i", near, residual) / mass
            residual = residual - means[:, None]
        scores = np.empty((len(near), self._Z.shape[1]))
        half = len(near) // 2
        parts = (slice(0, half), slice(half, None))
        for part, (table, squares) in zip(parts, self._tables, strict=True):
            size = np.maximum(near[part] @ squares, TINY)
            scores[part] = np.square((near[part] * residual[part]) @ table) / size
        np.put_along_axis(scores, self.columns, -1.0, axis=1)
        new = scores.argmax(axis=1)[:, None]
        self.columns = np.hstack([self.columns, new])
        self._fit()

    def remove(self) -> None:
        """Remove the least significant column of each search, and fit."""
        number, k = self.columns.shape
        stay = np.ones((number, k), dtype=bool)
        stay[np.arange(number), self._significance.argmin(axis=1)] = False
        self.columns = self.columns[stay].reshape(number, k - 1)
        self._fit()

    def exchange(self, number: int) -> None:
        """Leave out so many columns of the best plane, in all ways, and search on."""
        best, k = self.best, len(self.best.columns)
        if k < number:
            return
        out = np.array(list(combinations(range(k), number)), dtype=np.intp)
        stay = np.ones((len(out), k), dtype=bool)
        np.put_along_axis(stay, out, False, axis=1)
        parts = best.coef[:, None] * self._by_column[best.columns]
        columns = np.broadcast_to(best.columns, stay.shape)[stay]
        self.columns = np.tile(columns.reshape(len(out), k - number), (2, 1))
        self._residual = np.tile(best.residual + ~stay @ parts, (2, 1))
        self._scale = np.full(2 * len(out), best.scale)
        self._close = np.full(2 * len(out), _CLOSE[1])
        self._fit()
        self.add()

    def _fit(self) -> None:
        number, k = self.columns.shape
        n = len(self._y)
        q = k + int(self._fit_intercept)
        design = np.ones((number, q, n))
        design[:, :k] = self._by_column[self.columns]
        widths = np.maximum(self._close, _CLOSE_OF_FITS)
        for _ in range(_FITS):
            weighted = design * self._near(widths)[:, None]
            gram = weighted @ design.transpose(0, 2, 1)
            gram[:, np.arange(q), np.arange(q)] += _RIDGE * n
            inverse = np.linalg.inv(gram)
            coef = inverse @ (weighted @ self._y)[..., None]
            self._residual = self._y - np.matmul(coef.transpose(0, 2, 1), design)[:, 0]
            self._scale = self._scales(self._residual, self._scale)
        variance = np.diagonal(inverse, axis1=1, axis2=2)
        self._coef = coef[:, :k, 0]
        self._significance = (np.square(coef[..., 0]) / variance)[:, :k]
        current = self._current_best()
        if current.value < self.best.value:
            self.best = current

    def _current_best(self) -> Explained:
        i = int(np.argmin(self._scale))
        scale, columns = float(self._scale[i]), self.columns[i].copy()
        value = 2.0 * len(self._y) * np.log(scale) + self._per_column * len(columns)
        residual, coef = self._residual[i].copy(), self._coef[i].copy()
        return Explained(residual, scale, columns, coef, float(value))

    def _near(self, scales: Array) -> Array:
        """Weights of rows within so many scales, and zero for the others."""
        near = np.abs(self._residual) <= (scales * self._scale)[:, None]
        return near * self._weight

    def _scales(self, residual: Array, scale: Array) -> Array:
        """M-scales of rows of residuals, starting from the given ones."""
        squares, mass = np.square(residual), self._weight / self._weight.sum()
        for _ in range(_SCALE_STEPS):
            width = np.square(_BIWEIGHT * scale)[:, None]
            far = 1.0 - np.minimum(squares / width, 1.0)
            loss = 1.0 - (far * far * far) @ mass
            scale = np.maximum(scale * np.sqrt(2.0 * loss), self._floor)
        return scale


def wrap(values: Array, weight: Array, centred: bool) -> Array:
    """Columns with far values drawn to the middle, about their medians.

    Values up to `_CENTRAL` deviations stay, and those beyond `_FAR` become zero.
    """
    middle = weighted_median(values, weight) if centred else 0.0
    away = values - middle
    spread = weighted_median(np.abs(away), weight) / NORMAL_MEDIAN
    usual = np.sqrt(weight @ np.square(away) / weight.sum())
    spread = np.where(spread > LEAST_NOISE * usual, spread, usual)
    z = np.abs(away) / np.where(spread > 0.0, spread, 1.0)
    inside = np.clip((_FAR - z) / (_FAR - _CENTRAL), 0.0, 1.0)
    factor = np.where(z > _CENTRAL, inside * _CENTRAL / np.maximum(z, _CENTRAL), 1.0)
    wrapped: Array = middle + away * factor
    return wrapped
