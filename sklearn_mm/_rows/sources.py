"""Rows that are read on demand.

Arrays larger than memory (HDF5 and Zarr datasets, Dask arrays, memory maps of integers)
are never read as a whole. The classes of this module replace X wherever the package
iterates over rows: a slice is a validated NumPy array in the precision of the
estimator. `MappedRows` does the same for targets, which would take twice the memory if
they were converted at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils import check_array

from sklearn_mm._rows.blocks import BlockRows
from sklearn_mm._rows.groups import delayed_blocks
from sklearn_mm._rows.table import row_chunks
from sklearn_mm._solver.roles import Array

# Rows read at a time when a few are gathered from everywhere.
_GATHERED_ENTRIES = 4_000_000
# Kinds of dtypes that are numbers.
_NUMBERS = "fiub"


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
    return isinstance(X.dtype, np.dtype) and X.dtype.kind in _NUMBERS


def is_dask(X: Any) -> bool:
    """Whether X is a Dask array."""
    return hasattr(X, "to_delayed") and hasattr(X, "rechunk")


def in_memory(values: Any) -> Any:
    """A Dask array as one of this process; others as they are."""
    return values.compute() if is_dask(values) else values


def arrays_of_frames(X: Any, numeric: bool = True) -> tuple[Any, Any]:
    """A Dask data frame or series as an array, and the frame's empty rows for names.

    Lengths of partitions are computed, which an array needs to know. Truth values
    beside numbers, and types that NumPy does not have, would make arrays of objects:
    they are converted, to floats unless they are labels.
    """
    if not hasattr(X, "to_dask_array"):
        return X, None
    empty = X._meta
    types = np.atleast_1d(empty.dtypes)
    if not all(isinstance(t, np.dtype) for t in types) or empty.values.dtype == object:
        number: Any = np.float64
        if not numeric:
            number = getattr(types[0], "numpy_dtype", object)
        if np.dtype(number).kind in _NUMBERS:
            X = X.astype(number)
    return X.to_dask_array(lengths=True), empty


def numbers_of(name: str, values: Any) -> Any:
    """A Dask array in a type of numbers, as scikit-learn would convert it."""
    if values.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} is complex.")
    return values if values.dtype.kind in _NUMBERS else values.astype(np.float64)


def check_lengths(name: str, values: Any, n_rows: int) -> None:
    """Raise a ValueError unless a Dask array has a given, known number of rows.

    Nor may it have masks, which would be ignored.
    """
    if isinstance(getattr(values, "_meta", None), np.ma.MaskedArray):
        raise ValueError(
            f"{name} is a Dask array of masked blocks, which are not supported. Fill "
            f"the masked entries first: dask.array.ma.filled({name}, value)."
        )
    if np.isnan(values.shape[0]):
        raise ValueError(
            f"{name} is a Dask array with blocks of unknown length. Call "
            f"{name}.compute_chunk_sizes() first."
        )
    if values.shape[0] != n_rows:
        raise ValueError(
            "Found input variables with inconsistent numbers of samples: "
            f"{[n_rows, int(values.shape[0])]}"
        )


def lazy_rows(X: Any) -> LazyRows:
    """Reader of an array for which `is_lazy` holds."""
    if is_dask(X):
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
        for i, places in zip(wanted, np.split(order, first[1:]), strict=False):
            out[places] = self[blocks[i]][rows[places] - blocks[i].start]
        return out

    @property
    def batch_blocks(self) -> list[slice]:
        """Blocks of rows that are read at once where a few rows are needed."""
        return row_chunks(len(self), max(1, _GATHERED_ENTRIES // self.shape[1]))


@dataclass
class BlockReader:
    """The block of rows from which mini-batches are currently drawn.

    Replaces X in training with mini-batches, which are drawn from one block after
    another, so that each block is read once per epoch.
    """

    rows: LazyRows
    number: int = -1  # of the block in hand
    block: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
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
    """Dask array whose blocks are the chunks, processed where they are stored."""

    @classmethod
    def of(cls, array: Any) -> DaskRows:
        check_lengths("X", array, array.shape[0])
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

    def in_blocks(self) -> BlockRows:
        """The rows as tasks of Dask's scheduler work on them."""
        return BlockRows(self, delayed_blocks(self.array))

    def _gather(self, rows: Any) -> Array:
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        (found,) = self.in_blocks().take(rows)
        return self.check(found)

    @property
    def batch_blocks(self) -> list[slice]:
        """The blocks of the array."""
        return self.row_blocks


@dataclass(frozen=True)
class DaskTargets:
    """Targets in a Dask array, of which a few are read."""

    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def __getitem__(self, rows: slice | Array) -> Array:
        return np.asarray(self.array[rows])


def target_source(X: LazyRows, y: Any, in_batches: bool) -> Any:
    """Targets as training reads them: a few at a time, or where the rows are."""
    if in_batches:
        return DaskTargets(y) if is_dask(y) else y
    if not isinstance(X, DaskRows):
        return y
    rows = X.in_blocks()
    return rows.keep(rows.place(y))


@dataclass(frozen=True)
class MappedRows:
    """Rows of an array, passed through a function as they are read."""

    array: Any
    function: Callable[[Array], Array]
    n_columns: int
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape[0], self.n_columns

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Array) -> Array:
        return self.function(self.array[rows])
