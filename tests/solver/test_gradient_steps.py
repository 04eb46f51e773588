"""Gradient steps: lengths that are found, steps that are refused or made in part."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from parabola import START, At, Parabola

from sklearn_mm._solver.gradient_steps import (
    _AVERAGE_EVERY,
    _AVERAGE_SHARE,
    Adam,
    GradientDescent,
    MomentumDescent,
)
from sklearn_mm._solver.roles import Bounds, Inferred, Proposal, Trial

THETA, POINT, PROBLEM = START, At(START), Parabola()
CURVATURE = 8.0


def quadratic(problem, point, candidate, trial):
    return 0.5 * CURVATURE * float(candidate @ candidate)


def inferred(step, satisfied=True, gap=0.0, gap_curvature=CURVATURE, decrease=None):
    """What a step is asked to move on; `decrease` overrides what it proposes."""
    upper = quadratic(None, None, THETA, None)
    bounds = Bounds(upper, upper - gap, CURVATURE * THETA, gap_curvature)

    def propose(trial):
        if decrease is not None:
            return Proposal(decrease)
        return step.propose(PROBLEM, POINT, trial)

    return Inferred(Trial(bounds, 1.0, propose=propose), satisfied, 1.0)


def take(step, *args, **kwargs):
    return step.take(PROBLEM, POINT, inferred(step, *args, **kwargs))


def change(step, *args, **kwargs):
    return take(step, *args, **kwargs).point.theta - THETA


class TestGradientDescent:
    def test_length_fits_the_curvature(self):
        step = GradientDescent(quadratic)
        moved = take(step)
        # Halved from 2 until 1/L is met exactly, where the minimum is.
        assert step.step_size == 1.0 / CURVATURE
        assert moved.accepted
        assert_allclose(moved.point.theta, 0.0, atol=1e-15)
        assert moved.info["decrease"] == quadratic(None, None, THETA, None)
        assert moved.change == 1.0

    def test_length_grows_from_step_to_step(self):
        step = GradientDescent(quadratic, step_size=1e-3)
        for wanted in (2e-3, 4e-3, 8e-3):
            take(step)
            assert step.step_size == wanted

    def test_one_search_a_trial_and_no_growth_within_a_round(self):
        calls = []

        def counted(*arguments):
            calls.append(arguments)
            return quadratic(*arguments)

        step = GradientDescent(counted, step_size=1e-3)
        first, second = inferred(step), inferred(step)
        assert first.trial.decrease == first.trial.decrease
        assert len(calls) == 1
        assert second.trial.decrease == first.trial.decrease
        assert step.step_size == 2e-3
        moved = step.take(PROBLEM, POINT, second)
        assert_allclose(moved.point.theta, THETA - 2e-3 * CURVATURE * THETA)
        assert len(calls) == 2

    def test_points_in_between_are_not_made(self):
        """Candidates are thetas; the problem makes a point of the one that is taken."""
        made = []

        class Counting(Parabola):
            def at(self, theta):
                made.append(theta)
                return super().at(theta)

        step = GradientDescent(quadratic)
        moved = step.take(Counting(), POINT, inferred(step))
        assert len(made) == 1
        assert moved.point.theta is made[0]

    def test_no_length_at_all(self):
        step = GradientDescent(lambda *arguments: np.inf, max_halvings=5)
        moved = take(step)
        assert not moved.accepted
        assert moved.change == moved.info["decrease"] == 0.0
        assert moved.point is POINT

    def test_no_step_where_nothing_can_be_gained(self):
        bounds = Bounds(1.0, 1.0, np.zeros(2))
        step = GradientDescent(lambda *arguments: 1.0)
        trial = Trial(bounds, 1.0, None, lambda t: step.propose(PROBLEM, POINT, t))
        moved = step.take(PROBLEM, POINT, Inferred(trial, True, 1.0))
        assert not moved.accepted
        assert moved.change == moved.info["decrease"] == 0.0

    def test_half_a_step_on_a_bound_that_failed(self):
        step = GradientDescent(quadratic)
        moved = take(step, satisfied=False)
        assert_allclose(moved.point.theta, THETA / 2)
        assert moved.change == pytest.approx(0.5)  # in units of theta's norm


@pytest.mark.parametrize(
    ("gap", "decrease", "share"),
    # A gap that is nothing but rounding cannot be closed: the step is made in full.
    [(1.0, 0.2, 0.2), (1.0, 5.0, 0.5), (0.0, 0.0, 1.0)],
)
@pytest.mark.parametrize("make", [lambda: Adam(0.1), lambda: MomentumDescent(0.1)])
def test_part_of_a_stochastic_step(make, gap, decrease, share):
    whole = change(make(), gap=gap, decrease=decrease)
    part = change(make(), False, gap, decrease=decrease)
    assert_allclose(part, share * whole)


def test_momentum():
    step = MomentumDescent(0.1, power_t=0.5, momentum=0.5)
    g = CURVATURE * THETA
    first = change(step)
    assert_allclose(first, -0.1 * g)
    second = change(step)
    assert_allclose(second, 0.5 * first - 0.1 / np.sqrt(2.0) * g)


def test_plain_steps_are_the_default():
    step = MomentumDescent(0.1)
    for _ in range(3):
        assert_allclose(change(step), -0.1 * CURVATURE * THETA)


def test_adam():
    step = Adam(0.1)
    g, mean, square = CURVATURE * THETA, 0.0, 0.0
    for t in range(1, 4):
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
        rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        expected = -rate * mean / (np.sqrt(square) + 1e-8)
        assert_allclose(change(step), expected, rtol=1e-12)
    assert step.n_updates == 3


@pytest.mark.parametrize("step", [Adam(0.01), MomentumDescent(0.01, momentum=0.9)])
@pytest.mark.parametrize("satisfied", [True, False])
def test_change_of_a_stochastic_step_is_relative_to_theta(step, satisfied):
    for _ in range(2):
        moved = take(step, satisfied, gap=1.0)
        expected = np.linalg.norm(moved.point.theta - THETA) / np.linalg.norm(THETA)
        assert_allclose(moved.change, expected, rtol=1e-12)


def test_yardstick_of_the_stochastic_criterion():
    g, gap = CURVATURE * THETA, 2.0
    # Two tests in one: the gap, and what it leaves in the gradient, relative to g.
    found = inferred(Adam(0.1), gap=gap).trial.decrease
    assert found == g @ g / 2 * gap / CURVATURE
    for curvature in (0.0, gap):
        trial = inferred(Adam(0.1), gap=gap, gap_curvature=curvature).trial
        assert trial.decrease == g @ g / 2


def test_average_is_of_the_last_updates():
    step = MomentumDescent(0.1, average=True)
    at, thetas = THETA, []
    for _ in range(200):
        at = at + change(step)
        thetas.append(at)
    found = step.averaged(at)
    assert found is not at
    # Thetas of `change` are all one step from THETA: so is their average.
    assert_allclose(found, THETA - 0.1 * CURVATURE * THETA)
    assert MomentumDescent(0.1).averaged(at) is at


@pytest.mark.parametrize("n_steps", [1, 3, 4, 7, 40])
def test_averages_are_of_one_update_in_a_few_if_wanted(n_steps):
    averaging, plain = MomentumDescent(0.1, average=True), MomentumDescent(0.1)
    mean, at = None, START
    for t in range(1, n_steps + 1):
        steps = [
            step.take(PROBLEM, At(at), inferred(step)) for step in (averaging, plain)
        ]
        at = (1.0 + 0.1 * t) * steps[0].point.theta  # a path of its own
        assert_array_equal(steps[0].point.theta, steps[1].point.theta)
        if t % _AVERAGE_EVERY == 0:
            taken = steps[0].point.theta
            keep = (1.0 - 1.0 / (_AVERAGE_SHARE * t + 1.0)) ** _AVERAGE_EVERY
            mean = taken if mean is None else keep * mean + (1.0 - keep) * taken
    assert plain.averaged(at) is at
    assert_allclose(averaging.averaged(at), at if mean is None else mean)


def test_only_plain_steps_make_the_decrease_that_they_promise():
    assert GradientDescent.guaranteed
    assert not (Adam.guaranteed or MomentumDescent.guaranteed)
