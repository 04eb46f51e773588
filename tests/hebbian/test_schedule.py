"""Which layers the passes of the free phase go over."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sklearn_mm._hebbian.schedule import Schedule


def of(*refreshes):
    return Schedule(list(refreshes))


def leave_out(schedule, gaps):
    """Tests in which nothing was needed, until a refresh is left out."""
    before = list(schedule.refreshes)
    for n in range(1, 2000):
        schedule.tested(schedule.spare(gaps), needed=False)
        if schedule.refreshes != before:
            return n
    return None


@pytest.mark.parametrize(
    ("refreshes", "tops"),
    [([], []), ([1], [2]), ([2, 1], [3, 2]), ([3, 2, 2], [4, 4, 2]), ([1, 1], [3])],
)
def test_a_pass_goes_up_to_the_layer_above_those_it_refreshes(refreshes, tops):
    assert of(*refreshes).tops == tops


@pytest.mark.parametrize(
    ("n_hidden", "tops"), [(1, []), (2, [2, 2]), (3, [3, 2]), (5, [5, 4])]
)
def test_first(n_hidden, tops):
    assert Schedule.first(n_hidden).tops == tops


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([1.0, 1e-3, 1e-2], [3, 2, 1]),  # only the lowest layer leaves much
        ([1.0, 0.2, 0.01], [3, 3, 1]),
        ([1e-3, 1e-3, 1.0], [2, 2, 2]),  # lower layers are refreshed as often
        ([1.0, 0.2, 1.0], [2, 2, 2]),
        ([float("nan")] * 3, [2, 2, 2]),
    ],
)
def test_more_for_the_layers_that_leave_most(gaps, expected):
    schedule = of(2, 2, 1)
    schedule.add(gaps, most=9)
    assert schedule.refreshes == expected
    for _ in range(30):
        schedule.add(gaps, most=9)
    assert max(schedule.refreshes) == len(schedule.tops) == 9


def test_the_layer_to_spare_leaves_least_and_keeps_the_order():
    assert of(2, 2, 1).spare([1.0, 2.0, 0.0]) == 1  # the last one has no more
    assert of(3, 2, 2).spare([1.0, 0.0, 2.0]) == 0
    assert of(1, 1, 1).spare([1.0, 1.0, 1.0]) is None
    assert of().spare([]) is None


def test_left_out_after_four_tests_in_a_row():
    schedule, gaps = of(2, 1), [1.0, 1.0]
    for _ in range(3):
        schedule.tested(schedule.spare(gaps), needed=False)
    schedule.tested(schedule.spare(gaps), needed=True)
    assert leave_out(schedule, gaps) == 4
    assert schedule.refreshes == [1, 1] and schedule.tops == [3]
    assert leave_out(schedule, gaps) is None


def test_what_had_to_be_made_again_is_tried_less_often():
    schedule, gaps = of(2, 1), [1.0, 0.0]
    assert leave_out(schedule, gaps) == 4
    schedule.add(gaps, most=9)
    assert schedule.refreshes == [2, 1]
    assert leave_out(schedule, gaps) == 16
    # It was enough for long: what is needed now may be needed for a while only.
    for _ in range(100):
        schedule.tested(schedule.spare(gaps), needed=True)
    schedule.add(gaps, most=9)
    assert leave_out(schedule, gaps) == 16


changes = st.lists(
    st.tuples(st.booleans(), st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4)),
    max_size=60,
)


@given(changes)
def test_order_of_layers(changes):
    """Each layer is refreshed, and none more often than the one below it."""
    schedule = of(2, 2, 2, 1)
    for needed, gaps in changes:
        if needed:
            schedule.add(gaps, most=6)
        else:
            for _ in range(8):
                schedule.tested(schedule.spare(gaps), needed=False)
        refreshes = schedule.refreshes
        assert refreshes == sorted(refreshes, reverse=True)
        assert 1 <= refreshes[-1] and refreshes[0] <= 6
        tops = schedule.tops
        assert tops[0] == 5 and len(tops) == refreshes[0]
        assert [sum(top > k for top in tops) for k in range(1, 5)] == refreshes
