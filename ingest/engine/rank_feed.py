"""One rank's actors, as the `Feed` that the loader's thread asks."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeAlias

import ray

from ingest.engine import cluster, gcs
from ingest.engine.augmentation import Augmentation
from ingest.engine.hosts import CALLS_AT_A_TIME, NAMESPACE, AugmentHost, FeederHost, warm_reader
from ingest.engine.jobs import BatchInfo, FeedConfig, GoneError, Job, Taken, Waiting
from ingest.engine.joining import Joiner
from ingest.engine.own import own_augmentation
from ingest.engine.replace import identified
from ingest.errors import ClusterError, IngestError, StageError
from ingest.loader.arranged import MOST_BATCHES
from ingest.manifest.listing import seems_tfrecord
from ingest.manifest.model import Manifest
from ingest.plan.schedule import Chunk
from ingest.spec import Spec

log = logging.getLogger(__name__)

FOREVER = -1
CLOSE_S = 10.0
ANSWER_S = 10.0  # for an actor that is asked how it is
MOST_RECOVERIES = 5  # without a batch between them
KEYS_EACH = 1 << 40  # table keys of each feeder, so that a new one never repeats one of the old
_LOST = (  # what a process or node that died takes with it; Ray's other errors are no accident
    ray.exceptions.RayActorError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
)


# Of each batch what the feeder says, the call that augments it, and its place in what that returns.
_Dispatched: TypeAlias = list[tuple[Taken | IngestError | None, ray.ObjectRef | None, int]]


class _LostError(Exception):
    """Something died: what has not been received yet must be asked for again."""


@dataclass
class Ticket:
    """Batches asked for.

    Attributes:
        left: those not received yet.
        answer: what the feeder says, and the results that the augmentation actors owe for it.
    """

    left: int
    answer: Future[_Dispatched]


class RankFeed:
    """Makes a rank's feeder and augmentation actors at once, so that they start while the data is being listed.

    A feeder that dies is made anew and goes on at the batch after the last one received: the trainer sees a pause.

    Args:
        spec: what to do.
        batch_rows: rows of a batch.
        threads: decoding threads of each augmentation actor.
        gpu: whether augmentation actors get GPUs.
        rank: for names and errors.
        call_batches: the most batches that an augmentation actor makes in a call.
    """

    def __init__(
        self, spec: Spec, *, batch_rows: int, threads: int, gpu: bool, rank: int, call_batches: int = 1
    ) -> None:
        self._spec, self._batch_rows, self._threads, self._gpu, self._rank = spec, batch_rows, threads, gpu, rank
        self._call_batches = call_batches
        self._generation = self._feeders = self._recoveries = 0
        self._replace = spec.errors.on_bad_sample == "replace"
        self._manifest: Manifest | None = None
        self._config: FeedConfig | None = None
        self._at: tuple[int, int, Chunk | None] = (0, 0, None)  # epoch, position, chunk after the last batch received
        self._asked: SimpleQueue[tuple[ray.ObjectRef, Future[_Dispatched]] | None] = SimpleQueue()
        self.submit_cpu_s = 0.0  # processor time of the submitting thread
        self._results: list[dict[str, Any] | IngestError] = []
        self._calls: set[ray.ObjectRef] = set()  # under way, or not fetched yet
        self._stale: set[ray.ObjectRef] = set()  # of before the last start
        self._lock = threading.Lock()
        self._tickets: deque[Ticket] = deque()
        self._waiting_for: tuple[str, float] | None = None  # a stage, and since when
        self._totals: dict[str, Any] = {}
        self._closed = False
        self.on_feeder: Callable[[Any], None] = lambda _: None
        # A daemon, since a pool's threads are waited for when the interpreter ends, however long the feed takes.
        self._submitter = threading.Thread(target=self._submit, name="ingest-submit", daemon=True)
        self._submitter.start()
        self._make_feeder()
        self._augmenters = [self._make_augmenter() for _ in range(spec.augment.actors)]
        self._own: Augmentation | None = None
        if spec.augment.pipeline and not self._augmenters:
            try:
                self._own = own_augmentation(spec, batch_rows=batch_rows, threads=threads, gpu=gpu)
            except BaseException:
                self.close()
                raise
        self._joiner = Joiner(own=self._own)

    @property
    def feeder(self) -> Any:
        """The feeder's actor, which lives as long as this process unless it dies before."""
        return self._feeder

    def _make_feeder(self) -> None:
        self._name = f"feeder-{self._rank}-{uuid.uuid4().hex}"
        # A reader's process starts beside the feeder's, while the data is being listed.
        records = any(seems_tfrecord(source) for source in self._spec.inputs)
        warm = ray.remote(warm_reader).options(**self._spec.read.place, max_retries=0).remote(records=records)
        # Takes must run in order, and a restart must reach a feeder whose take is waiting: two groups of one thread.
        self._feeder = (
            ray.remote(concurrency_groups={"take": 1, "control": 1, "watch": 1})(FeederHost)
            .options(name=self._name, namespace=NAMESPACE, num_cpus=0, **cluster.beside_me())
            .remote([warm], first_key=self._feeders * KEYS_EACH)
        )
        self._feeders += 1

    def _make_augmenter(self) -> Any:
        augment = self._spec.augment
        return (
            ray.remote(concurrency_groups={"hold": 1})(AugmentHost)
            .options(
                num_cpus=augment.cpus,
                num_gpus=augment.gpus if self._gpu else 0,
                max_concurrency=CALLS_AT_A_TIME,
                max_restarts=FOREVER,
                max_task_retries=FOREVER,
                **cluster.beside_me(),
            )
            .remote(
                self._name,
                augment,
                self._spec.order.seed,
                self._batch_rows,
                self._threads,
                self._replace,
                self._call_batches,
                self._spec.cache.decoded,
            )
        )

    def configure(self, manifest: Manifest, manifest_ref: ray.ObjectRef, config: FeedConfig) -> None:
        """Tell the feeder what there is and how to feed; before the first `start`."""
        self._manifest, self._config = manifest, config
        self._joiner.arranged = config.arranged
        configure = self._feeder.configure.options(concurrency_group="control")
        try:
            self._ask(configure.remote(manifest_ref, config, self._augmenters))
        except _LostError as lost:  # the feeder, or the catalog that owns the manifest
            self._recover(lost)

    def start(self, epoch: int, position: int, chunk: Chunk | None = None) -> None:
        """Turn to a position, and the chunk that it lies in; tickets of before give nothing any more."""
        self._at = (epoch, position, chunk)
        self._tickets.clear()
        try:
            self._turn()
        except _LostError as lost:
            self._recover(lost)

    def _turn(self) -> None:
        self._generation += 1
        with self._lock:
            self._stale |= self._calls
            self._calls.clear()
        self._joiner.clear()
        start = self._feeder.start.options(concurrency_group="control")
        self._ask(start.remote(self._generation, *self._at))

    def request(self, count: int) -> Ticket:
        """Ask for the next batches. Their jobs go to the augmentation actors as soon as the feeder names them."""
        ticket = Ticket(count, self._take(count))
        self._tickets.append(ticket)
        return ticket

    def _take(self, count: int) -> Future[_Dispatched]:
        taken = self._feeder.take.options(concurrency_group="take").remote(self._generation, count)
        answer: Future[_Dispatched] = Future()
        with self._lock:  # nothing may be asked behind the end of the submitting thread, which would never answer
            if self._closed:
                answer.set_exception(StageError("the feed is closed", stage="feed", rank=self._rank))
            else:
                self._asked.put((taken, answer))
        return answer

    def fetch(self, ticket: Ticket) -> Iterator[tuple[BatchInfo, dict[str, Any]]]:
        """Wait for a ticket's batches, one after the other; fewer than asked for at the end.

        Raises:
            IngestError: the error of the stage that failed, with file and row where a sample is bad.
        """
        while True:
            try:
                yield from self._fetch(ticket)
            except _LostError as lost:
                self._recover(lost)
            else:
                break
        with contextlib.suppress(ValueError):  # a start in between has forgotten it
            self._tickets.remove(ticket)

    def _fetch(self, ticket: Ticket) -> Iterator[tuple[BatchInfo, dict[str, Any]]]:
        with self._waits("feed"):
            answer = ticket.answer.result()
        for number, (taken, call, place) in enumerate(answer):
            if taken is None:
                return
            if isinstance(taken, IngestError):
                # A read that failed for another reason than the data's may have lost its node: it is read again.
                if isinstance(taken, StageError) and taken.stage == "read" and self._recoveries < MOST_RECOVERIES:
                    raise _LostError(str(taken)) from taken
                self.locate(taken)
                raise taken
            info, job = BatchInfo.unpack(taken.info), Job.unpack(taken.job)
            if call is None:
                arrays = self._join(taken, job, answer[number + 1 :])
            else:
                arrays = self._augmented_arrays(call, place, job)
            self._at = (info.epoch + 1, 0, None) if info.ends_epoch else (info.epoch, info.after, info.chunk)
            ticket.left -= 1
            self._recoveries = 0
            yield info, arrays

    def _submit(self) -> None:
        """In a thread: this process owns the results, so that they outlive the feeder that named them."""
        while (asked := self._asked.get()) is not None:
            taken, answer = asked
            try:
                answer.set_result(self._augmented(self._ask(taken)))
            except BaseException as error:  # noqa: BLE001 - raised where the ticket is fetched
                answer.set_exception(error)
            self.submit_cpu_s = time.thread_time()

    def _augmented(self, taken: Sequence[Taken | IngestError | None]) -> _Dispatched:
        """Send the jobs to their augmentation actor, a few in a call."""
        dispatched: _Dispatched = []
        for at in range(0, len(taken), self._call_batches):
            some = taken[at : at + self._call_batches]
            jobs = [each for each in some if isinstance(each, Taken) and each.turn >= 0]
            call = self._augmenters[jobs[0].turn].augment.remote(*(each.job for each in jobs)) if jobs else None
            if call is not None:
                with self._lock:
                    self._calls.add(call)
            dispatched += [(each, call, place) for place, each in enumerate(some)]
        return dispatched

    # -- recovery ------------------------------------------------------------------------------------------------------

    def _recover(self, lost: _LostError) -> None:
        """Replace the actors that are gone, go on after the last batch received, and ask again for what was asked.

        Raises:
            StageError: it has been tried several times in vain, or the feed was closed.
        """
        while True:
            self._recoveries += 1
            if self._closed or self._recoveries > MOST_RECOVERIES:
                text = "a process or node died" + ("" if self._closed else f", and {MOST_RECOVERIES} restarts failed")
                raise StageError(text, stage="feed", rank=self._rank, cause=str(lost)) from lost
            log.warning("rank %d: %s; going on at epoch %d, row %d", self._rank, _first_line(lost), *self._at[:2])
            try:
                self._replace_dead()
                self._turn()
            except _LostError as again:
                lost = again
                continue
            for ticket in self._tickets:
                ticket.answer = self._take(ticket.left)
            return

    def _replace_dead(self) -> None:
        self._augmenters = [
            actor if self._lives(actor.counters.options(concurrency_group="hold")) else self._make_augmenter()
            for actor in self._augmenters
        ]
        if not self._lives(self._feeder.counters.options(concurrency_group="control")):
            cluster.kill(self._feeder)  # it may live on a node that is cut off
            self._make_feeder()
            self.on_feeder(self._feeder)
        for actor in self._augmenters:  # one that Ray has started anew knows the first feeder only
            actor.adopt.options(concurrency_group="hold").remote(self._name, (self._feeders - 1) * KEYS_EACH)
        if self._manifest is not None:
            self._ask(self._configured())

    def _configured(self) -> ray.ObjectRef:
        configure = self._feeder.configure.options(concurrency_group="control")
        # The manifest's first owner may be what died: this process has its own copy.
        return configure.remote(ray.put(self._manifest), self._config, self._augmenters)

    def _lives(self, method: Any) -> bool:
        try:
            ray.get(method.remote(), timeout=ANSWER_S)
        except ray.exceptions.GetTimeoutError:
            return True  # busy, or starting anew
        except ray.exceptions.ActorUnavailableError:
            return True
        except ray.exceptions.RayActorError:
            return False
        return True

    # -- batches -------------------------------------------------------------------------------------------------------

    def _augmented_arrays(self, call: ray.ObjectRef, place: int, job: Job) -> dict[str, Any]:
        if place == 0:  # the batches of a call are one object, and are fetched in order
            self._results = []  # what was fetched before, before there is more
            with self._waits("augment"):
                self._results = self._ask(call)
            self._forget(call)
        arrays = self._results[place]
        if isinstance(arrays, IngestError):
            self.locate(arrays)
            raise arrays
        return identified(arrays, job.sample_ids)

    def _forget(self, call: ray.ObjectRef) -> None:
        """A call whose result is here, and those of an earlier start that have ended, need not be waited for."""
        with self._lock:
            self._calls.discard(call)
            if self._stale:
                ended, _ = ray.wait(list(self._stale), num_returns=len(self._stale), timeout=0, fetch_local=False)
                self._stale.difference_update(ended)

    def _join(self, taken: Taken, job: Job, behind: _Dispatched) -> dict[str, Any]:
        """The rows of a batch that no actor augments, out of the tables that the feeder has sent so far."""
        if (made := self._joiner.made()) is not None:
            return made
        for key, refs in taken.tables:
            with self._waits("transfer"):
                blocks = self._ask(refs)
            self._joiner.hold(key, blocks)
        try:
            return self._joiner.batch(job, self._next_jobs(behind))
        except IngestError as error:
            self.locate(error)
            raise

    def _next_jobs(self, behind: _Dispatched) -> Iterator[Job]:
        """Of the next batches, as long as they need no other tables."""
        for taken, _, _ in behind[: MOST_BATCHES - 1] if self._joiner.arranged else ():
            if not isinstance(taken, Taken) or taken.tables:
                return
            yield Job.unpack(taken.job)

    def counters(self) -> dict[str, Any]:
        """The feeder's and the augmentation actors' totals; the last known ones where an actor is being replaced."""
        feeder = self._feeder.counters.options(concurrency_group="control").remote()
        augmenters = [actor.counters.remote() for actor in self._augmenters]
        try:
            totals = dict(self._ask(feeder))
            for counters in self._ask(augmenters):
                for name, value in counters.items():
                    totals[f"augment_{name}"] = totals.get(f"augment_{name}", 0) + value
        except _LostError as lost:
            if not self._totals:
                raise StageError("an actor died", stage="feed", rank=self._rank, cause=str(lost)) from lost
            return self._totals
        slots = CALLS_AT_A_TIME * len(augmenters)
        if self._own is not None:
            totals, slots = {**totals, **{f"augment_{name}": value for name, value in self._own.counters().items()}}, 1
        self._totals = {**totals, "augment_slots": slots}
        return self._totals

    def notes(self) -> dict[str, int]:
        """How many images had what fault that could be passed over, over all augmentation actors."""
        totals = Counter(self._own.notes() if self._own is not None else {})
        try:
            for notes in self._ask([actor.notes.remote() for actor in self._augmenters]):
                totals.update(notes)
        except _LostError:
            return dict(totals)  # an actor is being replaced, and its counts are gone
        return dict(totals)

    def peak_rss_bytes(self) -> int:
        """Peak resident memory of the rank's own actors, added up; shared memory that they touched is counted in."""
        feeder = self._feeder.peak_rss_bytes.options(concurrency_group="control").remote()
        try:
            return sum(self._ask([feeder, *(actor.peak_rss_bytes.remote() for actor in self._augmenters)]))
        except _LostError:
            return 0

    def close(self) -> None:
        """End the actors; the feeder first, since it would send more. Ray reports tasks that end with their actor."""
        with self._lock:
            self._closed = True
            self._asked.put(None)
        cluster.settle([self._feeder.end.options(concurrency_group="control")], CLOSE_S)
        cluster.kill(self._feeder)
        self._submitter.join(CLOSE_S)  # what it waited for has failed by now
        cluster.settle([actor.end.options(concurrency_group="hold") for actor in self._augmenters], CLOSE_S)
        cluster.drain([*self._calls, *self._stale], CLOSE_S)
        cluster.kill(*self._augmenters)
        if self._own is not None:
            self._own.close()

    # -- a watchdog's questions ----------------------------------------------------------------------------------------

    def starved(self) -> ClusterError | None:
        """The error of a rank whose reads can never run, since others hold all CPUs."""
        cpus = self._spec.read.cpus
        free, have = cluster.free_cpus(), cluster.resources().cpus
        if free >= cpus or self._answer("warm") is not False or gcs.autoscaled():
            return None  # an autoscaler brings what waits, in minutes
        return ClusterError(
            f"no read can start: it needs {cpus:g} CPUs, and of the cluster's {have:g} others hold all but {free:g}",
            rank=self._rank,
            hint="Give trainers fewer CPUs, lower read.cpus, or add CPU nodes",
        )

    def stuck(self, waited_s: float) -> StageError:
        """The error of a rank that has waited too long: which stage, what it waits for, and where."""
        said = self._waiting_for
        stage, what = "feed", "the feeder's answer"
        waiting = self._answer("waiting")
        if isinstance(waiting, IngestError):
            what = f"the feeder, which {waiting.message}"
        elif waiting is not None:
            stage, what = "read", self._describe_read(waiting)
        elif said is not None and said[0] == "augment":
            stage, what = "augment", f"augmentation of a batch, in {self._describe_augmenters()}"
        elif said is not None and said[0] == "transfer":
            stage, what = "transfer", "blocks on their way from another node"
        seconds = time.monotonic() - said[1] if said is not None else waited_s
        return StageError(
            f"no batch for {waited_s:.0f} s (loader.timeout_s); waits for {what}, since {seconds:.0f} s",
            stage=stage,
            rank=self._rank,
            hint="Look at that stage; raise loader.timeout_s if it is only slow",
        )

    def _describe_read(self, waiting: Waiting) -> str:
        files = ", ".join(waiting.files[:3]) + (f" and {len(waiting.files) - 3} more" if len(waiting.files) > 3 else "")
        free, have = cluster.free_cpus(), cluster.resources().cpus
        # Ray counts a read that waits for its CPUs as one that runs.
        state = f"{waiting.running} of its reads are under way: each needs {self._spec.read.cpus:g} CPUs, "
        state += f"{free:g} of {have:g} are free"
        return (
            f"window {waiting.window} of lane {waiting.lane}, a read of {waiting.units} units of {files}, "
            f"due for {waiting.seconds:.0f} s; {state}; {cluster.dead_nodes()}"
        )

    def _describe_augmenters(self) -> str:
        return ", ".join(gcs.actor_place(actor) for actor in self._augmenters) + f"; {cluster.dead_nodes()}"

    def _answer(self, method: str) -> Any:
        """What the feeder says, or the error that it does not."""
        call = getattr(self._feeder, method).options(concurrency_group="control")
        try:
            return ray.get(call.remote(), timeout=ANSWER_S)
        except ray.exceptions.RayError as error:
            place = gcs.actor_place(self._feeder)
            return StageError(f"does not answer ({place}): {type(error).__name__}", stage="feed", rank=self._rank)

    # -- waiting -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _waits(self, stage: str) -> Iterator[None]:
        """Say what is waited for, while it is."""
        self._waiting_for = (stage, time.monotonic())
        try:
            yield
        finally:
            self._waiting_for = None

    def _ask(self, refs: Any) -> Any:
        """What an actor answers.

        Raises:
            IngestError: it failed.
            _LostError: it died, or an object did.
        """
        try:
            return ray.get(refs)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, (*_LOST, GoneError)) or isinstance(error, _LOST):
                raise _LostError(str(cause)) from error
            if not isinstance(cause, IngestError):
                text = f"{type(cause).__name__}: {cause}"
                raise StageError("an actor failed", stage="feed", rank=self._rank, cause=text) from error
            self.locate(cause)
            raise cause from error
        except _LOST as error:
            raise _LostError(str(error)) from error
        except ray.exceptions.RayError as error:
            text = f"{type(error).__name__}: {error}"
            raise StageError("an object was lost", stage="feed", rank=self._rank, cause=text) from error

    def locate(self, error: IngestError) -> None:
        """Give a bad sample its file and row."""
        error.rank = self._rank
        if error.sample_id is not None and self._manifest is not None:
            error.path, error.row = self._manifest.locate(error.sample_id)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "something died")
