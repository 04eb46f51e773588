"""What is known at one theta, and how latents are inferred there."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_mm._hebbian.coordinate import CoordinatePhases, unit_curvatures
from sklearn_mm._hebbian.energy import Array, Layers, Network
from sklearn_mm._hebbian.modulus import Factors, ModulusPhases

# Forward and backward passes are made where gamma ||W_k||^2 is at most this. On random
# networks they contract up to about 1 whatever the feedback, slowly there, and diverge
# from 1.5 to 2 on; the modulus iteration takes some 30 passes anywhere.
_CONTRACTS = 0.8
_POWER_STEPS = 12


@dataclass(frozen=True)
class Point:
    """What is known at one theta."""

    network: Network
    solver: str = "auto"  # or "modulus", "coordinate"

    @property
    def theta(self) -> Array:
        """The parameters themselves."""
        return self.network.theta

    @functools.cached_property
    def contraction(self) -> float:
        """gamma times the largest squared norm of a matrix that feeds back."""
        energy = self.network.energy
        coefs = self.network.coefs
        # Up to H in the clamped phase, where the loss pulls with its curvature.
        squares = [_squared_norm(coefs[k]) for k in range(1, energy.n_hidden)]
        squares.append(energy.loss.curvature * _squared_norm(coefs[-1]))
        return energy.gamma * max(squares)

    @property
    def method(self) -> str:
        """How latents are inferred here."""
        if self.solver != "auto":
            return self.solver
        return "difference" if self.contraction <= _CONTRACTS else "modulus"

    @functools.cached_property
    def factors(self) -> Factors:
        """For the modulus iteration."""
        return Factors.of(self.network)

    @functools.cached_property
    def curvatures(self) -> Layers:
        """For inference unit by unit."""
        return unit_curvatures(self.network)

    def phases_and_known(self) -> tuple[Any, Any]:
        """Latents for strong feedback, and what their passes need to know."""
        if self.method == "modulus":
            return ModulusPhases, self.factors
        return CoordinatePhases, self.curvatures

    def prepared(self) -> Point:
        """The same with everything computed that parallel tasks need."""
        needed = {"coordinate": "curvatures", "modulus": "factors"}
        if self.method in needed:
            getattr(self, needed[self.method])
        return self


def _squared_norm(W: Array) -> float:
    """Squared spectral norm by power iteration, from a constant start."""
    vector = np.random.default_rng(0).normal(size=(W.shape[1],)).astype(W.dtype)
    square = 0.0
    for _ in range(_POWER_STEPS):
        product = W.T @ (W @ vector)
        size = float(np.linalg.norm(product))
        if not 0.0 < size < np.inf:
            return size
        square = size / float(np.sqrt(vector @ vector))
        vector = product / np.asarray(size, product.dtype)
    return square
