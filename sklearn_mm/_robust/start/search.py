r"""Which plane, and how much noise about it: the choice behind a robust fit.

**The principle.** All rows are one population about the least-squares plane until a
likelihood ratio says that a part of them, within its noise, is a population of its own;
the part with the most evidence takes its place, and so on. A plane that does not share
its rows with a larger population never displaces it, however dense its own rows are.

So candidates matter only as proposals, and a dense minority (a code for missing values,
a cluster, a rating that is given often) cannot win by being dense. The proposals:

1. least squares, and graduated fits from it (symmetric and one-sided outliers);
2. least squares on the rows that are central in X (bad leverage points, at any number
   of parameters), on those central in y, and the constant median of y;
3. planes through random subsets of rows, where there is hope that one is clean;
4. least squares on what is left when a population is taken away (a second regime);
5. for several outputs, the planes that are chosen for each of them alone: a row may be
   bad in one of them only.

Each is brought to rest as a population (see `population`), with a scale for each output
and the share of rows that follow it. If the first two kinds all come to rest at the
same one, or leave no doubt about one, and most rows follow it, the others are not asked
for. Then the principle is
applied (see `evidence`): from larger shares to smaller ones.

An exact fit needs a majority: where half of a population lies on its plane but for
rounding, or has one value of y, the rows that do must be as many as least trimmed
squares would ask for. Scales are not below half a rounding step of y.

Everything is done on distinct rows with their weights, in an order and in coordinates
that move with them, so that the choice does not depend on the order of rows, on how
weights are split between copies of a row, or on the units of X and y.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sklearn_mm._robust.start.candidates import (
    central_in_x,
    central_in_y,
    graduated,
    middle_scale,
    n_subsets,
    predictable,
    subset_planes,
    the_rest,
)
from sklearn_mm._robust.start.evidence import evidence
from sklearn_mm._robust.start.population import Populations, Window
from sklearn_mm._robust.start.whitened import (
    MAX_WHITENED,
    Array,
    WhitenedRows,
    WideRows,
)
from sklearn_mm.kernels import Kernel

# Shares below are not believed, nor fewer rows for each parameter. With few rows a
# dense subset turns up by chance in almost any data: then a good part of a majority is
# asked for (the share itself is an estimate).
_LEAST_SHARE, _ROWS_PER_PARAMETER, _MAJORITY = 0.3, 5.0, 0.7
# Evidence that a smaller population needs: nats, with a half-normal prior of the share
# of rows that it leaves out (this deviation), and at least so many nats for each of its
# rows (less is a matter of the noise's shape, not of two populations).
_NATS, _PRIOR, _NATS_PER_ROW = 0.6, 0.213, 0.03
# And so many more if it is not half of the rows.
_MINORITY = 4.0
# Part of it that must lie within the larger one's noise.
_OVERLAP = 0.5
# A smaller population may be a little wider than the larger one.
_WIDER = 1.5
# A share above which a single population ends the search, and below which what is left
# of the rows is looked at.
_PLAIN, _PARTIAL = 0.75, 0.75
# Nats against all rows that make it one.
_BEYOND_DOUBT = 15.0
_PEELED = 3
# Times that rows left out are further from the plane than from a constant.
_OVERFITTED = 1.5
# Residuals below so many roundings of the arithmetic are exact.
_EXACT_ROUNDINGS = 1e5


class Verdict(enum.Flag):
    """What the caller should know about a choice."""

    SOUND = 0
    UNDETERMINED = enum.auto()  # no more rows than parameters: nothing can be told
    FEW_ROWS = enum.auto()  # no more than two rows for each parameter
    MINORITY = enum.auto()  # fewer than half of the rows follow the plane
    EXACT = enum.auto()  # the scale is at its floor, and some rows are off the plane
    OVERFITTED = enum.auto()  # a constant predicts better than the penalised plane


@dataclass(frozen=True)
class Choice:
    """A plane, the noise about it, and the share of rows that follow it."""

    theta: Array  # (q, d), the intercept last
    scale: Array  # (d,)
    share: float
    verdict: Verdict = Verdict.SOUND


def choose_plane(
    X: Any,
    Y: Array,
    weight: Array,
    penalty: Array,
    intercept: bool,
    *,
    kernel: Kernel,
    tuning: float,
    scale: Array | None,
    random_state: np.random.RandomState,
    theta: Array | None = None,
) -> Choice:
    """Choose a plane, and the scale of the noise unless it is known.

    Parameters
    ----------
    X : ndarray or sparse array of shape (n, p)
        Distinct rows of standardised columns.
    Y : ndarray of shape (n, d)
        Targets.
    weight : ndarray of shape (n,)
        Mass of each row; the sum is n.
    penalty : ndarray of shape (p,)
        Weight of each coefficient's square in the sum over these rows.
    intercept : bool
        Whether there is an intercept, which is not penalised.
    kernel, tuning : Kernel, float
        The user's kernel and its width in scales.
    scale : ndarray of shape (d,) or None
        Known scales; the robust objective itself then decides.
    random_state : RandomState
        Source of random subsets.
    theta : ndarray of shape (p + intercept, d) or None
        A plane that is given; only the scale of the population that it leads to is
        then looked for.
    """
    wide = X.shape[1] > MAX_WHITENED
    rows = (WideRows if wide else WhitenedRows).of(X, Y, weight, penalty, intercept)
    own = rows.solve(np.ones((1, rows.n_rows))) if theta is None else rows.whiten(theta)
    worse = 0.0
    if rows.ridge is None and rows.n_rows <= rows.effective + 1.0:
        chosen = all_rows(rows, own)
        determined = rows.n_rows > rows.effective
    elif rows.is_interpolating and theta is None:
        determined = True
        *fit, worse = predictable(rows)
        chosen = _of_rows(rows, *fit)
        if scale is not None:
            chosen = chosen.joined(all_rows(rows, own))
            chosen = _least_objective(rows, chosen, kernel, tuning, scale)
    else:
        determined = True
        settle = partial(Populations.settle, rows, kernel=kernel, tuning=tuning)
        found = _populations(rows, own, theta is not None, settle, random_state)
        if theta is None and Y.shape[1] > 1:
            apart = [
                choose_plane(
                    X,
                    Y[:, [k]],
                    weight,
                    penalty,
                    intercept,
                    kernel=kernel,
                    tuning=tuning,
                    scale=None if scale is None else scale[[k]],
                    random_state=random_state,
                )
                for k in range(Y.shape[1])
            ]
            plane = rows.whiten(np.hstack([choice.theta for choice in apart]))
            width = np.hstack([choice.scale for choice in apart])[None] / rows.unit
            found = _merge(rows, found.joined(settle(plane, width)))
        if scale is None:
            chosen = _descend(rows, all_rows(rows, own).joined(found))
        else:
            found = found.joined(all_rows(rows, own))
            chosen = _least_objective(rows, found, kernel, tuning, scale)
    plane = rows.unwhiten(chosen.theta[0])
    share = float(chosen.share[0])
    verdict = _judge(rows, chosen, determined, scale is None)
    if worse > _OVERFITTED:
        verdict |= Verdict.OVERFITTED
    width = chosen.scale[0] * rows.unit if scale is None else scale
    return Choice(plane, width, share, verdict)


def _judge(
    rows: WhitenedRows, chosen: Populations, determined: bool, searched: bool
) -> Verdict:
    verdict = Verdict.SOUND
    if not determined:
        return Verdict.UNDETERMINED
    if rows.n_rows <= 2.0 * rows.effective:
        verdict |= Verdict.FEW_ROWS
    if not searched:  # who gives a scale says which rows follow the plane
        return verdict
    if chosen.share[0] < 0.5:
        verdict |= Verdict.MINORITY
    off = chosen.distance[0] > 4.0 * Window.of(rows.n_outputs).square
    exact = chosen.scale[0] <= _EXACT_ROUNDINGS * rows.exact
    if exact.any() and off.any():
        verdict |= Verdict.EXACT
    return verdict


def all_rows(rows: WhitenedRows, theta: Array) -> Populations:
    """All rows as one population about a plane."""
    return _of_rows(rows, theta, np.ones((1, rows.n_rows)))


def _of_rows(rows: WhitenedRows, theta: Array, part: Array) -> Populations:
    """Some rows as one population about the plane that was fitted to them."""
    mass = (part * rows.weight).sum(axis=1)
    freedom = mass - rows.spent(part)
    if rows.ridge is None:
        freedom = np.maximum(freedom, 0.5)
    freedom = np.maximum(freedom, 1e-6 * mass)
    squares = np.square(rows.residuals(theta))  # (1, d, n)
    total = squares @ (part[0] * rows.weight)
    scale = np.maximum(np.sqrt(total / freedom[:, None]), rows.floor)
    z = np.einsum("cdn,cd->cn", squares, 1.0 / np.square(scale))
    return Populations(theta, scale, mass / rows.n_rows, z * (mass / freedom)[:, None])


def _populations(
    rows: WhitenedRows,
    own: Array,
    given: bool,
    settle: Callable[[Array, Array], Populations],
    random_state: np.random.RandomState,
) -> Populations:
    """Populations at rest, from all kinds of proposals."""
    planes = [own]
    if not given:
        planes.append(central_in_y(rows))
        if not isinstance(rows, WideRows):
            planes.append(central_in_x(rows))
    theta, widths = graduated(rows, own)
    direct = np.concatenate(planes)
    # From scales above theirs, populations come to rest at the largest one there.
    middle = middle_scale(rows, direct)
    theta = np.concatenate([direct, direct, theta])
    widths = np.concatenate([2.0 * middle, middle, widths])
    found = _merge(rows, settle(theta, widths))
    if given or _is_plain(rows, found, own):
        return found
    if not isinstance(rows, WideRows) and n_subsets(rows):
        more = settle(*subset_planes(rows, random_state))
        found = _merge(rows, found.joined(more))
    part = np.flatnonzero(found.share < _PARTIAL)[:_PEELED]
    if len(part):
        rest = the_rest(rows, found.distance[part], Window.of(rows.n_outputs).square)
        if len(rest):
            more = settle(rest, middle_scale(rows, rest))
            found = _merge(rows, found.joined(more))
    return found


def _is_plain(rows: WhitenedRows, found: Populations, own: Array) -> bool:
    """Whether most rows follow one plane, beyond doubt."""
    if len(found) == 1:
        return bool(found.share[0] >= _PLAIN)
    everything = all_rows(rows, own)
    chosen = _descend(rows, everything.joined(found))
    if not _PLAIN <= chosen.share[0] < 1.0:
        return False
    return bool(evidence(rows, everything, chosen)[0][0] > _BEYOND_DOUBT)


def _merge(rows: WhitenedRows, found: Populations) -> Populations:
    """One of each kind, the largest, by falling share.

    Two are of a kind if planes and scales differ by no more than their errors.
    """
    found = found[np.argsort(-found.share, kind="stable")]
    core = np.maximum(found.share * rows.n_rows, 1.0)[:, None]
    near = np.square(found.scale) * (rows.effective / core + 0.02)
    close = 2.0 / np.sqrt(core)
    kept: list[int] = []
    for i in range(len(found)):
        apart = np.square(found.theta[i] - found.theta[kept]).sum(axis=1)
        ratio = np.abs(np.log(found.scale[i] / found.scale[kept]))
        same = (apart <= near[kept]) & (ratio <= close[kept])
        if not same.all(axis=1).any():
            kept.append(i)
    return found[np.array(kept)]


def _admitted(rows: WhitenedRows, found: Populations) -> Array:
    """Populations that may be chosen at all."""
    n, r, w = rows.n_rows, rows.effective, rows.weight
    least = max(_LEAST_SHARE, _ROWS_PER_PARAMETER * r / n)
    if n <= 2.0 * _ROWS_PER_PARAMETER * r:
        least = _MAJORITY * (n + r - 2.0) / (2.0 * n)
    if np.any(rows.floor > rows.exact):
        return found.share >= least
    # Rows that lie on the plane, or that have the most frequent value of y.
    tiny = np.abs(rows.residuals(found.theta)) <= _EXACT_ROUNDINGS * rows.exact[:, None]
    mass = tiny.all(axis=1) @ w
    _, value = np.unique(rows.Y, axis=0, return_inverse=True)
    value = value.ravel()
    if value.max() + 1 < n:
        inside = found.distance <= Window.of(rows.n_outputs).square
        same = [np.bincount(value, w * mask).max() for mask in inside]
        mass = np.maximum(mass, same)
    exact = (mass >= r + 2.0) & (mass >= 0.5 * found.share * n)
    exact |= np.any(found.scale <= rows.exact, axis=1)
    return np.where(exact, mass >= rows.majority - 1e-9, found.share >= least)


def _descend(rows: WhitenedRows, found: Populations) -> Populations:
    """From all rows, the first population, to smaller ones inside it."""
    allowed = _admitted(rows, found)
    allowed[0] = False
    order = np.argsort(-found.share, kind="stable")
    order = order[allowed[order]]
    current = found[np.array([0])]
    while len(order):
        smaller = found[order]
        narrower = np.all(smaller.scale < _WIDER * current.scale, axis=1)
        nats, overlap = evidence(rows, current, smaller)
        prior = 0.5 * np.square((1.0 - smaller.share) / _PRIOR)
        own = _NATS_PER_ROW * smaller.share * rows.n_rows
        prior += _MINORITY * (smaller.share < 0.5)
        needed = np.maximum(_NATS + prior, own)
        surplus = nats - needed
        surplus[~narrower | (overlap < _OVERLAP)] = -np.inf
        best = int(np.argmax(surplus))
        if not surplus[best] > 0.0:
            break
        current = found[order[[best]]]
        order = order[best + 1 :]  # smaller ones than this
    return current


def _least_objective(
    rows: WhitenedRows, found: Populations, kernel: Kernel, tuning: float, scale: Array
) -> Populations:
    """The plane of the least robust objective, after a few steps at known scales."""
    tau = (tuning * scale / rows.unit)[:, None]
    theta = found.theta
    for last in (False, False, False, True):
        z = np.square(rows.residuals(theta) / tau).sum(axis=1)
        if not last:
            theta = rows.solve(kernel.weight(z), theta)
    loss = kernel.loss(z) @ rows.weight
    if rows.ridge is not None:
        square = np.sum(theta * rows.ridge_times(theta), axis=1)
        loss = loss + 0.5 * (square / np.square(tau[:, 0])).sum(axis=1)
    best = np.array([int(np.argmin(loss))])
    distance = z[best] * tuning**2
    inside = distance <= 4.0 * Window.of(rows.n_outputs).square
    return Populations(
        theta[best],
        np.broadcast_to(scale / rows.unit, (1, rows.n_outputs)),
        inside @ rows.weight / rows.n_rows,
        distance,
    )
