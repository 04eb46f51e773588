"""How effort is found, on a problem that writes down what it is asked for."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from parabola import At, Parabola, halves, run, whole

from sklearn_mm._solver.inference import (
    Continuation,
    DoublingRestart,
    EffortBisection,
    Persistent,
    _effort,
    _slack,
)
from sklearn_mm._solver.loop import Status
from sklearn_mm._solver.roles import ALL_ROWS, Bounds, Memory
from sklearn_mm._solver.steps import SurrogateMinimizer
from sklearn_mm.criteria import (
    Criterion,
    Fixed,
    Graduated,
    RelaxedGeneralized,
    SufficientDescent,
)

POINT = At(np.zeros(1))


@dataclass
class Recorder:
    """The latent is the effort made so far; the gap never closes."""

    upper: float = 2.0
    efforts: list = field(default_factory=list)
    n_starts: int = 0

    def at(self, theta):
        return At(theta)

    def start(self, batch):
        self.n_starts += 1
        return 0.0

    def infer(self, point, latent, effort):
        self.efforts.append(effort)
        return latent + effort

    def evaluate(self, point, latent):
        return Bounds(self.upper, 1.0)

    def cold_bounds(self, point, effort):
        return self.evaluate(point, self.infer(point, self.start(ALL_ROWS), effort))

    def minimize_upper(self, point, latent):
        return point.theta, 0.0, 0.0


class Needs(Criterion):
    """Wants so much effort in each round, and calls any effort excessive on demand."""

    def __init__(self, *needs, excessive=False):
        vars(self).update(needs=needs, always=excessive)

    def satisfied(self, trial, memory):
        return trial.effort >= self.needs[memory.iteration]

    def excessive(self, trial, memory):
        return self.always


def rounds(inference, problem, n=1):
    """Outcomes of rounds, and the effort that the strategy has learnt from each."""
    step = SurrogateMinimizer()
    outcomes, learnt = [], []
    for iteration in range(n):
        memory = Memory(2.0, 2.0, iteration)
        outcomes.append(inference(problem, POINT, ALL_ROWS, memory, step))
        learnt.append(inference.effort)
    return outcomes, learnt


class TestContinuation:
    def learnt(self, *needs):
        inference = Continuation(
            Needs(*needs), effort=4.0, min_effort=2.0, max_effort=6.0, patience=3
        )
        return rounds(inference, Recorder(), len(needs))[1]

    def test_effort_falls_after_batches_in_a_row_for_which_it_was_enough(self):
        assert self.learnt(1, 1, 1) == [4, 4, 3]
        assert self.learnt(4, 4, 4, 1, 1, 1) == [4, 4, 3, 3, 3, 2]

    def test_effort_grows_where_it_was_not_enough_and_counting_starts_again(self):
        assert self.learnt(1, 1, 5, 1, 1, 1) == [4, 4, 5, 5, 5, 4]

    def test_effort_stays_within_its_bounds(self):
        assert self.learnt(*[9] * 4) == [5, 6, 6, 6]
        assert self.learnt(*[1] * 12) == [4, 4, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2]

    @given(effort=st.integers(1, 20), need=st.integers(1, 60))
    def test_passes_of_one_batch(self, effort, need):
        problem = Recorder()
        inference = Continuation(Needs(need), effort=effort)
        (outcome,), _ = rounds(inference, problem)
        assert outcome.satisfied and not outcome.capped
        # Latents are kept, so that all passes count, and few are in vain.
        assert problem.n_starts == 1
        assert sum(problem.efforts) == outcome.work == outcome.trial.effort
        assert need <= outcome.work <= max(effort, need, math.floor(1.5 * (need - 1)))
        # Tests are few as well: each is after half as many passes again.
        assert len(problem.efforts) <= 4 + math.log(max(need / effort, 1), 1.5)

    def test_starts_with_one_pass_and_may_return_to_it(self):
        (outcome,), _ = rounds(Continuation(Needs(0)), Recorder())
        assert outcome.work == 1
        inference = Continuation(Needs(*[0] * 20), effort=2.0, patience=4)
        assert rounds(inference, Recorder(), 20)[1] == [2.0] * 3 + [1.0] * 17


class TestDoubling:
    @given(need=st.integers(1, 1000))
    def test_least_power_of_two_that_will_do(self, need):
        problem = Recorder()
        (outcome,), _ = rounds(DoublingRestart(Needs(need)), problem)
        least = 2 ** math.ceil(math.log2(need))
        assert outcome.trial.effort == problem.efforts[-1] == least
        assert outcome.work == sum(problem.efforts) == 2 * least - 1
        assert problem.n_starts == len(problem.efforts)  # nothing is kept
        assert outcome.trial.latent is None


@pytest.mark.parametrize("upper", [np.inf, np.nan, 1.0])
@pytest.mark.parametrize("cls", [Continuation, DoublingRestart])
def test_effort_ends_where_more_is_of_no_use(cls, upper):
    """No gap is left, or no finite bound: the only sane thing to do is to stop."""
    problem = Recorder(upper)
    (outcome,), _ = rounds(cls(Needs(np.inf)), problem)
    assert not outcome.satisfied and not outcome.capped
    assert problem.efforts == [1.0]


def test_persistent_latents_are_never_started_again():
    problem = Recorder()
    outcomes, _ = rounds(Persistent(Needs(0, 0, 3), effort=2.0), problem, 3)
    assert problem.n_starts == 1
    assert problem.efforts == [2.0, 2.0, 2.0]
    assert [outcome.trial.latent for outcome in outcomes] == [2.0, 4.0, 6.0]
    assert [outcome.work for outcome in outcomes] == [2.0, 2.0, 2.0]
    assert [outcome.satisfied for outcome in outcomes] == [True, True, False]


class TestStrategies:
    @pytest.mark.parametrize("chunks", [whole, halves])
    @pytest.mark.parametrize(
        "criterion", [SufficientDescent(0.5), RelaxedGeneralized(0.5, 0.75)]
    )
    def test_doubling_meets_the_criterion_within_four_times_the_least(
        self, criterion, chunks
    ):
        problem = Parabola(chunks=chunks)
        result, history = run(DoublingRestart(criterion), problem=problem)
        assert result.status is Status.CONVERGED
        assert history.satisfied.all()
        # Restarting from one pass: 1 + 2 + ... + R < 2 R, and R < 2 * least.
        assert np.all(history.work < 2 * history.effort)
        assert np.all(history.lower_bound <= history.upper_bound)

    def test_doubling_reports_a_cap(self):
        inference = DoublingRestart(SufficientDescent(1e-9), max_effort=6)
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

    @pytest.mark.parametrize("cls", [DoublingRestart, Continuation])
    def test_prescribed_effort_is_made(self, cls):
        _, history = run(cls(Fixed(7)), max_iter=3)
        assert_array_equal(history.effort, [7, 7, 7])


@dataclass(frozen=True)
class Loosened:
    """Bounds with upper = 1 + (1 - effort)**2 above a lower bound of 1."""

    def start(self, batch):
        return None

    def infer(self, point, latent, effort):
        return effort

    def evaluate(self, point, latent):
        return Bounds(1.0 + (1.0 - latent) ** 2, 1.0)

    def minimize_upper(self, point, latent):
        return point.theta, 0.1, 1.0


def search(criterion, previous, effort=1.0):
    inference = EffortBisection(criterion, effort=effort)
    return inference(
        Loosened(),
        POINT,
        ALL_ROWS,
        Memory.start(previous),
        SurrogateMinimizer(),
    )


class TestBisection:
    @given(effort=st.floats(1e-7, 1.0))
    def test_slack_and_effort(self, effort):
        assert_allclose(_effort(_slack(effort)), effort, rtol=1e-9)
        assert_allclose(_slack(effort), effort**-2 - 1.0, rtol=1e-8, atol=1e-15)

    @given(effort=st.floats(0.0, 1.0))
    def test_first_guess_is_near_the_previous_effort(self, effort):
        problem = Recorder()
        inference = EffortBisection(Needs(0.0, 0.0), effort=effort)
        (first, second), _ = rounds(inference, problem, 2)
        assert problem.efforts == [first.trial.effort, second.trial.effort]
        for old, new in ((effort, problem.efforts[0]), problem.efforts):
            assert_allclose(1 - new**2, inference.contraction * (1 - old**2), atol=1e-9)

    def test_starts_with_exact_latents(self):
        problem = Recorder()
        rounds(EffortBisection(Needs(0.0)), problem)
        assert problem.efforts == [1.0]

    @given(need=st.floats(1e-6, 1.0), effort=st.floats(0.0, 1.0))
    def test_loosest_effort_is_found_in_few_trials(self, need, effort):
        problem = Recorder()
        inference = EffortBisection(Needs(need, excessive=True), effort=effort)
        (outcome,), (learnt,) = rounds(inference, problem)
        assert outcome.satisfied
        assert outcome.work == len(problem.efforts) <= 40
        found = outcome.trial.effort
        assert learnt == found == min(e for e in problem.efforts if e >= need)
        assert need <= found <= need * math.exp(inference.resolution) * (1 + 1e-9)

    def test_loosening_goes_in_strides_down_to_zero(self):
        problem = Recorder()
        inference = EffortBisection(Needs(0.0, excessive=True), effort=0.9)
        (outcome,), (learnt,) = rounds(inference, problem)
        *efforts, last = problem.efforts
        assert outcome.trial.effort == last == 0.0
        strides = np.diff(np.log([_slack(effort) for effort in efforts]))
        assert np.all(strides > 0.5) and np.all(strides < 4.0)
        assert efforts[-1] > inference.floor > efforts[-1] / 8
        assert learnt == 0.9  # zero says nothing about the next round

    def test_tightening_ends_at_exact_latents(self):
        problem = Recorder()
        inference = EffortBisection(Needs(2.0), effort=0.1)
        (outcome,), _ = rounds(inference, problem)
        assert not outcome.satisfied
        assert outcome.trial.effort == problem.efforts[-1] == 1.0
        assert np.all(np.diff(problem.efforts) > 0)
        assert len(problem.efforts) <= 20

    def test_latents_stay_after_a_rejection_as_long_as_they_will_do(self):
        class Promising(Recorder):
            promised = 0.1

            def evaluate(self, point, latent):
                return Bounds(1.0 + (1.0 - self.efforts[-1]) ** 2, 1.0)

            def minimize_upper(self, point, latent):
                return point.theta, self.promised, 0.0

        def same(second, first):
            one, two = first.trial, second.trial
            return two.bounds is one.bounds and two.latent is one.latent

        def ask(inference, problem, **memory):
            memory = Memory(2.0, 2.0, **memory)
            return inference(problem, POINT, ALL_ROWS, memory, SurrogateMinimizer())

        problem, inference = Promising(), EffortBisection(SufficientDescent(0.5))
        first = ask(inference, problem)
        again = ask(inference, problem, rejected=1)
        assert same(again, first) and again.satisfied
        assert again.work == 0.0
        # The damped step promises less, so that the gap has to be smaller.
        problem.promised = 0.01
        other = ask(inference, problem, rejected=2)
        assert other.work > 0.0 and other.satisfied
        assert other.trial.gap <= 0.5 * problem.promised < first.trial.gap
        # Latents that are as good as can be are not looked for again.
        inference = EffortBisection(Needs(2.0))
        first = ask(inference, problem)
        again = ask(inference, problem, rejected=1)
        assert same(again, first) and not again.satisfied
        assert again.work == 0.0
        assert ask(inference, problem).work > 0.0

    def test_a_step_is_told_of_its_rejected_proposal(self):
        told = []

        class Listening(SurrogateMinimizer):
            def propose(self, problem, point, trial, rejected=None):
                told.append(rejected)
                return super().propose(problem, point, trial, rejected)

        inference = EffortBisection(SufficientDescent(0.5))
        first = inference(Loosened(), POINT, ALL_ROWS, Memory(2.0, 2.0), Listening())
        assert told and set(told) == {None}
        told.clear()
        memory = Memory(2.0, 2.0, iteration=1, rejected=1)
        again = inference(Loosened(), POINT, ALL_ROWS, memory, Listening())
        # Looking at the decrease is what makes it propose, and once.
        assert told == [first.trial.proposal]
        assert again.trial.decrease == first.trial.decrease
        assert len(told) == 1

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

    @pytest.mark.parametrize("effort", [1.01, 1.5, 3.0])
    def test_prescribed_efforts_are_shares(self, effort):
        with pytest.raises(ValueError, match=r"prescribes an effort .* in \[0, 1\]"):
            search(Fixed(effort), previous=1.0)

    def test_graduated_prescribes(self):
        criterion = Graduated(n_levels=3, n_iter_per_level=2)
        efforts = [
            criterion.prescribe(Memory(1.0, 1.0, iteration)) for iteration in range(9)
        ]
        assert efforts == [1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 2, 1 / 2, 1, 1, 1]
        inferred = search(criterion, previous=1.0)
        assert inferred.trial.effort == 1 / 8
        assert inferred.satisfied and inferred.prescribed
