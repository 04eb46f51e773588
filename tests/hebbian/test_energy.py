"""Energies, duals and sweeps against independent references on small networks."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import lsq_linear

from sklearn_mm._hebbian.energy import (
    Phase,
    build_network,
    dual_point,
    energy,
    free_dual,
    implied_activations,
    multipliers,
    prepare_sweeps,
    residuals,
    spectral_norm,
    unpack,
)

SIZES = (5, 6, 4, 3, 2)
GAMMAS = (1.0, 0.5, 0.3, 0.1)


def problem(seed, feedback, sizes=SIZES, n_rows=4, scale=0.7, coordinate=False):
    """A network with biases, drives and targets of a few rows."""
    rng = np.random.default_rng(seed)
    n_matrices = sum(a * b for a, b in pairwise(sizes))
    theta = scale * rng.normal(size=n_matrices + sum(sizes[1:]))
    network = prepare_sweeps(
        build_network(theta, sizes, feedback, np.float64), {}, coordinate
    )
    X = rng.normal(size=(n_rows, sizes[0]))
    drive = X @ network.coefs[0] + network.intercepts[0]
    return network, drive, rng.normal(size=(n_rows, sizes[-1]))


def minimum(network, drive, y=None):
    """Least energy of one row by bounded least squares on the stacked residuals."""
    hidden = [W.shape[1] for W in network.coefs[:-1]]
    offsets = np.concatenate([[0], np.cumsum(hidden)])
    blocks, right = [], []
    n_residuals = len(hidden) + (y is not None)
    for k in range(n_residuals):
        size = hidden[k] if k < len(hidden) else len(y)
        block = np.zeros((size, offsets[-1]))
        value = -drive if k == 0 else -network.intercepts[k]
        if k < len(hidden):
            block[:, offsets[k] : offsets[k + 1]] = np.eye(size)
        else:
            value = value + y
        if k:
            block[:, offsets[k - 1] : offsets[k]] -= network.coefs[k].T
        root = np.sqrt(network.weights[k])
        blocks.append(root * block)
        right.append(-root * value)
    result = lsq_linear(
        np.vstack(blocks), np.concatenate(right), bounds=(0, np.inf), tol=1e-14
    )
    return result.cost


def random_latents(network, n_rows, rng):
    hidden = [W.shape[1] for W in network.coefs[:-1]]
    return [np.abs(rng.normal(size=(n_rows, n))) for n in hidden]


@pytest.mark.parametrize("coordinate", [False, True])
@pytest.mark.parametrize("feedback", GAMMAS)
def test_sweeps_reach_the_minimum_of_an_independent_solver(feedback, coordinate):
    network, drive, Y = problem(0, feedback, coordinate=coordinate)
    free = Phase.feed_forward(network, drive)
    clamped = free.clamp(network, Y)
    for _ in range(3000):
        free.sweep(network)
        clamped.sweep(network)
    for i in range(len(Y)):
        expected = minimum(network, drive[i]), minimum(network, drive[i], Y[i])
        found = energy(network, free.r)[i], energy(network, clamped.r)[i]
        assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("coordinate", [False, True])
@pytest.mark.parametrize("feedback", GAMMAS)
def test_energy_never_rises_and_residuals_stay_those_of_the_activations(
    feedback, coordinate
):
    network, drive, Y = problem(1, feedback, scale=1.5, coordinate=coordinate)
    free = Phase.feed_forward(network, drive)
    for phase, target in ((free, None), (free.clamp(network, Y), Y)):
        before = energy(network, phase.r)
        for _ in range(20):
            phase.sweep(network)
            after = energy(network, phase.r)
            assert np.all(after <= before * (1 + 1e-12))
            before = after
        fresh = residuals(network, network.coefs, phase.z, drive, target)
        for updated, recomputed in zip(phase.r, fresh, strict=True):
            assert_allclose(updated, recomputed, atol=1e-11)
        assert all(np.all(layer >= 0) for layer in phase.z)


@pytest.mark.parametrize("feedback", GAMMAS)
@pytest.mark.parametrize("clamp", [False, True])
def test_gap_is_energy_minus_dual_at_any_activations(feedback, clamp):
    network, drive, Y = problem(2, feedback)
    z = random_latents(network, len(Y), np.random.default_rng(3))
    target = Y if clamp else None
    r = residuals(network, network.coefs, z, drive, target)
    slacks, mu, gap = dual_point(network, z, r)
    assert all(np.all(s >= 0) for s in slacks)
    dual = free_dual(network, mu, drive)
    if clamp:  # the terms of mu_{H+1} = r_H, which is also its own dual variable
        top = r[-1]
        dual = dual - np.sum(top * (0.5 * top + network.intercepts[-1] - Y), axis=1)
    assert_allclose(energy(network, r) - dual, gap.sum(axis=0), rtol=1e-9)
    optimum = [
        minimum(network, drive[i], Y[i] if clamp else None) for i in range(len(Y))
    ]
    assert np.all(dual <= np.array(optimum) + 1e-9)


def test_printed_sign_of_the_bias_would_break_weak_duality():
    # One unit, x = 0, b = 1: the minimum is 0, a dual with + lambda b reaches 1/2.
    theta = np.array([1.0, 1.0, 1.0, 0.0])
    network = build_network(theta, (1, 1, 1), 1.0, np.float64)
    drive = np.ones((1, 1))
    values = [free_dual(network, [np.full((1, 1), m)], drive) for m in (0.0, 1.0, 2.0)]
    assert max(values) == 0.0
    assert -0.5 + 1.0 > minimum(network, drive[0])


@pytest.mark.parametrize("feedback", GAMMAS)
def test_gap_is_of_second_order(feedback):
    network, drive, _ = problem(4, feedback)
    phase = Phase.feed_forward(network, drive)
    for _ in range(5000):
        phase.sweep(network)
    rng = np.random.default_rng(5)
    direction = [rng.normal(size=z.shape) for z in phase.z]
    gaps = []
    for size in (1e-3, 1e-4):
        z = [
            np.maximum(layer + size * d * (layer > 0), 0)
            for layer, d in zip(phase.z, direction, strict=True)
        ]
        r = residuals(network, network.coefs, z, drive)
        gaps.append(dual_point(network, z, r)[2].sum())
    assert_allclose(gaps[0] / gaps[1], 100.0, rtol=0.2)


def test_implied_activations_are_the_gradient_in_the_slacks():
    network, drive, Y = problem(6, 0.5)
    slacks = random_latents(network, len(Y), np.random.default_rng(7))
    v = implied_activations(network, multipliers(network, slacks), drive)

    def value():
        return -free_dual(network, multipliers(network, slacks), drive)[0]

    for k, layer in enumerate(slacks):
        for j in range(layer.shape[1]):
            layer[0, j] += 1e-5
            above = value()
            layer[0, j] -= 2e-5
            below = value()
            layer[0, j] += 1e-5
            slope = (above - below) / 2e-5
            assert_allclose(slope, network.weights[k] * v[k][0, j], rtol=1e-6)


def test_one_hidden_layer_is_feed_forward():
    network, drive, _ = problem(8, 0.3, sizes=(5, 6, 2))
    phase = Phase.feed_forward(network, drive)
    before = phase.z[0].copy()
    phase.sweep(network)
    assert_allclose(phase.z[0], before, atol=1e-15)
    assert_allclose(dual_point(network, phase.z, phase.r)[2], 0.0, atol=1e-15)


def test_two_hidden_layers_are_not():
    network, drive, _ = problem(9, 1.0)
    phase = Phase.feed_forward(network, drive)
    before = energy(network, phase.r)
    phase.sweep(network)
    assert np.any(energy(network, phase.r) < 0.99 * before)


def test_weights_follow_the_feedback():
    network, _, _ = problem(0, 0.5)
    assert_allclose(network.weights, [8.0, 4.0, 2.0, 1.0])
    assert problem(0, 1.0)[0].weights == [1.0] * 4


def test_unpack_gives_views_of_matrices_then_biases():
    theta = np.arange(2 * 3 + 3 + 3 * 1 + 1, dtype=float)
    coefs, intercepts = unpack(theta, (2, 3, 1))
    assert [W.shape for W in coefs] == [(2, 3), (3, 1)]
    assert intercepts[1][0] == theta[-1]
    assert all(np.shares_memory(part, theta) for part in (*coefs, *intercepts))


def test_spectral_norm():
    rng = np.random.default_rng(0)
    W, vector = rng.normal(size=(7, 5)), rng.normal(size=5)
    assert_allclose(spectral_norm(W, vector, 200), np.linalg.norm(W, 2), rtol=1e-8)
    assert spectral_norm(np.zeros((3, 2)), np.ones(2), 5) == 0.0
