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

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np

from sklearn_mm._rows.block_columns import BlockColumn, Kept, is_constant, pending
from sklearn_mm._rows.block_tasks import (
    Call,
    Constant,
    Own,
    Part,
    Place,
    Work,
    add_all,
    fill_blocks,
    map_blocks,
    next_state,
    sum_blocks,
    total_of_blocks,
    value_of_block,
)
from sklearn_mm._rows.groups import Groups, delayed_blocks, groups_of, is_held
from sklearn_mm._rows.table import RowNumbers, SumOver
from sklearn_mm._solver.roles import Array, Indices

# Number of values that one task of a reduction, or the caller, adds up in order. For at
# most as many blocks, the sum equals that of a loop over the blocks to the last bit,
# and there is no task but those of the blocks.
_FAN_IN = 32


def _sending_rows() -> AbstractContextManager[Any]:
    """No warning of large graphs: arrays of this process are sent on purpose."""
    import dask

    # Imported while the option is set, it would add its other options, and all of them
    # would be gone afterwards.
    with suppress(ImportError):
        import distributed  # noqa: F401
    option = {"distributed.admin.large-graph-warning-threshold": "1TB"}
    made: AbstractContextManager[Any] = dask.config.set(option)
    return made


class BlockRows:
    """Rows of a Dask array; the methods are those of `Rows`.

    Parameters
    ----------
    X : DaskRows
        The rows.
    blocks : list of Delayed
        One for each block of rows.
    groups : list of list of int or None, default=None
        Blocks that share a task. If None, they are those that lie together.
    reads_rows : bool, default=True
        Whether tasks are functions of the rows, or of columns alone.
    kept : Kept or None, default=None
        What Dask holds for trips. If None, nothing so far.

    Attributes
    ----------
    n_rows : int
        The number of rows.
    chunks : list of slice
        Rows of each block.
    beside : BlockRows
        The columns alone: tasks are functions of these, and do not read X.
    held : bool
        Whether workers hold the rows, so that a task need not read or compute them.
    """

    def __init__(
        self,
        X: Any,
        blocks: list[Any],
        groups: Groups | None = None,
        reads_rows: bool = True,
        kept: Kept | None = None,
    ) -> None:
        self.X, self._blocks, self._reads_rows = X, blocks, reads_rows
        self.n_rows: int = X.shape[0]
        self.chunks: list[slice] = X.row_blocks
        if groups is None:
            row = X.array.dtype.itemsize * X.shape[1]
            sizes = [row * (chunk.stop - chunk.start) for chunk in self.chunks]
            groups = groups_of(blocks, sizes)
        self._groups = groups
        self._kept = Kept() if kept is None else kept
        self.beside = self
        if reads_rows:
            self.beside = BlockRows(X, blocks, groups, False, self._kept)
        # If the workers hold the blocks, every task names its own, even if it does not
        # need it: the scheduler then leaves the block and the columns where they are.
        self.held: bool = all(map(is_held, blocks))

    # Columns

    def column(self, n_columns: int | None = None, dtype: Any = np.float64) -> None:
        """Nothing, since the workers allocate the memory of columns."""

    def place(self, values: Any) -> Any:
        """Turn an array into a column; it is sent to the workers if necessary."""
        import dask

        if isinstance(values, BlockColumn) or is_constant(values):
            return values
        if isinstance(values, np.ndarray):
            with _sending_rows():
                sent = [
                    dask.delayed(np.ascontiguousarray(values[chunk]), traverse=False)
                    for chunk in self.chunks
                ]
                parts = list(dask.persist(*sent))
        else:  # a Dask array
            values = values.rechunk({0: self.X.array.chunks[0]})
            parts = delayed_blocks(values)
        column = BlockColumn(parts=[(part, None) for part in parts])
        column.shape = values.shape
        return column

    def fill(
        self,
        out: Any,
        function: Callable[..., Any],
        *columns: Any,
        args: tuple[Any, ...] = (),
    ) -> BlockColumn:
        """Return a column of the values of `map`, computed when they are needed.

        As for `Rows`, the function takes memory for its values as a keyword, `out`.
        """
        return BlockColumn(function, columns, args, self._reads_rows)

    def keep(self, column: Any) -> Any:
        """Mark a column to be computed once, with the next sum that needs it.

        A column of a Dask array that has not been persisted is no exception.
        """
        if not isinstance(column, BlockColumn):  # a constant
            return column
        if column.parts is not None and not all(is_held(p) for p, _ in column.parts):
            parts, column.parts = column.parts, None
            column.function, column.columns = _same, (BlockColumn(parts=parts),)
        column.wanted = column.parts is None
        return column

    def output(self, column: BlockColumn, dtype: Any) -> Any:
        """A column of single numbers as a Dask array, to be computed."""
        return self.beside.values(_same, column, dtype=dtype)

    def values(
        self,
        function: Callable[..., Any],
        *columns: Any,
        args: tuple[Any, ...] = (),
        shape: tuple[int, ...] = (),
        dtype: Any = np.float64,
    ) -> Any:
        """Values of `map`, of this shape per row, as a Dask array to be computed.

        Columns that are to be kept are computed at once.
        """
        import dask.array as da

        self._trip(pending(columns))
        call = SumOver(function, columns, args, self._reads_rows)
        alone = [[i] for i in range(len(self.chunks))]
        arrays = [
            da.from_delayed(part, (chunk.stop - chunk.start, *shape), dtype)
            for part, chunk in zip(
                self._tasks(value_of_block, [call], alone), self.chunks, strict=True
            )
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
        call = SumOver(function, columns, args, self._reads_rows)
        found = self._trip(pending(columns), lambda: self._tasks(map_blocks, [call]))
        return (value for (value,) in self._by_block(found))

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
        calls = tuple(wanted)
        kept = pending(column for call in calls for column in call.columns)
        return iter(self._added(self._trip(kept, lambda: self._sum_tasks(calls))))

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

        self._trip(pending(columns))
        task = dask.delayed(next_state, pure=False, traverse=False)
        with _sending_rows():
            state = dask.delayed(state, traverse=False)
            made = self._works([SumOver(function, columns, args)])
            for i in order:
                work, inputs = made([i])
                state = task(work, state, *inputs)
                if not self.held:
                    (state,) = dask.persist(state, optimize_graph=False)
                    _wait(state)
            if self.held:
                (state,) = dask.persist(state, optimize_graph=False)
        return _values([state])[0]

    def total(self, column: Any) -> float:
        """Sum of a column of single numbers."""
        if is_constant(column):
            return self.n_rows * float(column[0])
        return float(self.beside.sum(np.sum, column))

    def take(self, index: Indices, *columns: Any) -> tuple[Any, ...]:
        """Some rows of X, in the order of the index, and their entries of columns."""
        return self.take_with((), index, *columns)[0]

    def take_with(
        self, wanted: Iterable[SumOver], index: Indices, *columns: Any
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The same, and several sums, in one trip."""
        calls = tuple(wanted)
        starts = np.array([chunk.start for chunk in self.chunks])
        number = np.searchsorted(starts, index, side="right") - 1
        order = np.argsort(number, kind="stable")
        wanted, first = np.unique(number[order], return_index=True)
        own = {
            int(i): index[places] - starts[i]
            for i, places in zip(wanted, np.split(order, first[1:]), strict=True)
        }
        there = [[i for i in group if i in own] for group in self._groups]
        groups = [group for group in there if group]
        call = SumOver(_take, (*columns, Own()), (), self._reads_rows)
        kept = pending(c for each in (call, *calls) for c in each.columns)
        found = self._trip(
            kept,
            lambda: [
                *self._tasks(map_blocks, [call], groups, own),
                *self._sum_tasks(calls),
            ],
        )
        values = (value for (value,) in self._by_block(found[: len(groups)], groups))
        back = np.argsort(order, kind="stable")
        taken = (np.concatenate(parts)[back] for parts in zip(*values, strict=True))
        return tuple(taken), self._added(found[len(groups) :])

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

    def _trip(
        self,
        columns: list[BlockColumn],
        make_tasks: Callable[[], list[Any]] = list,
    ) -> list[Any]:
        """Compute columns, which are then kept, and the values of tasks.

        The tasks are made after the columns, of which they may be functions.
        """
        import dask

        for column in columns:  # each may be made of those before
            recipe = (column.function, column.columns, column.args, column.reads_rows)
            column.hold(self._located(self._tasks(fill_blocks, [SumOver(*recipe)])))
        tasks = make_tasks()
        parts = [part for column in columns for part in self._held(column)]
        if not (tasks or parts):
            return []
        done = dask.persist(*tasks, *parts, optimize_graph=False)
        n_tasks = len(tasks)
        del tasks, parts  # which refer to columns that may not be needed any more
        held = iter(done[n_tasks:])
        for column in columns:
            column.hold(self._located([next(held) for _ in self._groups]))
        self._kept.exchange(columns, done[:n_tasks])
        return _values(done[:n_tasks])

    def _sum_tasks(self, calls: tuple[SumOver, ...]) -> list[Any]:
        """Tasks from whose values `_added` makes sums over all blocks."""
        if not calls:
            return []
        if len(self.chunks) <= _FAN_IN:
            return self._tasks(sum_blocks, calls)
        return _reduced(self._tasks(total_of_blocks, calls))

    def _added(self, found: list[Any]) -> tuple[Any, ...]:
        if not found:
            return ()
        few = len(self.chunks) <= _FAN_IN
        return add_all(*(self._by_block(found) if few else found))

    def _located(self, parts: list[Any]) -> list[tuple[Any, int | None]]:
        """For each block, the part of its group, and its place in it."""
        return self._by_block(
            [
                [(part, k) for k in range(len(group))]
                for part, group in zip(parts, self._groups, strict=True)
            ]
        )

    def _held(self, column: BlockColumn) -> list[Any]:
        """The parts of a kept column, one for each group."""
        assert column.parts is not None
        return [column.parts[group[0]][0] for group in self._groups]

    def _by_block(
        self, values: Iterable[list[Any]], groups: Groups | None = None
    ) -> list[Any]:
        """Values of the blocks, in order, from lists of those of each group."""
        groups = self._groups if groups is None else groups
        found = {
            i: value
            for group, part in zip(groups, values, strict=True)
            for i, value in zip(group, part, strict=True)
        }
        return [found[i] for i in sorted(found)]

    def _tasks(
        self,
        function: Callable[..., Any],
        wanted: Iterable[SumOver],
        groups: Groups | None = None,
        own: dict[int, Any] | None = None,
    ) -> list[Any]:
        """A task for each group of blocks that makes all calls on each of them."""
        import dask

        made = self._works(wanted, own or {})
        task = dask.delayed(function, pure=False, traverse=False)
        works = map(made, self._groups if groups is None else groups)
        return [task(work, *inputs) for work, inputs in works]

    def _works(
        self, wanted: Iterable[SumOver], own: dict[int, Any] | None = None
    ) -> Callable[[list[int]], tuple[Work, list[Any]]]:
        """Function that returns the work of a group of blocks, and its inputs."""
        leaves: list[list[tuple[Any, int | None]]] = []
        seen: dict[int, Any] = {}
        calls = tuple(
            Call(f, self._nodes(columns, leaves, seen), args, reads_rows)
            for f, columns, args, reads_rows in wanted
        )
        named = self.held or any(call.opens for call in calls)
        own = own or {}

        def made(group: list[int]) -> tuple[Work, list[Any]]:
            inputs: list[Any] = []
            numbers: dict[str, int] = {}  # of the inputs, by their keys

            def place(value: Any, entry: int | None = None) -> Place:
                if value.key not in numbers:
                    numbers[value.key] = len(inputs)
                    inputs.append(value)
                return Place(numbers[value.key], entry)

            parts = tuple(
                Part(
                    self.chunks[i],
                    place(self._blocks[i]) if named else None,
                    tuple(place(*leaf[i]) for leaf in leaves),
                    own.get(i),
                )
                for i in group
            )
            return Work(calls, self.X.dtype, parts), inputs

        return made

    def _nodes(
        self, columns: tuple[Any, ...], leaves: list[Any], seen: dict[int, Any]
    ) -> tuple[Any, ...]:
        """Columns as tasks know them: numbers of leaves, constants and calls."""
        return tuple(self._node(column, leaves, seen) for column in columns)

    def _node(self, column: Any, leaves: list[Any], seen: dict[int, Any]) -> Any:
        if id(column) in seen:
            return seen[id(column)][0]
        node, placed = column, column
        if is_constant(column):
            node = Constant(column[:1])
        elif hasattr(column, "function") and hasattr(column, "array"):  # MappedRows
            children = self._nodes((column.array,), leaves, seen)
            node = Call(column.function, children, (), False)
        elif isinstance(column, BlockColumn) and column.parts is None:
            children = self._nodes(column.columns, leaves, seen)
            node = Call(column.function, children, column.args, column.reads_rows)
        elif not isinstance(column, RowNumbers | Own):
            placed, node = self.place(column), len(leaves)
            leaves.append(placed.parts)
        # Keep a reference, so that no other object can get the same identity.
        seen[id(column)] = node, column, placed
        return node


def _reduced(tasks: list[Any]) -> list[Any]:
    """At most `_FAN_IN` sums of all values, added up a few at a time."""
    import dask

    added = dask.delayed(add_all, pure=False, traverse=False)
    while len(tasks) > _FAN_IN:
        groups = (tasks[i : i + _FAN_IN] for i in range(0, len(tasks), _FAN_IN))
        tasks = [added(*group) if len(group) > 1 else group[0] for group in groups]
    return tasks


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


# Tasks on rows


def _same(column: Array, out: Array | None = None) -> Array:
    if out is None:
        return column
    np.copyto(out, column)
    return out


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
