"""Solvers for strong feedback against independent references."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from reference import LOSSES, loss_of_rows, make, make_energy, make_rows, make_theta

from sklearn_mm._hebbian import coordinate
from sklearn_mm._hebbian.energy import (
    BOXES,
    Network,
    evaluate,
    free_gaps,
    row_products,
    unpack,
    upper_bound,
)
from sklearn_mm._hebbian.point import Point

FEEDBACKS = (1.0, 0.5, 0.1)
SOLVERS = ["modulus", "coordinate"]


def solve(name, network, drive, Y, passes):
    point = Point(network, name).prepared()
    solver = point.phases(drive, Y)
    solver.run(network, point.known, drive, Y, passes)
    return evaluate(network, drive, Y, *solver.activations(network))


def bounds(network, drive, Y, phases):
    z_hat = [None, *(phases.z[k] + phases.d[k] for k in network.energy.hidden)]
    upper = upper_bound(network, drive, Y, z_hat, phases.s)
    gap = sum(phases.free_gaps[1:]) + sum(phases.clamped_gaps[1:])
    return upper, gap


@pytest.mark.parametrize("activation", sorted(BOXES))
@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("feedback", FEEDBACKS)
@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_bounds_enclose_the_loss_and_close(solver, feedback, loss, activation):
    network, _, drive, Y = make(1, feedback, n_rows=2, loss=loss, activation=activation)
    J = loss_of_rows(network, drive, Y)
    for passes in (1, 3, 10, 2000):
        phases = solve(solver, network, drive, Y, passes)
        upper, gap = bounds(network, drive, Y, phases)
        slack = 1e-7 * (1.0 + J)
        assert np.all(gap >= 0.0)
        assert np.all(J <= upper + slack) and np.all(upper - gap <= J + slack)
    assert np.all(gap <= 1e-8 * (1.0 + upper))
    assert_allclose(upper, J, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("activation", sorted(BOXES))
def test_without_pulls_the_modulus_iteration_starts_from_its_fixed_point(activation):
    energy = make_energy(1.0, activation=activation)
    theta = make_theta(1)
    for W in unpack(theta, energy.sizes)[0][1:]:
        W[:] = 0.0
    network = Network.at(theta, energy)
    X, Y = make_rows(1, energy)
    drive = X @ network.coefs[0] + network.intercepts[0]
    point = Point(network, "modulus").prepared()
    solver = point.phases(drive, Y)
    start = solver.v.flat.copy()
    expected = energy.box.clip(drive, np.empty_like(drive))
    for layers in solver.activations(network):
        assert_allclose(layers[1], expected, atol=1e-14)
    solver.run(network, point.known, drive, Y, 5)
    assert_allclose(solver.v.flat, start, atol=1e-12)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.0])
def test_modulus_takes_few_passes_where_others_diverge(scale):
    network, _, drive, Y = make(
        2, 1.0, n_rows=50, scale=scale / 3, sizes=(20, 16, 16, 16, 3)
    )
    upper, gap = bounds(network, drive, Y, solve("modulus", network, drive, Y, 60))
    assert gap.sum() <= 0.01 * upper.sum()


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_the_free_phase_alone(loss):
    """Its iterates and gaps are those of both phases."""
    network, _, drive, Y = make(3, 0.5, n_rows=5, loss=loss)
    point = Point(network, "modulus").prepared()
    alone = point.phases(drive, Y, free_only=True)
    both = point.phases(drive, Y, spare=alone)
    for passes in (0, 1, 5):
        for solver in (alone, both):
            solver.run(network, point.known, drive, Y, passes)
        z, none = alone.activations(network)
        expected, z_hat = both.activations(network)
        assert all(len(layer) == 0 for layer in none[1:])
        for a, b in zip(z[1:], expected[1:], strict=True):
            assert_allclose(a, b, rtol=1e-12, atol=1e-14)
        gaps = evaluate(network, drive, Y, expected, z_hat).free_gaps
        assert_allclose(free_gaps(network, drive, z), sum(gaps[1:]), rtol=1e-9)


def test_a_pass_over_units_is_the_plain_one():
    network, _, drive, Y = make(3, 1.0, sizes=(4, 19, 11, 2))
    phases = solve("coordinate", network, drive, Y, 1)
    z = [None, np.maximum(drive, 0)]
    z.append(np.maximum(network.affine(z[1], 1), 0))
    W, b = network.coefs[1], network.intercepts[1]
    for j in range(19):  # the first layer of the free phase
        r = z[2] - z[1] @ W - b
        gradient = z[1][:, j] - drive[:, j] - r @ W[j]
        z[1][:, j] = np.maximum(z[1][:, j] - gradient / (1 + W[j] @ W[j]), 0)
    assert_allclose(phases.z[1], z[1], atol=1e-12)
    assert_allclose(phases.z[2], np.maximum(network.affine(z[1], 1), 0), atol=1e-12)


@pytest.mark.parametrize("clamped", [False, True])
def test_energy_never_rises_over_units(clamped):
    network, _, drive, Y = make(4, 1.0, scale=1.5)
    point = Point(network, "coordinate").prepared()
    solver, gram = point.phases(drive, Y), point.known
    before = np.inf
    for _ in range(20):
        solver.run(network, gram, drive, Y, 1)
        z = solver.activations(network)[clamped]
        value, made = 0.0, drive
        for k in network.energy.hidden:
            value = value + 0.5 * row_products(z[k] - made, z[k] - made)
            made = network.affine(z[k], k)
        if clamped:
            value = value + network.energy.loss.value(made, Y)
        assert np.all(value <= before * (1 + 1e-12))
        before = value


def test_blocks_of_units_do_not_change_the_iterates(monkeypatch):
    network, _, drive, Y = make(5, 1.0, sizes=(4, 19, 11, 2), activation="hard_tanh")
    expected = solve("coordinate", network, drive, Y, 3)
    for size in (1, 4, 7):
        monkeypatch.setattr(coordinate, "_BLOCK", size)
        found = solve("coordinate", network, drive, Y, 3)
        for k in network.energy.hidden:
            assert_allclose(found.z[k], expected.z[k], atol=1e-12)
            assert_allclose(found.d[k], expected.d[k], atol=1e-12)
