"""An epoch's layout: units permuted, laid end to end, cut into lanes, and grouped into windows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ingest import rng
from ingest.plan.lanes import bit_reversal, lane_starts


@dataclass(frozen=True)
class Order:
    """What decides the order of an epoch, beside the data; `lanes` and `interleave` are numbers here, never `auto`."""

    seed: int
    shuffle: Literal["none", "window", "full"]
    lanes: int
    interleave: int


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


class EpochLayout:
    """The sequence of one epoch. Costs O(units) once and O(pieces of a lane) for each lane asked for.

    Args:
        unit_rows: int64 (units,), all positive.
        order: seed, shuffle, lanes, interleave.
        epoch: which epoch.
    """

    def __init__(self, unit_rows: NDArray[np.int64], order: Order, epoch: int) -> None:
        self.order, self.epoch = order, epoch
        self.unit_rows = np.asarray(unit_rows, np.int64)
        units = len(self.unit_rows)
        if order.shuffle == "none":
            self.unit_order = np.arange(units, dtype=np.int64)
        else:
            self.unit_order = rng.permutation(order.seed, rng.ORDER_UNITS, epoch, 0, units)
        self.unit_starts = np.concatenate([[0], np.cumsum(self.unit_rows[self.unit_order])]).astype(np.int64)
        self._lanes: dict[int, LaneWindows] = {}

    @property
    def rows(self) -> int:
        return int(self.unit_starts[-1])

    @cached_property
    def lane_starts(self) -> NDArray[np.int64]:
        return lane_starts(self.rows, self.order.lanes)

    def lane(self, lane: int) -> LaneWindows:
        """The windows of a lane."""
        if lane not in self._lanes:
            self._lanes[lane] = self._cut(lane)
        return self._lanes[lane]

    def _cut(self, lane: int) -> LaneWindows:
        low, high = int(self.lane_starts[lane]), int(self.lane_starts[lane + 1])
        first = int(np.searchsorted(self.unit_starts, low, side="right")) - 1
        last = int(np.searchsorted(self.unit_starts, high, side="left"))
        pieces = np.arange(first, last) if high > low else np.zeros(0, np.int64)
        starts = self.unit_starts[pieces]
        begin = np.maximum(low - starts, 0)
        end = np.minimum(high - starts, self.unit_rows[self.unit_order[pieces]])
        piece_start = self._window_starts(lane, len(pieces))
        row_ends = np.concatenate([[0], np.cumsum(end - begin)])
        return LaneWindows(self.unit_order[pieces], begin, end, piece_start, row_ends[piece_start])

    def _window_starts(self, lane: int, pieces: int) -> NDArray[np.int64]:
        """The first window of a lane is shorter by the lane's place, so that lanes do not turn over together."""
        size = pieces if self.order.shuffle == "full" else self.order.interleave
        if pieces == 0:
            return np.zeros(1, np.int64)
        lanes = self.order.lanes
        first = size if self.order.shuffle == "full" else -(-size * (int(bit_reversal(lanes)[lane]) + 1) // lanes)
        inner = np.arange(first, pieces, size, dtype=np.int64)
        return np.concatenate([[0], inner, [pieces]]).astype(np.int64)

    def piece_rows(self, unit: int, begin: int, end: int) -> NDArray[np.int64] | None:
        """The rows of a piece inside its unit, sorted, int64; None when it is the whole unit."""
        return piece_rows(self.order, self.epoch, unit, int(self.unit_rows[unit]), begin, end)

    def window_order(self, lane: int, window: int) -> NDArray[np.int64]:
        """Int64 (rows of the window,): which row of the window, as its pieces lie, is delivered at each place."""
        windows = self.lane(lane)
        rows = int(windows.row_start[window + 1] - windows.row_start[window])
        return window_order(self.order, self.epoch, lane, window, rows)


def piece_rows(order: Order, epoch: int, unit: int, unit_rows: int, begin: int, end: int) -> NDArray[np.int64] | None:
    """Rows [begin, end) of a unit's own permutation, sorted, int64; None when they are the whole unit."""
    if begin == 0 and end == unit_rows:
        return None
    if order.shuffle == "none":
        return np.arange(begin, end, dtype=np.int64)
    return np.sort(rng.permutation(order.seed, rng.ORDER_ROWS, epoch, unit, unit_rows)[begin:end])


def window_order(order: Order, epoch: int, lane: int, window: int, rows: int) -> NDArray[np.int64]:
    """Int64 (rows,): which row of a window, as its pieces lie, is delivered at each place."""
    if order.shuffle == "none":
        return np.arange(rows, dtype=np.int64)
    return rng.permutation(order.seed, rng.ORDER_WINDOW, epoch, lane << 32 | window, rows)
