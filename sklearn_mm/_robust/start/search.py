r"""The choice of the plane and of the noise scale that a robust fit starts from.

**The principle.** All rows are considered one population around the least-squares plane
until a likelihood ratio shows that a part of them, within its noise, is a population of
its own. The part with the most evidence then takes its place, and so on; if there is
comparable evidence for two parts that exclude each other, the larger one does. A plane
that does not share its rows with a larger population never replaces it, no matter how
dense its own rows are.

Candidates are therefore only proposals, and a dense minority (a code for missing
values, a cluster, a frequent rating) cannot win because it is dense. The proposals are

1. least squares, and graduated fits that start from it (symmetric and one-sided
   outliers);
2. least squares on the rows that are central in X (bad leverage points, for any number
   of parameters), on those that are central in y, and the median of y as a constant;
3. planes through random subsets of rows, if one of them is likely to be clean;
4. least squares on the rows that remain without a population (a second regime), or
   without the central ones (a cluster of almost half of the rows);
5. for several outputs, the planes that are chosen for each output separately, because a
   row may be bad in a single output. If the noise of the outputs is correlated, the
   search takes place along their principal axes.

Plane and scales of each proposal are iterated until they agree (see `population`),
which also gives the share of rows that follow it. If the first two kinds all lead to
the same population, or leave no doubt about one, and most rows follow it, the others
are skipped. Then the principle is applied (see `evidence`), from larger to smaller
shares.

An exact fit requires a majority: if half of a population lies on its plane up to
rounding, or has a single value of y, there must be at least as many such rows as least
trimmed squares requires. Scales are at least half a rounding step of y.

All computations use distinct rows with weights, in an order and in coordinates that are
equivariant, so that the choice depends neither on the order of the rows, nor on how
weights are distributed over copies of a row, nor on the units of X and y.
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
    row_labels,
)
from sklearn_mm.kernels import Kernel

# Smaller shares are not accepted, nor fewer rows per parameter. If there are few rows,
# almost any data contain a dense subset by chance. Then most of a majority is required
# (the share itself is an estimate).
_LEAST_SHARE, _ROWS_PER_PARAMETER, _MAJORITY = 0.3, 5.0, 0.7
# Evidence that a smaller population requires, in nats, with a half-normal prior for the
# share of rows that it leaves out (standard deviation), and the minimum per row (less
# can be explained by the shape of the noise and does not require two populations).
_NATS, _PRIOR, _NATS_PER_ROW = 0.6, 0.213, 0.03
# Additional evidence if it contains less than half of the rows.
_MINORITY = 4.0
# Part of the smaller population that must lie within the noise of the larger one.
_OVERLAP = 0.5
# Smallest evidence of a rival relative to that of another population of different rows
# for which the number of rows decides between the two.
_COMPARABLE = 0.65
# A smaller population may be a little wider than the larger one.
_WIDER = 1.5
# Share above which a single population ends the search, and share below which the
# remaining rows are examined.
_PLAIN, _PARTIAL = 0.75, 0.75
# Evidence against a single population of all rows that ends the search.
_BEYOND_DOUBT = 15.0
_PEELED = 3
# Ratio of the distances of left-out rows from the plane and from a constant.
_OVERFITTED = 1.5
# Correlation of outputs beyond which the search turns them.
_CORRELATED = 0.5
# Residuals below this number of rounding errors are considered exact.
_EXACT_ROUNDINGS = 1e5


class Verdict(enum.Flag):
    """What users should know about a choice."""

    SOUND = 0
    UNDETERMINED = enum.auto()  # not more rows than parameters
    FEW_ROWS = enum.auto()  # at most two rows per parameter
    MINORITY = enum.auto()  # fewer than half of the rows follow the plane
    EXACT = enum.auto()  # the scale is at its floor, and some rows are off the plane
    NARROW = enum.auto()  # few rows are close to the plane in units of a given scale
    OVERFITTED = enum.auto()  # a constant predicts better than the penalised plane


@dataclass(frozen=True)
class Choice:
    """A plane, the noise about it, and the share of rows that follow it."""

    theta: Array  # (q, d), the intercept last
    scale: Array  # (d,)
    share: float
    axes: Array  # (d, d), along which the noise is uncorrelated
    along: Array  # (d,), scales of Y @ axes
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
        Penalty of each squared coefficient, relative to the sum over these rows.
    intercept : bool
        Whether there is an intercept, which is not penalised.
    kernel, tuning : Kernel, float
        The user's kernel and its width in scales.
    scale : ndarray of shape (d,) or None
        Known scales. If given, the plane with the smallest robust objective is chosen.
    random_state : RandomState
        Random number generator for the subsets.
    theta : ndarray of shape (p + intercept, d) or None
        A given plane. Only the population that it leads to is then considered.
    """
    kind = WideRows if X.shape[1] > MAX_WHITENED else WhitenedRows
    rows = kind.of(X, Y, weight, penalty, intercept)
    axes = np.eye(Y.shape[1])  # outputs of the search are Y @ axes
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
        apart: list[Choice] = []
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
        search = partial(
            _search,
            apart=apart,
            given=theta is not None,
            kernel=kernel,
            tuning=tuning,
            scale=scale,
            random_state=random_state,
        )
        chosen = search(rows, own, axes)
        correlation = axes
        if scale is None and Y.shape[1] > 1:
            correlation = _sign_correlation(rows, chosen)
        if np.abs(np.triu(correlation, 1)).max() > _CORRELATED:
            unit = chosen.scale[0] * rows.unit
            axes = np.linalg.eigh(correlation)[1] / unit[:, None]
            turned = kind.of(X, Y @ axes, weight, penalty, intercept)
            rows = turned.with_floor(rows.floor * rows.unit @ np.abs(axes))
            own = rows.solve(np.ones((1, rows.n_rows)))
            if theta is not None:
                own = rows.whiten(theta @ axes)
            chosen = search(rows, own, axes)
    plane = rows.unwhiten(chosen.theta[0]) @ np.linalg.inv(axes)
    share = float(chosen.share[0])
    verdict = _judge(rows, chosen, determined, scale is None)
    if worse > _OVERFITTED:
        verdict |= Verdict.OVERFITTED
    along = chosen.scale[0] * rows.unit
    width = turned_back(along, axes) if scale is None else scale
    return Choice(plane, width, share, axes, along, verdict)


def turned_back(along: Array, axes: Array) -> Array:
    """Scales of Y, from scales of Y @ axes, whose noise is uncorrelated."""
    scale: Array = np.sqrt(np.square(along) @ np.square(np.linalg.inv(axes)))
    return scale


def _sign_correlation(rows: WhitenedRows, chosen: Populations) -> Array:
    """Correlation of the noise of the outputs, from the signs of residuals.

    The distance of a row adds up its outputs as if their noise were independent. If it
    is not, even clean rows have larger distances than expected.
    """
    near = chosen.distance[0] <= 4.0 * Window.of(rows.n_outputs).square
    residual = rows.residuals(chosen.theta)[0]
    # Rounding errors of an exact output say nothing.
    sign = np.sign(residual) * (
        np.abs(residual) > _EXACT_ROUNDINGS * rows.exact[:, None]
    )
    mass = near * rows.weight
    return np.sin(0.5 * np.pi * (sign * mass) @ sign.T / mass.sum())


def _search(
    rows: WhitenedRows,
    own: Array,
    axes: Array,
    *,
    apart: list[Choice],
    given: bool,
    kernel: Kernel,
    tuning: float,
    scale: Array | None,
    random_state: np.random.RandomState,
) -> Populations:
    """Search for populations and choose one.

    The choices for each output, `apart`, are not along the axes of the rows' outputs.
    """
    settle = partial(Populations.settle, rows, kernel=kernel, tuning=tuning)
    found = _populations(rows, own, given, settle, random_state)
    if apart:
        plane = rows.whiten(np.hstack([choice.theta for choice in apart]) @ axes)
        squares = np.square(np.hstack([choice.scale for choice in apart]))
        width = np.sqrt(squares @ np.square(axes))[None] / rows.unit
        found = _merge(rows, found.joined(settle(plane, width)))
    everything = all_rows(rows, own)
    if scale is None:
        return _descend(rows, everything.joined(found))
    best = _least_objective(rows, found.joined(everything), kernel, tuning, scale)
    if best.share[0] * rows.n_rows > rows.effective + 1.0:
        return best
    # The scale is so small that the objective cannot tell planes from each other.
    likely = _descend(rows, everything.joined(found))
    return _least_objective(rows, likely, kernel, tuning, scale, n_steps=0)


def _judge(
    rows: WhitenedRows, chosen: Populations, determined: bool, searched: bool
) -> Verdict:
    verdict = Verdict.SOUND
    if not determined:
        return Verdict.UNDETERMINED
    if rows.n_rows <= 2.0 * rows.effective:
        verdict |= Verdict.FEW_ROWS
    if not searched:  # a given scale determines which rows follow the plane
        return verdict | Verdict.NARROW if chosen.share[0] < 0.5 else verdict
    if chosen.share[0] < 0.5:
        verdict |= Verdict.MINORITY
    rounding = _EXACT_ROUNDINGS * rows.exact
    off = chosen.distance[0] > 4.0 * Window.of(rows.n_outputs).square
    # Rounding errors, too, may be of different size.
    off &= (np.abs(rows.residuals(chosen.theta)[0]) > rounding[:, None]).any(axis=0)
    if np.any(chosen.scale[0] <= rounding) and off.any():
        verdict |= Verdict.EXACT
    return verdict


def all_rows(rows: WhitenedRows, theta: Array) -> Populations:
    """All rows as one population around a plane."""
    return _of_rows(rows, theta, np.ones((1, rows.n_rows)))


def _of_rows(rows: WhitenedRows, theta: Array, part: Array) -> Populations:
    """Some rows as one population around the plane that was fitted to them."""
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
    """Populations that all kinds of proposals lead to."""
    planes, central = [own], np.empty((0, rows.n_rows))
    if not given:
        planes.append(central_in_y(rows, own))
        if not isinstance(rows, WideRows):
            central = central_in_x(rows)
            planes.append(rows.completed(rows.solve(central), central, own))
    theta, widths = graduated(rows, own)
    direct = np.concatenate(planes)
    # Iterations that start with larger scales lead to the largest population there.
    middle = middle_scale(rows, direct)
    theta = np.concatenate([direct, direct, theta])
    widths = np.concatenate([2.0 * middle, middle, widths])
    found = _merge(rows, settle(theta, widths))
    # Without any parameter, there is one plane, and scales are all that differs.
    if given or not rows.n_parameters or _is_plain(rows, found, own):
        return found
    if not isinstance(rows, WideRows) and n_subsets(rows):
        more = settle(*subset_planes(rows, random_state))
        found = _merge(rows, found.joined(more))
    # A large cluster of leverage points can be what is central in X.
    part = np.flatnonzero(found.share < _PARTIAL)[:_PEELED]
    outside = found.distance[part] > Window.of(rows.n_outputs).square
    rest = the_rest(rows, np.concatenate([outside, central == 0.0]))
    if len(rest):
        more = settle(rest, middle_scale(rows, rest))
        found = _merge(rows, found.joined(more))
    return found


def _is_plain(rows: WhitenedRows, found: Populations, own: Array) -> bool:
    """Whether most rows clearly follow one plane."""
    if len(found) == 1:
        return bool(found.share[0] >= _PLAIN)
    everything = all_rows(rows, own)
    chosen = _descend(rows, everything.joined(found))
    if not _PLAIN <= chosen.share[0] < 1.0:
        return False
    return bool(evidence(rows, everything, chosen)[0][0] > _BEYOND_DOUBT)


def _merge(rows: WhitenedRows, found: Populations) -> Populations:
    """The largest of each group of similar populations, in order of decreasing share.

    Populations are similar if planes and scales differ by at most their errors.
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
    """Populations that may be chosen."""
    n, r, w = rows.n_rows, rows.effective, rows.weight
    least = _MAJORITY * (n + r - 2.0) / (2.0 * n)
    if n > 2.0 * _ROWS_PER_PARAMETER * r:
        # More rows do not ask for a larger share.
        least = max(_LEAST_SHARE, min(_ROWS_PER_PARAMETER * r / n, least))
    if np.any(rows.floor > rows.exact):
        return _determined(rows, found, found.share >= least)
    # Rows that lie on the plane, or that have the most frequent value of y.
    rounding = _EXACT_ROUNDINGS * rows.exact
    tiny = (np.abs(rows.residuals(found.theta)) <= rounding[:, None]).all(axis=1)
    inside = found.distance <= Window.of(rows.n_outputs).square
    # If the noise is hardly larger than that, only a part of its rows is so close.
    tiny |= inside & np.any(found.scale <= 10.0 * rounding, axis=1)[:, None]
    mass = tiny @ w
    value = row_labels(rows.Y)
    if value.max() + 1 < n:
        same = [np.bincount(value, w * mask).max() for mask in inside]
        mass = np.maximum(mass, same)
    exact = (mass >= r + 2.0) & (mass >= 0.5 * found.share * n)
    exact |= np.any(found.scale <= rows.exact, axis=1)
    admitted = np.where(exact, mass >= rows.majority - 1e-9, found.share >= least)
    return _determined(rows, found, admitted)


def _determined(rows: WhitenedRows, found: Populations, admitted: Array) -> Array:
    """Without populations whose rows leave their plane open.

    Rows of one level of a factor, say, which can be closer to each other than those of
    another level. What the plane is at the other level, they cannot tell.
    """
    if not (rows.is_direct and admitted.any()) or rows.n_rows < 2.0 * rows.n_parameters:
        return admitted
    inside = found.distance[admitted] <= Window.of(rows.n_outputs).square
    admitted[admitted] = rows.determined(inside)
    return admitted


def _descend(rows: WhitenedRows, found: Populations) -> Populations:
    """Descend from the population of all rows to smaller ones inside it."""
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
        proven = (surplus > 0.0) & (nats >= _COMPARABLE * nats[best])
        best = _largest_rival(rows, smaller, proven, best)
        current = found[order[[best]]]
        order = order[best + 1 :]  # smaller ones than this
    return current


def _largest_rival(
    rows: WhitenedRows, found: Populations, proven: Array, best: int
) -> int:
    """Of populations that exclude each other, the one with the most rows.

    If there is comparable evidence for two of them, it does not matter which one
    differs more from the population of all rows. A row belongs to the one with the
    higher density.
    """
    w, inside = rows.weight, found.distance <= Window.of(rows.n_outputs).square
    mass, common = inside @ w, (inside & inside[best]) @ w
    rival = proven & (common < _OVERLAP * np.minimum(mass, mass[best]))
    density = -np.log(found.scale).sum(axis=1)[:, None] - 0.5 * found.distance
    own = (inside & (density > density[best])) @ w
    others = (inside[best] & (density[best] > density)) @ w
    lead = np.where(rival, own - others, 0.0)
    return int(np.argmax(lead)) if lead.max() > 0.0 else best


def _least_objective(
    rows: WhitenedRows,
    found: Populations,
    kernel: Kernel,
    tuning: float,
    scale: Array,
    n_steps: int = 3,
) -> Populations:
    """The plane of the least robust objective, after a few steps at known scales."""
    tau = (tuning * scale / rows.unit)[:, None]
    theta = found.theta
    z = np.square(rows.residuals(theta) / tau).sum(axis=1)
    for _ in range(n_steps):
        theta = rows.solve(kernel.weight(z), theta)
        z = np.square(rows.residuals(theta) / tau).sum(axis=1)
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
