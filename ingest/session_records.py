"""What a rank writes down of a run beside its batches: bad samples that were replaced, and what it was given."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ingest.engine.bulletin import Bulletin
from ingest.engine.jobs import BatchInfo
from ingest.engine.replace import Bad
from ingest.loader.batch import Batch
from ingest.loader.coverage import CoverageLog, Header
from ingest.loader.planned import PLAN_SUFFIX, PlanFacts
from ingest.loader.quarantine import SUFFIX, Quarantine, Record, decode
from ingest.loader.state import Facts
from ingest.manifest.model import Manifest
from ingest.plan.layout import Order
from ingest.plan.mixture import Mix
from ingest.plan.schedule import Chunk, Share
from ingest.spec import Spec, fingerprint
from ingest.storage.filesystem import open_filesystem, write_file
from ingest.storage.folders import found, join, storage_for


class Records:
    """A rank's quarantine and coverage log, each where the spec asks for it.

    Args:
        spec: what to keep, and where.
        manifest: names the file and row of a sample.
        facts: of the run.
        share: the rank's.
        bulletin: counts bad samples over all ranks.
        cache_dir: beside which the quarantine lies, where the spec names no folder.
        rows: of an epoch.
    """

    def __init__(
        self,
        spec: Spec,
        manifest: Manifest,
        facts: Facts,
        share: Share,
        bulletin: Bulletin,
        cache_dir: str | os.PathLike[str] | None,
        rows: int,
    ) -> None:
        self._spec, self._manifest, self._facts, self._share = spec, manifest, facts, share
        self._bulletin = bulletin
        self._log: CoverageLog | None = None
        self.quarantine_url: str | None = None
        self._quarantine: Quarantine | None = None
        if spec.errors.on_bad_sample == "replace":
            beside = Path(cache_dir) if cache_dir is not None else Path(tempfile.gettempdir()) / f"ingest-{os.getuid()}"
            self.quarantine_url = spec.errors.quarantine or str(beside / "quarantine")
            self._quarantine = self._open_quarantine(self.quarantine_url, rows)

    def _open_quarantine(self, url: str, rows: int) -> Quarantine:
        """With what earlier attempts on this data found."""
        storage = storage_for(url, self._spec.inputs)
        name = f"{self._facts.digest[:12]}-{fingerprint(self._facts.pixels)}"
        kept = (
            record
            for file, data in found(url, SUFFIX, storage)
            if file.startswith(name)
            for record in decode(file, data)
        )
        return Quarantine(
            f"{name}-rank{self._share.rank}",
            lambda file, data: write_file(join(url, file), data, storage),
            kept,
            budget=self._spec.errors.budget,
            rows=rows,
            count=self._bulletin.bad,
        )

    @property
    def replaces(self) -> bool:
        """Whether bad samples are replaced."""
        return self._quarantine is not None

    @property
    def quarantined(self) -> int:
        """Distinct bad samples, of all ranks."""
        return 0 if self._quarantine is None else self._quarantine.total

    def bad(self, info: BatchInfo, bad: Sequence[Bad]) -> None:
        """Count and keep bad samples; one that only fills up is counted where it stands for itself.

        Raises:
            SampleError: the budget is spent.
        """
        assert self._quarantine is not None
        places = [self._manifest.locate(each.sample_id) for each in bad]
        self._quarantine.add(
            [
                Record(each.sample_id, info.epoch, path, row, each.message, each.head)
                for each, (path, row) in zip(bad, places, strict=True)
            ]
        )

    def seek(self, epoch: int, position: int) -> None:
        """The rank will go on from a position: what is known of an epoch under way counts there."""
        if self._quarantine is not None and position:
            self._quarantine.resume(epoch)

    def turn(self, order: Order, mix: Mix | None, epoch: int, position: int, chunk: Chunk | None) -> None:
        """The rank goes on from a position, in that order and, of several sources, that mixture."""
        if self._spec.loader.log is None:
            return
        if self._log is None:
            self._log = self._open_log(self._spec.loader.log, order, mix)
        self._log.turn(epoch, position, chunk)

    def _open_log(self, url: str, order: Order, mix: Mix | None) -> CoverageLog:
        storage, facts = storage_for(url, self._spec.inputs), plan_facts(self._manifest, order, mix)
        file = join(url, f"{facts.name}{PLAN_SUFFIX}")
        if open_filesystem(file, storage).info(file) is None:
            write_file(file, facts.encode(), storage)
        share = self._share
        header = Header(
            self._bulletin.key, share.rank, share.world_size, share.batch, share.last, facts.name, time.time()
        )
        local = open_filesystem(url, storage).local_path(url)
        return CoverageLog(
            header,
            None if local is None else Path(local),
            lambda name, data: write_file(join(url, name), data, storage),
            bucketed=self._spec.batch.bucket_by is not None,
        )

    def given(self, batch: Batch) -> None:
        """The trainer was given a batch."""
        if self._log is not None:
            self._log.add(batch, self._facts.rows)

    def flush(self, *, last: bool = False) -> None:
        """Write what is not written yet."""
        if self._quarantine is not None:
            self._quarantine.flush()
        if self._log is not None:
            self._log.flush(last=last)


def plan_facts(manifest: Manifest, order: Order, mix: Mix | None) -> PlanFacts:
    """What a coverage log keeps of the plan, so that positions can be turned into ids without the data."""
    rows = {unit: manifest.unit_rows(unit) for unit in range(len(manifest.units))}
    kept = {unit: each for unit, each in rows.items() if not isinstance(each, slice)}
    return PlanFacts(manifest.digest, order, manifest.units.rows, manifest.unit_first_id, kept, mix)
