"""Sends the jobs that a rank's feeder names to its augmentation actors, as soon as it does, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple

import ray

from ingest.engine.asking import ask
from ingest.engine.jobs import Taken
from ingest.engine.rank_actors import RankActors
from ingest.errors import IngestError, StageError


class Sent(NamedTuple):
    """A batch on its way.

    Attributes:
        taken: what the feeder says of it; None where there is none.
        call: that augments it; None where there is nothing to augment.
        place: its place in what the call returns.
    """

    taken: Taken | IngestError | None
    call: ray.ObjectRef | None
    place: int


class Submitter:
    """Keeps the calls that are under way: this process owns the results, so that they outlive the feeder.

    Args:
        actors: named by the feeder in turn.
        call_batches: the most batches of a call.
        rank: for errors.

    Attributes:
        cpu_s: processor time of the thread.
    """

    def __init__(self, actors: RankActors, call_batches: int, rank: int) -> None:
        self._actors, self._call_batches, self._rank = actors, call_batches, rank
        self._asked: SimpleQueue[tuple[ray.ObjectRef, Future[list[Sent]]] | None] = SimpleQueue()
        self._calls: set[ray.ObjectRef] = set()  # under way, or not fetched yet
        self._stale: set[ray.ObjectRef] = set()  # of before the last start
        self._lock = threading.Lock()
        self.cpu_s = 0.0
        self._closed = False
        # A daemon, since a pool's threads are waited for when the interpreter ends, however long the feed takes.
        self._thread = threading.Thread(target=self._run, name="ingest-submit", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closed

    def submit(self, taken: ray.ObjectRef) -> Future[list[Sent]]:
        """What becomes of the batches that the feeder will name."""
        answer: Future[list[Sent]] = Future()
        with self._lock:  # nothing may be asked behind the end of the thread, which would never answer
            if self._closed:
                answer.set_exception(StageError("the feed is closed", stage="feed", rank=self._rank))
            else:
                self._asked.put((taken, answer))
        return answer

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            taken, answer = asked
            try:
                answer.set_result(self._send(ask(taken, self._rank)))
            except BaseException as error:  # noqa: BLE001 - raised where the ticket is fetched
                answer.set_exception(error)
            self.cpu_s = time.thread_time()

    def _send(self, taken: Sequence[Taken | IngestError | None]) -> list[Sent]:
        """A few jobs in a call, all to the same actor."""
        sent: list[Sent] = []
        for at in range(0, len(taken), self._call_batches):
            some = taken[at : at + self._call_batches]
            jobs = [each for each in some if isinstance(each, Taken) and each.turn >= 0]
            call = self._actors.augmenters[jobs[0].turn].augment.remote(*(each.job for each in jobs)) if jobs else None
            if call is not None:
                with self._lock:
                    self._calls.add(call)
            sent += [Sent(each, call, place) for place, each in enumerate(some)]
        return sent

    def turn(self) -> None:
        """The feeder starts anew: nobody fetches what is under way."""
        with self._lock:
            self._stale |= self._calls
            self._calls.clear()

    def forget(self, call: ray.ObjectRef) -> None:
        """A call whose result is here, and those of an earlier start that have ended, need not be waited for."""
        with self._lock:
            self._calls.discard(call)
            if self._stale:
                ended, _ = ray.wait(list(self._stale), num_returns=len(self._stale), timeout=0, fetch_local=False)
                self._stale.difference_update(ended)

    @property
    def under_way(self) -> list[ray.ObjectRef]:
        """Calls that may not have ended."""
        return [*self._calls, *self._stale]

    def close(self) -> None:
        """Take nothing more."""
        with self._lock:
            self._closed = True
            self._asked.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, once it is closed and what it waits for has come or failed."""
        self._thread.join(timeout_s)
