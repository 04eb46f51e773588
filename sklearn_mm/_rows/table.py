"""Rows of data: where they are stored, how they are split and processed in parallel.

Sums over rows are the unit of work of the package. The boundaries of chunks only depend
on the number of rows and the chunk size, chunks use one BLAS thread each whenever work
is split, and results are returned in order. Sums are therefore the same to the last bit
for any number and kind of workers.

A task is a plain function of the rows of one chunk, of the entries of *columns* that
belong to them, and of small arguments, so that it can run in a thread, a process or on
another machine. A column contains one or a few numbers per row (targets, residuals,
weights). Code that uses `Rows` never accesses a column directly: it is stored where the
rows are, and is read and filled by tasks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

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
    sent,
    threads,
)
from sklearn_mm._solver.roles import Indices

# Rows and entries of a task: large enough that the overhead of a worker is negligible,
# and small enough that rows read from a file take little memory.
_CHUNK_ROWS, _CHUNK_ENTRIES = 262_144, 8_388_608
# Entries of columns that are one piece of work. They are passed through a few short
# calls, at each of which threads wait for the interpreter's lock. A million entries at
# once have taken three times as long per entry (see `InPieces`).
PIECE_ROWS = 262_144

Column = Any


@dataclass(frozen=True)
class InPieces:
    """A sum over rows, added up over pieces of them.

    Arrays of many more rows are handed back to the system by every call, and the fresh
    pages of the next one take longer than the work on them.

    Parameters
    ----------
    function : callable
        Maps rows, or columns, and small arguments to a value that can be added.
    n_arrays : int
        How many of the first arguments have an entry for every row.
    """

    function: Callable[..., Any]
    n_arrays: int

    def __call__(self, *values: Any) -> Any:
        arrays, args = values[: self.n_arrays], values[self.n_arrays :]
        n_rows = arrays[0].shape[0]
        if n_rows <= PIECE_ROWS:
            return self.function(*values)
        parts = (
            self.function(*(array[piece] for array in arrays), *args)
            for piece in row_chunks(n_rows, PIECE_ROWS)
        )
        return functools.reduce(add, parts)


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
        The rows, or None if there are only columns.
    n_rows : int
        Number of rows.
    chunk_size : int or None, default=None
        Number of rows per task. If None, it depends on the number of columns of X.
    n_jobs : int or None, default=None
        Number of workers.

    Attributes
    ----------
    chunks : list of slice
        Rows of each task.
    beside : Rows
        The columns alone: tasks are functions of these, and do not read X.
    held : bool
        Whether the workers of a cluster hold the rows.
    """

    held: ClassVar[bool] = False

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
            chunks = row_chunks(self.n_rows, size or PIECE_ROWS)
        else:
            beside = Rows(None, self.n_rows, size, self.n_jobs)
            entries = _CHUNK_ENTRIES // max(1, X.shape[1])
            size = size or max(64, min(_CHUNK_ROWS, entries))
            # The blocks of X, if it consists of blocks.
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
        """Allocate memory for one number, or `n_columns` numbers, per row.

        Callers should reuse it: allocating new pages for the whole data takes as long
        as computing the numbers in them.
        """
        shape = (self.n_rows,) if n_columns is None else (self.n_rows, n_columns)
        return np.empty(shape, dtype)

    def keep(self, column: Column) -> Column:
        """Keep a column that is needed more than once; here, all columns are kept."""
        return column

    def output(self, column: Column, dtype: Any) -> Any:
        """A column as it is handed to the user."""
        return column

    def values(
        self,
        function: Callable[..., Any],
        *columns: Column,
        args: tuple[Any, ...] = (),
        shape: tuple[int, ...] = (),
        dtype: Any = np.float64,
    ) -> Any:
        """Values of `map`, one or an array of this shape per row, as one array."""
        return np.concatenate(list(self.map(function, *columns, args=args)))

    def take(self, index: Indices, *columns: Column) -> tuple[Any, ...]:
        """Some rows of X, in the order of the index, and their entries of columns."""
        own = () if self.X is None else (self.X,)
        return tuple(values[index] for values in (*own, *columns))

    def take_with(
        self, wanted: Iterable[SumOver], index: Indices, *columns: Column
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The same, and several sums, which take distributed engines one round trip."""
        return self.take(index, *columns), tuple(self.sums(wanted))

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

        Threads are preferred, since the work is done by BLAS, which releases the
        interpreter lock. A `joblib.parallel_config` overrides this.
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
            (function, part(chunk), *(sent(column[chunk]) for column in columns), *args)
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
        n_arrays = len(columns) + (self.X is not None)
        pieces = InPieces(function, n_arrays)
        return functools.reduce(add, self.map(pieces, *columns, args=args))

    def sums(self, wanted: Iterable[SumOver]) -> Iterator[Any]:
        """Several sums, each made and computed when it is asked for.

        Distributed engines compute all of them at once to save round trips. Sums that
        may not be needed should come last.
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
        """Store the values of `map`, one entry per row, in `out`.

        Workers of this process pass the corresponding part of `out` to the function as
        a keyword. Other workers call it without, and its return value is stored.
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
