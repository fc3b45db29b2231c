"""`simulate`: a run on a cluster that is not there, by the same plan and the same admission of reads."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.cli_common import cluster_session
from ingest.errors import SpecError
from ingest.plan.layout import EpochLayout
from ingest.plan.reads import UnitSizes
from ingest.plan.resolve import Cost, cost
from ingest.plan.schedule import Share
from ingest.session_choices import READ_AHEAD, memory_of, prefetch_depth, readers_of
from ingest.session_plan import plan_for
from ingest.simulate.machine import Machine
from ingest.simulate.rank import Way
from ingest.simulate.run import Job, Outcome, fit, simulate
from ingest.spec import Spec

SIMULATED_BATCHES = 150_000  # of all ranks: seconds of computing
LEAST_STEPS = 60
ROWS_PER_FILE = 10_000
HOUR_S = 3600.0


@dataclass(frozen=True)
class Data:
    """What an epoch is read from.

    Attributes:
        unit_rows: int64 (units,).
        sizes: bytes of the units.
        files: that hold them.
    """

    unit_rows: NDArray[np.int64]
    sizes: UnitSizes
    files: int

    @property
    def row_bytes(self) -> int:
        return int(self.sizes.memory.sum()) // max(1, int(self.unit_rows.sum()))


def made_up(samples: int, row_bytes: int, unit_rows: int) -> Data:
    """Data that nobody has: so many rows of one size, in units of so many."""
    rows = np.full(-(-samples // unit_rows), unit_rows, np.int64)
    rows[-1] = samples - int(rows[:-1].sum())
    sizes = rows * row_bytes
    return Data(rows, UnitSizes(sizes, sizes), -(-samples // ROWS_PER_FILE))


def found(spec: Spec, cache_dir: Path | None) -> Data:
    """The data that the spec names, as it is.

    Raises:
        SourceError: it cannot be found, listed or opened.
    """
    from ingest.cli_plan import find

    with cluster_session():
        manifest = find(spec, cache_dir).manifest
    units = manifest.units
    return Data(units.rows, UnitSizes(units.bytes, units.memory_bytes), len(manifest.files))


def job_of(
    spec: Spec,
    data: Data,
    world_size: int,
    machine: Machine,
    *,
    barrier: bool,
    step_s: float,
    store_bytes: int,
    steps: int | None = None,
) -> Job:
    """The run as a first start on that machine would resolve it, its steps cut to what is quick to simulate.

    Args:
        spec: what is run; one source, in batches that are not sorted by length.
        data: read.
        world_size: ranks.
        machine: simulated.
        barrier: whether ranks wait for each other at every step.
        step_s: a trainer's step.
        store_bytes: object store of each node.
        steps: of each rank that are simulated at most; None for as many as take a minute.

    Raises:
        SpecError: the spec mixes sources or sorts rows by length, which the simulator does not know.
        PlanError: what a start would be refused for.
    """
    if spec.weights is not None or spec.batch.bucket_by is not None:
        raise SpecError("simulate knows one source in plain batches: no sources with weights, no batch.bucket_by")
    share = Share(0, world_size, spec.batch.per_rank(world_size), spec.batch.last)
    store_bytes *= machine.trainer_nodes + machine.reader_nodes
    memory = memory_of(spec, store_bytes, world_size)
    plan = plan_for(spec, data.unit_rows, data.sizes, share, memory, store_bytes, mean_bytes=data.row_bytes)
    cpus = machine.reader_nodes * machine.reader_cores or machine.trainer_nodes * machine.trainer_cores
    ranks_here = math.ceil(world_size / machine.trainer_nodes)
    actors = max(1, spec.augment.actors)
    readers, first_readers = readers_of(spec, cpus, world_size)
    way = Way(
        readers=readers,
        first_readers=first_readers,
        budget_bytes=int(plan.window_bytes * READ_AHEAD),
        depth=prefetch_depth(spec, share.batch, plan.row_bytes, memory.batches_bytes),
        actors=actors,
        threads=max(1, machine.trainer_cores // (ranks_here * actors))
        if spec.augment.threads == "auto"
        else spec.augment.threads,
        gpu=spec.augment.device == "gpu",
        augmented=bool(spec.augment.pipeline),
        step_s=step_s,
        steps=steps or max(LEAST_STEPS, SIMULATED_BATCHES // world_size),
    )
    layout = EpochLayout(data.unit_rows, plan.order, 0)
    return Job(layout, data.sizes, data.files, share, plan.order, way, spec.read.cpus, barrier)


def calibrated(spec: Spec, data: Data, machine: Machine, run: Path, store_bytes: int) -> Machine:
    """The machine with the costs that a measured run of an epoch on it shows.

    Args:
        spec: of that run, which had no training step.
        data: of it.
        machine: that it ran on: its nodes and cores, and the costs that are not fitted.
        run: the JSON of `ingest run --json`.
        store_bytes: object store of each node.

    Raises:
        SpecError: the file is no such result, or of other data.
    """
    try:
        seen: dict[str, Any] = json.loads(run.read_text(encoding="utf-8"))
        world_size, rate, first = int(seen["world_size"]), float(seen["samples_per_s"]), float(seen["first_batch_s"])
        rows = int(seen["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"--calibrate {run}: is not what `ingest run --json` writes: {error!r}") from None
    if rows != int(data.unit_rows.sum()):
        raise SpecError(f"--calibrate {run}: is of {rows} rows, and the spec's data has {int(data.unit_rows.sum())}")
    job = job_of(spec, data, world_size, machine, barrier=False, step_s=0.0, store_bytes=store_bytes)
    return fit(job, machine, rate, first)


def report(job: Job, machine: Machine, outcome: Outcome) -> dict[str, Any]:
    """What the epoch takes; a dollar is counted where a price is given.

    `first_batch_s` starts with the trainers' processes there; `epoch_s` is from the first batch to the last;
    `requests` and `fetched_bytes` are from the plan of every rank; `steps_simulated` says what the rest was seen in.
    """
    rows, share = job.layout.rows, job.share
    steps = share.steps(rows)
    samples = min(rows, steps * share.global_batch)
    epoch_s = outcome.seconds if outcome.whole else samples / outcome.samples_per_s
    costs: Cost = cost(job.layout, job.sizes, share.world_size, share.batch, share.last)
    units, fetched = costs.units, costs.read_amplification * float(job.sizes.fetched.sum())
    requests = units * machine.requests_per_unit
    hours = epoch_s / HOUR_S
    readers_usd = machine.reader_nodes * machine.reader_usd_per_hour
    trainers_usd = machine.trainer_nodes * machine.trainer_usd_per_hour
    return {
        "world_size": share.world_size,
        "samples": samples,
        "steps": steps,
        "steps_simulated": outcome.steps,
        "lanes": job.order.lanes,
        "interleave": job.order.interleave,
        "first_batch_s": outcome.first_batch_s,
        "catalog_s": outcome.catalog_s,
        "catalog_requests": job.files + -(-job.files // 1000),
        "manifest_bytes": outcome.manifest_bytes,
        "epoch_s": epoch_s,
        "samples_per_s": outcome.samples_per_s,
        "waiting_fraction": outcome.waiting_fraction,
        "fetched_bytes": int(fetched),
        "read_amplification": costs.read_amplification,
        "fetched_bytes_per_s": fetched / epoch_s,
        "requests": requests,
        "requests_per_s": requests / epoch_s,
        "rank_held_bytes": outcome.held_bytes,
        "reader_busy": outcome.reader_busy,
        "lost_nodes": outcome.losses,
        "lost_reads": outcome.lost_reads,
        "request_usd": requests * machine.get_usd_per_million / 1e6,
        "node_usd": hours * (readers_usd + trainers_usd),
        "machine": asdict(machine),
    }


def compared(result: dict[str, Any], measured: Path) -> dict[str, Any]:
    """Predicted over measured, of a run that `ingest run --json` described."""
    seen = json.loads(measured.read_text(encoding="utf-8"))
    if seen["world_size"] != result["world_size"]:
        raise SpecError(f"--compare {measured}: is of {seen['world_size']} ranks, not {result['world_size']}")
    return {f"{name}_ratio": result[name] / seen[name] for name in ("samples_per_s", "first_batch_s", "fetched_bytes")}


def simulated(
    spec: Spec,
    data: Data,
    world_size: int,
    params: Sequence[str],
    *,
    calibrate: Path | None,
    barrier: bool,
    step_s: float,
    store_bytes: int,
    seed: int,
    steps: int | None = None,
) -> dict[str, Any]:
    """The result of `ingest simulate`; `params` as on the command line, which win over what is calibrated."""
    machine = Machine().with_values(params)
    if calibrate is not None:
        machine = calibrated(spec, data, machine, calibrate, store_bytes).with_values(params)
    job = job_of(spec, data, world_size, machine, barrier=barrier, step_s=step_s, store_bytes=store_bytes, steps=steps)
    return report(job, machine, simulate(replace(job, seed=seed), machine))
