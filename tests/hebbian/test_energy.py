"""What the energy is, and duality, at any activations and parameters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from reference import LOSSES, loss_of_rows, make, make_energy, minimum

from sklearn_mm._hebbian.energy import (
    BOXES,
    Energy,
    Network,
    dual_point_of,
    evaluate,
    row_products,
    unpack,
    upper_bound,
)

GAMMAS = (1.0, 0.5, 0.1, 0.03)


def random_activations(energy, n_rows, rng):
    """Anywhere in the box, its faces included."""
    layers = (2.0 * rng.normal(size=(n_rows, energy.sizes[k])) for k in energy.hidden)
    return [None, *(np.clip(z, energy.box.low, energy.box.high) for z in layers)]


def primal(network, drive, z, Y=None):
    """Energy of every row by its definition; clamped if there are targets."""
    energy = network.energy
    value, made = np.zeros(len(drive)), drive
    for k in energy.hidden:
        value += 0.5 * energy.weights[k - 1] * np.sum((z[k] - made) ** 2, axis=1)
        made = network.affine(z[k], k)
    return value if Y is None else value + energy.loss.value(made, Y)


def least_product(box, s):
    """The least s z over the box, entry by entry."""
    face = np.where(s > 0, box.low, box.high)
    return np.multiply(s, face, out=np.zeros_like(s), where=s != 0)


def dual(network, drive, slacks, output=None, Y=None):
    """Dual energy of slacks, from the Lagrange function; clamped with an output.

    With the multiplier e = -loss'(f), the conjugate of the loss is attained at f.
    """
    energy = network.energy
    error, value = None, np.zeros(len(drive))
    if output is not None:
        error = energy.loss.descent(output, Y)
        value += energy.loss.value(output, Y)
        value += np.sum(error * (output - network.intercepts[-1]), axis=1)
    mu = error
    for k in reversed(energy.hidden):
        s = slacks[k]
        mu = s if mu is None else energy.gamma * (mu @ network.coefs[k].T) + s
        offset = drive if k == 1 else network.intercepts[k - 1]
        term = least_product(energy.box, s) - 0.5 * mu**2 - mu * offset
        value += energy.weights[k - 1] * np.sum(term, axis=1)
    return value


@given(
    seed=st.integers(0, 10_000),
    feedback=st.sampled_from(GAMMAS),
    loss=st.sampled_from(sorted(LOSSES)),
    activation=st.sampled_from(sorted(BOXES)),
    n_hidden=st.integers(1, 4),
)
def test_gap_is_energy_minus_dual_at_any_activations(
    seed, feedback, loss, activation, n_hidden
):
    sizes = (*(4, 6, 5, 3, 4)[: n_hidden + 1], 2)
    network, _, drive, Y = make(
        seed, feedback, loss=loss, activation=activation, sizes=sizes
    )
    rng = np.random.default_rng(seed)
    z, z_hat = (random_activations(network.energy, len(Y), rng) for _ in range(2))
    phases = evaluate(network, drive, Y, z, z_hat)
    gap = sum(phases.free_gaps[1:])
    value = primal(network, drive, z)
    assert_allclose(value - dual(network, drive, phases.s), gap, rtol=1e-8, atol=1e-10)
    slacks, error = dual_point_of(network, drive, Y, z_hat)
    assert_allclose(error, phases.error)
    gap_hat = sum(phases.clamped_gaps[1:])
    value_hat = primal(network, drive, z_hat, Y)
    dual_hat = dual(network, drive, slacks, phases.output, Y)
    assert_allclose(value_hat - dual_hat, gap_hat, rtol=1e-8, atol=1e-10)
    assert np.all(gap >= 0.0) and np.all(gap_hat >= 0.0)
    # The upper bound is the clamped energy minus the free dual.
    upper = upper_bound(network, drive, Y, z_hat, phases.s)
    expected = value_hat - dual(network, drive, phases.s)
    assert_allclose(upper, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("activation", sorted(BOXES))
@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("feedback", [1.0, 0.3])
def test_weak_duality_at_any_activations(feedback, loss, activation):
    network, _, drive, Y = make(2, feedback, loss=loss, activation=activation)
    z = random_activations(network.energy, len(Y), np.random.default_rng(3))
    phases = evaluate(network, drive, Y, z, z)
    slacks, _ = dual_point_of(network, drive, Y, z)
    bounds = (
        (dual(network, drive, phases.s), primal(network, drive, z), None),
        (
            dual(network, drive, slacks, phases.output, Y),
            primal(network, drive, z, Y),
            Y,
        ),
    )
    for lower, upper, targets in bounds:
        for i in range(len(Y)):
            y = None if targets is None else targets[i]
            least = minimum(network, drive[i], y)
            assert lower[i] - 1e-7 <= least <= upper[i] + 1e-7


def test_printed_sign_of_the_bias_would_break_weak_duality():
    # One unit, x = 0, b = 1: the minimum is 0, a dual with + lambda b reaches 1/2.
    network = Network.at(np.array([1.0, 1.0, 1.0, 0.0]), Energy((1, 1, 1), 1.0))
    drive = np.ones((1, 1))
    values = [dual(network, drive, [None, np.full((1, 1), s)]) for s in (0.0, 1.0, 2.0)]
    assert max(values) == 0.0
    assert -0.5 + 1.0 > minimum(network, drive[0])


@pytest.mark.parametrize("activation", sorted(BOXES))
def test_slacks_are_the_best_ones_of_each_layer_in_turn(activation):
    network, _, drive, Y = make(4, 0.5, activation=activation)
    energy, rng = network.energy, np.random.default_rng(5)
    z = random_activations(energy, len(Y), rng)
    phases = evaluate(network, drive, Y, z, z)
    for k in energy.hidden:
        best = phases.free_gaps[k]
        a = drive if k == 1 else network.affine(z[k - 1], k - 1)
        pull = phases.mu[k] - phases.s[k]
        for size in (1e-3, 0.1, 1.0):
            s = phases.s[k] + size * rng.normal(size=z[k].shape)
            # Where the box is open, slacks of one sign have an infinite cost.
            s = np.maximum(s, 0.0) if energy.box.high == np.inf else s
            s = np.minimum(s, 0.0) if energy.box.low == -np.inf else s
            miss = z[k] - a - pull - s
            slackness = energy.box.slackness(z[k], s).sum(axis=1)
            other = 0.5 * row_products(miss, miss) + slackness
            assert np.all(best <= energy.weights[k - 1] * other + 1e-12)


@pytest.mark.parametrize("activation", sorted(BOXES))
def test_slackness(activation):
    box = BOXES[activation]
    rng = np.random.default_rng(0)
    z = np.clip(rng.normal(size=(50, 4)), box.low, box.high)
    s = rng.normal(size=z.shape)
    s = np.maximum(s, 0.0) if box.high == np.inf else s
    s = np.minimum(s, 0.0) if box.low == -np.inf else s
    value = box.slackness(z, s)
    assert np.all(value >= 0.0)
    # None where a unit lies on the face that its slack presses it against.
    pressed = np.where(s > 0, box.low, np.where(s < 0, box.high, z))
    assert_allclose(box.slackness(pressed, s), 0.0, atol=1e-15)
    grid = np.linspace(max(box.low, -50.0), min(box.high, 50.0), 101)
    least = np.min(s[..., None] * grid, axis=-1)
    assert_allclose(value, z * s - least, atol=1e-12)
    x = 3.0 * rng.normal(size=z.shape)
    for zero in (None, np.zeros_like(x)):
        clipped = box.clip(x, np.empty_like(x), zero)
        assert_allclose(clipped, np.clip(x, box.low, box.high))


@pytest.mark.parametrize("activation", sorted(BOXES))
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_upper_bound_holds_at_any_parameters(loss, activation):
    network, X, drive, Y = make(6, 0.5, n_rows=2, loss=loss, activation=activation)
    rng = np.random.default_rng(7)
    z, z_hat = (random_activations(network.energy, len(Y), rng) for _ in range(2))
    slacks = evaluate(network, drive, Y, z, z_hat).s
    for size in (0.0, 0.1, 1.0):
        theta = network.theta + size * rng.normal(size=network.theta.shape)
        other = Network.at(theta, network.energy)
        drive = X @ other.coefs[0] + other.intercepts[0]
        J = loss_of_rows(other, drive, Y)
        assert np.all(J >= 0.0 - 1e-9)
        assert np.all(upper_bound(other, drive, Y, z_hat, slacks) >= J - 1e-7)


def feed_forward(network, drive):
    z, made = [None], drive
    for k in network.energy.hidden:
        z.append(network.energy.box.clip(made, np.empty_like(made)))
        made = network.affine(z[k], k)
    return z


@pytest.mark.parametrize("activation", sorted(BOXES))
def test_one_hidden_layer_is_feed_forward(activation):
    network, _, drive, Y = make(8, 0.3, sizes=(5, 6, 2), activation=activation)
    z = feed_forward(network, drive)
    phases = evaluate(network, drive, Y, z, z)
    assert_allclose(phases.free_gaps[1], 0.0, atol=1e-15)


def test_two_hidden_layers_are_not():
    network, _, drive, Y = make(9, 1.0)
    z = feed_forward(network, drive)
    value = primal(network, drive, z)
    least = [minimum(network, row) for row in drive]
    assert np.any(np.array(least) < 0.99 * value)
    assert np.all(sum(evaluate(network, drive, Y, z, z).free_gaps[1:]) > 0.0)


def test_weights_follow_the_feedback():
    assert_allclose(make_energy(0.5).weights, [8.0, 4.0, 2.0, 1.0])
    assert make_energy(1.0).weights == [1.0] * 4


@pytest.mark.parametrize("feedback", [1e-160, 5e-324])
@pytest.mark.parametrize("n_hidden", [1, 3, 50])
def test_weights_are_finite_for_any_feedback(feedback, n_hidden):
    energy = Energy((2,) * (n_hidden + 2), feedback)
    assert energy.weights[0] ** 2 < np.inf
    assert 0.0 < energy.gamma < 1.0
    assert energy.weights[-1] == 1.0


def test_precision_of_passes():
    assert make_energy(1e-4).pass_dtype(np.float32) == np.float32  # w_0 = 1e12
    assert make_energy(0.9e-4).pass_dtype(np.float32) == np.float64
    assert make_energy(1e-4).pass_dtype(np.float64) == np.float64


def test_unpack_gives_views_of_matrices_then_biases():
    theta = np.arange(2 * 3 + 3 + 3 * 1 + 1, dtype=float)
    coefs, intercepts = unpack(theta, (2, 3, 1))
    assert [W.shape for W in coefs] == [(2, 3), (3, 1)]
    assert intercepts[1][0] == theta[-1]
    assert all(np.shares_memory(part, theta) for part in (*coefs, *intercepts))
    energy = Energy((2, 3, 1), 0.5)
    assert energy.n_weights == 9
    assert energy.n_hidden == 1
