r"""A start for sparse models with few rows for each column, or fewer rows than columns.

Residuals of a fit say little where there are so many columns, so rows are judged by
what *other* rows predict for them: folds of the rows that are kept are left out in
turn, and a lasso on the rest predicts them, or least squares on the columns that it
has found, whichever penalty has the smallest errors. The 60 % of the rows that are
predicted best are kept next, and so on. As long as little is predicted, these are the
rows whose targets lie in the middle, which tell the least about the coefficients. So
after a few rounds all rows within two scales of the errors are kept. That begins with

1. the rows nearest to a plane of least absolute residuals with a lasso's penalty, which
   is convex: for columns as they are, and for columns of which far values have been
   drawn to the middle (bad leverage points);
2. the rows that have the fewest far values in X.

The choice is the one that predicts half of the rows best. From there on, all rows
within three scales of the errors are kept. The scale of the noise is that of the kept
rows' residuals about the user's own elastic net, for which every coefficient that is
not zero takes one degree of freedom; if that leaves less than half of them, it is the
scale of the predictions' errors.

Sparse least trimmed squares (A. Alfons, C. Croux and S. Gelper, Annals of Applied
Statistics 7, 2013) has the same aim, with residuals in place of predictions and random
subsets of rows to begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from sklearn_mm._robust.elastic_net import path, weighted_elastic_net
from sklearn_mm._robust.linear import Frame
from sklearn_mm._robust.start.population import refined_scale
from sklearn_mm._robust.start.sample import DecidingRows
from sklearn_mm._robust.start.search import Choice, Verdict
from sklearn_mm._rows.statistics import weighted_median
from sklearn_mm._solver.roles import Array

# The penalty of absolute residuals, as a part of what no noise exceeds, the steps, and
# the part of their spread below which residuals are squared.
_PENALTY, _STEPS, _SMOOTH = 0.6, 15, 0.1
# Penalties that predict: so many, each a part of the one before, from the one on for
# which all coefficients are zero.
_GRID, _PART = 7, 0.65
# Columns, as a part of the rows, up to which least squares takes away the shrinkage.
_UNSHRUNK = 0.25
# Folds, and the part of the errors that judges a penalty.
_FOLDS, _JUDGED = 5, 0.8
# Rounds with a part of the rows, then with all that are within so many scales, and
# last, for the best of these, within a few more.
_FIRST_ROUNDS, _MOST = 3, 0.6
_ROUNDS, _CLOSE = 9, 2.0
_LAST_ROUNDS, _KEPT = 4, 3.0
# Values beyond the first are drawn to the middle, those beyond the second are put there
# (in median absolute deviations, as standard deviations).
_CENTRAL, _FAR = 1.5, 4.0
# Noise below this part of the largest target is rounding.
_LEAST_NOISE, _TINY = 1e-9, np.finfo(float).tiny ** 0.25
# Duality gap of these nets.
_GAP = 1e-4
# Median of the absolute value of a normal variable.
_NORMAL_MEDIAN = 0.6744897501960817

Plane = tuple[Array, float]  # coefficients and intercept


@dataclass(frozen=True)
class SparseRows:
    """Rows of one output."""

    Z: Array  # standardised columns
    y: Array
    weight: Array  # sums to the number of rows
    fit_intercept: bool

    def absolute(self, Z: Array) -> Plane:
        """Least absolute residuals on all rows, with a lasso's penalty.

        It is convex, and outliers in y do not matter much whatever their size. The
        penalty needs no scale: signs of residuals have none.
        """
        coef, middle = np.zeros(Z.shape[1]), 0.0
        if self.fit_intercept:
            middle = float(weighted_median(self.y[:, None], self.weight)[0])
        mass = float(self.weight.sum())
        noise = np.sqrt(2.0 * mass * np.log(max(Z.shape[1], 2)))
        penalty = _PENALTY * float(noise)
        for _ in range(_STEPS):
            used = np.flatnonzero(coef)
            residual = self.y - Z[:, used] @ coef[used] - middle
            least = _SMOOTH * self.spread(residual)
            weight = self.weight / np.maximum(np.abs(residual), least)
            options = (penalty, 0.0, coef, self.fit_intercept, _GAP)
            coef, middle = weighted_elastic_net(Z, self.y, weight, *options)
        return coef, middle

    def errors(self, part: Array, penalties: Array) -> Array:
        """Errors of all rows, (n_penalties, n), about lassos on a part of them.

        The penalties are those of the mean over rows.
        """
        weight = part * self.weight
        some = weight > 0.0
        Z, y, weight = self.Z[some], self.y[some], weight[some] / weight.sum()
        centre, middle = np.zeros(Z.shape[1]), 0.0
        if self.fit_intercept:
            centre, middle = weight @ Z, float(weight @ y)
        root = np.sqrt(weight)
        rows = np.asfortranarray((Z - centre) * root[:, None])
        target = (y - middle) * root
        coefs = path(rows, target, 1.0, penalties / len(y), None, _GAP)
        coefs = np.hstack([coefs, _unshrunk(rows, target, coefs)])
        used = np.flatnonzero(coefs.any(axis=1))
        fitted = (self.Z[:, used] - centre[used]) @ coefs[used] + middle
        errors: Array = self.y - fitted.T
        return errors

    def largest_penalty(self, part: Array) -> float:
        """The penalty from which on all coefficients are zero."""
        weight = part * self.weight
        weight = weight / weight.sum()
        y = self.y - (weight @ self.y if self.fit_intercept else 0.0)
        away = self.Z - (weight @ self.Z if self.fit_intercept else 0.0)
        return float(np.abs((weight * y) @ away).max(initial=0.0))

    def residuals(self, plane: Plane) -> Array:
        """Residuals of all rows."""
        coef, intercept = plane
        used = np.flatnonzero(coef)
        fitted: Array = self.Z[:, used] @ coef[used]
        return self.y - fitted - intercept

    def spread(self, residual: Array) -> float:
        """Noise of which half of the residuals are as small as these, not zero."""
        middle = weighted_median(np.abs(residual)[:, None], self.weight)[0]
        largest = float(np.abs(self.y).max())
        return max(float(middle) / _NORMAL_MEDIAN, _LEAST_NOISE * largest, _TINY)

    def best(self, residual: Array, part: float) -> Array:
        """Mask of the rows with the smallest residuals, a part of them by weight."""
        order = np.argsort(np.abs(residual), kind="stable")
        before = np.cumsum(self.weight[order]) - self.weight[order]
        mask = np.zeros(len(order))
        mask[order[before < part * (len(order) + 1)]] = 1.0
        return mask


def choose_sparse(
    rows: DecidingRows,
    l1: Array,
    l2: float,
    frame: Frame,
    scale: Array | None,
    random_state: np.random.RandomState,
) -> Choice:
    """Choose a plane for each output, and the scales unless they are known.

    Parameters
    ----------
    rows : DecidingRows
        The rows that decide.
    l1, l2 : ndarray of shape (n_outputs,), float
        Penalties of coefficients in the units of X, for the sum over these rows.
    frame : Frame
        How columns were standardised.
    scale : ndarray of shape (n_outputs,) or None
        Known scales.
    random_state : RandomState
        Source of random subsets.
    """
    Z = rows.X.toarray() if scipy.sparse.issparse(rows.X) else rows.X
    X, d = Z * frame.scale, rows.Y.shape[1]
    theta = np.empty((frame.n_parameters, d))
    widths, shares = np.empty((2, d))
    for k in range(d):
        one = SparseRows(Z, rows.Y[:, k], rows.weight, frame.fit_intercept)
        keep, predicted = good_rows(one, random_state)
        weight = keep * rows.weight
        mass = float(weight.sum())
        share = mass / len(weight)
        coef, intercept = weighted_elastic_net(
            X,
            one.y,
            weight,
            share * l1[k],
            share * l2,
            np.zeros(X.shape[1]),
            frame.fit_intercept,
        )
        residual = one.y - X @ coef - intercept
        freedom = mass - np.count_nonzero(coef) - int(frame.fit_intercept)
        widths[k], shares[k] = predicted, share
        if freedom >= 0.5 * mass:
            widths[k] = np.sqrt(weight @ np.square(residual) / freedom)
        theta[: X.shape[1], k] = coef * frame.scale
        theta[X.shape[1] :, k] = intercept
    share = float(shares.min())
    verdict = Verdict.MINORITY if share < 0.5 else Verdict.SOUND
    chosen = widths if scale is None else scale
    return Choice(theta, chosen, share, np.eye(d), chosen, verdict)


def good_rows(
    rows: SparseRows, random_state: np.random.RandomState
) -> tuple[Array, float]:
    """Mask of the rows that the others predict, and the scale of these predictions."""
    found = []
    for error in _first_errors(rows):
        for i in range(_FIRST_ROUNDS + _ROUNDS):
            if i < _FIRST_ROUNDS:
                keep = rows.best(error, _MOST if i else 0.5)
            else:
                keep = _near(rows, error, _CLOSE)[1]
            error = _predicted_errors(rows, keep, random_state)
            found.append((rows.spread(error), error))
    error = min(found, key=lambda each: each[0])[1]
    for _ in range(_LAST_ROUNDS):
        width, keep = _near(rows, error, _KEPT)
        error = _predicted_errors(rows, keep, random_state)
    return _near(rows, error, _KEPT)[1], width


def _near(rows: SparseRows, error: Array, scales: float) -> tuple[float, Array]:
    """Scale of the population about zero, and the rows in it, at least half."""
    first, total = np.array([rows.spread(error)]), float(rows.weight.sum())

    def sums(function: Callable[[Array, Array], Array]) -> Array:
        return function(error[:, None], rows.weight)

    width = float(refined_scale(sums, first, 0.3 * first, total)[0])
    near = (np.abs(error) <= scales * width).astype(float)
    return width, np.maximum(near, rows.best(error, 0.5))


def _first_errors(rows: SparseRows) -> Iterator[Array]:
    """Several orders of the rows to begin with."""
    wrapped = wrap(rows.Z, rows.weight, rows.fit_intercept)
    yield np.abs(wrapped - rows.Z).sum(axis=1)
    yield rows.residuals(rows.absolute(rows.Z))
    yield rows.residuals(rows.absolute(wrapped))


def _predicted_errors(
    rows: SparseRows, keep: Array, random_state: np.random.RandomState
) -> Array:
    """Errors of predictions by kept rows, with folds of these left out in turn."""
    largest = rows.largest_penalty(keep)
    penalties = max(largest, _TINY) * _PART ** np.arange(_GRID)
    errors = rows.errors(keep, penalties)
    kept = random_state.permutation(np.flatnonzero(keep))
    for fold in np.array_split(kept, min(_FOLDS, len(kept) - 1)):
        part = keep.copy()
        part[fold] = 0.0
        errors[:, fold] = rows.errors(part, penalties)[:, fold]
    squares = np.sort(np.square(errors[:, kept]), axis=1)
    judged = squares[:, : max(1, int(_JUDGED * len(kept)))].sum(axis=1)
    best: Array = errors[np.argmin(judged)]
    return best


def _unshrunk(rows: Array, target: Array, coefs: Array) -> Array:
    """Least squares on the columns that each lasso has found.

    Lassos that use more columns than `_UNSHRUNK` of the rows stay as they are.
    """
    found = coefs.copy()
    for k in range(coefs.shape[1]):
        used = np.flatnonzero(coefs[:, k])
        if len(used) <= _UNSHRUNK * len(rows):
            found[used, k] = np.linalg.lstsq(rows[:, used], target, rcond=None)[0]
    return found


def wrap(values: Array, weight: Array, centred: bool) -> Array:
    """Columns with far values drawn to the middle, about their medians.

    Values up to `_CENTRAL` deviations stay, and those beyond `_FAR` become zero.
    """
    middle = weighted_median(values, weight) if centred else 0.0
    away = values - middle
    spread = weighted_median(np.abs(away), weight) / _NORMAL_MEDIAN
    usual = np.sqrt(weight @ np.square(away) / weight.sum())
    spread = np.where(spread > _LEAST_NOISE * usual, spread, usual)
    z = np.abs(away) / np.where(spread > 0.0, spread, 1.0)
    inside = np.clip((_FAR - z) / (_FAR - _CENTRAL), 0.0, 1.0)
    factor = np.where(z > _CENTRAL, inside * _CENTRAL / np.maximum(z, _CENTRAL), 1.0)
    wrapped: Array = middle + away * factor
    return wrapped
