"""Training that blows up, and what is kept of it."""

from types import SimpleNamespace

import numpy as np
import pytest

from sklearn_mm._hebbian.training import BLOWN_UP, EpochMonitor
from sklearn_mm._solver.history import History
from sklearn_mm._solver.roles import Bounds, Inferred, Memory, Moved, Trial


def make_monitor(first_upper):
    """A monitor of a run that has just begun, and where it begins."""
    monitor = EpochMonitor(
        history=History(),
        validate=None,
        tol=0.0,
        n_iter_no_change=1000,
        estimator=SimpleNamespace(verbose=0, max_iter=100),
        X=None,
        y=None,
        attributes=dict,
    )
    start = SimpleNamespace(theta=np.zeros(1))
    monitor.expect(start, first_upper)
    return monitor, start


@pytest.mark.parametrize(
    ("uppers", "sound"),
    [
        ([2.0, 3.0], 1),
        ([2.0, 19.0, 20.0, 21.0, 30.0], 2),
        ([30.0, 50.0], None),
        ([2.0, 30.0, 2.0, 40.0], 2),
        ([2.0, np.nan], 0),
        ([2.0, np.inf], 0),
    ],
)
def test_sound_parameters_are_those_before_the_bound_blew_up(uppers, sound):
    assert BLOWN_UP == 10.0
    monitor, start = make_monitor(first_upper=2.0)
    assert monitor.sound is start
    points = [SimpleNamespace(theta=np.full(1, i)) for i in range(len(uppers))]
    for point, upper in zip(points, uppers, strict=True):
        trial = Trial(Bounds(upper, 0.0), 1.0)
        monitor.inferred(point, Inferred(trial, True, 1.0))
    assert monitor.sound is (start if sound is None else points[sound])


def test_an_epoch_that_ends_far_above_the_start_blew_up():
    monitor, start = make_monitor(first_upper=2.0)
    assert not monitor.blew_up(2.0)  # nothing is known yet
    for upper, expected in [(20.0, False), (20.5, True), (1.0, False), (np.nan, True)]:
        inferred = Inferred(Trial(Bounds(upper, 0.0), 1.0), True, 1.0)
        monitor.begin()
        monitor.history.append(inferred, Moved(start, 1.0), Memory.start(2.0))
        monitor.history.end_epoch()
        monitor.end(start, monitor.history.last())
        assert monitor.blew_up(2.0) == expected
