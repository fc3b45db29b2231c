"""Augmentation in this process, a few batches ahead: while one is handed over, the next ones are being made."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from ingest.engine.augmentation import Augmentation
from ingest.engine.jobs import Job
from ingest.errors import StageError


class Ahead:
    """Makes batches in threads, in the order in which they are asked for. To be called by one thread.

    Args:
        own: what makes them; closed with this.
        calls: threads. As many batches more may be in line, so that a thread that ends one finds the next.

    Attributes:
        calls: threads.
    """

    def __init__(self, own: Augmentation, calls: int) -> None:
        self._own, self.calls = own, calls
        self._pool = ThreadPoolExecutor(calls, thread_name_prefix="ingest-own")
        self._begun: deque[Future[dict[str, Any]]] = deque()

    def __call__(self, jobs: Sequence[Job], tables: Mapping[int, pa.Table]) -> dict[str, Any]:
        """The arrays of the first job; the others are begun.

        Args:
            jobs: the next ones, in order; all but the first only where their tables are here. The next call begins
                with the second, unless `clear` comes before it.
            tables: by key.

        Raises:
            SampleError: a sample of the first job is bad; `sample_id` says which.
            StageError: it was closed.
        """
        for job in jobs[len(self._begun) : 1 + self.calls]:
            held = {gather.key: tables[gather.key] for gather in job.gathers}  # also when others let go of them
            try:
                self._begun.append(self._pool.submit(self._own, job, held))
            except RuntimeError:  # the pool's, which takes no more
                raise _closed() from None
        try:
            return self._begun.popleft().result()
        except CancelledError:
            raise _closed() from None

    def clear(self) -> None:
        """Forget what was begun."""
        for begun in self._begun:
            begun.cancel()
        self._begun.clear()

    def counters(self) -> dict[str, float]:
        """As `Augmentation.counters`."""
        return self._own.counters()

    def notes(self) -> dict[str, int]:
        """As `Augmentation.notes`."""
        return self._own.notes()

    def close(self) -> None:
        """Waits for what runs, and gives threads, pipelines and memory back."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._own.close()


def _closed() -> StageError:
    return StageError("the feed is closed", stage="augment")
