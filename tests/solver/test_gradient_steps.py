"""Gradient steps: lengths that are found, steps that are refused or made in part."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mm._solver.gradient_steps import Adam, GradientDescent, MomentumDescent
from sklearn_mm._solver.roles import Bounds, Inferred, Trial

THETA = np.array([3.0, -1.0])
CURVATURE = 8.0


def quadratic(problem, theta, candidate, trial):
    return 0.5 * CURVATURE * float(candidate @ candidate)


def inferred(satisfied=True, gap=0.0, decrease=1.0, gap_curvature=CURVATURE):
    upper = quadratic(None, None, THETA, None)
    bounds = Bounds(upper, upper - gap, CURVATURE * THETA, gap_curvature)
    trial = Trial(bounds, 1.0, _decrease=lambda: decrease)
    return Inferred(trial, satisfied, 1.0)


class TestGradientDescent:
    def test_length_fits_the_curvature(self):
        step = GradientDescent(quadratic)
        moved = step(None, THETA, inferred())
        # Halved from 2 until 1/L is met exactly, where the minimum is.
        assert step.step_size == 1.0 / CURVATURE
        assert moved.accepted
        assert_allclose(moved.theta, 0.0, atol=1e-15)
        assert moved.info["decrease"] == quadratic(None, None, THETA, None)
        assert moved.change == 1.0

    def test_length_grows_from_step_to_step(self):
        step = GradientDescent(quadratic, step_size=1e-3)
        for wanted in (2e-3, 4e-3, 8e-3):
            step(None, THETA, inferred())
            assert step.step_size == wanted

    def test_one_search_a_trial_and_no_growth_within_a_round(self):
        calls = []

        def counted(*arguments):
            calls.append(arguments)
            return quadratic(*arguments)

        step = GradientDescent(counted, step_size=1e-3)
        first, second = inferred(), inferred()
        step.decrease(None, THETA, first.trial)
        step.decrease(None, THETA, first.trial)
        assert len(calls) == 1
        step.decrease(None, THETA, second.trial)
        assert step.step_size == 2e-3
        assert_allclose(
            step(None, THETA, second).theta, THETA - 2e-3 * CURVATURE * THETA
        )
        assert len(calls) == 2

    def test_no_length_at_all(self):
        step = GradientDescent(lambda *arguments: np.inf, max_halvings=5)
        moved = step(None, THETA, inferred())
        assert not moved.accepted
        assert moved.change == moved.info["decrease"] == 0.0
        assert_array_equal(moved.theta, THETA)

    def test_no_step_where_nothing_can_be_gained(self):
        bounds = Bounds(1.0, 1.0, np.zeros(2))
        found = Inferred(Trial(bounds, 1.0), True, 1.0)
        moved = GradientDescent(lambda *arguments: 1.0)(None, THETA, found)
        assert not moved.accepted
        assert moved.change == moved.info["decrease"] == 0.0

    def test_half_a_step_on_a_bound_that_failed(self):
        step = GradientDescent(quadratic)
        moved = step(None, THETA, inferred(satisfied=False))
        assert_allclose(moved.theta, THETA / 2)
        assert moved.change == pytest.approx(0.5)  # in units of theta's norm


@pytest.mark.parametrize(
    ("gap", "decrease", "share"),
    [(1.0, 0.2, 0.2), (1.0, 5.0, 0.5), (0.0, 0.0, 0.5)],
)
@pytest.mark.parametrize("make", [lambda: Adam(0.1), lambda: MomentumDescent(0.1)])
def test_part_of_a_stochastic_step(make, gap, decrease, share):
    whole = make()(None, THETA, inferred(gap=gap, decrease=decrease)).theta - THETA
    trial = inferred(False, gap, decrease)
    part = make()(None, THETA, trial).theta - THETA
    assert_allclose(part, share * whole)


def test_momentum():
    step = MomentumDescent(0.1, power_t=0.5, momentum=0.5)
    g = CURVATURE * THETA
    first = step(None, THETA, inferred()).theta - THETA
    assert_allclose(first, -0.1 * g)
    second = step(None, THETA, inferred()).theta - THETA
    assert_allclose(second, 0.5 * first - 0.1 / np.sqrt(2.0) * g)


def test_plain_steps_are_the_default():
    step = MomentumDescent(0.1)
    for _ in range(3):
        change = step(None, THETA, inferred()).theta - THETA
        assert_allclose(change, -0.1 * CURVATURE * THETA)


def test_adam():
    step = Adam(0.1)
    g, mean, square = CURVATURE * THETA, 0.0, 0.0
    for t in range(1, 4):
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
        rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        moved = step(None, THETA, inferred())
        assert_allclose(
            moved.theta - THETA, -rate * mean / (np.sqrt(square) + 1e-8), rtol=1e-12
        )
    assert step.n_updates == 3


def test_yardstick_of_the_stochastic_criterion():
    g, gap = CURVATURE * THETA, 2.0
    # gap_curvature is the sum of L times gap over the places where the gap arose.
    found = Adam(0.1).decrease(None, THETA, inferred(gap=gap).trial)
    assert found == g @ g / 2 * gap / CURVATURE
    # Without a gap there is no error to compare.
    assert Adam(0.1).decrease(None, THETA, inferred().trial) == np.inf
    flat = inferred(gap=gap, gap_curvature=0.0)
    assert Adam(0.1).decrease(None, THETA, flat.trial) == np.inf
