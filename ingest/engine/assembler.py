"""From a step of the plan to rows of the tables that were read: lanes, mixtures, rows sorted by length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

from ingest.engine.jobs import FeedConfig, Gather, Job
from ingest.engine.under_way import EpochUnderWay, OpenRead, OpenWindow
from ingest.manifest.model import Manifest
from ingest.plan.buckets import BucketSchedule, Part
from ingest.plan.lanes import by_window
from ingest.plan.layout import EpochLayout
from ingest.plan.mixture import Layout, MixtureLayout
from ingest.plan.schedule import Step
from ingest.read.lengths import lengths_of

_NO_IDS = np.zeros(0, np.int64)


class TableRows(NamedTuple):
    """Rows of a read's table, their sample ids (none where the table holds them), and the pass of their source."""

    read: OpenRead
    rows: NDArray[np.int64] | slice
    ids: NDArray[np.int64]
    pass_: int


class Assembler:
    """Finds the rows of a step, waiting for the windows that they lie in.

    Args:
        manifest: what there is.
        config: how to feed it.
        await_window: gives window `window` of lane `lane` of an epoch once it is there, or raises why it never will be.
    """

    def __init__(
        self,
        manifest: Manifest,
        config: FeedConfig,
        await_window: Callable[[EpochUnderWay, int, int], OpenWindow],
    ) -> None:
        self._manifest, self._config, self._await = manifest, config, await_window

    def sorted_step(self, epoch: EpochUnderWay, part: Part) -> Step:
        """The rows of a part, once all rows of its chunk are there and their lengths known."""
        schedule = epoch.schedule
        assert isinstance(schedule, BucketSchedule)
        if epoch.groups is None or epoch.groups.chunk != part.chunk:
            rows = schedule.lane_rows(part.chunk).items()
            epoch.groups = schedule.groups(
                part.chunk, {lane: self._lengths(epoch, lane, slice(*span)) for lane, span in rows}
            )
        return epoch.groups.step(part)

    def _lengths(self, epoch: EpochUnderWay, lane: int, rows: slice) -> NDArray[np.int64]:
        """Int64 (rows,): of each of a lane's rows."""
        layout, places = epoch.schedule.layout, None
        if isinstance(layout, MixtureLayout):
            parts, places = self._placed_rows(epoch, layout, lane, rows)
        else:
            parts = list(self._lane_rows(epoch, lane, rows))
        found = np.concatenate([_NO_IDS, *(self._read_lengths(part.read)[part.rows] for part in parts)])
        if places is not None:
            found[places] = found.copy()
        return found

    def _read_lengths(self, held: OpenRead) -> NDArray[np.int64]:
        """Int64 (rows,): of the rows of a read's table."""
        assert self._config.bucketing is not None
        if held.lengths is None:
            column, blocks = self._config.bucketing.column, ray.get([ref for ref, _ in held.delivery.blocks])
            held.lengths = np.concatenate([_NO_IDS, *(lengths_of(block.column(column)) for block in blocks)])
        return held.lengths

    def rows(self, epoch: EpochUnderWay, step: Step) -> tuple[list[TableRows], NDArray[np.int64] | None]:
        """The rows of each run of the step, windows awaited as they come; and which of the runs' rows stands at each
        place of the batch, None where each stands once and in their order.
        """
        layout = epoch.schedule.layout
        if isinstance(layout, MixtureLayout):
            return self._mixed_rows(epoch, layout, step)
        parts = [part for lane, rows in step.runs.by_lane() for part in self._lane_rows(epoch, lane, rows)]
        return parts, step.fill

    def _mixed_rows(
        self, epoch: EpochUnderWay, layout: MixtureLayout, step: Step
    ) -> tuple[list[TableRows], NDArray[np.int64] | None]:
        """As `rows`. Rows of one source stand together in a lane's share of the batch: one by one they would cost more
        than the rest of it.
        """
        parts, places, at = [], [], 0
        for lane, rows in step.runs.by_lane():
            some, inside = self._placed_rows(epoch, layout, lane, rows)
            parts += some
            places.append(at + inside)
            at += len(inside)
        order = np.concatenate(places)
        return parts, order if step.fill is None else order[step.fill]

    def _placed_rows(
        self, epoch: EpochUnderWay, layout: MixtureLayout, lane: int, rows: slice | NDArray[np.int64]
    ) -> tuple[list[TableRows], NDArray[np.int64]]:
        """Some rows of a mixed lane, sorted, source by source; and int64 (rows,), which of them each one is."""
        found, places = layout.picked(lane, rows)
        return [self._part(epoch, lane, window, inside) for window, inside in found], places

    def _lane_rows(self, epoch: EpochUnderWay, lane: int, rows: slice | NDArray[np.int64]) -> Iterator[TableRows]:
        """Some rows of a lane that is not mixed, sorted, as parts of one window each."""
        layout = epoch.schedule.layout
        assert isinstance(layout, EpochLayout)
        starts = layout.lane(lane).row_start
        for window, some in by_window(rows, starts):
            first = int(starts[window])
            inside = slice(some.start - first, some.stop - first) if isinstance(some, slice) else some - first
            yield self._part(epoch, lane, window, inside)

    def _part(self, epoch: EpochUnderWay, lane: int, window: int, inside: slice | NDArray[np.int64]) -> TableRows:
        """Some rows of a window, once it is there."""
        layout = epoch.schedule.layout
        opened, pass_ = self._await(epoch, lane, window), layout.key(lane, window).pass_
        if self._config.arranged:
            at = opened.start
            rows = slice(inside.start + at, inside.stop + at) if isinstance(inside, slice) else inside + at
            return TableRows(opened.read, rows, _NO_IDS, pass_)
        table_rows, ids = self._window_rows(layout, opened)
        return TableRows(opened.read, table_rows[inside], ids[inside], pass_)

    def _window_rows(self, layout: Layout, opened: OpenWindow) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if opened.rows is None:
            opened.rows = opened.read.read.window_rows(layout, self._manifest.sample_ids, opened.window)
        return opened.rows


def job_of(step: Step, parts: list[TableRows], drops: list[int], *, mixed: bool = False) -> Job:
    """The rows of a step, those that repeat included, as runs of rows of one table each."""
    sample_ids = np.concatenate([part.ids for part in parts])
    lanes = np.repeat(step.runs.lane, step.runs.count) if len(sample_ids) else _NO_IDS
    passes = _NO_IDS
    if mixed and len(sample_ids):
        passes = np.repeat(np.array([part.pass_ for part in parts]), [len(part.ids) for part in parts])
    if step.fill is None:
        gathers = tuple(Gather(part.read.key, part.rows) for part in parts)
        return Job(step.epoch, gathers, sample_ids, lanes, tuple(drops), passes)
    listed = [np.arange(p.rows.start, p.rows.stop) if isinstance(p.rows, slice) else p.rows for p in parts]
    part = np.repeat(np.arange(len(parts)), [len(rows) for rows in listed])[step.fill]
    rows = np.concatenate(listed)[step.fill]
    cuts = np.flatnonzero(np.diff(part)) + 1
    runs = zip(part[np.concatenate([[0], cuts])].tolist(), np.split(rows, cuts), strict=True)
    gathers = tuple(Gather(parts[index].read.key, run) for index, run in runs)
    if len(sample_ids):
        sample_ids = sample_ids[step.fill]
        lanes = np.where(np.arange(len(step.fill)) < step.valid_rows, lanes[step.fill], -1)
        passes = passes[step.fill] if mixed else passes
    return Job(step.epoch, gathers, sample_ids, lanes, tuple(drops), passes)
