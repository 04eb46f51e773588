r"""A population: a plane, the scale of the noise around it, and its share of the rows.

The residuals of a population are assumed to be normal, and those of the other rows to
be uniform around the plane, up to twice the radius of the window in which they are
counted. With N rows within k scales, G rows in the ring from k to 2 k scales, F and F_2
the normal probabilities of the two balls, and v the ratio of the volumes of ring and
ball,

    C = (v N - G) / (v F - (F_2 - F))        rows of the population
    B = N - C F                              rows of the background in the window
    s**2 = (sum of r**2 in the window - B (k s)**2 / (d + 2)) / ((C - q) F m)

for each of d outputs, with m the second moment of the normal law in the window and q
the degrees of freedom that the fit uses up. This fixed-point equation for s is iterated
alternately with weighted least squares for the plane.

Residuals of rows that contribute to a fit are too small, and those of other rows are
too large. The residual of a row with weight u and leverage h = q / C (the mean) has the
standard deviation s sqrt(1 + l) / (1 + u l) with l = h / (1 - h), and is divided by it.
This holds for least squares, and for a penalty that is the prior of the coefficients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2

from sklearn_mm._robust.start.whitened import Array, WhitenedRows
from sklearn_mm.kernels import Kernel

# Radius of the window in scales. It contains 95 % of a population with one output.
_WINDOW = 2.0
# Smallest part of the rows in its window that belongs to a population.
_LEAST_CORE = 0.25
# Largest number of iterations, and relative change of scales that ends them.
_ROUNDS, _SETTLED = 25, 3e-3
# Scales, in units of the spread of y, below which planes are refined.
_FINE = 1e-6
# Smallest number of degrees of freedom that a fit leaves, or smallest part of the rows
# if there is a penalty.
_LEAST_ROWS, _LEAST_PART = 0.5, 1e-6
# Bins of residuals from which the scale is refined.
_BINS = 1_024


@dataclass(frozen=True)
class Window:
    """Properties of the window under the normal law in d dimensions."""

    square: float  # of its radius in scales
    probability: float
    moment: float  # second moment of an output inside
    volume: float  # of the ring in windows
    ring: float  # probability of the ring

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, d: int) -> Window:
        square = float(chi2.ppf(chi2.cdf(_WINDOW**2, 1), d))
        inside = float(chi2.cdf(square, d))
        return cls(
            square,
            inside,
            float(chi2.cdf(square, d + 2)) / inside,
            2.0**d - 1.0,
            float(chi2.cdf(4.0 * square, d)) - inside,
        )

    def core(self, inside: Array, ring: Array, total: float) -> tuple[Array, Array]:
        """Rows of the population, and of the background in its window."""
        core = self.volume * inside - ring
        core = core / (self.volume * self.probability - self.ring)
        background = inside - np.maximum(core, _LEAST_CORE * inside) * self.probability
        background = np.maximum(background, 0.0)
        # Not more than the rows within the outer radius of the ring.
        most = np.minimum(inside + ring, total)
        return np.minimum((inside - background) / self.probability, most), background


@dataclass(frozen=True)
class Populations:
    """Several populations. The first axis of all arrays is that of populations."""

    theta: Array  # (c, r, d)
    scale: Array  # (c, d)
    share: Array  # (c,)
    distance: Array  # (c, n) squared distances of rows from the planes, in scales

    def __len__(self) -> int:
        return len(self.share)

    def __getitem__(self, chosen: Array) -> Populations:
        return Populations(
            self.theta[chosen],
            self.scale[chosen],
            self.share[chosen],
            self.distance[chosen],
        )

    def joined(self, *others: Populations) -> Populations:
        parts = (self, *others)
        return Populations(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("theta", "scale", "share", "distance")
            )
        )

    @classmethod
    def settle(
        cls,
        rows: WhitenedRows,
        theta: Array,
        scale: Array,
        kernel: Kernel,
        tuning: float,
    ) -> Populations:
        """Improve planes and scales in turn until they agree.

        Planes are fitted with a kernel that is `tuning` scales wide.
        """
        # Assume that all rows contribute until the first fit.
        u = np.ones((len(theta), rows.n_rows))
        spent = np.full(len(theta), rows.effective)
        first = np.maximum(scale, rows.floor)
        state = _State.of(rows, theta, u, spent, first)
        theta, state = _begin(theta, state, kernel, tuning)
        found = cls(theta.copy(), state.scale, np.zeros(len(theta)), np.empty(u.shape))
        moving = np.arange(len(theta))
        for i in range(_ROUNDS):
            before = state.scale
            u = kernel.weight(state.distance() / tuning**2)
            theta = rows.solve(u, theta)
            if (fine := np.any(before < _FINE, axis=1)).any():
                theta[fine] = rows.refined(u[fine], theta[fine])
            state = _State.of(rows, theta, u, rows.spent(u), before).rescaled(2)
            rest = np.all(np.abs(state.scale - before) <= _SETTLED * before, axis=1)
            if i == _ROUNDS - 1:
                rest[:] = True
            if rest.any():
                ended, done = moving[rest], state[rest]
                found.theta[ended], found.scale[ended] = theta[rest], done.scale
                # Rounded, so that summation order does not decide between equals.
                found.share[ended] = np.round(done.core() / rows.n_rows, 9)
                found.distance[ended] = done.distance()
                moving, theta, state = moving[~rest], theta[~rest], state[~rest]
            if not len(moving):
                break
        return found


@dataclass(frozen=True)
class _State:
    """Squared residuals of fits, and the scales by which they are measured."""

    rows: WhitenedRows
    squares: Array  # (c, d, n)
    inflation: Array  # (c, n), squared factors that bring them to the noise's size
    scale: Array  # (c, d)

    @classmethod
    def of(
        cls, rows: WhitenedRows, theta: Array, u: Array, spent: Array, scale: Array
    ) -> _State:
        """The state after fits to which rows contributed with confidence u."""
        residual = rows.residuals(theta)
        taking_part = np.maximum(u @ rows.weight, 1.0)
        h = np.minimum(spent / taking_part, 1.0 - _LEAST_PART)
        if rows.ridge is None:
            h = np.minimum(h, 1.0 - _LEAST_ROWS / taking_part)
        odds = (h / (1.0 - h))[:, None]
        inflation = np.square(1.0 + u * odds) / (1.0 + odds)
        # A plane through one row or two would be one that all others may agree with.
        inflation = np.maximum(inflation, (_LEAST_ROWS / taking_part)[:, None])
        return cls(rows, np.square(residual, out=residual), inflation, scale)

    def __getitem__(self, chosen: Array) -> _State:
        return _State(
            self.rows, self.squares[chosen], self.inflation[chosen], self.scale[chosen]
        )

    def distance(self) -> Array:
        """Squared distances of rows from the planes, in scales."""
        if self.scale.shape[1] == 1:
            z = self.squares[:, 0] / np.square(self.scale)
        else:
            z = np.einsum("cdn,cd->cn", self.squares, 1.0 / np.square(self.scale))
        return np.multiply(z, self.inflation, out=z)

    def core(self) -> Array:
        """Rows of the populations."""
        return self._count()[1]

    def _count(self) -> tuple[Array, Array, Array]:
        window = Window.of(self.scale.shape[1])
        z, w = self.distance(), self.rows.weight
        inside = (z <= window.square) * w
        count = inside.sum(axis=1)
        ring = (z <= 4.0 * window.square) @ w - count
        return inside, *window.core(count, ring, float(self.rows.n_rows))

    def rescaled(self, steps: int) -> _State:
        """Iterate the equation of the scale."""
        d = self.scale.shape[1]
        window = Window.of(d)
        state = self
        for _ in range(steps):
            inside, core, background = state._count()
            inside *= state.inflation
            if d == 1:
                total = np.einsum("cn,cn->c", inside, state.squares[:, 0])[:, None]
            else:
                total = np.einsum("cn,cdn->cd", inside, state.squares)
            part = background * window.square / (d + 2.0)
            total = total - part[:, None] * np.square(state.scale)
            freedom = core * window.probability * window.moment
            square = np.maximum(total, 0.0) / np.maximum(freedom, 1e-300)[:, None]
            scale = np.maximum(np.sqrt(square), self.rows.floor)
            state = replace(state, scale=scale)
        return state


def _begin(
    theta: Array, state: _State, kernel: Kernel, tuning: float
) -> tuple[Array, _State]:
    """Planes and scales that the iteration starts with.

    If good rows follow a plane exactly, their residuals from one that is close to it
    are of any size, and no scale leaves it any rows. Such planes are fitted first, and
    the fits are taken if they are exact.
    """
    rows, ahead = state.rows, state.rescaled(5)
    lost = np.flatnonzero(ahead.core() <= rows.effective + 1.0)
    if not len(lost):
        return theta, ahead
    first = state[lost]
    u = kernel.weight(first.distance() / tuning**2)
    fitted = rows.refined(u, rows.solve(u, theta[lost]))
    after = _State.of(rows, fitted, u, rows.spent(u), first.scale).rescaled(2)
    exact = np.all(after.scale <= _FINE, axis=1)
    theta = theta.copy()
    theta[lost[exact]] = fitted[exact]
    for name in ("squares", "inflation", "scale"):
        getattr(ahead, name)[lost[exact]] = getattr(after, name)[exact]
    return theta, ahead


def refined_scale(
    sums: Callable[[Callable[[Array, Array], Array]], Array],
    scale: Array,
    floor: Array,
    total: float,
    n_steps: int = 4,
) -> Array:
    """Scales of the population around a plane, from sums over all rows.

    Parameters
    ----------
    sums : callable
        Adds up a function of residuals (n, d) and weights (n,) over all rows.
    scale, floor : ndarray of shape (d,)
        Initial scales and their lower bounds.
    total : float
        Sum of all weights.
    n_steps : int, default=4
        Number of iterations. With several outputs, each of them is one pass over the
        rows. With one output, all of them are made on bins that one pass fills.
    """
    d = len(scale)
    window = Window.of(d)
    bins: _Bins | None = None
    for _ in range(n_steps):
        if d > 1:
            found = sums(functools.partial(_counts, scale=scale))
        else:
            if bins is None or not bins.reach(scale[0]):
                bins = _Bins.of(sums, float(scale[0]))
            found = bins.counts(float(scale[0]))
        core, background = window.core(found[:1], found[1:2], total)
        part = background * window.square / (d + 2.0)
        squares = np.maximum(found[2:] - part * np.square(scale), 0.0)
        squares = squares / np.maximum(
            core * window.probability * window.moment, 1e-300
        )
        scale = np.maximum(np.sqrt(squares), floor)
    return scale


def _counts(residual: Array, weight: Array, scale: Array) -> Array:
    """Mass in the window and in the ring, and sums of squares in the window."""
    window = Window.of(len(scale))
    squares = np.square(residual)
    z = squares @ (1.0 / np.square(scale))
    inside = (z <= window.square) * weight
    ring = weight @ ((z > window.square) & (z <= 4.0 * window.square))
    return np.concatenate([[inside.sum(), ring], inside @ squares])


@dataclass(frozen=True)
class _Bins:
    """Mass and squares of rows by the size of their residuals, for one output.

    Within a bin, rows are taken to be spread evenly. Bins are so narrow that the error
    is far below that of the scale.
    """

    width: float
    upto: Array  # (2, _BINS + 1), mass and squares below each border

    @classmethod
    def of(
        cls, sums: Callable[[Callable[[Array, Array], Array]], Array], scale: float
    ) -> _Bins:
        """Bins for scales of up to twice the given one."""
        width = 4.0 * np.sqrt(Window.of(1).square) * scale / _BINS
        binned = sums(functools.partial(_binned, width=width))
        return cls(width, np.cumsum(np.pad(binned, ((0, 0), (1, 0))), axis=1))

    def reach(self, scale: float) -> bool:
        """Whether the ring of a scale is covered."""
        radius = np.sqrt(Window.of(1).square) * scale
        return bool(2.0 * radius <= _BINS * self.width)

    def counts(self, scale: float) -> Array:
        """The values of `_counts`."""
        radius = np.sqrt(Window.of(1).square) * scale
        borders = self.width * np.arange(_BINS + 1)
        mass, squares = (
            np.interp([radius, 2.0 * radius], borders, upto) for upto in self.upto
        )
        return np.array([mass[0], mass[1] - mass[0], squares[0]])


def _binned(residual: Array, weight: Array, width: float) -> Array:
    """Mass and squares of the rows in each bin."""
    size = np.abs(residual[:, 0])
    number = np.minimum(size / width, float(_BINS)).astype(np.intp)
    there = (weight, weight * np.square(size))
    sums = [np.bincount(number, part, minlength=_BINS)[:_BINS] for part in there]
    return np.array(sums)
