r"""Contrastive Hebbian learning as a latent-variable problem.

J(theta) is the weighted mean over rows of the loss of `energy`, plus
``alpha/2 ||W||^2``. The latent variables of a row are the activations of its two phases
and the slacks of the free phase. The unit of effort is a pass over the layers.

*Normalisation.* A slice of rows is a chunk of the whole sum: its bounds are divided by
the total weight of all rows, so that the bounds of chunks add up to those of the whole
batch. An array of indices is a mini-batch, whose bounds are divided by its own weight.
The penalty is multiplied by the same share.

*Methods of inference* (`Point.method`). Forward and backward passes in difference form
are used if they contract, i.e. if the feedback or the weights are small enough, and the
modulus iteration otherwise. Inference unit by unit, as in the paper, is used on
request.

*Precision.* Passes are made in the precision of X, unless the weights of residuals,
which are of the order ``feedback**-n_hidden``, exceed the limits of single precision,
or bounds of successive updates are compared (`double`). In difference form, rounding
amounts to a change of the biases in the last digit, row by row, and the bounds are
valid for the network with these biases.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.utils.extmath import row_norms, safe_sparse_dot

from sklearn_mm._hebbian.difference import DifferencePhases
from sklearn_mm._hebbian.energy import (
    Array,
    Energy,
    Network,
    Phases,
    evaluate,
    row_products,
    sum_of_products,
    unpack,
    upper_bound,
)
from sklearn_mm._hebbian.gradient import Stacks
from sklearn_mm._hebbian.inputs import NO_UNITS, Units
from sklearn_mm._hebbian.point import Point
from sklearn_mm._hebbian.row_bounds import RowBounds, gap_curvature, measure
from sklearn_mm._rows.table import Rows
from sklearn_mm._rows.workers import blas_threads_for
from sklearn_mm._solver.roles import Batch as Selection
from sklearn_mm._solver.roles import Bounds

# Rows per chunk by default. Larger arrays are returned to the system after each chunk,
# and allocating new pages takes as long as the computation.
DEFAULT_CHUNK = 256
# Bounds for a given effort are computed in larger chunks, by pieces in the same memory.
# (With larger pieces, threads take turns less often.) The modulus iteration, which goes
# over its memory most often, is faster on as many rows as the cache has room for.
LARGE_CHUNK, _PIECE, _SMALL_PIECE = 2048, 512, 120

# If the weight of the first residuals exceeds this, single precision is not sufficient
# for differences of phases, except in difference form.
_SINGLE_DIFFERENCES = 1e4


@dataclass
class Batch:
    """Some rows in the network's units and precision."""

    x: Any
    Y: Array
    share: Any  # weights in the mean: one number, or one for each row

    @property
    def n_rows(self) -> int:
        return len(self.Y)

    @property
    def total(self) -> float:
        """Sum of the weights of all rows."""
        if np.ndim(self.share) == 0:
            return self.n_rows * float(self.share)
        return float(np.sum(self.share))


@dataclass
class Latent:
    """Both phases of a batch, in the form used by the method of inference."""

    batch: Batch
    phases: Any = None
    spare: Any = None  # phases of other rows, whose memory may be used again


@dataclass(frozen=True)
class ContrastiveProblem:
    """Bounds of the contrastive loss of a network on data.

    Y must be of shape (n_samples, n_outputs). `double` requests double precision, and
    `certified` in addition the gradient of the upper bound itself (`difference`).
    """

    X: Any
    Y: Any
    sample_weight: Array
    energy: Energy
    alpha: float = 0.0
    coordinate: bool = False
    certified: bool = False
    double: bool = False
    units: Units = NO_UNITS
    total: float = 0.0  # weight of all rows, of which these may be a part
    data_dtype: Any = None  # precision of the rows, if not that of X
    chunk_size: int | None = None
    n_jobs: int | None = None
    dtype: np.dtype[Any] = field(init=False)  # precision of the passes, and of theta
    total_weight: float = field(init=False)  # what chunks of rows are divided by
    _units: Units = field(init=False, repr=False)  # in the precision of the passes

    def __post_init__(self) -> None:
        dtype = self.energy.pass_dtype(self.data_dtype or self.X.dtype)
        if self.certified or self.double:
            dtype = np.dtype(np.float64)
        total = self.total or float(self.sample_weight.sum())
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "total_weight", total)
        object.__setattr__(self, "_units", self.units.astype(dtype))

    @property
    def n_samples(self) -> int:
        return self.X.shape[0]

    def at(self, theta: Array) -> Point:
        """The network at theta."""
        method = "coordinate" if self.coordinate else "auto"
        return Point(Network.at(theta, self.energy, self.dtype), method)

    def gather(self, rows: Any, out: Array | None = None) -> Batch:
        """Rows in the units of the network, in the memory `out` if possible.

        Columns of the same kind have a common factor in these units. It is left to what
        is computed from the rows: `drive`, `squares` and the gradient.
        """
        X, whole = self.X, isinstance(rows, slice)
        if out is None or whole or not isinstance(X, np.ndarray):
            x = X[rows]
            if self.units.scale is None or not isinstance(x, np.ndarray):
                x = x.astype(self.dtype, copy=False)
        elif X.dtype == out.dtype:
            x = np.take(X, rows, axis=0, out=out, mode="clip")
        else:
            x = out
            x[:] = X[rows]
        x = self._units.convert(x, out=out)
        Y = self.Y
        Y = Y[rows] if whole or not isinstance(Y, np.ndarray) else Y.take(rows, axis=0)
        Y = Y.astype(self.dtype, copy=False)
        if self._uniform and not whole:
            return Batch(x, Y, 1.0 / max(len(Y), 1))
        weight = self.sample_weight[rows]
        total = self.total_weight if whole else float(weight.sum())
        if self._uniform:
            return Batch(x, Y, float(weight[0]) / total if len(weight) else 0.0)
        return Batch(x, Y, weight / total)

    @property
    def _uniform(self) -> bool:
        """Whether all rows have the same weight, stored as a single number."""
        return self.sample_weight.strides == (0,)

    @property
    def common(self) -> float:
        """Factor of the rows that `gather` leaves out."""
        return self._units.common

    def drive(self, network: Network, x: Any, out: Array | None = None) -> Array:
        """The input of the first layer, x W_0 + b_0."""
        W, b = network.coefs[0], network.intercepts[0]
        if isinstance(x, np.ndarray):
            drive = np.dot(x, W, out=out)
        else:
            drive = safe_sparse_dot(x, W, dense_output=True)
            if out is not None:
                out[:] = drive
                drive = out
        if self.common != 1.0:
            drive *= drive.dtype.type(self.common)
        drive += b
        return drive

    def squares(self, x: Any) -> Array:
        """Squared norms of rows in the units of the network."""
        norms: Array = row_norms(x, squared=True)
        return norms * self.common**2

    def sum_of_squares(self, batch: Batch) -> float:
        """Sum of `squares`, multiplied by the weights of rows that differ in it."""
        x, share = batch.x, batch.share
        if isinstance(share, np.ndarray):
            return float(share @ self.squares(x))
        if isinstance(x, np.ndarray):
            return sum_of_products(x, x) * self.common**2
        return float(self.squares(x).sum())

    # The role of the solver

    def start(self, rows: Selection, memory: Latent | None = None) -> Latent:
        """Latents without activations; a cold start uses those of a forward pass.

        They may take the place of others in memory, which are then lost.
        """
        if memory is None:
            return Latent(self.gather(rows))
        return Latent(self.gather(rows, memory.batch.x), spare=memory.phases)

    def infer(self, point: Point, latent: Latent, effort: float) -> Latent:
        """Make `effort` more passes; latents of another point are continued."""
        return self.infer_with_drive(point, latent, effort)[0]

    def infer_with_drive(
        self, point: Point, latent: Latent, effort: float
    ) -> tuple[Latent, Array]:
        """The same, and the drive of these rows, which `evaluate` can use again."""
        network, batch = point.network, latent.batch
        passes = round(effort)
        drive = self.drive(network, batch.x)
        point = point.prepared()
        if point.method == "difference":
            self._pass_differences(network, latent, drive, passes)
            return latent, drive
        if latent.phases is None or isinstance(latent.phases, DifferencePhases):
            latent.phases = point.phases(drive, batch.Y, latent.spare)
        latent.phases.run(network, point.known, drive, batch.Y, passes)
        return latent, drive

    def _pass_differences(
        self, network: Network, latent: Latent, drive: Array, passes: int
    ) -> None:
        phases, Y = latent.phases, latent.batch.Y
        clamped = clamped_passes(passes)
        if isinstance(phases, DifferencePhases):
            phases.drive[:] = drive
            phases.resume(network, Y, passes, clamped)
            return
        phases = latent.spare
        if not isinstance(phases, DifferencePhases) or phases.n_rows != len(Y):
            phases = DifferencePhases(self.energy, len(Y), self.dtype)
        phases.drive[:] = drive
        H = self.energy.n_hidden
        phases.free(network, [H] * passes if H > 1 else [])  # exact with one layer
        phases.clamped(network, Y, clamped)
        latent.phases = phases

    def evaluate(
        self, point: Point, latent: Latent, drive: Array | None = None
    ) -> Bounds:
        """Bounds at a point, and the gradient; the drive there may be given."""
        batch, network = latent.batch, point.network
        rows = self.row_bounds(point, latent, drive)
        out = np.empty(len(point.theta), self.dtype)
        target = unpack(out, self.energy.sizes)
        phases = rows.phases
        if phases is None:
            latent.phases.gradient(batch.x, batch.share, target, self.common)
        else:
            stacks = Stacks.certified(network, phases)
            stacks.gradient(self.energy, batch.x, batch.share, target, self.common)
        return self._bounds(point, batch, rows, out)

    def _bounds(
        self, point: Point, batch: Batch, rows: RowBounds, gradient: Array
    ) -> Bounds:
        total = batch.total
        if self.alpha:
            n_weights = self.energy.n_weights
            gradient[:n_weights] += (total * self.alpha) * point.theta[:n_weights]
        penalty = total * self.penalty(point)

        def mean(values: Array) -> float:
            if np.ndim(batch.share) == 0:
                return float(batch.share) * float(np.sum(values, dtype=np.float64))
            return float(batch.share @ values)

        upper, lower = mean(rows.upper), mean(rows.lower)
        return Bounds(
            upper + penalty,
            min(lower, upper) + penalty,
            gradient,
            mean(rows.gap_curvature),
        )

    def row_bounds(
        self, point: Point, latent: Latent, drive: Array | None = None
    ) -> RowBounds:
        """Bounds of every row."""
        batch, network = latent.batch, point.network
        squares = self.squares(batch.x)
        phases = latent.phases
        if isinstance(phases, DifferencePhases):
            loss = self.energy.loss.value(phases.output_hat, batch.Y)
            made = phases.measure(squares, row_products, loss)
            if not self.certified:
                return RowBounds.of(made, 0.5 * made.curvature)
            latents = phases.snapshot()
        else:
            drive = self.drive(network, batch.x) if drive is None else drive
            z, z_hat = phases.activations(network)
            latents = evaluate(network, drive, batch.Y, z, z_hat)
            made = measure(self.energy, batch.Y, latents)
        curvature = gap_curvature(self.energy, squares, latents)
        return RowBounds.of(made, curvature, latents)

    def upper_bound(self, point: Point, latents: Phases, batch: Batch) -> float:
        """Upper bound at any point with given latents, including the penalty."""
        network = point.network
        drive = self.drive(network, batch.x)
        z_hat = [None, *(latents.z[k] + latents.d[k] for k in self.energy.hidden)]
        rows = upper_bound(network, drive, batch.Y, z_hat, latents.s)
        data = np.sum(rows * batch.share)
        return float(data) + batch.total * self.penalty(point)

    def penalty(self, point: Point) -> float:
        """``alpha/2`` times the squared norm of the matrices."""
        return 0.5 * self.alpha * point.network.square if self.alpha else 0.0

    def _rows(self, chunk: int = DEFAULT_CHUNK) -> Rows:
        """The rows, in chunks."""
        rows: Rows = Rows.of(self.X, self.chunk_size or chunk, self.n_jobs)
        return rows

    def map_parts(
        self, function: Callable[..., Any], point: Point, *arguments: Any
    ) -> Iterator[Any]:
        """Values of ``function(part, point, *arguments)`` for chunks of the rows.

        The part is a problem whose bounds are a part of the whole sum. The point is
        prepared once for all workers.
        """
        args = self._task(function, point, arguments)
        return self._rows().map(_call_with_part, self.Y, self.sample_weight, args=args)

    def sum_parts(
        self,
        function: Callable[..., Any],
        point: Point,
        *arguments: Any,
        chunk: int = DEFAULT_CHUNK,
    ) -> Any:
        """Sum of the values of `map_parts`, or of larger chunks."""
        args, rows = self._task(function, point, arguments), self._rows(chunk)
        return rows.sum(_call_with_part, self.Y, self.sample_weight, args=args)

    def _task(
        self, function: Callable[..., Any], point: Point, arguments: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        return function, self.without_rows(), point.prepared(), arguments

    def without_rows(self) -> ContrastiveProblem:
        """The same problem, to be completed with some of the rows elsewhere."""
        nothing: Any = None
        return replace(
            self,
            X=nothing,
            Y=nothing,
            sample_weight=nothing,
            total=self.total_weight,
            data_dtype=self.data_dtype or self.X.dtype,
        )

    def cold_bounds(self, point: Point, effort: float) -> Bounds:
        """Bounds of all rows, each chunk inferred from scratch."""
        problem, point = self.in_precision(point.prepared())
        bounds = problem.sum_parts(_cold_bounds, point, effort, chunk=LARGE_CHUNK)
        return self.bounds_in_precision(bounds)

    def in_precision(self, point: Point) -> tuple[ContrastiveProblem, Point]:
        """Problem and point in the precision that the point's method needs."""
        if self.energy.weights[0] <= _SINGLE_DIFFERENCES:
            return self, point
        return self.to_the_end(point)

    def to_the_end(self, point: Point) -> tuple[ContrastiveProblem, Point]:
        """Problem and point in a precision in which inference can converge.

        In difference form, rounding changes the last digits of pulls, which are small
        compared with activations. With other methods, it changes the last digits of the
        activations themselves.
        """
        point = point.prepared()
        if self.dtype == np.float64 or point.method == "difference":
            return self, point
        network = Network.at(point.theta, self.energy, np.float64)
        return replace(self, double=True), Point(network, point.method).prepared()

    def bounds_in_precision(self, bounds: Bounds) -> Bounds:
        """Bounds with the gradient in the precision of theta."""
        assert bounds.gradient is not None
        if bounds.gradient.dtype == self.dtype:
            return bounds
        return replace(bounds, gradient=bounds.gradient.astype(self.dtype))


def _call_with_part(
    X: Any,
    Y: Array,
    weight: Array,
    function: Callable[..., Any],
    bare: ContrastiveProblem,
    point: Point,
    arguments: tuple[Any, ...],
) -> Any:
    part = replace(bare, X=X, Y=Y, sample_weight=weight)
    with blas_threads_for(2.0 * DEFAULT_CHUNK * part.energy.n_weights):
        return function(part, point, *arguments)


def _pieces(
    part: ContrastiveProblem, point: Point, effort: float
) -> Iterator[tuple[Latent, Array]]:
    """Latents of all rows and their drive, a piece at a time.

    Each piece takes the place of the last one.
    """
    latent = None
    most = _SMALL_PIECE if point.prepared().method == "modulus" else _PIECE
    # Of almost the same size.
    size = math.ceil(part.n_samples / math.ceil(max(part.n_samples, 1) / most))
    for start in range(0, max(part.n_samples, 1), max(size, 1)):
        latent = part.start(slice(start, start + size), latent)
        yield part.infer_with_drive(point, latent, effort)


def _cold_bounds(part: ContrastiveProblem, point: Point, effort: float) -> Bounds:
    parts = (part.evaluate(point, *piece) for piece in _pieces(part, point, effort))
    return functools.reduce(operator.add, parts)


def clamped_passes(passes: int) -> int:
    """Passes of the clamped phase, which starts from the free one, for an effort."""
    return max(1, passes // 2)


def upper_after(
    part: ContrastiveProblem,
    point: Point,
    effort: float,
    candidate: Point,
    rows: Any = None,
) -> float:
    """Upper bound at a candidate of all rows or some, with latents of a point."""
    if rows is None:
        found = _pieces(part, point, effort)
    else:
        found = iter([part.infer_with_drive(point, part.start(rows), effort)])
    total = 0.0
    for latent, drive in found:
        latents: Phases | None
        if isinstance(latent.phases, DifferencePhases):
            latents = latent.phases.snapshot()
        else:
            latents = part.row_bounds(point, latent, drive).phases
        assert latents is not None
        total += part.upper_bound(candidate, latents, latent.batch)
    return total
