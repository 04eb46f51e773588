"""Workers that process chunks: threads of this process, or those of a joblib backend.

Threads end with the map that started them, or with the surrounding `kept_threads`. The
number of BLAS threads is global to the process and is only changed here.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import numpy as np
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
            self._n_threads += 1  # in this order, so that only running threads count

    def submit(self, function: Callable[..., Any], *arguments: Any) -> SimpleQueue[Any]:
        """Submit a task, and return a queue that will hold its outcome."""
        outcome: SimpleQueue[Any] = SimpleQueue()
        self._tasks.put((function, arguments, outcome))
        return outcome

    def close(self) -> None:
        """End the threads, each after its current task."""
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
            del task, function, arguments, outcome  # hold no memory while waiting
        self._tasks.put(None)  # for the next thread
        self._ended.put(None)


def threads(
    function: Callable[..., Value],
    tasks: Iterable[tuple[Any, ...]],
    n_jobs: int | None,
) -> Iterator[Value]:
    """Values of a function, computed by threads; tasks are created as needed.

    joblib does the same, but polls for results every 10 milliseconds, which is as long
    as such a task takes.
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
        # No thread continues to work after an error or an interrupt.
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


# Threads of the surrounding `kept_threads`, by their number.
_kept_crews: ContextVar[dict[int, Crew] | None] = ContextVar(
    "_kept_crews", default=None
)


@contextmanager
def kept_threads() -> Iterator[None]:
    """Start threads once for all maps inside, as a start takes as long as a map."""
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
    """Values of a function, computed by the joblib backend that the user has set.

    `sklearn.utils.parallel` would also pass the warning filters to the workers. These
    are global to the process, and threads that set and reset them concurrently can
    lose them.
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
    """Call a function with the scikit-learn configuration of the caller."""
    with config_context(**config):
        return function(*arguments)


class _Repeated(NamedTuple):
    """An array of equal rows, as it is sent to a worker."""

    row: Any
    length: int


def sent(values: Any) -> Any:
    """An array as it is sent to a worker.

    Pickling would write out an array that repeats one row without taking memory, which
    tasks could not recognise any more.
    """
    if isinstance(values, np.ndarray) and len(values) and not values.strides[0]:
        return _Repeated(values[:1], len(values))
    return values


def _received(values: Any) -> Any:
    if isinstance(values, _Repeated):
        return np.broadcast_to(values.row, (values.length, *values.row.shape[1:]))
    return values


def call_on_part(function: Callable[..., Value], part: Any, *arguments: Any) -> Value:
    """Run one task of `Rows.map` in any worker."""
    with one_blas_thread():
        rows = part.read() if hasattr(part, "read") else part
        return function(rows, *map(_received, arguments))


class _Pool:
    """Threads of BLAS: of the library that SciPy brings along, or of all others.

    NumPy and SciPy from PyPI have a library each, whose threads wait by spinning and
    keep those of the other from the cores.
    """

    def __init__(self, of_scipy: bool) -> None:
        self._of_scipy = of_scipy
        self._lock = threading.Lock()
        self.number = 0  # of threads that are inside `limited`
        self._limiter: Any = None

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Limit the pool to one thread while any thread of this process is inside.

        The limit is global to the process. The first to enter sets it and the last to
        leave restores it, so that concurrent tasks do not lift it for one another.
        (With threadpoolctl >= 3.8, a limit set by another thread of the user persists.)
        """
        entered = False
        try:  # an interrupt may come at any time
            with self._lock:
                self.number += 1
                entered = True
                if self.number == 1:
                    self._limiter = self._libraries().limit(limits=1)
            yield
        finally:
            with self._lock:
                self.number -= entered
                if self.number == 0 and self._limiter is not None:
                    _release_openblas()
                    self._limiter.restore_original_limits()
                    _release_openblas()
                    self._limiter = None

    def _libraries(self) -> Any:
        controller = _get_threadpool_controller().select(user_api="blas")
        paths = [library.filepath for library in controller.lib_controllers]
        paths = [path for path in paths if _is_scipys(path) == self._of_scipy]
        return controller.select(filepath=paths)


def _is_scipys(path: str) -> bool:
    folders = Path(path).parts[:-1]
    return "scipy.libs" in folders or ("scipy" in folders and ".dylibs" in folders)


_SCIPYS, _OTHERS = _Pool(of_scipy=True), _Pool(of_scipy=False)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread while any thread of this process is inside."""
    with _SCIPYS.limited(), _OTHERS.limited():
        yield


def one_scipy_thread() -> AbstractContextManager[None]:
    """Limit the BLAS of SciPy to one thread, if NumPy has another one.

    Where both are used in turns, matrix products of NumPy keep their threads. (Robust
    fits of 1,000 to 20,000 rows take half as long.)
    """
    return _SCIPYS.limited()


# A core takes about a millisecond for so many operations. If threads share fewer, and
# another process keeps a core busy, they spin for as long as it may run: a network took
# 30 times as long to train.
_WORTH_THREADS = 1e8


def blas_threads_for(operations: float) -> AbstractContextManager[None]:
    """Limit BLAS to one thread, except for large matrix products of NumPy."""
    return one_scipy_thread() if operations >= _WORTH_THREADS else one_blas_thread()


def _release_openblas() -> None:
    """Let any thread change the limit of OpenBLAS.

    threadpoolctl >= 3.8 only accepts changes from the first thread that made one, and
    silently ignores others until that thread is released.
    """
    release = getattr(OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
