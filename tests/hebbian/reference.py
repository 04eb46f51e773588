"""Small networks, and their losses by an independent solver."""

from itertools import pairwise

import numpy as np
from scipy.optimize import lsq_linear, minimize

from sklearn_mm._hebbian.energy import BOXES, Energy, Network
from sklearn_mm.losses import Huber, LogLoss, SquaredError

SIZES = (4, 6, 5, 3, 2)
LOSSES = {"squared_error": SquaredError(), "huber": Huber(0.4), "log_loss": LogLoss()}


def make_energy(feedback=0.3, sizes=SIZES, loss="squared_error", activation="relu"):
    return Energy(sizes, feedback, LOSSES.get(loss, loss), BOXES[activation])


def make_theta(seed, sizes=SIZES, scale=0.7):
    rng = np.random.default_rng(seed)
    n_matrices = sum(a * b for a, b in pairwise(sizes))
    return scale * rng.normal(size=n_matrices + sum(sizes[1:]))


def make_rows(seed, energy, n_rows=4):
    """Inputs, and targets that suit the loss."""
    rng = np.random.default_rng(1000 + seed)
    X = rng.normal(size=(n_rows, energy.sizes[0]))
    if isinstance(energy.loss, LogLoss):
        Y = np.eye(energy.sizes[-1])[rng.integers(energy.sizes[-1], size=n_rows)]
    else:
        Y = rng.normal(size=(n_rows, energy.sizes[-1]))
    return X, Y


def make(seed, feedback=0.3, n_rows=4, scale=0.7, **kwargs):
    """A network, its drive and targets, in double precision."""
    energy = make_energy(feedback, **kwargs)
    network = Network.at(make_theta(seed, energy.sizes, scale), energy)
    X, Y = make_rows(seed, energy, n_rows)
    return network, X, X @ network.coefs[0] + network.intercepts[0], Y


def stacked(network, drive, biases=None):
    """Free energy of a row as ||A z - c||^2/2 over all activations."""
    energy = network.energy
    hidden = energy.sizes[1:-1]
    ends = np.cumsum([0, *hidden])
    A, c = np.zeros((ends[-1], ends[-1])), np.zeros(ends[-1])
    for k, size in enumerate(hidden):
        rows, root = slice(ends[k], ends[k + 1]), np.sqrt(energy.weights[k])
        A[rows, rows] = root * np.eye(size)
        c[rows] = root * (drive if k == 0 else network.intercepts[k])
        if biases is not None:
            c[rows] += root * biases[k]
        if k:
            A[rows, ends[k - 1] : ends[k]] = -root * network.coefs[k].T
    return A, c, slice(ends[-2], ends[-1])


def minimum(network, drive, y=None, biases=None):
    """Least energy of one row; clamped to y if given."""
    energy = network.energy
    A, c, last = stacked(network, drive, biases)
    low, high = energy.box.low, energy.box.high
    if y is None:
        return lsq_linear(A, c, bounds=(low, high), tol=1e-14).cost
    W, b = network.coefs[-1], network.intercepts[-1]
    if isinstance(energy.loss, SquaredError):
        B = np.zeros((len(y), len(c)))
        B[:, last] = W.T
        A, c = np.vstack([A, B]), np.concatenate([c, y - b])
        return lsq_linear(A, c, bounds=(low, high), tol=1e-14).cost

    def objective(z):
        residual, f = A @ z - c, (z[last] @ W + b)[None]
        slope = A.T @ residual
        slope[last] -= W @ energy.loss.descent(f, y[None])[0]
        return 0.5 * residual @ residual + energy.loss.value(f, y[None])[0], slope

    start = np.clip(np.linalg.solve(A, c), low, high)
    result = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(low, high)] * len(c),
        options={"maxiter": 20000, "maxfun": 20000, "ftol": 1e-16, "gtol": 1e-11},
    )
    return result.fun


def loss_of_rows(network, drive, Y, biases=None):
    """J of every row; `biases` are added to those of hidden layers, row by row."""
    extra = [None if biases is None else [b[i] for b in biases] for i in range(len(Y))]
    return np.array(
        [
            minimum(network, drive[i], Y[i], extra[i])
            - minimum(network, drive[i], None, extra[i])
            for i in range(len(Y))
        ]
    )
