"""Column-wise record of a run."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from sklearn.utils import Bunch

from sklearn_mm._solver.roles import Inferred, Memory, Moved

_OBJECTIVES = {"upper_bound", "lower_bound", "gap", "previous_upper", "decrease"}


@dataclass
class History:
    """Collects one row per update of theta; `to_bunch` gives the columns."""

    _columns: dict[str, list[float]] = field(
        default_factory=functools.partial(defaultdict, list)
    )
    _start: float = field(default_factory=time.perf_counter)
    _epoch: int = 0

    def append(self, inferred: Inferred, moved: Moved, memory: Memory) -> None:
        """Record an update that was inferred and made with this memory."""
        trial = inferred.trial
        row: dict[str, float] = {
            "upper_bound": trial.upper,
            "lower_bound": trial.lower,
            "previous_upper": memory.previous_upper,
            "effort": trial.effort,
            "work": inferred.work,
            "satisfied": inferred.satisfied,
            "capped": inferred.capped,
            "accepted": moved.accepted,
            "change": moved.change,
            "time": time.perf_counter() - self._start,
            "epoch": self._epoch,
            **moved.info,
        }
        for name, value in row.items():
            self._columns[name].append(value)

    def extend(self, other: History) -> None:
        """Add updates that were made elsewhere, whose time is that of their arrival."""
        now = time.perf_counter() - self._start
        for name, column in other._columns.items():
            self._columns[name] += column
        if len(other):
            self._columns["time"][-len(other) :] = [now] * len(other)
            self._columns["epoch"][-len(other) :] = [self._epoch] * len(other)

    def end_epoch(self) -> None:
        """Start the next epoch."""
        self._epoch += 1

    def last(self) -> dict[str, float]:
        """The row recorded last."""
        return {name: column[-1] for name, column in self._columns.items()}

    def since(self, row: int) -> dict[str, list[float]]:
        """Columns from a row on."""
        return {name: column[row:] for name, column in self._columns.items()}

    def __len__(self) -> int:
        return len(self._columns.get("upper_bound", ()))

    def to_bunch(self, unit: float = 1.0) -> Bunch:
        """Arrays by name, the gap among them; objectives are multiplied by a unit."""
        # An interrupt may have come in the middle of a row.
        n_rows = min((len(column) for column in self._columns.values()), default=0)
        columns = {
            name: np.asarray(column[:n_rows]) for name, column in self._columns.items()
        }
        if columns:
            columns["gap"] = columns["upper_bound"] - columns["lower_bound"]
        if unit != 1.0:
            with np.errstate(over="ignore", under="ignore"):
                for name in _OBJECTIVES & set(columns):
                    columns[name] = columns[name] * unit
        return Bunch(**columns)
