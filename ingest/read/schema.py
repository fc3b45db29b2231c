"""From the indexed TFRecord files of a source to its manifest: features declared or found, output types, units."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.errors import SchemaError
from ingest.manifest.build import check_fill, columns_of, in_file_order, partition_type, units_of
from ingest.manifest.model import Damage, FileEntry, Manifest
from ingest.manifest.question import Look
from ingest.manifest.records import Frames, scan
from ingest.manifest.settle import settle
from ingest.manifest.stream import RecordStream
from ingest.manifest.where import where_columns
from ingest.read.example import parse
from ingest.read.feature import Feature, Kind
from ingest.read.survey import Survey, features_of
from ingest.spec import FeatureType, Source
from ingest.storage.filesystem import open_filesystem

_KINDS: dict[str, Kind] = {"int64": "int64", "float32": "float", "bytes": "bytes", "string": "bytes"}
_DTYPES: dict[str, Any] = {"int64": "int64", "float": "float32", "bytes": "bytes"}
_SPOTS, _SPOT_BYTES = 4, 1 << 20  # parsed to see how much memory a payload's byte takes


def feature_of(name: str, kind: FeatureType) -> Feature:
    """What the parser makes of a feature's type.

    Raises:
        SchemaError: the default does not fit.
    """
    return Feature(name, _KINDS[kind.dtype], kind.shape, kind.default)


def arrow_type(name: str, kind: FeatureType) -> pa.DataType:
    """The type of a feature's column."""
    made = feature_of(name, kind).arrow_type
    return _as_text(made) if kind.dtype == "string" else made


def _as_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_as_text(kind.value_type), kind.list_size)
    return pa.large_list(_as_text(kind.value_type)) if pa.types.is_large_list(kind) else pa.large_string()


def needs_survey(source: Source) -> bool:
    """Whether a feature is wanted that the spec does not declare."""
    if source.columns is None:
        return True
    return not {*source.columns.values(), *where_columns(source.where)} <= set(source.schema_)


def record_manifest(files: Sequence[FileEntry], index: pa.Table, source: Source, look: Look | None = None) -> Manifest:
    """Merge the indices of all files.

    Args:
        files: sorted, as `list_files` gives them.
        index: the rows of `index_records` over all of them, in any order.
        source: its columns, schema, fill, where, split, limit and classes are settled here.
        look: reads; needed for `where` and for classes that are to be found.

    Returns:
        The manifest; with 0 rows where all files are empty.

    Raises:
        SourceError: a file could not be read; of several, the first by path.
        SchemaError: a feature was not found, holds values of two types, or a default, `fill` or `classes` does not fit.
        SpecError: `where` does not fit the columns.
        PlanError: no row is left.
    """
    index = in_file_order(files, index)
    survey = _merged(index)
    columns, features = _resolve(files, survey, source)
    schema = pa.schema([(name, _type_of(wanted, features, files)) for name, wanted in columns.items()])
    read = {name: kind for name, kind in features.items() if name in columns.values()}
    units = units_of(index)
    manifest = Manifest("tfrecord", tuple(files), units, schema, columns, features=read, damage=_damage(index))
    manifest = replace(manifest, units=replace(units, memory_bytes=_in_memory(manifest, source)))
    asked = _asked(source, features, survey)
    types = {name: _type_of(name, asked, files) for name in where_columns(source.where)}
    known = [*dict.fromkeys([*features, *survey.features])]
    manifest = settle(manifest, source, types, set(features), lambda: known, look, {**features, **asked})
    check_fill(source, manifest.schema)
    return manifest


def _merged(index: pa.Table) -> Survey:
    """What all surveys have seen.

    Raises:
        SchemaError: there are records, and none of those looked at could be parsed.
    """
    merged = Survey()
    for text in index["survey"].to_pylist():
        if text is not None:
            merged.merge(Survey.from_json(text))
    if merged.bad and not merged.records:
        row = next(i for i, text in enumerate(index["unparsed"].to_pylist()) if text is not None)
        raise SchemaError(
            f"none of the {merged.bad} records looked at can be parsed; the first: {index['unparsed'][row].as_py()}",
            path=index["url"][row].as_py(),
        )
    return merged


def _resolve(
    files: Sequence[FileEntry], survey: Survey, source: Source
) -> tuple[dict[str, str], dict[str, FeatureType]]:
    """(output name: source column, source column: its type, of those that are features and those of the filter)."""
    declared = dict(source.schema_)
    for name, value in source.fill.items():  # what stands for a null stands for a feature that is not there
        wanted = name if source.columns is None else source.columns[name]
        if wanted in declared and declared[wanted].default is None and declared[wanted].shape != (None,):
            declared[wanted] = declared[wanted].model_copy(update={"default": value})
    known = {name: feature_of(name, kind) for name, kind in declared.items()}
    keys = {key for entry in files for key, _ in entry.partitions}
    if source.columns is None:
        columns = columns_of([*declared, *sorted(set(survey.features) - set(declared))], files)
    else:
        columns = dict(source.columns)
    asked = {*columns.values(), *where_columns(source.where)}
    names = {name for name in asked if name in known or name in survey.features or name not in keys}
    _refuse_unknown(names - set(known), survey, source)
    found = features_of(survey, known, names)
    return columns, {
        each.name: declared.get(each.name) or FeatureType(dtype=_DTYPES[each.kind], shape=each.shape) for each in found
    }


def _asked(source: Source, features: Mapping[str, FeatureType], survey: Survey) -> dict[str, FeatureType]:
    """The features of a filter, as it sees them: without what `fill` says, and single where they are found to be.

    A feature that some records lack is found to be a list, for there may be none; compared, none is a null.
    """
    asked = {}
    for name in where_columns(source.where):
        if name in source.schema_:
            asked[name] = source.schema_[name]
        elif name in features:
            single = features[name].shape == (None,) and survey.features[name].longest <= 1
            asked[name] = features[name].model_copy(update={"shape": ()}) if single else features[name]
    return asked


def _refuse_unknown(names: set[str], survey: Survey, source: Source) -> None:
    unknown = sorted(names - set(survey.features))
    if not unknown:
        return
    near = difflib.get_close_matches(unknown[0], [*survey.features, *source.schema_], 1, cutoff=0.5)
    there = ", ".join(sorted(survey.features)[:20]) or "none at all"
    raise SchemaError(
        f"feature '{unknown[0]}' is in none of the {survey.records} records looked at, which hold: {there}",
        path=source.paths[0],
        hint=f"Did you mean '{near[0]}'?" if near else "A feature that few records have is declared in source.schema",
    )


def _type_of(wanted: str, features: Mapping[str, FeatureType], files: Sequence[FileEntry]) -> pa.DataType:
    if wanted in features:
        return arrow_type(wanted, features[wanted])
    kind = partition_type(files, wanted)
    assert kind is not None  # what is neither was refused
    return kind


def _damage(index: pa.Table) -> tuple[Damage, ...]:
    return tuple(Damage(**each) for found in index["damage"].to_pylist() for each in found)


def _in_memory(manifest: Manifest, source: Source) -> NDArray[np.int64]:
    """Int64 (units,): the units' wanted columns once parsed, by what some records from all over the data take."""
    units, features = manifest.units, [feature_of(*item) for item in manifest.features.items()]
    taken = payload = 0
    count = _SPOTS if len(units) and features else 0
    spots = np.unique(np.linspace(0, len(units) - 1, count).astype(np.int64))
    for unit in spots.tolist():
        data, frames = _spot(manifest, unit, source)
        taken += parse(data, frames.starts, frames.stops, features, on_bad="mark").nbytes
        payload += int((frames.stops - frames.starts).sum())
    ratio = taken / payload if payload else float(bool(features))  # records longer than a spot say nothing
    memory: NDArray[np.int64] = np.maximum(units.rows, units.memory_bytes * ratio).astype(np.int64)
    return memory


def _spot(manifest: Manifest, unit: int, source: Source) -> tuple[NDArray[np.uint8], Frames]:
    """Some records from a unit's beginning."""
    units = manifest.units
    entry, begin, size = manifest.files[units.file[unit]], int(units.offset[unit]), int(units.bytes[unit])
    filesystem = open_filesystem(entry.url, source.storage)
    if begin == 0 and size == entry.size:  # it may be compressed
        chunk = next(iter(RecordStream(entry, filesystem, check_payload=False, block_bytes=_SPOT_BYTES)))
        return chunk.data, chunk.frames
    span = (begin, begin + min(size, _SPOT_BYTES))
    data = np.frombuffer(filesystem.read_ranges(entry.url, [span], entry.etag)[0], np.uint8)
    return data, scan(data, check_payload=False)
