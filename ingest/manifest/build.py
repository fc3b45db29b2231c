"""From listed files and their footers to a manifest: columns resolved, schemas merged, units laid out."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ingest.errors import SchemaError, SourceError
from ingest.manifest import arrow
from ingest.manifest.columns import Columns, common_type, names_in, output_type
from ingest.manifest.listing import DIRECTORY_INTEGER, HIVE_NULL
from ingest.manifest.model import FileEntry, Manifest, Units
from ingest.manifest.question import Look
from ingest.manifest.settle import settle
from ingest.manifest.where import where_columns
from ingest.spec import Source

_RESERVED = ("sample_id", "valid")  # names that every batch has already


@dataclass(frozen=True)
class _Seen:
    """A schema, and the first file that has it."""

    columns: Columns
    url: str

    @property
    def schema(self) -> pa.Schema:
        return self.columns.schema


def build_manifest(files: Sequence[FileEntry], index: pa.Table, source: Source, look: Look | None = None) -> Manifest:
    """Merge the footers of all files.

    Args:
        files: sorted, as `list_files` gives them.
        index: the rows of `index_files` over all of them, in any order.
        source: its columns, fill, where, split, limit and classes are settled here.
        look: reads what footers do not tell; needed for `where` and for classes that are to be found.

    Returns:
        The manifest; with 0 rows where all files are empty.

    Raises:
        SourceError: a file could not be read; of several, the first by path.
        SchemaError: a column is missing, files disagree on its type, or `fill` or `classes` does not fit it.
        SpecError: `where` does not fit the columns.
        PlanError: no row is left.
    """
    index = in_file_order(files, index)
    seen = _distinct_schemas(index)
    columns = source.columns or _all_columns(seen, files)
    schema = pa.schema([pa.field(name, _column_type(name, wanted, seen, files)) for name, wanted in columns.items()])
    manifest = Manifest("parquet", tuple(files), units_of(index), schema, dict(columns))
    wanted = where_columns(source.where)
    types = {name: kind for name in wanted if (kind := _find_type(name, seen, files)) is not None}
    in_files = {name for name in {*wanted, *columns.values()} if any(one.columns.find(name) for one in seen)}
    manifest = settle(manifest, source, types, in_files, lambda: _known(seen, files), look)
    check_fill(source, manifest.schema)
    return manifest


def in_file_order(files: Sequence[FileEntry], index: pa.Table) -> pa.Table:
    """The rows of an index in the order of the files, one for each.

    Raises:
        SourceError: a file could not be read; of several, the first by path.
    """
    order = pc.index_in(arrow.column([entry.url for entry in files], pa.string()), index["url"].combine_chunks())
    if order.null_count or len(index) != len(files):
        raise SourceError(f"{len(files)} files were listed and {len(index)} indexed", hint="This is a bug in ingest")
    index = index.take(order)
    _raise_first_error(index)
    return index


def _raise_first_error(index: pa.Table) -> None:
    failed = index.filter(pc.is_valid(index["error"]))
    if len(failed):
        others = f" ({len(failed) - 1} more files cannot be read)" if len(failed) > 1 else ""
        raise SourceError(failed["error"][0].as_py() + others, path=failed["url"][0].as_py())


def _distinct_schemas(index: pa.Table) -> list[_Seen]:
    encoded = index["schema"].cast(pa.binary()).combine_chunks()
    first: dict[bytes, int] = {}
    codes = encoded.dictionary_encode()
    values, at = np.unique(arrow.numbers(codes.indices), return_index=True)
    for value, row in sorted(zip(values, at, strict=True), key=lambda pair: int(pair[1])):
        first[codes.dictionary[int(value)].as_py()] = int(row)
    return [
        _Seen(Columns(pa.ipc.read_schema(pa.py_buffer(raw))), index["url"][row].as_py()) for raw, row in first.items()
    ]


def _all_columns(seen: list[_Seen], files: Sequence[FileEntry]) -> dict[str, str]:
    names = [name for one in seen for name in one.schema.names]
    return columns_of(names, files)


def columns_of(names: Iterable[str], files: Sequence[FileEntry]) -> dict[str, str]:
    """Output name: source column, where the spec names none: what the files hold, and the keys of their paths.

    Raises:
        SchemaError: a column has a name that every batch has already.
    """
    columns = {name: name for name in (*names, *(key for entry in files for key, _ in entry.partitions))}
    taken = [name for name in _RESERVED if name in columns]
    if taken:
        raise SchemaError(
            f"the data has a column named {taken[0]}, a name that every batch has already",
            path=files[0].url,
            hint=f"Give source.columns, with another output name: {{my_{taken[0]}: {taken[0]}}}",
        )
    return columns


def _column_type(name: str, wanted: str, seen: list[_Seen], files: Sequence[FileEntry]) -> pa.DataType:
    """As `_find_type`; a column that is nowhere is refused."""
    found = _find_type(wanted, seen, files)
    if found is None:
        raise _missing(name, wanted, seen, files)
    return found


def _find_type(wanted: str, seen: list[_Seen], files: Sequence[FileEntry]) -> pa.DataType | None:
    """The type that holds the column's values in every file; a file without it will give nulls."""
    merged: pa.DataType | None = None
    merged_in = ""
    for one in seen:
        column = one.columns.find(wanted)
        if column is None:
            continue
        if one.schema.field(column.field).name in one.columns.repeated:
            raise SchemaError(f"the file has two columns named '{wanted}'", path=one.url)
        kind = output_type(column.type)
        fitting = kind if merged is None else common_type(merged, kind)
        if fitting is None:
            raise SchemaError(
                f"column '{wanted}' has type {merged} in {merged_in} and {kind} in {one.url}",
                path=one.url,
                hint="Rewrite the files of one kind, or read them as separate sources",
            )
        if fitting != merged:
            merged, merged_in = fitting, one.url
    if merged is not None:
        return merged
    return partition_type(files, wanted)


def partition_type(files: Sequence[FileEntry], key: str) -> pa.DataType | None:
    """The type of a hive key's values over all files; None where no path has it."""
    values = [value for entry in files for known, value in entry.partitions if known == key]
    return _partition_type(values) if values else None


def _partition_type(values: Iterable[str]) -> pa.DataType:
    distinct = set(values) - {HIVE_NULL}
    return pa.int64() if distinct and all(DIRECTORY_INTEGER.fullmatch(value) for value in distinct) else pa.string()


def _known(seen: list[_Seen], files: Sequence[FileEntry]) -> list[str]:
    """Every name that a spec could use."""
    names = [name for one in seen for name in names_in(one.schema)]
    return list(dict.fromkeys([*names, *(key for entry in files for key, _ in entry.partitions)]))


def _missing(name: str, wanted: str, seen: list[_Seen], files: Sequence[FileEntry]) -> SchemaError:
    known = _known(seen, files)
    near = difflib.get_close_matches(wanted, known, 1, cutoff=0.5)
    listed = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    head = wanted.rpartition(".")[0]
    inside = next((c.type for one in seen for c in (one.columns.find(head),) if c), None) if head else None
    why = (
        f"; '{head}' is a {inside}, and dots go into structs only" if inside and not pa.types.is_struct(inside) else ""
    )
    asked = f"'{wanted}'" if name == wanted else f"'{wanted}' (for output '{name}')"
    return SchemaError(
        f"there is no column {asked}{why}; there are: {listed}",
        path=seen[0].url,
        hint=f"Did you mean '{near[0]}'?" if near else None,
    )


def check_fill(source: Source, schema: pa.Schema) -> None:
    """Refuse what cannot stand for a null.

    Raises:
        SchemaError: `fill` names no output, or does not fit its type.
    """
    for name, value in source.fill.items():
        if name not in schema.names:
            near = difflib.get_close_matches(name, schema.names, 1)
            raise SchemaError(
                f"source.fill names '{name}', which is no output column",
                hint=f"Did you mean '{near[0]}'?" if near else f"There are: {', '.join(schema.names)}",
            )
        kind = schema.field(name).type
        try:
            _check_exact(value, pa.scalar(value, kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"source.fill: {value!r} does not fit column '{name}' of type {kind}: {error}") from None


def _check_exact(value: Any, made: pa.Scalar) -> None:
    """Refuse a number of which pyarrow drops the fraction, or makes infinity.

    Raises:
        ValueError: it does.
    """
    if not isinstance(value, float):
        return
    if not pa.types.is_floating(made.type):
        if not value.is_integer():
            raise ValueError("it has a fraction")
    elif math.isinf(made.as_py()) and not math.isinf(value):
        raise ValueError("it is larger than the type holds")


def units_of(index: pa.Table) -> Units:
    """Units in file order without the empty ones.

    Args:
        index: lists of `rows`, `bytes`, `memory_bytes` of each file's units; of TFRecord also `offset` and `file_row`.
    """
    counts = arrow.numbers(pc.list_value_length(index["rows"])).astype(np.int64)
    file = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    file_begin = np.cumsum(counts) - counts
    ordinal = (np.arange(len(file)) - file_begin[file]).astype(np.int32)
    rows, encoded, decoded = (_flat(index[name]) for name in ("rows", "bytes", "memory_bytes"))
    before = np.cumsum(rows) - rows
    if "offset" in index.column_names:
        file_row, offset = _flat(index["file_row"]), _flat(index["offset"])
    else:
        # The first group of each file that has any is where the file's own rows begin.
        file_first = np.zeros(len(counts), np.int64)
        file_first[counts > 0] = before[file_begin[counts > 0]]
        file_row, offset = before - file_first[file], np.zeros(len(file), np.int64)
    keep = rows > 0
    return Units(file[keep], ordinal[keep], rows[keep], encoded[keep], decoded[keep], file_row[keep], offset[keep])


def _flat(lists: pa.ChunkedArray) -> NDArray[np.int64]:
    flat: NDArray[np.int64] = arrow.numbers(pc.list_flatten(lists)).astype(np.int64)
    return flat
