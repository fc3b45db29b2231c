"""What one rank does from a position to the end of an epoch: its steps, and the windows it reads, in order of need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ingest.errors import PlanError
from ingest.plan.lanes import LaneRows, deal, lanes_touched, positions, rows_before
from ingest.plan.mixture import Layout


@dataclass(frozen=True)
class Share:
    """A rank's share of every global batch.

    Attributes:
        rank: 0 <= rank < world_size.
        world_size: data-parallel ranks.
        batch: rows per rank and step.
        last: what happens to the last rows that do not fill a global batch.
    """

    rank: int
    world_size: int
    batch: int
    last: str = "drop"

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise PlanError(f"rank {self.rank} does not exist in a world of {self.world_size}")

    @property
    def global_batch(self) -> int:
        return self.batch * self.world_size

    def steps(self, rows: int) -> int:
        """Steps that `rows` remaining rows give, the same on every rank."""
        full, tail = divmod(rows, self.global_batch)
        return full + (1 if tail and self.last != "drop" else 0)

    def dropped(self, rows: int) -> int:
        return rows % self.global_batch if self.last == "drop" else 0

    def padded(self, rows: int) -> int:
        """Invalid rows that all ranks together add to the last batch."""
        tail = rows % self.global_batch
        if not tail or self.last == "drop":
            return 0
        return self.global_batch - tail if self.last == "pad" else max(0, self.world_size - tail)


@dataclass(frozen=True)
class Chunk:
    """Rows of an epoch whose lengths are sorted together, lane by lane, and cut into one group for each global batch.

    Attributes:
        start, end: positions; rows [start, end) of the epoch.
        batch: the global batch that it was cut for. Step j of it lies at start + j * batch.
    """

    start: int
    end: int
    batch: int

    @property
    def groups(self) -> int:
        return -(-(self.end - self.start) // self.batch)

    def group(self, position: int) -> tuple[int, int, int]:
        """(number, begin, end): the group that a position lies in, and the positions that stand for its rows."""
        number = (position - self.start) // self.batch
        begin = self.start + number * self.batch
        return number, begin, min(begin + self.batch, self.end)

    def under_way(self, position: int) -> bool:
        """Whether some of its rows have been delivered and some have not."""
        return self.start < position < self.end


@dataclass(frozen=True)
class Step:
    """One step of one rank.

    Attributes:
        epoch: the epoch it belongs to.
        index: steps since the schedule's start.
        runs: the rows of the batch, in lane order.
        fill: int64 (rows of the batch,): which of the runs' rows stands at each place; None when each stands once.
        valid_rows: rows that count; the places after them repeat a row.
        after: the position in the epoch once all ranks have taken this step; the number of rows means its end.
        chunk: whose rows it takes some of, where rows are sorted by length.
        left: rows that the chunk has behind it, of the lanes that begin with this rank: over all ranks, all of them.
    """

    epoch: int
    index: int
    runs: LaneRows
    fill: NDArray[np.int64] | None
    valid_rows: int
    after: int
    chunk: Chunk | None = None
    left: int = 0


@dataclass(frozen=True)
class WindowNeeds:
    """Windows in order of need; int64 (windows,) each. Steps count from the schedule's start."""

    lane: NDArray[np.int64]
    window: NDArray[np.int64]
    first_step: NDArray[np.int64]
    last_step: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lane)


class Schedule:
    """One rank's way through an epoch.

    Args:
        layout: the epoch.
        share: the rank's share.
        position: rows of the epoch already consumed, by any world and batch size.

    Raises:
        PlanError: the position lies outside the epoch.
    """

    def __init__(self, layout: Layout, share: Share, position: int = 0) -> None:
        if not 0 <= position <= layout.rows:
            raise PlanError(f"position {position} lies outside the epoch's {layout.rows} rows")
        self.layout, self.share, self.position = layout, share, position
        self.remaining = layout.rows - position
        self.full_steps, self.tail = divmod(self.remaining, share.global_batch)
        self.steps = share.steps(self.remaining)

    def step(self, index: int) -> Step:
        """The step `index` after the start, 0 <= index < steps."""
        share, lanes = self.share, self.layout.order.lanes
        at = self.position + index * share.global_batch
        if index < self.full_steps:
            begin = share.rank * share.batch
            runs = deal(at, share.global_batch, lanes, begin, begin + share.batch)
            return Step(self.layout.epoch, index, runs, None, share.batch, at + share.global_batch)
        begin, end = (self.tail * (share.rank + k) // share.world_size for k in (0, 1))
        own = end - begin
        if own == 0:  # more ranks than rows: repeat one of them, so that this rank takes the step too
            begin = share.rank % self.tail
            end = begin + 1
        runs = deal(at, self.tail, lanes, begin, end)
        size = share.batch if share.last == "pad" else max(own, 1)
        fill = np.arange(size, dtype=np.int64) % (end - begin) if size != own else None
        return Step(self.layout.epoch, index, runs, fill, own, self.layout.rows)

    def __iter__(self) -> Iterator[Step]:
        return (self.step(index) for index in range(self.steps))

    @cached_property
    def windows(self) -> WindowNeeds:
        """The windows this rank reads, in order of need; of windows needed at the same step, the lower lane first."""
        share, order = self.share, self.layout.order
        begin = share.rank * share.batch
        touched = lanes_touched(
            self.position, share.global_batch, self.full_steps, order.lanes, begin, begin + share.batch
        )
        low = rows_before(self.position, order.lanes)
        high = rows_before(self.position + self.full_steps * share.global_batch, order.lanes)
        spans = [(int(lane), int(low[lane]), int(high[lane])) for lane in touched]
        if self.steps > self.full_steps:
            runs = self.step(self.full_steps).runs
            spans += [(int(a), int(b), int(b + c)) for a, b, c in zip(runs.lane, runs.start, runs.count, strict=True)]
        found = [self._span(*span) for span in spans if span[2] > span[1]]
        return merge_needs(*np.concatenate([np.zeros((4, 0), np.int64), *found], axis=1))

    def _span(self, lane: int, low: int, high: int) -> NDArray[np.int64]:
        """Int64 (4, windows): lane, window, first and last step of the windows that hold rows [low, high) of a lane."""
        span = window_span(self.layout, lane, low, high)
        span[2:] = (span[2:] - self.position) // self.share.global_batch
        return span


def window_span(layout: Layout, lane: int, low: int, high: int) -> NDArray[np.int64]:
    """Int64 (4, windows): lane and window of those that hold rows [low, high) of a lane, the positions of their first
    and last such row.
    """
    window, *ends = layout.needs(lane, low, high)
    lane_column = np.full(len(window), lane, np.int64)
    return np.stack([lane_column, window, *(positions(lane_column, row, layout.order.lanes) for row in ends)])


def merge_needs(
    lane: NDArray[np.int64], window: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> WindowNeeds:
    """Each (lane, window) once, with its earliest and latest need, sorted by need."""
    if not len(lane):
        return WindowNeeds(*np.zeros((4, 0), np.int64))
    by_window = np.lexsort((first, window, lane))
    lane, window, first, last = lane[by_window], window[by_window], first[by_window], last[by_window]
    new = np.concatenate([[True], (np.diff(lane) != 0) | (np.diff(window) != 0)])
    starts = np.flatnonzero(new)
    last = np.maximum.reduceat(last, starts)
    lane, window, first = lane[starts], window[starts], first[starts]
    by_need = np.lexsort((window, lane, first))
    return WindowNeeds(lane[by_need], window[by_need], first[by_need], last[by_need])
