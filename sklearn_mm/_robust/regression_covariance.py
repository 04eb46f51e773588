r"""Covariance of coefficients that a robust fit has found.

With residuals :math:`t_i = r_i / s`, :math:`\psi(t) = t \, \omega(t^2 / c^2)` and
weights :math:`w_i = \omega(t_i^2 / c^2)`, the fit solves
:math:`\sum_i s \psi(t_i) x_i = \alpha \beta`. Here x is a row of the design matrix, or
of the Jacobian of a nonlinear model. Linearised, with :math:`G = X^T W X` and noise
that does not depend on x,

.. math:: \sum_i \psi'_i x_i x_i^T \approx \rho G, \quad
          \rho = \sum \psi' / \sum w, \qquad
          \mathrm{var} \sum_i s \psi(t_i) x_i \approx
          s^2 \frac{m}{m - q} \frac{\sum \psi^2}{\sum w} G

.. math:: V = K^2 \, s^2 \frac{m}{m - q} \frac{\sum \psi^2}{\sum w}
          (\rho G + \alpha)^{-1} G (\rho G + \alpha)^{-1}, \quad
          K = 1 + \frac{q}{m} \frac{\mathrm{var} \, \psi'}{(\mathrm{mean} \, \psi')^2}

K is Huber's correction for few rows per parameter; m is the number of rows that take
part and :math:`q = \mathrm{tr} \, (\rho G + \alpha)^{-1} \rho G` that of the parameters
which the penalty leaves. The sums do not mind rows that are rejected; m does, and it is
all that does: it is the number of rows of positive weight where the kernel can give
zeros. Kernels that cannot leave a little weight to every outlier, and m is the number
of rows that would have the same total weight if the noise were normal,
:math:`\sum w / E \, \omega`, at most all of them. Both are n for least squares, where V
is the usual formula.

Where the noise depends on x, the sandwich (HC3) takes the place of the middle term:

.. math:: V = H^{-1} \sum_i \left(\frac{s \psi_i}{1 - h_i}\right)^2 x_i x_i^T H^{-1},
          \quad H = \sum_i \psi'_i x_i x_i^T + \alpha, \quad
          h_i = w_i x_i^T (G + \alpha)^{-1} x_i
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh
from scipy.special import stdtrit
from scipy.stats import chi

from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import Kernel

# Relative step of central differences: the cube root of the machine precision.
_STEP = 6e-6
# Residuals below this are differentiated with a step of their own.
_SMALL = 1e-3
# Points of the midpoint rule for expectations under a normal law.
_N_POINTS = 4000
# Directions with eigenvalues below this part of the largest are not determined.
_RANK = 1e-13
# The curvature of the sum of psi is used where it keeps this part of rho G in every
# direction; it may be indefinite for kernels that reject.
_CURVATURE = 0.1
# Leverages are kept this far from one.
_LEVERAGE = 1e-8


@dataclass(frozen=True)
class Covariance:
    """Covariance of q coefficients, and what is needed to make intervals of it."""

    matrix: Array
    n_rows: float  # m, rows that take part
    n_parameters: float  # q, effective
    rank: int

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the t distribution."""
        return max(self.n_rows - self.n_parameters, 0.0)

    @property
    def deficient(self) -> bool:
        """Whether some directions are not determined; they have variance zero here."""
        return self.rank < len(self.matrix)

    @property
    def standard_errors(self) -> Array:
        """Square roots of the diagonal."""
        return np.sqrt(np.maximum(np.diag(self.matrix), 0.0))

    def quantile(self, level: float) -> float:
        """Half-width of an interval of that level, in standard errors."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must be in (0, 1), got {level!r}.")
        if self.freedom <= 0.0:
            return float("inf")
        return float(stdtrit(self.freedom, 0.5 + level / 2.0))


@dataclass(frozen=True)
class Influence:
    """psi, its derivative and the weight at scaled residuals."""

    psi: Array
    slope: Array
    weight: Array

    @classmethod
    def of(
        cls, residual: Array, scale: float, kernel: Kernel, width: float
    ) -> Influence:
        """Influence of residuals, with a kernel of `width` scales (may be infinite)."""
        width = width if np.isfinite(width) else 1.0
        t = np.asarray(residual, dtype=np.float64) / scale
        step = _STEP * np.maximum(np.abs(t), _SMALL)
        weight = kernel.weight(np.square(t / width))
        ahead, behind = (
            x * kernel.weight(np.square(x / width)) for x in (t + step, t - step)
        )
        return cls(t * weight, (ahead - behind) / (2.0 * step), weight)


def weighted_gram(design: Array, weight: Array) -> Array:
    """The matrix X'WX."""
    gram: Array = (design * weight[:, None]).T @ design
    return gram


def count_rows(
    influence: Influence, kernel: Kernel, width: float, sample_weight: Array
) -> float:
    """Number m of rows that take part; a sample weight of k is k rows."""
    total = float(sample_weight.sum())
    if not np.isfinite(width):
        return total
    if float(kernel.weight(1e300)) == 0.0 and float(kernel.weight(1.5)) == 0.0:
        return float(sample_weight[influence.weight > 0.0].sum())
    nodes = chi.ppf((np.arange(_N_POINTS) + 0.5) / _N_POINTS, 1)
    expected = float(kernel.weight(np.square(nodes / width)).mean())
    return min(float(sample_weight @ influence.weight) / expected, total)


def nonrobust_covariance(
    gram: Array,
    residual: Array,
    *,
    scale: float,
    kernel: Kernel,
    width: float,
    penalty: Array | float = 0.0,
    sample_weight: Array | None = None,
) -> Covariance:
    """Covariance for noise that is the same in all rows.

    Parameters
    ----------
    gram : ndarray of shape (q, q)
        X'WX with the confidence weights times the sample weights.
    residual : ndarray of shape (n_samples,)
        Residuals.
    scale : float
        Scale of the noise.
    kernel : Kernel
        The kernel of the fit.
    width : float
        Its width in scales; infinite for least squares.
    penalty : float or ndarray of shape (q,)
        L2 penalty of each coefficient (zero for the intercept).
    sample_weight : ndarray of shape (n_samples,)
        The user's weights; a weight of k is k copies of the row.
    """
    weight = _weights(residual, sample_weight)
    influence = Influence.of(residual, scale, kernel, width)
    m = count_rows(influence, kernel, width, weight)
    total, slope = (float(weight @ a) for a in (influence.weight, influence.slope))
    if not (total > 0.0 and slope > 0.0):
        return Covariance(np.full(gram.shape, np.nan), m, len(gram), 0)
    rho = slope / total
    bread, rank = _inverse(rho * gram + np.diag(_diagonal(penalty, len(gram))))
    q = float(np.einsum("ij,ji->", bread, rho * gram))
    mean = slope / m
    variance = max(float(weight @ np.square(influence.slope)) / m - mean**2, 0.0)
    correction = 1.0 + q / m * variance / mean**2
    noise = scale**2 * float(weight @ np.square(influence.psi)) / total
    noise *= m / (m - q) if m > q else np.inf
    with np.errstate(invalid="ignore"):
        matrix = correction**2 * noise * (bread @ gram @ bread)
    return Covariance(matrix, m, q, rank)


def sandwich_covariance(
    design: Array,
    residual: Array,
    *,
    scale: float,
    kernel: Kernel,
    width: float,
    penalty: Array | float = 0.0,
    sample_weight: Array | None = None,
) -> Covariance:
    """Covariance for noise that differs from row to row (HC3).

    The parameters are those of `nonrobust_covariance`, but for the design matrix (or
    Jacobian) of shape (n_samples, q) in place of the Gram matrix.
    """
    weight = _weights(residual, sample_weight)
    influence = Influence.of(residual, scale, kernel, width)
    m = count_rows(influence, kernel, width, weight)
    total, slope = (float(weight @ a) for a in (influence.weight, influence.slope))
    n_columns = design.shape[1]
    if not (total > 0.0 and slope > 0.0):
        return Covariance(np.full((n_columns,) * 2, np.nan), m, n_columns, 0)
    gram = weighted_gram(design, weight * influence.weight)
    ridge = np.diag(_diagonal(penalty, n_columns))
    rho = slope / total
    inverse, rank = _inverse(gram + ridge)
    # A weight of k stands for k rows, each of which has its own leverage.
    leverage = influence.weight * np.einsum("ij,jk,ik->i", design, inverse, design)
    leverage = np.minimum(leverage, 1.0 - _LEVERAGE)
    score = scale * influence.psi / (1.0 - leverage)
    meat = weighted_gram(design, weight * np.square(score))
    curvature = weighted_gram(design, weight * influence.slope)
    if not _positive(curvature - _CURVATURE * rho * gram + ridge):
        curvature = rho * gram
    bread, _ = _inverse(curvature + ridge)
    shrunk, _ = _inverse(rho * gram + ridge)
    q = float(np.einsum("ij,ji->", shrunk, rho * gram))
    return Covariance(bread @ meat @ bread, m, q, rank)


def _weights(residual: Array, sample_weight: Array | None) -> Array:
    return np.ones(len(residual)) if sample_weight is None else sample_weight


def _diagonal(penalty: Array | float, n_columns: int) -> Array:
    return np.broadcast_to(np.asarray(penalty, dtype=np.float64), n_columns)


def _positive(matrix: Array) -> bool:
    """Whether a symmetric matrix is positive definite."""
    try:
        cho_factor(matrix)
    except LinAlgError:
        return False
    return True


def _inverse(matrix: Array) -> tuple[Array, int]:
    """(Pseudo-)inverse of a positive semi-definite matrix, and its rank.

    Columns may be of very different size: the matrix is brought to a unit diagonal
    first, where its rank is a matter of correlations.
    """
    size = np.sqrt(np.diag(matrix))
    size = np.where(size > 0.0, size, 1.0)
    unit = matrix / np.outer(size, size)
    values, vectors = eigh(unit)
    sound = values > _RANK * len(values) * max(float(values[-1]), 0.0)
    rank = int(sound.sum())
    if rank == len(values):
        inverse = cho_solve(cho_factor(unit), np.eye(len(unit)))
    else:
        basis = vectors[:, sound]
        inverse = basis / values[sound] @ basis.T
    return inverse / np.outer(size, size), rank
