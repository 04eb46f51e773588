"""Ordered maps over chunks of rows.

Sums over rows are the package's unit of work. Chunk borders depend on the number of
rows and the chunk size alone, chunks are computed with one BLAS thread each whenever
work is split, and results come back in order, so that sums are the same to the last
bit for any number and kind of workers.

Two maps, for two kinds of data, each with a form that fills an array (`fill_rows`,
`fill_chunks`):

`map_rows`
    reads X, which may be anywhere. A task is a plain function, the rows of one chunk
    and small arguments, so that it can go to a thread, a process or another machine.
`map_chunks`
    works on numbers that are kept for every row (residuals, weights). They stay in this
    process and are shared by threads.

Threads end with the map that has started them, or with the `kept_threads` around it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from joblib import Parallel, cpu_count, delayed, effective_n_jobs
from joblib.parallel import ThreadingBackend, get_active_backend
from sklearn import config_context, get_config
from sklearn.utils.parallel import _get_threadpool_controller
from threadpoolctl import OpenBLASController

Value = TypeVar("Value")


def row_chunks(n_rows: int, chunk_size: int) -> list[slice]:
    """Slices of at most `chunk_size` rows that cover `n_rows` rows."""
    return [slice(i, min(i + chunk_size, n_rows)) for i in range(0, n_rows, chunk_size)]


def chunks_of(X: Any, chunk_size: int) -> list[slice]:
    """Chunks of the rows of X: its own where it has borders that cannot be chosen."""
    own: list[slice] | None = getattr(X, "row_blocks", None)
    return row_chunks(X.shape[0], chunk_size) if own is None else own


def map_chunks(
    function: Callable[[slice], Value], chunks: Sequence[slice], n_jobs: int | None
) -> Iterator[Value]:
    """Values of `function` on the chunks, in order, by threads of this process."""
    if len(chunks) == 1:
        yield function(chunks[0])
        return
    with one_blas_thread():
        if effective_n_jobs(n_jobs) == 1:
            yield from map(function, chunks)
        else:
            yield from _threads(function, ((chunk,) for chunk in chunks), n_jobs)


def fill_chunks(
    function: Callable[[slice], Any],
    chunks: Sequence[slice],
    n_jobs: int | None,
    out: Any,
) -> Any:
    """Put the values of `function`, an entry for each row, where they belong in `out`.

    Callers fill the same memory again: fresh pages of the length of the data take as
    long to get as the numbers in them to compute.
    """

    def fill(chunk: slice) -> None:
        out[chunk] = function(chunk)

    for _ in map_chunks(fill, chunks, n_jobs):
        pass
    return out


def map_rows(
    function: Callable[..., Value],
    X: Any,
    chunks: Sequence[slice],
    n_jobs: int | None,
    arguments: Callable[[slice], tuple[Any, ...]] = lambda chunk: (),
) -> Iterator[Value]:
    """Values of ``function(X[chunk], *arguments(chunk))``, in order.

    Threads are asked for: the work is BLAS, which releases the interpreter's lock. A
    `joblib.parallel_config` overrides that. Data that come with an engine of their own
    (`map_blocks`) are worked on by it.
    """
    engine = getattr(X, "map_blocks", None)
    if engine is not None:
        yield from engine(function, chunks, arguments)
    elif _is_local(chunks, n_jobs):
        yield from map_chunks(
            lambda chunk: function(X[chunk], *arguments(chunk)), chunks, n_jobs
        )
    else:
        # Rows that are read on demand are read by the worker.
        part = getattr(X, "part", X.__getitem__)
        tasks = ((function, part(chunk), *arguments(chunk)) for chunk in chunks)
        yield from _parallel(call_on_part, tasks, n_jobs)


def fill_rows(
    function: Callable[..., Any],
    X: Any,
    chunks: Sequence[slice],
    n_jobs: int | None,
    arguments: Callable[[slice], tuple[Any, ...]],
    out: Any,
) -> Any:
    """`map_rows` for values with an entry for each row, which go to `out`.

    Threads of this process hand the function its part of `out` as a keyword, for it to
    fill. Workers elsewhere call it without, and what it returns is put there.
    """
    if not hasattr(X, "map_blocks") and _is_local(chunks, n_jobs):

        def fill(chunk: slice) -> None:
            function(X[chunk], *arguments(chunk), out=out[chunk])

        for _ in map_chunks(fill, chunks, n_jobs):
            pass
        return out
    values = map_rows(function, X, chunks, n_jobs, arguments)
    for chunk, value in zip(chunks, values, strict=True):
        out[chunk] = value
    return out


def _is_local(chunks: Sequence[slice], n_jobs: int | None) -> bool:
    """Whether rows are worked on by threads of this process."""
    if len(chunks) == 1 or effective_n_jobs(n_jobs) == 1:
        return True
    return isinstance(get_active_backend(prefer="threads")[0], ThreadingBackend)


def _threads(
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
    pending: deque[Future[Value]] = deque()
    with _pool_of(n_threads) as pool:
        try:
            for task in tasks:
                pending.append(pool.submit(_configured, config, function, *task))
                if len(pending) > 2 * n_threads:
                    value = pending[0].result()
                    pending.popleft()
                    yield value
            while pending:
                value = pending[0].result()
                pending.popleft()
                yield value
        finally:
            # Nobody works on anymore when an error or an interrupt leaves this place.
            for future in pending:
                future.cancel()
            wait(pending)


# Threads of the `kept_threads` that this code is in, by their number.
_kept_pools: ContextVar[dict[int, ThreadPoolExecutor] | None] = ContextVar(
    "_kept_pools", default=None
)


@contextmanager
def kept_threads() -> Iterator[None]:
    """Start threads once for all maps inside; a start takes as long as a short map."""
    pools: dict[int, ThreadPoolExecutor] = {}
    token = _kept_pools.set(pools)
    try:
        yield
    finally:
        _kept_pools.reset(token)
        for pool in pools.values():
            pool.shutdown()


@contextmanager
def _pool_of(n_threads: int) -> Iterator[ThreadPoolExecutor]:
    kept = _kept_pools.get()
    if kept is None:
        with ThreadPoolExecutor(n_threads) as pool:
            yield pool
        return
    if n_threads not in kept:
        kept[n_threads] = ThreadPoolExecutor(n_threads)
    yield kept[n_threads]


def _parallel(
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
        parallel = Parallel(n_jobs=n_jobs, return_as="generator")
    except ValueError:  # an engine that returns everything at once
        parallel = Parallel(n_jobs=n_jobs)
    config = get_config()
    yield from parallel(delayed(_configured)(config, function, *task) for task in tasks)


def _configured(
    config: dict[str, Any], function: Callable[..., Value], *arguments: Any
) -> Value:
    """One task, with the configuration of scikit-learn that its caller has."""
    with config_context(**config):
        return function(*arguments)


def call_on_part(function: Callable[..., Value], part: Any, *arguments: Any) -> Value:
    """One task of `map_rows`, wherever it runs."""
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
