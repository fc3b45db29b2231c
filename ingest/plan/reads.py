"""Windows gathered into reads, so that a rank fetches a unit once for all its lanes that need it at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ingest.plan.buckets import BucketSchedule
from ingest.plan.layout import Order, WindowKey, piece_rows, window_order
from ingest.plan.mixture import Layout
from ingest.plan.schedule import Schedule

MATERIAL = (
    0.25  # a shared unit smaller than this share of a window is read again: waiting for the other lane costs more
)


@dataclass(frozen=True)
class UnitSizes:
    """Of each unit: encoded bytes fetched, and bytes once in memory; int64 (units,) each."""

    fetched: NDArray[np.int64]
    memory: NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """A window and when its rank needs it, in steps from the schedule's start."""

    lane: int
    window: int
    first_step: int
    last_step: int


@dataclass
class Read:
    """One read task: units, each once, and the windows cut from them.

    Attributes:
        units: unit index: sorted rows to keep, int64; None for all of it. In the order the table holds them.
        windows: the windows served, in order of need.
    """

    units: dict[int, NDArray[np.int64] | None] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    last_step: int = -1

    @property
    def first_step(self) -> int:
        return self.windows[0].first_step

    def rows(self, layout: Layout) -> int:
        """Rows of the table that the read yields."""
        return sum(int(layout.unit_rows[u]) if rows is None else len(rows) for u, rows in self.units.items())

    def fetched_bytes(self, sizes: UnitSizes) -> int:
        return int(sizes.fetched[list(self.units)].sum())

    def memory_bytes(self, layout: Layout, sizes: UnitSizes) -> int:
        """Bytes of the table that the read yields, by the units' mean row size."""
        kept = [
            sizes.memory[u] * (1.0 if rows is None else len(rows) / layout.unit_rows[u])
            for u, rows in self.units.items()
        ]
        return int(sum(kept))

    def arrangement(self, layout: Layout) -> Arrangement:
        """The same rows in the order in which the windows deliver them, one window after the other."""
        return Arrangement(
            layout.order,
            tuple((unit, int(layout.unit_rows[unit])) for unit in self.units),
            tuple((layout.key(w.lane, w.window), tuple(layout.spans(w.lane, w.window))) for w in self.windows),
        )

    def window_starts(self, layout: Layout) -> list[int]:
        """The row of the arranged table at which each window begins."""
        starts, at = [], 0
        for window in self.windows:
            starts.append(at)
            at += layout.window_rows(window.lane, window.window)
        return starts

    def window_rows(
        self,
        layout: Layout,
        sample_ids: Callable[[int, NDArray[np.int64] | None], NDArray[np.int64]],
        window: Window,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each place of the window: the row of the read's table, and the sample id; int64 (rows,) each.

        Args:
            layout: the epoch's.
            sample_ids: of a unit and some of its rows (all when None), numbered as the layout numbers them.
            window: one of the read's.
        """
        starts, at = {}, 0
        for unit, rows in self.units.items():
            starts[unit] = at
            at += int(layout.unit_rows[unit]) if rows is None else len(rows)
        table_rows, ids = [], []
        for unit, rows in _pieces(layout, window):
            inside = np.arange(layout.unit_rows[unit], dtype=np.int64) if rows is None else rows
            kept = self.units[unit]
            table_rows.append(starts[unit] + (inside if kept is None else np.searchsorted(kept, inside)))
            ids.append(sample_ids(unit, rows))
        key = layout.key(window.lane, window.window)
        order = window_order(layout.order, key, layout.window_rows(window.lane, window.window))
        return np.concatenate(table_rows)[order], np.concatenate(ids)[order]


@dataclass(frozen=True)
class Arrangement:
    """How a read task puts its rows into the order in which they are delivered: small, whatever the number of rows.

    Attributes:
        order: of the layout.
        units: each unit of the read with its rows, in the order in which the table holds them.
        windows: key and pieces (unit, begin, end) of each window of the read.
    """

    order: Order
    units: tuple[tuple[int, int], ...]
    windows: tuple[tuple[WindowKey, tuple[tuple[int, int, int], ...]], ...]

    def table_rows(self, kept: Sequence[NDArray[np.int64] | None]) -> NDArray[np.int64]:
        """Int64 (rows,): the table's row at each place of the arranged table.

        Args:
            kept: of each unit the rows that the table holds, sorted; None for all.
        """
        starts: dict[int, tuple[int, NDArray[np.int64] | None]] = {}
        at, rows_of = 0, dict(self.units)
        for (unit, rows), some in zip(self.units, kept, strict=True):
            starts[unit] = (at, some)
            at += rows if some is None else len(some)
        placed = []
        for key, pieces in self.windows:
            parts = []
            for unit, begin, end in pieces:
                first, held = starts[unit]
                inside = piece_rows(self.order, key.pass_, unit, rows_of[unit], begin, end)
                if inside is None:
                    inside = np.arange(rows_of[unit], dtype=np.int64)
                parts.append(first + (inside if held is None else np.searchsorted(held, inside)))
            table_rows = np.concatenate(parts)
            placed.append(table_rows[window_order(self.order, key, len(table_rows))])
        return np.concatenate(placed)


def gather_reads(
    schedule: Schedule | BucketSchedule,
    sizes: UnitSizes,
    *,
    start: int = 0,
    stop: int | None = None,
    merged_bytes: int = 64 << 20,
) -> list[Read]:
    """The reads for windows [start, stop) of a schedule, in order of need.

    A window joins an earlier read when both hold a part of one unit, that unit is a material share of the window, the
    window is needed before the earlier one is used up, and the read stays below `merged_bytes`.
    """
    layout, needs = schedule.layout, schedule.windows
    reads: list[Read] = []
    open_reads: dict[tuple[int, int], Read] = {}  # cut unit, pass: the last read that holds a part of it
    columns = (c[start:stop].tolist() for c in (needs.lane, needs.window, needs.first_step, needs.last_step))
    for values in zip(*columns, strict=True):
        window = Window(*values)
        pieces = list(_pieces(layout, window))
        pass_ = layout.key(window.lane, window.window).pass_
        read = _joinable(open_reads, window, pass_, pieces, sizes, merged_bytes)
        if read is None:
            read = Read()
            reads.append(read)
        for unit, rows in pieces:
            if unit in read.units and read.units[unit] is not None and rows is not None:
                read.units[unit] = np.union1d(read.units[unit], rows)  # type: ignore[arg-type]
            elif read.units.get(unit, rows) is not None or unit not in read.units:
                read.units[unit] = rows
            if rows is not None:
                open_reads[unit, pass_] = read
        read.windows.append(window)
        read.last_step = max(read.last_step, window.last_step)
    return reads


def _pieces(layout: Layout, window: Window) -> Iterator[tuple[int, NDArray[np.int64] | None]]:
    pass_ = layout.key(window.lane, window.window).pass_
    for unit, begin, end in layout.spans(window.lane, window.window):
        yield unit, piece_rows(layout.order, pass_, unit, int(layout.unit_rows[unit]), begin, end)


def _joinable(
    open_reads: dict[tuple[int, int], Read],
    window: Window,
    pass_: int,
    pieces: list[tuple[int, NDArray[np.int64] | None]],
    sizes: UnitSizes,
    merged_bytes: int,
) -> Read | None:
    total = sum(int(sizes.memory[unit]) for unit, _ in pieces)
    for unit, rows in pieces:
        read = open_reads.get((unit, pass_)) if rows is not None else None
        if read is None or window.first_step > read.last_step or sizes.memory[unit] < MATERIAL * total:
            continue
        new = [u for u, _ in pieces if u not in read.units]
        # A read of one unit costs that unit however little of it is kept, so nothing is saved by refusing it.
        if not new or sum(int(sizes.memory[u]) for u in [*read.units, *new]) <= merged_bytes:
            return read
    return None
