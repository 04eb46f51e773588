"""The loop, on a problem small enough to know everything about."""

import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from parabola import START, At, GradientStep, Parabola, run

from sklearn_mm._solver.history import History
from sklearn_mm._solver.inference import Continuation, DoublingRestart
from sklearn_mm._solver.loop import Monitor, Status, minimize
from sklearn_mm._solver.roles import Bounds, Memory, Moved, Trial
from sklearn_mm.criteria import (
    Fixed,
    RelaxedGeneralized,
    SufficientDescent,
)


class Infinite(Parabola):
    """No bound is finite."""

    def evaluate(self, point, latent):
        return Bounds(np.inf, 0.0, np.zeros(2))


class TestLoop:
    def test_sudemm_decreases_as_guaranteed(self):
        rho = 0.5
        inference = DoublingRestart(SufficientDescent(rho), effort=1)
        _, history = run(inference, max_iter=25, tol=0.0)
        theta = START
        for lower in history.lower_bound:
            gradient = theta
            new = theta - 0.5 * gradient
            # J(new) <= lower bound before - (1 - rho) / (2 L) |g|**2, with L = 2.
            assert new @ new / 2 <= lower - (1 - rho) / 4 * gradient @ gradient + 1e-12
            theta = new

    def test_regemm_telescopes(self):
        eta = 0.5
        inference = DoublingRestart(RelaxedGeneralized(eta))
        _, history = run(inference, max_iter=25, tol=0.0)
        c = history.previous_upper - history.lower_bound
        total = (history.previous_upper[0] - history.upper_bound[-1]) / eta
        assert np.all(c >= 0)
        assert c.sum() <= total + 1e-12
        assert np.all(np.diff(history.upper_bound) <= 1e-12)

    def test_max_iter(self):
        result, history = run(Continuation(Fixed(3)), max_iter=4, tol=0.0)
        assert result.status is Status.MAX_ITER
        assert result.n_iter == 4 == len(history.effort)

    def test_monitor_hears_every_epoch_and_can_stop(self):
        class Stopper(Monitor):
            begun = ended = 0

            def begin(self):
                self.begun += 1

            def end(self, point, record):
                self.ended += 1
                assert isinstance(point, At)
                assert record["upper_bound"] >= record["lower_bound"]
                return self.ended == 3

        monitor = Stopper()
        result, _ = run(Continuation(Fixed(3)), tol=0.0, monitor=monitor)
        assert result.status is Status.STOPPED
        assert monitor.begun == monitor.ended == result.n_iter == 3

    def test_batches_make_an_epoch(self):
        def batches():
            return [slice(0, 4), slice(4, 8)]

        result, history = run(
            Continuation(Fixed(3)), max_iter=5, tol=0.0, batches=batches
        )
        assert result.n_iter == 5
        assert len(history.effort) == 10

    def test_rejected_steps_keep_the_bound_and_end_the_run(self):
        class Stuck(GradientStep):
            def take(self, problem, point, inferred):
                return Moved(point, 0.0, accepted=False)

        history = History()
        result = minimize(
            Parabola(),
            At(np.ones(1)),
            inference=Continuation(Fixed(2)),
            step=Stuck(),
            memory=Memory.start(10.0),
            history=history,
            max_iter=100,
            tol=1.0,
            max_rejected=4,
        )
        assert result.status is Status.STALLED
        assert result.n_iter == 5
        assert_array_equal(history.to_bunch().previous_upper, 10.0)

    def test_a_bound_that_overflows_ends_the_run_at_the_theta_before(self):
        steps, history = [], History()

        class Climbing(GradientStep):
            def take(self, problem, point, inferred):
                steps.append(point.theta)
                return super().take(problem, point, inferred)

        with np.errstate(over="ignore"):
            result = minimize(
                Parabola(),
                At(np.array([0.03, -0.01])),
                inference=Continuation(Fixed(60)),
                step=Climbing(-1.0),
                memory=Memory.start(1e-3),
                history=history,
                max_iter=2000,
                tol=None,
            )
        assert result.status is Status.DIVERGED
        assert result.n_iter == len(steps) + 1
        assert_array_equal(result.point.theta, steps[-1])
        # All that is on record is finite.
        assert len(history) == len(steps)
        assert np.isfinite(history.to_bunch().upper_bound).all()

    def test_a_start_without_finite_bounds_is_returned_as_it_is(self):
        result, history = run(Continuation(Fixed(3)), problem=Infinite())
        assert result.status is Status.DIVERGED
        assert result.n_iter == 1
        assert_array_equal(result.point.theta, START)
        assert not history

    def test_monitor_hears_of_every_update_before_the_step(self):
        heard = []

        class Listener(Monitor):
            def inferred(self, point, inferred):
                heard.append((point, inferred))

        class Checked(GradientStep):
            def take(self, problem, point, inferred):
                assert heard[-1] == (point, inferred)
                return super().take(problem, point, inferred)

        run(
            Continuation(Fixed(3)),
            max_iter=4,
            tol=0.0,
            step=Checked(),
            monitor=Listener(),
            batches=lambda: [slice(0, 4), slice(4, 8)],
        )
        assert len(heard) == 8

    def test_points_are_handed_on_as_they_are(self):
        """What a step knows at the next theta is not computed again."""
        seen = []

        class Seeing(Continuation):
            def __call__(self, problem, point, batch, memory, step):
                seen.append(point)
                return super().__call__(problem, point, batch, memory, step)

        class Made(GradientStep):
            def take(self, problem, point, inferred):
                moved = super().take(problem, point, inferred)
                made.append(moved.point)
                return moved

        made = []
        result, _ = run(Seeing(Fixed(3)), max_iter=4, tol=0.0, step=Made())
        assert all(a is b for a, b in zip(seen[1:], made, strict=False))
        assert result.point is made[-1]

    @pytest.mark.parametrize("at", [1, 3])
    @pytest.mark.parametrize("options", [{}, {"interruptible": True}])
    def test_interrupts_are_raised_unless_a_finished_update_is_asked_for(
        self, options, at
    ):
        steps = []

        class Interrupted(GradientStep):
            def take(self, problem, point, inferred):
                steps.append(point.theta)
                if len(steps) == at:
                    raise KeyboardInterrupt
                return super().take(problem, point, inferred)

        def interrupted():
            return run(Continuation(Fixed(3)), step=Interrupted(), **options)[0]

        if not options or at == 1:
            with pytest.raises(KeyboardInterrupt):
                interrupted()
        else:
            result = interrupted()
            assert result.status is Status.INTERRUPTED
            assert result.n_iter == at - 1
            assert_array_equal(result.point.theta, steps[-1])

    def test_history_tells_epochs_and_seconds(self):
        begin = time.perf_counter()
        result, history = run(
            Continuation(Fixed(1)),
            max_iter=3,
            tol=None,
            batches=lambda: [slice(0, 4), slice(4, 8)],
        )
        elapsed = time.perf_counter() - begin
        assert result.status is Status.MAX_ITER
        assert history.epoch.tolist() == [0, 0, 1, 1, 2, 2]
        assert np.all(np.diff(history.time, prepend=0.0) >= 0.0)
        assert history.time[-1] <= elapsed
        assert_array_equal(history.gap, history.upper_bound - history.lower_bound)

    @pytest.mark.parametrize("unit", [1.0, 4.0, 1e300])
    def test_history_in_other_units(self, unit):
        _, plain = run(Continuation(Fixed(1)), max_iter=3, tol=None)
        history = History()
        minimize(
            Parabola(),
            At(START),
            inference=Continuation(Fixed(1)),
            step=GradientStep(),
            memory=Memory.start(10.0),
            history=history,
            max_iter=3,
            tol=None,
        )
        history._columns["decrease"] = [1.0, 2.0, 1e20]  # some steps tell it
        found = history.to_bunch(unit)
        assert found.keys() == plain.keys() | {"decrease"}
        objectives = {"upper_bound", "lower_bound", "gap", "previous_upper"}
        for name in plain.keys() - {"time"}:
            factor = unit if name in objectives else 1.0
            assert_array_equal(found[name], plain[name] * factor)
        # Where a number overflows, that is no warning.
        expected = [unit, 2 * unit, np.inf if unit > 1e290 else 1e20 * unit]
        assert_array_equal(found.decrease, expected)
        # The record itself stays as it is.
        assert_array_equal(history.to_bunch().upper_bound, plain.upper_bound)

    def test_epochs_elsewhere(self):
        """They end a run only if they say so, and are recorded when they arrive."""
        history, sent = History(), []

        def elsewhere(progress):
            there = History()
            minimize(
                Parabola(),
                progress.point,
                inference=Continuation(Fixed(1)),
                step=GradientStep(),
                memory=progress.memory,
                history=there,
                max_iter=2,
                tol=None,
            )
            sent.append(time.perf_counter() - history._start)
            history.extend(there)
            return True

        result = minimize(
            Parabola(),
            At(START),
            inference=Continuation(Fixed(1)),
            step=GradientStep(),
            memory=Memory.start(10.0),
            history=history,
            max_iter=3,
            tol=1e9,
            epoch_elsewhere=elsewhere,
        )
        assert result.status is Status.MAX_ITER
        found = history.to_bunch()
        assert found.epoch.tolist() == [0, 0, 1, 1, 2, 2]
        arrived = found.time.reshape(3, 2)
        assert_array_equal(arrived[:, 0], arrived[:, 1])
        assert np.all(arrived[:, 0] >= sent)
        assert np.all(arrived[:-1, 0] <= sent[1:])

    def test_nothing_recorded(self):
        assert not History().to_bunch(3.0)
        assert len(History()) == 0

    def test_memory(self):
        trial = Trial(Bounds(3.0, 1.0), 1.0)
        memory = Memory.start(5.0)
        assert memory == Memory(5.0, 5.0, iteration=0, rejected=0)
        memory = memory.after(trial, False).after(trial, False)
        assert memory == Memory(5.0, 5.0, iteration=2, rejected=2)
        assert memory.after(trial, True) == Memory(3.0, 5.0, iteration=3, rejected=0)


def test_bounds_add_up():
    first = Bounds(3.0, 1.0, np.ones(2), 5.0)
    second = Bounds(1.0, 0.5, np.ones(2), 0.5)
    total = first + second
    assert total.gap_curvature == 5.5
    assert (total.upper, total.lower, total.gap) == (4.0, 1.5, 2.5)
    assert_allclose(total.gradient, 2.0)
    assert (first + Bounds(1.0, 1.0)).gradient is None
    other = Bounds(1.0, 1.0) + first
    assert other.gradient is None
    assert other.gap_curvature == 5.0
