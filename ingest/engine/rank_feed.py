"""One rank's actors, as the `Feed` that the loader's thread asks: what was asked for comes, whatever dies meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray

from ingest.augment.landing import Landing
from ingest.engine.ahead import Ahead
from ingest.engine.asking import LostError
from ingest.engine.hosts import CALLS_AT_A_TIME
from ingest.engine.jobs import BatchInfo, FeedConfig, Job
from ingest.engine.joining import Joiner
from ingest.engine.own import own_augmentation
from ingest.engine.rank_actors import CLOSE_S, RankActors
from ingest.engine.receiving import Receiver
from ingest.engine.submitting import Sent, Submitter
from ingest.engine.watching import Watch
from ingest.errors import IngestError, StageError
from ingest.manifest.model import Manifest
from ingest.plan.schedule import Chunk
from ingest.spec import Spec

log = logging.getLogger(__name__)

MOST_RECOVERIES = 5  # without a batch between them


@dataclass
class Ticket:
    """Batches asked for.

    Attributes:
        left: those not received yet.
        answer: what the feeder says, and the results that the augmentation actors owe for it.
    """

    left: int
    answer: Future[list[Sent]]


class RankFeed:
    """Makes a rank's feeder and augmentation actors at once, so that they start while the data is being listed.

    A feeder that dies is made anew and goes on at the batch after the last one received: the trainer sees a pause.

    Args:
        spec, batch_rows, threads, gpu, rank, call_batches: as of `RankActors`, and of what augments in this process
            where there are no augmentation actors.
        landing: where images go that this process makes on its own GPU; None: into host memory.

    Attributes:
        watch: answers a watchdog.
        on_feeder: called with a feeder that takes the place of one that died.
    """

    _manifest: Manifest
    _config: FeedConfig
    _receiver: Receiver

    def __init__(
        self,
        spec: Spec,
        *,
        batch_rows: int,
        threads: int,
        gpu: bool,
        rank: int,
        call_batches: int = 1,
        landing: Landing | None = None,
    ) -> None:
        self._rank = rank
        self._actors = RankActors(
            spec, batch_rows=batch_rows, threads=threads, gpu=gpu, rank=rank, call_batches=call_batches
        )
        self._submitter = Submitter(self._actors, call_batches, rank)
        self.watch = Watch(self._actors, spec.read.cpus, rank)
        self.on_feeder: Callable[[Any], None] = lambda _: None
        self._at: tuple[int, int, Chunk | None] = (0, 0, None)  # epoch, position, chunk after the last batch received
        self._generation = self._recoveries = 0
        self._tickets: deque[Ticket] = deque()
        self._own: Ahead | None = None
        if spec.augment.pipeline and not spec.augment.actors:
            try:
                own = own_augmentation(spec, batch_rows=batch_rows, threads=threads, gpu=gpu, landing=landing)
                self._own = Ahead(own, CALLS_AT_A_TIME)
            except BaseException:
                self.close()
                raise

    @property
    def feeder(self) -> Any:
        """The feeder's actor."""
        return self._actors.feeder

    @property
    def submit_cpu_s(self) -> float:
        """Processor time of the submitting thread."""
        return self._submitter.cpu_s

    def configure(self, manifest: Manifest, manifest_ref: ray.ObjectRef, config: FeedConfig) -> None:
        """Tell the feeder what there is and how to feed; before the first `start`."""
        self._manifest, self._config = manifest, config
        joiner = Joiner(self._own, arranged=config.arranged)
        self._receiver = Receiver(self._submitter, self.watch, joiner, self._rank)
        try:
            self._actors.configure(manifest_ref, config)
        except LostError as lost:  # the feeder, or the catalog that owns the manifest
            self._recover(lost)

    def start(self, epoch: int, position: int, chunk: Chunk | None = None) -> None:
        """Turn to a position, and the chunk that it lies in; tickets of before give nothing any more."""
        self._at = (epoch, position, chunk)
        self._tickets.clear()
        try:
            self._turn()
        except LostError as lost:
            self._recover(lost)

    def _turn(self) -> None:
        self._generation += 1
        self._submitter.turn()
        self._receiver.clear()
        self._actors.start(self._generation, *self._at)

    def interrupt(self) -> None:
        """Let a fetch that waits for the feeder end soon, for its place is being left: `start` says where to."""
        self._generation += 1
        self._actors.give_way(self._generation)

    def request(self, count: int) -> Ticket:
        """Ask for the next batches. Their jobs go to the augmentation actors as soon as the feeder names them."""
        ticket = Ticket(count, self._take(count))
        self._tickets.append(ticket)
        return ticket

    def _take(self, count: int) -> Future[list[Sent]]:
        return self._submitter.submit(self._actors.take(self._generation, count))

    def fetch(self, ticket: Ticket) -> Iterator[tuple[BatchInfo, dict[str, Any]]]:
        """Wait for a ticket's batches, one after the other; fewer than asked for at the end.

        Raises:
            IngestError: the error of the stage that failed, with file and row where a sample is bad.
        """
        while True:
            try:
                yield from self._fetch(ticket)
            except LostError as lost:
                self._recover(lost)
            except IngestError as error:
                self._locate(error)
                raise
            else:
                break
        with contextlib.suppress(ValueError):  # a start in between has forgotten it
            self._tickets.remove(ticket)

    def _fetch(self, ticket: Ticket) -> Iterator[tuple[BatchInfo, dict[str, Any]]]:
        with self.watch.waits("feed"):
            answer = ticket.answer.result()
        for number, (taken, call, place) in enumerate(answer):
            if taken is None:
                return
            if isinstance(taken, IngestError):
                # A read that failed for another reason than the data's may have lost its node: it is read again.
                if isinstance(taken, StageError) and taken.stage == "read" and self._recoveries < MOST_RECOVERIES:
                    raise LostError(str(taken)) from taken
                raise taken
            info, job = BatchInfo.unpack(taken.info), Job.unpack(taken.job)
            if call is None:
                behind: Iterable[Sent] = answer[number + 1 :]
                if self._own is not None:
                    behind = itertools.chain(behind, self._answered())
                arrays = self._receiver.joined(taken, job, behind)
            else:
                arrays = self._receiver.augmented(call, place, job)
            self._at = (info.epoch + 1, 0, None) if info.ends_epoch else (info.epoch, info.after, info.chunk)
            ticket.left -= 1
            self._recoveries = 0
            yield info, arrays

    def _answered(self) -> Iterator[Sent]:
        """What the feeder has said to the tickets behind the one that is being fetched."""
        for ticket in list(self._tickets)[1:]:
            if not ticket.answer.done() or ticket.answer.exception() is not None:
                return
            yield from ticket.answer.result()

    def _locate(self, error: IngestError) -> None:
        """Give a bad sample its file and row."""
        error.rank = self._rank
        if error.sample_id is not None:
            error.path, error.row = self._manifest.locate(error.sample_id)

    def _recover(self, lost: LostError) -> None:
        """Replace the actors that are gone, go on after the last batch received, and ask again for what was asked.

        Raises:
            StageError: it has been tried several times in vain, or the feed was closed.
        """
        while True:
            self._recoveries += 1
            if self._submitter.closed or self._recoveries > MOST_RECOVERIES:
                vain = "" if self._submitter.closed else f", and {MOST_RECOVERIES} restarts failed"
                text = f"a process or node died{vain}"
                raise StageError(text, stage="feed", rank=self._rank, cause=str(lost)) from lost
            log.warning("rank %d: %s; going on at epoch %d, row %d", self._rank, _first_line(lost), *self._at[:2])
            try:
                self._replace_dead()
                self._turn()
            except LostError as again:
                lost = again
                continue
            for ticket in self._tickets:
                ticket.answer = self._take(ticket.left)
            return

    def _replace_dead(self) -> None:
        if self._actors.replace_dead():
            self.on_feeder(self._actors.feeder)
        # The manifest's first owner may be what died: this process has its own copy.
        self._actors.configure(ray.put(self._manifest), self._config)

    def counters(self) -> dict[str, Any]:
        """Totals of the feeder and of all that augments; the last known ones where an actor is being replaced."""
        totals = self._actors.counters()
        if self._own is not None:
            totals |= {f"augment_{name}": value for name, value in self._own.counters().items()}
            totals["augment_slots"] = self._own.calls
        return totals

    def notes(self) -> dict[str, int]:
        """How many images had what fault that could be passed over."""
        return self._actors.notes() if self._own is None else self._own.notes()

    def peak_rss_bytes(self) -> int:
        """Peak resident memory of the rank's own actors, added up; shared memory that they touched is counted in."""
        return self._actors.peak_rss_bytes()

    def close(self) -> None:
        """End the actors; the feeder first, since it would send more."""
        self._submitter.close()
        self._actors.end_feeder()
        self._submitter.join(CLOSE_S)  # what it waited for has failed by now
        self._actors.end_augmenters(self._submitter.under_way)
        if self._own is not None:
            self._own.close()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "something died")
