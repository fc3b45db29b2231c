"""From what is there to what is read: where, split and limit applied, and labels given the classes they become."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from ingest.errors import PlanError, SchemaError, SourceError
from ingest.manifest.model import Manifest, Units
from ingest.manifest.question import Enough, Look, Question, ask, check_class_type, columns_in
from ingest.manifest.selection import Kept, select
from ingest.manifest.where import bind
from ingest.spec import FeatureType, Source

SHOWN = 200  # characters of a filter that a message repeats


def settle(
    manifest: Manifest,
    source: Source,
    where_types: Mapping[str, pa.DataType],
    in_files: Collection[str],
    known: Callable[[], list[str]],
    look: Look | None,
    features: Mapping[str, FeatureType] = MappingProxyType({}),
) -> Manifest:
    """The manifest of what the source keeps. Filters see the data before anything is left out, as do classes.

    Args:
        manifest: of all rows, its schema with the columns' own types.
        source: its where, split, limit and classes.
        where_types: of the columns that its filter names, those that there are.
        in_files: source columns that some file has; others are hive keys.
        known: every name that a filter could use.
        look: reads; needed for a filter, and for classes that are to be found.
        features: of TFRecord, source column: its type, as filters and classes see it.

    Raises:
        SpecError: the filter does not fit the columns.
        SchemaError: there is no column; or classes are asked of a column that is none, or holds no text.
        PlanError: no row is left.
        IngestError: a unit cannot be read.
    """
    if manifest.rows and not manifest.columns:
        raise SchemaError(
            f"the data has {manifest.rows} rows and not one column",
            path=manifest.files[0].url,
            hint="Of TFRecord: declare the features in source.schema, with defaults where all may lack them",
        )
    bound = None if source.where is None else bind(source.where, where_types, known)
    sources = {name: _class_source(name, manifest) for name in source.classes}
    found = [name for name, classes in source.classes.items() if classes == "auto"]
    kept, classes = None, {}
    if bound is not None or found:
        where_schema = columns_in(where_types, list(where_types))
        kinds = {sources[name]: manifest.schema.field(name).type for name in found}
        classes_schema = columns_in(kinds, list(kinds))
        check_payload = source.tfrecord.check_payload_crc
        question = Question(manifest.format, bound, where_schema, classes_schema, dict(features), check_payload)
        directories = frozenset({*where_types, *kinds} - set(in_files))
        kept, values = ask(question, manifest, directories, look or _reading, _enough(manifest, source))
        classes = {name: values[sources[name]] for name in found}
    for name, declared in source.classes.items():
        if declared != "auto":
            classes[name] = tuple(declared)
    manifest = replace(manifest, schema=_with_classes(manifest.schema, classes), classes=classes)
    return _selected(manifest, source, kept)


def _enough(manifest: Manifest, source: Source) -> Enough | None:
    """Whether the rows kept of the first units reach the limit; None without one."""
    if source.limit is None:
        return None
    rows, split, limit = manifest.units.rows, source.split, source.limit
    return lambda kept: int(select(rows[: len(kept.rows)], kept, split, limit, "")[1].sum()) == limit


def _reading(*_: object) -> pa.Table:
    raise SourceError("the data must be read to settle where or classes, and nothing reads here")


def _class_source(name: str, manifest: Manifest) -> str:
    if name not in manifest.columns:
        near = difflib.get_close_matches(name, manifest.columns, 1)
        raise SchemaError(
            f"source.classes names '{name}', which is no output column",
            hint=f"Did you mean '{near[0]}'?" if near else f"There are: {', '.join(manifest.columns)}",
        )
    check_class_type(name, manifest.schema.field(name).type)
    return manifest.columns[name]


def _with_classes(schema: pa.Schema, classes: Collection[str]) -> pa.Schema:
    return pa.schema([field.with_type(pa.int64()) if field.name in classes else field for field in schema])


def _selected(manifest: Manifest, source: Source, kept: Kept | None) -> Manifest:
    if kept is None and source.split is None and source.limit is None:
        return manifest
    units = manifest.units
    left, rows, selection = select(units.rows, kept, source.split, source.limit, manifest.digest)
    if not len(left) and len(units):
        raise PlanError(_nothing_left(manifest, source, kept), stage="manifest")
    units = Units(**{one.name: getattr(units, one.name)[left] for one in fields(Units)})
    memory = np.ceil(units.memory_bytes * (rows / units.rows)).astype(np.int64)
    return replace(manifest, units=replace(units, rows=rows, memory_bytes=memory), selection=selection)


def _nothing_left(manifest: Manifest, source: Source, kept: Kept | None) -> str:
    text = f"no row is left of {manifest.rows}"
    if kept is not None:
        where = source.where or ""
        shown = where if len(where) <= SHOWN else where[:SHOWN] + "..."
        text += f": source.where, {shown!r}, keeps {int(kept.rows.sum())} of them"
    if source.split is not None and (kept is None or kept.rows.any()):
        share = source.split.of[source.split.take]
        text += f"{':' if kept is None else ', and'} source.split takes '{source.split.take}', a share of {share:g}"
    return text
