"""`run`: real ranks consume a spec, with live progress, and the report of what they saw."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from ingest.cli_common import console
from ingest.cli_trainers import Poll, Trainers
from ingest.engine import gcs
from ingest.errors import IngestError
from ingest.plan.schedule import Share
from ingest.session import Loader
from ingest.spec import Spec

VERDICT_EVERY_S = 5.0
RATE_OVER_S = 4.0
LINE_EVERY_S = 10.0  # where there is no terminal to draw on


class Consumer:
    """One rank that takes batches and drops them. Runs as a Ray actor; `progress` may be asked at any time.

    Args:
        rank, spec, world_size, epochs, cache_dir: the loader's.
    """

    def __init__(self, rank: int, spec: Spec, world_size: int, epochs: int | None, cache_dir: Path | None) -> None:
        self._rank, self._spec, self._world_size = rank, spec, world_size
        self._epochs, self._cache_dir = epochs, cache_dir
        self._loader: Loader | None = None
        self._samples = self._steps = self._invalid = self._first_rows = 0
        self._wait_s = 0.0
        self._first_at = self._last_at = 0.0  # instants, seconds since 1970

    def consume(self, step_s: float, seconds: float | None) -> dict[str, Any]:
        """Take all epochs, sleeping `step_s` a step; or stop `seconds` after the first batch.

        Returns:
            Counts, instants and the loader's own report.
        """
        with Loader(self._spec, self._rank, self._world_size, epochs=self._epochs, cache_dir=self._cache_dir) as loader:
            self._loader = loader
            while self._epochs is None or loader.epoch < self._epochs:
                if not self._consume_epoch(loader, step_s, seconds):
                    break
            state = loader.state_dict()
            batch = loader.spec.batch
            share = Share(self._rank, self._world_size, batch.per_rank(self._world_size), batch.last)
            return {
                "rank": self._rank,
                "steps": self._steps,
                "samples": self._samples,
                "invalid": self._invalid,
                "first_rows": self._first_rows,
                "first_at": self._first_at,
                "last_at": self._last_at,
                "rows": state["rows"],
                "digest": state["digest"],
                "dropped": share.dropped(state["rows"]) * loader.epoch,
                "report": loader.report(),
            }

    def _consume_epoch(self, loader: Loader, step_s: float, seconds: float | None) -> bool:
        """One epoch; False when the time is up."""
        asked = time.perf_counter()
        for batch in loader:
            now = time.perf_counter()
            if self._steps == 0:
                self._first_at, self._first_rows = time.time(), batch.valid_rows
            else:
                self._wait_s += now - asked
            self._last_at = time.time()
            self._steps += 1
            self._samples += batch.valid_rows
            self._invalid += len(batch["sample_id"]) - batch.valid_rows - len(batch.replaced)
            if seconds is not None and self._last_at - self._first_at >= seconds:
                return False
            if step_s:
                time.sleep(step_s)
            asked = time.perf_counter()
        return True

    def progress(self) -> dict[str, Any]:
        """Counts so far and what was waited, from this process alone."""
        loader = self._loader
        return {
            "epoch": loader.epoch if loader else 0,
            "step": loader.step if loader else 0,
            "steps_per_epoch": len(loader) if loader else 0,
            "samples": self._samples,
            "wait_s": self._wait_s,
            "elapsed_s": time.time() - self._first_at if self._first_at else 0.0,
        }

    def verdict(self) -> str:
        """The stage that limits this rank; asks the rank's own actors."""
        loader = self._loader
        if loader is None or not self._first_at:
            return "waiting for the first batch"
        try:
            return str(loader.report()["verdict"])
        except IngestError:
            return "ending"  # its actors are gone; `consume` returns, or tells why


class StoreWatch:
    """The object store's use over the cluster, beyond what was used at the start."""

    def __init__(self) -> None:
        before = gcs.object_store_stats()
        self._used, self._spilled = before["used"], before["spilled"]
        self.peak_bytes = self.spilled_bytes = 0

    def __call__(self) -> None:
        now = gcs.object_store_stats()
        self.peak_bytes = max(self.peak_bytes, now["used"] - self._used)
        self.spilled_bytes = now["spilled"] - self._spilled


class LiveLine:
    """One line that says how fast it goes and what is waiting; on a terminal in place, elsewhere now and then."""

    def __init__(self, epochs: int | None) -> None:
        self._epochs = epochs
        self._seen: deque[tuple[float, int]] = deque()
        self._printed_at = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def start(self) -> None:
        if self._live:
            self._live.start()

    def stop(self) -> None:
        if self._live:
            self._live.stop()

    def show(self, progress: list[dict[str, Any]], verdicts: list[str]) -> None:
        """Take the latest answers of the ranks; none yet is a state too."""
        text = self.line(progress, verdicts, time.monotonic())
        if self._live:
            self._live.update(Text(text), refresh=True)
        elif time.monotonic() - self._printed_at >= LINE_EVERY_S:
            self._printed_at = time.monotonic()
            console.print(Text(text), soft_wrap=True)

    def line(self, progress: list[dict[str, Any]], verdicts: list[str], now: float) -> str:
        """The line itself; `now` is an instant in seconds; the rate is over the last few."""
        if not progress or not any(rank["samples"] for rank in progress):
            return "starting: no batch yet"
        samples = sum(rank["samples"] for rank in progress)
        while len(self._seen) > 1 and now - self._seen[0][0] > RATE_OVER_S:
            self._seen.popleft()
        self._seen.append((now, samples))
        then, had = self._seen[0]
        rate = (samples - had) / (now - then) if now > then else 0.0
        slowest = min(progress, key=lambda rank: (rank["epoch"], rank["step"]))
        waiting = sum(rank["wait_s"] for rank in progress) / max(1e-9, sum(rank["elapsed_s"] for rank in progress))
        epochs = f"/{self._epochs}" if self._epochs else ""
        return (
            f"epoch {slowest['epoch'] + 1}{epochs}  step {slowest['step']}/{slowest['steps_per_epoch']}  "
            f"{rate:,.0f} samples/s  waiting {waiting:.0%}  {verdicts[0] if verdicts else ''}"
        )


def run(
    spec: Spec,
    world_size: int,
    *,
    epochs: int | None,
    cache_dir: Path | None,
    step_s: float = 0.0,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Consume with `world_size` ranks.

    Args:
        spec: what to consume.
        world_size: ranks.
        epochs: how many; None with `seconds`, which ends the run that long after the first batch.
        cache_dir: of manifests.
        step_s: a step of the trainer, in seconds.
        seconds: see `epochs`.

    Returns:
        See `report`.

    Raises:
        IngestError: of the first rank that fails; the others are ended.
    """
    began = time.perf_counter()
    if spec.batch.target is None:
        spec.batch.per_rank(world_size)
    store, line = StoreWatch(), LiveLine(epochs)
    with Trainers(Consumer, world_size, spec, world_size, epochs, cache_dir) as trainers:
        progress = Poll(trainers.actors, "progress", 0.4)
        verdicts = Poll(trainers.actors[:1], "verdict", VERDICT_EVERY_S)

        def tick() -> None:
            store()
            progress()
            verdicts()
            line.show(progress.latest, verdicts.latest)

        line.start()
        try:
            ranks = trainers.call("consume", step_s, seconds, tick=tick)
        finally:
            line.stop()
        store()
    return report(ranks, epochs, store.peak_bytes, store.spilled_bytes, time.perf_counter() - began)


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Of each name all ranks' counts, zeros among them."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def report(
    ranks: list[dict[str, Any]], epochs: int | None, store_peak_bytes: int, spilled_bytes: int, wall_s: float
) -> dict[str, Any]:
    """The ranks' results as one.

    `seconds` is from the first batch of the earliest rank to the last batch of the last, and `samples` all valid rows
    in that time. `dropped` and `padded` are over all epochs; `first_batch_s`, `epoch_gap_s` and `peak_rss_bytes` are
    the largest over the ranks; `loader_cpu_s` and `read_amplification`'s bytes are added up; the verdict is that of the
    rank that waits most.
    """
    reports = [rank["report"] for rank in ranks]
    seconds = max(rank["last_at"] for rank in ranks) - min(rank["first_at"] for rank in ranks)
    samples = sum(rank["samples"] for rank in ranks)
    after_first = samples - sum(rank["first_rows"] for rank in ranks)
    slowest = max(reports, key=lambda report: report["waiting_fraction"])
    elapsed = sum(report["seconds"] for report in reports)
    return {
        "world_size": len(ranks),
        "epochs": epochs,
        "rows": ranks[0]["rows"],
        "samples": samples,
        "seconds": seconds,
        "samples_per_s": samples / seconds if seconds > 0 else 0.0,
        "samples_per_s_after_first": after_first / seconds if seconds > 0 else 0.0,
        "first_batch_s": max(report["first_batch_s"] for report in reports),
        "epoch_gap_s": [max(gaps) for gaps in zip(*(report["epoch_gap_s"] for report in reports), strict=False)],
        "steps_per_rank": [rank["steps"] for rank in ranks],
        "dropped": ranks[0]["dropped"],
        "padded": sum(rank["invalid"] for rank in ranks),
        "quarantined": sum(report["quarantined"] for report in reports),
        "waiting_fraction": sum(report["wait_s"] for report in reports) / elapsed if elapsed else 0.0,
        "verdict": slowest["verdict"],
        "loader_cpu_s": sum(report["loader_cpu_s"] for report in reports),
        "peak_rss_bytes": max(report["peak_rss_bytes"] for report in reports),
        "object_store_peak_bytes": store_peak_bytes,
        "spilled_bytes": spilled_bytes,
        "fetched_bytes": sum(report["fetched_bytes"] for report in reports),
        "away_bytes": sum(report["away_bytes"] for report in reports),
        "storage": _summed(report.get("storage", {}) for report in reports),
        "storage_epochs": {
            epoch: _summed(report.get("storage_epochs", {}).get(epoch, {}) for report in reports)
            for epoch in sorted({epoch for report in reports for epoch in report.get("storage_epochs", {})}, key=int)
        },
        "index_storage": reports[0].get("index_storage", {}),
        "lanes": reports[0]["lanes"],
        "interleave": reports[0]["interleave"],
        "digest": ranks[0]["digest"],
        **({"sources": reports[0]["sources"]} if "sources" in reports[0] else {}),
        "wall_s": wall_s,
        "ranks": reports,
    }
