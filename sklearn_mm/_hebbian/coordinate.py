"""Inference unit by unit, as in the paper's experiments.

A pass minimises the energy over one unit after the other, for all rows at once. It goes
through the layers upwards in the free phase, which is determined by the input, and
downwards in the clamped phase, where the output is new. Units are processed in blocks:
within a block, each unit uses the new values of the previous ones, and the rest of the
layer is updated by one matrix product per block. The iterates are those of the plain
method, several times faster.

A loss that is not quadratic is replaced by the quadratic function of its largest
curvature that touches it at the current output.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sklearn_mm._hebbian.energy import Array, Box, Layers, Network

_BLOCK = 64  # units whose activations stay in the cache


class CoordinatePhases:
    """Both phases of some rows, transposed, so that each unit is contiguous."""

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
        """Make more passes of each phase; the clamped one starts from the free one."""
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
        """Activations of the free and the clamped phase."""
        assert self.clamped is not None
        return (
            [None, *(np.ascontiguousarray(z.T) for z in self.free[1:])],
            [None, *(np.ascontiguousarray(z.T) for z in self.clamped[1:])],
        )


@dataclass(frozen=True)
class LayerCurvature:
    """Hessian of the clamped energy in a layer, in units of its own diagonal.

    Rows and gradient are divided by the diagonal, so that the step of a unit is its
    gradient. `rows` contains, for each block and row, minus the entries before the
    diagonal, followed by a one.
    """

    diagonal: Array
    below: Array  # entries before the diagonal, whole
    rows: list[list[Array]]

    @classmethod
    def of(cls, matrix: Array) -> LayerCurvature:
        """Make it from the Hessian."""
        diagonal = matrix.diagonal().copy()[:, None]
        below = np.tril(matrix / diagonal, -1)
        signed = np.eye(len(matrix), dtype=matrix.dtype) - below
        rows = [
            [signed[j, start : j + 1] for j in range(start, stop)]
            for start, stop in _blocks(len(matrix))
        ]
        return cls(diagonal, below, rows)


def _blocks(n_units: int) -> list[tuple[int, int]]:
    starts = range(0, n_units, _BLOCK)
    return [(start, min(start + _BLOCK, n_units)) for start in starts]


def unit_curvatures(network: Network) -> Layers:
    """Curvatures of all layers."""
    energy = network.energy
    result: Layers = [None]
    for k in energy.hidden:
        scale = energy.gamma * (energy.loss.curvature if k == energy.n_hidden else 1.0)
        W = network.coefs[k]
        matrix = (scale * (W @ W.T)).astype(network.dtype, copy=False)
        matrix[np.diag_indices_from(matrix)] += 1
        result.append(LayerCurvature.of(matrix))
    return result


def _minimise_layer(
    network: Network,
    curvatures: Layers,
    z: Layers,
    k: int,
    drive: Array,
    Y: Array | None,
) -> None:
    """Minimise exactly over one unit of layer k after the other."""
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
    curvature, layer = curvatures[k], z[k]
    goal = own - layer
    goal += network.back[k].T @ above
    goal /= curvature.diagonal
    # Where units would go if those before them did not move; then they hear of those.
    goal += layer
    goal += curvature.below @ layer
    for (start, stop), rows in zip(_blocks(len(layer)), curvature.rows, strict=True):
        if start:
            goal[start:stop] -= curvature.below[start:stop, :start] @ goal[:start]
        _minimise_units(box, rows, goal[start:stop])
    layer[:] = goal


def _minimise_units(box: Box, rows: list[Array], goal: Array) -> None:
    """One unit of a block after the other, from goals to activations in place."""
    # NumPy is faster with an array than with a number.
    low, high = (
        np.full(goal.shape[1], face, goal.dtype) if np.isfinite(face) else None
        for face in (box.low, box.high)
    )
    # A unit hears of all those before it in one product, its own goal included.
    for j, (row, unit) in enumerate(zip(rows, goal, strict=True)):
        new = np.dot(row, goal[: j + 1])
        if high is not None:
            new = np.minimum(new, high)
        if low is not None:
            np.maximum(new, low, out=unit)
        else:
            unit[:] = new
