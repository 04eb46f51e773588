"""Training that blows up or stops improving, and which weights are kept of it."""

from types import SimpleNamespace

import numpy as np
import pytest

from sklearn_mm._hebbian.safeguard import BLOWN_UP, Safeguard
from sklearn_mm._solver.history import History
from sklearn_mm._solver.loop import Status
from sklearn_mm._solver.roles import Bounds, Inferred, Memory, Moved, Trial


def point_at(value):
    return SimpleNamespace(theta=np.array([float(value)]))


class Run:
    """A run from theta = 1 with an upper bound of 2, update by update."""

    def __init__(self, scores=None, **kwargs):
        start = point_at(1.0)
        self.point, self.scores = start, iter(scores or ())
        validate = None if scores is None else lambda theta: next(self.scores)
        self.guard = Safeguard(
            **{
                "history": History(),
                "first_upper": 2.0,
                "start": start,
                "averaged": lambda theta: theta + 100.0,
                "dtype": np.float32,
                "validate": validate,
                "tol": 0.0,
                "n_iter_no_change": 1000,
                "estimator": SimpleNamespace(verbose=0, max_iter=100),
                "X": None,
                "y": None,
                "attributes": dict,
                **kwargs,
            }
        )

    def epoch(self, *uppers, capped=0, leap=0.0):
        """One update for every bound; theta grows by one in each, and more at last."""
        self.guard.begin()
        history = self.guard.history
        for i, upper in enumerate(uppers):
            trial = Trial(Bounds(upper, 0.0), 1.0)
            inferred = Inferred(trial, True, 1.0, capped=i < capped)
            self.guard.inferred(self.point, inferred)
            self.point = point_at(self.point.theta[0] + 1.0)
            history.append(inferred, Moved(self.point, 1.0), Memory.start(2.0))
        history.end_epoch()
        self.point = point_at(self.point.theta[0] + leap)
        return self.guard.end(self.point, history.last())

    def settle(self, status=Status.MAX_ITER, upper=2.0):
        return self.guard.settle(self.point, status, lambda theta: upper)


def test_the_last_weights_are_kept_of_a_sound_run():
    run = Run()
    assert not run.epoch(2.0, 1.5)
    assert not run.epoch(1.4, 1.6)  # better or not
    weights = run.settle()
    assert not run.guard.diverged
    assert weights.iterate == 5.0
    assert weights.fitted == weights.theta == 105.0  # the average


@pytest.mark.parametrize("last", [BLOWN_UP * 2.0 + 0.5, np.nan, np.inf])
def test_of_a_run_that_blew_up_the_best_epoch_is_kept(last):
    run = Run()
    run.epoch(2.0, 1.5)
    run.epoch(1.4, 1.2)
    run.epoch(1.2, 5.0)  # confirms the last epoch; itself not yet better
    run.epoch(19.0, last)
    weights = run.settle()
    assert run.guard.diverged
    assert (weights.iterate, weights.fitted) == (5.0, 105.0)


def test_an_epoch_whose_last_update_blew_up_is_not_kept():
    # The bound of an epoch is that before its last update.
    run = Run()
    run.epoch(2.0, 1.5)
    run.epoch(1.4, 1.2)
    run.epoch(21.0, 50.0)
    weights = run.settle()
    assert run.guard.diverged
    assert weights.iterate == 3.0


@pytest.mark.parametrize(
    ("uppers", "sound"),
    [
        ([2.0, 19.0, 20.0, 21.0, 30.0], 3.0),
        ([2.0, 30.0, 2.0, 40.0], 3.0),
        ([30.0, 50.0], 1.0),
        ([2.0, np.nan], 1.0),
        ([2.0, np.inf], 1.0),
    ],
)
def test_in_a_first_epoch_it_is_the_last_point_before(uppers, sound):
    run = Run()
    run.epoch(*uppers)
    weights = run.settle()
    assert run.guard.diverged
    assert weights.iterate == weights.fitted == sound


def test_solver_that_met_infinity():
    run = Run()
    run.epoch(2.0, 1.5)
    weights = run.settle(Status.DIVERGED)
    assert run.guard.diverged
    assert weights.iterate == 2.0  # the last one that a bound has seen


@pytest.mark.parametrize(("upper", "diverged"), [(2.0, False), (21.0, True)])
def test_a_leap_in_the_last_update_is_looked_at(upper, diverged):
    run = Run()
    run.epoch(2.0, 1.5)
    run.epoch(1.4, 1.3)
    run.point = point_at(1e6)
    weights = run.settle(upper=upper)
    assert run.guard.diverged == diverged
    assert weights.iterate == (3.0 if diverged else 1e6)


def test_a_small_last_update_is_not():
    run = Run()
    run.epoch(2.0, 1.5)
    run.guard.settle(run.point, Status.MAX_ITER, pytest.fail)


def test_patience():
    run = Run(n_iter_no_change=2, tol=0.1)
    assert not run.epoch(1.9)
    assert not run.epoch(1.7)
    for _ in range(2):
        assert not run.epoch(1.65)  # better, by less than tol
    assert run.epoch(1.65)
    assert run.guard.exhausted and not run.guard.diverged
    assert run.guard.losses == [1.9, 1.7, 1.65, 1.65, 1.65]


def test_best_validation_score_decides():
    run = Run(scores=[0.5, 0.8, 0.7, 0.6], n_iter_no_change=1)
    ended = [run.epoch(upper) for upper in (1.9, 1.8, 1.7, 1.6)]
    assert ended == [False, False, False, True]
    assert run.guard.scores == [0.5, 0.8, 0.7, 0.6]
    weights = run.settle()
    assert (weights.iterate, weights.fitted) == (3.0, 103.0)


def test_scores_of_weights_that_have_blown_up_do_not_count():
    run = Run(scores=[0.5, 0.6, 0.9])
    run.epoch(1.9)
    run.epoch(1.8)
    run.epoch(1e30)
    assert run.settle().iterate == 3.0
    # No bound has seen the last update of an epoch.
    run = Run(scores=[0.5, 0.9])
    run.epoch(1.9)
    run.epoch(1.8, leap=1e30)
    assert run.settle(Status.DIVERGED).iterate == 2.0


def test_weights_that_the_precision_does_not_have():
    run = Run()
    run.epoch(1.9)
    run.epoch(1.8, leap=1e30)
    assert run.settle().fitted == 1e30 + 103.0 and not run.guard.diverged
    run.epoch(1.7, leap=1e40)
    assert run.settle().fitted == 1.0 and run.guard.diverged


def test_capped_updates_of_the_last_epoch_are_counted():
    run = Run()
    assert run.guard.n_capped == 0  # what an interrupt of the first epoch leaves
    run.epoch(2.0, 2.0, 2.0, capped=3)
    assert run.guard.n_capped == 3
    run.epoch(2.0, 2.0, 2.0, capped=1)
    assert run.guard.n_capped == 1
