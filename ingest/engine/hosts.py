"""The actors of a run, light to import: each loads Ray Data or DALI in its own process, never in the trainer's."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray

from ingest.engine import gcs
from ingest.engine.augmentation import Augmentation
from ingest.engine.board import Board
from ingest.engine.jobs import FeedConfig, GoneError, Job, Listed, Taken, Waiting
from ingest.engine.tables import Tables
from ingest.errors import ClusterError, IngestError
from ingest.manifest.mixed import mix_manifests
from ingest.manifest.model import Manifest
from ingest.metrics.process import peak_rss_bytes
from ingest.plan.schedule import Chunk
from ingest.plan.waste import rows_for
from ingest.read.lengths import check_column, mixed_lengths, sample_lengths
from ingest.read.windows import ReadOptions
from ingest.spec import Augment, Source, Spec, fingerprint

NAMESPACE = "ingest"
AGAIN_S, AGAIN_MOST_S = 0.1, 60.0  # until a catalog that died is made again
OPEN_CALLS = 100_000  # of a catalog: each rank leaves one open, for news of the others
END_S = 5.0  # for the jobs that run when an actor is ended
CALLS_AT_A_TIME = 2  # one augmentation decodes while the other's result is written to the object store


def warm_reader(*, records: bool) -> None:
    """Load in a worker process what its first read task would load, and compile what would be compiled.

    Args:
        records: whether the source seems to be TFRecord.
    """
    import ingest.engine.datasource
    import ingest.read.parquet

    if records:
        import ingest.read.tfrecord

        ingest.read.tfrecord.warm_up()


class FeederHost:
    """Hosts a `Feeder`.

    Args:
        warm: the result of a `warm_reader` task, in a list, since it is not waited for here.
        first_key: of its tables; those of a feeder that died before it had smaller ones.
    """

    def __init__(self, warm: Sequence[ray.ObjectRef], first_key: int = 0) -> None:
        from ingest.engine.feeder import Feeder

        self._ended = threading.Event()
        (self._warm,) = warm
        self._feeder = Feeder(first_key, self._warm)

    def configure(self, manifest: Manifest, config: FeedConfig, augmenters: Sequence[Any]) -> None:
        self._feeder.configure(manifest, config, augmenters)

    def start(self, generation: int, epoch: int, position: int, chunk: Chunk | None) -> None:
        self._feeder.start(generation, epoch, position, chunk)

    def give_way(self, generation: int) -> None:
        self._feeder.give_way(generation)

    def take(self, generation: int, count: int) -> list[Taken | IngestError | None]:
        return self._feeder.take(generation, count)

    def blocks(self, key: int) -> list[ray.ObjectRef]:
        return self._feeder.blocks(key)

    def waiting(self) -> Waiting | None:
        """What a take waits for now."""
        return self._feeder.waiting()

    def warm(self) -> bool:
        """Whether a read task has ever got the CPUs that it needs."""
        return bool(ray.wait([self._warm], timeout=0)[0])

    def watch(self) -> None:
        """Return when this actor is about to be ended; fail when it dies, or the process that made it does."""
        self._ended.wait()

    def end(self) -> None:
        self._ended.set()

    def counters(self) -> dict[str, Any]:
        return self._feeder.counters()

    def peak_rss_bytes(self) -> int:
        return peak_rss_bytes()


class AugmentHost:
    """Runs the spec's operations over the rows of a job: tables in once, one batch out for each job.

    A table serves dozens of jobs, so it is handed over by `hold` and kept, instead of being opened for each job.

    Args:
        feeder: name of the actor to ask for a table that this one lost because it was started anew.
        augment: the spec's section.
        seed: of the order; keys the random numbers with the pass and the sample id.
        batch_rows: rows of a usual job.
        threads: decoding threads.
        replace: whether bad samples are replaced; else they are errors.
        batches: the most batches of a call.
        stored: whether the ops before the first random one were done where the rows were read.
    """

    def __init__(
        self,
        feeder: str,
        augment: Augment,
        seed: int,
        batch_rows: int,
        threads: int,
        replace: bool,
        batches: int,
        stored: bool,
    ) -> None:
        gpus = ray.get_gpu_ids()
        self._feeder, self._tables = feeder, Tables(self._fetch)
        self._first_key = 0
        self._augmentation = Augmentation(
            augment,
            replace=replace,
            stored=stored,
            seed=seed,
            batch_rows=batch_rows,
            threads=threads,
            device_id=0 if gpus else None,
            reuse=batches,  # a result is in the object store before its thread takes the next call
        )
        gc.freeze()  # the modules' objects live as long as the process: no use looking at them again
        self._running, self._ending, self._changed = 0, False, threading.Condition()

    def end(self) -> None:
        """Let running jobs finish and turn queued ones away, so that none is in flight when this actor is ended."""
        with self._changed:
            self._ending = True
            self._changed.wait_for(lambda: self._running == 0, END_S)

    def hold(self, key: int, *blocks: pa.Table) -> None:
        """Take the blocks of a table, before or while the first job that needs it comes."""
        self._tables.add(key, blocks)

    def adopt(self, feeder: str, first_key: int) -> None:
        """Work for a feeder that takes the place of one that died."""
        self._feeder, self._first_key = feeder, first_key
        self._tables.drop_below(first_key)

    def _fetch(self, key: int) -> list[pa.Table]:
        try:
            feeder = ray.get_actor(self._feeder, NAMESPACE)
            refs = ray.get(feeder.blocks.options(concurrency_group="control").remote(key))
            return list(ray.get(refs))
        except (ValueError, ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            raise GoneError(f"table {key} is gone", cause=f"{type(error).__name__}: {error}") from error

    def augment(self, *packed: bytes) -> list[dict[str, Any] | IngestError]:
        """The arrays of a few batches, of each one row for each sample id of its packed job.

        Small batches come in one call and one object, since either costs the same whatever its size. Bad samples that
        are replaced are listed beside the arrays, under `replace.BAD`.

        Returns:
            In the place of a batch that fails its error, and nothing after it: SampleError where a sample is bad, whose
            `sample_id` says which.
        """
        with self._changed:
            if self._ending:
                return []
            self._running += 1
        done: list[dict[str, Any] | IngestError] = []
        try:
            for job in packed:
                done.append(self._augment(Job.unpack(job)))  # noqa: PERF401 - what was done before an error stays
        except GoneError:
            raise
        except IngestError as error:
            done.append(error)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
        return done

    def _augment(self, job: Job) -> dict[str, Any]:
        keys = {gather.key for gather in job.gathers}
        if min(keys) < self._first_key:
            raise GoneError("its tables went with a feeder that died")
        tables = self._tables.get(keys)
        try:
            return self._augmentation(job, tables)
        finally:
            self._tables.drop(job.drops)

    def counters(self) -> dict[str, float]:
        """As `Augmentation.counters`; two calls overlap."""
        return self._augmentation.counters()

    def notes(self) -> dict[str, int]:
        """As `Augmentation.notes`."""
        return self._augmentation.notes()

    def peak_rss_bytes(self) -> int:
        return peak_rss_bytes()


class CatalogHost:
    """Hosts a `Catalog` and a `Board`, on one event loop."""

    def __init__(self, source: Source, cache_dir: str | None, cpus: float, opener: str | None) -> None:
        from ingest.engine.catalog import Catalog

        self._catalog, self._board = Catalog(source, cache_dir, cpus), Board(opener)
        self._listing = asyncio.Lock()

    async def manifest(self) -> Listed:
        async with self._listing:
            return await asyncio.to_thread(self._catalog.manifest)

    async def lengths(self, column: str, options: ReadOptions) -> NDArray[np.int64]:
        """See `Catalog.lengths`."""
        async with self._listing:
            return await asyncio.to_thread(self._catalog.lengths, column, options)

    async def board(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the board."""
        answer = getattr(self._board, method)(*args, **options)
        return await answer if asyncio.iscoroutine(answer) else answer


@dataclass(frozen=True)
class Found:
    """A manifest, its reference, and the catalogs it comes from, kept alive by this.

    Attributes:
        seconds: that it took to make.
        storage: what that asked of the store, by the names of `storage.counters`.
    """

    manifest: Manifest
    ref: ray.ObjectRef
    seconds: float
    storage: dict[str, int]
    catalog: Any
    others: tuple[Any, ...] = ()  # catalogs, of further sources


def open_catalog(
    source: Source, run: str, cache_dir: Path | None, cpus: float, opener: str | None = None
) -> tuple[Any, ray.ObjectRef]:
    """The catalog of a run, started by whoever comes first (`opener` names its process), and its answer to come."""
    name = f"catalog-{run}-{fingerprint(source.model_dump(mode='json'))}"
    catalog = (
        ray.remote(CatalogHost)
        .options(name=name, namespace=NAMESPACE, get_if_exists=True, num_cpus=0, max_concurrency=OPEN_CALLS)
        .remote(source, None if cache_dir is None else str(cache_dir), cpus, opener)
    )
    return catalog, catalog.manifest.remote()


def find_manifest(
    source: Source,
    run: str,
    cache_dir: Path | None,
    cpus: float,
    opener: str | None = None,
    *,
    opened: list[tuple[Any, ray.ObjectRef]] | None = None,
) -> Found:
    """The manifest of a source, made once for all that name the same run.

    Args:
        source: what to list.
        run: whose catalog it is.
        cache_dir: where manifests are kept between runs.
        cpus: of each task that reads footers.
        opener: names this process.
        opened: what `open_catalog` gave first, if it has been called; taken out.

    Raises:
        SourceError: the data cannot be found, listed or opened.
        ClusterError: the actor that lists it died three times.
    """
    died: set[str] = set()
    until = time.monotonic() + AGAIN_MOST_S
    while len(died) < 3 and time.monotonic() < until:
        # Only the handle of the process that made the actor keeps it; one found by name does not.
        catalog, answer = opened.pop(0) if opened and not died else open_catalog(source, run, cache_dir, cpus, opener)
        try:
            listed: Listed = ray.get(answer)
            return Found(ray.get(listed.ref), listed.ref, listed.seconds, listed.storage, catalog)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, IngestError) else error) from error
        except (ray.exceptions.ActorDiedError, ray.exceptions.OwnerDiedError):
            # The rank that made it has left; the next one makes it again, once this process holds no handle of it.
            died.add(gcs.actor_id(catalog))
            del catalog, answer
            time.sleep(AGAIN_S)
    raise ClusterError("the actor that lists the data died three times", hint="See its log in Ray's dashboard")


def find_manifests(
    sources: Sequence[Source],
    run: str,
    cache_dir: Path | None,
    cpus: float,
    opener: str | None = None,
    *,
    mixed: bool,
    opened: list[tuple[Any, ray.ObjectRef]] | None = None,
) -> Found:
    """The manifest of all sources together, which are listed at the same time.

    Args:
        sources: one or several.
        run: names it; whoever names the same run shares the manifests.
        cache_dir: where manifests are kept between runs; None keeps none.
        cpus: CPUs of each task that indexes files.
        opener: names this process.
        opened: the catalogs of all sources and their answers to come, if they have been opened; taken out.
        mixed: whether they are the sources of a mixture, of one perhaps.

    Raises:
        SchemaError: the sources' outputs differ.
        SourceError, ClusterError: see `find_manifest`.
    """
    listing = (run, cache_dir, cpus, opener)
    opened = opened or [open_catalog(source, *listing) for source in sources]  # all of them, before the first answers
    found = [find_manifest(source, *listing, opened=opened) for source in sources]
    if not mixed:
        return found[0]
    names = [f"sources.{i} ({source.paths[0]})" for i, source in enumerate(sources)]
    manifest = mix_manifests([one.manifest for one in found], names)
    seconds = max(one.seconds for one in found)
    storage = {name: sum(one.storage[name] for one in found) for name in found[0].storage}
    others = tuple(one.catalog for one in found[1:])
    return Found(manifest, ray.put(manifest), seconds, storage, found[0].catalog, others)


def lengths_found(spec: Spec, found: Found, column: str) -> NDArray[np.int64]:
    """Int64 (rows,): lengths that stand for the data's, of a mixture by weight; each catalog reads them once a run.

    Raises:
        SchemaError: the column has no lengths.
        ReadError: a sample cannot be read.
    """
    check_column(found.manifest.schema, column)
    catalogs, lengths = (found.catalog, *found.others), []
    for i, (catalog, part) in enumerate(zip(catalogs, found.manifest.parts, strict=True)):
        if not part.rows:
            lengths.append(np.zeros(0, np.int64))
            continue
        options = ReadOptions.of(spec, i)
        try:
            lengths.append(ray.get(catalog.lengths.remote(column, options)))
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, IngestError) else error) from error
        except (ray.exceptions.ActorDiedError, ray.exceptions.OwnerDiedError):  # it went with the rank that made it
            lengths.append(sample_lengths(part, column, options))
    return lengths[0] if spec.weights is None else mixed_lengths(lengths, spec.weights)


def sized(spec: Spec, found: Found) -> Spec:
    """The spec with the rows of a rank's batch, where they follow from `batch.bucket_by.tokens` and the data.

    Raises:
        SchemaError, ReadError: see `lengths_found`.
    """
    by = spec.batch.bucket_by
    if by is None or spec.batch.target is None:
        return spec
    lengths = lengths_found(spec, found, by.column)
    if not len(lengths):
        return spec.sized(1)  # refused where it is planned
    return spec.sized(rows_for(lengths, spec.batch.target, by.chunk))
