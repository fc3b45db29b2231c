"""One rank's actors, as the `Feed` that the loader's thread asks."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias, cast

import pyarrow as pa
import ray

from ingest.augment.collate import collate
from ingest.engine import cluster
from ingest.engine.hosts import CALLS_AT_A_TIME, NAMESPACE, AugmentHost, FeederHost
from ingest.engine.jobs import BatchInfo, FeedConfig, Job, Taken
from ingest.engine.own import OwnAugmenter
from ingest.errors import IngestError, StageError
from ingest.loader.arranged import Arranged, join
from ingest.manifest.listing import seems_tfrecord
from ingest.manifest.model import Manifest
from ingest.read.arranged import SAMPLE_ID
from ingest.spec import Spec

FOREVER = -1
CLOSE_S = 10.0
_Dispatched: TypeAlias = list[tuple[Taken | IngestError | None, ray.ObjectRef | None]]


class RankFeed:
    """Makes a rank's feeder and augmentation actors at once, so that they start while the data is being listed.

    Args:
        spec: what to do.
        batch_rows: rows of a batch.
        threads: decoding threads of each augmentation actor.
        gpu: whether augmentation actors get GPUs.
        rank: for names and errors.
    """

    def __init__(self, spec: Spec, *, batch_rows: int, threads: int, gpu: bool, rank: int) -> None:
        self._rank, self._generation = rank, 0
        self._manifest: Manifest | None = None
        self._arranged = False
        self._tables: dict[int, pa.Table] = {}
        self._opened: dict[int, Arranged] = {}
        self._asked: SimpleQueue[tuple[ray.ObjectRef, Future[_Dispatched]] | None] = SimpleQueue()
        self.submit_cpu_s = 0.0  # processor time of the submitting thread
        # A daemon, since a pool's threads are waited for when the interpreter ends, however long the feed takes.
        self._submitter = threading.Thread(target=self._submit, name="ingest-submit", daemon=True)
        self._submitter.start()
        # Takes must run in order, and a restart must reach a feeder whose take is waiting: two groups of one thread.
        name = f"feeder-{rank}-{uuid.uuid4().hex}"
        self._feeder = (
            ray.remote(concurrency_groups={"take": 1, "control": 1})(FeederHost)
            .options(name=name, namespace=NAMESPACE, num_cpus=0, scheduling_strategy=cluster.beside_me(soft=True))
            .remote(spec.read.place, records=seems_tfrecord(spec.source))
        )
        augment = spec.augment
        self._augmenters = [
            ray.remote(concurrency_groups={"hold": 1})(AugmentHost)
            .options(
                num_cpus=augment.cpus,
                num_gpus=augment.gpus if gpu else 0,
                max_concurrency=CALLS_AT_A_TIME,
                max_restarts=FOREVER,
                max_task_retries=FOREVER,
                scheduling_strategy=cluster.beside_me(soft=True),
            )
            .remote(name, augment, spec.order.seed, batch_rows, threads)
            for _ in range(augment.actors)
        ]
        self._own: OwnAugmenter | None = None
        if augment.pipeline and not self._augmenters:
            try:
                self._own = OwnAugmenter(spec, batch_rows=batch_rows, threads=threads, gpu=gpu)
            except BaseException:
                self.close()
                raise

    def configure(self, manifest: Manifest, manifest_ref: ray.ObjectRef, config: FeedConfig) -> None:
        """Tell the feeder what there is and how to feed; before the first `start`."""
        self._manifest, self._arranged = manifest, config.arranged
        configure = self._feeder.configure.options(concurrency_group="control")
        self._get(configure.remote(manifest_ref, config, self._augmenters))

    def start(self, epoch: int, position: int) -> None:
        """Turn to a position; tickets of before give nothing any more."""
        self._generation += 1
        self._tables.clear()
        self._opened.clear()
        start = self._feeder.start.options(concurrency_group="control")
        self._get(start.remote(self._generation, epoch, position))

    def request(self, count: int) -> Future[_Dispatched]:
        """Ask for the next batches. Their jobs go to the augmentation actors as soon as the feeder names them."""
        taken = self._feeder.take.options(concurrency_group="take").remote(self._generation, count)
        ticket: Future[_Dispatched] = Future()
        self._asked.put((taken, ticket))
        return ticket

    def fetch(self, ticket: Future[_Dispatched]) -> Iterator[tuple[BatchInfo, dict[str, Any]]]:
        """Wait for a ticket's batches, one after the other; fewer than asked for at the end.

        Raises:
            IngestError: the error of the stage that failed, with file and row where a sample is bad.
        """
        for taken, result in ticket.result():
            if taken is None:
                return
            if isinstance(taken, IngestError):
                raise taken
            job = Job.unpack(taken.job)
            arrays = self._join(taken, job) if result is None else {**self._get(result), SAMPLE_ID: job.sample_ids}
            yield BatchInfo.unpack(taken.info), arrays

    def _submit(self) -> None:
        """In a thread: this process owns the results, so that they outlive the feeder that named them."""
        while (asked := self._asked.get()) is not None:
            taken, ticket = asked
            try:
                ticket.set_result([(each, self._augmented(each)) for each in self._get(taken)])
            except BaseException as error:  # noqa: BLE001 - raised where the ticket is fetched
                ticket.set_exception(error)
            self.submit_cpu_s = time.thread_time()

    def _augmented(self, taken: Taken | IngestError | None) -> ray.ObjectRef | None:
        if not isinstance(taken, Taken) or taken.turn < 0:
            return None
        return self._augmenters[taken.turn].augment.remote(taken.job)

    def _join(self, taken: Taken, job: Job) -> dict[str, Any]:
        """The rows of a batch that no actor augments, out of the tables that the feeder has sent so far."""
        for key, refs in taken.tables:
            blocks = self._get(refs)
            table = blocks[0] if len(blocks) == 1 else pa.concat_tables(blocks)
            self._tables[key] = table
            if self._arranged:
                self._opened[key] = Arranged(table)
        if self._arranged and all(isinstance(gather.rows, slice) for gather in job.gathers):
            arrays = join([(self._opened[gather.key], cast("slice", gather.rows)) for gather in job.gathers])
        elif self._own is not None:
            arrays = self._own_augmented(self._own, job)
        else:
            arrays = collate(job.pieces(self._tables))
        for key in job.drops:
            self._tables.pop(key, None)
            self._opened.pop(key, None)
        return arrays if self._arranged else {**arrays, SAMPLE_ID: job.sample_ids}

    def _own_augmented(self, own: OwnAugmenter, job: Job) -> dict[str, Any]:
        try:
            return own(job, self._tables)
        except IngestError as error:
            self._locate(error)
            raise

    def counters(self) -> dict[str, float]:
        """The feeder's and the augmentation actors' totals."""
        feeder = self._feeder.counters.options(concurrency_group="control").remote()
        augmenters = [actor.counters.remote() for actor in self._augmenters]
        totals = dict(self._get(feeder))
        for counters in self._get(augmenters):
            for name, value in counters.items():
                totals[f"augment_{name}"] = totals.get(f"augment_{name}", 0) + value
        slots = CALLS_AT_A_TIME * len(self._augmenters)
        if self._own is not None:
            totals, slots = {**totals, **self._own.counters()}, 1
        return {**totals, "augment_slots": slots}

    def peak_rss_bytes(self) -> int:
        """Peak resident memory of the rank's own actors, added up; shared memory that they touched is counted in."""
        feeder = self._feeder.peak_rss_bytes.options(concurrency_group="control").remote()
        return sum(self._get([feeder, *(actor.peak_rss_bytes.remote() for actor in self._augmenters)]))

    def close(self) -> None:
        """End the actors; the feeder first, since it would send more. Ray reports tasks that end with their actor."""
        self._asked.put(None)
        cluster.kill(self._feeder)
        cluster.settle([actor.end.options(concurrency_group="hold") for actor in self._augmenters], CLOSE_S)
        cluster.kill(*self._augmenters)
        if self._own is not None:
            self._own.close()
        self._submitter.join(CLOSE_S)  # what it waited for has failed by now

    def _get(self, refs: Any) -> Any:
        try:
            return ray.get(refs)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if not isinstance(cause, IngestError):
                text = f"{type(cause).__name__}: {cause}"
                raise StageError("an actor failed", stage="feed", rank=self._rank, cause=text) from error
            self._locate(cause)
            raise cause from error
        except ray.exceptions.RayActorError as error:
            raise StageError("an actor died", stage="feed", rank=self._rank, cause=str(error)) from error
        except ray.exceptions.RayError as error:
            text = f"{type(error).__name__}: {error}"
            raise StageError("an object was lost", stage="feed", rank=self._rank, cause=text) from error

    def _locate(self, error: IngestError) -> None:
        """Give a bad sample its file and row."""
        error.rank = self._rank
        sample_id = getattr(error, "sample_id", None)
        if sample_id is not None and self._manifest is not None:
            error.path, error.row = self._manifest.locate(sample_id)
