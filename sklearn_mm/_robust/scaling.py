"""The user's units and the solver's.

Users have X, y, sample weights and coefficients in whatever units they like. The solver
works with a theta in standardised columns, with targets of median zero and spread one,
and with weights of at most one. `Scaling` is the one place that leads from either to
the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite

from sklearn_mm._robust.linear import LinearResidual
from sklearn_mm._robust.normal_equations import Frame
from sklearn_mm._robust.standardization import ColumnMoments
from sklearn_mm._rows.sources import LazyRows, MappedRows
from sklearn_mm._rows.statistics import weighted_median
from sklearn_mm._rows.table import Rows
from sklearn_mm._rows.validation import check_size
from sklearn_mm._solver.roles import Array

_LARGEST_FLOAT = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Scaling:
    """How columns, targets and weights were brought to the solver's units."""

    frame: Frame  # columns of X
    centre: Array  # of the targets, one per output
    spread: Array  # of the targets, one per output
    weight: float  # the largest sample weight
    flat: bool  # y had one dimension
    dtype: Any  # of X, and so of the coefficients

    @classmethod
    def of(
        cls,
        rows: Rows,
        y: Array,
        sample_weight: Array,
        unit_weight: float,
        fit_intercept: bool,
        estimator_name: str,
    ) -> Scaling:
        """Scaling of data, which are checked on the way: X must be finite.

        A separate check would be one more pass over X.
        """
        moments = ColumnMoments.of(rows, sample_weight, fit_intercept)
        X = rows.X
        if not moments.finite and not isinstance(X, LazyRows):
            assert_all_finite(X, estimator_name=estimator_name, input_name="X")
        moments.check_sizes()
        Y = y.reshape(len(y), -1).astype(np.float64, copy=False)
        centre = np.zeros(Y.shape[1])
        if fit_intercept:
            centre = weighted_median(Y, sample_weight)
        distance = np.abs(Y - centre)
        # A median of all of them, since outliers may be of any size and in any places;
        # the largest if most are equal.
        spread = weighted_median(distance, sample_weight)
        largest = distance[sample_weight > 0].max(axis=0)
        spread = np.where(spread > 0, spread, np.where(largest > 0, largest, 1.0))
        for value in spread:
            check_size("The spread of y", value)
        frame = moments.frame(X.dtype)
        return cls(frame, centre, spread, unit_weight, y.ndim == 1, X.dtype)

    def model(
        self, rows: Rows, y: Array, alpha: float = 0.0, l1: float = 0.0
    ) -> LinearResidual:
        """The linear model of these data in the solver's units.

        The penalties, L2 and L1, are in the user's.
        """
        penalty = float(alpha) / self.weight
        lasso = tuple(l1 / self.weight / self.spread) if l1 else ()
        return LinearResidual(rows, self.targets(y), self.frame, penalty, lasso)

    def targets(self, y: Array) -> MappedRows:
        """Targets of shape (n_samples, n_outputs), brought to unit size when read."""
        return MappedRows(y, self._unit, len(self.centre), np.dtype(np.float64))

    def _unit(self, y: Array) -> Array:
        unit: Array = y.reshape(-1, len(self.centre)) - self.centre
        unit /= self.spread
        return unit

    def rescaled(self, scale: Array) -> Scaling:
        """The same with targets in units of their noise, given in the present ones."""
        return replace(self, spread=self.spread * scale)

    @property
    def objective(self) -> float:
        """One in the solver's objective, in the user's units; a finite number.

        Several outputs have several units. What they share is a scale of one.
        """
        square = float(self.spread[0]) ** 2 if len(self.spread) == 1 else 1.0
        return min(self.weight * square, _LARGEST_FLOAT)

    def theta(self, coef: Array, intercept: Array) -> Array:
        """Theta of the user's coefficients, of shape (n_outputs, n_features)."""
        coef = np.asarray(coef, dtype=np.float64).T / self.spread
        return self.frame.pack(coef, (intercept - self.centre) / self.spread)

    def plane(self, theta: Array) -> dict[str, Any]:
        """`coef_` and `intercept_` of a theta, in the precision of the data."""
        coef, intercept = self.frame.unpack(theta)
        with np.errstate(over="ignore", invalid="ignore"):
            coef = (coef * self.spread).T.astype(self.dtype)
            intercept = (intercept * self.spread + self.centre).astype(self.dtype)
        if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
            raise ValueError(
                f"The coefficients are too large for {np.dtype(self.dtype)}. Bring X "
                "and y to comparable units, e.g. with StandardScaler."
            )
        if self.flat:
            return {"coef_": coef[0], "intercept_": intercept[0]}
        return {"coef_": coef, "intercept_": intercept}
