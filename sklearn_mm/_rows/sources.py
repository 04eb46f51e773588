"""Rows that are read when they are needed.

Arrays larger than memory (HDF5 and Zarr datasets, Dask arrays, memory maps of integers)
are never read whole. They stand in for X wherever the package goes over rows: a slice
gives a checked NumPy array in the precision that the estimator works in. `MappedRows`
does the same for targets, which would double in memory if they were converted at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils import check_array

from sklearn_mm._rows.table import row_chunks
from sklearn_mm._rows.workers import call_on_part
from sklearn_mm._solver.roles import Array

# Rows read at a time when a few are gathered from everywhere.
_GATHERED_ENTRIES = 4_000_000


def is_lazy(X: Any) -> bool:
    """Whether X is an array that would have to be read, or converted, as a whole."""
    if scipy.sparse.issparse(X) or hasattr(X, "__dataframe__"):
        return False
    if isinstance(X, np.ndarray):
        mapped = isinstance(X, np.memmap) and X.ndim == 2
        return mapped and X.dtype not in (np.float32, np.float64) and _is_number(X)
    has_rows = all(hasattr(X, name) for name in ("shape", "dtype", "__getitem__"))
    return has_rows and len(X.shape) == 2 and _is_number(X)


def _is_number(X: Any) -> bool:
    return isinstance(X.dtype, np.dtype) and X.dtype.kind in "fiub"


def lazy_rows(X: Any) -> LazyRows:
    """Reader of an array for which `is_lazy` holds."""
    if hasattr(X, "to_delayed") and hasattr(X, "rechunk"):
        return DaskRows.of(X)
    return LazyRows(X)


@dataclass(frozen=True)
class LazyRows:
    """Rows of an array-like object that slices, read and checked on demand."""

    array: Any

    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        """Precision of the rows that are read."""
        return np.dtype(np.float32 if self.array.dtype == np.float32 else np.float64)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Array) -> Array:
        if isinstance(rows, slice):
            return self.check(self.array[rows])
        return self._gather(np.asarray(rows))

    def check(self, rows: Any) -> Array:
        """A NumPy array of finite numbers, in the precision to use."""
        if not len(rows):
            return np.empty((0, self.shape[1]), dtype=self.dtype)
        checked: Array = check_array(np.asarray(rows), dtype=self.dtype, input_name="X")
        return checked

    def part(self, chunk: slice) -> _Part:
        """What a worker needs to read a chunk."""
        return _Part(self, chunk)

    def _gather(self, rows: Any) -> Array:
        """Any rows in any order; a block that holds some is read once."""
        if rows.dtype == bool:
            return self._gather(np.flatnonzero(rows))
        out = np.empty((len(rows), self.shape[1]), dtype=self.dtype)
        blocks = self.batch_blocks
        of_row = np.searchsorted([b.start for b in blocks], rows, side="right") - 1
        order = np.argsort(of_row, kind="stable")
        wanted, first = np.unique(of_row[order], return_index=True)
        places = np.split(order, first[1:])
        parts = {
            int(i): rows[where] - blocks[i].start
            for i, where in zip(wanted, places, strict=False)
        }
        for where, values in zip(places, self._rows_of(parts, blocks), strict=False):
            out[where] = values
        return out

    def _rows_of(self, parts: dict[int, Array], blocks: list[slice]) -> Iterator[Array]:
        """Some rows of some blocks."""
        return (self[blocks[i]][rows] for i, rows in parts.items())

    @property
    def batch_blocks(self) -> list[slice]:
        """Blocks of rows that are read at once where a few rows are needed."""
        return row_chunks(len(self), max(1, _GATHERED_ENTRIES // self.shape[1]))


@dataclass
class BlockReader:
    """The block of rows that mini-batches are drawn from at present.

    Stands in for X in training with mini-batches, which come from one block after
    another, so that each is read once an epoch.
    """

    rows: LazyRows
    number: int = -1  # of the block in hand
    block: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape

    @property
    def dtype(self) -> np.dtype:
        return self.rows.dtype

    @property
    def batch_blocks(self) -> list[slice]:
        """Borders of the blocks."""
        return self.rows.batch_blocks

    def __getitem__(self, rows: Array) -> Array:
        blocks = self.batch_blocks
        number = bisect.bisect(blocks, int(rows[0]), key=lambda block: block.start) - 1
        start, stop = blocks[number].start, blocks[number].stop
        if rows.min() < start or rows.max() >= stop:  # from everywhere
            return self.rows[rows]
        if number != self.number or self.block is None:
            self.number, self.block = number, self.rows[blocks[number]]
        return self.block[rows - start]


@dataclass(frozen=True)
class _Part:
    rows: LazyRows
    chunk: slice

    def read(self) -> Array:
        return self.rows[self.chunk]


@dataclass(frozen=True)
class DaskRows(LazyRows):
    """A Dask array: every block of rows is a chunk, and is worked on where it lies."""

    @classmethod
    def of(cls, array: Any) -> DaskRows:
        if np.isnan(array.shape[0]):
            raise ValueError(
                "X is a Dask array with blocks of unknown length. Call "
                "X.compute_chunk_sizes() first."
            )
        if array.numblocks[1] > 1:
            array = array.rechunk({1: -1})
        if array.shape[0] and 0 in array.chunks[0]:  # as a filter leaves them
            array = array.blocks[np.flatnonzero(array.chunks[0])]
        return cls(array)

    @property
    def row_blocks(self) -> list[slice]:
        """Borders of the blocks."""
        ends = np.cumsum(self.array.chunks[0])
        starts = ends - self.array.chunks[0]
        return [slice(int(a), int(b)) for a, b in zip(starts, ends, strict=True)]

    def __getitem__(self, rows: slice | Array) -> Array:
        if isinstance(rows, slice):
            return self.check(self.array[rows].compute())
        return self._gather(np.asarray(rows))

    def map_blocks(
        self,
        function: Callable[..., Any],
        chunks: Sequence[slice],
        arguments: Callable[[slice], tuple[Any, ...]],
    ) -> Iterator[Any]:
        """Tasks of `Rows.map` as tasks of Dask's scheduler, in order.

        Arguments travel in the graph, which the scheduler keeps: a task whose worker is
        lost can be run again.
        """
        import dask

        blocks = self.array.to_delayed().ravel()
        task = dask.delayed(_call_on_block, pure=False)
        reader = LazyRows(_Shape(self.array.shape, self.array.dtype))
        with dask.config.set(_GRAPH_CARRIES_ROWS):
            tasks = [
                task(function, reader, block, *arguments(chunk))
                for block, chunk in zip(blocks, chunks, strict=True)
            ]
            yield from dask.compute(*tasks)

    def _rows_of(self, parts: dict[int, Array], blocks: list[slice]) -> Iterator[Array]:
        # Workers pick rows from their blocks, which stay where they are.
        array = self.array.blocks[list(parts)]
        wanted = iter(parts.values())
        chunks = [blocks[i] for i in parts]
        return replace(self, array=array).map_blocks(
            _take, chunks, lambda chunk: (next(wanted),)
        )

    @property
    def batch_blocks(self) -> list[slice]:
        """The blocks of the array."""
        return self.row_blocks


# Residuals and weights of the rows of all blocks are no accident.
_GRAPH_CARRIES_ROWS = {"distributed.admin.large-graph-warning-threshold": "1TB"}


@dataclass(frozen=True)
class _Shape:
    """What is left of an array whose rows are handed over."""

    shape: tuple[int, int]
    dtype: np.dtype


def _call_on_block(
    function: Callable[..., Any], reader: LazyRows, block: Any, *arguments: Any
) -> Any:
    return call_on_part(function, reader.check(block), *arguments)


def _take(X: Array, rows: Array) -> Array:
    return X[rows]


@dataclass(frozen=True)
class MappedRows:
    """Rows of an array, passed through a function as they are read."""

    array: Array
    function: Callable[[Array], Array]
    n_columns: int
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.array), self.n_columns

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: slice | Array) -> Array:
        return self.function(self.array[rows])
