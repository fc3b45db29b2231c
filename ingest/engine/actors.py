"""The augmentation actor: blocks in, one batch out; created once and kept over epochs."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import ray
from numpy.typing import NDArray

from ingest.augment.augmenter import Augmenter
from ingest.engine.jobs import Job
from ingest.errors import SampleError
from ingest.metrics.process import peak_rss_bytes
from ingest.spec import Augment

CALLS_AT_A_TIME = 2  # one decodes while the other's result is written to the object store


class AugmentActor:
    """Runs the spec's operations over the rows of a job.

    Args:
        augment: the spec's section.
        seed: of the order; keys the random numbers with the pass and the sample id.
        batch_rows: the most rows a job has.
        threads: decoding threads.
    """

    def __init__(self, augment: Augment, seed: int, batch_rows: int, threads: int) -> None:
        gpus = ray.get_gpu_ids()
        self._augmenter = Augmenter(
            augment, seed=seed, batch_rows=batch_rows, threads=threads, device_id=0 if gpus else None
        )
        self._busy_s, self._batches, self._rows = 0.0, 0, 0

    def augment(self, job: Job, *blocks: pa.Table) -> dict[str, NDArray[Any]]:
        """The arrays of a batch, one row for each sample id of the job.

        Raises:
            SampleError: a sample is bad; `sample_id` says which.
        """
        began = time.perf_counter()
        try:
            return self._augmenter(job.pieces(blocks), job.sample_ids, job.epoch)
        except SampleError as error:
            index = getattr(error, "index", None)
            if index is not None:
                error.sample_id = int(job.sample_ids[index])  # type: ignore[attr-defined]
            raise
        finally:
            self._busy_s += time.perf_counter() - began
            self._batches += 1
            self._rows += len(job.sample_ids)

    def counters(self) -> dict[str, float]:
        """Totals: `busy_s` over all calls (two overlap), batches, rows."""
        return {"busy_s": self._busy_s, "batches": self._batches, "rows": self._rows}

    def peak_rss_bytes(self) -> int:
        return peak_rss_bytes()
