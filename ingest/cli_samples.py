"""`locate`, `quarantine` and `verify --log`: where a sample is, which were bad, and what a run was given."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ingest.cli_plan import find
from ingest.errors import SourceError
from ingest.loader.coverage import LOG_SUFFIX, decode_log
from ingest.loader.planned import PLAN_SUFFIX, decode_plan
from ingest.loader.proof import prove
from ingest.loader.quarantine import SUFFIX, decode, distinct
from ingest.spec import Spec, Storage
from ingest.storage.folders import found

SHOWN_BYTES = 16


def locate(spec: Spec, sample_ids: list[int], cache_dir: Path | None) -> list[dict[str, Any]]:
    """The file and row of samples.

    Returns:
        sample_id, path and row (0-based, inside the file) of each.

    Raises:
        SourceError: the data cannot be found, listed or opened.
        PlanError: no such sample.
    """
    manifest = find(spec, cache_dir).manifest
    places = [manifest.locate(sample) for sample in sample_ids]
    return [
        {"sample_id": sample, "path": path, "row": row} for sample, (path, row) in zip(sample_ids, places, strict=True)
    ]


def quarantine(url: str, storage: Storage, epoch: int | None = None) -> dict[str, Any]:
    """What a quarantine folder, or one of its files, holds.

    Args:
        url: of the folder or file.
        storage: how to reach it.
        epoch: only what was found in this one.

    Returns:
        `quarantined`, each sample once by (epoch, id); `samples`, different ids; `files`; `by_epoch`; `records`.

    Raises:
        SourceError: there is nothing, or a file is something else.
    """
    files = list(found(url, SUFFIX, storage))
    if not files:
        raise SourceError(
            "no quarantine file is there", path=url, hint="errors.quarantine, or `ingest run --json`, says where it is"
        )
    records = distinct(record for name, data in files for record in decode(name, data))
    records = [record for record in records if epoch is None or record.epoch == epoch]
    return {
        "quarantined": len(records),
        "samples": len({record.sample_id for record in records}),
        "files": len(files),
        "by_epoch": {str(each): count for each, count in sorted(Counter(r.epoch for r in records).items())},
        "records": [{**asdict(record), "first_bytes": record.first_bytes.hex()} for record in records],
    }


def lines(records: list[dict[str, Any]]) -> list[str]:
    """Records as lines for people."""
    return [
        f"epoch {each['epoch']}  sample {each['sample_id']}  {each['path']} row {each['row']}: {each['error']}"
        + (f"  [{each['first_bytes'][: 2 * SHOWN_BYTES]}]" if each["first_bytes"] else "")
        for each in records
    ]


def verify_log(url: str, storage: Storage, *, from_epoch: int = 0, epochs: int | None = None) -> dict[str, Any]:
    """What the coverage log of a run proves; see `ingest.loader.proof.prove`.

    Raises:
        SourceError: the folder holds no coverage log, or it cannot be read.
    """
    logs = list(decode_log(dict(found(url, LOG_SUFFIX, storage))))
    plans = {name.removesuffix(PLAN_SUFFIX): decode_plan(name, data) for name, data in found(url, PLAN_SUFFIX, storage)}
    if not logs:
        raise SourceError("no coverage log is there", path=url, hint="Train with loader.log: FOLDER")
    return prove(logs, plans, from_epoch=from_epoch, epochs=epochs)
