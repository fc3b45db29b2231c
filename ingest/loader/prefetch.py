"""A thread that keeps ready batches ahead of the trainer, in order. Knows no Ray: a `Feed` says how to ask and wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ingest.errors import IngestError, StageError

WATCH_S = 1.0


class Feed(Protocol):
    """Where batches come from."""

    def request(self, count: int) -> Any:
        """Ask for the next batches, without waiting; returns a ticket."""

    def fetch(self, ticket: Any) -> Iterator[Any]:
        """Wait for a ticket's batches, one after the other; fewer than asked for when there are no more."""


@dataclass
class Timings:
    """Durations in seconds since the loader began.

    Attributes:
        wait_s: the trainer waited for a batch.
        first_batch_s: until the first batch was ready; None before.
        cpu_s: processor time of the prefetching thread.
        waits_s: each wait of the trainer, the latest 10,000.
    """

    wait_s: float = 0.0
    first_batch_s: float | None = None
    cpu_s: float = 0.0
    waits_s: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))


class Prefetcher:
    """Keeps up to `depth` batches asked for or ready.

    Args:
        feed: where batches come from.
        depth: batches asked for and ready, together.
        transform: applied to each batch in the thread.
        timings: updated in place.
    """

    def __init__(self, feed: Feed, depth: int, transform: Callable[[Any], Any], timings: Timings) -> None:
        self._feed, self._depth = feed, depth
        self._transform, self._timings = transform, timings
        self._ready: deque[Any] = deque()
        self._error: BaseException | None = None
        self._ended = self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ingest-prefetch", daemon=True)
        self._thread.start()

    def get(self, watch: Callable[[float], None] = lambda _: None) -> Any:
        """The next batch; None at the end.

        Args:
            watch: called about once a second while there is none, with the seconds waited; may raise.

        Raises:
            IngestError: a stage failed; batches before the failure are handed out first.
        """
        began = time.perf_counter()
        while not self._wait(WATCH_S):
            watch(time.perf_counter() - began)
        with self._changed:
            waited = time.perf_counter() - began
            self._timings.wait_s += waited
            self._timings.waits_s.append(waited)
            if self._ready:
                batch = self._ready.popleft()
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
            return None

    def _wait(self, timeout_s: float) -> bool:
        """Whether there is a batch, or will be none."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._ready) or self._ended or self._stopped, timeout_s)

    def occupancy(self) -> int:
        """Batches ready now."""
        return len(self._ready)

    def stop(self, unblock: Callable[[], None] = lambda: None) -> None:
        """End the thread. `unblock` makes a fetch that waits return, whatever it waits for."""
        with self._changed:
            self._stopped = True
            self._ready.clear()
            self._changed.notify_all()
        unblock()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._loop()
        except IngestError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - carried to the trainer, with its cause
            error = StageError(
                "the loader's thread failed", stage="loader", cause=f"{type(failure).__name__}: {failure}"
            )
            error.__cause__ = failure
        with self._changed:
            self._error, self._ended = error, True
            self._changed.notify_all()

    def _loop(self) -> None:
        """Ask in groups, since a call costs the same for one batch as for several.

        The first comes alone and soon, and each group may be twice as large as the one before: a group is there with
        its last batch, and of small data a large one spans epochs.
        """
        tickets: deque[tuple[Any, int]] = deque()
        group = max(1, self._depth // 4)
        asked, most = 0, 1  # batches asked for and not yet fetched; of the next group
        while True:
            with self._changed:
                while len(self._ready) >= self._depth and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                room = self._depth - len(self._ready) - asked
            while room >= group or not tickets:
                count = min(most, max(1, room))
                tickets.append((self._feed.request(count), count))
                asked, room, most = asked + count, room - count, min(2 * most, group)
            ticket, count = tickets.popleft()
            for batch in self._feed.fetch(ticket):
                if not self._put(self._transform(batch)):
                    return
                asked, count = asked - 1, count - 1
            self._timings.cpu_s = time.thread_time()
            if count:
                return

    def _put(self, batch: Any) -> bool:
        """Whether anybody still wants it."""
        with self._changed:
            if not self._stopped:
                self._ready.append(batch)
            self._changed.notify_all()
            return not self._stopped
