"""Rows in the blocks of a Dask array, and the numbers that belong to them.

`BlockRows` is the equivalent of `Rows` for Dask arrays. Blocks and columns stay with
the workers; only small arguments and sums are transferred.

A *trip* submits one graph to the Dask scheduler and returns small results: sums over
the blocks, which the workers add up until few enough are left for the caller. Nothing
is computed between trips. A column that is filled is a recipe, a function of other
columns (and of X), which is evaluated inside the tasks that need it. A column that has
to be *kept* is computed once, together with the next sum that needs it, and stays with
the workers as futures. If a worker is lost, Dask computes them again from the blocks of
X.

Only `dask.delayed` and `dask.persist` are used, so that any Dask scheduler works: that
of a cluster, threads, or the calling thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from sklearn_mm._rows.table import PIECE_ROWS, RowNumbers, SumOver, add, row_chunks
from sklearn_mm._rows.workers import one_blas_thread
from sklearn_mm._solver.roles import Array, Indices

# Number of values that one task of a reduction, or the caller, adds up in order. For at
# most as many blocks, the sum equals that of a loop over the blocks to the last bit,
# and there is no task but those of the blocks.
_FAN_IN = 32
# Arrays of this process are sent to the workers on purpose.
_GRAPH_CARRIES_ROWS = {"distributed.admin.large-graph-warning-threshold": "1TB"}


class BlockColumn:
    """A number, or a few, for every row of all blocks.

    It begins as a recipe, ``function(*columns, *args)`` on each block. Once it is kept,
    it is a list of parts that Dask holds.

    Parameters
    ----------
    function, columns, args : callable, tuple, tuple
        The recipe.
    reads_rows : bool
        Whether the function also takes the rows of X.
    parts : list of Delayed, default=None
        The values, if they exist already: one part per block.
    """

    def __init__(
        self,
        function: Any = None,
        columns: tuple[Any, ...] = (),
        args: tuple[Any, ...] = (),
        reads_rows: bool = False,
        parts: list[Any] | None = None,
    ) -> None:
        self.function, self.columns, self.args = function, columns, args
        self.reads_rows, self.parts = reads_rows, parts
        self.wanted = False  # whether to keep it when it is next needed
        self.shape: tuple[int, ...] = ()  # of the array that was placed

    def hold(self, parts: list[Any]) -> None:
        """Replace the recipe, which is released, by its values."""
        self.parts, self.wanted = parts, False
        self.function, self.columns, self.args = None, (), ()

    def pending(self) -> Iterator[BlockColumn]:
        """Columns to be kept, among this one and those that it is made of."""
        for column in self.columns:
            if isinstance(column, BlockColumn):
                yield from column.pending()
        if self.wanted:
            yield self


class BlockRows:
    """Rows of a Dask array; the methods are those of `Rows`.

    Parameters
    ----------
    X : DaskRows
        The rows.
    blocks : list of Delayed
        One for each block of rows.
    reads_rows : bool, default=True
        Whether tasks are functions of the rows, or of columns alone.

    Attributes
    ----------
    n_rows : int
        The number of rows.
    chunks : list of slice
        Rows of each block.
    beside : BlockRows
        The columns alone: tasks are functions of these, and do not read X.
    """

    def __init__(self, X: Any, blocks: list[Any], reads_rows: bool = True) -> None:
        self.X, self._blocks, self._reads_rows = X, blocks, reads_rows
        self.n_rows: int = X.shape[0]
        self.chunks: list[slice] = X.row_blocks
        self.beside = BlockRows(X, blocks, False) if reads_rows else self
        # If the workers hold the blocks, every task names its own, even if it does not
        # need it: the scheduler then leaves the block and the columns where they are.
        held = (block.dask.get(block.key) for block in blocks)
        self._anchored = all(hasattr(value, "result") for value in held)

    # Columns

    def column(self, n_columns: int | None = None, dtype: Any = np.float64) -> None:
        """Nothing, since the workers allocate the memory of columns."""

    def place(self, values: Any) -> Any:
        """Turn an array into a column; it is sent to the workers if necessary."""
        import dask

        if isinstance(values, BlockColumn) or _is_constant(values):
            return values
        if isinstance(values, np.ndarray):
            with dask.config.set(_GRAPH_CARRIES_ROWS):
                parts = [
                    dask.delayed(np.ascontiguousarray(values[chunk]), traverse=False)
                    for chunk in self.chunks
                ]
                column = BlockColumn(parts=list(dask.persist(*parts)))
        else:  # a Dask array
            values = values.rechunk({0: self.X.array.chunks[0]})
            column = BlockColumn(parts=list(values.to_delayed().ravel()))
        column.shape = values.shape
        return column

    def fill(
        self,
        out: Any,
        function: Callable[..., Any],
        *columns: Any,
        args: tuple[Any, ...] = (),
    ) -> BlockColumn:
        """Return a column of the values of `map`, computed when they are needed."""
        return BlockColumn(function, columns, args, self._reads_rows)

    def keep(self, column: BlockColumn) -> BlockColumn:
        """Mark a column to be computed once, with the next sum that needs it."""
        column.wanted = column.parts is None
        return column

    def output(self, column: BlockColumn, dtype: Any) -> Any:
        """A column of single numbers as a Dask array whose blocks are kept."""
        if self.keep(column).wanted:
            self._keep([column])
        assert column.parts is not None
        return self._array(column.parts, (), dtype)

    def values(
        self,
        function: Callable[..., Any],
        *columns: Any,
        args: tuple[Any, ...] = (),
        shape: tuple[int, ...] = (),
        dtype: Any = np.float64,
    ) -> Any:
        """Values of `map`, of this shape per row, as a Dask array to be computed."""
        call = SumOver(function, columns, args, self._reads_rows)
        return self._array(self._tasks([call], function=_only), shape, dtype)

    def _array(self, parts: list[Any], shape: tuple[int, ...], dtype: Any) -> Any:
        import dask.array as da

        arrays = [
            da.from_delayed(part, (chunk.stop - chunk.start, *shape), dtype)
            for part, chunk in zip(parts, self.chunks, strict=True)
        ]
        return da.concatenate(arrays)

    # What travels

    def map(
        self,
        function: Callable[..., Any],
        *columns: Any,
        args: tuple[Any, ...] = (),
    ) -> Iterator[Any]:
        """Values of ``function(X, *columns, *args)`` for the blocks, in order."""
        import dask

        calls = [SumOver(function, columns, args, self._reads_rows)]
        self._keep(_pending(columns))
        values = dask.compute(*self._tasks(calls), optimize_graph=False)
        return (value for (value,) in values)

    def sum(
        self,
        function: Callable[..., Any],
        *columns: Any,
        args: tuple[Any, ...] = (),
    ) -> Any:
        """Sum of the values of `map`, or of each entry if they are tuples."""
        call = SumOver(function, columns, args, self._reads_rows)
        return next(self.sums([call]))

    def sums(self, wanted: Iterable[SumOver]) -> Iterator[Any]:
        """Several sums in one trip."""
        wanted = tuple(wanted)
        kept = _pending(column for call in wanted for column in call.columns)
        return iter(self._keep(kept, wanted))

    def fold(
        self,
        function: Callable[..., Any],
        state: Any,
        *columns: Any,
        args: tuple[Any, ...] = (),
        order: Iterable[int],
    ) -> Any:
        """Pass a state through the blocks, one after another.

        In each, ``function(X, *columns, state, *args)`` returns the next state. It is
        computed where the block is and travels from there to the next one; the last
        one comes back. A state must not be changed in place: if a worker is lost, it
        is needed again.

        Blocks that the workers hold are all part of one graph. Others are read one at a
        time: a scheduler would read them all while the first ones are being processed.
        """
        import dask

        self._keep(_pending(columns))
        task = dask.delayed(_next_state, pure=False, traverse=False)
        with dask.config.set(_GRAPH_CARRIES_ROWS):
            state = dask.delayed(state, traverse=False)
            calls, inputs = self._inputs([SumOver(function, columns, args)])
            for i in order:
                state = task(calls, self.chunks[i], state, *inputs(i))
                if not self._anchored:
                    (state,) = dask.persist(state, optimize_graph=False)
                    _wait(state)
            if self._anchored:
                (state,) = dask.persist(state, optimize_graph=False)
        return _values([state])[0]

    def total(self, column: Any) -> float:
        """Sum of a column of single numbers."""
        if _is_constant(column):
            return self.n_rows * float(column[0])
        return float(self.beside.sum(np.sum, column))

    def take(self, index: Indices, *columns: Any) -> tuple[Any, ...]:
        """Some rows of X, in the order of the index, and their entries of columns."""
        import dask

        self._keep(_pending(columns))
        starts = np.array([chunk.start for chunk in self.chunks])
        number = np.searchsorted(starts, index, side="right") - 1
        order = np.argsort(number, kind="stable")
        wanted, first = np.unique(number[order], return_index=True)
        tasks = []
        for i, places in zip(wanted, np.split(order, first[1:]), strict=True):
            args = (index[places] - starts[i],)
            call = SumOver(_take, columns, args, self._reads_rows)
            tasks += self._tasks([call], [int(i)])
        found = (value for (value,) in dask.compute(*tasks, optimize_graph=False))
        back = np.argsort(order, kind="stable")
        return tuple(np.concatenate(parts)[back] for parts in zip(*found, strict=True))

    def check_finite(self, estimator_name: str, y: Any = None) -> None:
        """Raise a ValueError that says where X, or y, has an entry that is not finite.

        It takes a trip of its own: only call it if something has gone wrong, or if
        nothing else would detect it.
        """
        name, columns = ("X", ()) if y is None else ("y", (y,))
        rows = self if y is None else self.beside
        for i, found in enumerate(rows.map(_first_bad, *columns)):
            if found is not None:
                kind, row, *column = found
                place = f"row {self.chunks[i].start + row}"
                place += "".join(f", column {j}" for j in column)
                raise ValueError(
                    f"Input {name} contains {kind}: the first one is in {place} (block "
                    f"{i})."
                )

    # Graphs

    def _keep(
        self, columns: list[BlockColumn], sums: tuple[SumOver, ...] = ()
    ) -> list[Any]:
        """Make a trip: compute the columns, which are then kept, and the sums."""
        import dask

        if not (columns or sums):
            return []
        for column in columns:  # each may be made of those before
            recipe = (column.function, column.columns, column.args, column.reads_rows)
            column.hold(self._tasks([SumOver(*recipe)], function=_filled))
        totals = _reduced(self._tasks(sums, function=_sums)) if sums else []
        parts = [part for column in columns for part in column.parts or ()]
        done = dask.persist(*totals, *parts, optimize_graph=False)
        held = iter(done[len(totals) :])
        for column in columns:
            column.hold([next(held) for _ in self.chunks])
        return list(_add_all(*_values(done[: len(totals)]))) if sums else []

    def _tasks(
        self,
        wanted: Iterable[SumOver],
        numbers: list[int] | None = None,
        function: Callable[..., Any] | None = None,
    ) -> list[Any]:
        """A task for each block, or for some, that makes all calls."""
        import dask

        calls, inputs = self._inputs(wanted)
        task = dask.delayed(function or _all, pure=False, traverse=False)
        numbers = list(range(len(self.chunks))) if numbers is None else numbers
        return [task(calls, self.chunks[i], *inputs(i)) for i in numbers]

    def _inputs(
        self, wanted: Iterable[SumOver]
    ) -> tuple[_Calls, Callable[[int], list[Any]]]:
        """Calls of tasks, and what they are made on: a block and parts of columns."""
        leaves: list[list[Any]] = []
        seen: dict[int, Any] = {}
        calls = _Calls(
            tuple(
                _Call(f, self._nodes(columns, leaves, seen), args, reads_rows)
                for f, columns, args, reads_rows in wanted
            ),
            self.X.dtype,
        )
        named = calls.opens or self._anchored

        def inputs(i: int) -> list[Any]:
            return [self._blocks[i] if named else None, *(leaf[i] for leaf in leaves)]

        return calls, inputs

    def _nodes(
        self, columns: tuple[Any, ...], leaves: list[list[Any]], seen: dict[int, Any]
    ) -> tuple[Any, ...]:
        """Columns as tasks know them: numbers of leaves, constants and calls."""
        return tuple(self._node(column, leaves, seen) for column in columns)

    def _node(self, column: Any, leaves: list[list[Any]], seen: dict[int, Any]) -> Any:
        if id(column) in seen:
            return seen[id(column)][0]
        node, placed = column, column
        if _is_constant(column):
            node = _Constant(column[:1])
        elif hasattr(column, "function") and hasattr(column, "array"):  # MappedRows
            children = self._nodes((column.array,), leaves, seen)
            node = _Call(column.function, children, (), False)
        elif isinstance(column, BlockColumn) and column.parts is None:
            children = self._nodes(column.columns, leaves, seen)
            node = _Call(column.function, children, column.args, column.reads_rows)
        elif not isinstance(column, RowNumbers):
            placed, node = self.place(column), len(leaves)
            leaves.append(placed.parts)
        # Keep a reference, so that no other object can get the same identity.
        seen[id(column)] = node, column, placed
        return node


# What tasks consist of. Dask does not look into these objects, whose arguments are not
# collections of Dask.


class _Constant:
    __slots__ = ("value",)

    def __init__(self, value: Array) -> None:
        self.value = value


class _Call:
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
        inside = [column for column in columns if isinstance(column, _Call)]
        self.opens: bool = reads_rows or any(call.opens for call in inside)


class _Calls:
    __slots__ = ("calls", "dtype", "opens")

    def __init__(self, calls: tuple[_Call, ...], dtype: np.dtype) -> None:
        self.calls, self.dtype = calls, dtype
        self.opens = any(call.opens for call in calls)


# Kinds of tasks


def _all(calls: _Calls, chunk: slice, block: Any, *leaves: Any) -> tuple[Any, ...]:
    """Values of all calls on one block."""
    with one_blas_thread():
        return _evaluated(calls, chunk, _opened(calls, block), leaves)


def _sums(calls: _Calls, chunk: slice, block: Any, *leaves: Any) -> tuple[Any, ...]:
    """The same for calls whose values add up, piece by piece (see `InPieces`)."""
    parts = (part for _, part in _in_pieces(calls, chunk, block, leaves))
    return functools.reduce(_add_all, parts)


def _filled(calls: _Calls, chunk: slice, block: Any, *leaves: Any) -> Array:
    """A column: the value of the only call, which has an entry for every row."""
    out: Array | None = None
    for piece, (part,) in _in_pieces(calls, chunk, block, leaves):
        if len(part) == chunk.stop - chunk.start:
            return part
        if out is None:
            out = np.empty((chunk.stop - chunk.start, *part.shape[1:]), part.dtype)
        out[piece.start - chunk.start : piece.stop - chunk.start] = part
    assert out is not None
    return out


def _opened(calls: _Calls, block: Any) -> Any:
    """The rows of a block, if any call needs them."""
    return np.asarray(block).astype(calls.dtype, copy=False) if calls.opens else None


def _in_pieces(
    calls: _Calls, chunk: slice, block: Any, leaves: tuple[Any, ...]
) -> Iterator[tuple[slice, tuple[Any, ...]]]:
    """Rows of each piece of a block, and the values of all calls on it."""
    rows = _opened(calls, block)
    with one_blas_thread():
        for part in row_chunks(chunk.stop - chunk.start, PIECE_ROWS):
            piece = slice(chunk.start + part.start, chunk.start + part.stop)
            own = None if rows is None else rows[part]
            columns = tuple(leaf[part] for leaf in leaves)
            yield piece, _evaluated(calls, piece, own, columns)


def _evaluated(
    calls: _Calls, chunk: slice, rows: Any, leaves: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Values of all calls on some rows."""
    known: dict[int, Any] = {}

    def value(node: Any) -> Any:
        if isinstance(node, int):
            return leaves[node]
        if isinstance(node, _Constant):
            n_rows = chunk.stop - chunk.start
            return np.broadcast_to(node.value, (n_rows, *node.value.shape[1:]))
        if isinstance(node, RowNumbers):
            return node[chunk]
        if id(node) not in known:
            parts = [value(column) for column in node.columns]
            own = [rows] if node.reads_rows else []
            known[id(node)] = node.function(*own, *parts, *node.args)
        return known[id(node)]

    return tuple(value(call) for call in calls.calls)


def _only(calls: _Calls, chunk: slice, block: Any, *leaves: Any) -> Any:
    return _all(calls, chunk, block, *leaves)[0]


def _next_state(
    calls: _Calls, chunk: slice, state: Any, block: Any, *leaves: Any
) -> Any:
    """The task of a fold."""
    (call,) = calls.calls
    call = _Call(call.function, call.columns, (state, *call.args), call.reads_rows)
    return _only(_Calls((call,), calls.dtype), chunk, block, *leaves)


def _is_constant(values: Any) -> bool:
    """Whether an array repeats a single row without taking memory."""
    return isinstance(values, np.ndarray) and len(values) > 1 and not values.strides[0]


def _pending(columns: Iterable[Any]) -> list[BlockColumn]:
    """Columns to be kept, each once, and after those that it is made of."""
    found = (c for c in columns if isinstance(c, BlockColumn))
    return list(dict.fromkeys(kept for column in found for kept in column.pending()))


def _reduced(tasks: list[Any]) -> list[Any]:
    """At most `_FAN_IN` sums of all values, added up a few at a time."""
    import dask

    added = dask.delayed(_add_all, pure=False, traverse=False)
    while len(tasks) > _FAN_IN:
        groups = (tasks[i : i + _FAN_IN] for i in range(0, len(tasks), _FAN_IN))
        tasks = [added(*group) if len(group) > 1 else group[0] for group in groups]
    return tasks


def _add_all(*values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(functools.reduce(add, sums) for sums in zip(*values, strict=True))


def _values(persisted: Iterable[Any]) -> list[Any]:
    """The values that Dask holds, fetched from its workers all at once."""
    values = [delayed.dask[delayed.key] for delayed in persisted]
    if values and hasattr(values[0], "client"):  # of a cluster of Dask
        return list(values[0].client.gather(values))
    if values and hasattr(values[0], "future"):  # of Ray
        return [value.future().result() for value in values]
    return values


def _wait(persisted: Any) -> None:
    """Wait for a value that is to stay where it is."""
    value = persisted.dask[persisted.key]
    if hasattr(value, "exception"):
        value.exception()


def _take(*arrays: Any) -> tuple[Any, ...]:
    *arrays_, rows = arrays
    return tuple(values[rows] for values in arrays_)


def _first_bad(values: Array) -> tuple[Any, ...] | None:
    """Kind and place of the first entry that is not finite."""
    bad = ~np.isfinite(values)
    if not bad.any():
        return None
    place = np.unravel_index(int(np.argmax(bad)), values.shape)
    return "NaN" if np.isnan(values[place]) else "infinity", *map(int, place)
