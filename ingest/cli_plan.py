"""`index` and `plan`: what is there, and what reading it costs; no data is read beyond footers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ray

from ingest.engine import cluster
from ingest.engine.hosts import Found, find_manifests, lengths_found, sized
from ingest.manifest.model import Manifest, refuse_damage
from ingest.plan.layout import Order
from ingest.plan.mixture import layout_of
from ingest.plan.resolve import cost
from ingest.plan.schedule import Share
from ingest.plan.sources import described
from ingest.plan.waste import estimate
from ingest.session_choices import READ_AHEAD, bucketing_of, memory_of
from ingest.session_plan import plan_of
from ingest.spec import Spec

SHOWN = 100  # damaged places, each with its file, record and byte


def find(spec: Spec, cache_dir: Path | None, run: str | None = None) -> Found:
    """The manifest of a spec's sources, made once for all that name the same run (this job, when left out).

    Raises:
        SourceError: the data cannot be found, listed or opened; or is damaged, where the spec does not allow that.
    """
    run = run or ray.get_runtime_context().get_job_id()
    cpus = min(spec.read.cpus, cluster.resources().cpus)
    found = find_manifests(spec.inputs, run, cache_dir, cpus, mixed=spec.weights is not None)
    if spec.errors.on_bad_sample == "raise":
        refuse_damage(found.manifest)
    return found


def index(spec: Spec, cache_dir: Path | None) -> dict[str, Any]:
    """What is there. `bytes` counts whole files, `column_bytes` what reading the wanted columns fetches.

    `rows` are those that an epoch consists of (of several sources, those that they have), `data_rows` those before
    `where`, `split` and `limit`.
    Of TFRecord, what indexing found damaged: `damaged_files`, `damaged_places`, `lost_records` as far as their number
    can be known, `lost_bytes`, and in `damage` the first places.

    Raises:
        SourceError: the data cannot be found, listed or opened.
    """
    began = time.perf_counter()
    found = find(spec, cache_dir)
    manifest = found.manifest
    return {
        "files": len(manifest.files),
        "units": len(manifest.units),
        "rows": manifest.rows,
        "data_rows": manifest.data_rows,
        "bytes": sum(file.size for file in manifest.files),
        "column_bytes": int(manifest.units.bytes.sum()),
        "seconds": time.perf_counter() - began,
        "digest": manifest.digest,
        "storage": found.storage,
        "format": manifest.format,
        "columns": {
            name: {"source": source, "type": str(manifest.schema.field(name).type)}
            for name, source in manifest.columns.items()
        },
        **({"sources": described(spec, manifest, None)} if spec.weights is not None else _kept(spec)),
        **({"classes": {n: len(c) for n, c in manifest.classes.items()}} if manifest.classes else {}),
        **_damage(manifest),
    }


def _kept(spec: Spec) -> dict[str, Any]:
    source = spec.inputs[0]
    return {
        **({"where": source.where} if source.where is not None else {}),
        **({"split": source.split.take} if source.split is not None else {}),
    }


def _damage(manifest: Manifest) -> dict[str, Any]:
    if all(part.format != "tfrecord" for part in manifest.parts):
        return {}
    damage = manifest.damage
    return {
        "damaged_files": len({each.url for each in damage}),
        "damaged_places": len(damage),
        "lost_records": sum(each.lost_records or 0 for each in damage),
        "lost_bytes": sum(each.lost_bytes or 0 for each in damage),
        "damage": [{"file": each.url, "record": each.record, "message": each.message} for each in damage[:SHOWN]],
    }


def plan(spec: Spec, world_size: int, cache_dir: Path | None) -> dict[str, Any]:
    """What an epoch is for a world of this size on this cluster, `auto` resolved as a first start would.

    `bytes` fields are of one rank where their name says so: `rank_window_bytes`, encoded bytes of the windows open at
    a time; `rank_budget_bytes`, the most that its reads may hold; `batch_bytes`, one augmented batch.

    Raises:
        SpecError, SourceError, PlanError, ClusterError: what a start would be refused for.
    """
    have = cluster.resources()
    cluster.check(spec, have, world_size)
    found = find(spec, cache_dir)
    spec, manifest = sized(spec, found), found.manifest
    share = Share(0, world_size, spec.batch.per_rank(world_size), spec.batch.last)
    memory = memory_of(spec, have.object_store_bytes, world_size)
    start = plan_of(spec, manifest, share, memory, have.object_store_bytes)
    units, rows, order, mix = manifest.units, start.rows, start.order, start.mix
    layout = layout_of(units.rows, order, 0, mix)
    costs = cost(layout, start.sizes, world_size, share.batch, share.last)
    unit_bytes = int(units.memory_bytes.sum()) // len(units)
    return {
        "world_size": world_size,
        "batch_size": share.batch,
        "global_batch": share.global_batch,
        "rows": rows,
        "steps": share.steps(rows),
        "last": share.last,
        "dropped": share.dropped(rows),
        "padded": share.padded(rows),
        "shuffle": order.shuffle,
        "lanes": order.lanes,
        "interleave": order.interleave,
        "units": len(units),
        "windows": sum(layout.lane_windows(lane) for lane in range(order.lanes)),
        "open_units": costs.open_units,
        "label_variance": costs.label_variance,
        "read_amplification": costs.read_amplification,
        "rank_bytes": costs.rank_bytes,
        "rank_units": costs.rank_units.tolist(),
        "window_bytes": start.window_bytes,
        "rank_window_bytes": costs.open_units * unit_bytes // world_size,
        "rank_budget_bytes": int(start.window_bytes * READ_AHEAD),
        "batch_bytes": start.row_bytes * share.batch,
        "digest": manifest.digest,
        **({"sources": described(spec, manifest, mix)} if mix else {}),
        **_lengths(spec, found, order, share),
    }


def _lengths(spec: Spec, found: Found, order: Order, share: Share) -> dict[str, Any]:
    """What sorting by length saves, estimated from a sample; tokens are one rank's, padding is a share of them."""
    bucketing = bucketing_of(spec)
    if bucketing is None:
        return {}
    lengths = lengths_found(spec, found, bucketing.column)
    waste = estimate(lengths, order, share, bucketing)
    return {
        "bucket_by": bucketing.column,
        "chunk": bucketing.batches,
        **({"tokens": spec.batch.bucket_by.tokens} if spec.batch.bucket_by and spec.batch.bucket_by.tokens else {}),
        "sampled_rows": len(lengths),
        "longest": int(lengths.max()),
        "mean_length": waste.mean_length,
        "batch_tokens": waste.batch_tokens,
        "batch_tokens_p99": waste.batch_tokens_p99,
        "padding_waste": waste.padding,
        "padding_waste_unsorted": waste.padding_unsorted,
    }
