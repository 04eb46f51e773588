"""Data of unit size, so that squares neither overflow nor vanish."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._robust.linear import LinearResidual, linear_chunks
from sklearn_mm._rows.sources import LazyRows, MappedRows
from sklearn_mm._rows.workers import map_rows
from sklearn_mm._solver.roles import Array

# Targets are brought this close, in spreads, so that their squares can be summed. They
# are outliers as much there.
_FARTHEST = 1e50
# Columns larger than this, or smaller than its inverse, are brought to size one.
_LARGE = 1e100
# A penalty whose inverse is this holds its coefficient at zero.
_TINY_PENALTY = 1e-200


def weighted_median(values: Array, weight: Array) -> Array:
    """Weighted median of each column; a weight of k is k copies of the row."""
    if np.all(weight == weight[0]):
        return np.median(values, axis=0)
    order = np.argsort(values, axis=0)
    mass = np.cumsum(weight[order], axis=0)
    half, rounding = mass[-1] / 2.0, 1e-12 * mass[-1]
    # Between the lower and the upper median, which differ if the weight splits evenly.
    lower = np.argmax(mass >= half - rounding, axis=0)
    upper = np.argmax(mass > half + rounding, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    columns = np.arange(values.shape[1])
    # Halved before they are added: the sum of two large values may overflow.
    return ordered[lower, columns] / 2.0 + ordered[upper, columns] / 2.0


def _column_units(
    X: Any, spread: Array, chunk_size: int | None, n_jobs: int | None
) -> Array | None:
    """Powers of two that bring columns of extreme size to size one, or None.

    Squares of numbers beyond 1e150 overflow and those below 1e-150 vanish; columns
    within wide limits of one are left as they are, which is the rule.
    """
    # A spread of one stands for a constant column, which may have been made of squares
    # that vanished.
    usual = (spread > 1.0 / _LARGE) & (spread < _LARGE) & (spread != 1.0)
    if usual.all():
        return None
    suspects = np.flatnonzero(~usual)
    chunks = linear_chunks(X, chunk_size)
    sizes = map_rows(_largest_entries, X, chunks, n_jobs, lambda chunk: (suspects,))
    largest = np.ones(X.shape[1])
    largest[suspects] = functools.reduce(np.maximum, sizes)
    odd = (largest > _LARGE) | ((largest > 0) & (largest < 1.0 / _LARGE))
    if not odd.any():
        return None
    return np.where(odd, np.exp2(np.floor(np.log2(np.where(odd, largest, 1.0)))), 1.0)


def _largest_entries(X: Any, columns: Array) -> Array:
    """Largest absolute value of some columns."""
    X = X[:, columns]
    return np.maximum(_extreme(X.max(axis=0)), -_extreme(X.min(axis=0)))


def _extreme(values: Any) -> Array:
    """Row of column extremes as an array, of dense and sparse matrices alike."""
    if scipy.sparse.issparse(values):
        values = values.toarray()
    return np.asarray(values, dtype=np.float64).ravel()


def _scale_columns(X: Any, units: Array) -> Any:
    """X with columns divided by their units: a copy, unless rows are read on demand."""
    if isinstance(X, LazyRows):
        return X.divided(units)
    if scipy.sparse.issparse(X):
        return (X.astype(np.float64) @ scipy.sparse.diags_array(1.0 / units)).tocsr()
    return X / units


@dataclass(frozen=True)
class DataUnits:
    """Centre and size of the targets, and the size of columns far from one."""

    centre: Array  # one per output
    scale: float
    flat: bool  # y had one dimension
    columns: Array | None = None  # where some are extreme

    @classmethod
    def of(
        cls,
        X: Any,
        y: Array,
        weight: Array,
        centred: bool,
        spread: Array,
        chunk_size: int | None = None,
        n_jobs: int | None = None,
    ) -> DataUnits:
        """Units in which y has median zero, unless not `centred`, and spread one.

        The columns' spread tells where to look for extremes.
        """
        Y = y.reshape(len(y), -1).astype(np.float64, copy=False)
        centre = weighted_median(Y, weight) if centred else np.zeros(Y.shape[1])
        distance = np.abs(Y - centre)
        # A median of all of them, since outliers may be of any size and in any places;
        # the largest if most are equal.
        scale = float(np.max(weighted_median(distance, weight)))
        if not scale > 0:
            scale = float(np.max(distance[weight > 0])) or 1.0
        columns = _column_units(X, spread, chunk_size, n_jobs)
        return cls(centre, scale, y.ndim == 1, columns)

    @property
    def square(self) -> float:
        """One in the solver's objective, in the units of y (a finite number)."""
        with np.errstate(over="ignore", under="ignore"):
            return min(float(np.square(self.scale)), float(np.finfo(float).max))

    def to_unit_columns(self, X: Any) -> Any:
        """X itself, or a copy with its extreme columns brought to size one."""
        return X if self.columns is None else _scale_columns(X, self.columns)

    def penalty(self, alpha: float) -> float | Array:
        """Penalty of coefficients in these units."""
        if self.columns is None:
            return min(alpha, 1.0 / _TINY_PENALTY)
        with np.errstate(over="ignore", under="ignore"):
            return np.minimum(alpha / self.columns / self.columns, 1.0 / _TINY_PENALTY)

    def to_unit(self, y: Array) -> MappedRows:
        """Targets in these units, of shape (n_samples, n_outputs)."""

        def to_unit(y: Array) -> Array:
            unit = y.reshape(-1, len(self.centre)) - self.centre
            unit /= self.scale
            return np.clip(unit, -_FARTHEST, _FARTHEST, out=unit)

        return MappedRows(y, to_unit, len(self.centre), np.dtype(np.float64))

    def pack(self, model: LinearResidual, coef: Array, intercept: Array) -> Array:
        """Theta of coefficients (n_outputs, n_features) in the user's units."""
        coef = np.asarray(coef, dtype=np.float64).T / self.scale
        if self.columns is not None:
            coef = coef * self.columns[:, None]
        return model.pack(coef, (intercept - self.centre) / self.scale)

    def fitted(self, model: LinearResidual, theta: Array, dtype: Any) -> dict[str, Any]:
        """Fitted attributes of a theta, in the units and the precision of the data."""
        coef, intercept = model.unpack(theta)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.columns is not None:
                coef = coef / self.columns[:, None]
            coef = (coef * self.scale).T.astype(dtype)
            intercept = (intercept * self.scale + self.centre).astype(dtype)
        if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
            raise ValueError(
                f"The coefficients are too large for {np.dtype(dtype)}. Bring X and y "
                "to comparable units, e.g. with StandardScaler."
            )
        if self.flat:
            return {"coef_": coef[0], "intercept_": intercept[0]}
        return {"coef_": coef, "intercept_": intercept}
