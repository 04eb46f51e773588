"""Validation of the arguments of nonlinear least squares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse
from joblib import Parallel, delayed
from scipy.optimize import Bounds

from sklearn_mm._robust.box import Box
from sklearn_mm._robust.differences import Workers
from sklearn_mm._robust.problem import WithKnownInliers
from sklearn_mm._rows.validation import check_size
from sklearn_mm._solver.roles import Array
from sklearn_mm.baselines import Joint
from sklearn_mm.kernels import Kernel

# Hints for users of scipy's least_squares.
_KERNEL_OF_LOSS = {
    "linear": "use kernel='quadratic'",
    "huber": "use kernel='huber'",
    "soft_l1": "kernel='huber' is the closest to 'soft_l1'",
    "cauchy": "use kernel='cauchy'",
    "arctan": "kernel='geman_mcclure' is bounded like 'arctan'",
}
HINTS = {
    "loss": "robust losses are called kernels, and f_scale is called {width}",
    "f_scale": "use {width} instead",
    "method": "the only method is Levenberg-Marquardt; omit this argument",
    "tr_solver": "the linear solver depends on the type of the Jacobian; omit it",
    "tr_options": "the linear solver depends on the type of the Jacobian; omit it",
    # Of MINPACK, which is the default of curve_fit.
    "epsfcn": "use diff_step, the root of epsfcn, instead",
    "diag": "use x_scale, the inverse of diag, instead",
    "factor": "the first step depends on the Jacobian; omit it",
    "col_deriv": "jac must return one column per parameter; omit it",
}


def refuse_options(function: str, options: dict[str, Any], width: str = "tau") -> None:
    """Raise a TypeError for unknown arguments, with a hint for those of scipy.

    `width` is the argument of the function that corresponds to `f_scale`.
    """
    if not options:
        return
    name, value = next(iter(options.items()))
    hint = HINTS.get(name, "").format(width=width)
    if name == "loss":
        if isinstance(value, str) and value in _KERNEL_OF_LOSS:
            hint += f": {_KERNEL_OF_LOSS[value]}"
        elif callable(value):
            hint += ": for a custom loss, derive from sklearn_mm.kernels.Kernel"
    raise TypeError(
        f"{function}() got an unexpected keyword argument {name!r}"
        + (f": {hint}." if hint else ".")
    )


def checked_start(x0: Any) -> Array:
    """The start as a vector."""
    values = np.atleast_1d(np.asarray(x0))
    if np.iscomplexobj(values):
        raise ValueError("x0 must be real.")
    if values.dtype.kind not in "biuf":
        try:
            values = np.array([float(value) for value in values])
        except (TypeError, ValueError):
            raise ValueError(f"x0 must contain numbers, got {x0!r}.") from None
    x0 = values.astype(np.float64)
    if x0.ndim != 1:
        raise ValueError(f"x0 must have one dimension, got shape {x0.shape}.")
    if x0.size == 0:
        raise ValueError("x0 is empty: there are no parameters to optimise.")
    if not np.isfinite(x0).all():
        raise ValueError("x0 contains NaN or infinity.")
    return x0


def checked_bounds(bounds: Any, x0: Array) -> Box | None:
    """The box of `bounds`, None if it is the whole space."""
    if isinstance(bounds, Bounds):
        pair: Any = (bounds.lb, bounds.ub)
    else:
        try:
            pair = tuple(bounds)
        except TypeError:
            pair = ()
        if len(pair) != 2:
            raise ValueError(
                "bounds must be a pair of lower and upper bounds or an instance of "
                f"scipy.optimize.Bounds, got {bounds!r}."
            )
    sides = []
    for name, values in zip(("lower", "upper"), pair, strict=True):
        values = np.asarray(values, dtype=np.float64)
        if values.ndim > 1 or values.size not in (1, x0.size):
            raise ValueError(
                f"There are {x0.size} parameters, but the {name} bounds have shape "
                f"{values.shape}."
            )
        sides.append(np.broadcast_to(values.ravel(), x0.shape).copy())
    lower, upper = sides
    if not np.all(lower < upper):  # nan included
        raise ValueError(
            "Each lower bound must be strictly less than each upper bound. Use `fixed` "
            "to keep parameters at their initial values."
        )
    if np.any((x0 < lower) | (x0 > upper)):
        k = int(np.argmax((x0 < lower) | (x0 > upper)))
        raise ValueError(
            f"x0 is infeasible: entry {k} is {x0[k]:g}, but its bounds are "
            f"{lower[k]:g} and {upper[k]:g}."
        )
    if np.isneginf(lower).all() and np.isposinf(upper).all():
        return None
    return Box(lower, upper)


def checked_mask(name: str, mask: Any, size: int, what: str) -> Any:
    """A boolean mask from booleans or indices; None if nothing is selected."""
    if mask is None:
        return None
    values = np.asarray(mask)
    if values.ndim == 1 and values.dtype == bool and values.size == size:
        chosen = values
    elif values.ndim == 1 and (
        values.size == 0
        or (
            np.issubdtype(values.dtype, np.integer)
            and -size <= values.min()
            and values.max() < size
        )
    ):
        chosen = np.zeros(size, dtype=bool)
        chosen[values.astype(np.intp)] = True
        if np.count_nonzero(chosen) < values.size:
            raise ValueError(
                f"{name} contains indices more than once. For a mask, use booleans "
                "instead of zeros and ones."
            )
    else:
        got = f"dtype {values.dtype} and shape {values.shape}"
        if values.ndim == 1 and np.issubdtype(values.dtype, np.integer):
            got = f"indices from {values.min()} to {values.max()}"
        raise ValueError(
            f"{name} must be a mask of {size} booleans or an array of indices, one per "
            f"{what}, got {got}."
        )
    return chosen if chosen.any() else None


def checked_widths(tau: Any, n: int) -> Any:
    """The width of the kernel: a number, or one per residual vector."""
    if np.ndim(tau) == 0:
        check_size("tau", tau)
        return float(tau)
    tau = np.asarray(tau, dtype=np.float64)
    if tau.shape != (n,):
        raise ValueError(
            f"tau must be a number or an array with one number for each of the {n} "
            f"residual vectors, got shape {tau.shape}."
        )
    if not np.all(tau > 0):
        raise ValueError("All entries of tau must be positive.")
    check_size("The smallest tau", tau.min())
    check_size("The largest tau", tau.max())
    return tau


def checked_units(x_scale: Any, n: int) -> Array | None:
    """Characteristic sizes of the parameters, or None to use the Jacobian."""
    if x_scale is None or (isinstance(x_scale, str) and x_scale == "jac"):
        return None
    try:
        unit = np.asarray(x_scale, dtype=np.float64)
        unit = np.broadcast_to(unit, (n,)).copy()
    except (TypeError, ValueError):
        unit = np.full(n, np.nan)
    if not (np.isfinite(unit).all() and np.all(unit > 0)):
        raise ValueError(
            f"x_scale must be 'jac', a positive number, or positive numbers for each "
            f"of the {n} parameters, got {x_scale!r}."
        )
    return unit


def checked_steps(diff_step: Any, n: int) -> Array | None:
    """Relative steps of finite differences."""
    if diff_step is None:
        return None
    try:
        steps = np.broadcast_to(np.asarray(diff_step, dtype=np.float64), (n,)).copy()
    except (TypeError, ValueError):
        steps = np.zeros(n)
    if not np.isfinite(steps).all() or np.any(steps == 0.0):
        raise ValueError(
            f"diff_step must be a finite non-zero number, or such numbers for each of "
            f"the {n} parameters, got {diff_step!r}."
        )
    return steps


def checked_sparsity(pattern: Any, shape: tuple[int, int]) -> Any:
    """The sparsity pattern of the Jacobian."""
    if pattern is None:
        return None
    if not scipy.sparse.issparse(pattern):
        pattern = np.atleast_2d(pattern)
    if pattern.shape != shape:
        raise ValueError(
            f"jac_sparsity must have the shape of the Jacobian, {shape}, got "
            f"{pattern.shape}."
        )
    return scipy.sparse.csr_array(pattern)


def checked_workers(workers: Any) -> Workers:
    """A map-like function."""
    if workers is None or workers == 1:
        return map
    if callable(workers):
        return workers
    if workers == 0:
        raise ValueError(
            "workers must be a number of processes, -1 for all cores, or a map-like "
            "callable, got 0."
        )

    def mapped(function: Any, points: Iterable[Any]) -> Any:
        return Parallel(n_jobs=workers)(delayed(function)(point) for point in points)

    return mapped


def checked_fixed(fixed: Any, x0: Array, jac: Any, retract: Any) -> Any:
    """Mask of fixed parameters (of directions, if parameters are on a manifold)."""
    size = x0.size
    if retract is not None and callable(jac) and np.asarray(fixed).dtype == bool:
        size = np.size(fixed)  # checked against the Jacobian
    mask = checked_mask("fixed", fixed, size, "parameter")
    if mask is not None and mask.all():
        raise ValueError("All parameters are fixed: there is nothing to optimise.")
    return mask


def check_together(
    jac: Any, box: Box | None, structure: Any, retract: Any, jac_sparsity: Any
) -> None:
    """Raise a ValueError if arguments are incompatible."""
    if retract is not None and box is not None:
        raise ValueError(
            "bounds cannot be combined with retract, because they require that "
            "parameters are updated by addition."
        )
    if retract is not None and isinstance(jac, str) and jac == "cs":
        raise ValueError(
            "jac='cs' cannot be combined with retract, because it adds complex steps "
            "to the parameters."
        )
    if structure is not None and jac_sparsity is not None:
        raise ValueError("jac_sparsity cannot be combined with structure.")


def check_kernel(kernel: Kernel, criterion: Any, known_inliers: Any) -> None:
    """Raise a ValueError if the kernel does not suit joint minimisation."""
    if not isinstance(criterion, Joint):
        return
    if not abs(float(kernel.penalty_slope(1.0))) < 1e-4:
        raise ValueError(
            f"criterion='joint' needs a kernel whose penalty is smooth at u = 1, which "
            f"{kernel!r} is not."
        )
    if known_inliers is not None:
        raise ValueError(
            "criterion='joint' updates all weights and cannot be combined with "
            "known_inliers."
        )


def with_known_inliers(kernel: Kernel, known_inliers: Any, n: int) -> Kernel:
    """The kernel, quadratic for residual vectors that are known to be inliers."""
    known = checked_mask("known_inliers", known_inliers, n, "residual vector")
    return kernel if known is None else WithKnownInliers(kernel, known)
