"""The sample ids that a plan delivers, given back by the plan alone: what a log of positions stands for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ingest.plan.lanes import LaneRows, bit_reversal, positions
from ingest.plan.layout import piece_rows, window_order
from ingest.plan.mixture import Layout, MixtureLayout

KEPT_WINDOWS = 256  # a rank has about as many open as lanes, and goes through each once

SampleIds = Callable[[int, "NDArray[np.int64] | None"], NDArray[np.int64]]


class PlannedIds:
    """The rows of an epoch, as sample ids.

    Args:
        layout: the epoch's.
        sample_ids: of a unit and some of its rows (all when None), numbered as the layout numbers them.
    """

    def __init__(self, layout: Layout, sample_ids: SampleIds) -> None:
        self.layout, self._sample_ids = layout, sample_ids
        self._windows: OrderedDict[tuple[int, int], NDArray[np.int64]] = OrderedDict()

    def of(self, runs: LaneRows) -> NDArray[np.int64]:
        """Int64 (rows,): ids of runs of lane rows, as they are delivered: of a mixture, source by source in a run."""
        out = [np.zeros(0, np.int64)]
        for lane, start, count in zip(runs.lane.tolist(), runs.start.tolist(), runs.count.tolist(), strict=True):
            stretches, _ = self.layout.stretches(lane, start, start + count)
            out += [self._window(lane, window)[begin:end] for window, begin, end in stretches]
        return np.concatenate(out)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Int64 (rows,): the ids of the rows at some places of the epoch, in their order."""
        lanes = self.layout.order.lanes
        lane, row = bit_reversal(lanes)[places % lanes], places // lanes
        out = np.zeros(len(places), np.int64)
        for number in np.unique(lane).tolist():
            of_lane = lane == number
            rows, which = np.unique(row[of_lane], return_inverse=True)
            out[of_lane] = self._rows(number, rows)[which]
        return out

    def _rows(self, lane: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Int64 (rows,): the ids of some rows of a lane, sorted and each once."""
        ids = np.zeros(len(rows), np.int64)
        if isinstance(self.layout, MixtureLayout):
            found, places = self.layout.picked(lane, rows)
            ids[places] = np.concatenate([self._window(lane, window)[inside] for window, inside in found])
            return ids
        starts = self.layout.lane(lane).row_start
        home = np.searchsorted(starts, rows, side="right") - 1
        for window in np.unique(home).tolist():
            ids[home == window] = self._window(lane, window)[rows[home == window] - starts[window]]
        return ids

    def _window(self, lane: int, window: int) -> NDArray[np.int64]:
        key = (lane, window)
        if key not in self._windows:
            order, named = self.layout.order, self.layout.key(lane, window)
            pieces = [
                self._sample_ids(
                    unit, piece_rows(order, named.pass_, unit, int(self.layout.unit_rows[unit]), begin, end)
                )
                for unit, begin, end in self.layout.spans(lane, window)
            ]
            ids = np.concatenate(pieces)
            self._windows[key] = ids[window_order(order, named, len(ids))]
            if len(self._windows) > KEPT_WINDOWS:
                self._windows.popitem(last=False)
        self._windows.move_to_end(key)
        return self._windows[key]


def run_positions(runs: LaneRows, lanes: int) -> NDArray[np.int64]:
    """Int64 (rows,): the place in the epoch of each row of some runs."""
    rows = [np.arange(start, start + count) for start, count in zip(runs.start, runs.count, strict=True)]
    return positions(np.repeat(runs.lane, runs.count), np.concatenate([np.zeros(0, np.int64), *rows]), lanes)
