r"""Covariance of the parameters of a robust fit.

With residuals r, confidence weights :math:`w_i = \omega(r_i^2 / \tau^2)` and
:math:`\psi_i = w_i r_i`, the fit solves :math:`\sum_i \psi_i x_i = P \beta`. Here x is
a row of the design matrix, or of the Jacobian of a nonlinear model, and P the matrix of
an L2 penalty. Linearised, with :math:`G = X^T W X` and noise that does not depend on x,

.. math:: \sum_i \psi'_i x_i x_i^T \approx \rho G, \quad
          \rho = \sum \psi' / \sum w, \qquad
          \mathrm{var} \sum_i \psi_i x_i \approx
          \frac{m}{m - q} \frac{\sum \psi^2}{\sum w} G

.. math:: V = K^2 \, \frac{m}{m - q} \frac{\sum \psi^2}{\sum w}
          (\rho G + P)^{-1} G (\rho G + P)^{-1}, \quad
          K = 1 + a \, \frac{q}{m}
          \frac{\mathrm{var} \, \psi'}{(\mathrm{mean} \, \psi')^2}

With a = 1, K is Huber's correction for few rows per parameter (Huber & Ronchetti,
"Robust Statistics", section 7.6), which he derives for convex losses. If psi redescends
and its scale is estimated from the same rows, it is also uncertain which of them the
fit rejects, which no linearisation accounts for. This matters where many rows are
neither kept nor rejected, and then the variance of psi' is large. So a = 6 there, a
number found in simulations (see `_UNCERTAIN`).

Further, m is the number of rows that contribute, and :math:`q = \mathrm{tr} \, (\rho G
+ P)^{-1} \rho G` is the effective number of parameters. Rejected rows do not contribute
to the sums and must not be counted. If the kernel has zero weights, m is the number of
rows of positive weight. With other kernels, all outliers have some weight, and m is the
number of rows that would have the same total weight if the noise were normal,
:math:`\sum w / E \, \omega`, but at most n. For least squares, both are n, and V is the
usual formula.

If the noise depends on x, the middle term is replaced by that of HC3:

.. math:: V = H^{-1} \sum_i \left(\frac{\psi_i}{1 - h_i}\right)^2 x_i x_i^T H^{-1},
          \quad H = \sum_i \psi'_i x_i x_i^T + P, \quad
          h_i = w_i x_i^T (G + P)^{-1} x_i

A row of leverage one, such as the only one of its category, has no residual, whatever
its noise, and :math:`\psi' = w`. Its score is taken to have the variance that gives the
first formula there, :math:`w_i / \rho^2` times that of a unit of G.

Several outputs that share a weight have :math:`\psi_k = \omega(\|r\|^2 / \tau^2) r_k`,
whose derivative in its own residual is :math:`\omega + 2 z \omega'(z) r_k^2 / \|r\|^2`.
If the noise of the outputs is correlated, so are the scores, and the derivatives in the
other residuals do not vanish on average. With M, the mean of the matrices of all
derivatives, psi is replaced by :math:`\mathrm{diag}(M) M^{-1} \psi` in the variance of
the scores of each output. This is exact for the linearised equations of all outputs if
there is no penalty.

All functions take and return NumPy values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.special import stdtrit

from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import Kernel, gaussian_moments

# Relative step of the derivative of a kernel's weight, with an error of the same size.
_STEP = 1e-7
# Eigenvalues are computed if a squared pivot of a matrix with unit diagonal is below
# this.
_SAFE_PIVOT = 1e-10
# The curvature of the sum of psi is used if it is at least this fraction of rho G in
# all directions. It may be indefinite for kernels that reject.
_CURVATURE = 0.1
# Factor a of Huber's correction for kernels that redescend, with estimated scales. It
# was chosen on data with 4.5 to 7 rows per parameter (40 x 7, 50 x 9, 60 x 8, 80 x 16)
# as the largest whole number with which 95 % intervals of clean data cover at most
# 0.97: they covered .955 to .969 (.932 to .947 with a = 1), and .913 to .961 (.874 to
# .923) with a fifth of the rows 4 to 8 scales away.
_UNCERTAIN = 6.0
# Rounding errors of sums over rows, in multiples of those of one product.
_ROUNDINGS = 500
# Rounding error of the number of parameters, for each of them.
_WHOLE = 1e-9
# Leverages that differ less from one are one, up to rounding.
_LEVERAGE = 1e-8


@dataclass(frozen=True)
class Influence:
    """Weights of residual vectors, psi of their entries, and its derivative."""

    weight: Array  # (n,)
    psi: Array  # (n, d)
    slope: Array  # (n, d)

    @classmethod
    def of(cls, residual: Array, kernel: Kernel, width: Any) -> Influence:
        """Influence of residuals of shape (n, d); one width, or one for each row."""
        squares = np.square(residual)
        norms = squares[:, 0] if residual.shape[1] == 1 else squares.sum(axis=1)
        z = norms / np.square(width)
        weight = kernel.weight(z)
        z *= 1.0 + _STEP
        radial = kernel.weight(z)  # towards 2 z omega'(z)
        radial -= weight
        radial *= 2.0 / _STEP
        if residual.shape[1] == 1:
            slope = (weight + radial)[:, None]
        else:
            share = squares / np.where(norms > 0.0, norms, 1.0)[:, None]
            slope = weight[:, None] + radial[:, None] * share
        return cls(weight, weight[:, None] * residual, slope)

    def sums(self, sample_weight: Array) -> Array:
        """Sums over rows for `PsiMoments.of_sums`, (5, d)."""
        d = self.psi.shape[1]
        counts = np.where(self.weight > 0.0, sample_weight, 0.0)
        sums = np.empty((5, d))
        sums[0] = counts.sum()
        sums[1] = sample_weight @ self.weight
        sums[2] = sample_weight @ np.square(self.psi)
        sums[3] = counts @ self.slope
        sums[4] = counts @ np.square(self.slope)
        return sums


def mixed_sums(residual: Array, influence: Influence, sample_weight: Array) -> Array:
    """Sums of derivatives of psi in all residuals, and of products of psi, (2 d, d)."""
    d = residual.shape[1]
    norms = np.square(residual).sum(axis=1)
    radial = influence.slope.sum(axis=1) - d * influence.weight  # 2 z omega'(z)
    bent = sample_weight * radial / np.where(norms > 0.0, norms, 1.0)
    slopes = (bent[:, None] * residual).T @ residual
    slopes.flat[:: d + 1] += sample_weight @ influence.weight
    products = (sample_weight[:, None] * influence.psi).T @ influence.psi
    return np.concatenate([slopes, products])


def decoupled(sums: Array) -> tuple[Array, Array]:
    """Sums of outputs with correlated noise, as if they were fitted separately.

    Parameters
    ----------
    sums : ndarray of shape (m, d) or (m + 2 d, d)
        `Influence.sums` and other sums, with the `mixed_sums` last if d > 1.

    Returns
    -------
    sums : ndarray of shape (m, d)
        The same without them, with sums of squares of the decoupled psi.
    mixing : ndarray of shape (d, d)
        diag(M) M^-1, by which psi is decoupled. The identity if M is nearly singular,
        which may happen with kernels that reject.
    """
    d = sums.shape[1]
    mixing = np.eye(d)
    if d == 1:
        return sums, mixing
    sums, slopes, products = np.split(sums, [len(sums) - 2 * d, len(sums) - d])
    root = np.sqrt(np.maximum(slopes.diagonal(), 0.0))
    if root.all():
        values, vectors = np.linalg.eigh(slopes / np.outer(root, root))
        if values[0] > _CURVATURE:
            inverse = (vectors / values) @ vectors.T
            mixing = root[:, None] * inverse / root
    sums[2] = np.einsum("ij,jk,ik->i", mixing, products, mixing)
    return sums, mixing


@dataclass(frozen=True)
class PsiMoments:
    """Moments of residuals and weights in the formulas.

    Means are over m, the number of residuals that contribute.
    """

    count: float  # m
    weight: float  # mean of w
    square: float  # mean of psi**2
    slope: float  # mean of psi'
    slope_variance: float
    correction: float = 1.0  # a

    @classmethod
    def of_sums(
        cls,
        sums: Array,
        total: float,
        kernel: Kernel,
        width: float,
        residual_dim: int = 1,
        unit: float = 1.0,
        estimated: bool = False,
    ) -> PsiMoments:
        """Moments from a column of `Influence.sums`.

        Parameters
        ----------
        sums : ndarray of shape (5,)
            The sums.
        total : float
            Sum of the sample weights, a number of rows.
        kernel, width : Kernel, float
            The kernel, and its width in noise scales.
        residual_dim : int, default=1
            Number of outputs that share a weight.
        unit : float, default=1.0
            Number of rows that a sample weight of one stands for.
        estimated : bool, default=False
            Whether the scale of the kernel's width was estimated from the same rows.
        """
        positive, weight, square, slope, slope_square = map(float, sums)
        m = positive
        if not _rejects(kernel):
            m = min(weight / gaussian_moments(kernel, width, residual_dim)[0], total)
        if m <= 0.0:
            return cls(0.0, np.nan, np.nan, 0.0, np.nan)
        variance = max(slope_square / m - (slope / m) ** 2, 0.0)
        a = _UNCERTAIN if estimated and _redescends(kernel) else 1.0
        return cls(unit * m, weight / m, square / m, slope / m, variance, a)

    @property
    def determined(self) -> bool:
        """Whether the formulas apply."""
        return self.count > 0.0 and self.slope > 0.0

    @property
    def curvature(self) -> float:
        """rho, the mean of psi' per unit of weight."""
        return self.slope / self.weight

    def noise(self, n_parameters: float) -> float:
        """Variance of a score per unit of G, with both corrections.

        Infinite if there are not more residuals than parameters.
        """
        freedom = self.count - n_parameters
        if freedom <= 0.0 or not self.determined:
            return np.inf
        spread = self.slope_variance / self.slope**2
        correction = 1.0 + self.correction * n_parameters / self.count * spread
        return correction**2 * self.count / freedom * self.square / self.weight

    def factor(self, n_parameters: float) -> float:
        """Factor of G^-1 if there is no penalty."""
        if not self.determined:
            return np.inf
        return self.noise(n_parameters) / self.curvature**2


def psi_moments(
    kernel: Kernel,
    residual: Array,
    width: Any,
    sample_weight: Array | None = None,
    *,
    base_kernel: Kernel | None = None,
) -> PsiMoments:
    """Moments over all entries of residual vectors whose noise scale is not known.

    The mean slope over a vector's entries is taken, and m counts entries. Where the
    kernel does not reject, the width is taken to be the one of 95% efficiency.

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
    base_kernel : Kernel or None
        The kernel for rows of which nothing is known, if it is another one.
    """
    n, d = residual.shape
    influence = Influence.of(residual, kernel, width)
    weight = np.ones(n) if sample_weight is None else sample_weight
    mean = Influence(
        influence.weight,
        np.sqrt(np.square(influence.psi).mean(axis=1))[:, None],
        influence.slope.mean(axis=1)[:, None],
    )
    base = kernel if base_kernel is None else base_kernel
    constant = base.tuning_constant(d)
    sums = mean.sums(weight)[:, 0]
    moments = PsiMoments.of_sums(sums, float(weight.sum()), base, constant, d)
    return replace(moments, count=moments.count * d)


@dataclass(frozen=True)
class Covariance:
    """Covariance of q coefficients, and what is needed to make intervals of it."""

    matrix: Array  # zero in what the data do not determine; infinite if all is open
    n_rows: float  # m, rows that take part
    n_parameters: float  # q, effective
    null_space: Array  # (q, k), a basis of what the data do not determine

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the t distribution."""
        return max(self.n_rows - self.n_parameters, 0.0)


def nonrobust_covariance(
    gram: Array, moments: PsiMoments, penalty: Array | float = 0.0
) -> Covariance:
    """Covariance for noise with the same variance in all rows.

    Parameters
    ----------
    gram : ndarray of shape (q, q)
        X'WX with the confidence weights times the sample weights.
    moments : PsiMoments
        Moments of residuals and weights.
    penalty : float or ndarray of shape (q,)
        L2 penalty of each coefficient (zero for the intercept).
    """
    bread, null_space, q = _bread(gram, moments, penalty)
    meat = moments.noise(q) * gram if moments.count > q else gram
    return _covariance(bread, meat, moments.count, q, null_space)


def sandwich_covariance(
    gram: Array,
    moments: PsiMoments,
    meat: Array,
    bend: Array,
    penalty: Array | float = 0.0,
) -> Covariance:
    """Covariance for noise whose variance differs between rows (HC3).

    The parameters are those of `nonrobust_covariance`, and

    Parameters
    ----------
    meat : ndarray of shape (q, q)
        Sum of the `squared_scores` times x x'.
    bend : ndarray of shape (q, q)
        Sum of (w - psi') x x'.
    """
    shrunk, null_space, q = _bread(gram, moments, penalty)
    bread, ridge = shrunk, _diagonal(penalty, len(gram))
    if moments.determined and not null_space.shape[1]:
        curvature = gram - bend + ridge
        least = _CURVATURE * moments.curvature * gram
        if _is_definite(curvature - least):
            bread = inverse_symmetric(curvature)[0]
    return _covariance(bread, meat, moments.count, q, null_space)


def squared_scores(psi: Array, weight: Array, leverage: Array, noise: float) -> Array:
    """(psi / (1 - h))**2 of HC3, or the expected square if the leverage h is one.

    Parameters
    ----------
    psi, weight : ndarray of shape (n,)
        psi of the residuals, and confidence weights.
    leverage : ndarray of shape (n,)
        x'(G + P)^-1 x of the rows.
    noise : float
        Variance of a score per unit of weight, see `score_noise`.
    """
    apart = 1.0 - weight * leverage
    alone = apart < _LEVERAGE
    squares = np.square(psi / np.where(alone, 1.0, apart))
    return np.where(alone, noise * weight, squares)


def score_noise(
    gram: Array, moments: PsiMoments, penalty: Array | float = 0.0
) -> float:
    """Variance of the score of a row of leverage one, per unit of weight.

    The noise is assumed to be the same in all rows. Zero if there are not more rows
    than parameters, when it is not needed.
    """
    noise = moments.factor(_bread(gram, moments, penalty)[2])
    return noise if np.isfinite(noise) else 0.0


def _covariance(
    bread: Array, meat: Array, n_rows: float, q: float, null_space: Array
) -> Covariance:
    if n_rows > q:
        matrix = bread @ meat @ bread
    else:
        matrix = np.full_like(bread, np.inf)
    return Covariance(matrix, n_rows, q, null_space)


def _bread(
    gram: Array, moments: PsiMoments, penalty: Array | float
) -> tuple[Array, Array, float]:
    """(rho G + P)^-1, the null space, and the effective number of parameters."""
    if not moments.determined:
        return np.zeros_like(gram), np.zeros((len(gram), 0)), np.inf
    curved = moments.curvature * gram
    curvature = curved + _diagonal(penalty, len(gram))
    bread, null_space = inverse_symmetric(curvature, _ROUNDINGS * len(gram))
    null_space = null_space / _sizes(curvature)[:, None]
    q = float(np.einsum("ij,ji->", bread, curved))
    # Without a penalty q is a whole number. Rounding errors must not leave a degree of
    # freedom where there is none.
    if abs(q - round(q)) <= _WHOLE * len(gram):
        q = float(round(q))
    return bread, null_space, q


def _rejects(kernel: Kernel) -> bool:
    """Whether residuals beyond the kernel's width have weight zero."""
    return float(kernel.weight(1.5)) == 0.0


def _redescends(kernel: Kernel) -> bool:
    """Whether psi, the weight times the residual, decreases for large residuals."""
    near, far = float(kernel.weight(1.0)), 1e2 * float(kernel.weight(1e4))
    return _rejects(kernel) or far < 0.5 * near


def _diagonal(penalty: Array | float, n_columns: int) -> Array:
    values = np.asarray(penalty, dtype=np.float64)
    return np.diag(np.broadcast_to(values, n_columns))


def _is_definite(matrix: Array) -> bool:
    try:
        cholesky(matrix, check_finite=False)
    except LinAlgError:
        return False
    return True


def t_quantile(level: Any, freedom: Any) -> Array:
    """Half-width of an interval of that level, in standard errors."""
    freedom = np.asarray(freedom, dtype=np.float64)
    known = freedom > 0.0
    quantile = stdtrit(np.where(known, freedom, 1.0), 0.5 + level / 2.0)
    return np.where(known, quantile, np.inf)


def inverse_symmetric(
    H: Array, size: int = 0, error: float = 0.0
) -> tuple[Array, Array]:
    """(Pseudo-)inverse of a positive semidefinite matrix, and its null space.

    Columns may be of very different size: the matrix is first scaled to a unit
    diagonal, so that its rank only depends on correlations. The basis, of shape (q, k),
    is in these coordinates. `size` is the number of products of which entries are sums,
    for an estimate of their rounding errors, and `error` the relative error of the
    Jacobian whose square H is.
    """
    scale = _sizes(H)
    unit = H / np.outer(scale, scale)
    try:
        lower = cholesky(unit, lower=True, check_finite=False)
        if lower.diagonal().min(initial=1.0) ** 2 > max(_SAFE_PIVOT, error):
            full = cho_solve((lower, True), np.eye(len(H)), check_finite=False)
            return full / np.outer(scale, scale), np.zeros((len(H), 0))
    except LinAlgError:
        pass
    values, vectors = np.linalg.eigh(unit)
    # The eigenvalues are squares, and have rounding errors of squares.
    floor = np.finfo(float).eps * max(size, len(H)) * values.max(initial=0.0)
    values = np.sqrt(np.where(values > floor, values, 0.0))
    return _of_factor(values, vectors.T, scale, len(unit), error)


def inverse_gram(J: Array, error: float = 0.0) -> tuple[Array, Array]:
    """The same for J'J, computed from J, which has the given relative error.

    If the rank is not full, a pseudo-inverse in parameters scaled by the norms of their
    columns. Columns of zeros are left out.
    """
    norms = np.sqrt(np.einsum("ij,ij->j", J, J))
    scale = np.where(norms > 0.0, norms, 1.0)
    # The triangular factor is sufficient without left singular vectors.
    R = np.linalg.qr(J / scale, mode="r")
    _, values, right = np.linalg.svd(R, full_matrices=True)
    values = np.append(values, np.zeros(len(right) - len(values)))
    return _of_factor(values, right, scale, max(J.shape), error)


def undetermined(null_space: Array, error: float = 0.0) -> Any:
    """Mask of the parameters that are not determined, given the null space."""
    return np.sum(np.square(null_space), axis=1) > max(1e-12, error)


def _sizes(H: Array) -> Array:
    scale = np.sqrt(np.maximum(np.diagonal(H), 0.0))
    return np.where(scale > 0.0, scale, 1.0)


def _of_factor(
    values: Array, right: Array, scale: Array, size: int, error: float
) -> tuple[Array, Array]:
    """The inverse, and a basis of the null space."""
    error = max(error, np.finfo(float).eps * size)
    kept = values > error * values.max(initial=0.0)
    with np.errstate(over="ignore"):  # infinite for a column of tiny numbers
        half = right[kept] / values[kept, None] / scale
        return half.T @ half, right[~kept].T
