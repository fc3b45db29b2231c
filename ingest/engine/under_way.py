"""What a feeder has under way: epochs, their reads and windows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ingest.engine.segment import Delivery
from ingest.plan.buckets import BucketSchedule, Groups
from ingest.plan.reads import Read, Window
from ingest.plan.schedule import Schedule


@dataclass
class EpochUnderWay:
    """An epoch under way; steps and windows are taken from it in order."""

    schedule: Schedule | BucketSchedule
    first_step: int  # of this schedule, counted over the feeder's life
    windows_planned: int = 0
    windows: dict[tuple[int, int], OpenWindow] = field(default_factory=dict)
    groups: Groups | None = None  # of the chunk in hand, where rows are sorted by length

    @property
    def all_planned(self) -> bool:
        return self.windows_planned >= len(self.schedule.windows)


@dataclass
class OpenRead:
    """A read under way or delivered, dropped after the last step that needs it."""

    key: int
    read: Read
    delivery: Delivery
    held_bytes: int
    given: set[int] = field(default_factory=set)  # augmentation actors that were handed the table
    lengths: NDArray[np.int64] | None = None  # of the table's rows, when first asked for


@dataclass
class OpenWindow:
    """A window of a read under way or delivered."""

    read: OpenRead
    window: Window
    start: int  # in the read's table, where that is arranged
    rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None  # else table rows and ids by place, when first used
