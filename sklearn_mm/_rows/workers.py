"""Workers that process chunks: threads of this process, or those of a joblib backend.

Threads end with the map that started them, or with the surrounding `kept_threads`. The
number of BLAS threads is global to the process and is only changed here.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, TypeVar

from joblib import Parallel, cpu_count, delayed, effective_n_jobs
from joblib.parallel import ThreadingBackend, get_active_backend
from sklearn import config_context, get_config
from sklearn.utils.parallel import _get_threadpool_controller
from threadpoolctl import OpenBLASController

Value = TypeVar("Value")


def is_local(n_jobs: int | None) -> bool:
    """Whether work is done by threads of this process."""
    if effective_n_jobs(n_jobs) == 1:
        return True
    return isinstance(get_active_backend(prefer="threads")[0], ThreadingBackend)


class Crew:
    """Threads that work on tasks side by side.

    An interrupt may occur at any time and must not leave anything locked.
    `concurrent.futures` and `threading` use locks in Python code that can be
    interrupted; queues and threads of the interpreter itself are safe. Values are
    returned through one queue per task.
    """

    def __init__(self, n_threads: int) -> None:
        self._tasks: SimpleQueue[Any] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._n_threads = 0
        for _ in range(n_threads):
            start_new_thread(self._work, ())
            self._n_threads += 1  # in this order: nobody waits for what never was

    def submit(self, function: Callable[..., Any], *arguments: Any) -> SimpleQueue[Any]:
        """A queue that will hold the outcome."""
        outcome: SimpleQueue[Any] = SimpleQueue()
        self._tasks.put((function, arguments, outcome))
        return outcome

    def close(self) -> None:
        """End the threads, each after the task it is at."""
        self._tasks.put(None)
        while self._n_threads:
            self._ended.get()
            self._n_threads -= 1

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            function, arguments, outcome = task
            try:
                outcome.put((True, function(*arguments)))
            except BaseException as error:
                outcome.put((False, error))
            del task, function, arguments, outcome  # waiting holds no memory
        self._tasks.put(None)  # for the next thread
        self._ended.put(None)


def threads(
    function: Callable[..., Value],
    tasks: Iterable[tuple[Any, ...]],
    n_jobs: int | None,
) -> Iterator[Value]:
    """Values of a function, by threads; few tasks are made before they are needed.

    joblib's threads do the same, but it looks for results every 10 milliseconds, which
    is the time that such a task takes.
    """
    n_threads = min(effective_n_jobs(n_jobs), cpu_count())
    config = get_config()
    wanted = True

    def work(*task: Any) -> Value | None:
        return _configured(config, function, *task) if wanted else None

    pending: deque[SimpleQueue[Any]] = deque()
    kept = _kept_crews.get()
    crews = {} if kept is None else kept
    if n_threads not in crews:
        crews[n_threads] = Crew(n_threads)
    done = False
    try:
        for task in tasks:
            pending.append(crews[n_threads].submit(work, *task))
            if len(pending) > 2 * n_threads:
                yield _value(pending.popleft().get())
        while pending:
            yield _value(pending.popleft().get())
        done = True
    finally:
        # Nobody works on any more when an error or an interrupt leaves this place.
        if kept is None or not done:
            wanted = False
            crew = crews.pop(n_threads, None)
            if crew is not None:
                crew.close()


def _value(outcome: tuple[bool, Any]) -> Any:
    succeeded, value = outcome
    if not succeeded:
        raise value
    return value


# Threads of the `kept_threads` that this code is in, by their number.
_kept_crews: ContextVar[dict[int, Crew] | None] = ContextVar(
    "_kept_crews", default=None
)


@contextmanager
def kept_threads() -> Iterator[None]:
    """Start threads once for all maps inside; a start takes as long as a short map."""
    crews: dict[int, Crew] = {}
    token = _kept_crews.set(crews)
    try:
        yield
    finally:
        _kept_crews.reset(token)
        for crew in crews.values():
            crew.close()


def parallel(
    function: Callable[..., Value],
    tasks: Iterable[tuple[Any, ...]],
    n_jobs: int | None,
) -> Iterator[Value]:
    """Values of a function, by the workers of the backend that the user has set.

    `sklearn.utils.parallel` would hand the filters of warnings to the workers as well.
    They belong to the process, and threads that set and reset them side by side can
    leave it without any.
    """
    try:
        workers = Parallel(n_jobs=n_jobs, return_as="generator")
    except ValueError:  # an engine that returns everything at once
        workers = Parallel(n_jobs=n_jobs)
    config = get_config()
    yield from workers(delayed(_configured)(config, function, *task) for task in tasks)


def _configured(
    config: dict[str, Any], function: Callable[..., Value], *arguments: Any
) -> Value:
    """One task, with the configuration of scikit-learn that its caller has."""
    with config_context(**config):
        return function(*arguments)


def call_on_part(function: Callable[..., Value], part: Any, *arguments: Any) -> Value:
    """One task of `Rows.map`, wherever it runs."""
    with one_blas_thread():
        rows = part.read() if hasattr(part, "read") else part
        return function(rows, *arguments)


class _BlasUsers:
    lock = threading.Lock()
    number = 0
    limiter: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread while any thread of this process is inside.

    The limit belongs to the process: the first to enter sets it and the last to leave
    lifts it, so that tasks side by side do not lift it for one another. (With
    threadpoolctl >= 3.8, a limit that another thread of the user's holds stays.)
    """
    users, entered = _BlasUsers, False
    try:  # an interrupt may come at any time
        with users.lock:
            users.number += 1
            entered = True
            if users.number == 1:
                controller = _get_threadpool_controller()
                users.limiter = controller.limit(limits=1, user_api="blas")
        yield
    finally:
        with users.lock:
            users.number -= entered
            if users.number == 0 and users.limiter is not None:
                _release_openblas()
                users.limiter.restore_original_limits()
                _release_openblas()
                users.limiter = None


def _release_openblas() -> None:
    """Let any thread change the limit of OpenBLAS.

    threadpoolctl >= 3.8 listens to one thread alone, the first one, and silently
    ignores others until it is told that this one is done.
    """
    release = getattr(OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
