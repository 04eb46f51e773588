r"""Both phases of a batch by forward and backward passes, the second as a difference.

If the feedback is weak, a forward and a backward pass almost solve either phase, and
the two are nearly equal. Therefore, the clamped phase is stored as its difference from
the free one. The large weights of the first layers then multiply small numbers that are
accurate to all digits, and never differences of large ones. (Notation: `energy`.)

**Free phase**, with pulls p_k of the next layers (p_H = 0):

    forward    t_k = a_k + p_k,   z_k = clip(t_k),   s_k = z_k - t_k
    backward   mu_k = clip(q_k, l - a_k, u - a_k),   q_{k-1} = gamma mu_k W_{k-1}'

and the next pass starts from p = q + omega (q - p), a damped step. The last backward
pass uses mu_k = q_k + s_k instead. Then c(z_k, s_k) = 0, the residual of the optimality
conditions, r_{k-1} - mu_k, is p_k - q_k, and the gap is exactly

    gap' = sum_k w_{k-1}/2 ||p_k - q_k||^2.

In other words, (z, s) is the exact free optimum of a nearby network, whose biases in
each row are b + (p - q). After n passes, the miss p - q is of the order gamma^(n+1) in
all layers, and the weights grow by 1/gamma from layer to layer on the way down.
Therefore, most passes only go over the lower layers (`schedule`).

**Clamped phase**, z^ = z + d, with pulls p + dp and q + dq:

    forward    d_k = clip(da_k + dp_k - s_k, l - z_k, u - z_k),   da_{k+1} = d_k W_k,
               dr_k = d_k - da_k,   f^ = f + d_H W_H
    backward   dmu_k = clip(dq_k - s_k, l - z_k - da_k, u - z_k - da_k),
               dq_{k-1} = gamma dmu_k W_{k-1}',   from e^ = -loss'(f^) at the top
    gap^ <= sum_k w_{k-1}/2 ||(p_k - q_k) + (dp_k - dq_k)||^2
    upper = loss(f^) + sum_k w_{k-1} (||dr_k + p_k - q_k||^2/2 + d_k' s_k)

**Two gradients.** The gradient of the upper bound at theta has eps_k = dr_k + p_k - q_k
(`energy`); the theorems refer to it. Without p - q, i.e. with eps_k = dr_k and
h_k = d_k, it is the gradient of the upper bound of the nearby network, for which the
free phase is exact. After few passes, this is a much better estimate of the gradient of
J (with gamma = 0.05 by eight orders of magnitude, since w_0 multiplies the remaining
free gap), and mini-batches are trained on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from sklearn_mm._hebbian.energy import (
    Array,
    Energy,
    Layers,
    Network,
    Phases,
    between,
    row_products,
    sum_of_products,
)
from sklearn_mm._hebbian.gradient import Parameters, Stacks
from sklearn_mm._solver.vectors import add_multiple

# (A call of `dot` takes a little less time than one of `matmul`.)
_dot, _add, _subtract, _multiply = np.dot, np.add, np.subtract, np.multiply

# Passes for which a damping is learnt, and the largest.
_DAMPED_PASSES, _LARGEST_DAMPING = 8, 0.4


@dataclass
class Experience:
    """What is learnt from batches for the next one: the start and the damping."""

    pulls: Layers  # mean over the rows of the last batch
    omega: Array = field(
        default_factory=lambda: np.zeros((_DAMPED_PASSES, 1))
    )  # by pass and layer
    kappa: float = 1.0  # ratio of e^ and e

    @classmethod
    def none(cls, energy: Energy) -> Experience:
        """Before the first batch."""
        pulls = [None, *(np.zeros(energy.sizes[k]) for k in energy.hidden)]
        return cls(pulls, np.zeros((_DAMPED_PASSES, energy.n_hidden + 1)))


class Block(list[Any]):
    """Arrays of the hidden layers in a single block of memory.

    Indexed by layer, from one. `flat` is the whole block, for operations that treat all
    layers alike: for a mini-batch, a call of NumPy costs as much as its arithmetic.
    """

    def __init__(self, n_rows: int, sizes: Sequence[int], dtype: Any) -> None:
        self.flat = np.zeros(n_rows * sum(sizes), dtype)
        ends = n_rows * np.cumsum(sizes)
        parts = np.split(self.flat, ends[:-1])
        super().__init__([None, *(part.reshape(n_rows, -1) for part in parts)])
        self._upto = [self.flat[:end] for end in (0, *ends)]

    def upto(self, layer: int) -> Array:
        """The part of the block that belongs to the layers up to the given one."""
        return self._upto[layer]


class DifferencePhases:
    """Latents of some rows in difference form, in memory that is reused.

    After `free`, the free phase has been inferred up to a gap. After `clamped`, both
    phases have, and `measure` and `gradient` can be called. What a pass no longer needs
    is overwritten, so that a mini-batch stays in the cache of the processor: at the end
    of a phase, `t` contains -s, `p` contains p - q, and `dp` contains dp - dq.
    """

    def __init__(self, energy: Energy, n_rows: int, dtype: Any) -> None:
        self.energy, self.n_rows, self.dtype = energy, n_rows, np.dtype(dtype)
        sizes, hidden, box = energy.sizes, energy.hidden, energy.box

        def stacks() -> Layers:
            return [None, *(np.zeros((2 * n_rows, sizes[k]), dtype) for k in hidden)]

        def block() -> Block:
            return Block(n_rows, sizes[1:-1], dtype)

        # Stacked, since the gradient takes products of stacks: d above z^, mu above dr.
        # (In the first layer, dr = d, and mu does not occur in the gradient.)
        left, right = stacks(), stacks()
        self.d = [None, *(stack[:n_rows] for stack in left[1:])]
        self.z_hat = [None, *(stack[n_rows:] for stack in left[1:])]
        right[1] = self.d[1]
        self.mu = [None, None, *(stack[:n_rows] for stack in right[2:])]
        self.dr = [None, right[1], *(stack[n_rows:] for stack in right[2:])]
        self.z, self.t, self.da = block(), block(), block()
        self.p, self.q, self.dp, self.dq = block(), block(), block(), block()
        self._low = block() if box.low > -np.inf else None
        self._high = block() if box.high < np.inf else None
        zeros = np.zeros(n_rows * max(sizes[1:-1]), dtype)  # all layers share them
        self._zero = [None, *(zeros[: z.size].reshape(z.shape) for z in self.z[1:])]
        self._one, self._other = block(), block()  # scratch
        # Of all rows. The drive, x W_0 + b_0, stands for the bias of the first layer.
        self._bias = block()
        self.drive = self._bias[1]
        shape = (n_rows, sizes[-1])
        self.output, self.output_hat, self.error, self.error_hat = (
            np.empty(shape, dtype) for _ in range(4)
        )
        self._stacks = Stacks(left, right, self.error_hat)
        self._changes: list[Block] = []  # of the pulls, by pass

    # Free phase

    def free(
        self,
        network: Network,
        tops: Sequence[int],
        experience: Experience | None = None,
        learn: bool = False,
    ) -> None:
        """Start, and make passes; `drive` must have been set.

        A pass goes over the layers up to the given one, and no pass over more than the
        one before.
        """
        p, bias, H = self.p, self._bias, self.energy.n_hidden
        for k in range(1, H):
            np.copyto(p[k], 0.0 if experience is None else experience.pulls[k])
            np.copyto(bias[k + 1], network.intercepts[k])
        for j, top in enumerate(tops):
            self._forward(network, top)
            self._backward(network, top)
            if experience is not None and j < _DAMPED_PASSES:
                self._damp(experience, j, top, learn)
            else:
                for k in range(1, top):
                    np.copyto(p[k], self.q[k])
        self._forward(network, H)
        self._close(network)
        if learn and experience is not None:
            # The last pass of each layer that is damped.
            for j, (top, after) in enumerate(
                pairwise([*tops, 1][: _DAMPED_PASSES + 1])
            ):
                self._learn(experience, j, range(after, top), self.p)

    def more_free(self, network: Network) -> None:
        """Make one more pass, from the pulls implied by the last one."""
        np.copyto(self.p.flat, self.q.flat)
        for k in range(1, self.energy.n_hidden):
            np.copyto(self._bias[k + 1], network.intercepts[k])
        self._forward(network, self.energy.n_hidden)
        self._close(network)

    def free_gaps(self) -> list[float]:
        """Duality gap of the free phase by layer, below the last one."""
        layers = list(zip(self.energy.weights, self.p[1:-1], strict=False))
        return [0.5 * w * sum_of_products(miss, miss) for w, miss in layers]

    def free_gap_of_rows(self) -> Array:
        """Duality gap of the free phase, row by row."""
        w, gap = self.energy.weights, np.zeros(self.n_rows)
        for k in range(1, self.energy.n_hidden):
            gap += 0.5 * w[k - 1] * row_products(self.p[k], self.p[k])
        return gap

    def _forward(self, network: Network, top: int) -> None:
        """Compute the activations of the layers up to `top`."""
        box, t, z, zero = self.energy.box, self.t, self.z, self._zero
        # The first bias is the drive.
        _add(self.p.upto(top), self._bias.upto(top), out=t.upto(top))
        box.clip(t[1], z[1], zero[1])
        for k in range(2, top + 1):
            made = _dot(z[k - 1], network.coefs[k - 1], out=z[k])
            box.clip(_add(t[k], made, out=t[k]), z[k], zero[k])

    def _backward(self, network: Network, top: int) -> None:
        """Compute the pulls q below layer `top`, whose own ones are known.

        Each layer's are computed from the new ones of the next layer.
        """
        q = self.q
        for k in range(top, 1, -1):
            if k == self.energy.n_hidden:
                mu = _subtract(self.z[k], self.t[k], out=self._one[k])
            else:
                mu = self._multiplier(k)
            _dot(mu, network.back[k - 1], out=q[k - 1])

    def _multiplier(self, k: int) -> Array:
        """Clip the pulls q of a layer to the limits of its multipliers."""
        box, p, q, t = self.energy.box, self.p[k], self.q[k], self.t[k]
        mu: Array = self._one[k]
        if box.low == 0.0:
            np.maximum(_subtract(p, t, out=mu), q, out=mu)  # p - t = -a
            floor = None
        else:
            np.copyto(mu, q)
            floor = box.low + p - t if box.low > -np.inf else None
        ceiling = box.high + p - t if box.high < np.inf else None
        return between(mu, floor, ceiling, out=mu)

    def _damp(self, experience: Experience, j: int, top: int, learn: bool) -> None:
        """Move p to q + omega (q - p) below layer `top`; `_learn` needs the change."""
        if learn and j == len(self._changes):
            sizes = self.energy.sizes[1:-1]
            self._changes.append(Block(self.n_rows, sizes, self.dtype))
        p, layers = self.p, range(1, top)
        change = self._changes[j] if learn else self._one
        _subtract(self.q.upto(top - 1), p.upto(top - 1), out=change.upto(top - 1))
        if learn and j:
            self._learn(experience, j - 1, layers, change, -1.0)
        for k in layers:
            add_multiple(p[k], 1.0 + float(experience.omega[j, k]), change[k])

    def _learn(
        self,
        experience: Experience,
        j: int,
        layers: range,
        left: Block,
        sign: float = 1.0,
    ) -> None:
        """Improve the damping of a pass; `left` is `sign` times its final p - q."""
        for k in layers:
            change = self._changes[j][k]
            square = float(np.vdot(change, change))
            if square > 0.0:
                share = sign * float(np.vdot(left[k], change)) / square
                if share == share:
                    limit, omega = _LARGEST_DAMPING, experience.omega[j, k]
                    experience.omega[j, k] = min(
                        max(omega - 0.5 * share, -limit), limit
                    )

    def _close(self, network: Network) -> None:
        """Compute slacks from the forward pass, and multipliers from the slacks."""
        H, box, real = self.energy.n_hidden, self.energy.box, self.dtype.type
        q, mu, minus_s, z = self.q, self.mu, self.t, self.z.flat
        _subtract(self.t.flat, z, out=minus_s.flat)
        if self._low is not None:
            _subtract(real(box.low), z, out=self._low.flat)
        if self._high is not None:
            _subtract(real(box.high), z, out=self._high.flat)
        above = np.negative(minus_s[H], out=mu[H])
        for k in range(H - 1, 0, -1):
            _dot(above, network.back[k], out=q[k])
            if k > 1:
                above = _subtract(q[k], minus_s[k], out=mu[k])
        _subtract(self.p.flat, q.flat, out=self.p.flat)

    def remember_pulls(self, experience: Experience) -> None:
        """Store the mean pulls, from which the next batch starts."""
        for k in range(1, self.energy.n_hidden):
            pulls = self._stacks.ones @ self.q[k]
            pulls /= self.n_rows
            experience.pulls[k] = pulls

    def remember_error(self, experience: Experience) -> None:
        """Store which share of the output error remains in the clamped phase."""
        square = float(np.vdot(self.error, self.error))
        if square > 0.0:
            kappa = float(np.vdot(self.error, self.error_hat)) / square
            if 0.0 < kappa < np.inf:
                experience.kappa = kappa

    # Clamped phase

    def clamped(
        self, network: Network, Y: Array, passes: int, kappa: float = 1.0
    ) -> None:
        """Make a number of passes, at least one, from the free phase."""
        self._free_output(network)
        self.energy.loss.descent(self.output, Y, out=self.error)
        top = _multiply(self.error, self.dtype.type(kappa), out=self.error_hat)
        self._pull_back(network, top, first=True)
        for _ in range(passes):
            self.more_clamped(network, Y)

    def more_clamped(self, network: Network, Y: Array) -> None:
        """Make one more pass."""
        self.dp, self.dq = self.dq, self.dp
        self._push_forward(network)
        self.energy.loss.descent(self.output_hat, Y, out=self.error_hat)
        self._pull_back(network, self.error_hat, first=False)
        _subtract(self.dp.flat, self.dq.flat, out=self.dp.flat)

    def resume(self, network: Network, Y: Array, free: int, clamped: int) -> None:
        """Make more passes, at parameters that may have changed."""
        for _ in range(free):
            self.more_free(network)
        self._free_output(network)
        for _ in range(clamped):
            self.more_clamped(network, Y)

    def _free_output(self, network: Network) -> None:
        H = self.energy.n_hidden
        _dot(self.z[H], network.coefs[H], out=self.output)
        _add(self.output, network.intercepts[H], out=self.output)

    def _pull_back(self, network: Network, above: Array, first: bool) -> None:
        """Compute the differences of pulls; da = 0 in the first pass."""
        low, high, dq = self._low, self._high, self.dq
        if not first and low is not None:
            _subtract(low.flat, self.da.flat, out=self._one.flat)
            low = self._one
        if not first and high is not None:
            _subtract(high.flat, self.da.flat, out=self._other.flat)
            high = self._other
        for k in range(self.energy.n_hidden, 1, -1):
            _dot(above, network.back[k], out=dq[k])
            dmu = _add(dq[k], self.t[k], out=self.z_hat[k])
            above = between(dmu, low and low[k], high and high[k], out=dmu)
        _dot(above, network.back[1], out=dq[1])

    def _push_forward(self, network: Network) -> None:
        d, da, dr, low, high = self.d, self.da, self.dr, self._low, self._high
        pulled, H = self._one, self.energy.n_hidden
        _add(self.dp.flat, self.t.flat, out=pulled.flat)
        between(pulled[1], low and low[1], high and high[1], out=d[1])
        for k in range(2, H + 1):
            a = _dot(d[k - 1], network.coefs[k - 1], out=da[k])
            change = _add(pulled[k], a, out=pulled[k])
            between(change, low and low[k], high and high[k], out=d[k])
            _subtract(d[k], a, out=dr[k])
        _dot(d[H], network.coefs[H], out=self.output_hat)
        _add(self.output, self.output_hat, out=self.output_hat)

    # Bounds

    def measure(
        self,
        inputs: Any,
        inner: Callable[[Array, Array], Any],
        loss: Any,
        share: float = 1.0,
    ) -> Measured:
        """Bounds and gaps, row by row or of all rows, depending on `inner`.

        Parameters
        ----------
        inputs, loss : float or ndarray
            Squared norms of the rows of x, and values of the loss; summed over the rows
            if `inner` sums over them.
        inner : callable
            Inner products of two arrays of activations.
        share : float
            Weight of each row.
        """
        H, w = self.energy.n_hidden, self.energy.weights
        upper, free_gap, clamped_gap, curvature = loss, 0.0, 0.0, 0.0
        for k in self.energy.hidden:
            dr, left, weight = self.dr[k], self.dp[k], w[k - 1]
            square = inner(left, left)
            term = 0.5 * inner(dr, dr) - inner(self.d[k], self.t[k])
            gap = 0.5 * square
            if k < H:
                miss = self.p[k]
                half = 0.5 * inner(miss, miss)
                term = term + inner(dr, miss)
                gap = gap + inner(left, miss) + half
                free_gap = free_gap + weight * half
            upper = upper + weight * term
            clamped_gap = clamped_gap + weight * gap
            curvature = curvature + weight * weight * square * (1.0 + share * inputs)
            if k < H:
                inputs = inner(self.z[k], self.z[k])
        # A sum of squares, up to rounding.
        clamped_gap = np.maximum(clamped_gap, 0.0)
        return Measured(
            share * (upper + free_gap),
            share * free_gap,
            share * clamped_gap,
            share * curvature,
        )

    def gradient(
        self, x: Any, share: Any, out: Parameters, common: float = 1.0
    ) -> None:
        """Compute the gradient of the upper bound of the nearby network.

        The parameters are those of `Stacks.gradient`.
        """
        for k in self.energy.hidden:
            _add(self.z[k], self.d[k], out=self.z_hat[k])
        self._stacks.gradient(self.energy, x, share, out, common)

    def snapshot(self) -> Phases:
        """The latents in the form that all solvers share."""
        H, w = self.energy.n_hidden, self.energy.weights
        hidden = self.energy.hidden
        s = [None, *(-self.t[k] for k in hidden)]
        miss = [None, *self.p[1:H], np.zeros_like(self.z[H])]
        free_gaps: Layers = [None]
        clamped_gaps: Layers = [None]
        for k in hidden:
            both = self.dp[k] + miss[k]
            free_gaps.append(0.5 * w[k - 1] * row_products(miss[k], miss[k]))
            clamped_gaps.append(0.5 * w[k - 1] * row_products(both, both))
        return Phases(
            self.z,
            s,
            [None, self.q[1] - self.t[1], *self.mu[2:]],
            miss,
            self.d,
            self.dr,
            self.output_hat,
            self.error_hat,
            free_gaps,
            clamped_gaps,
        )


@dataclass
class Measured:
    """Bounds of a batch, or of every row of it."""

    upper: Any
    free_gap: Any
    clamped_gap: Any
    curvature: Any  # bounds the squared error of g caused by the clamped gap

    @property
    def gap(self) -> Any:
        """Upper minus lower bound."""
        return self.free_gap + self.clamped_gap
