r"""Covariance of robust estimates.

At an M-estimate with residuals r, confidence weights w = omega and estimating function
psi(r) = w r (in units of the residuals), homoscedastic noise and q parameters, ::

    V = K**2  m / (m - q)  mean(psi**2) / mean(psi')**2  mean(w)  (J'WJ)^-1
    K = 1 + (q / m)  var(psi') / mean(psi')**2

with means over the m residuals of positive weight (Huber & Ronchetti, "Robust
Statistics", section 7.6; the mean of w makes J'WJ comparable with the J'J of their
formula, and takes out residuals without weight). With w = 1 that is the covariance of
least squares, ``sum(r**2) / (m - q) (J'J)^-1``.

Everything here is a function of NumPy values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import Kernel

# Relative step of the derivative of a kernel's weight: the cube root of the precision.
_STEP = 6e-6


@dataclass(frozen=True)
class PsiMoments:
    """What the formula needs to know of residuals and weights."""

    count: float  # residuals of positive weight, m
    square: float  # mean of psi**2
    slope: float  # mean of psi'
    slope_variance: float
    weight: float  # mean of w

    def factor(self, n_parameters: int) -> float:
        """What (J'WJ)^-1 is multiplied by; infinite if there is nothing to tell."""
        freedom = self.count - n_parameters
        if freedom <= 0 or self.slope <= 0.0:
            return np.inf
        spread = self.slope_variance / self.slope**2
        correction = 1.0 + n_parameters / self.count * spread
        variance = self.square / self.slope**2 * self.count / freedom
        return float(correction**2 * variance * self.weight)


def psi_slope(kernel: Kernel, z: Array, residual_dim: int = 1) -> Array:
    """Mean derivative of r -> omega(|r|**2) r, given the squared norms z in widths.

    In d dimensions the derivative is a matrix, of trace d omega + 2 z omega'.
    """
    change = kernel.weight(z * (1.0 + _STEP)) - kernel.weight(z * (1.0 - _STEP))
    return kernel.weight(z) + change / _STEP / residual_dim


def psi_moments(
    kernel: Kernel,
    residual: Array,
    width: Any,
    sample_weight: Array | None = None,
) -> PsiMoments:
    """Moments over residual vectors.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    residual : ndarray of shape (n, d)
        Residual vectors.
    width : float or ndarray of shape (n,)
        Width of the kernel, in units of the residuals.
    sample_weight : ndarray of shape (n,) or None
        How often each of them counts.
    """
    d = residual.shape[1]
    squares = np.einsum("ij,ij->i", residual, residual)
    z = squares / np.square(width)
    w = kernel.weight(z)
    slope = psi_slope(kernel, z, d)
    counts = np.where(w > 0.0, 1.0 if sample_weight is None else sample_weight, 0.0)
    total = float(counts.sum())
    if total <= 0.0:
        return PsiMoments(0.0, np.nan, 0.0, np.nan, np.nan)

    def mean(values: Array) -> float:
        return float(counts @ values) / total

    mean_slope = mean(slope)
    return PsiMoments(
        total * d,
        mean(np.square(w) * squares) / d,
        mean_slope,
        mean(np.square(slope - mean_slope)),
        mean(w),
    )


def inverse_gram(J: Array) -> tuple[Array, Any]:
    """Inverse of J'J, and which parameters are not determined.

    If the rank is not full, a pseudo-inverse in parameters scaled by the norms of their
    columns. Columns of zeros are left out.
    """
    norms = np.sqrt(np.einsum("ij,ij->j", J, J))
    scale = np.where(norms > 0.0, norms, 1.0)
    # Of the triangular factor: the left singular vectors are not needed.
    R = np.linalg.qr(J / scale, mode="r")
    _, values, right = np.linalg.svd(R, full_matrices=True)
    values = np.append(values, np.zeros(len(right) - len(values)))
    return _inverse(values, right, scale, max(J.shape))


def inverse_symmetric(H: Array, size: int | None = None) -> tuple[Array, Any]:
    """The same for a positive semidefinite matrix J'J itself."""
    scale = np.sqrt(np.maximum(np.diagonal(H), 0.0))
    scale = np.where(scale > 0.0, scale, 1.0)
    values, vectors = np.linalg.eigh(H / np.outer(scale, scale))
    # The eigenvalues are squares, and have rounding errors of squares.
    floor = np.finfo(float).eps * max(size or 0, len(H)) * values.max(initial=0.0)
    values = np.sqrt(np.where(values > floor, values, 0.0))
    return _inverse(values, vectors.T, scale, len(H))


def _inverse(values: Array, right: Array, scale: Array, size: int) -> tuple[Array, Any]:
    floor = np.finfo(float).eps * size * values.max(initial=0.0)
    kept = values > floor
    half = right[kept] / values[kept, None] / scale
    undetermined = np.sum(np.square(right[~kept]), axis=0) > 1e-12
    return half.T @ half, undetermined
