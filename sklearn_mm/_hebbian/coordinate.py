"""Inference unit by unit, as in the paper's experiments.

A pass goes over the layers (upwards in the free phase, where only lower layers are
pulled at; downwards in the clamped one, since what is new to it comes from the output)
and minimises the energy over one unit after the other, for all rows at once. Units are
taken in blocks: within a block units hear of each other one by one, and the rest of the
layer hears of the block in one matrix product. The iterates are those of the plain
method, several times faster.

A loss that is not quadratic is replaced by the quadratic of its largest curvature that
touches it at the present output.
"""

from __future__ import annotations

import numpy as np

from sklearn_mm._hebbian.energy import Array, Box, Layers, Network, between

_BLOCK = 64  # what the units of a block have changed stays in the cache


class CoordinatePhases:
    """Both phases of some rows; rows are columns here, so that units are contiguous."""

    def __init__(self, network: Network, drive: Array, Y: Array) -> None:
        self.free: Layers = [None]
        made = drive
        for k in network.energy.hidden:  # feed-forward start
            z = network.energy.box.clip(made, np.empty_like(made))
            self.free.append(np.ascontiguousarray(z.T))
            made = network.affine(z, k)
        self.clamped: Layers | None = None

    def run(
        self, network: Network, gram: Layers, drive: Array, Y: Array, passes: int
    ) -> None:
        """So many passes more of each phase; the clamped one starts from the free."""
        H = network.energy.n_hidden
        drive, Y = drive.T, Y.T
        for _ in range(passes):
            for k in range(1, H + 1):
                _minimise_layer(network, gram, self.free, k, drive, None)
        if self.clamped is None:
            self.clamped = [None, *(z.copy() for z in self.free[1:])]
        for _ in range(passes):
            for k in range(H, 0, -1):
                _minimise_layer(network, gram, self.clamped, k, drive, Y)

    def activations(self, network: Network) -> tuple[Layers, Layers]:
        """Of the free and the clamped phase."""
        assert self.clamped is not None
        return (
            [None, *(np.ascontiguousarray(z.T) for z in self.free[1:])],
            [None, *(np.ascontiguousarray(z.T) for z in self.clamped[1:])],
        )


def unit_curvatures(network: Network) -> Layers:
    """Hessian of the clamped energy in each layer, in units of its own diagonal.

    Rows are divided by the diagonal, and so is the gradient: the step of a unit is the
    gradient itself then. The diagonal is the second entry of a pair.
    """
    energy = network.energy
    result: Layers = [None]
    for k in energy.hidden:
        scale = energy.gamma * (energy.loss.curvature if k == energy.n_hidden else 1.0)
        W = network.coefs[k]
        matrix = (scale * (W @ W.T)).astype(network.dtype, copy=False)
        matrix[np.diag_indices_from(matrix)] += 1
        diagonal = matrix.diagonal().copy()[:, None]
        result.append((matrix / diagonal, diagonal))
    return result


def _minimise_layer(
    network: Network,
    curvatures: Layers,
    z: Layers,
    k: int,
    drive: Array,
    Y: Array | None,
) -> None:
    """Exact minimisation over one unit of layer k after the other."""
    energy = network.energy
    H, box, coefs, b = energy.n_hidden, energy.box, network.coefs, network.intercepts
    own = drive if k == 1 else coefs[k - 1].T @ z[k - 1] + b[k - 1][:, None]
    if k == H and Y is None:  # nothing pulls
        box.clip(own, z[k])
        return
    above = coefs[k].T @ z[k]
    above += b[k][:, None]
    if k < H:
        above = np.subtract(z[k + 1], above, out=above)
    else:
        assert Y is not None
        above = np.ascontiguousarray(energy.loss.descent(above.T, Y.T).T)
    curvature, diagonal = curvatures[k]
    layer, step = z[k], z[k] - own
    step -= network.back[k].T @ above
    step /= diagonal
    n_units = len(layer)
    for start in range(0, n_units, _BLOCK):
        stop = min(start + _BLOCK, n_units)
        block = slice(start, stop)
        change = _minimise_units(
            box, curvature[block, block], layer[block], step[block]
        )
        if stop < n_units:
            step[stop:] += curvature[stop:, block] @ change


def _minimise_units(box: Box, curvature: Array, z: Array, step: Array) -> Array:
    """One unit of a block after the other, in place; returns the changes.

    Steps are those before the first unit moves: a unit hears of the others, when its
    turn comes, in one product.
    """
    goal, change = z - step, np.empty_like(z)
    # NumPy is faster with an array than with a number.
    low, high = (
        np.full(z.shape[1], face, z.dtype) if np.isfinite(face) else None
        for face in (box.low, box.high)
    )
    for j, (unit, new, made) in enumerate(zip(z, goal, change, strict=True)):
        if j:
            np.subtract(new, np.dot(curvature[j, :j], change[:j]), out=new)
        between(new, low, high)
        np.subtract(new, unit, out=made)
    z[:] = goal
    return change
