"""Kernel of nonlinear least squares with known inliers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_mm._robust.arguments import checked_mask
from sklearn_mm._solver.roles import Array
from sklearn_mm.baselines import Joint
from sklearn_mm.kernels import Kernel, get_kernel


@dataclass(frozen=True, eq=False)
class WithKnownInliers(Kernel):
    """A kernel that is quadratic for residual vectors known to be inliers."""

    kernel: Kernel
    known: Any

    def loss(self, z: Any) -> Array:
        """Half of z where the inlier is known."""
        return np.where(self.known, np.asarray(z) / 2, self.kernel.loss(z))

    def weight(self, z: Any) -> Array:
        """One where the inlier is known."""
        return np.where(self.known, 1.0, self.kernel.weight(z))

    def penalty(self, u: Any) -> Array:
        """Zero where the inlier is known."""
        return np.where(self.known, 0.0, self.kernel.penalty(u))

    def upper_bound(self, z: Any, u: Any) -> Array:
        """Half of z where the inlier is known."""
        return np.where(self.known, np.asarray(z) / 2, self.kernel.upper_bound(z, u))


def checked_kernel(kernel: Any, known_inliers: Any, n: int, criterion: Any) -> Kernel:
    """The kernel, quadratic for known inliers."""
    kernel = get_kernel(kernel)
    if isinstance(criterion, Joint):
        _check_liftable(kernel)
    known = checked_mask("known_inliers", known_inliers, n, "residual vector")
    if known is None:
        return kernel
    if isinstance(criterion, Joint):
        raise ValueError(
            "criterion='joint' updates all weights and cannot be combined with "
            "known_inliers."
        )
    return WithKnownInliers(kernel, known)


def _check_liftable(kernel: Kernel) -> None:
    slope = float(kernel.penalty_slope(1.0))
    if not abs(slope) < 1e-4:
        raise ValueError(
            f"criterion='joint' needs a kernel whose penalty is smooth at u = 1, which "
            f"{kernel!r} is not."
        )
