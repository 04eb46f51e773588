r"""A start for sparse models with few rows for each column, or fewer rows than columns.

Which rows are good must not depend on the user's penalty, which is often one of a grid:
a small one lets a lasso fit all outliers, too. So rows are judged by a plane on the few
columns that explain most rows (see `columns`). Least squares on these columns and the
rows within three scales is repeated a few times, without the columns that these rows do
not need. The user's own elastic net of the rows that are kept is the start.

The scale of the noise is that of the kept rows' residuals about this elastic net, for
which every coefficient that is not zero takes one degree of freedom; if that leaves
less than half of them, it is the scale about the plane on few columns.

Sparse least trimmed squares (A. Alfons, C. Croux and S. Gelper, Annals of Applied
Statistics 7, 2013) has the same aim, with lassos of one penalty from random subsets of
three rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from sklearn_mm._robust.elastic_net import weighted_elastic_net
from sklearn_mm._robust.linear import Frame
from sklearn_mm._robust.start.columns import LEAST_NOISE, TINY, explain
from sklearn_mm._robust.start.population import refined_scale
from sklearn_mm._robust.start.sample import DecidingRows
from sklearn_mm._robust.start.search import Choice, Verdict
from sklearn_mm._robust.start.whitened import NORMAL_MEDIAN
from sklearn_mm._rows.statistics import weighted_median
from sklearn_mm._solver.roles import Array

# Rounds of least squares, and scales within which rows are kept.
_ROUNDS, _KEPT = 4, 3.0
# Factor of the extended BIC's penalty of a column. As columns are chosen jointly among
# many, a smaller one accepts so many that the scale is half of the noise's.
_PENALTY = 2.0
# Smallest scale of the population relative to the scale that half of the rows have.
_LEAST_REFINED = 0.3


@dataclass(frozen=True)
class SparseRows:
    """Rows of one output."""

    Z: Array  # standardised columns
    y: Array
    weight: Array  # sums to the number of rows
    fit_intercept: bool

    def good(self, random_state: np.random.RandomState) -> tuple[Array, float]:
        """Mask of the rows that a plane on few columns explains, and their scale."""
        found = explain(self.Z, self.y, self.weight, self.fit_intercept, random_state)
        columns, residual = found.columns, found.residual
        width, keep = self._near(residual, len(columns))
        columns = self._needed(columns, keep)
        for _ in range(_ROUNDS):
            residual, _ = self._least_squares(columns, keep)
            width, keep = self._near(residual, len(columns))
        return keep, width

    def _needed(self, columns: Array, keep: Array) -> Array:
        """Columns without those that are not needed to explain the kept rows.

        The least significant ones are removed in turn, and the best number is chosen.
        """
        n, p = self.Z.shape
        weight = keep * self.weight
        per_column = _PENALTY * (np.log(n) + 2.0 * np.log(p))
        floor = np.square(LEAST_NOISE * np.abs(self.y).max()) + TINY
        found = []
        while True:
            residual, significance = self._least_squares(columns, keep)
            left = weight @ np.square(residual) / weight.sum()
            value = weight.sum() * np.log(left + floor) + per_column * len(columns)
            found.append((float(value), columns))
            if not len(columns):
                break
            columns = np.delete(columns, significance.argmin())
        return min(found, key=lambda each: each[0])[1]

    def _least_squares(self, columns: Array, keep: Array) -> tuple[Array, Array]:
        """Residuals of all rows, and the columns' significance, up to a factor."""
        k, root = len(columns), np.sqrt(keep * self.weight)
        design = np.ones((len(self.y), k + int(self.fit_intercept)))
        design[:, :k] = self.Z[:, columns]
        inverse = np.linalg.pinv(design * root[:, None])
        coef = inverse @ (self.y * root)
        variance = np.maximum(np.square(inverse).sum(axis=1), TINY)
        return self.y - design @ coef, (np.square(coef) / variance)[:k]

    def _near(self, residual: Array, n_parameters: int) -> tuple[float, Array]:
        """Scale of the population about zero, and the rows in it, at least half."""
        total = float(self.weight.sum())
        first = np.array([self._spread(residual)])

        def sums(function: Callable[[Array, Array], Array]) -> Array:
            return function(residual[:, None], self.weight)

        width = float(refined_scale(sums, first, _LEAST_REFINED * first, total)[0])
        # Residuals of a fit are smaller than the noise.
        kept = float(self.weight @ (np.abs(residual) <= _KEPT * width))
        n_parameters += int(self.fit_intercept)
        width *= np.sqrt(kept / max(kept - n_parameters, 0.5 * kept))
        near = (np.abs(residual) <= _KEPT * width).astype(float)
        return width, np.maximum(near, self._best_half(residual))

    def _spread(self, residual: Array) -> float:
        """Noise of which half of the residuals are as small as these, not zero."""
        middle = weighted_median(np.abs(residual)[:, None], self.weight)[0]
        largest = float(np.abs(self.y).max())
        return max(float(middle) / NORMAL_MEDIAN, LEAST_NOISE * largest, TINY)

    def _best_half(self, residual: Array) -> Array:
        """Mask of the rows with the smallest residuals, a majority by weight."""
        order = np.argsort(np.abs(residual), kind="stable")
        before = np.cumsum(self.weight[order]) - self.weight[order]
        mask = np.zeros(len(order))
        mask[order[before < 0.5 * (len(order) + 1)]] = 1.0
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
        keep, width = one.good(random_state)
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
        widths[k], shares[k] = width, share
        if freedom >= 0.5 * mass:
            widths[k] = max(width, np.sqrt(weight @ np.square(residual) / freedom))
        theta[: X.shape[1], k] = coef * frame.scale
        theta[X.shape[1] :, k] = intercept
    share = float(shares.min())
    verdict = Verdict.MINORITY if share < 0.5 else Verdict.SOUND
    chosen = widths if scale is None else scale
    return Choice(theta, chosen, share, np.eye(d), chosen, verdict)
