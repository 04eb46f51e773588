"""Result of `robust_least_squares`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.optimize import OptimizeResult
from scipy.sparse.linalg import LinearOperator

from sklearn_mm._estimator import warn_user
from sklearn_mm._robust.block_structure import BlockStructure
from sklearn_mm._robust.covariance import (
    inverse_gram,
    inverse_symmetric,
    psi_moments,
    undetermined,
)
from sklearn_mm._robust.schur import SchurPlan, SchurSystem
from sklearn_mm._robust.systems import weighted_rows
from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import Kernel


@dataclass(frozen=True)
class Fit:
    """What the covariance needs in addition to the fields of the result."""

    kernel: Kernel
    base_kernel: Kernel  # without known inliers
    tau: Any
    residual_dim: int
    structure: BlockStructure | None
    jacobian_error: float  # relative


class RobustLeastSquaresResult(OptimizeResult):
    """`OptimizeResult` with a method for the covariance of the parameters."""

    def __init__(self, fields: dict[str, Any], fit: Fit) -> None:
        super().__init__(fields)
        # Stored as an attribute, so that it is not among the fields.
        object.__setattr__(self, "_fit", fit)

    def __reduce__(self) -> Any:
        return RobustLeastSquaresResult, (dict(self), self._fit)

    def covariance(self, *, absolute: bool = False) -> Any:
        """Estimate the covariance of the parameters at the solution.

        Parameters
        ----------
        absolute : bool, default=False
            Whether the residuals are in units of their standard deviations, so that the
            scale of the noise is known. If False, it is estimated from the residuals.

        Returns
        -------
        covariance : ndarray of shape (n, n)
            The covariance. Rows and columns of fixed parameters are zero. With a
            `structure`, a pair: the covariance of the first group, and that of each
            block of the second group, of shape (n_second, second_dim, second_dim).

        Notes
        -----
        Outliers contribute according to their weights. The scale of the noise, and the
        loss of efficiency compared with least squares, are estimated from the residuals
        that have weight. The formula is that of an M-estimate for noise of constant
        variance, with Huber's correction for the number of parameters. With the
        quadratic kernel, it is that of :func:`scipy.optimize.curve_fit`. Bounds are not
        taken into account.

        If the Jacobian does not have full rank, up to the errors of finite differences,
        a warning is raised. The covariance of parameters that are not determined is
        infinite. With a `structure`, as in bundle
        adjustment without a fixed frame of reference, the result is a pseudo-inverse
        instead, which ignores what is not determined.
        """
        fit, weights = self._fit, self.weights
        residual = self.fun.reshape(-1, fit.residual_dim)
        root = np.sqrt(weights)
        if fit.structure is not None:
            (A, B), right = self.jac, root[:, None] * residual
            system = SchurSystem(SchurPlan(fit.structure), A, B, right, root)
            *blocks, open_ = system.inverse_blocks()
            rank = int(np.sum(~self.fixed))
        else:
            matrix, null_space = self._inverse(np.repeat(root, fit.residual_dim))
            # A column of tiny numbers does not determine its parameter either.
            open_ = undetermined(null_space, fit.jacobian_error)
            open_ |= ~np.isfinite(np.diagonal(matrix))
            blocks = [matrix]
            rank = len(matrix) - null_space.shape[1]
        free = ~self.fixed
        open_ = open_ & free[: len(open_)]
        if np.any(open_):
            names = np.flatnonzero(open_)
            warn_user(
                "The Jacobian at the solution does not have full rank: the data do not "
                f"determine all of the parameters {_listed(names)}. "
                + (
                    "Their covariance is infinite. "
                    if fit.structure is None
                    else "Their covariance ignores what is not determined. "
                )
                + "Fix some of them to obtain the others."
            )
        moments = psi_moments(
            fit.kernel, residual, fit.tau, base_kernel=fit.base_kernel
        )
        if absolute:
            # mean(psi**2) / mean(psi')**2 is known for noise of unit scale.
            width = float(np.median(fit.tau))
            lost = fit.base_kernel.efficiency(width, fit.residual_dim)
            factor = moments.weight / lost
        else:
            factor = moments.factor(rank)
        if not np.isfinite(factor):
            if moments.count > rank:
                reason = (
                    "Most residuals are so large compared with tau that x is not a "
                    "minimum of the robust cost."
                )
            else:
                reason = (
                    f"There are {moments.count:g} residuals of positive weight for "
                    f"{free.sum()} parameters."
                )
            warn_user(f"{reason} The covariance cannot be estimated.")
            # Infinite as in scipy, but still zero for fixed parameters.
            blocks = [np.abs(block) for block in blocks]
        with np.errstate(invalid="ignore"):
            blocks = [np.where(block == 0.0, 0.0, factor * block) for block in blocks]
        if fit.structure is None:
            blocks[0][np.ix_(open_, free)] = blocks[0][np.ix_(free, open_)] = np.inf
        return blocks[0] if fit.structure is None else tuple(blocks)

    def _inverse(self, root: Array) -> tuple[Array, Any]:
        J, error = self.jac, self._fit.jacobian_error
        if isinstance(J, LinearOperator):
            J = J @ np.eye(J.shape[1])
        J = weighted_rows(root, J)
        if scipy.sparse.issparse(J):
            return inverse_symmetric((J.T @ J).toarray(), max(J.shape), error)
        return inverse_gram(J, error)


def _listed(numbers: Any) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, ..." if len(numbers) > 8 else shown
