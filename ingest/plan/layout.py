"""An epoch's layout: units permuted, laid end to end, cut into lanes, and grouped into windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingest import rng
from ingest.plan.lanes import bit_reversal, rows_before


@dataclass(frozen=True)
class Order:
    """What decides the order of an epoch, beside the data; `lanes` and `interleave` are numbers here, never `auto`."""

    seed: int
    shuffle: Literal["none", "window", "full"]
    lanes: int
    interleave: int


class WindowKey(NamedTuple):
    """What the order of a window's rows is keyed by, beside the seed: pass, source, lane, place in the lane."""

    pass_: int
    source: int
    lane: int
    window: int


class Stretch(NamedTuple):
    """Rows [begin, end) of a window, in the order of delivery."""

    window: int
    begin: int
    end: int


@dataclass(frozen=True)
class Pass:
    """Where one pass of a source stands in a mixture.

    Attributes:
        source: its number, which keys the order beside the pass.
        first_unit: the number of its first unit among those of all sources.
        origin: rows dealt to the lanes before those of this pass.
        take: rows of it that are delivered.
        whole: whether its rows in a lane are one window.
    """

    source: int
    first_unit: int
    origin: int
    take: int
    whole: bool = False


@dataclass(frozen=True)
class LaneWindows:
    """The pieces of units that make up one lane, and the windows that group them.

    Attributes:
        unit, begin, end: int64 (pieces,): rows [begin, end) of the unit's own permuted rows.
        piece_start: int64 (windows + 1,): the first piece of each window.
        row_start: int64 (windows + 1,): the first row, inside the lane, of each window.
    """

    unit: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    piece_start: NDArray[np.int64]
    row_start: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.piece_start) - 1

    def spans(self, window: int) -> Iterator[tuple[int, int, int]]:
        """(unit, begin, end) of each piece of a window."""
        for p in range(self.piece_start[window], self.piece_start[window + 1]):
            yield int(self.unit[p]), int(self.begin[p]), int(self.end[p])

    def window_rows(self, window: int) -> int:
        return int(self.row_start[window + 1] - self.row_start[window])


class EpochLayout:
    """The sequence of one epoch. Costs O(units) once and O(pieces of a lane) for each lane asked for.

    Args:
        unit_rows: int64 (units,), all positive.
        order: seed, shuffle, lanes, interleave.
        epoch: which epoch; of a source in a mixture, which pass.
        place: of the pass in a mixture; None where the units are all there is.
    """

    def __init__(self, unit_rows: NDArray[np.int64], order: Order, epoch: int, place: Pass | None = None) -> None:
        self.order, self.epoch = order, epoch
        self.unit_rows = np.asarray(unit_rows, np.int64)
        units = len(self.unit_rows)
        self.place = place or Pass(source=0, first_unit=0, origin=0, take=int(self.unit_rows.sum()))
        if order.shuffle == "none":
            self.unit_order = np.arange(units, dtype=np.int64)
        else:
            self.unit_order = rng.permutation(order.seed, rng.ORDER_UNITS, epoch, self.place.source, units)
        self.unit_starts = np.concatenate([[0], np.cumsum(self.unit_rows[self.unit_order])]).astype(np.int64)
        self._lanes: dict[int, LaneWindows] = {}

    @property
    def rows(self) -> int:
        return int(self.unit_starts[-1])

    @cached_property
    def lane_starts(self) -> NDArray[np.int64]:
        """Int64 (lanes + 1,): where each lane's run begins in the units laid end to end."""
        return np.concatenate([[0], np.cumsum(self._lane_rows(self.rows))]).astype(np.int64)

    def _lane_rows(self, rows: int) -> NDArray[np.int64]:
        """Int64 (lanes,): how many of the first `rows` rows each lane has; they differ by at most one."""
        origin, lanes = self.place.origin, self.order.lanes
        return rows_before(origin + rows, lanes) - rows_before(origin, lanes)

    @property
    def demand(self) -> NDArray[np.float64]:
        """Float64 (units,): how often an epoch needs each unit."""
        return np.ones(len(self.unit_rows))

    def lane(self, lane: int) -> LaneWindows:
        """The windows of a lane."""
        if lane not in self._lanes:
            self._lanes[lane] = self.cut(lane)
        return self._lanes[lane]

    def cut(self, lane: int) -> LaneWindows:
        """As `lane`, and not kept."""
        low = int(self.lane_starts[lane])
        high = low + int(self._lane_rows(self.place.take)[lane])
        first = int(np.searchsorted(self.unit_starts, low, side="right")) - 1
        last = int(np.searchsorted(self.unit_starts, high, side="left"))
        pieces = np.arange(first, last) if high > low else np.zeros(0, np.int64)
        starts = self.unit_starts[pieces]
        begin = np.maximum(low - starts, 0)
        end = np.minimum(high - starts, self.unit_rows[self.unit_order[pieces]])
        piece_start = self._window_starts(lane, len(pieces))
        row_ends = np.concatenate([[0], np.cumsum(end - begin)])
        units = self.unit_order[pieces] + self.place.first_unit
        return LaneWindows(units, begin, end, piece_start, row_ends[piece_start])

    def _window_starts(self, lane: int, pieces: int) -> NDArray[np.int64]:
        """The first window of a lane is shorter by the lane's place, so that lanes do not turn over together."""
        whole = self.order.shuffle == "full" or self.place.whole
        size = pieces if whole else self.order.interleave
        if pieces == 0:
            return np.zeros(1, np.int64)
        lanes = self.order.lanes
        first = size if whole else -(-size * (int(bit_reversal(lanes)[lane]) + 1) // lanes)
        inner = np.arange(first, pieces, size, dtype=np.int64)
        return np.concatenate([[0], inner, [pieces]]).astype(np.int64)

    # -- what a schedule and its reads ask, of a mixture too -----------------------------------------------------------

    def needs(self, lane: int, low: int, high: int) -> NDArray[np.int64]:
        """Int64 (3, windows): windows that rows [low, high) of a lane lie in, the first and the last of those rows."""
        starts = self.lane(lane).row_start
        i = int(np.searchsorted(starts, low, side="right")) - 1
        j = int(np.searchsorted(starts, high, side="left"))
        window = np.arange(i, j, dtype=np.int64)
        return np.stack([window, np.maximum(starts[i:j], low), np.minimum(starts[i + 1 : j + 1], high) - 1])

    def stretches(self, lane: int, low: int, high: int) -> tuple[list[Stretch], None]:
        """The rows [low, high) of a lane as rows of windows; they stand in their order."""
        starts, found, at = self.lane(lane).row_start, [], low
        while at < high:
            window = int(np.searchsorted(starts, at, side="right")) - 1
            first, until = int(starts[window]), min(high, int(starts[window + 1]))
            found.append(Stretch(window, at - first, until - first))
            at = until
        return found, None

    def key(self, lane: int, window: int) -> WindowKey:
        """What the order of a window's rows is keyed by."""
        return WindowKey(self.epoch, self.place.source, lane, window)

    def spans(self, lane: int, window: int) -> Iterator[tuple[int, int, int]]:
        """(unit, begin, end) of each piece of a window: rows [begin, end) of the unit's own permutation."""
        return self.lane(lane).spans(window)

    def window_rows(self, lane: int, window: int) -> int:
        """Rows of a window."""
        return self.lane(lane).window_rows(window)

    def lane_units(self, lane: int) -> NDArray[np.int64]:
        """Int64 (pieces,): the unit of each piece that a lane holds."""
        return self.lane(lane).unit

    def lane_windows(self, lane: int) -> int:
        """Windows of a lane."""
        return len(self.lane(lane))


def piece_rows(order: Order, pass_: int, unit: int, unit_rows: int, begin: int, end: int) -> NDArray[np.int64] | None:
    """Rows [begin, end) of a unit's own permutation, sorted, int64; None when they are the whole unit."""
    if begin == 0 and end == unit_rows:
        return None
    if order.shuffle == "none":
        return np.arange(begin, end, dtype=np.int64)
    return np.sort(rng.permutation(order.seed, rng.ORDER_ROWS, pass_, unit, unit_rows)[begin:end])


def window_order(order: Order, key: WindowKey, rows: int) -> NDArray[np.int64]:
    """Int64 (rows,): which row of a window, as its pieces lie, is delivered at each place."""
    if order.shuffle == "none":
        return np.arange(rows, dtype=np.int64)
    number = key.source << 52 | key.lane << 32 | key.window
    return rng.permutation(order.seed, rng.ORDER_WINDOW, key.pass_, number, rows)
