"""Manifests kept on disk, so that the next run on the same data lists files and reads no footer."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ingest.manifest import arrow
from ingest.manifest.model import Damage, FileEntry, Manifest, Units
from ingest.manifest.selection import Part, Selection
from ingest.spec import FeatureType, Source, fingerprint

log = logging.getLogger(__name__)

FORMAT_VERSION = 2
_META = b"ingest.manifest"
_UNIT_TYPES = {
    "file": "i4", "ordinal": "i4", "rows": "i8", "bytes": "i8", "memory_bytes": "i8", "file_row": "i8", "offset": "i8",
}  # fmt: skip
_FILES = pa.schema(
    [
        ("path", pa.string()),
        ("url", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("partitions", pa.string()),  # as JSON
        ("sidecar", pa.string()),
    ]
)


def cache_key(files: Sequence[FileEntry], source: Source) -> str:
    """A digest of all that a manifest follows from: the listing with sizes and versions, and the source's choices."""
    return fingerprint(
        {
            "version": FORMAT_VERSION,
            "files": [[f.path, f.url, f.size, f.etag, f.partitions, f.sidecar] for f in files],
            "format": source.format,
            "schema": {name: kind.model_dump(mode="json") for name, kind in source.schema_.items()},
            "tfrecord": source.tfrecord.model_dump(mode="json"),
            "columns": None if source.columns is None else list(source.columns.items()),
            "fill": source.fill,
            "where": source.where,
            "split": None if source.split is None else source.split.model_dump(mode="json"),
            "limit": source.limit,
            "classes": source.classes,
        }
    )


def load(folder: str | os.PathLike[str], key: str) -> Manifest | None:
    """The manifest kept under `key`; None where there is none, or (said in the log) none that can be used."""
    path = _path(folder, key)
    if not path.exists():
        return None
    try:
        return _from_table(pq.ParquetFile(path, thrift_string_size_limit=2**31 - 1).read())
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        log.warning("the cached manifest %s cannot be used and is built again: %s", path, error)
        return None


def save(folder: str | os.PathLike[str], key: str, manifest: Manifest) -> None:
    """Keep a manifest under `key`. A folder that cannot be written is said in the log and changes nothing else."""
    path = _path(folder, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        os.close(descriptor)
        try:
            pq.write_table(_to_table(manifest), temporary, compression="zstd")
            Path(temporary).replace(path)  # readers see the old file or the new one, never half of it
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        log.warning("the manifest cannot be kept in %s: %s", path.parent, error)


def _path(folder: str | os.PathLike[str], key: str) -> Path:
    return Path(folder) / f"manifest-{key}.parquet"


def _to_table(manifest: Manifest) -> pa.Table:
    """One row for each unit; the files and the schema, which are other tables, as Arrow IPC in the metadata."""
    files = arrow.table(
        [{**vars(entry), "partitions": json.dumps(entry.partitions)} for entry in manifest.files], _FILES
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, files.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(files)
    facts = {
        "version": FORMAT_VERSION,
        "format": manifest.format,
        "columns": list(manifest.columns.items()),
        "classes": manifest.classes,
        "features": {name: kind.model_dump(mode="json") for name, kind in manifest.features.items()},
        "damage": [asdict(each) for each in manifest.damage],
    }
    units = manifest.units
    table = pa.Table.from_arrays([arrow.of_numbers(getattr(units, name)) for name in _UNIT_TYPES], [*_UNIT_TYPES])
    if (selection := manifest.selection) is not None:
        table = table.append_column("first_id", arrow.of_numbers(selection.first_id))
        table = table.append_column("total_rows", arrow.of_numbers(selection.total_rows))
        table = table.append_column("bitmap", arrow.column(selection.bitmaps(), pa.large_binary()))
        facts["selection"] = {
            "data_rows": selection.data_rows,
            "digest": selection.digest,
            "part": None if selection.part is None else asdict(selection.part),
        }
    return table.replace_schema_metadata(
        {
            _META: json.dumps(facts).encode(),
            b"ingest.files": sink.getvalue().to_pybytes(),
            b"ingest.schema": manifest.schema.serialize().to_pybytes(),
        }
    )


def _from_table(table: pa.Table) -> Manifest:
    meta = table.schema.metadata or {}
    facts = json.loads(meta[_META])
    if facts["version"] != FORMAT_VERSION:
        raise ValueError(f"it has version {facts['version']}, and this is version {FORMAT_VERSION}")
    files = pa.ipc.open_stream(pa.py_buffer(meta[b"ingest.files"])).read_all()
    entries = tuple(
        FileEntry(
            f["path"],
            f["url"],
            f["size"],
            f["etag"],
            tuple((k, v) for k, v in json.loads(f["partitions"])),
            f["sidecar"],
        )
        for f in files.to_pylist()
    )
    units = Units(**{name: arrow.numbers(table[name]).astype(np.dtype(kind)) for name, kind in _UNIT_TYPES.items()})
    schema = pa.ipc.read_schema(pa.py_buffer(meta[b"ingest.schema"]))
    classes = {name: tuple(values) for name, values in facts["classes"].items()}
    selection = _selection(table, facts["selection"]) if "selection" in facts else None
    features = {name: FeatureType(**kind) for name, kind in facts["features"].items()}
    damage = tuple(Damage(**each) for each in facts["damage"])
    return Manifest(
        facts["format"], entries, units, schema, dict(facts["columns"]), selection, classes, features, damage
    )


def _selection(table: pa.Table, facts: dict[str, Any]) -> Selection:
    first_id, total_rows = (arrow.numbers(table[name]).astype(np.int64) for name in ("first_id", "total_rows"))
    part = None if facts["part"] is None else Part(**facts["part"])
    return Selection.of(first_id, total_rows, table["bitmap"].to_pylist(), part, facts["data_rows"], facts["digest"])
