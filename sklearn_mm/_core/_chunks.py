"""Ordered map over chunks of rows.

Sums over rows are the package's unit of work. Chunk borders depend on the number of
rows and the chunk size alone, and results come back in order, so that sums are the
same to the last bit for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from joblib import effective_n_jobs
from sklearn.utils.parallel import Parallel, _get_threadpool_controller, delayed

Value = TypeVar("Value")


def row_chunks(n_rows: int, chunk_size: int) -> list[slice]:
    """Slices of at most `chunk_size` rows that cover `n_rows` rows."""
    return [slice(i, min(i + chunk_size, n_rows)) for i in range(0, n_rows, chunk_size)]


def map_chunks(
    function: Callable[[slice], Value], chunks: Sequence[slice], n_jobs: int | None
) -> Iterator[Value]:
    """Values of `function` on the chunks, in order.

    Threads are asked for: the work is BLAS, which releases the interpreter's lock. A
    `joblib.parallel_config` overrides that. Each chunk is computed with one BLAS
    thread whenever work is split, whoever computes it.
    """
    if len(chunks) == 1:
        yield function(chunks[0])
        return
    with _get_threadpool_controller().limit(limits=1, user_api="blas"):
        if effective_n_jobs(n_jobs) == 1:
            yield from map(function, chunks)
        else:
            parallel = Parallel(n_jobs=n_jobs, prefer="threads", return_as="generator")
            yield from parallel(delayed(function)(chunk) for chunk in chunks)
