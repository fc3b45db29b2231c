"""The arrays of a rank's batches: fetched from the calls that augment them, or joined out of the feeder's tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import ray

from ingest.engine.asking import ask
from ingest.engine.jobs import Job, Taken
from ingest.engine.joining import Joiner
from ingest.engine.replace import identified
from ingest.engine.submitting import Sent, Submitter
from ingest.engine.watching import Watch
from ingest.errors import IngestError
from ingest.loader.arranged import MOST_BATCHES


class Receiver:
    """Of one rank; batches are received in order.

    Args:
        submitter: sent them.
        watch: is told what is waited for.
        joiner: joins those that no actor augments.
        rank: for errors.
    """

    def __init__(self, submitter: Submitter, watch: Watch, joiner: Joiner, rank: int) -> None:
        self._submitter, self._watch, self._joiner, self._rank = submitter, watch, joiner, rank
        self._results: list[dict[str, Any] | IngestError] = []  # of the last call

    def clear(self) -> None:
        """Forget the tables that batches were still to be made of."""
        self._joiner.clear()

    def augmented(self, call: ray.ObjectRef, place: int, job: Job) -> dict[str, Any]:
        """The arrays of a batch, with their sample ids, out of a call's result.

        Raises:
            IngestError: of the batch.
            LostError: the result is gone.
        """
        if place == 0:  # the batches of a call are one object, and are fetched in order
            self._results = []  # what was fetched before, before there is more
            with self._watch.waits("augment"):
                self._results = ask(call, self._rank)
            self._submitter.forget(call)
        arrays = self._results[place]
        if isinstance(arrays, IngestError):
            raise arrays
        return identified(arrays, job.sample_ids)

    def joined(self, taken: Taken, job: Job, behind: Iterable[Sent]) -> dict[str, Any]:
        """The rows of a batch that no actor augments, out of the tables that the feeder has sent so far.

        Args:
            taken: what the feeder says of the batch.
            job: its.
            behind: the batches that follow, as far as the feeder has named them.

        Raises:
            IngestError: see `Joiner.batch`.
            LostError: a table is gone.
        """
        if (made := self._joiner.made()) is not None:
            return made
        for key, refs in taken.tables:
            with self._watch.waits("transfer"):
                blocks = ask(refs, self._rank)
            self._joiner.hold(key, blocks)
        return self._joiner.batch(job, _next_jobs(behind))


def _next_jobs(behind: Iterable[Sent]) -> Iterator[Job]:
    """Of the next batches, as long as they need no other tables."""
    for sent in itertools.islice(behind, MOST_BATCHES - 1):
        if not isinstance(sent.taken, Taken) or sent.taken.tables:
            return
        yield Job.unpack(sent.taken.job)
