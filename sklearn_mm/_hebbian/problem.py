r"""Contrastive Hebbian learning as a latent-variable problem.

J(theta) is the weighted mean over rows of the loss of `energy`, plus
``alpha/2 ||W||^2``. The latent variables of a row are the activations of its two phases
and the slacks of the free one; effort counts sweeps over the layers.

*Who divides by what.* A slice of rows is a chunk of the whole sum: its bounds are
divided by the total weight, so that chunks add up to the whole batch. An array of
indices is a mini-batch and divides by its own weight. The penalty is carried by the
rows in the same proportion.

*Precision.* Sweeps run in the precision of X. Energies, large and nearly equal in both
phases, are then computed in float64 from the activations that the sweeps arrived at, so
that rounding in a sweep is no more than a slightly different latent. The gaps are sums
of non-negative terms and lose nothing by being computed in the precision of X. The
drive W_0 x + b_0 is in that precision too, but it is one and the same number in both
phases: the bounds are those of a network whose first biases differ in the last digit.
Compared with exact arithmetic, what is left of rounding in the bounds of a row is about
one unit in the last place of ``sum_k w_k (||z_{k+1}||^2 + ||W_k z_k + b_k||^2)`` over
both phases, in the precision of the sweeps (tests/package/test_exact_certificates.py).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.utils.extmath import row_norms, safe_sparse_dot

from sklearn_mm._hebbian.energy import (
    Network,
    Phase,
    build_network,
    dual_point,
    energy,
    free_dual,
    gradient,
    implied_activations,
    multipliers,
    prepare_sweeps,
    residuals,
    row_products,
)
from sklearn_mm._rows.table import Rows
from sklearn_mm._solver.roles import ALL_ROWS, Array, Batch, Bounds

# Rows whose activations are held at a time where nothing else decides: with layers of
# 64 units their arrays fill a second-level cache.
DEFAULT_CHUNK = 1024
# Weights of the first residuals grow like feedback**-n_hidden and multiply differences
# of the two phases' activations. Beyond this, float32's seven digits leave too few for
# the gradient, and sweeps run in float64.
_FLOAT32_LIMIT = 1e4
# When rows are inferred to the end: sweeps from test to test, and the size of rounding
# errors in the residuals, in units of the last place of the activations.
_PASSES_PER_TEST, _ROUNDING_ULPS = 4, 8.0


@dataclass
class Latent:
    """Both phases of some rows; `theta` is the one that their residuals belong to."""

    X: Any
    Y: Array
    share: Array
    squares: Array  # squared norms of the rows of X
    theta: Array | None = None
    drive: Array | None = None
    free: Phase | None = None
    clamped: Phase | None = None
    point: Point | None = None


@dataclass
class Point:
    """What bounds at one theta are made of."""

    z: list  # clamped activations
    r: list  # and their residuals
    slacks: list  # of the free phase
    mu: list  # and their multipliers
    upper: Array  # of every row
    dual: Array  # free dual energy of every row
    lower: Array
    gaps: Array  # of both phases, by layer and row


@dataclass(frozen=True)
class NetworkPoint:
    """A theta and the network that it describes."""

    theta: Array
    network: Network


@dataclass(frozen=True)
class ContrastiveProblem:
    """Bounds of the contrastive loss of a network on data.

    Y must be of shape (n_samples, n_outputs), and both it and X of one precision.
    """

    X: Any
    Y: Array
    sample_weight: Array
    sizes: tuple[int, ...]
    feedback: float
    alpha: float = 0.0
    coordinate: bool = False
    total: float = 0.0  # weight of all rows, where these are a part of them
    data_dtype: Any = None  # precision that rows are brought to, if not that of X
    chunk_size: int | None = None
    n_jobs: int | None = None
    # Singular vectors of the matrices, from which those of the next theta are found.
    vectors: dict = field(default_factory=dict, compare=False, repr=False)

    @property
    def n_samples(self) -> int:
        return self.X.shape[0]

    @property
    def dtype(self) -> np.dtype:
        """Precision of the sweeps."""
        dtype = self.data_dtype or self.X.dtype
        return sweep_dtype(dtype, self.feedback, len(self.sizes) - 2)

    def at(self, theta: Array) -> NetworkPoint:
        """Parameters at theta, ready for sweeps."""
        plain = build_network(theta, self.sizes, self.feedback, self.dtype)
        return NetworkPoint(theta, prepare_sweeps(plain, self.vectors, self.coordinate))

    @functools.cached_property
    def rows(self) -> Rows:
        """The rows, in chunks."""
        return Rows.of(self.X, self.chunk_size or DEFAULT_CHUNK, self.n_jobs)

    def start(self, rows: Batch) -> Latent:
        """No activations yet: those of the ReLU network are the cold start."""
        X, Y, weight = self.X[rows], self.Y[rows], self.sample_weight[rows]
        total = self.total_weight if isinstance(rows, slice) else weight.sum()
        if self.data_dtype is not None:
            X, Y = X.astype(self.data_dtype), Y.astype(self.data_dtype)
        return Latent(X, Y, weight / total, row_norms(X, squared=True))

    @functools.cached_property
    def total_weight(self) -> float:
        """What chunks of rows are divided by."""
        return self.total or float(self.sample_weight.sum())

    def map_parts(
        self, function: Callable[..., Any], point: NetworkPoint, *arguments: Any
    ) -> Iterator[Any]:
        """Values of ``function(part, point, *arguments)`` for chunks of the rows.

        A part is a problem of its own that counts as a part of the whole.
        """
        nothing: Any = None
        bare = replace(
            self,
            X=nothing,
            Y=nothing,
            sample_weight=nothing,
            total=self.total_weight,
        )
        args = (function, bare, point, arguments)
        return self.rows.map(_call_with_part, self.Y, self.sample_weight, args=args)

    def cold_bounds(self, point: NetworkPoint, effort: float) -> Bounds:
        """Bounds of all rows, each chunk inferred from scratch."""
        bounds = self.map_parts(_cold_bounds, point, effort)
        return functools.reduce(operator.add, bounds)

    def infer(self, point: NetworkPoint, latent: Latent, effort: float) -> Latent:
        """`effort` sweeps of the free phase, and a few less of the clamped one.

        The clamped phase starts where the free one has got to. With a small feedback
        this saves a sweep for every layer: the first layer of the free phase has to
        follow changes of all others, each of which comes down one layer in a sweep.
        """
        network = point.network
        passes = round(effort)
        fresh = latent.free is None
        if latent.theta is not point.theta:
            self._rebase(network, point.theta, latent)
        assert latent.free is not None
        for _ in range(passes):
            latent.free.sweep(network)
        if fresh:
            latent.clamped = latent.free.clamp(network, latent.Y)
            passes = max(passes - network.n_hidden, 1)
        assert latent.clamped is not None
        for _ in range(passes):
            latent.clamped.sweep(network)
        return latent

    def evaluate(self, at: NetworkPoint, latent: Latent) -> Bounds:
        """Bounds at theta, and the gradient of the upper one."""
        theta, network = at.theta, at.network
        point = self.settle(at, latent)
        v = implied_activations(network, point.mu, latent.drive)
        share = latent.share
        out = np.empty(theta.shape)
        gradient(network, share, latent.X, point.z, point.r, point.mu, v, out)
        total = float(share.sum())
        if self.alpha:
            n_weights = len(theta) - sum(self.sizes[1:])
            out[:n_weights] += (total * self.alpha) * theta[:n_weights]
        penalty = total * self.penalty(theta)
        upper, lower = float(share @ point.upper), float(share @ point.lower)
        return Bounds(
            upper + penalty,
            min(lower, upper) + penalty,
            out,
            float(share @ self._gap_curvature(network, latent, point)),
        )

    def _gap_curvature(self, network: Network, latent: Latent, point: Point) -> Array:
        """The gap of each layer times the curvature in its parameters, row by row.

        The clamped energy is quadratic in the weights of layer k, with Hessian
        w_k z_k z_k' (z_k extended by a one for the bias). An error in r_k that opens a
        gap of g_k changes the gradient in W_k by as much as w_k ||z_k||^2 times 2 g_k,
        squared. A gap that is due to rounding is left out: no pass can close it.
        """
        squares = [row_products(layer, layer) for layer in point.z]
        inputs = [latent.squares, *squares[:-1]]
        rounding = (_ROUNDING_ULPS * np.finfo(self.dtype).eps) ** 2
        value = np.zeros(len(latent.share))
        for k, gap in enumerate(point.gaps):
            w = network.weights[k]
            error = np.maximum(gap - (rounding * w) * squares[k], 0.0)
            value += w * (1.0 + inputs[k]) * error
        return value

    def settle(self, at: NetworkPoint, latent: Latent) -> Point:
        """Slacks and bounds of a latent inferred at theta.

        A free dual energy that got worse with more sweeps is not taken: the better
        slacks of a row are kept, and so is its better lower bound.
        """
        network = at.network
        free, clamped = latent.free, latent.clamped
        assert free is not None and clamped is not None
        slacks, mu, free_gaps = dual_point(network, free.z, free.r)
        _, _, clamped_gaps = dual_point(network, clamped.z, clamped.r)
        free_gap, clamped_gap = free_gaps.sum(axis=0), clamped_gaps.sum(axis=0)
        free_energy = self._energy(network, latent, free)
        clamped_energy = self._energy(network, latent, clamped)
        # Energies are large and nearly equal: gaps must not be added to one of them.
        loss = clamped_energy - free_energy
        upper = loss + free_gap
        # J >= 0, row by row: the free phase can do what the clamped one does.
        lower = np.maximum(loss - clamped_gap, 0.0)
        dual = free_energy - free_gap
        old = latent.point
        if old is not None:
            worse = dual < old.dual
            dual = np.maximum(dual, old.dual)
            upper[worse] = clamped_energy[worse] - old.dual[worse]
            lower = np.maximum(lower, old.lower)
            for new_layer, old_layer in zip(slacks, old.slacks, strict=True):
                new_layer[worse] = old_layer[worse]
            mu = multipliers(network, slacks)
        gaps = free_gaps + clamped_gaps
        latent.point = Point(clamped.z, clamped.r, slacks, mu, upper, dual, lower, gaps)
        return latent.point

    def _energy(self, network: Network, latent: Latent, phase: Phase) -> Array:
        """Energies in float64, whatever the precision of the activations."""
        if self.dtype == np.float64:
            return energy(network, phase.r)
        z = [layer.astype(np.float64) for layer in phase.z]
        Y = latent.Y if phase.clamped else None
        return energy(network, residuals(network, network.coefs, z, latent.drive, Y))

    def upper_bound(self, theta: Array, latent: Latent) -> float:
        """Upper bound at any theta with the latent of the last `settle`."""
        point = latent.point
        assert point is not None
        network = build_network(theta, self.sizes, self.feedback, np.float64)
        drive = self.drive(network, latent.X).astype(np.float64, copy=False)
        z = [layer.astype(np.float64, copy=False) for layer in point.z]
        slacks = [layer.astype(np.float64, copy=False) for layer in point.slacks]
        r = residuals(network, network.coefs, z, drive, latent.Y)
        dual = free_dual(network, multipliers(network, slacks), drive)
        share = latent.share
        data = float(share @ (energy(network, r) - dual))
        return data + float(share.sum()) * self.penalty(theta)

    def penalty(self, theta: Array) -> float:
        """``alpha/2`` times the squared norm of the matrices, which come first."""
        if not self.alpha:
            return 0.0
        matrices = theta[: len(theta) - sum(self.sizes[1:])]
        return 0.5 * self.alpha * float(matrices @ matrices)

    def _rebase(self, network: Network, theta: Array, latent: Latent) -> None:
        latent.drive = self.drive(network, latent.X)
        latent.theta, latent.point = theta, None
        if latent.free is None:
            latent.free = Phase.feed_forward(network, latent.drive)
        else:
            assert latent.clamped is not None
            latent.free = latent.free.rebase(network, latent.drive)
            latent.clamped = latent.clamped.rebase(network, latent.drive, latent.Y)

    def drive(self, network: Network, X: Any) -> Array:
        matrix = network.fast[0].astype(X.dtype, copy=False)
        drive = safe_sparse_dot(X, matrix, dense_output=True)
        drive = drive.astype(self.dtype, copy=False)
        drive += network.intercepts[0]
        return drive


def _call_with_part(
    X: Any,
    Y: Array,
    weight: Array,
    function: Callable[..., Any],
    bare: ContrastiveProblem,
    point: NetworkPoint,
    arguments: tuple[Any, ...],
) -> Any:
    part = replace(bare, X=X, Y=Y, sample_weight=weight)
    return function(part, point, *arguments)


def _cold_bounds(
    part: ContrastiveProblem, point: NetworkPoint, effort: float
) -> Bounds:
    latent = part.infer(point, part.start(ALL_ROWS), effort)
    return part.evaluate(point, latent)


def sweep_dtype(dtype, feedback: float, n_hidden: int) -> np.dtype:
    """Precision of activations for data of a precision."""
    if dtype == np.float32 and feedback**-n_hidden <= _FLOAT32_LIMIT:
        return np.dtype(np.float32)
    return np.dtype(np.float64)


def infer_free(network: Network, drive: Array, tol: float, max_passes: int):
    """Activations of the free phase, and the number of rows that were not finished.

    Every row is swept until its own duality gap is at most `tol` times its energy, so
    that the result for a row does not depend on the company it is in.
    """
    phase = Phase.feed_forward(network, drive)
    if network.n_hidden == 1:  # no layer pulls at another: feed-forward is exact
        return phase.z, 0
    result = [np.empty_like(layer) for layer in phase.z]
    rows = np.arange(len(drive))
    passes = 0
    while len(rows):
        for _ in range(min(_PASSES_PER_TEST, max_passes - passes)):
            phase.sweep(network)
            passes += 1
        open_rows = _unfinished(network, phase, tol)
        last = passes >= max_passes
        done = np.ones_like(open_rows) if last else np.logical_not(open_rows)
        for out, layer in zip(result, phase.z, strict=True):
            out[rows[done]] = layer[done]
        if last:
            return result, int(open_rows.sum())
        phase, rows = phase.take(open_rows), rows[open_rows]
    return result, 0


def free_outputs(
    part: ContrastiveProblem, point: NetworkPoint, tol: float, max_passes: int
) -> tuple[Array, list[Array], int]:
    """Outputs and activations of all rows, and the number of rows not finished."""
    network = point.network
    z, n_open = infer_free(network, part.drive(network, part.X), tol, max_passes)
    intercept = network.intercepts[-1].astype(part.dtype)
    return z[-1] @ network.fast[-1] + intercept, z, n_open


def certified_bounds(
    part: ContrastiveProblem, at: NetworkPoint, tol: float, max_passes: int
) -> Array:
    """Lower and upper bound of the loss, inferred until they agree to `tol`."""
    latent, passes = part.start(ALL_ROWS), 0
    while True:
        more = min(max(passes, 4), max_passes - passes)
        latent = part.infer(at, latent, more)
        passes += more
        point = part.settle(at, latent)
        upper = float(latent.share @ point.upper)
        lower = float(latent.share @ point.lower)
        if upper - lower <= tol * upper or passes >= max_passes:
            return np.array([min(lower, upper), upper])


def upper_after(
    part: ContrastiveProblem,
    point: NetworkPoint,
    effort: float,
    candidate: Array,
    rows: Batch = ALL_ROWS,
) -> float:
    """Upper bound at a candidate with the latent that an effort gives at theta."""
    latent = part.infer(point, part.start(rows), effort)
    part.settle(point, latent)
    return part.upper_bound(candidate, latent)


def _unfinished(network: Network, phase: Phase, tol: float) -> Array:
    _, _, gap = dual_point(network, phase.z, phase.r)
    # Rounding of the activations alone leaves a gap of this size.
    rounding = _ROUNDING_ULPS * np.finfo(phase.z[0].dtype).eps
    size = energy(network, phase.z)
    return gap.sum(axis=0) > tol * energy(network, phase.r) + rounding**2 * size
