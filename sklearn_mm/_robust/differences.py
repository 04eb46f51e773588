"""Jacobians by finite differences.

Parameters that do not share a residual are varied at the same time: columns are
assigned to groups, and one evaluation (two for central differences) is sufficient for a
group. Steps never leave the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._robust.box import Box
from sklearn_mm._solver.roles import Array, Indices

# Relative steps are powers of the precision of the residuals, which balance truncation
# and rounding for one-sided and central differences. A complex step has no rounding.
_POWER = {"2-point": 1 / 2, "3-point": 1 / 3, "cs": 1}

# Relative errors of derivatives are a few times these powers of the precision.
ERROR_POWER = {"2-point": 1 / 2, "3-point": 2 / 3, "cs": 1}

Workers = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Differences:
    """A scheme of finite differences.

    Parameters
    ----------
    scheme : {"2-point", "3-point", "cs"}
        One-sided, central, or by a complex step.
    relative_step : float, ndarray or None
        Steps relative to the parameters. If None, they are chosen automatically.
    box : Box or None
        Where the function may be evaluated.
    """

    scheme: str
    relative_step: Any = None
    box: Box | None = None

    def steps(self, theta: Array, precision: float) -> tuple[Array, Any]:
        """Step of each parameter, and whether its differences are one-sided."""
        sign = np.where(theta >= 0.0, 1.0, -1.0)
        relative = precision ** _POWER[self.scheme]
        h = sign * relative * np.maximum(1.0, np.abs(theta))
        if self.relative_step is not None:
            wanted = np.broadcast_to(self.relative_step, theta.shape) * theta
            # A parameter of zero has no relative step.
            h = np.where((theta + wanted) - theta != 0.0, wanted, h)
        if self.scheme == "cs":
            return h, np.ones(len(h), dtype=bool)
        one_sided = np.full(len(h), self.scheme == "2-point")
        if self.box is not None:
            h, one_sided = _kept_inside(h, one_sided, *self.box.reach(theta))
        # Exactly the difference of two numbers.
        return (theta + h) - theta, one_sided

    def changes(
        self,
        evaluate: Callable[[Iterable[Any]], list[Array]],
        move: Callable[[Array, Array], Array],
        theta: Array,
        residual: Array,
        groups: Indices,
        precision: float,
    ) -> Changes:
        """Vary the parameters of one group after the other.

        Parameters
        ----------
        evaluate : callable
            Residuals, flat, at several points.
        move : callable
            Theta moved by a delta.
        theta, residual : ndarray
            The point and its residuals, flat.
        groups : ndarray of shape (n_parameters,)
            Group of each parameter; negative for those that stay.
        precision : float
            Relative rounding error of the residuals.
        """
        h, one_sided = self.steps(theta, precision)
        n_groups = int(groups.max()) + 1
        deltas = [np.where(groups == g, h, 0.0) for g in range(n_groups)]
        if self.scheme == "cs":
            values = evaluate(theta + 1j * delta for delta in deltas)
            change = np.array([value.imag for value in values])
            return Changes(change, None, h, one_sided, groups)
        second = np.where(one_sided, 2.0, -1.0)
        points = [move(theta, delta) for delta in deltas]
        if self.scheme == "3-point":
            points += [move(theta, second * delta) for delta in deltas]
        change = np.array(evaluate(points)) - residual
        if self.scheme == "2-point":
            return Changes(change, None, h, one_sided, groups)
        return Changes(change[:n_groups], change[n_groups:], h, one_sided, groups)


@dataclass(frozen=True)
class Changes:
    """How residuals change when groups of parameters are moved."""

    first: Array  # (n_groups, n_residuals), by a step
    second: Array | None  # by two steps, or by one in the other direction
    h: Array
    one_sided: Any
    groups: Indices

    def slopes(self, rows: Any, columns: Any) -> Array:
        """Entries of the Jacobian; `rows` and `columns` are broadcast."""
        group, h = self.groups[columns], self.h[columns]
        slopes = self.first[group, rows]
        if self.second is None:
            slopes /= h
        else:
            second = self.second[group, rows]
            one_sided = self.one_sided[columns]
            slopes = np.where(one_sided, 4.0 * slopes - second, slopes - second)
            slopes /= 2.0 * h
        return np.where(group >= 0, slopes, 0.0)


def _kept_inside(h: Array, one_sided: Any, low: Array, high: Array) -> tuple[Any, Any]:
    """Steps that stay between `low` and `high`, central ones where there is room."""
    size = np.abs(h)
    central = ~one_sided & (size <= high) & (size <= -low)
    up = high >= -low
    # One-sided differences of second order take two steps.
    room = np.where(up, high, -low) / np.where(one_sided, 1.0, 2.0)
    turned = np.where(up, 1.0, -1.0) * np.minimum(size, room)
    fits = one_sided & (h >= low) & (h <= high)
    return np.where(central | fits, h, turned), ~central


def independent_columns(pattern: Any) -> Indices:
    """Groups of columns of a sparse pattern, no two of which share a row.

    Columns with many entries are placed first, each in the first group that has room.
    """
    pattern = scipy.sparse.csc_array(pattern)
    n_rows, n_columns = pattern.shape
    pattern.sum_duplicates()
    pattern.eliminate_zeros()
    indptr, indices = pattern.indptr, pattern.indices
    groups = np.full(n_columns, -1, dtype=np.intp)
    left = np.argsort(-np.diff(indptr), kind="stable").tolist()
    group = 0
    while left:
        taken = np.zeros(n_rows, dtype=bool)
        rest = []
        for k in left:
            rows = indices[indptr[k] : indptr[k + 1]]
            if taken[rows].any():
                rest.append(k)
            else:
                taken[rows] = True
                groups[k] = group
        left, group = rest, group + 1
    return groups
