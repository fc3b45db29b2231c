"""How a rank is fed: a plan, on a cluster of so many CPUs, as its feeder's configuration."""

from __future__ import annotations

import math
import sys

import ray

from ingest.engine import cluster
from ingest.engine.jobs import Decoding, FeedConfig
from ingest.plan.buckets import Bucketing
from ingest.read.windows import ReadOptions
from ingest.session_choices import (
    READ_AHEAD,
    arranged,
    bucketing_of,
    chunk_bytes,
    decoded_bytes,
    decoding_of,
    prefetch_depth,
    readers_of,
)
from ingest.session_plan import Plan
from ingest.spec import Spec


def threads_of(spec: Spec, world_size: int) -> int:
    """Decoding threads of an augmentation actor: a node's cores, over the actors that are likely to share it."""
    if spec.augment.threads != "auto":
        return spec.augment.threads
    nodes = max(1, sum(1 for node in ray.nodes() if node["Alive"]))
    here = math.ceil(world_size / nodes) * spec.augment.actors_per_trainer
    return max(1, int(cluster.node_cpus()) // here)


def feed_config(spec: Spec, plan: Plan, data_rows: int, cpus: float, epochs: int | None) -> FeedConfig:
    """The configuration of a rank's feeder.

    Args:
        spec: what is run.
        plan: resolved.
        data_rows: rows that there are to read.
        cpus: of the cluster.
        epochs: the epoch after the last one to read; None when there is no last.

    Raises:
        PlanError: rows of like lengths, or decoded rows, do not fit the memory.
    """
    bucketing, decoding = bucketing_of(spec), decoding_of(spec, plan.mean_bytes)
    readers, first_readers = readers_of(spec, cpus, plan.share.world_size)
    return FeedConfig(
        share=plan.share,
        order=plan.order,
        read=tuple(ReadOptions.of(spec, number) for number in range(len(spec.inputs))),
        readers=readers,
        first_readers=first_readers,
        grows=spec.read.readers == "auto",
        place=spec.read.place,
        budget_bytes=_budget_bytes(plan, data_rows, bucketing, decoding),
        arranged=arranged(spec, plan.mean_bytes),
        epochs=epochs,
        depth=prefetch_depth(spec, plan.share.batch, plan.row_bytes, plan.memory.batches_bytes),
        bucketing=bucketing,
        mix=plan.mix,
        decoding=decoding,
    )


def _budget_bytes(plan: Plan, data_rows: int, bucketing: Bucketing | None, decoding: Decoding | None) -> int:
    """What reads may hold: chunks of rows of like lengths, the windows open, and what is read ahead of them."""
    memory_bytes, window_bytes, chunks = plan.memory.blocks_bytes, plan.window_bytes, 0
    if bucketing is not None:
        each = plan.mean_bytes + (0 if decoding is None else decoding.row_bytes)
        chunks = chunk_bytes(bucketing, plan.order, plan.share, each, memory_bytes)
    if decoding is not None:
        rows = min(window_bytes // max(1, plan.mean_bytes), data_rows)
        each = decoding.row_bytes + plan.mean_bytes
        window_bytes = decoded_bytes(rows, each, plan.share.world_size, memory_bytes)
    return min(chunks + int(window_bytes * READ_AHEAD), memory_bytes or sys.maxsize)
