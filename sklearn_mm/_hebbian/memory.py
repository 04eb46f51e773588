"""Memory of the activations of some rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Block(list[Any]):
    """Arrays of the hidden layers in a single block of memory.

    Indexed by layer, from one. `flat` is the whole block, for operations that treat all
    layers alike: for a mini-batch, a call of NumPy costs as much as its arithmetic.
    """

    def __init__(self, n_rows: int, sizes: Sequence[int], dtype: Any) -> None:
        self.flat = np.zeros(n_rows * sum(sizes), dtype)
        parts = np.split(self.flat, n_rows * np.cumsum(sizes)[:-1])
        super().__init__([None, *(part.reshape(n_rows, -1) for part in parts)])
