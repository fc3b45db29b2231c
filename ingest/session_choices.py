"""What a loader settles before it reads: numbers in the place of `auto`, and refusals of what cannot fit."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from ingest.engine.cluster import readers_for
from ingest.engine.hosts import CALLS_AT_A_TIME
from ingest.engine.jobs import Decoding
from ingest.errors import PlanError, SchemaError
from ingest.ops import CenterCrop, Mix, Resize, output_bytes
from ingest.ops.leading import leading
from ingest.plan.buckets import Bucketing
from ingest.plan.layout import Order
from ingest.plan.resolve import Wanted
from ingest.plan.schedule import Share
from ingest.spec import Spec

BLOCKS_SHARE = 0.6  # of a rank's memory is for blocks; the rest is for batches
READ_AHEAD = 1.5  # encoded bytes held, as a multiple of the windows open
PREFETCH_BYTES, PREFETCH_MOST, PREFETCH_LEAST = 128 << 20, 32, 3
LEAST_BATCHES = 2  # one in the trainer's hands and one on its way
PREFETCH_SMALL_BYTES, PREFETCH_MOST_SMALL = 32 << 20, 256  # of small batches more, since a call costs the same
CALL_BYTES, MOST_CALL_BATCHES = 32 << 20, 8
OPEN_SIZE_FACTOR = 12  # pixels, of encoded bytes, where no op gives images a size: JPEGs of photographs are near it
_BYTES = (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_string, pt.is_large_string)
ARRANGED_ROW_BYTES = 4096  # a larger row stays where it was read until its batch is made


def wanted(spec: Spec) -> Wanted:
    """The order section, `auto` as None."""
    order = spec.order
    return Wanted(
        seed=order.seed,
        shuffle=order.shuffle,
        lanes=None if order.lanes == "auto" else order.lanes,
        interleave=None if order.interleave == "auto" else order.interleave,
        window_bytes=int(order.window_bytes),
        bucketed=spec.batch.bucket_by is not None,
    )


@dataclass(frozen=True)
class Memory:
    """What a rank may hold in the object store; None where the store's size is not known.

    Attributes:
        blocks_bytes: of reads under way, and of tables that batches are still to be made of.
        batches_bytes: of batches, from the call that makes one to the trainer's next step.
    """

    blocks_bytes: int | None
    batches_bytes: int | None


def memory_of(spec: Spec, store_bytes: int, world_size: int) -> Memory:
    """A rank's memory, by `loader.memory_bytes` or its share of the object store.

    Args:
        spec: says how much, or `auto`.
        store_bytes: of the whole cluster; 0 where that is not known.
        world_size: ranks.

    Raises:
        PlanError: the ranks together may hold more than there is.
    """
    asked = spec.loader.memory_bytes
    each = store_bytes // world_size if asked == "auto" else int(asked)
    if asked != "auto" and 0 < store_bytes < each * world_size:
        raise PlanError(
            f"loader.memory_bytes of {each} on each of {world_size} ranks is {each * world_size} bytes, and the "
            f"cluster's object store has {store_bytes}",
            hint="Lower it, or give Ray a larger object store",
        )
    blocks = int(each * BLOCKS_SHARE)
    return Memory(blocks or None, each - blocks or None)


def check_memory(spec: Spec, memory: Memory, batch_bytes: int, unit_bytes: int) -> None:
    """Refuse a `loader.memory_bytes` that cannot hold what the smallest step needs.

    Args:
        spec: may say it.
        memory: that it gives.
        batch_bytes: of a batch.
        unit_bytes: of the largest unit, in memory.

    Raises:
        PlanError: with what is needed and what there is.
    """
    if spec.loader.memory_bytes == "auto":
        return
    count = LEAST_BATCHES if spec.loader.prefetch_batches == "auto" else spec.loader.prefetch_batches
    for what, need, have, share in (
        (f"{count} batches take", count * batch_bytes, memory.batches_bytes or 0, 1 - BLOCKS_SHARE),
        ("the largest unit takes", unit_bytes, memory.blocks_bytes or 0, BLOCKS_SHARE),
    ):
        if need > have:
            raise PlanError(
                f"loader.memory_bytes is {spec.loader.memory_bytes}, of which {share:.0%} are for this: {what} about "
                f"{need} bytes, and may take {have}",
                hint=f"Give it {math.ceil(need / share)}, or use smaller batches or row groups",
            )


def prefetch_depth(spec: Spec, batch: int, row_bytes: int, batches_bytes: int | None = None) -> int:
    """Batches kept ahead: as many as a fixed number of bytes holds, and enough to keep every decoder busy.

    Args:
        spec: says how many, or `auto`.
        batch: rows of a batch.
        row_bytes: about what a row of a batch takes.
        batches_bytes: that they may take, see `Memory`.
    """
    if spec.loader.prefetch_batches != "auto":
        return spec.loader.prefetch_batches
    most = PREFETCH_MOST_SMALL if batches_bytes is None else max(LEAST_BATCHES, batches_bytes // (row_bytes * batch))
    makers = max(1, spec.augment.actors)  # the trainer itself, where there are no actors
    busy = CALLS_AT_A_TIME * makers + 2 if spec.augment.pipeline else PREFETCH_LEAST
    batch_bytes = row_bytes * batch
    small = min(PREFETCH_MOST_SMALL, PREFETCH_SMALL_BYTES // batch_bytes)
    return min(most, max(busy, small, min(PREFETCH_MOST, PREFETCH_BYTES // batch_bytes)))


def call_batches(spec: Spec, batch: int) -> int:
    """Batches of an augmentation call: several where they are small, since a call has its own cost."""
    return max(1, min(MOST_CALL_BATCHES, CALL_BYTES // max(1, output_bytes(spec.augment.pipeline) * batch)))


def batch_row_bytes(spec: Spec, mean_bytes: int) -> int:
    """About what a row of a batch takes.

    Args:
        spec: may augment rows.
        mean_bytes: of a row as it is read.
    """
    ops = spec.augment.pipeline
    return max(8, output_bytes(ops) if ops else mean_bytes)


def check_outputs(spec: Spec, schema: pa.Schema) -> None:
    """Refuse to augment what is not among the outputs, or holds no encoded images.

    Args:
        spec: where it names the columns of `source` itself, it has compared them already.
        schema: of the outputs.

    Raises:
        SchemaError: the output is not there, or its type is none of bytes.
    """
    augment = spec.augment
    if not augment.pipeline:
        return
    encoded = (augment.column, *augment.also, *(mask.column for mask in augment.masks))
    labels = [op.label for op in augment.pipeline if isinstance(op, Mix)]
    for name in (*encoded, *augment.targets, *labels):
        if name not in schema.names:
            near = difflib.get_close_matches(name, schema.names, 1)
            raise SchemaError(
                f"augment: there is no output '{name}'; there are {', '.join(schema.names)}",
                hint=f"Did you mean '{near[0]}'?" if near else "Name it in source.columns, or in augment.column",
            )
    for name in encoded:
        kind = schema.field(name).type
        if not (pt.is_null(kind) or any(holds(kind) for holds in _BYTES)):
            raise SchemaError(
                f"augment: output '{name}' is {kind}, and encoded images are binary",
                hint="Name a field inside a struct with dots, such as image.bytes, in source.columns",
            )


def arranged(spec: Spec, mean_bytes: int) -> bool:
    """Whether reads put their rows in order: where nothing is augmented, and rows are cheaper moved than found."""
    return not spec.augment.pipeline and mean_bytes <= ARRANGED_ROW_BYTES


def readers_of(spec: Spec, cpus: float, world_size: int) -> tuple[int, int]:
    """Reads of a rank that may run at a time, and how many of them until it has made a batch.

    Args:
        spec: says how many, or `auto`.
        cpus: of the cluster.
        world_size: ranks.
    """
    read = spec.read
    most = readers_for(cpus, read.cpus, world_size) if read.readers == "auto" else read.readers
    return most, max(1, int(cpus / read.cpus) // 2)


def bucketing_of(spec: Spec) -> Bucketing | None:
    """How batches are made of rows of like lengths, where they are."""
    by = spec.batch.bucket_by
    return None if by is None else Bucketing(by.column, by.chunk)


def chunk_bytes(bucketing: Bucketing, order: Order, share: Share, row_bytes: int, memory_bytes: int | None) -> int:
    """Bytes of one rank's rows of two chunks, the one in hand and the next.

    Args:
        bucketing: how many batches a chunk has.
        order: the epoch's.
        share: the rank's.
        row_bytes: of a row in memory.
        memory_bytes: what a rank may hold of the object store; None where that is not known.

    Raises:
        PlanError: a chunk has fewer rows than there are lanes, or does not fit.
    """
    batches = bucketing.batches
    if batches * share.global_batch < order.lanes:
        raise PlanError(
            f"batch.bucket_by: a chunk of {batches} global batches of {share.global_batch} rows has fewer rows "
            f"than the {order.lanes} lanes",
            hint="Use a larger batch.bucket_by.chunk or batch, or fewer order.lanes",
        )
    need, most = 2 * batches * share.batch * row_bytes, (memory_bytes or 0) // 2
    if memory_bytes and need > most:
        raise PlanError(
            f"batch.bucket_by: two chunks of {batches} batches of {share.batch} rows of {row_bytes} bytes are "
            f"{need} bytes, and each of {share.world_size} ranks may hold {most} for them",
            hint="Use a smaller batch.bucket_by.chunk or batch, or a larger object store",
        )
    return need


def decoding_of(spec: Spec, mean_bytes: int) -> Decoding | None:
    """How images are decoded where they are read; None where they are not."""
    augment, cache = spec.augment, spec.cache
    if not cache.decoded:
        return None
    first = leading(augment.pipeline)
    row_bytes = output_bytes(first) * 4 // 3  # of a size that is open, the other side is longer
    if not any(isinstance(op, (CenterCrop, Resize)) for op in first):
        row_bytes = max(row_bytes, OPEN_SIZE_FACTOR * mean_bytes)
    return Decoding(augment, cache, row_bytes)


def decoded_bytes(rows: int, row_bytes: int, world_size: int, memory_bytes: int | None) -> int:
    """What the rows of the open windows take once decoded.

    Args:
        rows: of them.
        row_bytes: of each, encoded and decoded.
        world_size: ranks.
        memory_bytes: what a rank may hold of the object store; None where that is not known.

    Raises:
        PlanError: they do not fit.
    """
    need = rows * row_bytes
    if memory_bytes and need > memory_bytes:
        raise PlanError(
            f"cache.decoded: the windows open hold {rows} rows, decoded {need} bytes, and each of "
            f"{world_size} ranks may hold {memory_bytes} of the object store",
            hint="Use a smaller order.window_bytes (the order changes with it), a smaller size in the first ops, "
            "or a larger object store",
        )
    return int(min(need, (memory_bytes or need * READ_AHEAD) / READ_AHEAD))
