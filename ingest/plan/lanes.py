"""Lanes: how one sequence of rows is dealt to any number of ranks, and stays one sequence.

Row g of an epoch is the next row of lane rev(g mod L), rev being bit reversal over log2(L) bits. Neighbouring lanes
then take rows that lie far apart in the sequence, so that any run of the sequence, taken in lane order and cut into
equal parts, is cut near the same lanes: a rank keeps reading the same few lanes (van der Corput's sequence, 1935).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=32)
def bit_reversal(lanes: int) -> NDArray[np.int64]:
    """Int64 (lanes,), read-only: the bit reversal of each lane's index; `lanes` is a power of two."""
    rev = np.zeros(1, np.int64)
    while len(rev) < lanes:
        rev = np.concatenate([rev * 2, rev * 2 + 1])
    rev.setflags(write=False)
    return rev


def rows_before(position: int, lanes: int) -> NDArray[np.int64]:
    """Int64 (lanes,): how many rows of each lane lie among the first `position` rows of the epoch."""
    return (position - bit_reversal(lanes) + lanes - 1) // lanes


def lane_starts(rows: int, lanes: int) -> NDArray[np.int64]:
    """Int64 (lanes + 1,): where each lane's run begins in the units laid end to end; lengths differ by at most one."""
    return np.concatenate([[0], np.cumsum(rows_before(rows, lanes))]).astype(np.int64)


def positions(lane: NDArray[np.int64], row: NDArray[np.int64], lanes: int) -> NDArray[np.int64]:
    """The position in the epoch of a lane's row, for arrays of lanes and rows of one shape."""
    return row * lanes + bit_reversal(lanes)[lane]


@dataclass(frozen=True)
class LaneRows:
    """Runs of rows, each inside one lane, in lane order; int64 (runs,) each."""

    lane: NDArray[np.int64]
    start: NDArray[np.int64]
    count: NDArray[np.int64]

    @property
    def rows(self) -> int:
        return int(self.count.sum())

    @classmethod
    def of(cls, rows: Mapping[int, NDArray[np.int64]]) -> LaneRows:
        """From lanes, in order, with some rows of each: sorted int64."""
        lane, start, count = [], [], []
        for number, places in rows.items():
            if len(places):
                cuts = np.concatenate([[0], np.flatnonzero(np.diff(places) != 1) + 1, [len(places)]])
                lane.append(np.full(len(cuts) - 1, number, np.int64))
                start.append(places[cuts[:-1]])
                count.append(np.diff(cuts))
        none = np.zeros(0, np.int64)
        return cls(*(np.concatenate([none, *column]) for column in (lane, start, count)))

    def by_lane(self) -> Iterator[tuple[int, slice | NDArray[np.int64]]]:
        """Each lane with its rows: a slice where they are one run, else sorted int64."""
        borders = np.flatnonzero(np.diff(self.lane)) + 1
        for runs in np.split(np.arange(len(self.lane)), borders):
            if len(runs) == 1:
                start = int(self.start[runs[0]])
                yield int(self.lane[runs[0]]), slice(start, start + int(self.count[runs[0]]))
            elif len(runs):
                yield int(self.lane[runs[0]]), expand(self.start[runs], self.count[runs])

    def positions(self, lanes: int, fill: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Int64 (rows,): the place in the epoch of each row, or of those that `fill` picks."""
        places = positions(np.repeat(self.lane, self.count), expand(self.start, self.count), lanes)
        return places if fill is None else places[fill]


def expand(start: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Int64 (sum of count,): the numbers of each run [start, start + count), one run after another."""
    first = np.repeat(np.cumsum(count) - count, count)
    return np.arange(int(count.sum()), dtype=np.int64) - first + np.repeat(start, count)


def by_window(
    rows: slice | NDArray[np.int64], starts: NDArray[np.int64]
) -> Iterator[tuple[int, slice | NDArray[np.int64]]]:
    """Some rows of a lane, in order, by the window that holds them: (window, its rows), in the form they came in.

    Args:
        rows: a slice, or sorted int64.
        starts: int64 (windows + 1,), the first row of each window.
    """
    if isinstance(rows, slice):
        at = rows.start
        while at < rows.stop:
            number = int(np.searchsorted(starts, at, side="right")) - 1
            until = min(rows.stop, int(starts[number + 1]))
            yield number, slice(at, until)
            at = until
        return
    home = np.searchsorted(starts, rows, side="right") - 1
    for some in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(home)) + 1):
        if len(some):
            yield int(home[some[0]]), rows[some]


def deal(position: int, count: int, lanes: int, begin: int, end: int) -> LaneRows:
    """Rows [begin, end) of the run of `count` rows at `position`, taken in lane order."""
    first = rows_before(position, lanes)
    cumulative = np.concatenate([[0], np.cumsum(rows_before(position + count, lanes) - first)])
    lo = int(np.searchsorted(cumulative, begin, side="right")) - 1
    hi = max(lo, int(np.searchsorted(cumulative, end, side="left")))
    lane = np.arange(lo, hi, dtype=np.int64)
    low = np.maximum(cumulative[lo:hi], begin)
    high = np.minimum(cumulative[lo + 1 : hi + 1], end)
    keep = high > low
    lane, low, high = lane[keep], low[keep], high[keep]
    return LaneRows(lane, first[lane] + low - cumulative[lane], high - low)


def lanes_touched(position: int, batch: int, steps: int, lanes: int, begin: int, end: int) -> NDArray[np.int64]:
    """The lanes (sorted int64) that rows [begin, end) of each of `steps` global batches of `batch` rows come from.

    Batches whose positions agree modulo the lanes are dealt alike, so only one of each kind is looked at.
    """
    cycle = min(steps, lanes // int(np.gcd(batch, lanes)))
    if cycle <= 0:
        return np.zeros(0, np.int64)
    seen = [deal((position + step * batch) % lanes, batch, lanes, begin, end).lane for step in range(cycle)]
    return np.unique(np.concatenate(seen))
