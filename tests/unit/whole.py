"""From a path to a manifest and to all its rows, without a cluster."""

from __future__ import annotations

from ingest.manifest.build import build_manifest
from ingest.manifest.listing import list_files
from ingest.manifest.parquet import index_files
from ingest.read.answer import answer
from ingest.read.parquet import Piece, read_window
from ingest.spec import Source


def manifest_of(path, **source):
    source = Source(path=path if isinstance(path, (list, tuple)) else str(path), **source)
    files = list_files(source)
    index = index_files(files, source.columns, source.storage)
    return build_manifest(files, index, source, lambda question, targets: answer(question, targets, source.storage))


def pieces_of(manifest):
    units = manifest.units
    return [
        Piece(manifest.files[file], int(ordinal), manifest.unit_rows(unit))
        for unit, (file, ordinal) in enumerate(zip(units.file, units.ordinal, strict=True))
    ]


def read_all(path, *, pieces=None, **source):
    manifest = manifest_of(path, **source)
    spec = Source(path=str(path), **source)
    return read_window(
        pieces or pieces_of(manifest), manifest.schema, manifest.columns, spec.storage, spec.fill, manifest.classes
    )
