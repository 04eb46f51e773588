"""The difference form: its identities, bounds and gradient."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from reference import LOSSES, loss_of_rows, make, minimum

from sklearn_mm._hebbian.difference import DifferencePhases, Experience
from sklearn_mm._hebbian.energy import (
    BOXES,
    Network,
    evaluate,
    row_products,
    unpack,
    upper_bound,
)
from sklearn_mm._hebbian.gradient import Stacks

FEEDBACKS = (1.0, 0.3, 0.05, 0.01)


def phases_of(network, drive, Y, free=3, clamped=2, pulls=None, dtype=np.float64):
    """Both phases after so many passes; of the free one, or the top of each."""
    tops = [network.energy.n_hidden] * free if isinstance(free, int) else free
    phases = DifferencePhases(network.energy, len(Y), dtype)
    phases.drive[:] = drive
    experience = None
    if pulls is not None:
        experience = Experience.none(network.energy)
        experience.pulls = pulls
    phases.free(network, tops, experience)
    phases.clamped(network, Y, clamped)
    return phases


def random_pulls(network, seed, size=0.3):
    rng = np.random.default_rng(seed)
    hidden = network.energy.hidden
    return [None, *(size * rng.normal(size=network.energy.sizes[k]) for k in hidden)]


def measure(phases, X, Y):
    values = phases.energy.loss.value(phases.output_hat, Y)
    return phases.measure(row_products(X, X), row_products, values)


def gradient(phases, network, X, share=None):
    out = np.zeros_like(network.theta)
    share = 1.0 / len(X) if share is None else share
    phases.gradient(X, share, unpack(out, network.energy.sizes))
    return out


nets = {
    "seed": st.integers(0, 10_000),
    "feedback": st.sampled_from(FEEDBACKS),
    "loss": st.sampled_from(sorted(LOSSES)),
    "activation": st.sampled_from(sorted(BOXES)),
    "n_hidden": st.integers(1, 4),
    # Layers that the passes leave out, which cannot be more than there are.
    "free": st.sampled_from([[], [0], [0, 1], [0, 0], [1, 2, 3], [0, 1, 2, 3]]),
    "clamped": st.integers(1, 3),
}


@given(**nets)
def test_identities_hold_for_any_pulls(
    seed, feedback, loss, activation, n_hidden, free, clamped
):
    sizes = (*(4, 6, 5, 3, 4, 3)[: n_hidden + 1], 2)
    network, X, drive, Y = make(
        seed, feedback, sizes=sizes, loss=loss, activation=activation
    )
    energy = network.energy
    pulls = random_pulls(network, seed)
    tops = [max(n_hidden - out, 1) for out in free]
    phases = phases_of(network, drive, Y, tops, clamped, pulls)
    found = measure(phases, X, Y)
    # The definitions, from activations and slacks alone.
    z_hat = [None, *(phases.z[k] + phases.d[k] for k in energy.hidden)]
    s = [None, *(-phases.t[k] for k in energy.hidden)]
    scale = 1.0 + np.abs(found.upper) + found.gap
    upper = upper_bound(network, drive, Y, z_hat, s)
    assert np.all(np.abs(found.upper - upper) <= 1e-10 * scale)
    exact = evaluate(network, drive, Y, phases.z, z_hat)
    for k in energy.hidden:
        assert np.all(phases.z[k] >= energy.box.low)
        assert np.all(z_hat[k] <= energy.box.high)
        assert_allclose(energy.box.slackness(phases.z[k], s[k]), 0.0, atol=1e-12)
        assert_allclose(phases.dr[k], exact.dr[k], atol=1e-11)
    # Every upper bound is above every lower one.
    solved = measure(phases_of(network, drive, Y, 30, 30), X, Y)
    other = upper_bound(network, drive, Y, z_hat, exact.s)
    for bound in (solved.upper, other):
        assert np.all(found.upper - found.gap <= bound + 1e-10 * scale)
    free_gap = 0.0
    latents = phases.snapshot()
    for gap, k in zip(latents.free_gaps[1:], energy.hidden, strict=True):
        r = phases.z[k] - (drive if k == 1 else network.affine(phases.z[k - 1], k - 1))
        miss = r - latents.mu[k]
        expected = 0.5 * energy.weights[k - 1] * row_products(miss, miss)
        assert np.all(np.abs(gap - expected) <= 1e-10 * scale)
        free_gap = free_gap + expected
    for gap in (found.free_gap, phases.free_gap_of_rows()):
        assert np.all(np.abs(gap - free_gap) <= 1e-10 * scale)


@pytest.mark.parametrize("activation", sorted(BOXES))
@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_bounds_enclose_the_loss_at_every_pass(feedback, loss, activation):
    for seed in range(2):
        network, X, drive, Y = make(
            seed, feedback, n_rows=2, loss=loss, activation=activation
        )
        J = loss_of_rows(network, drive, Y)
        for free, clamped in ((0, 1), (1, 1), (3, 2), (8, 8)):
            found = measure(phases_of(network, drive, Y, free, clamped), X, Y)
            # The reference solver's own accuracy.
            slack = (1e-7 + 1e-12 * network.energy.weights[0]) * (1.0 + J)
            assert np.all(found.gap >= 0.0)
            assert np.all(J <= found.upper + slack)
            assert np.all(found.upper - found.gap <= J + slack)


@pytest.mark.parametrize("activation", sorted(BOXES))
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_gap_closes(loss, activation):
    network, X, drive, Y = make(3, 0.03, loss=loss, activation=activation)
    found = measure(phases_of(network, drive, Y, 40, 40), X, Y)
    assert np.all(found.gap <= 1e-12 * found.upper)
    assert_allclose(found.upper, loss_of_rows(network, drive, Y), rtol=1e-6)


@pytest.mark.parametrize("activation", sorted(BOXES))
@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("feedback", [1.0, 0.3, 0.05])
def test_gradient_is_that_of_the_nearby_network(feedback, loss, activation):
    """Biases b + (p - q), row by row, make the free phase exact."""
    network, X, drive, Y = make(5, feedback, loss=loss, activation=activation)
    energy = network.energy
    pulls = random_pulls(network, 5, 0.1)
    phases = phases_of(network, drive, Y, 1, 1, pulls)
    found = gradient(phases, network, X)
    z_hat = [None, *(phases.z[k] + phases.d[k] for k in energy.hidden)]
    s = [None, *(-phases.t[k] for k in energy.hidden)]
    shift = phases.snapshot().miss

    def value(theta):
        at = Network.at(theta, energy)
        total, below = 0.0, X @ at.coefs[0] + at.intercepts[0]
        eps = []
        for k in energy.hidden:
            eps.append(z_hat[k] - below - shift[k])
            below = at.affine(z_hat[k], k)
        total += energy.loss.value(below, Y)
        above = None
        for k in reversed(energy.hidden):
            above = s[k] if above is None else above @ at.back[k] + s[k]
            e = eps[k - 1] - above
            c = energy.box.slackness(z_hat[k], s[k]).sum(axis=1)
            total = total + energy.weights[k - 1] * (0.5 * row_products(e, e) + c)
        return total.mean()

    assert_allclose(found, central(value, network.theta), atol=1e-7 * size(found))
    # And the free phase of that network is exact.
    if activation == "relu":
        extra = [shift[k][0] for k in energy.hidden]
        free = minimum(network, drive[0], None, extra)
        r = [phases.z[1][0] - drive[0] - extra[0]]
        for k in list(energy.hidden)[1:]:
            below = network.affine(phases.z[k - 1][0], k - 1)
            r.append(phases.z[k][0] - below - extra[k - 1])
        own = sum(0.5 * w * e @ e for w, e in zip(energy.weights, r, strict=False))
        assert_allclose(own, free, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("activation", sorted(BOXES))
@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("feedback", [1.0, 0.3, 0.05])
def test_certified_gradient_is_that_of_the_upper_bound(feedback, loss, activation):
    network, X, drive, Y = make(6, feedback, loss=loss, activation=activation)
    energy = network.energy
    phases = phases_of(network, drive, Y, 1, 1)
    share = np.array([0.1, 0.2, 0.3, 0.4])
    found = np.zeros_like(network.theta)
    stacks = Stacks.certified(network, phases.snapshot())
    stacks.gradient(energy, X, share, unpack(found, energy.sizes))
    z_hat = [None, *(phases.z[k] + phases.d[k] for k in energy.hidden)]
    s = [None, *(-phases.t[k] for k in energy.hidden)]

    def value(theta):
        at = Network.at(theta, energy)
        drive = X @ at.coefs[0] + at.intercepts[0]
        return share @ upper_bound(at, drive, Y, z_hat, s)

    assert_allclose(found, central(value, network.theta), atol=1e-7 * size(found))


def central(value, theta, step=1e-5):
    slope = np.empty_like(theta)
    for j in range(len(theta)):
        ahead, behind = theta.copy(), theta.copy()
        ahead[j] += step
        behind[j] -= step
        slope[j] = (value(ahead) - value(behind)) / (2 * step)
    return slope


def size(gradient):
    return max(np.abs(gradient).max(), 1e-3)


def test_gradient_of_few_passes_is_close_to_that_of_many():
    """Far closer than the gradient of the certified bound itself."""
    network, X, drive, Y = make(7, 0.05, n_rows=30)
    exact = gradient(phases_of(network, drive, Y, 40, 40), network, X)
    phases = phases_of(network, drive, Y, 2, 2)
    error = gradient(phases, network, X) - exact
    certified = np.zeros_like(exact)
    Stacks.certified(network, phases.snapshot()).gradient(
        network.energy, X, 1 / 30, unpack(certified, network.energy.sizes)
    )
    assert error @ error < 1e-3 * exact @ exact
    assert error @ error < 1e-2 * (certified - exact) @ (certified - exact)


@pytest.mark.parametrize("n_hidden", [1, 2, 4, 6])
def test_single_precision_up_to_its_limit(n_hidden):
    """Bounds and gradient of float32 against float64, at w_0 = 1e12."""
    feedback = 1e12 ** (-1.0 / n_hidden)
    sizes = (20, *(16,) * n_hidden, 3)
    network, X, _, Y = make(8, feedback, n_rows=50, sizes=sizes, scale=0.3)
    energy = network.energy
    assert energy.pass_dtype(np.float32) == np.float32
    single = Network.at(network.theta.astype(np.float32), energy, np.float32)
    double = Network.at(single.theta.astype(np.float64), energy)
    X, Y = X.astype(np.float32), Y.astype(np.float32)
    results = []
    for net, dtype in ((single, np.float32), (double, np.float64)):
        drive = (X.astype(dtype) @ net.coefs[0]) + net.intercepts[0]
        phases = phases_of(net, drive, Y.astype(dtype), 8, 3, dtype=dtype)
        grad = gradient(phases, net, X.astype(dtype))
        results.append((measure(phases, X.astype(dtype), Y.astype(dtype)), grad))
    (found, slope), (expected, reference) = results
    assert slope.dtype == np.float32
    rounding = 1e-5 * (1.0 + expected.upper)
    assert np.all(np.abs(found.upper - expected.upper) <= rounding)
    assert np.all(found.gap >= 0.0)
    assert_allclose(slope, reference, atol=1e-4 * size(reference))


def test_smaller_feedback_than_numbers_can_hold():
    for feedback in (1e-160, 5e-324):
        network, X, drive, Y = make(9, feedback)
        assert network.energy.weights[0] <= 1.1e100
        found = measure(phases_of(network, drive, Y), X, Y)
        assert np.all(np.isfinite(found.upper)) and np.all(np.isfinite(found.curvature))
        z = np.maximum(drive, 0)
        for k in (1, 2):
            z = np.maximum(network.affine(z, k), 0)
        errors = Y - network.affine(z, 3)
        assert_allclose(found.upper, 0.5 * row_products(errors, errors), rtol=1e-9)


@pytest.mark.parametrize("n_hidden", [3, 4, 5])
def test_a_pass_over_part_of_the_layers_reduces_the_gap_like_a_whole_one(n_hidden):
    sizes = (4, *(8,) * n_hidden, 2)
    network, _, drive, Y = make(0, 0.003, n_rows=30, sizes=sizes, scale=0.4)
    once, part, whole = (
        phases_of(network, drive, Y, [n_hidden, *more]).free_gap_of_rows().sum()
        for more in ([], [n_hidden - 1], [n_hidden])
    )
    assert whole <= part <= 0.05 * once


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_a_pass_refreshes_the_layers_below_its_top(layer):
    """Their gaps fall by orders of magnitude, those of others hardly change."""
    network, _, drive, Y = make(3, 0.003, n_rows=30, sizes=(4, *(8,) * 4, 2), scale=0.4)
    before, after = (
        np.array(phases_of(network, drive, Y, tops).free_gaps())
        for tops in ([4], [4, layer + 1])
    )
    assert np.all(after[:layer] < 0.05 * before[:layer])
    assert_allclose(after[layer:], before[layer:], rtol=0.2)


def test_free_gaps_of_layers_add_up():
    network, _, drive, Y = make(5, 0.1, n_rows=7)
    phases = phases_of(network, drive, Y, 2)
    assert len(phases.free_gaps()) == network.energy.n_hidden - 1
    assert_allclose(sum(phases.free_gaps()), phases.free_gap_of_rows().sum())


def test_experience_shortens_inference():
    network, X, drive, Y = make(10, 0.05, n_rows=200)
    experience = Experience.none(network.energy)
    phases = DifferencePhases(network.energy, 200, np.float64)
    phases.drive[:] = drive
    cold = None
    for _ in range(30):
        phases.free(network, [3, 3], experience, learn=True)
        phases.clamped(network, Y, 1, experience.kappa)
        found = measure(phases, X, Y)
        cold = found if cold is None else cold
        phases.remember_pulls(experience)
        phases.remember_error(experience)
    assert found.free_gap.sum() < 0.5 * cold.free_gap.sum()
    assert 0.0 < experience.kappa < 1.0


def test_weights_of_rows():
    network, X, drive, Y = make(11)
    phases = phases_of(network, drive, Y)
    share = np.array([0.5, 0.25, 0.25, 0.0])
    rows = [
        gradient(
            phases_of(network, drive[i : i + 1], Y[i : i + 1]), network, X[i : i + 1]
        )
        for i in range(4)
    ]
    assert_allclose(gradient(phases, network, X, share), share @ np.array(rows))
    assert_allclose(gradient(phases, network, X), np.mean(rows, axis=0))


def test_more_passes_from_where_the_last_ones_ended():
    network, X, drive, Y = make(12, 0.05)
    expected = measure(phases_of(network, drive, Y, 30, 30), X, Y)
    phases = phases_of(network, drive, Y, 1, 1)
    for _ in range(30):
        phases.more_free(network)
    phases.clamped(network, Y, 1)
    for _ in range(29):
        phases.more_clamped(network, Y)
    assert_allclose(measure(phases, X, Y).upper, expected.upper, rtol=1e-9)


def test_mean_pulls_are_those_of_all_layers():
    """Started from them, rows that are all alike need no further pass."""
    network, _, drive, Y = make(13, 0.05, n_rows=1)
    drive, Y = np.repeat(drive, 7, axis=0), np.repeat(Y, 7, axis=0)
    phases = phases_of(network, drive, Y, free=40)
    experience = Experience.none(network.energy)
    phases.remember_pulls(experience)
    for k in range(1, network.energy.n_hidden):
        assert_allclose(experience.pulls[k], phases.q[k][0], rtol=1e-12)
    cold, warm = (
        phases_of(network, drive, Y, free=0, pulls=pulls).free_gap_of_rows()
        for pulls in (None, experience.pulls)
    )
    assert np.all(warm <= 1e-15 * cold)


@pytest.mark.parametrize("tops", [[3, 3], [3, 3, 3], [3, 2], [3, 3, 2]])
def test_damping_leaves_nothing_in_the_direction_of_a_pass(tops):
    """What is left after a pass is orthogonal to its change, layer by layer."""
    network, _, drive, _ = make(14, 0.1, n_rows=50, scale=0.5)
    phases = DifferencePhases(network.energy, 50, np.float64)
    phases.drive[:] = drive

    def shares(experience):
        phases.free(network, tops, experience, learn=True)
        found = []
        for j, (top, after) in enumerate(pairwise([*tops, 1])):
            for k in range(1, top):
                change = phases._changes[j][k]
                # The next change, or what remains of it after the last pass.
                left = (phases._changes[j + 1] if k < after else phases.p)[k]
                found.append(abs(np.vdot(left, change) / np.vdot(change, change)))
        return np.array(found)

    experience = Experience.none(network.energy)
    before = shares(experience)  # nothing is learnt before the first passes
    for _ in range(60):
        after = shares(experience)
    assert np.all(np.abs(experience.omega) < 0.4)  # no limit was met
    assert np.all(before > 1e-3)
    assert np.all(after < 1e-6 * before)
