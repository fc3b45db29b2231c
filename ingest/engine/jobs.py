"""What crosses between a rank's processes: how to feed, which rows of which blocks make a batch, and who they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray

from ingest.errors import StageError
from ingest.plan.buckets import Bucketing
from ingest.plan.lanes import LaneRows
from ingest.plan.layout import Order
from ingest.plan.mixture import Mix
from ingest.plan.schedule import Chunk, Share
from ingest.read.windows import ReadOptions
from ingest.spec import Augment, Cache


class GoneError(StageError):
    """A table that a job needs went with the feeder that had it read: the job must be asked for again."""

    default_stage = "feed"


_LISTED = -1  # in place of a slice's start: the rows follow one by one


class Listed(NamedTuple):
    """A reference to a manifest, and what it took to make.

    Attributes:
        ref: to the manifest.
        seconds: how long it took.
        storage: what it asked of the store, by the names of `storage.counters`: listing and footers.
    """

    ref: ray.ObjectRef
    seconds: float
    storage: dict[str, int]


@dataclass(frozen=True)
class Decoding:
    """How images are decoded where they are read, up to the first random op.

    Attributes:
        augment: the spec's section.
        cache: where they are kept.
        row_bytes: about how large a row's pixels are.
    """

    augment: Augment
    cache: Cache
    row_bytes: int


@dataclass(frozen=True)
class FeedConfig:
    """What a feeder needs to know.

    Attributes:
        share: the rank's share of every global batch.
        order: resolved.
        read: from the spec, one for each source.
        readers: reads that may run at a time.
        first_readers: the same until a batch has been made, see `ColdReaders.running`.
        grows: as many more as the cluster has more CPUs, if it grows.
        place: of each, options of a Ray task.
        budget_bytes: encoded bytes that reads may hold.
        arranged: reads put their rows into the order of delivery, with their ids: for rows that the loader collates.
        epochs: the epoch after the last one to read; None when there is no last.
        depth: batches that may be asked for and not yet received.
        bucketing: how batches are made of rows of like lengths; None when they are not.
        mix: what an epoch is mixed of; None where there is one source.
        decoding: how images are decoded where they are read; None where they are not.
    """

    share: Share
    order: Order
    read: tuple[ReadOptions, ...]
    readers: int
    first_readers: int
    grows: bool
    place: dict[str, Any]
    budget_bytes: int
    arranged: bool
    epochs: int | None
    depth: int
    bucketing: Bucketing | None = None
    mix: Mix | None = None
    decoding: Decoding | None = None


@dataclass(frozen=True)
class Gather:
    """Rows of a batch that come from one read.

    Attributes:
        key: the read's table, as it was handed over.
        rows: int64 (n,), rows of that table; or a slice, of a table that is arranged in the order of delivery.
    """

    key: int
    rows: NDArray[np.int64] | slice


@dataclass(frozen=True)
class Job:
    """One batch of one rank, before augmentation.

    Attributes:
        epoch: the epoch; also the pass that keys random numbers, where all rows are of one.
        gathers: where the rows lie, in batch order.
        sample_ids: int64 (rows,); empty where the tables hold them.
        lanes: int64 (rows,), each row's lane; -1 where a row only fills up. Empty where the tables hold the ids.
        drops: keys of tables that no later job needs.
        passes: int64 (rows,), the pass of each row's source, of a mixture; empty where there is none.
    """

    epoch: int
    gathers: tuple[Gather, ...]
    sample_ids: NDArray[np.int64]
    lanes: NDArray[np.int64]
    drops: tuple[int, ...] = ()
    passes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def pass_(self) -> int | NDArray[np.int64]:
        """What keys random numbers: one pass, or int64 (rows,) of a mixture."""
        return self.passes if len(self.passes) else self.epoch

    def pieces(self, tables: Mapping[int, pa.Table]) -> list[tuple[pa.Table, NDArray[np.int64]]]:
        """The rows as (table, rows of it), zero copy."""
        return [(tables[gather.key], _listed(gather.rows)) for gather in self.gathers]

    def pack(self) -> bytes:
        """As bytes, which Ray passes on as they are; pickling the same costs more than the rest of the call."""
        head = [self.epoch, len(self.gathers), len(self.sample_ids), len(self.drops), *self.drops]
        listed = []
        for gather in self.gathers:
            if isinstance(gather.rows, slice):
                head += [gather.key, gather.rows.start, gather.rows.stop]
            else:
                head += [gather.key, _LISTED, len(gather.rows)]
                listed.append(gather.rows)
        return np.concatenate([np.array(head, np.int64), self.sample_ids, self.lanes, *listed, self.passes]).tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> Job:
        """The inverse of `pack`; arrays are read-only views."""
        values = np.frombuffer(packed, np.int64)
        epoch, count, rows, dropped = values[:4].tolist()
        at = 4 + dropped
        drops = tuple(values[4:at].tolist())
        shapes = values[at : at + 3 * count].reshape(count, 3).tolist()
        at += 3 * count
        sample_ids, lanes, at = values[at : at + rows], values[at + rows : at + 2 * rows], at + 2 * rows
        gathers = []
        for key, start, stop in shapes:
            if start == _LISTED:
                gathers.append(Gather(key, values[at : at + stop]))
                at += stop
            else:
                gathers.append(Gather(key, slice(start, stop)))
        return cls(epoch, tuple(gathers), sample_ids, lanes, drops, values[at:])


def _listed(rows: NDArray[np.int64] | slice) -> NDArray[np.int64]:
    return np.arange(rows.start, rows.stop, dtype=np.int64) if isinstance(rows, slice) else rows


class Taken(NamedTuple):
    """What the feeder answers for one step.

    Attributes:
        info: packed `BatchInfo`.
        job: packed `Job`.
        turn: the augmentation actor that the job is for; -1 where there is nothing to augment.
        tables: then, the blocks of each table that the job is the first to need, by key.
    """

    info: bytes
    job: bytes
    turn: int
    tables: tuple[tuple[int, list[Any]], ...] = ()


@dataclass(frozen=True)
class Waiting:
    """What a feeder waits for.

    Attributes:
        files: of the read that has not arrived.
        units: how many units it has.
        lane, window: that need it.
        running: reads that run.
        seconds: duration so far.
    """

    files: tuple[str, ...]
    units: int
    lane: int
    window: int
    running: int
    seconds: float


@dataclass(frozen=True)
class BatchInfo:
    """What travels beside a batch.

    Attributes:
        epoch: of the schedule it belongs to.
        after: the position in the epoch once this step is taken by all ranks.
        ends_epoch: whether it is the epoch's last.
        valid_rows: rows that count; later ones repeat a row.
        runs: the lanes' rows that it delivers.
        fill: int64 (rows,), which of them stands at each place; None when each stands once.
        chunk: whose rows it delivers some of, where rows are sorted by length.
        left: as of the `Step`.
        read_wait_s: duration, how long the feeder waited for blocks of this batch.
    """

    epoch: int
    after: int
    ends_epoch: bool
    valid_rows: int
    runs: LaneRows
    fill: NDArray[np.int64] | None = None
    chunk: Chunk | None = None
    left: int = 0
    read_wait_s: float = 0.0

    def pack(self) -> bytes:
        """As bytes; see `Job.pack`."""
        wait_us = round(self.read_wait_s * 1e6)
        chunk = (0, 0, 0) if self.chunk is None else (self.chunk.start, self.chunk.end, self.chunk.batch)
        head = [self.epoch, self.after, int(self.ends_epoch), self.valid_rows, wait_us, *chunk, self.left]
        head.append(len(self.runs.lane))
        fill = () if self.fill is None else (self.fill,)
        return np.concatenate(
            [np.array(head, np.int64), self.runs.lane, self.runs.start, self.runs.count, *fill]
        ).tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> BatchInfo:
        """The inverse of `pack`; arrays are read-only views."""
        values = np.frombuffer(packed, np.int64)
        epoch, after, ends_epoch, valid_rows, wait_us, start, end, batch, left, runs = values[:10].tolist()
        until = 10 + 3 * runs
        fill = values[until:] if len(values) > until else None
        chunk = Chunk(start, end, batch) if batch else None
        rows = LaneRows(*values[10:until].reshape(3, runs))
        return cls(epoch, after, bool(ends_epoch), valid_rows, rows, fill, chunk, left, wait_us / 1e6)
