"""Validation of the return values of user functions.

Errors name the function, the expected return value and the actual one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator

from sklearn_mm._robust.block_structure import BlockStructure
from sklearn_mm._rows.validation import check_size
from sklearn_mm._solver.roles import Array

# Relative rounding error of double precision.
DOUBLE = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Returned:
    """Expected properties of residuals and Jacobians."""

    residual_dim: int
    structure: BlockStructure | None
    additive: bool  # whether parameters are moved by addition
    fixed: Any  # mask of parameters that are not moved, or None
    needs_columns: bool = False  # of the Jacobian, for x_scale='jac'

    def residuals(
        self, value: Any, size: int | None, is_complex: bool = False
    ) -> Array:
        """Residuals as a vector of floats. `size` is their number, if known."""
        if value is None:
            raise ValueError(
                "fun must return the residuals as a one-dimensional array, but it "
                "returned None. Is the return statement missing?"
            )
        # Copy, since the function may return the same buffer every time.
        value = np.atleast_1d(np.array(value))
        if np.iscomplexobj(value) != is_complex:
            if is_complex:
                raise ValueError(
                    "jac='cs' requires a function that returns complex residuals for "
                    "complex parameters, but fun returned real residuals. Use "
                    "jac='3-point' instead."
                )
            raise ValueError(
                "fun must return real residuals, got complex ones. For complex data, "
                "return real and imaginary parts and set residual_dim=2."
            )
        value = _numbers("fun", value, np.complex128 if is_complex else np.float64)
        if value.ndim != 1:
            raise ValueError(
                f"fun must return a one-dimensional array, got shape {value.shape}."
            )
        if size is None and (value.size == 0 or value.size % self.residual_dim):
            raise ValueError(
                f"fun returned {value.size} residuals, which is not a positive "
                f"multiple of residual_dim={self.residual_dim}."
            )
        if size is not None and value.size != size:
            raise ValueError(f"fun returned {value.size} residuals, but {size} at x0.")
        return value

    def jacobian(self, value: Any, size: int, theta: Array) -> Any:
        """The Jacobian, if it is compatible with `size` residuals."""
        if value is None:
            raise ValueError(
                "jac must return the Jacobian, but it returned None. Is the return "
                "statement missing?"
            )
        if self.structure is not None:
            s, n = self.structure, size // self.residual_dim
            shapes = [(n, self.residual_dim, k) for k in (s.first_dim, s.second_dim)]
            several = value if isinstance(value, list | tuple) else [value]
            parts = [np.asarray(part) for part in several]
            if [part.shape for part in parts] != shapes:
                got = " and ".join(str(part.shape) for part in parts)
                raise ValueError(
                    "With a structure, jac must return two arrays of shapes "
                    f"{shapes[0]} and {shapes[1]}, got {got}."
                )
            return tuple(finite(_real(part)) for part in parts)
        if self.needs_columns and isinstance(value, LinearOperator):
            raise ValueError(
                "x_scale='jac' needs the columns of the Jacobian, but jac returned a "
                "LinearOperator. Pass the sizes of the parameters instead."
            )
        if scipy.sparse.issparse(value):
            value = scipy.sparse.csr_array(value)
            value.data = finite(_real(value.data))
        elif not isinstance(value, LinearOperator):
            value = finite(np.atleast_2d(_real(np.asarray(value))))
        if value.ndim != 2 or value.shape[0] != size:
            turned = value.shape == (theta.size, size)
            raise ValueError(
                f"jac must return a matrix with {size} rows, got shape "
                f"{value.shape}." + " It looks transposed." * turned
            )
        self._check_columns(value.shape, theta)
        return value

    def _check_columns(self, shape: tuple[int, int], theta: Array) -> None:
        if self.additive and shape[1] != theta.size:
            raise ValueError(
                f"jac must return a matrix with one column per parameter, shape "
                f"({shape[0]}, {theta.size}), got shape {shape}."
            )
        if shape[1] == 0:
            raise ValueError(
                "jac returned a matrix without columns: there is nothing to optimise."
            )
        if self.fixed is not None and shape[1] != len(self.fixed):
            raise ValueError(
                f"fixed has {len(self.fixed)} entries, but the Jacobian has {shape[1]} "
                "columns."
            )


def finite(values: Array) -> Array:
    """Entries of a Jacobian, if they are finite."""
    if not np.isfinite(values).all():
        raise ValueError(
            "The Jacobian contains NaN or infinity. If it is computed by finite "
            "differences, set bounds such that fun is finite close to x."
        )
    return values


def precision(residuals: Any) -> float:
    """Relative rounding error of residuals, which may be in single precision."""
    dtype = np.asarray(residuals).dtype
    if not np.issubdtype(dtype, np.inexact):
        return DOUBLE
    # They are converted to double precision.
    return max(float(np.finfo(dtype).eps), DOUBLE)


def _real(values: Any) -> Any:
    """Entries of a Jacobian as floats."""
    if np.iscomplexobj(values):
        raise ValueError("jac must return real numbers, got complex ones.")
    return _numbers("jac", values, np.float64)


def _numbers(name: str, value: Any, dtype: Any) -> Any:
    try:
        return value.astype(dtype, copy=False)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must return an array of numbers, got dtype {value.dtype}."
        ) from None


def check_start(point: Any, structure: BlockStructure | None) -> None:
    """Check the residuals at the start."""
    r = point.residual
    if not np.isfinite(r).all():
        raise ValueError(
            f"fun returned {np.sum(~np.isfinite(r))} residuals at x0 that are not "
            "finite. Residuals must be finite at the initial point."
        )
    check_size("The largest residual at x0", np.abs(r).max(), smallest=0.0)
    if structure is None:
        return
    if structure.n_parameters != point.theta.size:
        raise ValueError(
            f"structure describes {structure.n_parameters} parameters, but x0 has "
            f"{point.theta.size}."
        )
    if structure.n_residuals != len(r):
        raise ValueError(
            f"structure describes {structure.n_residuals} residual vectors, but fun "
            f"returned {len(r)} with {r.shape[1]} entries."
        )
