"""Numbers that belong to the rows of blocks, and stay with them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np


class BlockColumn:
    """A number, or a few, for every row of all blocks.

    It begins as a recipe, ``function(*columns, *args)`` on each block. Once it is kept,
    its parts are held by Dask.

    Parameters
    ----------
    function, columns, args : callable, tuple, tuple
        The recipe.
    reads_rows : bool
        Whether the function also takes the rows of X.
    parts : list of tuple, default=None
        The values, if they exist already: for each block, what Dask holds, and the
        number of the block's entry in it, or None if it is all of it.
    """

    def __init__(
        self,
        function: Any = None,
        columns: tuple[Any, ...] = (),
        args: tuple[Any, ...] = (),
        reads_rows: bool = False,
        parts: list[tuple[Any, int | None]] | None = None,
    ) -> None:
        self.function, self.columns, self.args = function, columns, args
        self.reads_rows, self.parts = reads_rows, parts
        self.wanted = False  # whether to keep it when it is next needed
        self.shape: tuple[int, ...] = ()  # of the array that was placed

    def hold(self, parts: list[tuple[Any, int | None]]) -> None:
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


class Kept:
    """What Dask holds for trips, until the next one is on its way.

    Dask's client writes to the scheduler once in ten milliseconds at most. If it wrote
    between two trips that something is not needed any more, the graph of the second one
    would wait. So what is not needed is let go of after a graph has been sent.
    """

    def __init__(self) -> None:
        self._columns: list[tuple[weakref.ref[BlockColumn], Any]] = []
        self._sums: Any = ()

    def exchange(self, columns: Iterable[BlockColumn], sums: Any) -> None:
        """Hold what a trip asks for, and let go of what is not needed any more."""
        self._sums = sums
        self._columns = [
            (column, parts) for column, parts in self._columns if column() is not None
        ]
        self._columns += [(weakref.ref(column), column.parts) for column in columns]


def pending(columns: Iterable[Any]) -> list[BlockColumn]:
    """Columns to be kept, each once, and after those that it is made of."""
    found = (c for c in columns if isinstance(c, BlockColumn))
    return list(dict.fromkeys(kept for column in found for kept in column.pending()))


def is_constant(values: Any) -> bool:
    """Whether an array repeats a single row without taking memory."""
    return isinstance(values, np.ndarray) and len(values) > 1 and not values.strides[0]
