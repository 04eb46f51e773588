"""Which layers the passes of the free phase go over, learnt from batch to batch.

A pass refreshes the pulls of all layers, or of the lowest ones only. The gaps that
layers leave differ by orders of magnitude, since the weights grow by 1/gamma from layer
to layer on the way down. Lower layers are therefore refreshed more often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

# A layer is refreshed more often if it has so much of a gap that is too large.
_MUCH = 0.1
# A refresh less is tried if it was not needed in so many tests of batches. If it has to
# be made again within so many tests, the next trial waits longer by the factor.
_PATIENCE, _LONGER, _LONGEST = 4, 4, 256


@dataclass
class Schedule:
    """How often the pulls of each layer are refreshed in the free phase of a batch.

    Parameters
    ----------
    refreshes : list of int
        Numbers for the layers 1..H-1, at least one. No layer is refreshed more often
        than the one below it.
    tops : list of int
        For each pass, the layer up to which activations are computed; the pulls of the
        layers below are refreshed. Follows from `refreshes`.
    """

    refreshes: list[int]
    patience: int = _PATIENCE
    spared: int = 0  # consecutive tests in which a refresh was not needed
    since: float = math.inf  # tests since one was left out

    # (Dask passes all fields where it takes states apart and makes them again.)
    tops: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        passes = range(max(self.refreshes, default=0))
        self.tops = [1 + sum(n > j for n in self.refreshes) for j in passes]

    @classmethod
    def first(cls, n_hidden: int) -> Schedule:
        """Two passes, of which the second leaves the last layer out if there is one."""
        if n_hidden < 3:
            return cls([2] * (n_hidden - 1))
        return cls([2] * (n_hidden - 2) + [1])

    def add(self, gaps: Sequence[float], most: int) -> None:
        """Refresh more often what leaves most of the gap, which is too large.

        `gaps` are those of the layers, and `most` is the largest number of passes.
        """
        much = _MUCH * max(gaps)
        layer = max(k for k, gap in enumerate(gaps) if not gap < much)
        number = min(self.refreshes[layer] + 1, most)
        below = self.refreshes[: layer + 1]
        self.refreshes[: layer + 1] = [max(n, number) for n in below]
        if self.since <= self.patience:
            self.patience = min(_LONGER * self.patience, _LONGEST)
        self._change(math.inf)

    def spare(self, gaps: Sequence[float]) -> int | None:
        """The layer that one refresh less would hurt least; None if there is none."""
        above = [*self.refreshes[1:], 1]
        layers = [k for k, n in enumerate(self.refreshes) if n > above[k]]
        return min(layers, key=lambda k: gaps[k], default=None)

    def tested(self, layer: int | None, needed: bool) -> None:
        """Take note of whether a batch would have needed the refresh of `spare`.

        After enough tests in a row in which it was not, it is left out.
        """
        self.since += 1
        if needed or layer is None:
            self.spared = 0
            return
        self.spared += 1
        if self.spared >= self.patience:
            self.refreshes[layer] -= 1
            self._change(0.0)

    def _change(self, since: float) -> None:
        self.spared, self.since = 0, since
        self.__post_init__()
