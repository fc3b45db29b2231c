"""What crosses between a rank's processes: how to feed, which rows of which blocks make a batch, and who they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.plan.layout import Order
from ingest.plan.schedule import Share
from ingest.spec import Storage


@dataclass(frozen=True)
class FeedConfig:
    """What a feeder needs to know.

    Attributes:
        share: the rank's share of every global batch.
        order: resolved.
        storage, fill: from the spec.
        readers: reads that may run at a time.
        first_readers: the same until the first has arrived.
        reader_cpus: CPUs of each.
        budget_bytes: encoded bytes that reads may hold.
        epochs: the epoch after the last one to read; None when there is no last.
        depth: batches that may be asked for and not yet received.
    """

    share: Share
    order: Order
    storage: Storage
    fill: dict[str, Any]
    readers: int
    first_readers: int
    reader_cpus: float
    budget_bytes: int
    epochs: int | None
    depth: int


@dataclass(frozen=True)
class Gather:
    """Rows of a batch that come from one read.

    Attributes:
        key: the read's table, as it was handed over.
        rows: int64 (n,), rows of that table.
    """

    key: int
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """One batch of one rank, before augmentation.

    Attributes:
        epoch: the epoch; also the pass that keys random numbers.
        gathers: where the rows lie, in batch order.
        sample_ids: int64 (rows,).
        lanes: int64 (rows,), each row's lane; -1 where a row only fills up.
        drops: keys of tables that no later job needs.
    """

    epoch: int
    gathers: tuple[Gather, ...]
    sample_ids: NDArray[np.int64]
    lanes: NDArray[np.int64]
    drops: tuple[int, ...] = ()

    def pieces(self, tables: Mapping[int, pa.Table]) -> list[tuple[pa.Table, NDArray[np.int64]]]:
        """The rows as (table, rows of it), zero copy."""
        return [(tables[gather.key], gather.rows) for gather in self.gathers]

    def pack(self) -> bytes:
        """As bytes, which Ray passes on as they are; pickling the same costs more than the rest of the call."""
        head = [self.epoch, len(self.gathers), len(self.sample_ids), len(self.drops), *self.drops]
        for gather in self.gathers:
            head += [gather.key, len(gather.rows)]
        arrays = [np.array(head, np.int64), self.sample_ids, self.lanes, *(gather.rows for gather in self.gathers)]
        return np.concatenate(arrays).tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> Job:
        """The inverse of `pack`; arrays are read-only views."""
        values = np.frombuffer(packed, np.int64)
        epoch, count, rows, dropped = values[:4].tolist()
        at = 4 + dropped
        drops = tuple(values[4:at].tolist())
        shapes = values[at : at + 2 * count].reshape(count, 2).tolist()
        at += 2 * count
        sample_ids, lanes, at = values[at : at + rows], values[at + rows : at + 2 * rows], at + 2 * rows
        gathers = []
        for key, length in shapes:
            gathers.append(Gather(key, values[at : at + length]))
            at += length
        return cls(epoch, tuple(gathers), sample_ids, lanes, drops)


@dataclass(frozen=True)
class Taken:
    """What the feeder answers for one step.

    Attributes:
        info: packed `BatchInfo`.
        result: the reference of the batch's arrays; None when there is nothing to augment.
        job: then, the packed job.
        tables: and the blocks of each table that the job is the first to need, by key.
    """

    info: bytes
    result: Any = None
    job: bytes | None = None
    tables: tuple[tuple[int, list[Any]], ...] = ()


@dataclass(frozen=True)
class BatchInfo:
    """What travels beside a batch.

    Attributes:
        epoch, step: of the schedule it belongs to; `step` counts from the schedule's start.
        after: the position in the epoch once this step is taken by all ranks.
        ends_epoch: whether it is the epoch's last.
        sample_ids: int64 (rows,).
        positions: int64 (rows,), each row's place in the epoch.
        valid_rows: rows that count; later ones repeat a row.
        read_wait_s: duration, how long the feeder waited for blocks of this batch.
    """

    epoch: int
    step: int
    after: int
    ends_epoch: bool
    sample_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    valid_rows: int
    read_wait_s: float = 0.0

    def pack(self) -> bytes:
        """As bytes; see `Job.pack`."""
        wait_us = round(self.read_wait_s * 1e6)
        head = [self.epoch, self.step, self.after, int(self.ends_epoch), self.valid_rows, wait_us]
        return np.concatenate([np.array(head, np.int64), self.sample_ids, self.positions]).tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> BatchInfo:
        """The inverse of `pack`; arrays are read-only views."""
        values = np.frombuffer(packed, np.int64)
        epoch, step, after, ends_epoch, valid_rows, wait_us = values[:6].tolist()
        sample_ids, positions = values[6:].reshape(2, -1)
        return cls(epoch, step, after, bool(ends_epoch), sample_ids, positions, valid_rows, wait_us / 1e6)
