"""Constraints and resolved values of the parameters of the estimators."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from sklearn_mm._estimator import N_JOBS, criterion_options
from sklearn_mm._hebbian.energy import BOXES
from sklearn_mm.baselines import Alternating, Joint
from sklearn_mm.criteria import Graduated, get_criterion
from sklearn_mm.losses import LOSSES

CONSTRAINTS: dict = {
    "hidden_layer_sizes": [
        "array-like",
        Interval(Integral, 1, None, closed="left"),
    ],
    "criterion": criterion_options("sudemm", "regemm", "fixed", "alternating"),
    "loss": [StrOptions(set(LOSSES)), HasMethods(["value", "descent"])],
    "huber_width": [Interval(Real, 0, None, closed="neither")],
    "activation": [StrOptions(set(BOXES))],
    "standardize": ["boolean"],
    "average": ["boolean"],
    "feedback": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="right")],
    "solver": [StrOptions({"adam", "sgd", "gd"})],
    "learning_rate_init": [
        StrOptions({"auto"}),
        Interval(Real, 0, None, closed="neither"),
    ],
    "learning_rate": [StrOptions({"constant", "invscaling"})],
    "power_t": [Interval(Real, 0, None, closed="left")],
    "momentum": [Interval(Real, 0, 1, closed="left")],
    "batch_size": [
        StrOptions({"auto"}),
        None,
        Interval(Integral, 1, None, closed="left"),
    ],
    "inference": [StrOptions({"block", "coordinate"})],
    "rho": [Interval(Real, 0, None, closed="neither")],
    "eta": [Interval(Real, 0, 1, closed="neither")],
    "n_passes": [Interval(Integral, 1, None, closed="left")],
    "max_passes": [Interval(Integral, 1, None, closed="left")],
    "inference_tol": [Interval(Real, 0, None, closed="neither")],
    "alpha": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "early_stopping": ["boolean"],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
    "shuffle": ["boolean"],
    "warm_start": ["boolean"],
    "chunk_size": [None, Interval(Integral, 1, None, closed="left")],
    "n_jobs": N_JOBS,
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


def supports_partial_fit(estimator):
    """Whether `partial_fit` is available; raise an error with the reason if not."""
    criterion = estimator.criterion
    full = isinstance(criterion, str) and criterion in ("regemm", "alternating")
    if full or getattr(criterion, "needs_full_batch", False):
        raise AttributeError(
            f"partial_fit is not available with criterion={criterion!r}, which "
            "requires all rows in each update."
        )
    if estimator.solver == "gd":
        raise AttributeError(
            "partial_fit is not available with solver='gd', which requires all rows in "
            "each update. Use solver='sgd'."
        )
    return True


def hidden_sizes(estimator):
    sizes = tuple(np.atleast_1d(estimator.hidden_layer_sizes).tolist())
    if not sizes or not all(isinstance(n, int) and n >= 1 for n in sizes):
        raise ValueError(
            "hidden_layer_sizes must be one or more integers >= 1, got "
            f"{estimator.hidden_layer_sizes!r}."
        )
    return sizes


def criterion_of(estimator):
    decaying = estimator.solver == "sgd" and estimator.learning_rate == "invscaling"
    if decaying and not 0.5 < estimator.power_t <= 1.0:
        raise ValueError(
            "learning_rate='invscaling' requires 0.5 < power_t <= 1, so that the sum "
            "of the learning rates is infinite and that of their squares is finite; "
            f"got power_t={estimator.power_t}."
        )
    if isinstance(estimator.criterion, Joint | Graduated):
        name = type(estimator.criterion).__name__
        raise ValueError(f"criterion={name}() is only supported in robust estimation.")
    if estimator.criterion in ("alternating", Alternating()):
        return Alternating(estimator.n_passes)
    return get_criterion(
        estimator.criterion,
        eta=estimator.eta,
        eta_prime=0.5 * (1.0 + estimator.eta),
        rho=estimator.rho,
        # rho_t must have a finite sum where the squares of the rates have.
        power_t=2.0 * estimator.power_t if decaying else 0.0,
        effort=estimator.n_passes,
    )


def batch_size_of(estimator, criterion, n_samples):
    """Rows of a mini-batch; None for full batches."""
    compares = getattr(criterion, "needs_full_batch", False)
    if estimator.batch_size is None:
        return None
    if estimator.batch_size == "auto":
        full = compares or estimator.solver == "gd"
        return None if full else min(200, n_samples)
    reason = None
    if isinstance(criterion, Alternating):
        reason = "criterion='alternating' stores the activations of all rows"
    elif compares:
        reason = (
            f"criterion={estimator.criterion!r} compares the bounds of successive "
            "updates, which must use the same rows"
        )
    elif estimator.solver == "gd":
        reason = "solver='gd' determines its step length from the objective of all rows"
    if reason is not None:
        raise ValueError(
            f"batch_size={estimator.batch_size} is not possible: {reason}. Set "
            "batch_size=None or 'auto'."
        )
    return min(estimator.batch_size, n_samples)


# The feedback that "auto" stands for. On validation parts of MNIST, Fashion-MNIST and
# greyscale CIFAR-10, ones above 0.01 are less accurate: the loss of an output error e
# is about e' (I + feedback W'W)^-1 e / 2, which large weights W of the last layer make
# small without making e small. This one is as accurate, and saves a pass in most
# updates: what H layers leave after n passes is of the order feedback^(2 + 2 n - H).
_FEEDBACK = 0.003
# In deep networks it is larger: this weight of the first residuals is held in single
# precision.
_LARGEST_WEIGHT = 1e12


def feedback_weight(feedback, solver, n_hidden):
    """The value of the parameter `feedback` for a solver and number of layers."""
    if isinstance(feedback, str):  # "auto"
        if solver == "gd":  # its steps are as short as those weights are large
            return 1.0
        return max(_FEEDBACK, _LARGEST_WEIGHT ** (-1.0 / n_hidden))
    return float(feedback)


# What "auto" stands for in the learning rate and the penalty. Few rows make few updates
# in an epoch, and the average of the last weights forgives large steps: on made-up
# tables of 120 to 20,000 rows, none of them among those of the benchmarks, rates of
# 0.003 to 0.005 are better than 0.001 on nearly all of those up to 5,000 rows. Where
# half of the variance is noise they overfit sooner, which a penalty of about the
# inverse number of rows, as that of a prior of fixed width, makes up for in part only.
# (Of 0.1, 0.5, 1 and 2 in its numerator, 0.5 to 2 do equally well on the average.)
# Images have 50,000 rows and more, for which rate and penalty were chosen on validation
# rows of their own. The log-loss of rows that can be told apart has no minimizer, and
# weights grow for as long as training lasts: four times the penalty is better on the
# validation rows of all images, and on ten of twelve tables of 8,000 and 20,000 rows.
# Squared errors with little noise lose by it.
_RATE, _MANY_ROWS, _LARGEST_FACTOR = 1e-3, 50_000, 4.0
_PENALTY, _PENALTY_OF_LOG_LOSS, _PENALTY_OF_A_ROW = 5e-5, 2e-4, 1.0


def learning_rate_of(estimator, n_samples):
    """The value of `learning_rate_init` for a number of rows, None if it is unknown."""
    rate = estimator.learning_rate_init
    if not isinstance(rate, str):
        return float(rate)
    if estimator.solver != "adam" or n_samples is None:
        return _RATE
    factor = np.sqrt(_MANY_ROWS / n_samples)
    return _RATE * float(np.clip(factor, 1.0, _LARGEST_FACTOR))


def penalty_of(estimator, n_samples):
    """The value of `alpha` for a number of rows, which is None if it is unknown."""
    if not isinstance(estimator.alpha, str):
        return float(estimator.alpha)
    log_loss = isinstance(estimator.loss, str) and estimator.loss == "log_loss"
    least = _PENALTY_OF_LOG_LOSS if log_loss else _PENALTY
    return least if n_samples is None else max(least, _PENALTY_OF_A_ROW / n_samples)
