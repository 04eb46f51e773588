"""Inference of batches: what it learns, and when it changes its method."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference import LOSSES, make_energy, make_theta

from sklearn_mm._hebbian.difference import DifferencePhases, Experience
from sklearn_mm._hebbian.energy import unpack
from sklearn_mm._hebbian.inference import FullBatches, MiniBatches
from sklearn_mm._hebbian.problem import ContrastiveProblem
from sklearn_mm._hebbian.schedule import Schedule
from sklearn_mm._solver.gradient_steps import Adam
from sklearn_mm._solver.roles import Bounds, Memory
from sklearn_mm.criteria import Fixed, SufficientDescent

SIZES = (20, 16, 16, 16, 4)
MEMORY = Memory.start(1.0)


def make(
    feedback=0.01,
    dtype=np.float32,
    n=300,
    norm=None,
    loss="squared_error",
    sizes=SIZES,
    alpha=1e-4,
):
    energy = make_energy(feedback, sizes=sizes, loss=loss)
    theta = make_theta(0, sizes, 0.25)
    if norm is not None:
        W = unpack(theta, sizes)[0][1]
        W *= norm / np.linalg.norm(W, 2)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 20)).astype(dtype)
    Y = np.eye(4, dtype=dtype)[rng.integers(0, 4, n)]
    problem = ContrastiveProblem(X, Y, np.broadcast_to(1.0, n), energy, alpha)
    return problem, problem.at(theta.astype(problem.dtype))


def exact_gradient(problem, point, rows):
    """In double precision, inferred to the end."""
    double = replace(problem, data_dtype=np.float64)
    at = double.at(point.theta.astype(np.float64))
    latent = double.infer(at, double.start(rows), 400)
    return double.evaluate(at, latent).gradient


def batches(n=300, size=50):
    order = np.random.default_rng(2).permutation(n)
    return [order[i : i + size] for i in range(0, n, size)]


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize(
    ("feedback", "norm"),
    [(1.0, None), (1.0, 4.0), (0.1, 2.0), (0.1, 12.0), (0.01, None), (0.01, 12.0)],
)
def test_gradients_are_as_accurate_as_the_criterion_says(feedback, norm, loss):
    problem, point = make(feedback, norm=norm, loss=loss)
    inference, step = MiniBatches(SufficientDescent(0.5)), Adam(1e-3)
    for rows in batches():
        inferred = inference(problem, point, rows, MEMORY, step)
        assert inferred.satisfied
        bounds = inferred.trial.bounds
        gradient = bounds.gradient.astype(np.float64)
        error = gradient - exact_gradient(problem, point, rows)
        assert error @ error <= 0.5 * gradient @ gradient
        assert bounds.gap <= 0.25 * gradient @ gradient
        assert bounds.gap_curvature <= 0.25 * gradient @ gradient


def test_the_penalty_is_added_to_bounds_and_gradient():
    trials = []
    for alpha in (0.0, 0.3):
        problem, point = make(alpha=alpha, dtype=np.float64)
        inference = MiniBatches(Fixed(3))
        inferred = inference(problem, point, batches()[0], MEMORY, Adam(1e-3))
        trials.append(inferred.trial)
    without, penalised = trials
    coefs, _ = unpack(point.theta, SIZES)
    penalty = 0.15 * sum(np.sum(W**2) for W in coefs)
    assert_allclose(penalised.upper - without.upper, penalty)
    assert_allclose(penalised.lower - without.lower, penalty)
    added = unpack(penalised.bounds.gradient - without.bounds.gradient, SIZES)
    for found, W in zip(added[0], coefs, strict=True):
        assert_allclose(found, 0.3 * W, atol=1e-12)
    for found in added[1]:
        assert_allclose(found, 0.0, atol=1e-12)


@pytest.mark.parametrize(("norm", "slow"), [(2.0, False), (12.0, True)])
def test_method_follows_the_norms(norm, slow):
    problem, point = make(0.01, norm=norm)
    inference = MiniBatches(SufficientDescent())
    inference(problem, point, batches()[0], MEMORY, Adam(1e-3))
    assert inference.slow == slow


def test_passes_that_do_not_contract_are_given_up():
    problem, point = make(0.01, norm=30.0)
    inference = MiniBatches(SufficientDescent(), n_updates=1)  # no look at the norms
    inferred = inference(problem, point, batches()[0], MEMORY, Adam(1e-3))
    assert inferred.satisfied and inference.slow


def test_memory_is_kept_for_the_last_batch_of_an_epoch_too():
    problem, point = make()
    inference, rows = MiniBatches(SufficientDescent()), batches()[0]
    kept = []
    for n in (len(rows), len(rows) - 3) * 2:
        inference(problem, point, rows[:n], MEMORY, Adam(1e-3))
        kept.append(inference.spaces[n])
    assert kept[0] is kept[2] and kept[1] is kept[3]
    inference(problem, point, rows[:2], MEMORY, Adam(1e-3))
    assert len(inference.spaces) <= 2


def test_experience_is_declared_state():
    problem, point = make()
    inference = MiniBatches(SufficientDescent())
    for rows in batches():
        inference(problem, point, rows, MEMORY, Adam(1e-3))
    assert inference.experience is not None
    assert np.abs(inference.experience.omega).max() > 0
    revived = pickle.loads(pickle.dumps(inference))
    assert not revived.spaces
    copied = copy.deepcopy(inference)
    rows = batches()[0]
    results = [
        one(problem, point, rows, MEMORY, Adam(1e-3)).trial
        for one in (inference, revived, copied)
    ]
    for trial in results[1:]:
        assert trial.upper == results[0].upper
        assert_array_equal(trial.bounds.gradient, results[0].bounds.gradient)


def test_the_next_batch_starts_from_the_mean_pulls():
    problem, point = make(0.1, dtype=np.float64)
    inference, rows = MiniBatches(SufficientDescent(1e-9)), batches()[0]
    inference(problem, point, rows, MEMORY, Adam(1e-3))
    phases = DifferencePhases(problem.energy, len(rows), np.float64)
    problem.drive(point.network, problem.X[rows], out=phases.drive)
    phases.free(point.network, [3] * 30)
    exact = Experience.none(problem.energy)
    phases.remember_pulls(exact)
    for k in (1, 2):
        scale = np.abs(exact.pulls[k]).max()
        assert_allclose(inference.experience.pulls[k], exact.pulls[k], atol=0.1 * scale)


def test_a_given_effort_starts_from_the_rows_alone():
    problem, point = make()
    rows = batches()[3]
    fresh = MiniBatches(Fixed(3))(problem, point, rows, MEMORY, Adam(1e-3)).trial
    trained = MiniBatches(SufficientDescent())
    for other in batches():
        trained(problem, point, other, MEMORY, Adam(1e-3))
    trained.criterion = Fixed(3)
    again = trained(problem, point, rows, MEMORY, Adam(1e-3)).trial
    assert fresh.effort == again.effort == 3
    assert fresh.upper == again.upper


def test_last_batches_may_be_smaller():
    problem, point = make()
    inference = MiniBatches(SufficientDescent())
    for size in (50, 7, 50, 1):
        rows = np.arange(size)
        inferred = inference(problem, point, rows, MEMORY, Adam(1e-3))
        found = inferred.trial.bounds.gradient
        expected = exact_gradient(problem, point, rows)
        assert_allclose(found, expected, atol=1e-2 * np.abs(expected).max())


def test_passes_are_learnt():
    problem, point = make()
    strict = MiniBatches(SufficientDescent(1e-9))
    for rows in batches():
        strict(problem, point, rows, MEMORY, Adam(1e-3))
    assert len(strict.schedule.tops) > 2
    strict.criterion = SufficientDescent(1e3)
    for _ in range(20):
        for rows in batches():
            strict(problem, point, rows, MEMORY, Adam(1e-3))
    assert len(strict.schedule.tops) <= 2 and strict.clamped_passes == 1


def test_with_one_hidden_layer_only_the_clamped_phase_takes_more_passes():
    """Its free phase is exact."""
    problem, point = make(0.1, sizes=(20, 16, 4), dtype=np.float64)
    efforts = []
    for rho in (1e3, 1e-2, 1e-5, 1e-8):
        inference = MiniBatches(SufficientDescent(rho))
        inferred = inference(problem, point, batches()[0], MEMORY, Adam(1e-3))
        assert inferred.satisfied and not inference.slow
        assert inference.schedule.tops == []
        efforts.append(inferred.trial.effort)
    assert efforts[0] == 1.0
    assert np.all(np.diff(efforts) > 0.0)


def test_one_layer_less_after_sixteen_batches_that_had_one_to_spare():
    problem, point = make()
    inference = MiniBatches(SufficientDescent(1e9))
    found = []
    for rows in batches(size=10):
        inference(problem, point, rows, MEMORY, Adam(1e-3))
        found.append(inference.schedule.tops)
    assert found[:16] == [[3, 2]] * 15 + [[3]]
    # One pass is always made.
    assert found[16:] == [[3]] * 14


def test_layers_that_leave_the_gap_are_refreshed_more_often():
    """With rows that need more, and without the others' passes."""
    sizes = (20, *(16,) * 6, 4)
    problem, point = make(0.01, sizes=sizes, dtype=np.float64)
    inference = MiniBatches(SufficientDescent(1e-6))
    for _ in range(10):
        for rows in batches():
            last = inference(problem, point, rows, MEMORY, Adam(1e-3))
    assert last.satisfied and last.trial.effort == len(inference.schedule.tops)
    refreshes = np.array(inference.schedule.refreshes)
    assert np.all(np.diff(refreshes) <= 0) and refreshes[-1] < refreshes[0]


def test_a_clamped_pass_less_after_batches_in_a_row_that_had_one_to_spare():
    inference = MiniBatches(None, schedule=Schedule.first(3), clamped_passes=2)
    inference.n_updates = 1  # the free phase is not asked now
    passes = []
    for more in [False] * 31 + [True] + [False] * 70:
        inference._adapt(None, MEMORY, None, None, more)
        passes.append(inference.clamped_passes)
    assert passes == [2] * 31 + [3] * 32 + [2] * 32 + [1] * 7


@pytest.mark.parametrize("max_effort", [1, 2, 3])
def test_passes_end_at_the_cap(max_effort):
    problem, point = make(0.1)
    inference = MiniBatches(SufficientDescent(1e-30), max_effort=max_effort)
    inferred = inference(problem, point, batches()[0], MEMORY, Adam(1e-3))
    assert inferred.capped and not inferred.satisfied
    assert inferred.trial.effort == max_effort
    assert not inference.slow


class TestFullBatches:
    """The number of passes on all rows, for criteria that need a known number."""

    def outcomes(self, *needs, **options):
        """Passes of all trials, and the outcome, round by round."""
        efforts = []

        class Needs(Fixed):
            def prescribe(self, memory):
                return None

            def satisfied(self, trial, memory):
                return trial.effort >= needs[memory.iteration]

            def attainable(self, trial, memory):
                return True

        class Problem:
            def cold_bounds(self, point, effort):
                assert effort > max(efforts, default=0.0)
                efforts.append(effort)
                return Bounds(1.0, 0.0, np.zeros(1))

        _, point = make()
        inference = FullBatches(Needs(), **options)
        found = []
        for i in range(len(needs)):
            efforts.clear()
            memory = Memory(1.0, 1.0, iteration=i)
            inferred = inference(Problem(), point, None, memory, Adam(1e-3))
            assert inferred.work == sum(efforts)
            assert inferred.trial.effort == efforts[-1]
            found.append((list(efforts), inferred))
        return found

    def test_passes_grow_by_half(self):
        (efforts, inferred), (again, _) = self.outcomes(40, 40, effort=1.0)
        assert efforts[:3] == [1.0, 2.0, 3.0]
        assert inferred.satisfied and not inferred.capped
        ratios = np.divide(efforts[3:], efforts[2:-1])
        assert np.all((ratios > 1.3) & (ratios <= 1.5))
        assert efforts[-2] < 40 <= efforts[-1]
        # What was enough is tried first in the next round.
        assert again == efforts[-1:]

    def test_one_less_after_rounds_in_a_row_for_which_it_was_enough(self):
        found = self.outcomes(*[1] * 9, effort=4.0, patience=3)
        firsts = [efforts for efforts, _ in found]
        assert firsts == [[4.0]] * 3 + [[3.0]] * 3 + [[2.0]] * 3
        # Counting starts again where it was not, and there is a least number.
        found = self.outcomes(1, 1, 5, 1, 1, 1, 1, effort=4.0, patience=3)
        assert [efforts[0] for efforts, _ in found] == [4.0] * 3 + [6.0] * 3 + [5.0]
        found = self.outcomes(*[1] * 6, effort=2.0, patience=3)
        assert [efforts for efforts, _ in found] == [[2.0]] * 6

    def test_one_less_is_tried_less_often_where_it_was_not_enough(self):
        found = self.outcomes(*[4] * 60, effort=4.0, patience=3)
        in_vain = [i for i, (efforts, _) in enumerate(found) if len(efforts) > 1]
        assert in_vain == [3, 10, 23, 48]  # after 3, 6, 12 and 24 others
        # It is left out once it is not needed.
        found = self.outcomes(*[4] * 4, *[3] * 12, effort=4.0, patience=3)
        firsts = [efforts[0] for efforts, _ in found]
        assert firsts == [4.0] * 3 + [3.0] + [4.0] * 6 + [3.0] * 6

    def test_cap(self):
        ((efforts, inferred),) = self.outcomes(40, effort=4.0, max_effort=10.0)
        assert efforts == [4.0, 6.0, 9.0, 10.0]
        assert inferred.capped and not inferred.satisfied
