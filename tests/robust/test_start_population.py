"""Scale and share of a population, and the evidence for a smaller one."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from sklearn_mm._robust.start import evidence as evidence_module
from sklearn_mm._robust.start import population
from sklearn_mm._robust.start.evidence import evidence
from sklearn_mm._robust.start.population import Populations, Window, refined_scale
from sklearn_mm._robust.start.search import all_rows
from sklearn_mm._robust.start.whitened import WhitenedRows
from sklearn_mm.kernels import SmoothTruncatedQuadratic

KERNEL = SmoothTruncatedQuadratic()


def settle(rows, theta, scale):
    tuning = KERNEL.tuning_constant(rows.n_outputs)
    return Populations.settle(rows, theta, scale, KERNEL, tuning)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_window_of_normal_and_even_rows(rng, d):
    # A normal population on an even background: both are found again.
    window = Window.of(d)
    side = 2.5 * np.sqrt(window.square)
    normal = rng.normal(size=(400_000, d))
    even = rng.uniform(-side, side, size=(400_000, d))
    z = np.square(np.concatenate([normal, even])).sum(axis=1)
    inside = np.sum(z <= window.square, keepdims=True).astype(float)
    ring = np.sum((z > window.square) & (z <= 4 * window.square), keepdims=True)
    core, background = window.core(inside, ring.astype(float), float(len(z)))
    assert_allclose(core, 400_000, rtol=0.03)
    near = np.sum(np.square(even).sum(axis=1) <= window.square)
    assert_allclose(background, near, atol=0.03 * 400_000)


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_scale_and_share(d, share):
    scales, shares = [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(200, 4))
        unit = np.arange(1.0, d + 1.0)
        Y = unit * rng.normal(size=(200, d))
        Y[round(200 * share) :] += 30.0 * unit
        rows = WhitenedRows.of(X, Y, np.ones(200), np.zeros(4), True)
        start = np.zeros((1, 5, d))
        found = settle(rows, start, 1.5 * unit[None] / rows.unit)
        scales.append(found.scale[0] * rows.unit / unit)
        shares.append(found.share[0])
    assert_allclose(np.mean(scales, axis=0), 1.0, atol=0.05)
    assert_allclose(np.mean(shares), share, atol=0.03)


def test_refined_scale_is_that_of_all_rows(rng):
    residual = rng.normal(size=(20_000, 2)) * [1.0, 10.0]
    residual[:6000] += [30.0, 0.0]
    weight = np.ones(20_000)
    scale = refined_scale(
        lambda f: f(residual, weight), np.array([1.3, 8.0]), np.zeros(2), 20_000.0
    )
    assert_allclose(scale, [1.0, 10.0], rtol=0.03)


@pytest.mark.parametrize("first", [0.4, 1.0, 1.3])
def test_bins_refine_a_scale_as_passes_over_the_rows_do(rng, first, monkeypatch):
    """The error of bins is far below that of a scale, 1 / sqrt(2 n) of it."""
    n = 20_000
    residual, weight = rng.normal(size=(n, 1)), rng.integers(0, 3, n).astype(float)
    residual[: n // 4] += 20.0
    total, passes = float(weight.sum()), []

    def sums(function):
        passes.append(function)
        return function(residual, weight)

    start = np.array([first])
    binned = refined_scale(sums, start, np.zeros(1), total)
    assert len(passes) <= 2  # a second one if the scale has more than doubled
    for bins in (population._BINS, 10**6):  # so many are as good as the rows themselves
        monkeypatch.setattr(population, "_BINS", bins)
        fine = refined_scale(sums, start, np.zeros(1), total)
        assert_allclose(binned, fine, rtol=1e-3)
    current = start  # the fixed-point equation itself, row by row
    window = Window.of(1)
    for _ in range(4):
        inside, ring, squares = population._counts(residual, weight, current)
        core, rest = window.core(np.array([inside]), np.array([ring]), total)
        left = squares - rest * window.square / 3.0 * current**2
        current = np.sqrt(left / (core * window.probability * window.moment))
    assert_allclose(binned, current, rtol=1e-3)


def test_evidence_for_a_part_and_none_for_a_rival(rng):
    X = rng.normal(size=(200, 2))
    y = X @ [1.0, -1.0] + rng.normal(size=200)
    y[:60] += rng.uniform(5.0, 50.0, size=60)
    rows = WhitenedRows.of(X, y[:, None], np.ones(200), np.zeros(2), True)
    truth = rows.whiten(np.array([[1.0], [-1.0], [0.0]]))
    found = settle(rows, truth, np.array([[1.0]]) / rows.unit)
    other = settle(rows, truth + 30.0 / rows.unit, np.array([[3.0]]) / rows.unit)
    wide = all_rows(rows, rows.solve(np.ones((1, 200))))
    nats, overlap = evidence(rows, wide, found)
    assert nats[0] > 50.0
    assert overlap[0] > 0.9
    # Of two planes that share no rows, neither is a part of the other.
    assert evidence(rows, found, other)[1][0] < 0.5


def test_no_evidence_for_a_part_of_one_population():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(100, 3)), rng.normal(size=100)
        rows = WhitenedRows.of(X, y[:, None], np.ones(100), np.zeros(3), True)
        everything = all_rows(rows, rows.solve(np.ones((1, 100))))
        part = settle(rows, rows.solve((y < 0.3)[None] * 1.0), np.full((1, 1), 0.3))
        assert evidence(rows, everything, part)[0][0] < 5.0


def leverage_points(rng, offset):
    X = rng.normal(size=(30, 4))
    X[:8] += 10.0
    y = X.sum(axis=1) + rng.normal(size=30)
    y[:8] += offset
    rows = WhitenedRows.of(X, y[:, None], np.ones(30), np.zeros(4), True)
    everything = all_rows(rows, rows.solve(np.ones((1, 30))))
    part = (np.arange(30) >= 8)[None] * 1.0
    scale = np.ones((1, 1)) / rows.unit
    return rows, everything, settle(rows, rows.solve(part), scale)


def test_evidence_knows_leverage_points():
    # X alone says which rows are bad: far out they may be all, elsewhere none.
    for seed in range(10):
        rows, everything, part = leverage_points(np.random.default_rng(seed), 30.0)
        assert not (part.distance[0, :8] <= Window.of(1).square).any()
        nats, _ = evidence(rows, everything, part)
        ratio = np.log(everything.scale / part.scale)[0, 0]
        log = ratio + 0.5 * (everything.distance - part.distance)[0]
        core = (everything.distance[0] <= Window.of(1).square) & (np.arange(30) >= 8)
        odds = np.exp(log[core]) * Window.of(1).probability - 1.0
        least = np.log1p(0.97 * odds).sum() - np.log(30) - (5 + 1) * ratio - 5
        assert nats[0] >= least
        assert nats[0] > 2.0


def test_no_evidence_against_good_leverage_points():
    for seed in range(10):
        rows, everything, part = leverage_points(np.random.default_rng(seed), 0.0)
        assert evidence(rows, everything, part)[0][0] < 1.5


def test_evidence_knows_near_outliers_on_one_side(rng):
    # The rest follows a law of its own: the ratio of two explicit likelihoods.
    x = rng.normal(size=(40, 1))
    y = x[:, 0] + rng.normal(size=40)
    y[:12] += 6.0
    rows = WhitenedRows.of(x, y[:, None], np.ones(40), np.zeros(1), True)
    everything = all_rows(rows, rows.solve(np.ones((1, 40))))
    truth = rows.whiten(np.array([[1.0], [0.0]]))
    part = settle(rows, truth, np.array([[1.0]]) / rows.unit)
    nats, _ = evidence(rows, everything, part)
    inside = everything.distance[0] <= Window.of(1).square
    r = rows.residuals(part.theta)[0, 0] / part.scale[0, 0]
    follows = part.distance[0] <= Window.of(1).square
    spread = max(r[~follows].std(), 1.0)
    share = follows.mean()
    law = share * norm.pdf(np.sqrt(part.distance[0])) + (1 - share) * norm.pdf(
        r, r[~follows].mean(), spread
    )
    larger = norm.pdf(np.sqrt(everything.distance[0])) / Window.of(1).probability
    ratio = np.log(everything.scale[0, 0] / part.scale[0, 0])
    expected = np.sum(np.log(law / larger)[inside] + ratio)
    expected -= 0.9 * (3 * ratio + 2 * (ratio - np.log(spread)))
    assert nats[0] >= expected - 1e-9
    assert_allclose(nats[0], expected, rtol=1e-6)


def test_evidence_knows_a_second_plane(rng):
    # Here, too, the ratio of two explicit likelihoods.
    x = rng.normal(size=(60, 5))
    noise = rng.normal(size=60)
    y = x.sum(axis=1) + noise
    y[:24] = 3.0 - 4.0 * x[:24].sum(axis=1) + noise[:24]
    rows = WhitenedRows.of(x, y[:, None], np.ones(60), np.zeros(5), True)
    everything = all_rows(rows, rows.solve(np.ones((1, 60))))
    part = settle(
        rows, rows.solve((np.arange(60) >= 24)[None] * 1.0), 1.0 / rows.unit[None]
    )
    follows = part.distance[0] <= Window.of(1).square
    assert follows[24:].mean() > 0.8 and follows[:24].mean() < 0.3
    nats, _ = evidence(rows, everything, part)
    design = np.column_stack([x, np.ones(60)])
    other = np.linalg.lstsq(design[~follows], y[~follows], rcond=None)[0]
    away = (y - design @ other) / rows.unit[0]
    total = np.sum(~follows)
    spread = np.sqrt(np.sum(away[~follows] ** 2) / (total - 6))
    spread = max(spread, part.scale[0, 0])
    z = away * np.sqrt(total / (total - 6)) / spread
    share = follows.mean()
    larger = everything.scale[0, 0]
    law = share * norm.pdf(np.sqrt(part.distance[0])) / part.scale[0, 0]
    law += (1 - share) * norm.pdf(z) / spread
    whole = norm.pdf(np.sqrt(everything.distance[0])) / larger
    inside = everything.distance[0] <= Window.of(1).square
    expected = np.log(law / whole * Window.of(1).probability)[inside].sum()
    ratios = np.log(larger / np.array([part.scale[0, 0], spread]))
    expected -= 0.9 * 7 * ratios.sum()
    assert_allclose(nats[0], expected, rtol=1e-6)
    assert nats[0] > 5.0


@pytest.mark.parametrize("n_others", [8, 10])
def test_a_second_plane_takes_rows(monkeypatch, n_others):
    """With fewer than one and a half per parameter, here nine, there is none."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(50, 5)), 1e-4 * rng.normal(size=50)
    other = np.arange(50) < n_others
    y = np.where(other, 2.0 - 4.0 * x.sum(axis=1), x.sum(axis=1)) + noise
    rows = WhitenedRows.of(x, y[:, None], np.ones(50), np.zeros(5), True)
    everything = all_rows(rows, rows.solve(np.ones((1, 50))))
    part = settle(rows, rows.solve(~other[None] * 1.0), 1e-4 / rows.unit[None])
    windows = np.ones(50, bool), ~other[None]

    def nats():
        return evidence_module._two_laws(rows, everything, part, *windows)[0]

    found = nats()
    monkeypatch.setattr(evidence_module, "_OWN_PLANE", 0.0)
    always = nats()
    monkeypatch.setattr(evidence_module, "_OWN_PLANE", np.inf)
    never = nats()
    assert always > never + 1.0
    assert found == (always if n_others >= 9 else never)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize(("slope", "narrower"), [(1.0, 0.2), (0.0, 0.9999)])
def test_evidence_knows_rows_in_a_band(rng, slope, narrower, copies):
    """Their number and their residuals against the law of all rows in the window.

    A band of nearly the whole window has fewer rows than expected: they tell nothing.
    """
    x, wide = rng.normal(size=(200, 1)), 3.0
    narrow, apart = narrower * wide, slope * x[:, 0]
    y = wide * rng.normal(size=200)
    y[:80] = apart[:80] + narrow * rng.normal(size=80)
    y[80:90] = 1.9999 * wide  # nearly two scales
    weight = np.full(200, float(copies))
    rows = WhitenedRows.of(x, y[:, None], weight, np.zeros(1), True)

    def population(slope, scale):
        theta = rows.whiten(np.array([[slope], [0.0]]))
        z = np.square((y - slope * x[:, 0]) / scale)[None]
        return Populations(theta, scale / rows.unit[None], np.ones(1), z)

    larger, smaller = population(0.0, wide), population(slope, narrow)
    in_larger, in_smaller = larger.distance[0] <= 4.0, smaller.distance <= 4.0
    log = 0.5 * (larger.distance - smaller.distance) - np.log(narrower)
    windows = in_larger, in_smaller
    found = evidence_module._in_the_band(rows, larger, smaller, log, *windows)
    of_all, of_part = norm(0.0, wide), norm(apart, narrow)
    low = np.maximum(apart - 2.0 * narrow, -2.0 * wide)
    high = np.minimum(apart + 2.0 * narrow, 2.0 * wide)
    band, own = (law.cdf(high) - law.cdf(low) for law in (of_all, of_part))
    share = band / (norm.cdf(2.0) - norm.cdf(-2.0))
    inside, outside = in_larger & in_smaller[0], in_larger & ~in_smaller[0]
    times = max(inside.sum() / share[in_larger].sum(), 1.0)
    if slope:  # and the scale is not one, with which the unit would not matter
        assert times > 1.5 and larger.scale > 1.2
    else:
        assert times == 1.0 and share.min() > 0.999 and outside.sum() >= 10
    laws = of_part.logpdf(y) - np.log(own) - of_all.logpdf(y) + np.log(band)
    more = inside.sum() * np.log(times)
    fewer = np.log1p(-times * share[outside]) - np.log1p(-share[outside])
    expected = copies * (laws[inside].sum() + more + fewer.sum())
    assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_shares_of_evidence_are_close_enough():
    """Any share in between would add less than half a nat."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(100, 1))
        y = x[:, 0] + 0.1 * rng.normal(size=100)
        y[:70] += 3.0 * rng.normal(size=70)
        rows = WhitenedRows.of(x, y[:, None], np.ones(100), np.zeros(1), True)
        everything = all_rows(rows, rows.solve(np.ones((1, 100))))
        truth = rows.whiten(np.array([[1.0], [0.0]]))
        part = settle(rows, truth, np.array([[0.1]]) / rows.unit)
        ratio = np.log(everything.scale / part.scale)[0, 0]
        log = ratio + 0.5 * (everything.distance - part.distance)[0]
        inside = everything.distance[0] <= Window.of(1).square
        odds = np.exp(log[inside]) * Window.of(1).probability - 1.0
        best = minimize_scalar(
            lambda share, odds=odds: -np.log1p(share * odds).sum(),
            bounds=(0.2, 0.97),
            method="bounded",
        )
        assert 0.25 < best.x < 0.4
        free = 0.9 * (rows.effective + 1.0) * ratio
        assert evidence(rows, everything, part)[0][0] >= -best.fun - free - 0.5


def test_both_sides_of_a_rank_have_a_share(rng):
    """The definition, rank by rank and share by share."""
    X = rng.normal(size=(30, 3))
    X[:9] *= 6.0
    y = X.sum(axis=1) + rng.normal(size=30)
    rows = WhitenedRows.of(X, y[:, None], np.ones(30), np.zeros(3), True)
    in_smaller = rng.random((2, 30)) < 0.8
    odds = rng.uniform(0.0, 5.0, size=(2, 30))
    orders = np.argsort(rows.leverage(in_smaller), axis=1)
    for c in range(2):  # half of the rows that are far out follow
        odds[c, orders[c, 20:]] = np.repeat([-0.95, 3.0], 5)
    each = np.log1p(np.array([0.2, 0.5, 0.8])[:, None, None] * odds)
    found = evidence_module._far_out(rows, each, in_smaller)
    for c in range(2):
        terms = each[:, c, orders[c]]
        ranks = np.arange(int(np.ceil(rows.majority)), 31)
        low, high = (
            np.array([part.sum(axis=1).max() for part in parts])
            for parts in (
                [terms[:, :t] for t in ranks],
                [terms[:, t:] for t in ranks],
            )
        )
        best = (low + np.maximum(high, 0.0)).max()
        # Neither one share for all rows nor none of those far out is as good.
        assert best > max(terms.sum(axis=1).max(), low.max()) + 0.1
        assert_allclose(found[c], best - np.log(31.0 - rows.majority))
