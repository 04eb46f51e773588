"""Two runs after each other: who hands over, and who ends it all."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from parabola import START, At, GradientStep, Parabola

from sklearn_mm._solver.history import History
from sklearn_mm._solver.loop import Monitor, Status
from sklearn_mm._solver.roles import Bounds, Moved
from sklearn_mm._solver.stages import Stage, run_stages
from sklearn_mm.criteria import Criterion, Fixed, RelaxedGeneralized


class Loosened(Parabola):
    """The parabola, with a gap that effort 1 closes."""

    def infer(self, point, latent, effort):
        return effort

    def evaluate(self, point, latent):
        objective = float(point.theta @ point.theta) / 2
        return Bounds(objective + (1.0 - latent) ** 2, objective, point.theta)

    def upper_at(self, point, effort):
        return self.evaluate(point, effort).upper


class Stuck(GradientStep):
    """Every step is refused."""

    def take(self, problem, point, inferred):
        return Moved(point, 0.0, accepted=False)


class Stop(Monitor):
    def end(self, point, record):
        return True


class Ends(Criterion):
    """Converges in a given round."""

    def __init__(self, at):
        vars(self).update(at=at)

    def satisfied(self, trial, memory):
        return True

    def converged(self, trial, moved, memory, tol):
        return memory.iteration + 1 == self.at


def stage(criterion, effort=1.0, step=None, **kwargs):
    step = GradientStep() if step is None else step
    return Stage(Loosened(), criterion, step, 1e-6, effort, **kwargs)


def run(first, last, budget=50, **kwargs):
    history = History()
    result = run_stages(first, last, At(START), history, budget, **kwargs)
    return result, history.to_bunch()


LAST = stage(Fixed(1.0))


def test_the_last_stage_alone():
    result, history = run(None, LAST)
    assert result.status is Status.CONVERGED
    assert_array_equal(history.effort, 1.0)
    assert_array_equal(history.gap, 0.0)


def test_a_converged_stage_hands_over_its_point():
    result, history = run(stage(Ends(3), effort=0.5), LAST)
    assert result.status is Status.CONVERGED
    # Steps of length 1/2 halve theta: nothing is made twice or left out.
    wanted = 2.0 ** -np.arange(len(history.effort)) * np.linalg.norm(START)
    found = np.sqrt(2 * history.lower_bound)
    np.testing.assert_allclose(found, wanted)
    assert np.all(history.effort[:3] < 1.0)
    assert_array_equal(history.effort[3:], 1.0)


@pytest.mark.parametrize("effort", [0.0, 0.5, 1.0])
def test_the_first_previous_bound_is_that_of_the_effort(effort):
    _, history = run(stage(RelaxedGeneralized(), effort), LAST)
    assert history.previous_upper[0] == Loosened().upper_at(At(START), effort)
    # The exact stage starts with a memory of its own, from exact latents.
    exact = np.flatnonzero(history.effort < 1.0)[-1] + 1
    assert history.previous_upper[exact] == history.lower_bound[exact]


def test_a_stalled_stage_hands_over_as_well():
    result, history = run(stage(Fixed(0.5), 0.5, Stuck()), LAST, max_rejected=2)
    assert result.status is Status.CONVERGED
    assert_array_equal(history.accepted[:3], 0)
    assert history.accepted[3:].all()


def test_a_stage_that_is_stopped_ends_it_all():
    result, history = run(stage(Fixed(0.5), 0.5, monitor=Stop()), LAST)
    assert result.status is Status.STOPPED
    assert len(history.effort) == 1


def test_a_budget_for_both():
    result, history = run(stage(Fixed(0.5), 0.5), LAST, budget=4)
    assert result.status is Status.MAX_ITER
    assert len(history.effort) == 4
    # Converged, but there is nothing left for exact latents.
    result, history = run(stage(Ends(4), 0.5), LAST, budget=4)
    assert result.status is Status.MAX_ITER
    assert len(history.effort) == 4
    result, history = run(stage(Ends(2), 0.5), LAST, budget=5)
    assert result.status is Status.MAX_ITER
    assert len(history.effort) == 5


def test_points_are_mapped_between_the_stages():
    def between(point):
        return At(point.theta + 7.0)

    result, history = run(stage(Ends(2), 0.5), LAST, between=between)
    theta = START / 4 + 7.0
    np.testing.assert_allclose(history.lower_bound[2], theta @ theta / 2)
    # Also where the run ends before.
    stopped = stage(Fixed(0.5), 0.5, monitor=Stop())
    result, _ = run(stopped, LAST, between=between)
    np.testing.assert_allclose(result.point.theta, START / 2 + 7.0)


@pytest.mark.parametrize("interruptible", [False, True])
@pytest.mark.parametrize("at", ["first", "last"])
def test_interrupts(interruptible, at):
    class Interrupted(GradientStep):
        calls = 0

        def take(self, problem, point, inferred):
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().take(problem, point, inferred)

    if at == "first":
        stages = stage(Fixed(0.5), 0.5, Interrupted()), LAST
    else:
        stages = stage(Ends(4), 0.5), stage(Fixed(1.0), step=Interrupted())
    if not interruptible:
        with pytest.raises(KeyboardInterrupt):
            run(*stages)
        return
    result, history = run(*stages, interruptible=True)
    assert result.status is Status.INTERRUPTED
    assert len(history.effort) == (2 if at == "first" else 6)
    np.testing.assert_allclose(result.point.theta, START * 2.0 ** -len(history.effort))
