"""What the user's functions return, checked.

Errors name the function, what it should return and what it did.
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


@dataclass(frozen=True)
class Returned:
    """What is expected of residuals and Jacobians."""

    residual_dim: int
    structure: BlockStructure | None
    additive: bool  # whether parameters are moved by addition
    fixed: Any  # mask of parameters that are not moved, or None

    def residuals(
        self, value: Any, size: int | None, is_complex: bool = False
    ) -> Array:
        """Residuals as a vector of floats; `size` is their number, once it is known."""
        if value is None:
            raise ValueError(
                "fun must return the residuals, a one-dimensional array; it returned "
                "None. Is there a return statement?"
            )
        # A copy: the function may return the same buffer every time.
        value = np.atleast_1d(np.array(value))
        if np.iscomplexobj(value) != is_complex:
            if is_complex:
                raise ValueError(
                    "jac='cs' needs a function that can be evaluated with complex "
                    "parameters, and returns complex residuals then; fun returned real "
                    "ones. Use jac='3-point' instead."
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
            raise ValueError(
                f"fun returned {value.size} residuals after {size} at the start."
            )
        return value

    def jacobian(self, value: Any, size: int, theta: Array) -> Any:
        """The Jacobian, if it fits the residuals, which are `size`."""
        if value is None:
            raise ValueError(
                "jac must return the Jacobian; it returned None. Is there a return "
                "statement?"
            )
        if self.structure is not None:
            s, n = self.structure, size // self.residual_dim
            shapes = [(n, self.residual_dim, k) for k in (s.first_dim, s.second_dim)]
            parts = [np.asarray(part, dtype=np.float64) for part in value]
            if [part.shape for part in parts] != shapes:
                raise ValueError(
                    "With a structure, jac must return two arrays of shapes "
                    f"{shapes[0]} and {shapes[1]}, got "
                    f"{[part.shape for part in parts]}."
                )
            return tuple(finite(part) for part in parts)
        if scipy.sparse.issparse(value):
            value = scipy.sparse.csr_array(value).astype(np.float64)
            finite(value.data)
        elif not isinstance(value, LinearOperator):
            value = np.asarray(value)
            if np.iscomplexobj(value):
                raise ValueError("jac must return a real matrix, got a complex one.")
            value = np.atleast_2d(_numbers("jac", value, np.float64))
            finite(value)
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
                "jac returned a matrix without columns: there is nothing to move."
            )
        if self.fixed is not None and shape[1] != len(self.fixed):
            raise ValueError(
                f"fixed has {len(self.fixed)} entries, the Jacobian {shape[1]} columns."
            )


def finite(values: Array) -> Array:
    """Entries of a Jacobian, if they are finite."""
    if not np.isfinite(values).all():
        raise ValueError("The Jacobian contains NaN or infinity.")
    return values


def _numbers(name: str, value: Any, dtype: Any) -> Any:
    try:
        return value.astype(dtype, copy=False)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must return an array of numbers, got dtype {value.dtype}."
        ) from None


def check_start(point: Any, structure: BlockStructure | None) -> None:
    """The residuals at the start must be usable."""
    r = point.residual
    if not np.isfinite(r).all():
        raise ValueError(
            f"fun returned {np.sum(~np.isfinite(r))} residuals at x0 that are not "
            "finite."
        )
    check_size("The largest residual at x0", np.abs(r).max(), smallest=0.0)
    if structure is None:
        return
    if structure.n_parameters != point.theta.size:
        raise ValueError(
            f"structure describes {structure.n_parameters} parameters, x0 has "
            f"{point.theta.size}."
        )
    if structure.n_residuals != len(r):
        raise ValueError(
            f"structure describes {structure.n_residuals} residual vectors, fun "
            f"returned {len(r)} of {r.shape[1]} entries."
        )
