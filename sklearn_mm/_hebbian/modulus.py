r"""Inference for strong feedback: the modulus iteration, for all rows at once.

Each phase minimises a quadratic function, whose Hessian Q is the same for all rows,
over a box. Over-relaxed splitting (Peaceman and Rachford; for the half-line it is known
as the modulus method) alternates between the box and the quadratic: with
the iterate v, z = clip(v) and its reflection m = 2 z - v,

    solve (Q + sigma I) y = c + sigma m,      v <- v + relax (y - z),

which is the modulus iteration for [0, inf), where m = |v|. In units of the residuals
(block k divided by w_{k-1}), the equations of a row are

    (1 + sigma) y_k + gamma y_k W_k W_k' - y_{k-1} W_{k-1} - gamma y_{k+1} W_k' = rhs_k.

They are block tridiagonal and are eliminated upwards: with the Schur complements S_k,
G_k = S_k^-1 and P_k = G_k W_k,

    S_1 = (1 + sigma) I + gamma W_1 W_1',
    S_{k+1} = (1 + sigma) I + gamma W_{k+1} W_{k+1}' - gamma W_k' P_k,
    rhs_{k+1} += rhs_k P_k;     y_H = rhs_H G_H,   y_k = rhs_k G_k + gamma y_{k+1} P_k'.

The code divides right-hand sides by sigma and multiplies the solution by relax; both
factors are part of the stored inverses.

The phases only differ in the last block, (1 + sigma) I - ..., to which the clamped one
adds gamma beta W_H W_H', where beta is the curvature of the loss. A loss that is not
quadratic is replaced by the quadratic function of that curvature that touches it at the
current output, i.e. by a squared error with the target f + e / beta.

**Start.** At a fixed point, v = z - g / sigma, where g is the gradient. For the
feed-forward activations z = clip(a), it is z - a in the layers that the next one does
not pull at, so that both phases start from v = z + (a - z) / sigma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import get_lapack_funcs

from sklearn_mm._hebbian.difference import Block
from sklearn_mm._hebbian.energy import Array, Box, Layers, Network
from sklearn_mm._solver.vectors import add_multiple

# The relaxation, and about the square root of the product of the extreme eigenvalues of
# Q. In SuDeMM on mini-batches of ten (MNIST, Fashion-MNIST, KMNIST and CIFAR-10, two to
# six hidden layers, feedback 1 and 0.5, squared error), 0.6 takes 14 % fewer passes
# than 0.5 on average, and 9 % more at worst; 0.7 takes still fewer, but up to 85 % more
# late in training. The norms of the matrices do not tell the best value, and a choice
# by trials on some rows makes results depend on their order. Neither a cycle of two or
# three values, which converges much faster without the box, nor Anderson acceleration
# reduces the number of passes.
_RELAX, _SIGMA = 1.8, 0.6


@dataclass(frozen=True)
class Factors:
    """The eliminated equations of a network, for both phases."""

    inverses: Layers  # relax sigma G_k, k < H
    products: Layers  # P_k, k < H
    transposed: Layers  # gamma P_k'
    free: Array  # relax sigma G_H
    clamped: Array

    @classmethod
    def of(cls, network: Network) -> Factors:
        """Eliminate the layers of a network.

        In the precision of the passes, since eigenvalues are at least one.
        """
        energy, back = network.energy, network.back
        H, dtype = energy.n_hidden, network.dtype
        factor = dtype.type(_RELAX * _SIGMA)
        inverses: Layers = [None]
        products: Layers = [None]
        transposed: Layers = [None]
        S = _diagonal(energy.sizes[1], dtype)
        for k in range(1, H):
            W = network.coefs[k]
            G = _inverse(S + W @ back[k])
            P = G @ W
            inverses.append(factor * G)
            products.append(P)
            transposed.append(np.multiply(P.T, dtype.type(energy.gamma), order="C"))
            S = _diagonal(W.shape[1], dtype)
            S -= back[k] @ P
        curvature = dtype.type(energy.loss.curvature)
        top = S + curvature * (network.coefs[H] @ back[H])
        free, clamped = factor * _inverse(S), factor * _inverse(top)
        return cls(inverses, products, transposed, free, clamped)


def _diagonal(size: int, dtype: np.dtype[Any]) -> Array:
    S = np.zeros((size, size), dtype)
    S.flat[:: size + 1] = 1.0 + _SIGMA
    return S


def _inverse(A: Array) -> Array:
    """Inverse of a positive definite matrix; nan where numbers are too large for it."""
    potrf, potri = get_lapack_funcs(("potrf", "potri"), (A,))
    factor, failed = potrf(A, lower=True, clean=True)
    if failed:
        return np.full_like(A, np.nan)
    half, _ = potri(factor, lower=True, overwrite_c=True)
    inverse = half + half.T
    inverse.flat[:: len(A) + 1] *= 0.5
    return np.ascontiguousarray(inverse)


class ModulusPhases:
    """Both phases of some rows, the free one first, or the free phase alone."""

    def __init__(self, network: Network, n_rows: int, free_only: bool = False) -> None:
        self.n_rows, self.free_only = n_rows, free_only
        both = n_rows if free_only else 2 * n_rows
        self.v, self._y, self._x, self._fixed = (
            Block(both, network.energy.sizes[1:-1], network.dtype) for _ in range(4)
        )

    @property
    def shape(self) -> tuple[int, bool]:
        """What others whose memory is used again must have in common with these."""
        return self.n_rows, self.free_only

    def start(self, network: Network, drive: Array) -> ModulusPhases:
        """Start from the feed-forward activations."""
        energy, n, factor = network.energy, self.n_rows, 1.0 / _SIGMA
        a = drive
        for k in energy.hidden:
            z = energy.box.clip(a, self._x[k][:n])
            start = np.subtract(a, z, out=self.v[k][:n])
            start *= network.dtype.type(factor)
            start += z
            if not self.free_only:
                self.v[k][n:] = start
            a = network.affine(z, k)
        return self

    def run(
        self, network: Network, factors: Factors, drive: Array, Y: Array, passes: int
    ) -> None:
        """Make more passes; the free phase alone does not depend on Y."""
        energy, n, v, y, x = network.energy, self.n_rows, self.v, self._y, self._x
        H, fixed = energy.n_hidden, self._fixed
        self._set_right_hand_sides(network, drive)
        # The quadratic function that touches a quadratic loss is the loss itself.
        constant = self.free_only or getattr(energy.loss, "quadratic", False)
        if constant and passes and not self.free_only:
            top = energy.box.clip(v[H][n:], x[H][n:])
            fixed[H][n:] += _touching(network, top, Y)
        for _ in range(passes):
            if not constant:
                top = energy.box.clip(v[H][n:], x[H][n:])
                touching = _touching(network, top, Y)
            self._reflect(energy.box)
            y.flat += fixed.flat
            if not constant:
                y[H][n:] += touching
            for k in range(1, H):
                y[k + 1] += np.matmul(y[k], factors.products[k], out=x[k + 1])
            np.matmul(y[H][:n], factors.free, out=x[H][:n])
            np.matmul(y[H][n:], factors.clamped, out=x[H][n:])
            for k in range(H - 1, 0, -1):
                np.matmul(y[k], factors.inverses[k], out=x[k])
                x[k] += np.matmul(x[k + 1], factors.transposed[k], out=y[k])
            v.flat += x.flat

    def _set_right_hand_sides(self, network: Network, drive: Array) -> None:
        """Compute the constant part of the equations, divided by sigma."""
        energy, n, fixed = network.energy, self.n_rows, self._fixed
        for k in energy.hidden:
            fixed[k][:n] = drive if k == 1 else network.intercepts[k - 1]
            if k < energy.n_hidden:
                fixed[k][:n] -= network.intercepts[k] @ network.back[k]
            if not self.free_only:
                fixed[k][n:] = fixed[k][:n]
        fixed.flat *= network.dtype.type(1.0 / _SIGMA)

    def _reflect(self, box: Box) -> None:
        """Set y to the reflection m, and subtract relax z from v."""
        v, y, x = self.v.flat, self._y.flat, self._x.flat
        if box.low == 0.0 and box.high == np.inf:  # m = |v| and z = (v + m) / 2
            np.abs(v, out=y)
            v *= v.dtype.type(1.0 - 0.5 * _RELAX)
            add_multiple(v, -0.5 * _RELAX, y)
            return
        z = box.clip(v, x)
        np.subtract(z, v, out=y)
        y += z
        add_multiple(v, -_RELAX, z)

    def activations(self, network: Network) -> tuple[Layers, Layers]:
        """Activations of the free and the clamped phase, which may have no rows."""
        n, box = self.n_rows, network.energy.box
        z = [box.clip(v, np.empty_like(v)) for v in self.v[1:]]
        return [None, *(layer[:n] for layer in z)], [None, *(layer[n:] for layer in z)]


def _touching(network: Network, z: Array, Y: Array) -> Array:
    """Linear term of the quadratic that touches the loss at the output of z.

    Divided by sigma, as all right-hand sides.
    """
    H, loss = network.energy.n_hidden, network.energy.loss
    output = z @ network.coefs[H]
    beta = output.dtype.type(loss.curvature)
    pulling = loss.descent(output + network.intercepts[H], Y)
    pulling += np.multiply(output, beta, out=output)
    pulling *= beta.dtype.type(1.0 / _SIGMA)
    made: Array = pulling @ network.back[H]
    return made
