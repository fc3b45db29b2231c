"""Jobs through the augmenter, wherever it runs: in an actor, or in the trainer's own process."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ingest.engine.jobs import Job
from ingest.engine.replace import replaced
from ingest.errors import SampleError
from ingest.spec import Augment


class Augmentation:
    """Makes the batch of a job out of the tables that it names, and counts. For any number of threads at a time.

    Args:
        spec: the spec's section.
        replace: whether bad samples are replaced; else they are errors.
        stored: whether the ops before the first random one were done where the rows were read.
        options: of `Augmenter`.
    """

    def __init__(self, spec: Augment, *, replace: bool, stored: bool = False, **options: Any) -> None:
        from ingest.augment.augmenter import Augmenter  # loads DALI, which a trainer does not do unasked
        from ingest.augment.leading import stored_augmenter

        self._augmenter = (stored_augmenter if stored else Augmenter)(spec, **options)
        self._replace, self._column = replace, spec.column
        self._busy_s, self._batches, self._rows = 0.0, 0, 0
        self._counting = threading.Lock()

    def __call__(self, job: Job, tables: Mapping[int, pa.Table]) -> dict[str, Any]:
        """The arrays of a batch; bad samples that are replaced are listed beside them, under `replace.BAD`.

        Raises:
            SampleError: a sample is bad; `sample_id` says which.
        """
        began = time.perf_counter()
        try:
            if self._replace:
                with self._augmenter.landing.order():  # rows are copied over others
                    return replaced(self._augmenter.attempt, job, job.pieces(tables), self._column)
            return self._augmenter(job.pieces(tables), job.sample_ids, job.pass_, groups=job.lanes)
        except SampleError as error:
            index = getattr(error, "index", None)
            if index is not None:
                error.sample_id = int(job.sample_ids[index])
            raise
        finally:
            with self._counting:
                self._busy_s += time.perf_counter() - began
                self._batches += 1
                self._rows += len(job.sample_ids)

    def counters(self) -> dict[str, float]:
        """Totals: `busy_s` over all calls (some overlap), batches, rows."""
        return {"busy_s": self._busy_s, "batches": self._batches, "rows": self._rows}

    def notes(self) -> dict[str, int]:
        """How many images had what fault that could be passed over, or were decoded in another way than the rest."""
        return self._augmenter.noted()

    def close(self) -> None:
        self._augmenter.close()
