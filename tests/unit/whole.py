"""From a path to a manifest and to all its rows, without a cluster."""

from __future__ import annotations

from ingest.manifest.build import build_manifest
from ingest.manifest.listing import format_of, list_files
from ingest.manifest.parquet import index_files
from ingest.manifest.tfrecord import index_records
from ingest.read.answer import answer
from ingest.read.parquet import Piece, read_window
from ingest.read.schema import needs_survey, record_manifest
from ingest.read.survey import Survey
from ingest.read.windows import ReadOptions, window_call
from ingest.spec import Source


def manifest_of(path, **source):
    source = Source(path=path if isinstance(path, (list, tuple)) else str(path), **source)
    files = list_files(source)

    def look(question, targets):
        return answer(question, targets, source.storage)

    if format_of(files, source) == "parquet":
        return build_manifest(files, index_files(files, source.columns, source.storage), source, look)
    survey = Survey if needs_survey(source) else None
    return record_manifest(files, index_records(files, source.tfrecord, survey, source.storage), source, look)


def pieces_of(manifest):
    units = manifest.units
    return [
        Piece(manifest.files[file], int(ordinal), manifest.unit_rows(unit), manifest.unit_total(unit))
        for unit, (file, ordinal) in enumerate(zip(units.file, units.ordinal, strict=True))
    ]


def read_all(path, *, pieces=None, **source):
    manifest = manifest_of(path, **source)
    spec = Source(path=str(path), **source)
    return read_window(
        pieces or pieces_of(manifest), manifest.schema, manifest.columns, spec.storage, spec.fill, manifest.classes
    )


def read_units(manifest, units=None, **options):
    """The rows of some units (all when left out), {unit: rows or None}, by the reader of the manifest's format."""
    units = dict.fromkeys(range(len(manifest.units))) if units is None else units
    function, args = window_call(manifest, units, ReadOptions(**options))
    return function(*args)
