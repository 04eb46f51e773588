"""Covariance of the coefficients of a robust fit, and its robust R².

It is computed at the end of a fit by one pass over the rows (three more for HC3), and
stored in the coordinates of the solver, where columns are centred, so that variances of
predictions do not lose digits. Nothing refers to the training data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._robust.covariance import (
    Covariance,
    Influence,
    PsiMoments,
    decoupled,
    inverse_symmetric,
    mixed_sums,
    nonrobust_covariance,
    sandwich_covariance,
    score_noise,
    squared_scores,
    t_quantile,
    undetermined,
)
from sklearn_mm._robust.linear import (
    Frame,
    LinearPoint,
    LinearResidual,
    cache_blocks,
    targets,
)
from sklearn_mm._robust.problem import Confidence, HalfQuadraticProblem
from sklearn_mm._robust.scaling import Scaling
from sklearn_mm._rows.table import Column, Rows, SumOver
from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import Kernel, corrected_r2

# For more columns, the covariance (q**2 numbers per output) is not computed.
MAX_COLUMNS = 1_000
# Total weights below this fraction of a row would make leverages overflow.
_LEAST_WEIGHT = 1e-50
# Residuals below this part of the targets (root mean squares) are rounding errors.
_ROUNDING = 1e-13
# Part of a row's square in undetermined directions beyond which its mean is not
# determined either.
_OPEN = 1e-10


@dataclass(frozen=True)
class Inference:
    """Inference about the coefficients of a fit.

    Parameters
    ----------
    frame : Frame
        How columns were standardised.
    unit : ndarray of shape (n_outputs,)
        A variance of one in the units of the solver, in those of the user.
    n_rows : float
        Number of rows, counted by their sample weights.
    robust_r2 : ndarray of shape (n_outputs,)
        Proportion of the variance that is explained.
    cov_type : {"nonrobust", "HC3"}
        Kind of covariance.
    parts : tuple of Covariance or None
        The covariance of theta for each output, if available.
    distance : ndarray of shape (q, q) or None
        (X'WX + P)^-1 in standardised columns, for leverages.
    n_open : int
        Number of training rows whose mean is not determined by the rows that have
        weight.
    reason : str
        Why the covariance is not available, or not sufficient for intervals.
    exact : bool
        Whether the residuals of one of the outputs are nothing but rounding errors.
    """

    frame: Frame
    unit: Array
    n_rows: float
    robust_r2: Array
    cov_type: str
    parts: tuple[Covariance, ...] | None = None
    distance: Array | None = None
    n_open: int = 0
    reason: str = ""
    exact: bool = False

    @property
    def freedom(self) -> Array:
        """Degrees of freedom of the t distribution, for each output."""
        assert self.parts is not None
        return np.array([part.freedom for part in self.parts])

    @property
    def interpolates(self) -> bool:
        """Whether residuals are zero for want of degrees of freedom."""
        if self.parts is None:
            return False
        return self.exact and not bool(np.any(self.freedom > 0.0))

    def covariance(self) -> Array | None:
        """Covariances of the user's coefficients, (n_outputs, q, q).

        Entries of coefficients that the data do not determine are nan.
        """
        if self.parts is None:
            return None
        A = _to_users(self.frame)
        matrices = [_moved(A, part) for part in self.parts]
        return self.unit[:, None, None] * np.array(matrices)

    def standard_errors(self) -> Array:
        """Standard errors of the user's coefficients, (n_outputs, q)."""
        covariance = self.covariance()
        assert covariance is not None
        variance = np.diagonal(covariance, axis1=1, axis2=2)
        return np.sqrt(np.maximum(variance, 0.0))

    def quantile(self, level: float) -> Array:
        """Half-width of intervals in standard errors, for each output."""
        return t_quantile(level, self.freedom)

    def variance_of_mean(self, rows: Rows) -> Array:
        """Variance of predicted means, (n_rows, n_outputs).

        It is infinite where the data do not determine the mean.
        """
        assert self.parts is not None
        columns = []
        for unit, part in zip(self.unit, self.parts, strict=True):
            if not np.isfinite(part.matrix).all():
                columns.append(np.full(rows.n_rows, np.inf))
                continue
            args = (self.frame, unit * part.matrix, _projector(part))
            columns.append(rows.values(_variances, args=args))
        # Of NumPy or Dask arrays.
        stacked: Array = np.stack(columns, axis=-1)
        return stacked

    def leverages(self, rows: Rows) -> Array:
        """x'(X'WX + P)^-1 x of rows: large far from rows that have weight."""
        assert self.distance is not None
        args = (self.frame, self.distance)
        leverages: Array = rows.values(quadratic_forms, args=args)
        return leverages


def infer(
    problem: HalfQuadraticProblem,
    point: LinearPoint,
    scaling: Scaling,
    tuning: float,
    cov_type: str,
    memory: Column | None,
    estimated: bool,
) -> Inference:
    """Compute the covariance and the robust R² at the end of a fit.

    Parameters
    ----------
    problem, point : HalfQuadraticProblem, LinearPoint
        The problem and its solution.
    scaling : Scaling
        The units of the user.
    tuning : float
        Width of the kernel in noise scales.
    cov_type : {"nonrobust", "HC3"}
        Kind of covariance.
    memory : Column or None
        Memory for weights.
    estimated : bool
        Whether the scale was estimated.
    """
    model, kernel = problem.model, problem.kernel
    q, d = model.shape
    width = tuning if np.isfinite(kernel.tuning_constant(d)) else np.inf
    columns = (point.residual, model.y, problem.sample_weight)
    args = (kernel, problem.tau, model.centre, model.spread)
    weights = problem.weights(point, Confidence(effort=1.0), memory)
    wanted = [SumOver(_row_sums, columns, args, False)]
    if q <= MAX_COLUMNS and not model.l1:
        wanted.append(model.normal_sums(point.residual, weights))
    found = model.rows.sums(wanted)
    sums, mixing = decoupled(next(found))
    ridge = model.ridge
    reason, distance = "", None
    parts: list[Covariance] = []
    if model.l1:
        reason = "The covariance is not defined with an L1 penalty."
    elif q > MAX_COLUMNS:
        reason = f"The covariance of {q} > {MAX_COLUMNS} coefficients is not formed."
    else:
        gram, _ = next(found)
        distance = inverse_symmetric(gram + np.diag(ridge))[0]
        distance /= max(scaling.weight, _LEAST_WEIGHT)
        leverage = _leverage(model, distance) if cov_type == "HC3" else None
        for k in range(d):
            moments = PsiMoments.of_sums(
                sums[:5, k],
                scaling.total,
                kernel,
                width,
                d,
                scaling.weight,
                estimated,
            )
            if leverage is None:
                part = nonrobust_covariance(gram, moments, ridge)
            else:
                part = _sandwich(
                    problem, point, k, gram, moments, leverage, weights, mixing
                )
            parts.append(part)
        if model.alpha:
            reason = "The bias of penalised coefficients (alpha > 0) is not known."
    weight, first, second, left = sums[[1, 5, 6, 7]]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        about_mean = second - np.square(first) / weight
        unit = np.square(scaling.spread) / scaling.weight
        n_rows = scaling.weight * scaling.total
    return Inference(
        frame=model.frame,
        unit=unit,
        n_rows=n_rows,
        robust_r2=corrected_r2(left, about_mean, kernel, width),
        cov_type=cov_type,
        parts=tuple(parts) if parts else None,
        distance=distance,
        n_open=_n_undetermined(model, parts),
        reason=reason,
        exact=_is_exact(sums, model),
    )


def _n_undetermined(model: LinearResidual, parts: list[Covariance]) -> int:
    """Number of rows whose mean is not determined.

    What is open depends on rows, weights and penalty, which are those of all outputs.
    """
    for part in parts:  # the first one to which the formulas apply
        if (P := _projector(part)) is not None:
            return int(model.rows.sum(_count_undetermined, args=(model.frame, P)))
    return 0


def _leverage(model: LinearResidual, distance: Array) -> Column:
    """Leverages of all rows, which are needed once for each output."""
    rows, args = model.rows, (model.frame, distance)
    return rows.keep(rows.fill(rows.column(), quadratic_forms, args=args))


def _sandwich(
    problem: HalfQuadraticProblem,
    point: LinearPoint,
    output: int,
    gram: Array,
    moments: PsiMoments,
    leverage: Column,
    memory: Column,
    mixing: Array,
) -> Covariance:
    """HC3 of one output; `memory` is that of a column."""
    model: LinearResidual = problem.model
    columns = (point.residual, problem.sample_weight, leverage)
    args = (problem.kernel, problem.tau, output)
    noise = score_noise(gram, moments, model.ridge)
    fill = problem.rows.fill
    scores_of = (problem.kernel, problem.tau, mixing[output], noise)
    scores = fill(memory, _squared_scores, *columns, args=scores_of)
    meat, _ = model.normal_equations(point.residual, scores)
    bends = fill(memory, _bends, *columns, args=args)
    bend, _ = model.normal_equations(point.residual, bends)
    return sandwich_covariance(gram, moments, meat, bend, model.ridge)


def _is_exact(sums: Array, model: LinearResidual) -> bool:
    """Whether residuals are not larger than the rounding errors of their targets."""
    weight, second, left = sums[[1, 6, 7]]
    offset = np.abs(model.centre / model.spread)
    size = np.sqrt(second) + np.sqrt(weight) * offset
    return bool(np.any((weight > 0.0) & (np.sqrt(left) <= _ROUNDING * size)))


def _to_users(frame: Frame) -> Array:
    """Matrix that converts theta to coefficients in the units of X."""
    A = np.diag(np.append(1.0 / frame.scale, 1.0)[: frame.n_parameters])
    if frame.fit_intercept:
        A[-1, :-1] = -frame.mean / frame.scale
    return A


def _projector(part: Covariance) -> Array | None:
    """Projection of standardised rows onto directions that are not determined."""
    if not part.null_space.shape[1]:
        return None
    basis, _ = np.linalg.qr(part.null_space)
    return basis @ basis.T


def _moved(A: Array, part: Covariance) -> Array:
    """A V A', with nan where coefficients are not determined; infinite if V is."""
    if not np.isfinite(part.matrix).all():
        return part.matrix.copy()
    covariance: Array = A @ part.matrix @ A.T
    if part.null_space.shape[1]:
        # Terms of an intercept may cancel.
        size = np.sqrt(np.square(A) @ np.square(part.null_space))
        moved = A @ part.null_space / np.where(size > 0.0, size, 1.0)
        bad = undetermined(np.where(size > 1e-6 * size.max(axis=0), moved, 0.0))
        covariance[bad] = np.nan
        covariance[:, bad] = np.nan
    return covariance


# Tasks on rows and columns.


def _row_sums(
    residual: Array,
    y: Array,
    sample_weight: Array,
    kernel: Kernel,
    tau: float,
    centre: Array,
    spread: Array,
) -> Array:
    """Sums of `Influence`, and of w y, w y**2 and w r**2, (8, n_outputs).

    With several outputs, the `mixed_sums` follow.
    """
    Y = targets(y, centre, spread)
    influence = Influence.of(residual, kernel, tau)
    w = sample_weight * influence.weight
    more = np.stack([w @ Y, w @ np.square(Y), w @ np.square(residual)])
    sums = [influence.sums(sample_weight), more]
    if residual.shape[1] > 1:
        sums.append(mixed_sums(residual, influence, sample_weight))
    return np.concatenate(sums)


def _squared_scores(
    residual: Array,
    sample_weight: Array,
    leverage: Array,
    kernel: Kernel,
    tau: float,
    mixing: Array,
    noise: float,
    out: Array | None = None,
) -> Array:
    influence = Influence.of(residual, kernel, tau)
    psi = influence.psi @ mixing
    squares = squared_scores(psi, influence.weight, leverage, noise)
    return np.multiply(sample_weight, squares, out=out)


def _bends(
    residual: Array,
    sample_weight: Array,
    leverage: Array,
    kernel: Kernel,
    tau: float,
    output: int,
    out: Array | None = None,
) -> Array:
    influence = Influence.of(residual, kernel, tau)
    bend = np.maximum(influence.weight - influence.slope[:, output], 0.0)
    return np.multiply(sample_weight, bend, out=out)


def _variances(X: Any, frame: Frame, matrix: Array, P: Array | None) -> Array:
    variance = quadratic_forms(X, frame, matrix)
    if P is not None:
        variance[_undetermined_rows(X, frame, P)] = np.inf
    return variance


def _count_undetermined(X: Any, frame: Frame, P: Array) -> int:
    return int(np.sum(_undetermined_rows(X, frame, P)))


def _undetermined_rows(X: Any, frame: Frame, P: Array) -> Any:
    part = quadratic_forms(X, frame, P)
    return part > _OPEN * quadratic_forms(X, frame, np.eye(len(P)))


def quadratic_forms(
    X: Any, frame: Frame, matrix: Array, out: Array | None = None
) -> Array:
    """z' M z of all rows, z being standardised, with a one for the intercept."""
    if out is None:
        out = np.empty(X.shape[0])
    p = len(frame.mean)
    for block, rows in cache_blocks(X):
        part = X[block].toarray() if scipy.sparse.issparse(X) else X[block]
        np.subtract(part, frame.mean, out=rows)
        rows /= frame.scale
        out[block] = np.einsum("ij,ij->i", rows @ matrix[:p, :p], rows)
        if frame.fit_intercept:
            out[block] += 2.0 * (rows @ matrix[:p, p]) + matrix[p, p]
    return np.maximum(out, 0.0, out=out)
