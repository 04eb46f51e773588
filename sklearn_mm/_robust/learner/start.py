"""Robust start for any learner, and the scale of the noise.

Both only use the out-of-fold predictions of the learner. The constants were chosen on
other functions than those of examples/benchmarks/robust_anything.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sklearn_mm._robust.learner.out_of_fold import OutOfFold
from sklearn_mm._robust.learner.scale import by_prediction, core_scale
from sklearn_mm._solver.roles import Array
from sklearn_mm.kernels import GemanMcClure

# Rounds of the start, and the first of them in which residuals are measured from those
# of rows with similar predictions.
_ROUNDS, _CENTRED_ROUNDS = 4, 2
# Rows per bin of predictions, and the largest number of bins.
_PER_BIN, _MAX_BINS = 50, 20
# The local scale is learnt in this many passes from residuals of up to so many scales,
# since outliers say nothing about the noise. (With 30 scales in one pass, a part of the
# data with many outliers seems to be hard to predict, and they are not rejected.) The
# logarithms of residuals are bounded below by that of this fraction of a scale, since a
# residual can be arbitrarily small by chance.
_PASSES, _FARTHEST, _NEAREST = 3, 5.0, 0.05
# Rows that are easy to predict are not judged more strictly than others, and the scale
# of those that are hard is at most this many times the usual one.
_LARGEST = 8.0
# Scales below this fraction of the size of the targets are rounding errors.
_RESOLUTION = 1e-12


@dataclass(frozen=True)
class Targets:
    """Targets and sample weights; residuals always have two dimensions."""

    y: Array
    weight: Array
    weighted: bool  # the user has passed weights

    def times(self, confidence: Array | None) -> Array | None:
        """Weights to fit with; None if all are one."""
        if confidence is None:
            return self.weight if self.weighted else None
        return self.weight * confidence

    def residual(self, prediction: Array) -> Array:
        """Residuals of shape (n_samples, n_outputs)."""
        return (self.y - prediction).reshape(len(self.y), -1)

    @property
    def resolution(self) -> float:
        """The smallest scale that is distinguished from zero."""
        return max(float(np.abs(self.y).max()) * _RESOLUTION, np.finfo(float).tiny)


@dataclass(frozen=True)
class Noise:
    """Scale of the residuals of inliers: one per output, times one per row."""

    scale: Array
    local: Array

    def squares(self, residual: Array) -> Array:
        """Squared norms of residuals in units of the scale."""
        squares: Array = np.square(residual / self.scale).sum(axis=1)
        return squares / np.square(self.local)


def robust_start(learner: OutOfFold, targets: Targets, plain: Array) -> Array:
    """Out-of-fold predictions of weighted fits that reject the outliers.

    One-sided outliers shift a whole fit towards them, so that the residuals of inliers
    are about as large as those of outliers. Among rows with similar predictions,
    however, most residuals agree: measured from their mode, in units of its width,
    outliers are far away. Using the mode of *similar* rows avoids that rows that are
    hard to predict, e.g. large targets, are mistaken for outliers.
    """
    kernel, prediction = GemanMcClure(), plain
    for number in range(_ROUNDS):
        residual = targets.residual(prediction)
        z = np.zeros(len(residual))
        for r, p in zip(residual.T, prediction.reshape(len(z), -1).T, strict=True):
            centre, scale = by_prediction(r, p, targets.weight, _PER_BIN, _MAX_BINS)
            if number >= _CENTRED_ROUNDS:
                centre = np.zeros_like(centre)
            scale = np.maximum(scale, targets.resolution)
            z += np.square((r - centre) / scale) / residual.shape[1]
        confidence = kernel.weight(z)
        # Weights of a narrow kernel are small, which would increase the effect of a
        # penalty.
        confidence /= np.average(confidence, weights=targets.weight)
        prediction = learner.predict(targets.y, targets.times(confidence))
    return prediction


def estimate_noise(learner: OutOfFold, targets: Targets, prediction: Array) -> Noise:
    """Scale of the core of the residuals, local as far as the learner predicts it.

    The local scale is learnt from residuals that are not outliers by the previous one,
    beginning with the same scale for all rows. Where the noise is larger, it grows from
    pass to pass. Where many rows are far outliers, it does not.
    """
    residual = targets.residual(prediction)
    noise = Noise(_core_scales(residual, targets), np.ones(len(residual)))
    size = np.sqrt(noise.squares(residual) / residual.shape[1])
    log_size = np.log(np.maximum(size, _NEAREST))
    used = np.zeros(len(size), dtype=bool)
    for _ in range(_PASSES):
        near = (size < _FARTHEST * noise.local) & (targets.weight > 0.0)
        if np.array_equal(near, used):
            break
        used = near
        expected = _expected(learner, log_size, targets, targets.weight * near)
        local = _local_scale(log_size, expected, targets.weight, near)
        noise = Noise(noise.scale, local)
    return Noise(_core_scales(residual / noise.local[:, None], targets), noise.local)


def _expected(
    learner: OutOfFold, log_size: Array, targets: Targets, weight: Array
) -> Array:
    """Out-of-fold predictions of the logarithms of the sizes of residuals."""
    # In the shape of y, which some learners of several outputs require.
    wanted = np.broadcast_to(log_size, targets.y.T.shape).T
    try:
        expected = learner.predict(wanted, weight)
    except ValueError:
        # Some learners, e.g. those of counts, only accept positive targets. The plain
        # fit has shown that there is no other reason.
        expected = learner.predict(wanted - np.log(_NEAREST) + 1.0, weight)
    return expected.reshape(len(log_size), -1).mean(axis=1)


def _local_scale(
    log_size: Array, expected: Array, weight: Array, near: NDArray[np.bool_]
) -> Array:
    """Relative scale of rows from the expected logarithm of their residuals.

    They are regressed on these out-of-fold predictions. If the learner only predicts
    noise, the slope is zero, and all rows have the same scale.
    """
    w = weight[near] / weight[near].sum()
    deviation = expected - w @ expected[near]
    variance = float(w @ np.square(deviation[near]))
    covariance = float(w @ (deviation[near] * log_size[near]))
    slope = np.clip(covariance / variance, 0.0, 1.0) if variance > 0.0 else 0.0
    local: Array = slope * deviation
    local -= np.median(local[weight > 0.0])
    return np.clip(np.exp(np.minimum(local, np.log(_LARGEST))), 1.0, None)


def _core_scales(residual: Array, targets: Targets) -> Array:
    """Scale of the core of each output; the standard deviation if half are equal."""
    scales = []
    for r in residual.T:
        scale = core_scale(r, targets.weight)
        if not scale > targets.resolution:
            scale = float(np.sqrt(np.average(np.square(r), weights=targets.weight)))
        scales.append(max(scale, targets.resolution))
    return np.array(scales)
