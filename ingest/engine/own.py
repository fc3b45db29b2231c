"""Augmentation in the trainer's own process (`augment.placement: trainer`), on its cores or its GPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import ray

from ingest.engine.jobs import Job
from ingest.engine.replace import replaced
from ingest.errors import SampleError
from ingest.spec import Spec


class OwnAugmenter:
    """The same augmenter as in an actor, called by the loader's thread; results never leave the process.

    Args:
        spec: what to do.
        batch_rows: the most rows a job has.
        threads: decoding threads.
        gpu: whether to use the trainer's GPU.
    """

    def __init__(self, spec: Spec, *, batch_rows: int, threads: int, gpu: bool) -> None:
        from ingest.augment.augmenter import Augmenter  # loads DALI, which a trainer does not do unasked

        self._augmenter = Augmenter(
            spec.augment,
            seed=spec.order.seed,
            batch_rows=batch_rows,
            threads=threads,
            device_id=_current_device() if gpu else None,
        )
        self._replace, self._column = spec.errors.on_bad_sample == "replace", spec.augment.column
        self.busy_s, self.batches, self.rows = 0.0, 0, 0

    def __call__(self, job: Job, tables: Mapping[int, pa.Table]) -> dict[str, Any]:
        """The arrays of a batch; bad samples that are replaced are listed beside them, under `replace.BAD`.

        Raises:
            SampleError: a sample is bad; `sample_id` says which.
        """
        began = time.perf_counter()
        try:
            if self._replace:
                return replaced(self._augmenter.attempt, job, job.pieces(tables), self._column)
            return self._augmenter(job.pieces(tables), job.sample_ids, job.pass_, groups=job.lanes)
        except SampleError as error:
            index = getattr(error, "index", None)
            if index is not None:
                error.sample_id = int(job.sample_ids[index])
            raise
        finally:
            self.busy_s += time.perf_counter() - began
            self.batches += 1
            self.rows += len(job.sample_ids)

    def counters(self) -> dict[str, float]:
        """Totals, as an augmentation actor's."""
        return {"augment_busy_s": self.busy_s, "augment_batches": self.batches, "augment_rows": self.rows}

    def notes(self) -> dict[str, int]:
        """As an augmentation actor's."""
        return self._augmenter.noted()

    def close(self) -> None:
        self._augmenter.close()


def has_gpu() -> bool:
    """Whether this process has a GPU: Ray gave it one, or the framework that it has loaded sees one."""
    torch = sys.modules.get("torch")
    return bool(ray.get_gpu_ids()) or (torch is not None and bool(torch.cuda.is_available()))


def _current_device() -> int:
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_available() else 0
