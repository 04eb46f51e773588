"""Rows of data: where they live, how they are split, and who works on them.

Sums over rows are the package's unit of work. Borders of chunks depend on the number of
rows and the chunk size alone, chunks are computed with one BLAS thread each whenever
work is split, and results come back in order, so that sums are the same to the last bit
for any number and kind of workers.

A task is a plain function of the rows of one chunk, of the entries of *columns* that
belong to them, and of small arguments, so that it can go to a thread, a process or
another machine. A column holds a number, or a few, for each row (targets, residuals,
weights). Code that uses `Rows` never looks into a column by itself: it lies where the
rows are, and is read and filled by tasks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite

from sklearn_mm._rows.workers import (
    call_on_part,
    is_local,
    one_blas_thread,
    parallel,
    threads,
)
from sklearn_mm._solver.roles import Indices

# Rows and entries of a task: large enough that handing it to a worker costs nothing
# compared with it, and small enough that rows read from a file take little memory.
_CHUNK_ROWS, _CHUNK_ENTRIES = 262_144, 8_388_608
# Entries of columns that are one piece of work. They are passed through a few short
# calls, at each of which threads wait for the interpreter's lock.
_COLUMN_ROWS = 262_144

Column = Any


class SumOver(NamedTuple):
    """A sum: of a function of rows, or of columns alone, and small arguments."""

    function: Callable[..., Any]
    columns: tuple[Column, ...] = ()
    args: tuple[Any, ...] = ()
    reads_rows: bool = True


class RowNumbers:
    """The column of the rows' numbers, which takes no memory."""

    def __getitem__(self, rows: slice) -> Indices:
        return np.arange(rows.start, rows.stop)


def row_chunks(n_rows: int, chunk_size: int) -> list[slice]:
    """Slices of at most `chunk_size` rows that cover `n_rows` rows."""
    return [slice(i, min(i + chunk_size, n_rows)) for i in range(0, n_rows, chunk_size)]


@dataclass(frozen=True)
class Rows:
    """Rows of an array and the columns that belong to them.

    Parameters
    ----------
    X : array, sparse matrix, LazyRows or None
        The rows; None if there is nothing but columns.
    n_rows : int
        Their number.
    chunk_size : int or None, default=None
        Rows of a task; None lets it depend on the number of columns of X.
    n_jobs : int or None, default=None
        Number of workers.

    Attributes
    ----------
    chunks : list of slice
        Rows of each task.
    beside : Rows
        The columns alone: tasks are functions of these, and do not read X.
    """

    X: Any
    n_rows: int
    chunk_size: int | None = None
    n_jobs: int | None = None
    chunks: list[slice] = field(init=False, repr=False)
    beside: Rows = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n_jobs == 0:
            raise ValueError("n_jobs must be None or a non-zero integer, got 0.")
        X, size, beside = self.X, self.chunk_size, self
        if X is None:
            chunks = row_chunks(self.n_rows, size or _COLUMN_ROWS)
        else:
            beside = Rows(None, self.n_rows, size, self.n_jobs)
            entries = _CHUNK_ENTRIES // max(1, X.shape[1])
            size = size or max(64, min(_CHUNK_ROWS, entries))
            # Blocks of X where it has borders that are given.
            chunks = getattr(X, "row_blocks", None) or row_chunks(self.n_rows, size)
        object.__setattr__(self, "chunks", chunks)
        object.__setattr__(self, "beside", beside)

    @classmethod
    def of(
        cls, X: Any, chunk_size: int | None = None, n_jobs: int | None = None
    ) -> Any:
        """The rows of X: `Rows`, or an object of the same methods for their engine."""
        if hasattr(X, "in_blocks"):
            return X.in_blocks()
        return cls(X, X.shape[0], chunk_size, n_jobs)

    def place(self, values: Any) -> Column:
        """A column of an array that has an entry for every row."""
        return values

    def column(
        self, n_columns: int | None = None, dtype: Any = np.float64
    ) -> NDArray[Any]:
        """Memory for a number, or `n_columns` numbers, beside every row.

        Callers fill it again and again: fresh pages of the length of the data take as
        long to get as the numbers in them to compute.
        """
        shape = (self.n_rows,) if n_columns is None else (self.n_rows, n_columns)
        return np.empty(shape, dtype)

    def keep(self, column: Column) -> Column:
        """Have a column kept that is needed more than once; here they all are."""
        return column

    def output(self, column: Column, dtype: Any) -> Any:
        """A column as it is handed to the user."""
        return column

    def take(self, index: Indices, *columns: Column) -> tuple[Any, ...]:
        """Some rows of X, in the order of the index, and their entries of columns."""
        own = () if self.X is None else (self.X,)
        return tuple(values[index] for values in (*own, *columns))

    def check_finite(self, estimator_name: str) -> None:
        """Raise a ValueError if an entry of X is not finite.

        Rows that are read on demand are checked when they are read.
        """
        if isinstance(self.X, np.ndarray) or scipy.sparse.issparse(self.X):
            assert_all_finite(self.X, estimator_name=estimator_name, input_name="X")

    def map(
        self,
        function: Callable[..., Any],
        *columns: Column,
        args: tuple[Any, ...] = (),
    ) -> Iterator[Any]:
        """Values of ``function(X, *columns, *args)`` for the chunks, in order.

        Threads are asked for: the work is BLAS, which releases the interpreter's lock.
        A `joblib.parallel_config` overrides that.
        """
        chunks = self.chunks
        if len(chunks) == 1:
            return iter([self._task(function, columns, args, chunks[0])])
        if self.X is None or is_local(self.n_jobs):
            return self._by_threads(
                lambda chunk: self._task(function, columns, args, chunk)
            )
        # Rows that are read on demand are read by the worker.
        part = getattr(self.X, "part", self.X.__getitem__)
        tasks = (
            (function, part(chunk), *(column[chunk] for column in columns), *args)
            for chunk in chunks
        )
        return parallel(call_on_part, tasks, self.n_jobs)

    def sum(
        self,
        function: Callable[..., Any],
        *columns: Column,
        args: tuple[Any, ...] = (),
    ) -> Any:
        """Sum of the values of `map`, or of each entry if they are tuples."""
        return functools.reduce(add, self.map(function, *columns, args=args))

    def sums(self, *wanted: SumOver) -> Iterator[Any]:
        """Several sums, each computed when it is asked for.

        Engines elsewhere compute all of them at once, to spare trips: what may not be
        needed comes last.
        """
        for function, columns, args, reads_rows in wanted:
            rows = self if reads_rows else self.beside
            yield rows.sum(function, *columns, args=args)

    def total(self, column: Column) -> float:
        """Sum of a column of single numbers."""
        return float(column.sum())

    def fill(
        self,
        out: Column,
        function: Callable[..., Any],
        *columns: Column,
        args: tuple[Any, ...] = (),
    ) -> Column:
        """Put the values of `map`, an entry for each row, where they belong in `out`.

        Workers of this process hand the function its part of `out` as a keyword, for it
        to fill. Workers elsewhere call it without, and what it returns is put there.
        """
        if len(self.chunks) == 1:
            self._task(function, columns, args, self.chunks[0], out=out)
            return out
        if self.X is None or is_local(self.n_jobs):

            def task(chunk: slice) -> None:
                self._task(function, columns, args, chunk, out=out[chunk])

            for _ in self._by_threads(task):
                pass
            return out
        values = self.map(function, *columns, args=args)
        for chunk, value in zip(self.chunks, values, strict=True):
            out[chunk] = value
        return out

    def _task(
        self,
        function: Callable[..., Any],
        columns: tuple[Column, ...],
        args: tuple[Any, ...],
        chunk: slice,
        **out: Any,
    ) -> Any:
        whole = len(self.chunks) == 1
        parts = [_part(column, chunk, whole) for column in columns]
        if self.X is None:
            return function(*parts, *args, **out)
        return function(_part(self.X, chunk, whole), *parts, *args, **out)

    def _by_threads(self, task: Callable[[slice], Any]) -> Iterator[Any]:
        """Values of a function of chunks, by threads of this process."""
        with one_blas_thread():
            if effective_n_jobs(self.n_jobs) == 1:
                yield from map(task, self.chunks)
            else:
                yield from threads(
                    task, ((chunk,) for chunk in self.chunks), self.n_jobs
                )


def _part(values: Any, chunk: slice, whole: bool) -> Any:
    """Rows of a chunk; slicing a sparse matrix would copy all of it."""
    if whole and (isinstance(values, np.ndarray) or scipy.sparse.issparse(values)):
        return values
    return values[chunk]


def add(first: Any, second: Any) -> Any:
    """Sum of two values of `Rows.map`."""
    if isinstance(first, tuple):
        return tuple(a + b for a, b in zip(first, second, strict=True))
    return first + second
