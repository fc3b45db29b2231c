"""`bench`: what the machine could do (the same work in one process, fed from memory), reading alone, and the whole."""

from __future__ import annotations

import itertools
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray

from ingest.augment.augmenter import Augmenter
from ingest.augment.collate import collate
from ingest.cli_common import console
from ingest.cli_plan import find
from ingest.cli_run import run
from ingest.cli_trainers import result
from ingest.engine import cluster
from ingest.engine.hosts import CALLS_AT_A_TIME, sized
from ingest.read.windows import ReadOptions, window_call
from ingest.spec import Augment, Spec

MEMORY_ROWS, MEMORY_BYTES = 4096, 400 << 20
WARM_UP_BATCHES = 4


class Ceiling:
    """The same augmentation without Ray around it: rows in memory, as many threads, as many calls at a time.

    Runs as a Ray actor only to have a fresh process.

    Args:
        spec: what to do.
        batch_rows: rows of a batch.
        threads: decoding threads.
    """

    def __init__(self, spec: Spec, batch_rows: int, threads: int) -> None:
        manifest = find(spec, None, run=f"bench-{uuid.uuid4().hex[:8]}").manifest  # an own listing: the run's is timed
        units = manifest.units
        chosen: dict[int, None] = {}
        rows = size = 0
        for unit in np.random.default_rng(0).permutation(len(units)).tolist():
            if rows >= MEMORY_ROWS or size >= MEMORY_BYTES:
                break
            chosen[unit] = None
            rows, size = rows + int(units.rows[unit]), size + int(units.memory_bytes[unit])
        by_source: dict[int, dict[int, None]] = {}
        for unit in chosen:
            by_source.setdefault(manifest.local([unit])[0], {})[unit] = None
        tables = []
        for source, held in by_source.items():
            function, args = window_call(manifest, held, ReadOptions.of(spec, source))
            tables.append(function(*args).select(manifest.schema.names))
        self._table: pa.Table = pa.concat_tables(tables)
        self._order = np.random.default_rng(0).permutation(rows).astype(np.int64)
        self._batch_rows = min(batch_rows, rows)
        self._work = self._augment(spec, threads) if spec.augment.pipeline else self._collate

    def _augment(self, spec: Spec, threads: int) -> Callable[[NDArray[np.int64], int], int]:
        device = 0 if ray.get_gpu_ids() else None
        augmenter = Augmenter(
            spec.augment, seed=spec.order.seed, batch_rows=self._batch_rows, threads=threads, device_id=device
        )

        def augment(rows: NDArray[np.int64], pass_: int) -> int:
            return len(augmenter([(self._table, rows)], rows, pass_)[spec.augment.column])

        return augment

    def _collate(self, rows: NDArray[np.int64], pass_: int) -> int:
        del pass_
        collate([(self._table, rows)])
        return len(rows)

    def measure(self, seconds: float) -> float:
        """Samples per second over about `seconds`, after a warm-up; bad samples raise as they do in a run."""
        batches = self._batches()
        with ThreadPoolExecutor(CALLS_AT_A_TIME) as pool:
            list(pool.map(lambda batch: self._work(*batch), itertools.islice(batches, WARM_UP_BATCHES)))
            began, samples = time.perf_counter(), 0
            calls = [pool.submit(self._work, *next(batches)) for _ in range(CALLS_AT_A_TIME)]
            while calls:
                samples += calls.pop(0).result()
                elapsed = time.perf_counter() - began
                if elapsed < seconds:
                    calls.append(pool.submit(self._work, *next(batches)))
        return samples / elapsed

    def _batches(self) -> Iterator[tuple[NDArray[np.int64], int]]:
        """(rows, pass) for ever."""
        for pass_ in itertools.count():
            for at in range(0, len(self._order) - self._batch_rows + 1, self._batch_rows):
                yield self._order[at : at + self._batch_rows], pass_


def bench(spec: Spec, world_size: int, *, seconds: float, repeats: int) -> dict[str, Any]:
    """Measure the ceiling, reading alone, and the whole, one after another, several times over.

    Args:
        spec: what to measure. Manifests are not taken from a cache.
        world_size: ranks of the whole; together they have the threads of the ceiling.
        seconds: of each measurement.
        repeats: how often.

    Returns:
        Medians. `ratio_to_ceiling` is the median of each round's ratio, since a machine changes its speed between
        rounds; what was measured in each round stands beside it in `*_each`.

    Raises:
        IngestError: of the first stage that fails.
    """
    have = cluster.resources()
    cluster.check(spec, have, world_size)
    if spec.batch.target is not None:
        spec = sized(spec, find(spec, None))
    batch_rows = spec.batch.per_rank(world_size)
    actors = spec.augment.actors_per_trainer * world_size
    threads = int(cluster.node_cpus()) if spec.augment.threads == "auto" else spec.augment.threads * actors
    gpus = spec.augment.gpus if cluster.uses_gpu(spec, have, world_size) else 0
    # For ever, like the whole: an epoch may be shorter than a measurement.
    reading = spec.model_copy(update={"augment": Augment(recipe="none")})
    ceilings, reads, wholes, first, verdicts = [], [], [], [], []
    for number in range(repeats):
        ceilings.append(_ceiling(spec, batch_rows, max(1, threads), gpus, seconds))
        alone = run(reading, world_size, epochs=None, cache_dir=None, seconds=seconds)
        whole = run(spec, world_size, epochs=None, cache_dir=None, seconds=seconds)
        reads.append(alone["samples_per_s_after_first"])
        wholes.append(whole["samples_per_s_after_first"])
        first.append(whole["first_batch_s"])
        verdicts.append(whole["verdict"])
        console.print(
            f"round {number + 1}/{repeats}: ceiling {ceilings[-1]:,.0f}, read {reads[-1]:,.0f}, whole {wholes[-1]:,.0f}"
            f" samples/s, ratio {wholes[-1] / ceilings[-1]:.2f}",
            highlight=False,
        )
    return {
        "world_size": world_size,
        "ceiling_samples_per_s": statistics.median(ceilings),
        "read_samples_per_s": statistics.median(reads),
        "samples_per_s": statistics.median(wholes),
        "ratio_to_ceiling": statistics.median(w / c for w, c in zip(wholes, ceilings, strict=True)),
        "first_batch_s": statistics.median(first),
        "verdict": verdicts[-1],
        "threads": threads,
        "batch_rows": batch_rows,
        "seconds_each": seconds,
        "repeats": repeats,
        "ceiling_samples_per_s_each": ceilings,
        "read_samples_per_s_each": reads,
        "samples_per_s_each": wholes,
        "first_batch_s_each": first,
    }


def _ceiling(spec: Spec, batch_rows: int, threads: int, gpus: float, seconds: float) -> float:
    actor = ray.remote(Ceiling).options(num_cpus=0, num_gpus=gpus).remote(spec, batch_rows, threads)
    try:
        return float(result(actor.measure.remote(seconds), rank=0))
    finally:
        cluster.kill(actor)
