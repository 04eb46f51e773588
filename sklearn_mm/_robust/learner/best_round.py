"""Rounds of inference and refitting for any learner, the best of which is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import Bunch

from sklearn_mm._robust.learner.out_of_fold import OutOfFold
from sklearn_mm._robust.learner.rounds import Reweighting, RobustLoss
from sklearn_mm._robust.learner.start import Noise, Targets
from sklearn_mm._solver.roles import Array
from sklearn_mm.criteria import get_criterion
from sklearn_mm.kernels import Kernel

# Effort of the upper bound of the first round. Kernels about three times as wide bring
# back rows that the start has rejected unnecessarily. This constant and the next were
# chosen on other functions than those of examples/benchmarks/robust_anything.py.
_FIRST_EFFORT = 0.35
# The plain fit is kept unless the robust loss of another is smaller by this fraction.
_MARGIN = 0.06
# Effort of exact weights, for criterion="fixed".
_EXACT = 1.0
# Constants of the criteria. Rounds are few and expensive here, so ReGeMM makes larger
# steps than with the values of the paper, 0.5 and 0.75.
_ETA, _ETA_PRIME, _RHO = 0.7, 0.85, 0.5


@dataclass(frozen=True)
class Kept:
    """A round: the weights of its fits and their out-of-fold predictions."""

    number: int
    confidence: Array | None  # None for the plain fit
    prediction: Array
    loss: float


def best_round(
    learner: OutOfFold,
    targets: Targets,
    noise: Noise,
    plain: Array,
    start: Array,
    *,
    kernel: Kernel,
    width: float,
    criterion: Any,
    max_iter: int,
    tol: float,
    verbose: int,
) -> tuple[Kept, Bunch]:
    """The round with the smallest robust loss, and the history of all rounds.

    Parameters
    ----------
    learner : OutOfFold
        Makes the refits.
    targets, noise : Targets, Noise
        Targets, and the scale of the noise.
    plain, start : ndarray
        Out-of-fold predictions of the plain fit and of the robust start.
    kernel, width : Kernel, float
        The kernel, and its width in units of the scale.
    criterion, max_iter, tol, verbose
        Parameters of the estimator.
    """

    def squares(prediction: Array) -> Array:
        return noise.squares(targets.residual(prediction)) / width**2

    loss = RobustLoss(kernel, targets.weight * np.square(width * noise.local))
    plain_loss = loss.value(squares(plain))
    kept = Kept(0, None, plain, plain_loss * (1.0 - _MARGIN))
    # If the start is not better than the plain fit, there was nothing to reject.
    at = start if loss.value(squares(start)) < plain_loss else plain
    criterion = get_criterion(
        criterion, eta=_ETA, eta_prime=_ETA_PRIME, rho=_RHO, effort=_EXACT
    )
    run = Reweighting(loss, criterion, squares(at), _FIRST_EFFORT)
    for number in range(1, max_iter + 1):
        confidence = run.weights()
        nothing = not np.any(confidence * targets.weight > 0.0)
        if nothing or run.settled(tol):
            break
        new = learner.predict(targets.y, targets.times(confidence))
        step = (new - at).reshape(len(new), -1)
        change = float(np.sqrt(np.mean(noise.squares(step)))) / width
        done = run.refitted(squares(new), change, tol)
        at = new
        candidate = Kept(number, confidence, new, loss.value(squares(new)))
        if candidate.loss < kept.loss:
            kept = candidate
        if verbose:
            _print_round(run.history.last(), number, plain_loss)
        if done:
            break
    history = run.record()
    history["plain_loss"] = plain_loss
    return kept, history


def _print_round(record: dict[str, float], number: int, plain_loss: float) -> None:
    if number == 1:
        print(
            f"{'round':>6} {'upper bound':>13} {'lower bound':>13} {'1/sigma':>8} "
            f"{'refit':>13}   (plain fit {plain_loss:.6g})"
        )
    print(
        f"{number:6d} {record['upper_bound']:13.6g} {record['lower_bound']:13.6g} "
        f"{record['effort']:8.4g} {record['loss']:13.6g}"
    )
