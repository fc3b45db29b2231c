"""A data set written again in another format: parts as Ray Data work, each compared with what it came from."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ingest.engine.datasource import Call, error_in
from ingest.engine.private import own_process
from ingest.engine.segment import run_calls
from ingest.manifest.model import Manifest
from ingest.read.windows import ReadOptions, window_call
from ingest.spec import Storage
from ingest.write.part import Target, convert_part


def rewrite(
    manifest: Manifest,
    options: ReadOptions,
    folder: str,
    target: Target,
    storage: Storage,
    *,
    part_bytes: int,
    compare: bool,
    cpus: float,
) -> pa.Table:
    """Write all kept rows of a manifest, in its order, as files `part-00000-of-00012.<format>` of a folder.

    Args:
        manifest: of the data.
        options: how to read it.
        folder: any URL that can be written.
        target: the format.
        storage: how to reach the folder.
        part_bytes: about how many bytes in memory make a part.
        compare: read every part back and compare it.
        cpus: of each task.

    Returns:
        Rows of url, rows, bytes; one a part.

    Raises:
        IngestError: the first part that failed, in their order.
    """
    own_process()
    parts = list(_parts(manifest, part_bytes))
    calls = []
    for number, units in enumerate(parts):
        read, args = window_call(manifest, dict.fromkeys(units), options)
        url = posixpath.join(folder, f"part-{number:05d}-of-{len(parts):05d}.{target}")
        size = int(manifest.units.memory_bytes[units].sum())
        calls.append(Call(_converted, (read, args, url, target, storage, compare), 1, size))
    tables = run_calls(calls, num_cpus=cpus, name="ingest-convert")
    for table in tables:
        error = error_in(table)
        if error is not None:
            raise error
    return pa.concat_tables(tables)


def _converted(read: Any, args: tuple[Any, ...], url: str, target: Target, storage: Storage, compare: bool) -> pa.Table:
    return convert_part(read, args, url, target, storage, compare=compare)


def _parts(manifest: Manifest, part_bytes: int) -> Iterator[list[int]]:
    """Runs of units of about `part_bytes` in memory; a larger unit alone."""
    part: list[int] = []
    size = 0
    for unit, memory in enumerate(manifest.units.memory_bytes.tolist()):
        if part and size + memory > part_bytes:
            yield part
            part, size = [], 0
        part.append(unit)
        size += memory
    if part:
        yield part
