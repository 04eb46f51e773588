"""Order statistics of columns without sorting or gathering them.

Floating-point numbers have the same order as their bits. Rows are counted by the
leading bits of a number, then, among the relevant ones, by the next bits, until few
enough are left to be examined individually. The amount of gathered data does not depend
on the number of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sklearn_mm._rows.statistics import weighted_median
from sklearn_mm._rows.table import Column, SumOver
from sklearn_mm._solver.roles import Array, Indices

# Largest number of bins. Keys that are lower than the largest one by more share a bin.
_MOST_BINS = 64 << 12
# Bits that are not looked at, round by round. Of the first round, all numbers of both
# signs fit in a histogram.
_SHIFTS = (46, 30, 14, 0)
# Leading bits of infinity and, except for the sign, of nan.
_NOT_FINITE = 0x7FF0 << 2
# Candidates that are compared for each row that is drawn.
_MANY_TIMES = 12.0
# Rows that are examined individually.
_FEW_ROWS = 400_000


@dataclass(frozen=True)
class Histogram:
    """Mass and number of rows by integer keys, for keys from `low` on."""

    low: int
    mass: Array
    count: Array

    @classmethod
    def of(cls, keys: Array, weight: Array) -> Histogram:
        """Rows of some keys and weights."""
        if not len(keys):
            return cls(0, np.zeros(0), np.zeros(0, dtype=np.int64))
        high = int(keys.max())
        low = max(int(keys.min()), high - _MOST_BINS)
        places, size = np.maximum(keys - low, 0), high - low + 1
        mass = np.bincount(places, weight, minlength=size)
        return cls(low, mass, np.bincount(places, minlength=size))

    @property
    def high(self) -> int:
        """The largest key."""
        return self.low + len(self.mass) - 1

    @property
    def keys(self) -> Array:
        """Keys of the bins."""
        return np.arange(self.low, self.high + 1)

    def __reduce__(self) -> Any:
        """Only bins that are not empty are sent, and masses unless they are counts."""
        there = np.flatnonzero(self.count)
        count, mass = self.count[there], self.mass[there]
        small = np.int32 if self.count.sum() < 2**31 else np.int64
        parts = (there.astype(np.int32), count.astype(small))
        more = None if np.array_equal(mass, count) else mass
        return Histogram._unpacked, (self.low, len(self.mass), *parts, more)

    @staticmethod
    def _unpacked(
        low: int, size: int, there: Indices, count: Array, mass: Array | None
    ) -> Histogram:
        made = Histogram(low, np.zeros(size), np.zeros(size, dtype=np.int64))
        made.mass[there] = count if mass is None else mass
        made.count[there] = count
        return made

    def __add__(self, other: Histogram) -> Histogram:
        if not len(self.mass) or not len(other.mass):
            return self if len(self.mass) else other
        high = max(self.high, other.high)
        low = max(min(self.low, other.low), high - _MOST_BINS)
        mass, count = np.zeros(high - low + 1), np.zeros(high - low + 1, np.int64)
        for part in (self, other):
            under = min(max(low - part.low, 0), len(part.mass))  # bins below the lowest
            start = max(part.low - low, 0)
            stop = start + len(part.mass) - under
            mass[start:stop] += part.mass[under:]
            count[start:stop] += part.count[under:]
            mass[0] += part.mass[:under].sum()
            count[0] += part.count[:under].sum()
        return Histogram(low, mass, count)


def ordered_bits(values: Array) -> Array:
    """Integers in the order of the numbers."""
    bits = (np.asarray(values, dtype=np.float64) + 0.0).view(np.int64)  # no -0.0
    # The bits of negative numbers, except for the sign, are in the opposite order.
    return bits ^ ((bits >> 63) & np.int64(np.iinfo(np.int64).max))


def _numbers(bits: Array) -> Array:
    """The numbers of `ordered_bits`."""
    own: Array = bits ^ ((bits >> 63) & np.int64(np.iinfo(np.int64).max))
    return own.view(np.float64)


@dataclass
class _Target:
    """The first row up to which the rows have a given mass."""

    mass: float
    strictly: bool  # whether the mass has to be exceeded
    below: float = 0.0  # mass of all rows with smaller keys
    key: Any = None  # leading bits of the row's number, as far as known

    def find(self, masses: Array) -> int:
        """Index of the first bin or row, in order, that reaches the mass."""
        reached = self.below + np.cumsum(masses)
        there = reached > self.mass if self.strictly else reached >= self.mass
        i = int(np.argmax(there)) if there.any() else len(masses) - 1
        self.below = float(reached[i] - masses[i])
        return i


def median(
    rows: Any,
    numbers: Callable[..., Array],
    column: Column,
    weight: Column,
    args: tuple[Any, ...] = (),
    counted: tuple[Histogram, ...] | None = None,
) -> float:
    """Weighted median of numbers that are a function of a column.

    Parameters
    ----------
    rows : BlockRows
        The rows to which the columns belong.
    numbers : callable
        Maps the entries of the column, and `args`, to a number per row.
    column, weight : Column
        The column, and the weights of its rows.
    args : tuple
        Further arguments of `numbers`.
    counted : tuple of Histogram or None, default=None
        The sum `first_counts`, if it has been computed.
    """
    rows = rows.beside
    keys: tuple[Any, ...] = (None,)  # leading bits, as far as they are known
    targets: list[_Target] = []
    known = 64
    for shift in _SHIFTS:
        if counted is None:
            made = (numbers, args, shift, known, keys)
            counted = rows.sum(_counts, column, weight, args=made)
        found, counted = dict(zip(keys, counted, strict=True)), None
        if keys == (None,):
            if max(found[None].high, -found[None].low) >= _NOT_FINITE:
                rows.check_finite("", column)
            targets = _median_targets(float(found[None].mass.sum()))
        left = 0
        for target in targets:
            histogram = found[target.key]
            i = target.find(histogram.mass)
            target.key, left = histogram.low + i, left + int(histogram.count[i])
        keys, known = tuple(sorted({target.key for target in targets})), shift
        if left <= _FEW_ROWS:
            break
    else:  # all bits are known
        bits = np.array([target.key for target in targets], dtype=np.int64)
        return 0.5 * float(_numbers(bits).sum())
    parts = rows.map(_those, column, weight, args=(numbers, args, shift, keys))
    values, masses = (np.concatenate(part) for part in zip(*parts, strict=True))
    bits, ends = ordered_bits(values) >> shift, []
    for target in targets:
        inside = np.flatnonzero(bits == target.key)
        inside = inside[np.argsort(values[inside], kind="stable")]
        ends.append(float(values[inside[target.find(masses[inside])]]))
    return 0.5 * sum(ends)


@dataclass(frozen=True)
class MedianAndSpread:
    """Weighted median, and median distance from it, narrowed down to a few rows.

    The sum `wanted` collects these rows, to be computed together with others; `of_rows`
    determines both numbers from it.
    """

    wanted: SumOver
    keys: Array  # of the bins that are not empty
    mass: Array  # of each of them
    targets: list[_Target]  # between which the median is
    middle: tuple[int, int]  # the first and the last bin that may contain the median
    near: Array  # whether a bin may contain rows at the median distance
    below: float  # mass of the bins that are certainly closer

    @classmethod
    def of(
        cls,
        rows: Any,
        numbers: Callable[..., Array],
        column: Column,
        weight: Column,
        args: tuple[Any, ...],
        counted: tuple[Histogram, ...],
    ) -> MedianAndSpread | None:
        """What the first counts tell; the parameters are those of `median`.

        None if too many rows are left, because the median is large compared with the
        distances.
        """
        (found,) = counted
        if max(found.high, -found.low) >= _NOT_FINITE:
            rows.check_finite("", column)
        there = np.flatnonzero(found.count)
        mass, keys = found.mass[there], found.low + there
        low, high = _bin_borders(keys)
        # The first bin may hold all lower keys.
        low[0] = -np.inf if found.low == keys[0] else low[0]
        targets = _median_targets(float(mass.sum()))
        first, last = (replace(target).find(mass) for target in targets)
        # Distances of each bin's numbers, for any median in its bins, and so the
        # median.
        least = np.maximum(np.maximum(low - high[last], low[first] - high), 0.0)
        most = np.maximum(high - low[first], high[last] - low)
        ends = [
            np.sort(bound)[replace(target).find(mass[np.argsort(bound)])]
            for bound, target in zip((least, most), targets, strict=True)
        ]
        near = (most >= ends[0]) & (least <= ends[1])
        inside = near.copy()
        inside[first : last + 1] = True
        if found.count[there[inside]].sum() > _FEW_ROWS:
            return None
        made = (numbers, args, _SHIFTS[0], found.low, len(found.mass), there[inside])
        wanted = SumOver(_those_of_bins, (column, weight), made, False)
        below = float(mass[most < ends[0]].sum())
        return cls(wanted, keys, mass, targets, (first, last), near, below)

    def of_rows(self, found: Collected) -> tuple[float, float]:
        """Median and median distance."""
        values, masses = found.joined()
        bits = np.maximum(ordered_bits(values) >> _SHIFTS[0], self.keys[0])
        first, last = self.middle
        middle = (self.keys[first] <= bits) & (bits <= self.keys[last])
        below = float(self.mass[:first].sum())
        centre = _between(values[middle], masses[middle], self.targets, below)
        near = self.near[np.searchsorted(self.keys, bits)]
        distance = np.abs(values[near] - centre)
        return centre, _between(distance, masses[near], self.targets, self.below)


@dataclass(frozen=True)
class Collected:
    """Arrays of some rows. A sum contains those of all its terms."""

    parts: list[tuple[Array, ...]]

    def __add__(self, other: Collected) -> Collected:
        return Collected(self.parts + other.parts)

    def joined(self) -> tuple[Array, ...]:
        """One array for each kind."""
        return tuple(np.concatenate(arrays) for arrays in zip(*self.parts, strict=True))


def _bin_borders(keys: Array) -> tuple[Array, Array]:
    """Smallest and largest number with each of the leading bits."""
    shift = _SHIFTS[0]
    return _numbers(keys << shift), _numbers(((keys + 1) << shift) - 1)


def largest_size(counted: tuple[Histogram, ...]) -> float:
    """Largest absolute value, to the digits of the first counts."""
    (found,) = counted
    low, high = _bin_borders(np.array([found.low, found.high]))
    return float(max(low[1], -high[0], 0.0))


def _median_targets(total: float) -> list[_Target]:
    """The rows between which the median lies, which differ if the mass splits."""
    return [
        _Target((0.5 - 1e-12) * total, False),
        _Target((0.5 + 1e-12) * total, True),
    ]


def _between(
    values: Array, masses: Array, targets: list[_Target], below: float
) -> float:
    """Middle of the targets, among values above those of a given mass."""
    order = np.argsort(values, kind="stable")
    values, masses = values[order], masses[order]
    ends = (values[replace(t, below=below).find(masses)] for t in targets)
    return 0.5 * float(sum(ends))


def first_counts(
    numbers: Callable[..., Array],
    column: Column,
    weight: Column,
    args: tuple[Any, ...] = (),
) -> SumOver:
    """The sum that `median` begins with, to be computed together with others."""
    made = (numbers, args, _SHIFTS[0], 64, (None,))
    return SumOver(_counts, (column, weight), made, False)


def _counts(
    column: Array,
    weight: Array,
    numbers: Callable[..., Array],
    args: tuple[Any, ...],
    shift: int,
    known: int,
    keys: tuple[Any, ...],
) -> tuple[Histogram, ...]:
    """Rows by the bits from a shift on, for each of the leading bits that are known."""
    bits = ordered_bits(numbers(column, *args))
    found = []
    for key in keys:
        if key is None:
            found.append(Histogram.of(bits >> shift, weight))
        else:
            inside = bits >> known == key
            found.append(Histogram.of(bits[inside] >> shift, weight[inside]))
    return tuple(found)


def _those(
    column: Array,
    weight: Array,
    numbers: Callable[..., Array],
    args: tuple[Any, ...],
    shift: int,
    keys: tuple[int, ...],
) -> tuple[Array, Array]:
    """Numbers with these leading bits, and their weights."""
    values = numbers(column, *args)
    bits = ordered_bits(values) >> shift
    inside = functools.reduce(np.logical_or, (bits == key for key in keys))
    return values[inside], weight[inside]


def _those_of_bins(
    column: Array,
    weight: Array,
    numbers: Callable[..., Array],
    args: tuple[Any, ...],
    shift: int,
    low: int,
    n_bins: int,
    bins: Indices,
) -> Collected:
    """Numbers whose leading bits belong to some bins, and their weights."""
    wanted = np.zeros(n_bins, dtype=bool)
    wanted[bins] = True
    values = numbers(column, *args)
    inside = wanted[np.maximum((ordered_bits(values) >> shift) - low, 0)]
    return Collected([(values[inside], weight[inside])])


def medians(rows: Any, column: Column, weight: Column, n_columns: int) -> Array:
    """Weighted medians of the columns of an array (n, n_columns)."""
    if isinstance(column, np.ndarray):
        return weighted_median(column, weight)
    args = ((k,) for k in range(n_columns))
    return np.array([median(rows, _entry, column, weight, arg) for arg in args])


def _entry(values: Array, k: int) -> Array:
    return values[:, k]


@dataclass(frozen=True)
class Drawn:
    """Rows drawn at random from bins, with probabilities proportional to weights.

    The sum of two draws is the draw from both sets of rows at once, since the random
    number of a row (`luck`) only depends on the number of the row.
    """

    quota: Array  # rows to draw from each bin
    bins: Array
    luck: Array
    rows: Indices
    entries: tuple[Array, ...] = ()  # of these rows, in any arrays

    @classmethod
    def of(cls, quota: Array, bins: Array, weight: Array, rows: Indices) -> Drawn:
        """Draw from rows that belong to the given bins."""
        # The smallest exponential variables, whose rates are the weights.
        luck = -np.log(_uniform(rows)) / weight
        drawn = cls(quota, bins, luck, rows)
        # Nearly all that are drawn are below this, and few others. It saves most of the
        # time, which sorting takes.
        mass = np.bincount(bins, weight, minlength=len(quota))
        mass[mass == 0.0] = 1.0  # of bins without rows
        limit = _MANY_TIMES * quota / mass
        few = drawn._select(np.flatnonzero(luck <= limit[bins]))
        wanted = np.minimum(quota, np.bincount(bins, minlength=len(quota)))
        there = np.bincount(few.bins, minlength=len(quota))
        return (few if (there >= wanted).all() else drawn)._drawn()

    def with_entries(self, first: int, *arrays: Array) -> Drawn:
        """The same draw with its rows of arrays, whose first row has this number."""
        entries = tuple(array[self.rows - first] for array in arrays)
        return replace(self, entries=entries)

    def __add__(self, other: Drawn) -> Drawn:
        bins, luck, rows = (
            np.concatenate([getattr(part, name) for part in (self, other)])
            for name in ("bins", "luck", "rows")
        )
        pairs = zip(self.entries, other.entries, strict=True)
        entries = tuple(map(np.concatenate, pairs))
        return Drawn(self.quota, bins, luck, rows, entries)._drawn()

    def _drawn(self) -> Drawn:
        order = np.lexsort((self.luck, self.bins))
        bins = self.bins[order]
        begin = np.flatnonzero(np.diff(bins, prepend=-1))
        lengths = np.diff(begin, append=len(bins))
        rank = np.arange(len(bins)) - np.repeat(begin, lengths)
        return self._select(order[rank < self.quota[bins]])

    def _select(self, i: Indices) -> Drawn:
        entries = tuple(values[i] for values in self.entries)
        return Drawn(self.quota, self.bins[i], self.luck[i], self.rows[i], entries)


def _uniform(numbers: Indices) -> Array:
    """Pseudo-random numbers in (0, 1), one for each integer (SplitMix64)."""
    x = numbers.astype(np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        x *= np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(12)) + 0.5) / 2.0**52
