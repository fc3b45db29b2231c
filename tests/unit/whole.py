"""From a path to a manifest and to all its rows, without a cluster."""

from __future__ import annotations

from ingest.manifest.build import build_manifest
from ingest.manifest.listing import list_files
from ingest.manifest.parquet import index_files
from ingest.read.parquet import Piece, read_window
from ingest.spec import Source


def manifest_of(path, **source):
    source = Source(path=path if isinstance(path, (list, tuple)) else str(path), **source)
    files = list_files(source)
    return build_manifest(files, index_files(files, source.columns, source.storage), source)


def pieces_of(manifest):
    units = manifest.units
    return [
        Piece(manifest.files[file], int(ordinal), slice(0, int(rows)))
        for file, ordinal, rows in zip(units.file, units.ordinal, units.rows, strict=True)
    ]


def read_all(path, *, pieces=None, **source):
    manifest = manifest_of(path, **source)
    spec = Source(path=str(path), **source)
    return read_window(pieces or pieces_of(manifest), manifest.schema, manifest.columns, spec.storage, spec.fill)
