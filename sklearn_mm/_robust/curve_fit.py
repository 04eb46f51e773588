"""Robust curve fitting, compatible with `scipy.optimize.curve_fit`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import scipy.linalg
from scipy.optimize import Bounds
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    StrOptions,
    validate_params,
)

from sklearn_mm._robust.arguments import HINTS, refuse_options
from sklearn_mm._robust.least_squares import robust_least_squares
from sklearn_mm._robust.run import INTERRUPTED
from sklearn_mm._rows.validation import check_size
from sklearn_mm.kernels import KERNELS, get_kernel

# Points beyond this many noise scales are marked as outliers.
_OUTLIER_SCALES = 3.0
# Arguments of `robust_least_squares` that are determined by those of `curve_fit`.
_DETERMINED = {
    "tau": "Pass scale, the standard deviation of the noise, which determines the "
    "width",
    "args": "f is called with xdata and the parameters only",
    "kwargs": "f is called with xdata and the parameters only",
    "residual_dim": "There is one residual per entry of ydata",
    "structure": "Use robust_least_squares for parameters in blocks",
    "retract": "Use robust_least_squares for parameters on a manifold",
}


@validate_params(
    {
        "f": [callable],
        "absolute_sigma": ["boolean"],
        "scale": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "kernel": [
            StrOptions(set(KERNELS)),
            HasMethods(["loss", "weight", "penalty", "upper_bound"]),
        ],
        "jac": [None, callable, StrOptions({"2-point", "3-point", "cs"})],
        "check_finite": [None, "boolean"],
        "nan_policy": [None, StrOptions({"raise", "omit"})],
        "full_output": ["boolean"],
    },
    prefer_skip_nested_validation=True,
)
def robust_curve_fit(
    f: Any,
    xdata: Any,
    ydata: Any,
    p0: Any = None,
    sigma: Any = None,
    absolute_sigma: bool = False,
    *,
    scale: Any = "auto",
    kernel: Any = "smooth_truncated_quadratic",
    bounds: Any = (-np.inf, np.inf),
    jac: Any = None,
    check_finite: bool | None = None,
    nan_policy: str | None = None,
    full_output: bool = False,
    **kwargs: Any,
) -> Any:
    """Fit a function to data with outliers.

    Estimates the parameters of ``ydata = f(xdata, *parameters) + noise`` when some
    values in `ydata` are outliers. Calls of :func:`scipy.optimize.curve_fit` work
    unchanged, unless they pass ``method``, ``loss`` or options of MINPACK.

    Parameters
    ----------
    f : callable
        The model function, ``f(xdata, *parameters)``, which returns one number per data
        point.

    xdata : array-like or object
        The independent variable where the data were measured, typically of shape (m,)
        or (k, m).

    ydata : array-like of shape (m,)
        The dependent data.

    p0 : array-like of shape (n,), default=None
        Initial guess for the parameters. If None, the initial values are ones, or
        values between the bounds, and their number is determined from the signature of
        `f`.

    sigma : float, or array-like of shape (m,) or (m, m), default=None
        Standard deviations of the errors in `ydata`, or their covariance matrix. If
        None, all standard deviations are one.

    absolute_sigma : bool, default=False
        Whether `sigma` is used in an absolute sense. If False, only the relative
        magnitudes of `sigma` matter, and their common factor is estimated.

    scale : float or "auto", default="auto"
        Common factor of the errors: their standard deviation is ``scale * sigma``,
        which also determines the width of the kernel. If "auto", the factor is
        estimated together with the parameters, or is one if `absolute_sigma` is True.

    kernel : str or Kernel, default="smooth_truncated_quadratic"
        Robust kernel, see :mod:`sklearn_mm.kernels`. With "quadratic", the function is
        equivalent to `curve_fit`.

    bounds : 2-tuple of array-like or `Bounds`, optional
        Lower and upper bounds of the parameters. There are no bounds by default.

    jac : callable or {"2-point", "3-point", "cs"}, default=None
        Jacobian of the model, ``jac(xdata, *parameters)`` of shape (m, n), or a scheme
        of finite differences. If None, "2-point" is used.

    check_finite : bool, default=None
        Whether to raise a ValueError if the data contain NaN or infinity. If None, it
        is True unless `nan_policy` is specified.

    nan_policy : {"raise", "omit"}, default=None
        How to handle NaN in the data: raise a ValueError or omit the points.

    full_output : bool, default=False
        Whether to return `infodict`, `mesg` and `ier` as well.

    **kwargs : dict
        Keyword arguments passed to :func:`robust_least_squares`, such as ``criterion``,
        ``fixed``, ``known_inliers``, ``x_scale``, ``max_nfev`` or ``ftol``.

    Returns
    -------
    popt : ndarray of shape (n,)
        Estimated parameters.

    pcov : ndarray of shape (n, n)
        Estimated covariance of the parameters. Their standard errors are
        ``np.sqrt(np.diag(pcov))``.

    infodict : dict
        Only returned if `full_output` is True. A dictionary with ``nfev`` (number of
        function calls), ``fvec`` (residuals in units of sigma), ``weights`` (confidence
        weight of each point, between zero and one), ``outliers`` (mask of points with
        residuals of more than 3 noise scales), ``scale`` (the noise scale) and
        ``result`` (that of `robust_least_squares`). With ``nan_policy="omit"``, the
        arrays only contain the remaining points.

    mesg : str
        Only returned if `full_output` is True. Reason for termination.

    ier : int
        Only returned if `full_output` is True. The status, a positive integer.

    Raises
    ------
    ValueError
        If the data contain NaN or infinity, or if arguments are incompatible.

    RuntimeError
        If the fit fails.

    See Also
    --------
    robust_least_squares : The underlying optimiser, for residuals of any kind.
    HalfQuadraticRobustRegressor : Linear models.

    Notes
    -----
    With ``scale="auto"``, a minority of points that lie on a curve can be preferred to
    a majority of points that do not. A proportion of at least 60% inliers is safe if
    the outliers do not lie on a common curve.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mm import robust_curve_fit
    >>> rng = np.random.default_rng(0)
    >>> x = np.linspace(0, 4, 60)
    >>> y = 2.5 * np.exp(-1.3 * x) + 0.5 + 0.05 * rng.normal(size=60)
    >>> y[::5] += 2.0  # a fault every fifth time
    >>> def model(x, a, b, c):
    ...     return a * np.exp(-b * x) + c
    >>> popt, pcov = robust_curve_fit(model, x, y)
    >>> bool(np.abs(popt - [2.5, 1.3, 0.5]).max() < 0.1)
    True
    >>> *_, info, message, status = robust_curve_fit(model, x, y, full_output=True)
    >>> np.flatnonzero(info["outliers"])[:4]
    array([ 0,  5, 10, 15])
    """
    for name in kwargs.keys() & _DETERMINED:
        raise TypeError(
            f"robust_curve_fit() got an unexpected keyword argument {name!r}. "
            f"{_DETERMINED[name]}."
        )
    unknown = {k: v for k, v in kwargs.items() if k in HINTS}
    refuse_options("robust_curve_fit", unknown, width="scale")
    p0 = _start(f, p0, bounds)
    if check_finite is None:
        check_finite = nan_policy is None
    xdata, ydata, kept = _data(xdata, ydata, check_finite, nan_policy)
    model = _Model(f, jac, xdata, ydata, _whitening(sigma, ydata, kept))
    constant = get_kernel(kernel).tuning_constant()
    tau = "auto"
    if scale != "auto" or absolute_sigma:
        scale = 1.0 if scale == "auto" else float(scale)
        check_size("scale", scale)
        tau = constant * scale if np.isfinite(constant) else scale
    if "maxfev" in kwargs:  # the name used by curve_fit
        kwargs["max_nfev"] = kwargs.pop("maxfev")
    fit = partial(
        robust_least_squares,
        model.residual,
        jac=model.jacobian if callable(jac) else (jac or "2-point"),
        bounds=bounds,
        kernel=kernel,
        **kwargs,
    )
    result = fit(p0, tau=tau)
    nfev = result.nfev
    if tau != "auto" and np.isfinite(constant) and result.success:
        # A kernel as narrow as the noise does not see far from p0; the search for the
        # scale does, and its end is a second start.
        search = fit(p0, tau="auto")
        nfev += search.nfev
        if search.status == INTERRUPTED:
            result = search
        elif search.success:
            other = fit(search.x, tau=tau)
            nfev += other.nfev
            better = other.success and other.cost < result.cost
            if better or other.status == INTERRUPTED:
                result = other
    if result.status == INTERRUPTED:
        # Not an error of the fit, for which callers may have an alternative.
        raise KeyboardInterrupt
    if not result.success:
        raise RuntimeError(f"Optimal parameters not found: {result.message}")
    pcov = result.covariance(absolute=absolute_sigma)
    if not full_output:
        return result.x, pcov
    noise = result.scale if tau == "auto" else scale
    info = {
        "nfev": nfev,
        "fvec": result.fun,
        "weights": result.weights,
        "outliers": np.abs(result.fun) > _OUTLIER_SCALES * noise,
        "scale": noise,
        "result": result,
    }
    return result.x, pcov, info, result.message, result.status


def _start(f: Any, p0: Any, bounds: Any) -> Any:
    """The start, by default like that of scipy: ones, or between the bounds."""
    if p0 is not None:
        return np.atleast_1d(p0)
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p for p in parameters if p.kind in kinds]
    if len(names) < 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ValueError(
            "Unable to determine the number of parameters from the signature of f. "
            "Pass p0."
        )
    n = len(names) - 1
    pair = (bounds.lb, bounds.ub) if isinstance(bounds, Bounds) else bounds
    try:
        lower, upper = (np.broadcast_to(np.asarray(b, dtype=float), n) for b in pair)
    except (TypeError, ValueError):
        return np.ones(n)  # invalid bounds raise an error later
    start = np.ones(n)
    low, high = np.isfinite(lower), np.isfinite(upper)
    both = low & high
    start[both] = 0.5 * lower[both] + 0.5 * upper[both]
    start[low & ~high] = lower[low & ~high] + 1.0
    start[high & ~low] = upper[high & ~low] - 1.0
    return start


def _data(
    xdata: Any, ydata: Any, check_finite: bool, nan_policy: str | None
) -> tuple[Any, Any, Any]:
    """Data as arrays, and a mask of the points kept, None if all are."""
    ydata = np.asarray(ydata)
    if np.iscomplexobj(ydata):
        raise ValueError("ydata must be real.")
    ydata = ydata.astype(np.float64)
    if ydata.size == 0:
        raise ValueError("ydata must not be empty.")
    if ydata.ndim != 1:
        raise ValueError(f"ydata must have one dimension, got shape {ydata.shape}.")
    if isinstance(xdata, list | tuple | np.ndarray):
        # Integers could lead to integer arithmetic inside f.
        xdata = np.asarray(xdata, dtype=np.float64)
    numeric = isinstance(xdata, np.ndarray)
    if check_finite:
        for name, values in (("xdata", xdata), ("ydata", ydata)):
            if isinstance(values, np.ndarray) and not np.isfinite(values).all():
                raise ValueError(
                    f"{name} contains NaN or infinity. Set nan_policy='omit' to omit "
                    "points that are NaN."
                )
    if nan_policy is None:
        return xdata, ydata, None
    missing = np.isnan(ydata)
    one_per_point = numeric and xdata.shape[-1:] == ydata.shape
    if one_per_point:
        missing |= np.isnan(xdata).any(axis=tuple(range(xdata.ndim - 1)))
    if not missing.any():
        return xdata, ydata, None
    if nan_policy == "raise":
        raise ValueError(f"The data contain NaN at {missing.sum()} points.")
    if missing.all():
        raise ValueError("The data are NaN at all points.")
    if not one_per_point:
        raise ValueError(
            "nan_policy='omit' requires that xdata is an array whose last axis has the "
            f"length of ydata, {ydata.size}. Omit the points before the call."
        )
    return xdata[..., ~missing], ydata[~missing], ~missing


def _whitening(sigma: Any, ydata: Any, kept: Any) -> Any:
    """Divisor of the residuals: None, numbers, or a Cholesky factor."""
    if sigma is None:
        return None
    sigma = np.asarray(sigma, dtype=np.float64)
    if sigma.ndim == 0:
        sigma = np.broadcast_to(sigma, ydata.shape)
    elif kept is not None:
        sigma = sigma[kept] if sigma.ndim == 1 else sigma[np.ix_(kept, kept)]
    if sigma.shape == ydata.shape:
        if not (np.isfinite(sigma).all() and np.all(sigma > 0)):
            raise ValueError("All entries of sigma must be positive and finite.")
        return sigma
    if sigma.shape == (ydata.size, ydata.size):
        try:
            return scipy.linalg.cholesky(sigma, lower=True)
        except scipy.linalg.LinAlgError:
            raise ValueError("sigma must be positive definite.") from None
    raise ValueError(
        f"sigma must be a number or have shape ({ydata.size},) or ({ydata.size}, "
        f"{ydata.size}), got {sigma.shape}."
    )


@dataclass(frozen=True)
class _Model:
    """Residuals in units of sigma, and their Jacobian."""

    f: Any
    jac: Any
    xdata: Any
    ydata: Any
    sigma: Any

    def residual(self, p: Any) -> Any:
        """(f - y) / sigma."""
        value = self.f(self.xdata, *p)
        if value is None:
            raise ValueError("f must return the values of the model, got None.")
        value = np.asarray(value)
        if value.shape != self.ydata.shape and value.ndim > 0:
            raise ValueError(
                f"f must return an array of shape {self.ydata.shape}, like ydata, "
                f"got {value.shape}."
            )
        residual = self._whitened(value - self.ydata)
        # The steps of finite differences depend on the precision of the model.
        if np.issubdtype(value.dtype, np.floating):
            return residual.astype(value.dtype, copy=False)
        return residual

    def jacobian(self, p: Any) -> Any:
        """The model's Jacobian in the same units."""
        J = np.asarray(self.jac(self.xdata, *p), dtype=np.float64)
        if J.shape != (self.ydata.size, len(p)):
            raise ValueError(
                f"jac must return an array of shape ({self.ydata.size}, {len(p)}), got "
                f"{J.shape}."
            )
        return self._whitened(J)

    def _whitened(self, values: Any) -> Any:
        if self.sigma is None:
            return values
        if self.sigma.ndim == 1:
            return (values.T / self.sigma).T
        return scipy.linalg.solve_triangular(
            self.sigma, values, lower=True, check_finite=False
        )
