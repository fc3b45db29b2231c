"""Plans drawn for property tests, and the sample ids that they deliver, found slowly and plainly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from ingest.plan.buckets import BucketSchedule, Part
from ingest.plan.lanes import LaneRows
from ingest.plan.layout import Order
from ingest.plan.mixture import Mix, layout_of
from ingest.plan.reads import UnitSizes, gather_reads
from ingest.plan.schedule import Schedule, Share, Step

SampleIds = Callable[[int, "np.ndarray | None"], np.ndarray]


def units_up_to(rows: int, count: int) -> st.SearchStrategy[np.ndarray]:
    """Rows of each of some units, int64 (units,)."""
    return st.lists(st.integers(1, rows), min_size=1, max_size=count).map(lambda units: np.array(units, np.int64))


def orders_up_to(lanes: int, interleave: int) -> st.SearchStrategy[Order]:
    """Orders of any seed and shuffle; `lanes` is a power of two."""
    return st.builds(
        Order,
        seed=st.integers(0, 2**63 - 1),
        shuffle=st.sampled_from(["none", "window", "full"]),
        lanes=st.integers(0, lanes.bit_length() - 1).map(lambda k: 2**k),
        interleave=st.integers(1, interleave),
    )


def first_ids(unit_rows: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(unit_rows)]).astype(np.int64)


def sizes_of(unit_rows: np.ndarray, row_bytes: int = 1000) -> UnitSizes:
    return UnitSizes(unit_rows * row_bytes, unit_rows * row_bytes)


class Deliveries:
    """Every window of one rank's schedule as ids, through the reads that would fetch them.

    Args:
        schedule: the rank's.
        sample_ids: of a unit and some of its rows, all when None; rows are numbered through when it is left out.
    """

    def __init__(self, schedule: Schedule | BucketSchedule, sample_ids: SampleIds | None = None) -> None:
        layout = schedule.layout
        self.schedule, self.first = schedule, first_ids(layout.unit_rows)
        self._ids = sample_ids or self._numbered
        self.windows: dict[tuple[int, int], np.ndarray] = {}
        for read in gather_reads(schedule, sizes_of(layout.unit_rows)):
            table = np.concatenate([self._ids(unit, rows) for unit, rows in read.units.items()])
            assert len(table) == read.rows(layout)
            for window in read.windows:
                rows, ids = read.window_rows(layout, self._ids, window)
                assert (table[rows] == ids).all()
                self.windows[window.lane, window.window] = ids

    def _numbered(self, unit: int, rows: np.ndarray | None) -> np.ndarray:
        return self.first[unit] + (np.arange(self.schedule.layout.unit_rows[unit]) if rows is None else rows)

    def ids(self, step: Step) -> np.ndarray:
        """The ids of a step, repeated ones included."""
        ids = self.of(step.runs)
        return ids if step.fill is None else ids[step.fill]

    def of(self, runs: LaneRows) -> np.ndarray:
        """The ids of runs of rows, in their order."""
        out = []
        for lane, start, count in zip(runs.lane.tolist(), runs.start.tolist(), runs.count.tolist(), strict=True):
            stretches, places = self.schedule.layout.stretches(lane, start, start + count)
            ids = np.concatenate([self.windows[lane, window][begin:end] for window, begin, end in stretches])
            assert len(ids) == count
            if places is not None:
                ids[places] = ids.copy()
            out.append(ids)
        return np.concatenate(out)


def deliver(
    unit_rows: np.ndarray,
    order: Order,
    epoch: int,
    world: int,
    batch: int,
    last: str,
    position: int = 0,
    sample_ids: SampleIds | None = None,
    mix: Mix | None = None,
) -> list[list[tuple[np.ndarray, Step]]]:
    """For each step, for each rank: the ids and the step."""
    layout = layout_of(unit_rows, order, epoch, mix)
    shares = [Share(rank, world, batch, last) for rank in range(world)]
    ranks = [Deliveries(Schedule(layout, share, position), sample_ids) for share in shares]
    steps = ranks[0].schedule.steps
    assert all(rank.schedule.steps == steps for rank in ranks)
    out = []
    for index in range(steps):
        taken = [(rank, rank.schedule.step(index)) for rank in ranks]
        out.append([(rank.ids(step), step) for rank, step in taken])
    return out


def length_of(ids):
    """A skewed length of each sample, the same wherever it is asked."""
    return (np.asarray(ids) * 2654435761 % 1000) ** 2 // 5000 + 1


class BucketedRank:
    """One rank's steps with their ids, in batches of like lengths."""

    def __init__(self, layout, share, batches, position, chunk, lengths=length_of, sample_ids=None):
        self._length_of = lengths
        self.schedule = BucketSchedule(layout, share, batches, position, chunk)
        self._deliveries, self._groups = Deliveries(self.schedule, sample_ids), None

    def _lengths(self, lane, low, high):
        rows = LaneRows.of({lane: np.arange(low, high)})
        return self._length_of(self._deliveries.of(rows)) if high > low else np.zeros(0, np.int64)

    def __iter__(self):
        for each in self.schedule:
            step = self._sorted(each) if isinstance(each, Part) else each
            yield self._deliveries.ids(step), step

    def _sorted(self, part):
        if self._groups is None or self._groups.chunk != part.chunk:
            rows = self.schedule.lane_rows(part.chunk)
            found = {lane: self._lengths(lane, *span) for lane, span in rows.items()}
            self._groups = self.schedule.groups(part.chunk, found)
        return self._groups.step(part)
