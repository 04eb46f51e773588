"""Inference until convergence, for predictions and certified losses.

Each row starts independently of other rows and takes as many passes as it needs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sklearn_mm._hebbian.difference import DifferencePhases
from sklearn_mm._hebbian.energy import Array, Layers, Network, free_gaps, row_products
from sklearn_mm._hebbian.point import Point
from sklearn_mm._hebbian.problem import ContrastiveProblem, Latent
from sklearn_mm._hebbian.row_bounds import squared_rounding
from sklearn_mm._solver.roles import ALL_ROWS

_PASSES_PER_TEST = 8  # where a test costs as much as several passes


def free_outputs(
    part: ContrastiveProblem, point: Point, tol: float, max_passes: int
) -> tuple[Array, list[Array], int]:
    """Outputs and activations of all rows, and the number of rows not finished.

    Every row takes the passes until its own duality gap is at most `tol` times its
    energy, so that the result for a row does not depend on the other rows.
    """
    network = point.network
    batch = part.gather(ALL_ROWS)
    drive = part.drive(network, batch.x)
    z, n_open = infer_free(part, point, drive, batch.Y, tol, max_passes)
    return network.affine(z[-1], part.energy.n_hidden), z, n_open


def infer_free(
    part: ContrastiveProblem,
    point: Point,
    drive: Array,
    Y: Array,
    tol: float,
    max_passes: int,
) -> tuple[list[Array], int]:
    """Activations of the free phase, and the number of rows that were not finished."""
    energy, dtype = part.energy, part.dtype
    result = [np.empty((len(drive), energy.sizes[k]), dtype) for k in energy.hidden]
    unfinished = np.ones(len(drive), dtype=bool)
    rounding = squared_rounding(dtype)
    for z, gap, last in _free_passes(part, point, drive, Y, max_passes):
        value, squares = _free_energy(point.network, drive, z)
        still = gap > tol * value + rounding * squares
        done = unfinished & ~(still & ~np.bool_(last))
        for out, layer in zip(result, z[1:], strict=True):
            out[done] = layer[done]
        if last:
            return result, int(np.sum(unfinished & still))
        unfinished &= still
        if not unfinished.any():
            break
    return result, 0


def _free_passes(
    part: ContrastiveProblem, point: Point, drive: Array, Y: Array, max_passes: int
) -> Iterator[tuple[Layers, Array, bool]]:
    """Activations and gaps of all rows after more and more passes."""
    network, energy = point.network, part.energy
    point = point.prepared()
    passes = 0
    if point.method == "difference":
        phases = DifferencePhases(energy, len(drive), part.dtype)
        phases.drive[:] = drive
        phases.free(network, [])
        while passes < max_passes:
            passes += 1
            if energy.n_hidden > 1:
                phases.more_free(network)
            yield phases.z, phases.free_gap_of_rows(), passes == max_passes
        return
    solver = point.phases(drive, Y, free_only=True)
    while passes < max_passes:
        more = min(_PASSES_PER_TEST, max_passes - passes)
        passes += more
        solver.run(network, point.known, drive, Y, more)
        z, _ = solver.activations(network)
        yield z, free_gaps(network, drive, z), passes == max_passes


def _free_energy(network: Network, drive: Array, z: Layers) -> tuple[Array, Array]:
    """Free energy of every row, and the weighted squares of its activations."""
    energy = network.energy
    value, squares, made = np.zeros(len(drive)), np.zeros(len(drive)), drive
    for k in energy.hidden:
        w, r = energy.weights[k - 1], z[k] - made
        squares += w * row_products(z[k], z[k])
        value += 0.5 * w * row_products(r, r)
        if k < energy.n_hidden:
            made = network.affine(z[k], k)
    return value, squares


def certified_bounds(
    part: ContrastiveProblem, point: Point, tol: float, max_passes: int
) -> Array:
    """Lower and upper bound of the loss, inferred until they agree to `tol`."""
    batch = part.gather(ALL_ROWS)
    lower, upper = np.zeros(batch.n_rows), np.zeros(batch.n_rows)
    unfinished = np.ones(batch.n_rows, dtype=bool)
    latent, passes = Latent(batch), 0
    while unfinished.any():
        more = min(max(passes, 4), max_passes - passes)
        latent = part.infer(point, latent, more)
        passes += more
        rows = part.row_bounds(point, latent)
        # The better of all bounds holds.
        upper = rows.upper if passes == more else np.minimum(upper, rows.upper)
        lower = np.maximum(lower, rows.lower)
        done = upper - lower <= tol * upper
        if passes >= max_passes or done.all():
            break
    share = np.broadcast_to(batch.share, batch.n_rows)
    return np.array([share @ np.minimum(lower, upper), share @ upper])
