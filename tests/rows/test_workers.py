"""Who works on chunks of rows: threads, when they start and when they end."""

import _thread
import pickle
import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sklearn_mm._rows import workers
from sklearn_mm._rows.workers import Crew, call_on_part, kept_threads, sent, threads

TASKS = [(i,) for i in range(6)]


_ALIVE = []


def n_threads():
    """Threads of crews; what else lives in this process comes and goes as it likes."""
    return len(_ALIVE)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """Two cores, and threads of crews that are counted."""

    def start(function, arguments):
        def run():
            try:
                function(*arguments)
            finally:
                _ALIVE.pop()

        _ALIVE.append(1)
        _thread.start_new_thread(run, ())

    monkeypatch.setattr(workers, "start_new_thread", start)
    monkeypatch.setattr(workers, "cpu_count", lambda: 2)


def wait_for(condition):
    """A thread that has said it ends still takes a moment to do so."""
    deadline = time.monotonic() + 30.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


class TestCrew:
    def test_values_and_errors_come_back(self):
        crew = Crew(2)
        value = crew.submit(divmod, 7, 2)
        error = crew.submit(divmod, 7, 0)
        interrupt = crew.submit(interrupted)
        assert value.get(timeout=30) == (True, (3, 1))
        succeeded, raised = error.get(timeout=30)
        assert not succeeded and isinstance(raised, ZeroDivisionError)
        # Threads survive whatever a task raises.
        succeeded, raised = interrupt.get(timeout=30)
        assert not succeeded and isinstance(raised, KeyboardInterrupt)
        assert crew.submit(abs, -3).get(timeout=30) == (True, 3)
        crew.close()

    def test_tasks_are_worked_on_side_by_side(self):
        crew, together = Crew(2), threading.Barrier(2)
        outcomes = [crew.submit(together.wait, 30) for _ in range(2)]
        assert {outcome.get(timeout=60)[0] for outcome in outcomes} == {True}
        crew.close()

    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_threads_end_after_the_task_they_are_at(self, size):
        before, done = n_threads(), []
        crew = Crew(size)
        assert wait_for(lambda: n_threads() == before + size)
        started = threading.Event()

        def task():
            started.set()
            time.sleep(0.05)
            done.append(1)

        crew.submit(task)
        started.wait(30)
        crew.close()
        assert done == [1]
        assert wait_for(lambda: n_threads() == before)
        crew.close()  # twice does no harm

    def test_waiting_threads_hold_no_memory(self):
        class Large:
            pass

        import gc
        import weakref

        crew, large = Crew(1), Large()
        reference = weakref.ref(large)
        crew.submit(id, large).get(timeout=30)
        del large
        assert wait_for(lambda: gc.collect() is not None and reference() is None)
        crew.close()


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_rows_that_are_all_equal_are_sent_once(shape):
    row = np.arange(np.prod(shape)).reshape(shape)
    values = np.broadcast_to(row, (1000, *shape))
    message = pickle.dumps(sent(values))
    assert len(message) < 1000
    found = call_on_part(lambda part, column: column, None, pickle.loads(message))
    assert_array_equal(found, values)
    assert found.strides[0] == 0


class TestThreads:
    def test_values_come_in_order(self):
        def slow_first(i):
            time.sleep(0.01 * (6 - i))
            return i

        assert list(threads(slow_first, TASKS, 2)) == list(range(6))

    def test_few_tasks_are_made_before_they_are_needed(self):
        made = []

        def tasks():
            for i in range(100):
                made.append(i)
                yield (i,)

        values = threads(abs, tasks(), 2)
        assert made == []
        assert next(values) == 0
        assert len(made) == 5
        values.close()
        assert len(made) == 5

    def test_no_more_threads_than_cores(self):
        before = n_threads()
        seen = list(threads(lambda i: n_threads() - before, TASKS, 32))
        assert max(seen) == 2
        assert wait_for(lambda: n_threads() == before)

    def test_they_are_kept_for_a_while(self):
        before = n_threads()
        together = threading.Barrier(2)

        def ident(i):
            together.wait(30)  # both of them are needed
            return threading.get_ident()

        with kept_threads():
            first = set(threads(ident, TASKS, 2))
            assert set(threads(ident, TASKS, 2)) == first
            assert n_threads() == before + 2
        assert len(first) == 2
        assert threading.get_ident() not in first
        assert wait_for(lambda: n_threads() == before)
        # Not without being asked to.
        assert len(set(threads(ident, TASKS, 2))) == 2
        assert wait_for(lambda: n_threads() == before)

    @pytest.mark.parametrize("keep", [False, True])
    def test_nobody_works_on_after_an_error(self, keep):
        before = n_threads()
        running, ran = set(), []

        def work(i):
            if i == 0:
                raise KeyError("first")
            ran.append(i)
            running.add(i)
            threading.Event().wait(0.05)
            running.discard(i)

        def fail():
            with pytest.raises(KeyError, match="first"):
                list(threads(work, [(i,) for i in range(100)], 2))
            assert not running
            # Tasks that had been handed over are not wanted any more.
            assert len(ran) < 5
            assert wait_for(lambda: n_threads() == before)

        if not keep:
            fail()
            return
        with kept_threads():
            list(threads(abs, TASKS, 2))
            fail()
            # The next map has threads again.
            assert list(threads(abs, TASKS, 2)) == list(range(6))
            assert n_threads() == before + 2
        assert wait_for(lambda: n_threads() == before)

    @pytest.mark.parametrize("keep", [False, True])
    def test_nobody_works_on_when_values_are_left_alone(self, keep):
        before = n_threads()

        def leave():
            values = threads(abs, [(i,) for i in range(100)], 2)
            assert next(values) == 0
            values.close()
            assert wait_for(lambda: n_threads() == before)

        if keep:
            with kept_threads():
                leave()
        else:
            leave()

    def test_an_error_while_tasks_are_made(self):
        before = n_threads()

        def tasks():
            yield (1,)
            raise OSError("no such file")

        with pytest.raises(OSError, match="no such file"):
            list(threads(abs, tasks(), 2))
        assert wait_for(lambda: n_threads() == before)

    def test_kept_threads_belong_to_who_keeps_them(self):
        """Another thread of the user's neither uses nor ends them."""
        elsewhere = []

        def other():
            elsewhere.extend(threads(lambda i: threading.get_ident(), TASKS, 2))

        together = threading.Barrier(2)

        def ident(i):
            together.wait(30)
            return threading.get_ident()

        with kept_threads():
            own = set(threads(ident, TASKS, 2))
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            assert own.isdisjoint(elsewhere)
            assert set(threads(ident, TASKS, 2)) == own
