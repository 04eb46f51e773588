"""The loop and its parts, on a problem small enough to know everything about."""

import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mm import HalfQuadraticRobustRegressor
from sklearn_mm._core._chunks import map_chunks, row_chunks
from sklearn_mm._core._history import History
from sklearn_mm._core._inference import (
    Continuation,
    DoublingRestart,
    EffortBisection,
    accumulate_chunks,
)
from sklearn_mm._core._loop import Status, minimize
from sklearn_mm._core._protocols import Bounds, Memory, Monitor, Moved, Trial
from sklearn_mm._core._steps import SurrogateMinimizer
from sklearn_mm.criteria import (
    Criterion,
    Fixed,
    Graduated,
    RelaxedGeneralized,
    SufficientDescent,
)
from sklearn_mm.kernels import Tukey


@dataclass(frozen=True)
class Parabola:
    """J(theta) = |theta|**2 / 2, bounded with a gap of 2**-effort on every row.

    The latent is the number of passes made, so that gap and work can be told exactly.
    """

    n_samples: int = 8
    total: int = 0  # where these rows are a part

    def start(self, rows):
        return (rows, 0.0)

    def infer(self, theta, latent, effort):
        return (latent[0], latent[1] + effort)

    def map_parts(self, function, theta, chunks, n_jobs, *arguments):
        for chunk in chunks:
            size = len(range(self.n_samples)[chunk])
            part = replace(self, n_samples=size, total=self.n_samples)
            yield function(part, theta, *arguments)

    def evaluate(self, theta, latent):
        rows, passes = latent
        share = len(range(self.n_samples)[rows]) / (self.total or self.n_samples)
        objective = share * float(theta @ theta) / 2
        gap = share * 2.0**-passes
        return Bounds(objective + gap / 2, objective - gap / 2, share * theta)


@dataclass
class GradientStep:
    """A plain gradient step of length 1/L, with L = 2 known."""

    step_size: float = 0.5

    def decrease(self, problem, theta, trial):
        gradient = trial.bounds.gradient
        return self.step_size / 2 * float(gradient @ gradient)

    def __call__(self, problem, theta, inferred):
        new = theta - self.step_size * inferred.trial.bounds.gradient
        return Moved(new, float(np.linalg.norm(new - theta)))


def run(inference, max_iter=200, tol=1e-6, step=None, **kwargs):
    history = History()
    result = minimize(
        Parabola(),
        np.array([3.0, -1.0]),
        inference=inference,
        step=GradientStep() if step is None else step,
        memory=Memory.start(10.0),
        history=history,
        max_iter=max_iter,
        tol=tol,
        **kwargs,
    )
    return result, history.to_bunch()


whole = [slice(0, 8)]
halves = [slice(0, 3), slice(3, 8)]


class TestStrategies:
    @pytest.mark.parametrize("chunks", [whole, halves])
    @pytest.mark.parametrize(
        "criterion", [SufficientDescent(0.5), RelaxedGeneralized(0.5, 0.75)]
    )
    def test_doubling_meets_the_criterion_within_four_times_the_least(
        self, criterion, chunks
    ):
        inference = DoublingRestart(criterion, accumulate_chunks(chunks))
        result, history = run(inference)
        assert result.status is Status.CONVERGED
        assert history.satisfied.all()
        # Restarting from one pass: 1 + 2 + ... + R < 2 R, and R < 2 * least.
        assert np.all(history.work < 2 * history.effort)
        assert np.all(history.lower_bound <= history.upper_bound)

    def test_doubling_reports_a_cap(self):
        inference = DoublingRestart(
            SufficientDescent(1e-9), accumulate_chunks(whole), max_effort=6
        )
        _, history = run(inference, max_iter=1)
        assert not history.satisfied[0]
        assert history.effort[0] == 6

    def test_continuation_remembers_and_can_shrink(self):
        inference = Continuation(SufficientDescent(0.5))
        _, history = run(inference, max_iter=30, tol=0.0)
        assert history.satisfied.all()
        # Passes are kept, so the work is the effort itself.
        assert_array_equal(history.work, history.effort)
        # The gradient shrinks, so more and more passes are needed; after the first
        # update one test is enough or the effort grows by half.
        assert history.effort[-1] > history.effort[0]

    def test_continuation_reports_a_cap(self):
        inference = Continuation(SufficientDescent(1e-12), max_effort=5)
        _, history = run(inference, max_iter=1)
        assert not history.satisfied[0]
        assert history.effort[0] == 5

    @pytest.mark.parametrize("kind", ["doubling", "continuation"])
    def test_prescribed_effort_is_made(self, kind):
        criterion = Fixed(7)
        inference = (
            DoublingRestart(criterion, accumulate_chunks(whole))
            if kind == "doubling"
            else Continuation(criterion)
        )
        _, history = run(inference, max_iter=3)
        assert_array_equal(history.effort, [7, 7, 7])


@dataclass(frozen=True)
class Loosened:
    """Bounds with upper = 1 + (1 - effort)**2 above a lower bound of 1."""

    def start(self, rows):
        return None

    def infer(self, theta, latent, effort):
        return effort

    def evaluate(self, theta, latent):
        return Bounds(1.0 + (1.0 - latent) ** 2, 1.0)

    def minimize_upper(self, theta, latent):
        return theta, 0.1, 1.0


def search(criterion, previous, effort=1.0):
    inference = EffortBisection(criterion, effort=effort)
    return inference(
        Loosened(),
        np.zeros(1),
        slice(None),
        Memory.start(previous),
        SurrogateMinimizer(),
    )


class TestBisection:
    @given(previous=st.floats(1.001, 1.9), effort=st.floats(0.0, 1.0))
    def test_window_is_hit(self, previous, effort):
        criterion = RelaxedGeneralized(0.5, 0.75)
        inferred = search(criterion, previous, effort)
        assert inferred.satisfied
        assert not criterion.excessive(inferred.trial, Memory.start(previous))

    def test_zero_effort_when_even_that_is_tight(self):
        inferred = search(RelaxedGeneralized(0.5, 0.75), previous=100.0)
        assert inferred.satisfied
        assert inferred.trial.effort == 0.0

    def test_exact_latents_when_nothing_less_will_do(self):
        inferred = search(RelaxedGeneralized(0.5, 0.75), previous=1.0)
        assert inferred.trial.effort == pytest.approx(1.0, abs=1e-2)
        assert inferred.satisfied

    def test_impossible_criterion_ends_at_exact_latents(self):
        class Never(Criterion):
            def satisfied(self, trial, memory):
                return False

        inferred = search(Never(), previous=0.5)
        assert inferred.trial.effort == 1.0
        assert not inferred.satisfied

    def test_regemm_after_a_step_that_raised_the_objective(self):
        # No effort brings the bound (at least 1) below the previous 0.5; a gap of half
        # of the rise is asked for instead.
        inferred = search(RelaxedGeneralized(0.5, 0.75), previous=0.5)
        assert inferred.satisfied
        assert inferred.trial.gap <= 0.25

    @given(rho=st.floats(0.01, 0.99))
    def test_sudemm_takes_the_largest_gap_allowed(self, rho):
        inferred = search(SufficientDescent(rho), previous=10.0)
        assert 0.85 * rho * 0.1 <= inferred.trial.gap <= rho * 0.1

    def test_unsatisfied_at_zero_effort_ends(self):
        # A criterion that holds in the middle only: the search must not cycle.
        class Middle(Criterion):
            def satisfied(self, trial, memory):
                return trial.effort > 1e-6

            def excessive(self, trial, memory):
                return True

        inferred = search(Middle(), previous=1.0)
        assert inferred.satisfied
        assert inferred.work < 60

    def test_graduated_prescribes(self):
        criterion = Graduated(n_levels=3, n_iter_per_level=2)
        efforts = [
            criterion.prescribe(Memory(1.0, 1.0, iteration)) for iteration in range(9)
        ]
        assert efforts == [1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 2, 1 / 2, 1, 1, 1]
        inferred = search(criterion, previous=1.0)
        assert inferred.trial.effort == 1 / 8
        assert inferred.satisfied and inferred.prescribed


class TestLoop:
    def test_sudemm_decreases_as_guaranteed(self):
        rho = 0.5
        inference = DoublingRestart(
            SufficientDescent(rho), accumulate_chunks(whole), effort=1
        )
        _, history = run(inference, max_iter=25, tol=0.0)
        theta = np.array([3.0, -1.0])
        for lower in history.lower_bound:
            gradient = theta
            new = theta - 0.5 * gradient
            # J(new) <= lower bound before - (1 - rho) / (2 L) |g|**2, with L = 2.
            assert new @ new / 2 <= lower - (1 - rho) / 4 * gradient @ gradient + 1e-12
            theta = new

    def test_regemm_telescopes(self):
        eta = 0.5
        inference = DoublingRestart(RelaxedGeneralized(eta), accumulate_chunks(whole))
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

            def end(self, theta, record):
                self.ended += 1
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
            def __call__(self, problem, theta, inferred):
                return Moved(theta, 0.0, accepted=False)

        history = History()
        result = minimize(
            Parabola(),
            np.ones(1),
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

    def test_sound_parameters_are_those_before_the_bound_blew_up(self):
        steps, first_upper = [], 1e-3
        theta = np.array([0.03, -0.01])

        class Climbing(GradientStep):
            def __call__(self, problem, theta, inferred):
                steps.append(theta)
                return super().__call__(problem, theta, inferred)

        def climb(max_iter):
            steps.clear()
            return minimize(
                Parabola(),
                theta,
                inference=Continuation(Fixed(60)),
                step=Climbing(-1.0),
                memory=Memory.start(first_upper),
                history=History(),
                max_iter=max_iter,
                tol=None,
            )

        result = climb(20)
        uppers = [x @ x / 2 for x in steps]
        last = max(i for i, upper in enumerate(uppers) if upper <= 10 * first_upper)
        assert 0 < last < 19
        assert_array_equal(result.sound, steps[last])
        assert_array_equal(climb(2).sound, steps[1])
        # A bound that overflows ends the run there.
        with np.errstate(over="ignore"):
            result = climb(2000)
        assert result.status is Status.DIVERGED
        assert result.n_iter == len(steps) + 1
        assert_array_equal(result.theta, steps[last])

    @pytest.mark.parametrize("at", [1, 3])
    @pytest.mark.parametrize("options", [{}, {"interruptible": True}])
    def test_interrupts_are_raised_unless_a_finished_update_is_asked_for(
        self, options, at
    ):
        steps = []

        class Interrupted(GradientStep):
            def __call__(self, problem, theta, inferred):
                steps.append(theta)
                if len(steps) == at:
                    raise KeyboardInterrupt
                return super().__call__(problem, theta, inferred)

        def interrupted():
            return run(Continuation(Fixed(3)), step=Interrupted(), **options)[0]

        if not options or at == 1:
            with pytest.raises(KeyboardInterrupt):
                interrupted()
        else:
            result = interrupted()
            assert result.status is Status.INTERRUPTED
            assert result.n_iter == at - 1
            assert_array_equal(result.theta, steps[-1])

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

    def test_memory(self):
        trial = Trial(Bounds(3.0, 1.0), 1.0)
        memory = Memory.start(5.0)
        assert memory == Memory(5.0, 5.0, iteration=0, rejected=0)
        memory = memory.after(trial, False).after(trial, False)
        assert memory == Memory(5.0, 5.0, iteration=2, rejected=2)
        assert memory.after(trial, True) == Memory(3.0, 5.0, iteration=3, rejected=0)


class TestCriteria:
    def test_schedule_of_rho(self):
        criterion = SufficientDescent(0.4, power_t=2.0)
        assert criterion.rho_at(0) == 0.4
        assert criterion.rho_at(1) == pytest.approx(0.1)

    def test_graduated_does_not_stop_early(self):
        criterion = Graduated(n_levels=2, n_iter_per_level=3)
        moved = Moved(np.zeros(1), change=0.0)
        assert not criterion.converged(None, moved, Memory(1.0, 1.0, 5), 1e-3)
        assert criterion.converged(None, moved, Memory(1.0, 1.0, 6), 1e-3)

    @pytest.mark.parametrize(
        ("cls", "params", "name"),
        [
            (RelaxedGeneralized, {"eta": 5}, "eta"),
            (RelaxedGeneralized, {"eta": 0.0}, "eta"),
            (RelaxedGeneralized, {"eta": 1.0}, "eta"),
            (RelaxedGeneralized, {"eta": np.nan}, "eta"),
            (RelaxedGeneralized, {"eta": "half"}, "eta"),
            (RelaxedGeneralized, {"eta": 0.5, "eta_prime": 0.5}, "eta_prime"),
            (RelaxedGeneralized, {"eta_prime": 1.1}, "eta_prime"),
            (SufficientDescent, {"rho": -1}, "rho"),
            (SufficientDescent, {"rho": 0.0}, "rho"),
            (SufficientDescent, {"rho": np.inf}, "rho"),
            (SufficientDescent, {"power_t": -0.5}, "power_t"),
            (SufficientDescent, {"power_t": None}, "power_t"),
            (Fixed, {"effort": -1}, "effort"),
            (Fixed, {"effort": np.nan}, "effort"),
            (Fixed, {"effort": "all"}, "effort"),
            (Graduated, {"n_iter_per_level": 0}, "n_iter_per_level"),
            (Graduated, {"n_iter_per_level": 2.0}, "n_iter_per_level"),
            (Graduated, {"n_levels": -1}, "n_levels"),
        ],
    )
    def test_parameters_are_checked(self, cls, params, name):
        value = params[name]
        with pytest.raises(ValueError, match=f"{cls.__name__}: {name} must be") as told:
            cls(**params)
        assert str(told.value).endswith(f"got {value!r}.")

    def test_classes_are_not_objects(self):
        for params in ({"criterion": Fixed}, {"kernel": Tukey}):
            (cls,) = params.values()
            with pytest.raises(ValueError, match=rf"pass {cls.__name__}\(\) instead"):
                HalfQuadraticRobustRegressor(**params).fit([[1.0], [2.0]], [1.0, 2.0])

    def test_ends_of_the_ranges(self):
        RelaxedGeneralized(np.float32(0.5), 1.0)
        SufficientDescent(2, 0)
        Fixed(0)
        Fixed(np.inf)
        Graduated(np.int64(0), np.int64(1))

    @pytest.mark.parametrize("effort", [-0.5, 1.5, 8.0])
    def test_half_quadratic_effort_is_checked_when_used(self, effort):
        class Prescribing(Fixed):
            def prescribe(self, memory):
                return effort

        model = HalfQuadraticRobustRegressor(criterion=Prescribing(), init="ols")
        X = np.arange(12.0).reshape(6, 2) % 5
        with pytest.raises(ValueError, match=r"Prescribing prescribes.* in \[0, 1\]"):
            model.fit(X, X[:, 0])
        assert not hasattr(model, "coef_")


class TestChunks:
    @given(n=st.integers(0, 50), size=st.integers(1, 60))
    def test_cover(self, n, size):
        rows = [i for chunk in row_chunks(n, size) for i in range(n)[chunk]]
        assert rows == list(range(n))

    @pytest.mark.parametrize("n_jobs", [None, 1, 2])
    def test_order(self, n_jobs):
        values = np.random.default_rng(0).normal(size=1000)
        chunks = row_chunks(1000, 7)
        sums = list(map_chunks(lambda c: values[c].sum(), chunks, n_jobs))
        assert sums == [values[c].sum() for c in chunks]

    def test_bounds_add_up(self):
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
