"""Tasks on blocks of rows: plain functions that Dask's workers run.

A task works on one block, or on several that lie with the same worker. Its arguments
are a `Work`, which says what to compute, and *inputs*, which Dask replaces by their
values: blocks of X, and parts of columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from sklearn_mm._rows.table import PIECE_ROWS, RowNumbers, add, row_chunks
from sklearn_mm._rows.workers import one_blas_thread
from sklearn_mm._solver.roles import Array


class Constant:
    """A column that repeats one row."""

    __slots__ = ("value",)

    def __init__(self, value: Array) -> None:
        self.value = value


class Own:
    """A value of each block, which is part of the work."""


class Call:
    """A function of the rows of a block and of columns."""

    __slots__ = ("args", "columns", "function", "opens", "reads_rows")

    def __init__(
        self,
        function: Callable[..., Any],
        columns: tuple[Any, ...],
        args: tuple[Any, ...],
        reads_rows: bool,
    ) -> None:
        self.function, self.columns, self.args = function, columns, args
        self.reads_rows = reads_rows
        inside = [column for column in columns if isinstance(column, Call)]
        self.opens: bool = reads_rows or any(call.opens for call in inside)


class Place(NamedTuple):
    """Where a task finds something: the number of an input, and an entry of it."""

    number: int
    entry: int | None = None  # the whole input

    def value(self, inputs: tuple[Any, ...]) -> Any:
        """What is there."""
        found = inputs[self.number]
        return found if self.entry is None else found[self.entry]


class Part(NamedTuple):
    """A block as a task sees it."""

    chunk: slice
    block: Place | None  # None if no call needs the rows
    leaves: tuple[Place, ...]  # parts of columns
    own: Any = None


class Work:
    """What a task computes: the same calls on each of its blocks.

    Dask looks into tuples and data classes, but not into this object, whose arguments
    are not collections of Dask.
    """

    __slots__ = ("calls", "dtype", "parts")

    def __init__(
        self, calls: tuple[Call, ...], dtype: np.dtype, parts: tuple[Part, ...]
    ) -> None:
        self.calls, self.dtype, self.parts = calls, dtype, parts

    @property
    def opens(self) -> bool:
        """Whether any call needs the rows of X."""
        return any(call.opens for call in self.calls)


class _Block(NamedTuple):
    """The values of a part."""

    chunk: slice
    rows: Any
    leaves: tuple[Any, ...]
    own: Any

    def whole(self) -> _Block:
        """All of its rows."""
        return self.piece(slice(0, self.chunk.stop - self.chunk.start))

    def piece(self, part: slice) -> _Block:
        """Some of its rows."""
        start = self.chunk.start
        chunk = slice(start + part.start, start + part.stop)
        rows = None if self.rows is None else _aligned(self.rows[part])
        leaves = tuple(_aligned(leaf[part]) for leaf in self.leaves)
        return _Block(chunk, rows, leaves, self.own)


def _aligned(values: Any) -> Any:
    """An array in memory at multiples of its item size.

    Arrays that have been sent may lie anywhere. NumPy computes with them in another
    order, and in more time than it takes to copy them.
    """
    return values if values.flags.aligned else values.copy()


# Kinds of tasks


def map_blocks(work: Work, *inputs: Any) -> list[tuple[Any, ...]]:
    """Values of all calls, for each block."""
    with one_blas_thread():
        return [_evaluated(work, block.whole()) for block in _blocks(work, inputs)]


def sum_blocks(work: Work, *inputs: Any) -> list[tuple[Any, ...]]:
    """The same for calls whose values add up, piece by piece (see `InPieces`)."""
    return [
        functools.reduce(add_all, (values for _, values in _in_pieces(work, block)))
        for block in _blocks(work, inputs)
    ]


def total_of_blocks(work: Work, *inputs: Any) -> tuple[Any, ...]:
    """Sums over all blocks."""
    return functools.reduce(add_all, sum_blocks(work, *inputs))


def fill_blocks(work: Work, *inputs: Any) -> list[Array]:
    """A column: values of the only call, which has an entry for every row."""
    return [_filled(work, block) for block in _blocks(work, inputs)]


def value_of_block(work: Work, *inputs: Any) -> Any:
    """The value of the only call on the only block."""
    ((value,),) = map_blocks(work, *inputs)
    return value


def next_state(work: Work, state: Any, *inputs: Any) -> Any:
    """The same for a function that also takes a state."""
    (call,) = work.calls
    call = Call(call.function, call.columns, (state, *call.args), call.reads_rows)
    return value_of_block(Work((call,), work.dtype, work.parts), *inputs)


def add_all(*values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sums of the entries of tuples."""
    return tuple(functools.reduce(add, sums) for sums in zip(*values, strict=True))


def _blocks(work: Work, inputs: tuple[Any, ...]) -> Iterator[_Block]:
    opens = work.opens
    for chunk, place, leaves, own in work.parts:
        rows = None
        values = tuple(np.asarray(leaf.value(inputs)) for leaf in leaves)
        if opens:
            assert place is not None
            rows = _dense(place.value(inputs)).astype(work.dtype, copy=False)
        n_rows = chunk.stop - chunk.start
        for array in (*values, *([] if rows is None else [rows])):
            if len(array) != n_rows:
                raise ValueError(
                    f"A block of a Dask array has {len(array)} rows, but {n_rows} by "
                    "the array's chunks. Call compute_chunk_sizes() to correct them."
                )
        yield _Block(chunk, rows, values, own)


def _dense(block: Any) -> Array:
    if scipy.sparse.issparse(block):
        raise ValueError(
            "X is a Dask array of sparse blocks, which are not supported. Convert them "
            "first: X.map_blocks(lambda block: block.toarray())."
        )
    return np.asarray(block)


def _in_pieces(work: Work, block: _Block) -> Iterator[tuple[slice, tuple[Any, ...]]]:
    """Pieces of a block, and the values of all calls on each."""
    with one_blas_thread():
        for part in row_chunks(block.chunk.stop - block.chunk.start, PIECE_ROWS):
            yield part, _evaluated(work, block.piece(part))


def _filled(work: Work, block: _Block) -> Array:
    n_rows = block.chunk.stop - block.chunk.start
    first, *others = row_chunks(n_rows, PIECE_ROWS)
    with one_blas_thread():
        (values,) = _evaluated(work, block.piece(first))
        if not others:
            whole: Array = values
            return whole
        out = np.empty((n_rows, *values.shape[1:]), values.dtype)
        out[first] = values
        for piece in others:  # computed where they belong
            _evaluated(work, block.piece(piece), out=out[piece])
    return out


def _evaluated(work: Work, block: _Block, **out: Array) -> tuple[Any, ...]:
    """Values of all calls on some rows; what several calls need is computed once.

    `out` is memory for the value of the only call.
    """
    known: dict[int, Any] = {}

    def value(node: Any) -> Any:
        if isinstance(node, int):
            return block.leaves[node]
        if isinstance(node, Constant):
            n_rows = block.chunk.stop - block.chunk.start
            shape = (n_rows, *node.value.shape[1:])
            return np.broadcast_to(_aligned(node.value), shape)
        if isinstance(node, RowNumbers):
            return node[block.chunk]
        if isinstance(node, Own):
            return block.own
        if id(node) not in known:
            parts = [value(column) for column in node.columns]
            rows = [block.rows] if node.reads_rows else []
            memory = out if node is work.calls[0] else {}
            known[id(node)] = node.function(*rows, *parts, *node.args, **memory)
        return known[id(node)]

    return tuple(value(call) for call in work.calls)
