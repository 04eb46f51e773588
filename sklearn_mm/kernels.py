r"""Robust kernels and their half-quadratic form.

A robust kernel :math:`\psi` is written as a minimum over a confidence weight
:math:`u \in [0, 1]` (Geman & Reynolds, 1992; section 6.1 of Zach & Le)::

    psi(z) = min_u  u z / 2 + kappa(u),        attained at  u = omega(z)

Each function takes the *squared* residual norm in units of the kernel's width,
``z = ||r||**2 / tau**2``, like the losses of :func:`scipy.optimize.least_squares`, and
returns values in units of ``tau**2``. All three are finite and raise no warnings for
any ``z >= 0``, including subnormal and infinite values, unless the loss is unbounded.

Since the minimum is attained at :math:`\omega`, the envelope theorem gives
:math:`\omega(z) = 2 \, d\psi / dz`, i.e. :math:`\psi'(r) / r` for a residual r.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import roots_legendre, xlogy
from scipy.stats import chi

__all__ = [
    "KERNELS",
    "Cauchy",
    "GemanMcClure",
    "Huber",
    "Kernel",
    "Quadratic",
    "SmoothTruncatedQuadratic",
    "Tukey",
    "Welsch",
    "get_kernel",
]

Array = NDArray[np.float64]

# A bounded kernel does not distinguish squared residuals beyond this. Clipping them
# avoids inf / inf in quotients such as z / (1 + z).
_HUGE = 1e300
# Weights below the smallest normal number are replaced by it inside logarithms and
# reciprocals, so that penalty(0) is huge instead of a division by zero.
_TINY = np.finfo(np.float64).tiny
# Relative step of central differences: the cube root of the machine precision.
_SLOPE_STEP = 6e-6


@dataclass(frozen=True, eq=False)
class Kernel:
    """Base class for robust kernels.

    Subclasses must define :meth:`loss`, :meth:`weight` and :meth:`penalty`. They must
    satisfy ``loss(z) == min_u (u * z / 2 + penalty(u))`` with the minimum at
    ``u == weight(z)``. :func:`tuning_constant` then works without changes.
    """

    name: ClassVar[str] = ""

    # Kernels are equal if they have the same class and the same attributes, including
    # those of subclasses that are not dataclasses. The cached tuning constants rely on
    # this.
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(vars(self).items()))))

    def loss(self, z: ArrayLike) -> Array:
        """Robust loss of squared residuals, in units of ``tau**2``."""
        raise NotImplementedError

    def weight(self, z: ArrayLike) -> Array:
        """Optimal confidence weight, non-increasing in ``z``, one at zero."""
        raise NotImplementedError

    def penalty(self, u: ArrayLike) -> Array:
        """Convex penalty of confidence weights, zero at ``u = 1``."""
        raise NotImplementedError

    def penalty_slope(self, u: ArrayLike) -> Array:
        """Derivative of the penalty, by central differences unless overridden."""
        u = np.asarray(u, dtype=float)
        h = _SLOPE_STEP * u
        return (self.penalty(u + h) - self.penalty(u - h)) / np.maximum(2 * h, _TINY)

    def upper_bound(self, z: ArrayLike, u: ArrayLike) -> Array:
        """Half-quadratic bound ``u * z / 2 + penalty(u)``, at least ``loss(z)``."""
        # min(): a weight of zero switches an infinite residual off (0 * inf is nan).
        return np.multiply(u, np.minimum(z, _HUGE) / 2) + self.penalty(u)

    def tuning_constant(self, d: int = 1, efficiency: float = 0.95) -> float:
        """Compute the width that gives the required efficiency under Gaussian noise.

        Parameters
        ----------
        d : int, default=1
            Dimension of the residuals that share one weight.

        efficiency : float, default=0.95
            Asymptotic efficiency with respect to least squares when the noise is
            Gaussian, in (0, 1).

        Returns
        -------
        constant : float
            The width in units of the noise scale, ``tau / scale``. Infinity for the
            quadratic kernel.
        """
        return _tuning_constant(self, d, efficiency)

    def efficiency(self, width: float, d: int = 1) -> float:
        """Compute the Gaussian efficiency at a width.

        This is the inverse of `tuning_constant`, except below the smallest width that
        it returns, half of ``sqrt(d)``.

        Parameters
        ----------
        width : float
            Width of the kernel in units of the noise scale.

        d : int, default=1
            Dimension of the residuals that share one weight.

        Returns
        -------
        efficiency : float
            Asymptotic efficiency with respect to least squares, in [0, 1].
        """
        return _efficiency(self, d, width)


@dataclass(frozen=True, eq=False)
class Quadratic(Kernel):
    """Quadratic kernel (least squares), with a constant weight of one."""

    name: ClassVar[str] = "quadratic"

    def loss(self, z: ArrayLike) -> Array:
        """``z / 2``, unbounded."""
        return np.asarray(z, dtype=float) / 2

    def weight(self, z: ArrayLike) -> Array:
        """One for all residuals."""
        return np.ones_like(np.asarray(z, dtype=float))

    def penalty(self, u: ArrayLike) -> Array:
        """Zero at one, infinite below: the weight cannot vary."""
        return np.where(np.asarray(u) >= 1.0, 0.0, np.inf)

    def upper_bound(self, z: ArrayLike, u: ArrayLike) -> Array:
        """The loss itself if the weights are one."""
        return self.loss(z) + self.penalty(u)

    def tuning_constant(self, d: int = 1, efficiency: float = 0.95) -> float:
        """Infinity, since all widths are equivalent."""
        return np.inf

    def efficiency(self, width: float, d: int = 1) -> float:
        """One at any width."""
        return 1.0


@dataclass(frozen=True, eq=False)
class SmoothTruncatedQuadratic(Kernel):
    """Kernel of the paper: a parabola with a smooth transition to a constant."""

    name: ClassVar[str] = "smooth_truncated_quadratic"

    def loss(self, z: ArrayLike) -> Array:
        """``(1 - (1 - z)**2) / 4`` up to ``z = 1``, and 1/4 beyond."""
        z = np.minimum(z, 1.0, dtype=float)
        return np.asarray(z * (2.0 - z) / 4)  # (1 - (1-z)**2) / 4, no cancellation

    def weight(self, z: ArrayLike) -> Array:
        """``1 - z`` up to ``z = 1``, and zero beyond."""
        return 1.0 - np.minimum(z, 1.0)

    def penalty(self, u: ArrayLike) -> Array:
        """``(1 - u)**2 / 4``."""
        return np.square(np.subtract(u, 1.0)) / 4

    def penalty_slope(self, u: ArrayLike) -> Array:
        """``(u - 1) / 2``."""
        return np.subtract(u, 1.0) / 2


@dataclass(frozen=True, eq=False)
class GemanMcClure(Kernel):
    """Geman & McClure's bounded kernel with polynomial tails."""

    name: ClassVar[str] = "geman_mcclure"

    def loss(self, z: ArrayLike) -> Array:
        """``z / (2 * (1 + z))``, which tends to 1/2."""
        z = np.minimum(z, _HUGE)
        return np.asarray(z / (2.0 * (1.0 + z)))

    def weight(self, z: ArrayLike) -> Array:
        """``1 / (1 + z)**2``."""
        # Square the quotient: it underflows to zero where (1 + z)**2 would overflow.
        return np.square(1.0 / (1.0 + np.asarray(z, dtype=float)))

    def penalty(self, u: ArrayLike) -> Array:
        """``(1 - sqrt(u))**2 / 2``."""
        return np.square(np.sqrt(u) - 1.0) / 2

    def penalty_slope(self, u: ArrayLike) -> Array:
        """``(1 - 1 / sqrt(u)) / 2``."""
        return (1.0 - 1.0 / np.sqrt(np.maximum(u, _TINY))) / 2


@dataclass(frozen=True, eq=False)
class Welsch(Kernel):
    """Welsch's bounded kernel with Gaussian weights."""

    name: ClassVar[str] = "welsch"

    def loss(self, z: ArrayLike) -> Array:
        """``(1 - exp(-z)) / 2``, which tends to 1/2."""
        return -np.expm1(np.negative(z)) / 2

    def weight(self, z: ArrayLike) -> Array:
        """``exp(-z)``."""
        return np.exp(np.negative(z))

    def penalty(self, u: ArrayLike) -> Array:
        """``(1 - u + u * log(u)) / 2``."""
        return np.asarray((1.0 - np.asarray(u) + xlogy(u, u)) / 2)

    def penalty_slope(self, u: ArrayLike) -> Array:
        """``log(u) / 2``."""
        return np.log(np.maximum(u, _TINY)) / 2


@dataclass(frozen=True, eq=False)
class Cauchy(Kernel):
    """Cauchy's kernel, which is unbounded and grows logarithmically."""

    name: ClassVar[str] = "cauchy"

    def loss(self, z: ArrayLike) -> Array:
        """``log(1 + z) / 2``, unbounded."""
        return np.log1p(z) / 2

    def weight(self, z: ArrayLike) -> Array:
        """``1 / (1 + z)``."""
        return 1.0 / (1.0 + np.asarray(z, dtype=float))

    def penalty(self, u: ArrayLike) -> Array:
        """``(u - 1 - log(u)) / 2``."""
        u = np.maximum(u, _TINY)
        return (u - 1.0 - np.log(u)) / 2

    def penalty_slope(self, u: ArrayLike) -> Array:
        """``(1 - 1 / u) / 2``."""
        return (1.0 - 1.0 / np.maximum(u, _TINY)) / 2


@dataclass(frozen=True, eq=False)
class Tukey(Kernel):
    """Tukey's biweight."""

    name: ClassVar[str] = "tukey"

    def loss(self, z: ArrayLike) -> Array:
        """``(1 - (1 - z)**3) / 6`` up to ``z = 1``, and 1/6 beyond."""
        z = np.minimum(z, 1.0, dtype=float)
        return np.asarray(z * (3.0 - 3.0 * z + z * z) / 6)  # (1 - (1-z)**3) / 6

    def weight(self, z: ArrayLike) -> Array:
        """``(1 - z)**2`` up to ``z = 1``, and zero beyond."""
        return np.square(1.0 - np.minimum(z, 1.0))

    def penalty(self, u: ArrayLike) -> Array:
        """``1/6 - u/2 + u**1.5 / 3``."""
        # 1/6 - u/2 + u**1.5/3, factored with v = sqrt(u): exact zero at u = 1.
        v = np.sqrt(u)
        return np.square(1.0 - v) * (1.0 + 2.0 * v) / 6

    def penalty_slope(self, u: ArrayLike) -> Array:
        """``(sqrt(u) - 1) / 2``."""
        return (np.sqrt(u) - 1.0) / 2


@dataclass(frozen=True, eq=False)
class Huber(Kernel):
    """Huber's convex kernel: quadratic at the centre, linear in the tails."""

    name: ClassVar[str] = "huber"

    def loss(self, z: ArrayLike) -> Array:
        """``z / 2`` up to ``z = 1``, and ``sqrt(z) - 1/2`` beyond."""
        z = np.asarray(z, dtype=float)
        return np.asarray(np.where(z <= 1.0, z / 2, np.sqrt(z) - 0.5))

    def weight(self, z: ArrayLike) -> Array:
        """One up to ``z = 1``, and ``1 / sqrt(z)`` beyond."""
        return 1.0 / np.sqrt(np.maximum(z, 1.0))

    def penalty(self, u: ArrayLike) -> Array:
        """``(1 / u - 1) / 2``."""
        return (1.0 / np.maximum(u, _TINY) - 1.0) / 2


#: Kernels by the names that the estimators accept.
KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        SmoothTruncatedQuadratic(),
        GemanMcClure(),
        Welsch(),
        Cauchy(),
        Tukey(),
        Huber(),
        Quadratic(),
    )
}


def get_kernel(kernel: str | Kernel) -> Kernel:
    """Get a kernel by name, or return the given object.

    Parameters
    ----------
    kernel : str or Kernel
        A key of ``KERNELS``, or an object with the methods of :class:`Kernel`.

    Returns
    -------
    kernel : Kernel
        The kernel.

    Examples
    --------
    >>> from sklearn_mm.kernels import get_kernel
    >>> cauchy = get_kernel("cauchy")
    >>> float(cauchy.weight(1.0))
    0.5
    >>> round(cauchy.tuning_constant(), 3)
    2.385
    """
    if isinstance(kernel, type):
        raise ValueError(
            f"kernel must be a string or an object, got the class {kernel.__name__}; "
            f"pass {kernel.__name__}() instead."
        )
    if not isinstance(kernel, str):
        return kernel
    try:
        return KERNELS[kernel]
    except KeyError:
        raise ValueError(
            f"Unknown kernel {kernel!r}; known are {sorted(KERNELS)}."
        ) from None


@functools.lru_cache(maxsize=256)
def _tuning_constant(kernel: Kernel, d: int, efficiency: float) -> float:
    """Solve efficiency(c) = efficiency for the width c; see `_efficiency`."""

    def excess(log_c: float) -> float:
        return _efficiency(kernel, d, np.exp(log_c)) - efficiency

    # Residual norms concentrate at sqrt(d). For much larger widths, the kernel is
    # practically quadratic. The lower limit is half of sqrt(d): some kernels are
    # efficient at any width if d is large (Huber's from d = 10, where even the spatial
    # median has 95%), but inliers should keep their weight nevertheless.
    if not 0.0 < efficiency < 1.0:
        raise ValueError(f"efficiency must be in (0, 1), got {efficiency!r}.")
    floor, ceiling = np.log(np.sqrt(d) / 2), np.log(50.0 * np.sqrt(d))
    if excess(floor) >= 0.0:
        return float(np.exp(floor))
    if excess(ceiling) < 0.0:
        raise ValueError(
            f"The kernel {type(kernel).__name__} is less than {100 * efficiency:g}% "
            "efficient under Gaussian noise even if it is 50 noise scales wide. Its "
            "weight should be close to one for small residuals; otherwise, pass tuning."
        )
    return float(np.exp(brentq(excess, floor, ceiling, xtol=1e-10)))


def _efficiency(kernel: Kernel, d: int, c: float) -> float:
    r"""Gaussian efficiency of the M-estimate with weights :math:`\omega(t^2/c^2)`.

    With t = ||r|| chi-distributed, the estimating function omega(t**2/c**2) r has
    variance E[(t omega)**2] / d and mean derivative E[omega + t omega'(t) / d].
    Integration by parts replaces t omega' by t**2 omega, since the density f of chi
    satisfies (t f)' = (d - t**2) f. No derivative is therefore needed:
    E[omega + t omega' / d] = E[t**2 omega] / d.
    """
    nodes, quadrature = _chi_rule(d, c)
    omega = kernel.weight(np.square(nodes / c))
    slope = float(quadrature @ (np.square(nodes) * omega)) / d
    variance = float(quadrature @ np.square(nodes * omega)) / d
    return slope**2 / variance if variance > 0.0 else 0.0


@functools.lru_cache(maxsize=256)
def gaussian_moments(kernel: Kernel, width: float, d: int = 1) -> tuple[float, float]:
    """E w and E w t**2 / d for residuals of d outputs with standard Gaussian noise.

    For the quadratic kernel, the width may be infinite, and both moments are one.
    """
    if not np.isfinite(width):
        return 1.0, 1.0
    nodes, quadrature = _chi_rule(d, width)
    quadrature = quadrature / quadrature.sum()  # exact for weights of one
    omega = kernel.weight(np.square(nodes / width))
    squares = np.square(nodes) * (d / float(quadrature @ np.square(nodes)))
    return float(quadrature @ omega), float(quadrature @ (squares * omega)) / d


def corrected_r2(left: Array, total: Array, kernel: Kernel, width: float) -> Array:
    """Coefficients of determination from weighted sums of squares.

    Weighting makes residuals appear smaller than they are, by the ratio of the
    `gaussian_moments`. For a constant target, the coefficient is zero as in
    scikit-learn, or one if it is predicted exactly.

    Parameters
    ----------
    left, total : ndarray of shape (n_outputs,)
        Weighted sums of squares of residuals, and of targets about their mean, nan
        if all weights are zero.
    kernel, width : Kernel, float
        Kernel of the weights, and its width in noise scales.
    """
    weight, square = gaussian_moments(kernel, width, len(left))
    a = weight / square
    with np.errstate(divide="ignore", invalid="ignore"):
        r2: Array = 1.0 - a * left / (total + (a - 1.0) * left)
    r2[total <= 0.0] = 0.0
    r2[(left == 0.0) & (total >= 0.0)] = 1.0
    return r2


def _chi_rule(d: int, c: float) -> tuple[Array, Array]:
    """Quadrature for the chi distribution, split at the kink of the kernel."""
    x, w = roots_legendre(80)
    far = float(chi.ppf(1.0 - 1e-16, d)) + 1.0
    root = np.sqrt(d)  # the distribution is concentrated within a few units of it
    edges = np.unique(np.clip([0.0, root - 9, root, root + 9, c / 2, c, far], 0.0, far))
    lo, hi = edges[:-1, None], edges[1:, None]
    nodes = (lo + (hi - lo) * (x + 1.0) / 2).ravel()
    weights: Any = ((hi - lo) / 2 * w).ravel() * chi.pdf(nodes, d)
    return nodes, weights
