"""`convert`: a source written again as Parquet or TFRecord, compared part by part."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ingest import cli_plan
from ingest.engine import cluster
from ingest.engine.rewrite import rewrite
from ingest.errors import SourceError, SpecError
from ingest.read.windows import ReadOptions
from ingest.spec import Spec
from ingest.storage.filesystem import open_filesystem
from ingest.write.part import Target


def target_of(name: str | None) -> Target | None:
    """The format that `--to` names.

    Raises:
        SpecError: there is no such format.
    """
    if name in (None, "parquet", "tfrecord"):
        return name  # type: ignore[return-value]
    raise SpecError(f"--to {name}: is neither parquet nor tfrecord")


def convert(
    spec: Spec, folder: str, target: Target | None, cache_dir: Path | None, *, part_bytes: int, compare: bool
) -> dict[str, Any]:
    """Write the rows that `spec.source` names, in their order, into an empty folder.

    Args:
        spec: its source says what: columns, where, split and limit count.
        folder: any URL that can be written.
        target: the format; None for the one that the source has not.
        cache_dir: where manifests are kept.
        part_bytes: about how many bytes in memory make a file.
        compare: read every file back and compare it with what it was made from.

    Raises:
        SpecError: the spec mixes several sources.
        SourceError: the folder is not empty, or cannot be written.
        SchemaError: a column has no place in the format.
    """
    began = time.perf_counter()
    if spec.source is None:
        raise SpecError("convert writes one source, and the spec has sources", hint="Convert them one by one")
    storage = spec.source.storage
    if open_filesystem(folder, storage).walk(folder):
        raise SourceError("the folder is not empty", path=folder, hint="Give a new one, or empty it first")
    manifest = cli_plan.find(spec, cache_dir).manifest
    target = target or ("tfrecord" if manifest.format == "parquet" else "parquet")
    cpus = min(spec.read.cpus, cluster.resources().cpus)
    parts = rewrite(
        manifest,
        ReadOptions.of(spec),
        folder,
        target,
        storage,
        part_bytes=part_bytes,
        compare=compare,
        cpus=cpus,
    )
    rows = sum(parts["rows"].to_pylist())
    seconds = time.perf_counter() - began
    return {
        "from": manifest.format,
        "to": target,
        "files": len(parts),
        "rows": rows,
        "expected_rows": manifest.rows,
        "bytes": sum(parts["bytes"].to_pylist()),
        "compared": compare,
        "seconds": seconds,
        "rows_per_s": rows / seconds,
        "ok": rows == manifest.rows,
    }
