r"""Residuals given by a function, their Jacobian, and weighted normal equations.

Residuals are grouped into vectors r_i of `residual_dim` entries that share one weight.
All systems of this module have the form ::

    H = sum_i J_i' M_i J_i,    g = sum_i s_i J_i' r_i,    M_i = w_i (I - c_i r_i r_i')

With c = 0 and s = w, this is weighted least squares. The general form comes from
eliminating a latent variable per residual (`lifted.py`). M_i has the square root
sqrt(w_i) (I - b_i r_i r_i'), and r_i is one of its eigenvectors, so that solvers only
deal with ordinary least-squares problems: J multiplied by that root, and r by a scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator

from sklearn_mm._robust.block_structure import BlockStructure
from sklearn_mm._robust.box import Box, BoxSystem
from sklearn_mm._robust.differences import (
    ERROR_POWER,
    Differences,
    Workers,
    independent_columns,
)
from sklearn_mm._robust.returned import DOUBLE, Returned, finite, precision
from sklearn_mm._robust.schur import SchurPlan, SchurSystem
from sklearn_mm._robust.systems import make_system, weighted_rows, without_columns
from sklearn_mm._solver.roles import Array, Indices, LargestColumns, NormalSystem

_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class CallablePoint:
    """A theta, the residuals there, and their Jacobian if it has been computed.

    Only proposals, and points that were not left by a step, hold a Jacobian: there is
    one at a time, which matters for a million residuals.
    """

    theta: Array
    residual: Array  # (n, residual_dim)
    jacobian: Any = None  # a matrix, or two arrays of blocks if there is a structure

    penalty: ClassVar[float] = 0.0


@dataclass(frozen=True)
class WithArguments:
    """A function with additional arguments. Unlike a lambda, it can be pickled."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, x: Array) -> Any:
        return self.function(x, *self.args, **self.kwargs)


class CallableResidual:
    """Residual vectors r_i(theta) given by a function of the user.

    Parameters
    ----------
    fun : callable
        Maps theta to a flat array of residuals, which is validated.
    jac : callable or {"2-point", "3-point", "cs"}
        Maps theta to the Jacobian in the coordinates of `retract`'s second argument.
    residual_dim : int
        Number of entries of a residual vector.
    structure : BlockStructure or None
        Two groups of parameters, if the problem has them.
    retract : callable or None
        Moves theta; addition if None.
    box : Box or None
        Bounds of the parameters.
    fixed : ndarray of bool or None
        Parameters that are not moved. Their columns of the Jacobian are zero.
    unit : ndarray or None
        Characteristic size of each parameter, which scales the damping. If None, it is
        computed from the Jacobian.
    relative_step, sparsity, workers
        Of finite differences: relative steps, the pattern of the Jacobian, and a
        function like `map` that evaluates `fun` at several points.
    needs_columns : bool
        Whether the columns of the Jacobian must be known, not only its products.

    Attributes
    ----------
    n_fun, n_jac : int
        Number of residuals and Jacobians that were computed. Evaluations for finite
        differences do not count.
    size : int or None
        Number of residuals, known from the first evaluation on.
    precision : float
        Relative rounding error of the residuals, known from the first evaluation on.
    groups : ndarray or None
        Group of each parameter in finite differences, known from the first Jacobian on.
    """

    def __init__(
        self,
        fun: Callable[[Array], Any],
        jac: Any,
        residual_dim: int = 1,
        structure: BlockStructure | None = None,
        retract: Callable[[Array, Array], Any] | None = None,
        *,
        box: Box | None = None,
        fixed: Any = None,
        unit: Array | None = None,
        relative_step: Any = None,
        sparsity: Any = None,
        workers: Workers = map,
        needs_columns: bool = False,
    ) -> None:
        self._fun, self._jac = fun, jac
        self.residual_dim = residual_dim
        self.structure = structure
        self._plan = None if structure is None else SchurPlan(structure)
        self._retract = retract
        self.box, self.fixed, self._unit = box, fixed, unit
        self.sparsity, self._workers = sparsity, workers
        if not callable(jac):
            self._differences = Differences(jac, relative_step, box)
        self._returned = Returned(
            residual_dim, structure, retract is None, fixed, needs_columns
        )
        self.n_fun = self.n_jac = 0
        self.size: int | None = None
        self.precision = DOUBLE
        self.groups: Indices | None = None

    def at(self, theta: Array) -> CallablePoint:
        """Residual vectors at theta."""
        self.n_fun += 1
        raw = self._fun(theta.copy())  # fun may modify its argument
        value = self._returned.residuals(raw, self.size)
        if self.size is None:
            self.size, self.precision = value.size, precision(raw)
        return CallablePoint(theta, value.reshape(-1, self.residual_dim))

    def linearized(self, point: CallablePoint) -> CallablePoint:
        """The point with its Jacobian."""
        if point.jacobian is not None:
            return point
        return replace(point, jacobian=self.jacobian(point.theta, point.residual))

    def retract(self, theta: Array, delta: Array) -> Array:
        """Theta moved by delta."""
        if self._retract is None:
            return theta + delta if self.box is None else self.box.move(theta, delta)
        new = np.array(self._retract(theta.copy(), delta.copy()), dtype=np.float64)
        if new.shape != theta.shape:
            raise ValueError(
                f"retract must return an array of shape {theta.shape}, got {new.shape}."
            )
        return new

    def normal_system(
        self,
        point: CallablePoint,
        weight: Array,
        bend: Array | None = None,
        slope: Array | None = None,
        columns: LargestColumns | None = None,
    ) -> NormalSystem:
        """The system defined above with w = weight, c = bend, s = slope.

        The damping is scaled by the largest columns, if they are given.
        """
        r, J = point.residual, self.linearized(point).jacobian
        root = np.sqrt(weight)
        right = root[:, None] * r
        if bend is not None and slope is not None:
            z = np.einsum("ij,ij->i", r, r)
            left = np.sqrt(np.maximum(1.0 - bend * z, 0.0))
            J = self._bent(J, r, (1.0 - left) / np.maximum(z, _TINY))
            right = (slope / np.maximum(root * left, _TINY))[:, None] * r
        if self.box is None:
            return self._system(J, root, right, columns)

        def build(held: Any, right: Array) -> NormalSystem:
            kept = J if held is None else self._without(J, held)
            return self._system(kept, root, right, columns)

        def push(delta: Array) -> Array:
            return root[:, None] * self._product(J, delta)

        return BoxSystem(build, push, right, self.box, point.theta)

    def _system(
        self, J: Any, root: Array, right: Array, columns: LargestColumns | None
    ) -> NormalSystem:
        if self._plan is not None:
            first, second = J
            return SchurSystem(self._plan, first, second, right, root, self._unit)
        root = np.repeat(root, self.residual_dim)
        J = weighted_rows(root, J)
        return make_system(J, right.ravel(), self._unit, columns)

    def product(self, point: CallablePoint, delta: Array) -> Array:
        """J delta, shape (n, residual_dim)."""
        return self._product(self.linearized(point).jacobian, delta)

    def gradient(self, point: CallablePoint, weight: Array) -> Array:
        """Gradient of sum_i weight_i |r_i|**2 / 2."""
        J = self.linearized(point).jacobian
        weighted = weight[:, None] * point.residual
        if self.structure is not None:
            return self.structure.pull(J[0], J[1], weighted)
        return J.T @ weighted.ravel()

    @property
    def jacobian_error(self) -> float:
        """Upper bound of the relative error of the Jacobian's columns, roughly."""
        if callable(self._jac):
            return 0.0
        return 10.0 * float(self.precision ** ERROR_POWER[self._jac])

    def stationarity(self, theta: Array, gradient: Array) -> Array:
        """The gradient, with zeros for parameters that are held by bounds."""
        if self.box is None:
            return gradient
        return np.where(self.box.stuck(theta, gradient), 0.0, gradient)

    def jacobian(self, theta: Array, residual: Array) -> Any:
        """The Jacobian at a theta with known residuals."""
        self.n_jac += 1
        if callable(self._jac):
            raw = self._jac(theta.copy())
            value = self._returned.jacobian(raw, residual.size, theta)
            if self.fixed is None:
                return value
            return self._without(value, self.fixed)
        if self.groups is None:
            self.groups = self._difference_groups(theta.size)
        changes = self._differences.changes(
            self._evaluate,
            self.retract,
            theta,
            residual.ravel(),
            self.groups,
            self.precision,
        )
        if self.structure is not None:
            return self._difference_blocks(changes.slopes)
        if self.sparsity is None:
            rows, columns = np.arange(residual.size)[:, None], np.arange(theta.size)
            return finite(changes.slopes(rows, columns))
        rows, columns = self.sparsity.nonzero()
        values = finite(changes.slopes(rows, columns))
        shape = (residual.size, theta.size)
        return scipy.sparse.csr_array((values, (rows, columns)), shape=shape)

    def _evaluate(self, points: Iterable[Array]) -> list[Array]:
        """Residuals at several points, for differences."""
        is_complex = self._jac == "cs"
        values = self._workers(self._fun, points)
        check = self._returned.residuals
        return [check(value, self.size, is_complex) for value in values]

    def _product(self, J: Any, delta: Array) -> Array:
        if self.structure is not None:
            return self.structure.push(J[0], J[1], delta)
        return (J @ delta).reshape(-1, self.residual_dim)

    def _without(self, J: Any, held: Any) -> Any:
        """J with zeros in the columns of parameters that are held."""
        if self.structure is None:
            return without_columns(J, held)
        first, second = self.structure.blocks(np.where(held, 0.0, 1.0))
        return J[0] * first[:, None, :], J[1] * second[:, None, :]

    def _bent(self, J: Any, r: Array, b: Array) -> Any:
        """(I - b r r') J for each residual vector."""
        if self.structure is not None:
            return tuple(
                part
                - (b[:, None] * r)[:, :, None]
                * np.einsum("nd,ndp->np", r, part)[:, None]
                for part in J
            )
        n, d = r.shape
        rows = np.repeat(np.arange(n), d)
        R = scipy.sparse.csr_array((r.ravel(), (rows, np.arange(n * d))))
        B = R.T @ scipy.sparse.diags_array(b) @ R
        if isinstance(J, LinearOperator):
            keep = scipy.sparse.eye_array(n * d) - B
            return scipy.sparse.linalg.aslinearoperator(keep) @ J
        return J - B @ J

    def _difference_groups(self, n_parameters: int) -> Indices:
        """Groups of parameters that are moved at the same time."""
        s = self.structure
        if s is not None:
            first = np.tile(np.arange(s.first_dim), s.n_first)
            second = np.tile(np.arange(s.second_dim), s.n_second)
            groups = np.concatenate([first, second + s.first_dim])
        elif self.sparsity is not None:
            groups = independent_columns(self.sparsity)
        else:
            groups = np.arange(n_parameters)
        if self.fixed is not None:  # groups are numbered without gaps
            moved = np.flatnonzero(~self.fixed)
            groups, all_groups = np.full(n_parameters, -1), groups
            groups[moved] = np.unique(all_groups[moved], return_inverse=True)[1]
        return groups

    def _difference_blocks(
        self, slopes: Callable[[Any, Any], Array]
    ) -> tuple[Array, Array]:
        s, d = self.structure, self.residual_dim
        assert s is not None
        rows = np.arange(s.n_residuals * d).reshape(-1, d, 1)
        first, second = s.blocks(np.arange(s.n_parameters))
        A, B = slopes(rows, first[:, None, :]), slopes(rows, second[:, None, :])
        return finite(A), finite(B)
