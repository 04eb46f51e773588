r"""Layered convex energies: activations, dual points and gradients for a batch of rows.

A network of H hidden layers maps x = z_0 through W_0..W_H and b_0..b_H. Its hidden
activations z_1..z_H >= 0 are not computed by a rule but inferred, by minimising

    clamped   E^(z) = sum_{k=0..H}   w_k/2 ||r_k||^2,    z_{H+1} := y
    free      E'(z) = sum_{k=0..H-1} w_k/2 ||r_k||^2,    output left free

over the activations, with residuals r_k = z_{k+1} - W_k z_k - b_k and weights
w_k = gamma^(k-H). The feedback gamma in (0, 1] says how much a layer yields to the next
one: gamma = 1 is the energy of the paper, gamma -> 0 the feed-forward ReLU network with
the squared error ||y - f(x)||^2/2. The training loss of a row is

    J = min E^ - min E' >= 0.

**Inference** is a projected gradient step on one layer after the other, along

    g_k = r_{k-1} - gamma W_k' r_k         (the gradient over w_{k-1})

with step length 2 / (2 + gamma ||W_k||^2), and length 1 for the last hidden layer of
the free phase, which no output pulls at. The curvature of a layer's own terms has its
eigenvalues in [1, L_k], L_k = 1 + gamma ||W_k||^2: of all lengths, 2 / (1 + L_k)
shrinks the error most, and any below 2 / L_k decreases the energy. Residuals are affine
in the activations: they are updated, not recomputed.

**Dual energies.** In units of the residuals (multiplier lambda_k = w_{k-1} mu_k), the
dual of either energy is

    D(mu) = -sum_k w_{k-1} (||mu_k||^2/2 + mu_k' b_{k-1}) - w_0 mu_1' W_0 x
            [clamped: + mu_{H+1}' y, k = 1..H+1;   free: mu_{H+1} = 0, k = 1..H]

for mu_k = gamma W_k' mu_{k+1} + s_k, with slacks s_k >= 0. (The paper prints the bias
terms with the wrong sign.) Slacks, not mu, are the latent variables: their feasible
set does not move with the parameters, so a bound stays one when the parameters change,
and its gradient is exact.

**From activations to slacks.** For any z >= 0 and s >= 0 the duality gap is a sum of
non-negative terms,

    E(z) - D(mu) = sum_k w_{k-1} (||d_k - s_k||^2/2 + z_k' s_k),
    d_k = r_{k-1} - gamma W_k' mu_{k+1},

which follows from replacing b_{k-1} by z_k - W_{k-1} z_{k-1} - r_{k-1}. Going from the
last layer down, each term is least at ``s_k = max(d_k - z_k, 0)``. Then a unit with
d_k <= z_k costs d_k^2/2 at most: the gap is of second order in the error of the
activations, where the plain projection s_k = max(d_k, 0) leaves z_k d_k, of first
order. Nothing cancels in the sum, so it keeps its accuracy at any gamma.

**Bounds and gradient.** With free slacks s' and clamped activations z^

    upper = E^(z^) - D'(s'),     lower = D^(s^) - E'(z'),
    upper - lower = gap of the clamped phase + gap of the free phase,

and with v_1 = mu'_1 + W_0 x + b_0, v_{k+1} = mu'_{k+1} + W_k v_k + b_k (the activations
that slacks imply; v_0 = z^_0 = x, mu'_{H+1} = 0)

    d upper / d W_k = w_k (mu'_{k+1} v_k' - r^_k z^_k'),
    d upper / d b_k = w_k (mu'_{k+1} - r^_k).

Rows of arrays are samples, and matrices are stored as scikit-learn's ``coefs_``, i.e.
transposed. What depends on x alone is ``drive`` = W_0 x + b_0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

# Largest step over 1/L_k, where 2 would no longer decrease the energy.
_MAX_RELAXATION = 1.9
# Norms of W_k by power iteration: a few steps from the vector of the last parameters.
# An estimate of the square too small by 1 - _MAX_RELAXATION / 2 leaves steps safe.
_POWER_STEPS, _FIRST_POWER_STEPS = 1, 20


@dataclass(frozen=True)
class Network:
    """Parameters at one theta, and what inference needs of them."""

    coefs: list  # float64
    intercepts: list
    feedback: float
    weights: list  # w_k
    fast: list  # the matrices in the precision of the activations
    back: list  # gamma W_k' in that precision, contiguous; None for k = 0
    steps: list | None = (
        None  # step length of z_{k+1}; None: parameters for bounds only
    )
    gram: list | None = None  # W_k W_k' for coordinate descent

    @property
    def n_hidden(self):
        """Number of hidden layers H."""
        return len(self.coefs) - 1


def unpack(theta, sizes):
    """Views of matrices and biases in a flat vector: all matrices come first."""
    coefs, intercepts, start = [], [], 0
    for fan_in, fan_out in pairwise(sizes):
        coefs.append(theta[start : start + fan_in * fan_out].reshape(fan_in, fan_out))
        start += fan_in * fan_out
    for fan_out in sizes[1:]:
        intercepts.append(theta[start : start + fan_out])
        start += fan_out
    return coefs, intercepts


def spectral_norm(W, vector, n_steps):
    """Largest singular value by power iteration; improves `vector` in place."""
    for _ in range(n_steps):
        product = W.T @ (W @ vector)
        size = np.sqrt(product @ product)
        if not 0.0 < size < np.inf:
            break
        np.divide(product, size, out=vector)
    image = W @ vector
    return float(np.sqrt(image @ image))


def build_network(theta, sizes, feedback, dtype):
    """Unpacked parameters, for bounds."""
    coefs, intercepts = unpack(theta, sizes)
    n_hidden = len(coefs) - 1
    return Network(
        coefs,
        intercepts,
        feedback,
        [feedback ** (k - n_hidden) for k in range(n_hidden + 1)],
        [W.astype(dtype, copy=False) for W in coefs],
        [
            None,
            *(np.multiply(W.T, feedback, dtype=dtype, order="C") for W in coefs[1:]),
        ],
    )


def prepare_sweeps(network, vectors, coordinate=False):
    """Add what sweeps need; `vectors` start the power iterations and are improved."""
    steps = []
    for k, W in enumerate(network.coefs[1:], start=1):
        first = k not in vectors
        if first:
            # Any vector will do that is not orthogonal to the leading one.
            vectors[k] = np.random.default_rng(k).normal(size=W.shape[1])
        n_steps = _FIRST_POWER_STEPS if first else _POWER_STEPS
        norm = spectral_norm(W, vectors[k], n_steps)
        largest = 1.0 + network.feedback * norm**2
        steps.append(min(2.0 / (1.0 + largest), _MAX_RELAXATION / largest))
    gram = [W @ W.T for W in network.fast[1:]] if coordinate else None
    return replace(network, steps=steps, gram=gram)


class Phase:
    """Activations z_1..z_H of a batch and residuals r_0.. of one phase."""

    def __init__(self, z, r):
        self.z = z  # z[k] is layer k + 1
        self.r = r  # H residuals in the free phase, H + 1 in the clamped one
        self._candidate = [np.empty_like(layer) for layer in z]
        self._change = [np.empty_like(layer) for layer in r]
        # Against an array of zeros NumPy's maximum takes a third of the time.
        self._zero = [np.zeros_like(layer) for layer in z]

    @classmethod
    def feed_forward(cls, network, drive):
        """The free phase at the activations of the ReLU network."""
        z: list = []
        r: list = []
        preactivation = drive
        for k in range(network.n_hidden):
            if k:
                preactivation = _affine(network, z[-1], k)
            z.append(np.maximum(preactivation, 0))
            r.append(z[-1] - preactivation)
        return cls(z, r)

    def clamp(self, network, Y):
        """The clamped phase, started at these activations of the free one."""
        output = Y - _affine(network, self.z[-1], network.n_hidden)
        z = [layer.copy() for layer in self.z]
        return Phase(z, [layer.copy() for layer in self.r] + [output])

    def rebase(self, network, drive, Y=None):
        """The same activations under other parameters."""
        return Phase(self.z, residuals(network, network.fast, self.z, drive, Y))

    def take(self, rows):
        """A copy of some rows."""
        return Phase([z[rows] for z in self.z], [r[rows] for r in self.r])

    @property
    def clamped(self):
        """Whether the output is."""
        return len(self.r) > len(self.z)

    def sweep(self, network):
        """One pass over the layers.

        The free phase goes up, since only its lower layers are pulled at; the clamped
        phase goes down, since what is new to it comes from the output.
        """
        update = self._layer if network.gram is None else self._units
        order = range(len(self.z))
        for k in reversed(order) if self.clamped else order:
            update(network, k)

    def _layer(self, network, k):
        """Over-relaxed projected gradient step on one layer."""
        z, r, new, change = self.z[k], self.r[k], self._candidate[k], self._change[k]
        if k + 1 == len(self.r):  # nothing pulls: the minimiser in closed form
            np.subtract(z, r, out=new)
        else:
            np.matmul(self.r[k + 1], network.back[k + 1], out=new)
            new -= r
            new *= network.steps[k]
            new += z
        np.maximum(new, self._zero[k], out=new)
        np.subtract(new, z, out=change)
        self.z[k], self._candidate[k] = new, z
        r += change
        self._push(network, k, change)

    def _units(self, network, k):
        """Exact minimisation over one unit of the layer after the other."""
        z, r, change = self.z[k], self.r[k], self._change[k]
        if k + 1 == len(self.r):
            return self._layer(network, k)
        gamma, gram = network.feedback, network.gram[k]
        # Columns of one unit over the batch are contiguous in the transposed arrays.
        gradient = np.ascontiguousarray((r - self.r[k + 1] @ network.back[k + 1]).T)
        old = np.ascontiguousarray(z.T)
        new = old.copy()
        curvature = gamma * gram
        curvature[np.diag_indices_from(curvature)] += 1
        for j in range(len(new)):
            new[j] = np.maximum(old[j] - gradient[j] / curvature[j, j], 0)
            gradient += np.multiply.outer(curvature[j], new[j] - old[j])
        np.subtract(new.T, z, out=change)
        z += change
        r += change
        return self._push(network, k, change)

    def _push(self, network, k, change):
        """Residuals of the layer above after a change of this one."""
        if k + 1 < len(self.r):
            above = self._change[k + 1]
            np.matmul(change, network.fast[k + 1], out=above)
            self.r[k + 1] -= above


def _affine(network, z, k):
    preactivation = z @ network.fast[k]
    preactivation += network.intercepts[k]
    return preactivation


def residuals(network, coefs, z, drive, Y=None):
    """r_0.. of activations, in the precision of `coefs`; clamped to Y if given."""
    r = [z[0] - drive]
    for k, layer in enumerate(z[1:] if Y is None else [*z[1:], Y], start=1):
        preactivation = z[k - 1] @ coefs[k]
        preactivation += network.intercepts[k]
        r.append(np.subtract(layer, preactivation, out=preactivation))
    return r


def row_products(a, b):
    """Inner products of rows."""
    return np.einsum("ij,ij->i", a, b)


def energy(network, r):
    """Energy of every row."""
    return sum(
        0.5 * w * row_products(layer, layer)
        for w, layer in zip(network.weights, r, strict=False)
    )


def dual_point(network, z, r):
    """Slacks and multipliers near the optimal ones, and the gap by layer and row."""
    n_hidden = network.n_hidden
    above = r[n_hidden] if len(r) > n_hidden else None
    slacks, mu = [None] * n_hidden, [None] * n_hidden
    gap = np.empty((n_hidden, len(z[0])))
    for k in reversed(range(n_hidden)):
        pull = _pull(network, above, k)
        miss = r[k] - pull if pull is not None else r[k].copy()
        s = slacks[k] = miss - z[k]
        np.maximum(s, np.zeros_like(s), out=s)
        miss -= s
        gap[k] = 0.5 * row_products(miss, miss) + row_products(z[k], s)
        gap[k] *= network.weights[k]
        above = mu[k] = s if pull is None else np.add(pull, s, out=pull)
    return slacks, mu, gap


def multipliers(network, slacks):
    """mu_1..mu_H of the free phase."""
    mu, above = [None] * len(slacks), None
    for k in reversed(range(len(slacks))):
        pull = _pull(network, above, k)
        above = mu[k] = slacks[k] if pull is None else pull + slacks[k]
    return mu


def _pull(network, mu, k):
    if mu is None:
        return None
    return mu @ network.back[k + 1]


def free_dual(network, mu, drive):
    """Dual energy of every row of the free phase."""
    value = 0.0
    for k, layer in enumerate(mu):
        offset = drive if k == 0 else network.intercepts[k]
        value = value - network.weights[k] * (
            0.5 * row_products(layer, layer) + np.sum(layer * offset, axis=1)
        )
    return value


def implied_activations(network, mu, drive):
    """v_1..v_H, at which the slacks are stationary."""
    v = [mu[0] + drive]
    for k in range(1, len(mu)):
        layer = _affine(network, v[-1], k)
        layer += mu[k]
        v.append(layer)
    return v


def gradient(network, share, x, z, r, mu, v, out):
    """Gradient of the upper bound, rows weighted by `share`, into a flat vector."""
    sizes = [x.shape[1], *(b.shape[0] for b in network.intercepts)]
    coefs, intercepts = unpack(out, sizes)
    share = share.astype(z[0].dtype)[:, None]
    for k, (W, b) in enumerate(zip(coefs, intercepts, strict=True)):
        scale = share * network.weights[k]
        clamped = scale * r[k]
        if k == len(mu):  # the free phase has no multiplier on the output
            W[:] = z[k - 1].T @ clamped
            np.negative(W, out=W)
            b[:] = -clamped.sum(axis=0)
            continue
        # Both phases are nearly equal: differences first, products then.
        contrast = scale * (mu[k] - r[k])
        if k == 0:  # x is common to both phases
            W[:] = x.T @ contrast.astype(x.dtype, copy=False)
        else:
            product = v[k - 1].T @ contrast
            product += (v[k - 1] - z[k - 1]).T @ clamped
            W[:] = product
        b[:] = contrast.sum(axis=0)
    return out
