"""What is known at one theta, and how latents are inferred there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_mm._hebbian.coordinate import CoordinatePhases, unit_curvatures
from sklearn_mm._hebbian.energy import Array, Network, sum_of_products
from sklearn_mm._hebbian.modulus import Factors, ModulusPhases

# Forward and backward passes are used if gamma ||W_k||^2 is at most this. On random
# networks, they contract up to about 1, where they are slow, and diverge from 1.5 to 2
# on, for any feedback. The modulus iteration always takes about 30 passes.
CONTRACTS = 0.8
_POWER_STEPS = 12


@dataclass(frozen=True)
class Point:
    """What is known at one theta.

    Parameters
    ----------
    network : Network
        The parameters.
    method : {"auto", "difference", "modulus", "coordinate"}, default="auto"
        How latents are inferred. "auto": not decided yet.
    known : object, default=None
        What the passes of the method need to know of the network.
    """

    network: Network
    method: str = "auto"
    known: Any = None

    @property
    def theta(self) -> Array:
        """The parameters as a vector."""
        return self.network.theta

    @property
    def square(self) -> float:
        """Squared norm of the parameters."""
        biases = self.theta[self.network.energy.n_weights :]
        return self.network.square + sum_of_products(biases, biases)

    def prepared(self) -> Point:
        """The same point, with the method decided and all that its passes need.

        Done once per point by whoever infers more than once, and before tasks run in
        parallel.
        """
        method, known = self.method, self.known
        if method == "auto":
            contracts = contraction(self.network, CONTRACTS) <= CONTRACTS
            method = "difference" if contracts else "modulus"
        if known is None and method == "modulus":
            known = Factors.of(self.network)
        elif known is None and method == "coordinate":
            known = unit_curvatures(self.network)
        return Point(self.network, method, known)

    def phases(
        self, drive: Array, Y: Array, spare: Any = None, free_only: bool = False
    ) -> Any:
        """Latents of a cold start for a method with strong feedback.

        `spare` are latents of other rows, whose memory may be used again. With
        `free_only`, the clamped phase may be missing.
        """
        if self.method == "coordinate":
            return CoordinatePhases(self.network, drive, Y)
        shape = len(Y), free_only
        if not isinstance(spare, ModulusPhases) or spare.shape != shape:
            spare = ModulusPhases(self.network, *shape)
        return spare.start(self.network, drive)


def contraction(network: Network, enough: float = np.inf) -> float:
    """Compute gamma times the largest squared norm of a matrix that feeds back.

    The power iteration increases towards it and ends where it exceeds `enough`, which
    it does if numbers overflow.
    """
    energy, coefs = network.energy, network.coefs
    largest = 0.0
    # Up to H in the clamped phase, where the loss pulls with its curvature.
    for k in energy.hidden:
        factor = energy.gamma * (energy.loss.curvature if k == energy.n_hidden else 1.0)
        largest = max(largest, factor * _squared_norm(coefs[k], enough / factor))
        if not largest <= enough:
            break
    return largest


def _squared_norm(W: Array, enough: float) -> float:
    """Squared spectral norm by power iteration, from a constant start."""
    vector = np.random.default_rng(0).normal(size=(W.shape[1],)).astype(W.dtype)
    square = 0.0
    for _ in range(_POWER_STEPS):
        with np.errstate(over="ignore", invalid="ignore"):
            product = W.T @ (W @ vector)
            size = float(np.linalg.norm(product))
        if size == 0.0:
            return 0.0
        if not size < np.inf:
            return np.inf
        square = size / float(np.sqrt(vector @ vector))
        if square > enough:
            break
        vector = product / np.asarray(size, product.dtype)
    return square
