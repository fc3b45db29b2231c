"""Batches that no actor augments: joined, in the trainer's own process, out of the tables that the feeder sends."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from ingest.augment.collate import collate
from ingest.engine.ahead import Ahead
from ingest.engine.jobs import Job
from ingest.engine.replace import collate_healthy, identified, is_marked, without_marks
from ingest.errors import IngestError
from ingest.loader.arranged import Arranged, Part, join_run, run_length
from ingest.read.arranged import SAMPLE_ID


class Joiner:
    """Keeps the tables that batches are still to be made of.

    Args:
        own: augments in this process; None: there is nothing to augment.
        arranged: whether the readers put rows in the order of the epoch, their sample ids beside them.
    """

    def __init__(self, own: Ahead | None, *, arranged: bool) -> None:
        self._own, self._arranged = own, arranged
        self._tables: dict[int, pa.Table] = {}
        self._opened: dict[int, Arranged] = {}
        self._made: deque[dict[str, Any]] = deque()  # batches that were made with the last one

    def clear(self) -> None:
        """Forget all tables, and batches made in advance."""
        self._tables.clear()
        self._opened.clear()
        self._made.clear()
        if self._own is not None:
            self._own.clear()

    def made(self) -> dict[str, Any] | None:
        """The arrays of the next batch, if it was made together with one before it."""
        return self._made.popleft() if self._made else None

    def hold(self, key: int, blocks: Sequence[pa.Table]) -> None:
        """Take a table, before the first job that needs it."""
        table = without_marks(blocks[0] if len(blocks) == 1 else pa.concat_tables(blocks))
        self._tables[key] = table
        if self._arranged and not is_marked(table):
            self._opened[key] = Arranged(table)

    def batch(self, job: Job, behind: Iterable[Job]) -> dict[str, Any]:
        """The arrays of a batch.

        Args:
            job: of the batch.
            behind: of the next batches, which need no other tables. They are augmented beside this one; of those that
                are arranged, the ones that go on where it ends are made with it, since most of a batch's cost is the
                same however many rows it has.

        Raises:
            IngestError: a sample of the batch is bad, or none of its rows is healthy.
        """
        jobs = [job, *behind] if self._arranged or self._own is not None else [job]
        try:
            return self._collated(jobs)
        finally:
            for each in jobs[: 1 + len(self._made)]:
                for key in each.drops:
                    self._tables.pop(key, None)
                    self._opened.pop(key, None)

    def _collated(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """The first job's arrays; those that were made with them are kept."""
        job = jobs[0]
        found = list(itertools.takewhile(bool, map(self._parts, jobs)))
        if found:
            run = found[: run_length(found)]
            try:
                self._made.extend(join_run(run))
            except IngestError:
                if len(run) == 1:
                    raise
                self._made.extend(join_run(run[:1]))  # the batch that it spoils says so when it comes
            return self._made.popleft()
        if self._own is not None:
            return identified(self._own(jobs, self._tables), job.sample_ids)
        pieces, ids = job.pieces(self._tables), job.sample_ids
        if not any(is_marked(table) for table, _ in pieces):
            arrays = collate(pieces)
            return arrays if self._arranged else {**arrays, SAMPLE_ID: ids}
        if self._arranged:
            ids = collate([(table.select([SAMPLE_ID]), rows) for table, rows in pieces])[SAMPLE_ID]
        return identified(collate_healthy(pieces, ids), ids)

    def _parts(self, job: Job) -> list[Part]:
        """Where a job's rows lie; nothing where a table is not opened: it is not arranged, or holds marked rows."""
        if not all(gather.key in self._opened for gather in job.gathers):
            return []
        return [(self._opened[gather.key], gather.rows) for gather in job.gathers]
