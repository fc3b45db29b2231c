"""What a loader counts of its batches, and the report that comes of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingest.loader.batch import Batch
from ingest.loader.prefetch import Timings
from ingest.metrics.verdict import Measured, verdict
from ingest.storage.traffic import NAMES

_FEED = ("read_wait_s", "fetched_bytes", "away_bytes", "reads", "held_bytes", "budget_bytes")  # of a feed's counters


class Tally:
    """Counts the batches handed to the trainer.

    Args:
        began: when the loader was made, by `time.perf_counter`.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self.timings = Timings()
        self._samples = self._steps = self._padded = self._replaced = 0
        self._first_at: float | None = None
        self._wait_before_first = 0.0
        self._epoch_gaps_s: list[float] = []

    @property
    def begun(self) -> bool:
        """Whether there was a first batch."""
        return self._first_at is not None

    def add(self, batch: Batch, *, begins_epoch: bool) -> None:
        """The trainer was given a batch."""
        now = time.perf_counter()
        if self._first_at is None:
            self._first_at, self._wait_before_first = now, self.timings.wait_s
            self.timings.first_batch_s = now - self._began
        elif begins_epoch:
            self._epoch_gaps_s.append(self.timings.waits_s[-1])
        self._samples += batch.valid_rows
        self._replaced += len(batch.replaced)
        self._padded += len(batch["sample_id"]) - batch.valid_rows - len(batch.replaced)
        self._steps += 1

    def report(self, counters: Mapping[str, Any]) -> dict[str, Any]:
        """Counts, waiting and the verdict since the first batch; durations in seconds.

        Args:
            counters: of the feed.
        """
        elapsed = 0.0 if self._first_at is None else time.perf_counter() - self._first_at
        measured = Measured(
            elapsed_s=elapsed,
            wait_s=self.timings.wait_s - self._wait_before_first,
            read_wait_s=counters["read_wait_s"],
            augment_busy_s=counters.get("augment_busy_s", 0.0),
            augment_slots=int(counters["augment_slots"]),
        )
        waits = np.array(self.timings.waits_s or [0.0])
        return {
            "samples": self._samples,
            "steps": self._steps,
            "invalid": self._padded + self._replaced,
            "padded": self._padded,
            "seconds": elapsed,
            "samples_per_s": self._samples / elapsed if elapsed else 0.0,
            "first_batch_s": self.timings.first_batch_s,
            "epoch_gap_s": list(self._epoch_gaps_s),
            "wait_s": measured.wait_s,
            "wait_p90_s": float(np.quantile(waits, 0.9)),
            "wait_p99_s": float(np.quantile(waits, 0.99)),
            "waiting_fraction": measured.waiting_fraction,
            **{name: counters[name] for name in _FEED},
            "storage": {name: int(counters[f"storage_{name}"]) for name in NAMES},
            "storage_epochs": {
                str(epoch): {name: asked.get(name, 0) for name in NAMES}
                for epoch, asked in sorted(counters.get("storage_epochs", {}).items())
            },
            "augment_busy_s": measured.augment_busy_s,
            "verdict": verdict(measured),
        }
