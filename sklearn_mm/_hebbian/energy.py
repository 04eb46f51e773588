r"""Layered convex energies, and their bounds from duality.

A network with H hidden layers has the input x = z_0, matrices W_0..W_H and biases
b_0..b_H. Its hidden activations z_1..z_H, each in a box [l, u], are not computed from
layer to layer, but inferred by minimising

    free      E'(z) = sum_{k=0..H-1} w_k/2 ||r_k||^2,    output left free
    clamped   E^(z) = E'(z) + loss(f; y),                f = z_H W_H + b_H

over the activations, with residuals r_k = z_{k+1} - a_{k+1}, a_{k+1} = z_k W_k + b_k
and weights w_k = gamma^(k-H). (Rows of arrays are samples, and matrices are stored as
scikit-learn's ``coefs_``.) The feedback gamma in (0, 1] determines how much a layer is
influenced by the next one: gamma = 1 with the squared loss is the energy of the paper.
The limit gamma -> 0 is the feed-forward network whose activation function clips to the
box, i.e. ReLU for [0, inf). The training loss of a row is

    J = min E^ - min E' >= 0.

**Duality.** In units of the residuals (with multipliers lambda_k = w_{k-1} mu_k), both
dual problems are functions of slacks s_1..s_H of any sign, with

    mu_k = q_k + s_k,   q_k = gamma mu_{k+1} W_k'     (the pull of the next layer)

and mu_{H+1} = 0 in the free phase, mu_{H+1} = e^ = -loss'(f^) in the clamped one.
The latent variables are the slacks, not mu: their feasible set does not depend on the
parameters, so that a bound remains valid if the parameters change, and its gradient is
exact. For any z in the box and any s, the duality gap is a sum of non-negative terms,

    gap = sum_k w_{k-1} (||r_{k-1} - mu_k||^2/2 + c(z_k, s_k)),
    c(z, s) = z's + max(-l s, -u s)      ("slackness"; z's for [0, inf), where s >= 0)

to which the loss does not contribute: with the multiplier e^, the Fenchel-Young
inequality is an equality. From the last layer down, each term is smallest at

    mu_k = clip(q_k, l - a_k, u - a_k).

**Bounds and gradient.** With activations z^ of the clamped phase and slacks s of the
free one, and eps_k = r^_{k-1} - mu_k,

    upper = loss(f^) + sum_k w_{k-1} (||eps_k||^2/2 + c(z^_k, s_k))
    lower = upper - gap' - gap^            (of the free and the clamped phase)

are bounds at *any* parameters. No large and nearly equal numbers are subtracted. With
h_1 = eps_1, h_{k+1} = eps_{k+1} + h_k W_k (h_0 = 0), the gradient of the upper bound is

    d upper / d W_k = -w_k (z^_k' eps_{k+1} + h_k' mu_{k+1}),
    d upper / d b_k = -w_k sum eps_{k+1},

and -z^_H' e^, -sum e^ for the last layer. (In the paper's dual energy, the bias terms
have the wrong sign.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sklearn_mm.losses import LOSSES, Loss

Array = NDArray[Any]
Layers = list[Any]  # indexed by layer, 1..H; unused entries are None

# The largest weight of a residual. Its square, and the squares of what it multiplies,
# are finite in double precision. A smaller feedback is indistinguishable from none.
_LARGEST_WEIGHT = 1e100
# Up to this weight, numbers and their squares are accurate in single precision.
_SINGLE_LIMIT = 1e12


@dataclass(frozen=True)
class Box:
    """Interval of a layer's activations; clipping to it is the activation function."""

    low: float
    high: float

    def clip(self, x: Array, out: Array, zero: Array | None = None) -> Array:
        """Activations; `zero` is an array of zeros, with which NumPy is faster."""
        if self.low == 0.0 and zero is not None:
            np.maximum(x, zero, out=out)
        elif self.low > -np.inf:
            np.maximum(x, x.dtype.type(self.low), out=out)
        else:
            np.copyto(out, x)
        if self.high < np.inf:
            np.minimum(out, x.dtype.type(self.high), out=out)
        return out

    def slackness(self, z: Array, s: Array) -> Array:
        """Entries of c(z, s), which are non-negative in the box."""
        below = np.maximum(s, 0)  # where low = -inf (high = inf), s <= 0 (s >= 0)
        above = s - below
        value = np.zeros_like(z)
        if self.low > -np.inf:
            value += (z - z.dtype.type(self.low)) * below
        if self.high < np.inf:
            value += (z - z.dtype.type(self.high)) * above
        return value

    def slackness_of_rows(self, z: Array, s: Array) -> Array:
        """Sums of `slackness` over the units of a layer."""
        if self.low == 0.0 and self.high == np.inf:  # where s >= 0
            return row_products(z, s)
        value: Array = np.sum(self.slackness(z, s), axis=1)
        return value


#: Boxes by the names of the corresponding activation functions.
BOXES = {
    "relu": Box(0.0, np.inf),
    "hard_sigmoid": Box(0.0, 1.0),
    "hard_tanh": Box(-1.0, 1.0),
    "identity": Box(-np.inf, np.inf),
}


def between(x: Array, low: Any, high: Any, out: Array) -> Array:
    """Clip x to limits, of which either may be None; `out` may be x itself."""
    if low is not None:
        x = np.maximum(x, low, out=out)
    if high is not None:
        x = np.minimum(x, high, out=out)
    if x is not out:
        np.copyto(out, x)
    return out


@dataclass(frozen=True)
class Energy:
    """Everything that defines the energy, except for its parameters.

    Attributes
    ----------
    n_hidden : int
        Number of hidden layers H.
    hidden : range
        Numbers of the hidden layers, from one.
    n_weights : int
        Number of entries of all matrices, which come first in theta.
    gamma : float
        The feedback, limited so that weights are finite.
    weights : list of float
        w_0..w_H.
    """

    sizes: tuple[int, ...]  # of the layers, including input and output
    feedback: float
    loss: Loss = LOSSES["squared_error"]
    box: Box = BOXES["relu"]
    n_hidden: int = field(init=False, repr=False, compare=False)
    hidden: range = field(init=False, repr=False, compare=False)
    n_weights: int = field(init=False, repr=False, compare=False)
    gamma: float = field(init=False, repr=False, compare=False)
    weights: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        n_hidden = len(self.sizes) - 2
        gamma = max(self.feedback, _LARGEST_WEIGHT ** (-1.0 / n_hidden))
        derived = {
            "n_hidden": n_hidden,
            "hidden": range(1, n_hidden + 1),
            "n_weights": sum(a * b for a, b in pairwise(self.sizes)),
            "gamma": gamma,
            "weights": [gamma ** (k - n_hidden) for k in range(n_hidden + 1)],
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def pass_dtype(self, dtype: Any) -> np.dtype[Any]:
        """Precision of the activations for data of the given precision."""
        if dtype == np.float32 and self.gamma**-self.n_hidden <= 1.01 * _SINGLE_LIMIT:
            return np.dtype(np.float32)
        return np.dtype(np.float64)


def unpack(theta: Array, sizes: Sequence[int]) -> tuple[list[Array], list[Array]]:
    """Views of matrices and biases in a flat vector: all matrices come first."""
    coefs, intercepts, start = [], [], 0
    for fan_in, fan_out in pairwise(sizes):
        coefs.append(theta[start : start + fan_in * fan_out].reshape(fan_in, fan_out))
        start += fan_in * fan_out
    for fan_out in sizes[1:]:
        intercepts.append(theta[start : start + fan_out])
        start += fan_out
    return coefs, intercepts


@dataclass(frozen=True)
class Network:
    """The parameters as matrices and biases, in the precision of the passes."""

    energy: Energy
    theta: Array
    coefs: list[Array]
    intercepts: list[Array]
    back: list[Any]  # gamma W_k', contiguous; None for k = 0
    square: float  # squared norm of the matrices

    @classmethod
    def at(cls, theta: Array, energy: Energy, dtype: Any = np.float64) -> Network:
        """The network of a flat vector of parameters."""
        coefs, intercepts = unpack(theta.astype(dtype, copy=False), energy.sizes)
        gamma = np.dtype(dtype).type(energy.gamma)
        back = [np.multiply(W.T, gamma, order="C") for W in coefs[1:]]
        weights = theta[: energy.n_weights]
        square = sum_of_products(weights, weights)
        return cls(energy, theta, coefs, intercepts, [None, *back], square)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the passes."""
        return self.coefs[0].dtype

    def affine(self, z: Array, k: int) -> Array:
        """Compute a_{k+1} from the activations of layer k."""
        a: Array = z @ self.coefs[k]
        a += self.intercepts[k]
        return a


def row_products(a: Array, b: Array) -> Array:
    """Inner products of rows."""
    value: Array = np.einsum("ij,ij->i", a, b)
    return value


def sum_of_products(a: Array, b: Array) -> float:
    """Inner product of all entries, as a Python number, which is faster to use."""
    return float(np.vdot(a, b))


@dataclass
class Phases:
    """Latents of a batch and the terms of its bounds; lists are indexed by layer.

    `miss` is r'_{k-1} - mu_k, the residual of the optimality conditions of the free
    phase.
    """

    z: Layers  # free activations
    s: Layers  # their slacks, and
    mu: Layers  # multipliers
    miss: Layers
    d: Layers  # z^ - z
    dr: Layers  # r^ - r
    output: Array  # f^
    error: Array  # e^
    free_gaps: Layers  # by layer and row
    clamped_gaps: Layers


def evaluate(
    network: Network, drive: Array, Y: Array, z: Layers, z_hat: Layers
) -> Phases:
    """Compute slacks and gaps for any activations in the box, by a backward pass."""
    hidden, n = network.energy.hidden, len(Y)
    # Both phases at once, the free one first.
    both = [None, *(np.concatenate([z[k], z_hat[k]]) for k in hidden)]
    r, a, output = _residuals(network, np.concatenate([drive, drive]), both)
    above = np.zeros_like(output)
    error = network.energy.loss.descent(output[n:], Y, out=above[n:])
    s, mu, miss, gaps = _dual_point(network, both, a, r, above)

    def free(layers: Layers) -> Layers:
        return [None, *(x[:n] for x in layers[1:])]

    def change(layers: Layers) -> Layers:
        return [None, *(x[n:] - x[:n] for x in layers[1:])]

    return Phases(
        z,
        free(s),
        free(mu),
        free(miss),
        change(both),
        change(r),
        output[n:],
        error,
        free(gaps),
        [None, *(gap[n:] for gap in gaps[1:])],
    )


def free_gaps(network: Network, drive: Array, z: Layers) -> Array:
    """Duality gap of the free phase, row by row, for any activations in the box."""
    r, a, output = _residuals(network, drive, z)
    gaps = _dual_point(network, z, a, r, np.zeros_like(output))[3]
    total: Array = np.sum(gaps[1:], axis=0)
    return total


def dual_point_of(
    network: Network, drive: Array, Y: Array, z_hat: Layers
) -> tuple[Layers, Array]:
    """Slacks and output multiplier of the clamped phase, nearly optimal."""
    r, a, output = _residuals(network, drive, z_hat)
    error = network.energy.loss.descent(output, Y)
    return _dual_point(network, z_hat, a, r, error)[0], error


def _residuals(network: Network, drive: Array, z: Layers):
    """r_{k-1} and a_k by layer k, and the output."""
    r: Layers = [None]
    a: Layers = [None]
    made = drive
    for k in network.energy.hidden:
        a.append(made)
        r.append(z[k] - made)
        made = network.affine(z[k], k)
    return r, a, made


def _dual_point(network: Network, z: Layers, a: Layers, r: Layers, above: Any):
    """Slacks, multipliers, their misses, and the gap of each layer and row."""
    energy = network.energy
    H, box, w = energy.n_hidden, energy.box, energy.weights
    empty: Layers = [None] * (H + 1)
    s, mu, miss, gaps = (empty.copy() for _ in range(4))
    for k in reversed(energy.hidden):
        pull = above @ network.back[k]
        low = box.low - a[k] if box.low > -np.inf else None
        high = box.high - a[k] if box.high < np.inf else None
        above = mu[k] = between(pull, low, high, out=np.empty_like(pull))
        s[k] = above - pull
        miss[k] = r[k] - above
        slackness = box.slackness_of_rows(z[k], s[k])
        gaps[k] = w[k - 1] * (0.5 * row_products(miss[k], miss[k]) + slackness)
    return s, mu, miss, gaps


def upper_bound(
    network: Network, drive: Array, Y: Array, z_hat: Layers, s: Layers
) -> Array:
    """Upper bound of every row at any parameters, for given latents."""
    energy = network.energy
    r, _, output = _residuals(network, drive, z_hat)
    value = energy.loss.value(output, Y).astype(np.float64)
    above = None
    for k in reversed(energy.hidden):
        above = s[k] if above is None else above @ network.back[k] + s[k]
        eps = r[k] - above
        slackness = energy.box.slackness_of_rows(z_hat[k], s[k])
        value += energy.weights[k - 1] * (0.5 * row_products(eps, eps) + slackness)
    return value
