"""From a file's own columns to the manifest's: output names and types, partition values, the policy on nulls."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ingest.errors import ReadError
from ingest.manifest.columns import Column, is_list, output_type
from ingest.manifest.listing import HIVE_NULL
from ingest.manifest.model import FileEntry
from ingest.manifest.parquet import Footer

Rows: TypeAlias = NDArray[np.int64] | slice | None


class Place(Protocol):
    """Which rows a table holds, so that errors can say where one is."""

    @property
    def entry(self) -> FileEntry:
        """The file."""

    def file_row(self, row: int) -> int:
        """The row inside the file of a table's row."""


@dataclass(frozen=True)
class Where:
    """Which rows a table holds: `rows` of row group `ordinal` of a file."""

    entry: FileEntry
    footer: Footer
    ordinal: int
    rows: Rows

    def file_row(self, row: int) -> int:
        """The row inside the file of a table's row."""
        if isinstance(self.rows, slice):
            row += self.rows.start or 0
        elif self.rows is not None:
            row = int(self.rows[row])
        metadata = self.footer.metadata
        return row + sum(int(metadata.row_group(i).num_rows) for i in range(self.ordinal))


def finish(
    table: pa.Table,
    places: Mapping[int, int],
    where: Where,
    schema: pa.Schema,
    columns: Mapping[str, str],
    fill: Mapping[str, Any] | None,
    classes: Mapping[str, Sequence[str]],
) -> pa.Table:
    """The manifest's columns out of a table of the file's own.

    Args:
        table: the file's top-level columns, pruned, in file order; then leaves that were decoded apart.
        places: leaf: its place in the table, for those.
        where: what the table holds.
        schema: the manifest's.
        columns: output name: source column.
        fill: output name: the value that stands for a null; None leaves every null where it is.
        classes: output name: the strings that its numbers stand for, in order.

    Raises:
        ReadError: a value does not fit or is no class, a null cannot be given, or a hive directory says otherwise than
            the file.
    """
    found = {name: where.footer.columns.find(columns[name]) for name in schema.names}
    fields = sorted({column.field for column in found.values() if column and column.leaves[0] not in places})
    partitions = dict(where.entry.partitions)
    arrays = []
    for name in schema.names:
        column, kind, source = found[name], schema.field(name).type, columns[name]
        if name in classes:
            kind = _class_type(column, partitions.get(source))
        if column is None:
            array = constant(partitions.get(source), kind, len(table), where, source)
        else:
            place = places.get(column.leaves[0])
            if place is None:
                raw = _inside(table.column(fields.index(column.field)), column, where.footer.schema)
            else:
                raw = table.column(place)
            array = _cast(raw, kind, where, source)
            if source in partitions:
                check_agrees(array, partitions[source], where, source)
        if name in classes:
            array = numbered(array, classes[name], where, name)
        arrays.append(array if fill is None else without_nulls(array, fill.get(name), where, name))
    return pa.Table.from_arrays(arrays, schema=schema)


def _inside(array: pa.ChunkedArray, column: Column, schema: pa.Schema) -> pa.ChunkedArray:
    """A struct's field, null where the struct is; the file's other fields were not read, so it is found by name."""
    kind = schema.field(column.field).type
    indices = []
    pruned = array.type
    for step in column.steps:
        name = kind.field(step).name
        kind = kind.field(step).type
        indices.append(pruned.get_field_index(name))
        pruned = pruned.field(indices[-1]).type
    return pc.struct_field(array, indices) if indices else array


def _cast(array: pa.ChunkedArray, kind: pa.DataType, where: Where, source: str) -> pa.ChunkedArray:
    if isinstance(array.type, pa.BaseExtensionType):
        array = pa.chunked_array([chunk.storage for chunk in array.chunks], array.type.storage_type)
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        array = pa.chunked_array([_list_of(chunk) for chunk in array.chunks], pa.large_list(array.type.value_type))
    try:
        cast = array if array.type == kind else array.cast(kind)
        check_text(cast, where, source)
    except pa.ArrowException as error:
        raise ReadError(f"column '{source}' does not fit {kind}: {error}", path=where.entry.url) from error
    return cast


def _list_of(views: pa.Array) -> pa.LargeListArray:
    """List views as lists (pyarrow 26 casts those with nulls to arrays that are not valid)."""
    lengths = pc.fill_null(pc.list_value_length(views), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), views.flatten(), mask=pc.is_null(views))


def check_text(array: pa.ChunkedArray, where: Place, source: str) -> None:
    """Refuse strings that are not UTF-8: Parquet's writers do not look, nor do its readers.

    Raises:
        ReadError: the first such row; of strings inside lists and structs, the column.
    """
    kind = array.type
    if not _holds_text(kind):
        return
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        array.validate(full=True)
        return
    data = array.cast(pa.large_binary())
    try:
        data.cast(pa.large_string())
    except pa.ArrowInvalid:
        for row, value in enumerate(data):
            try:
                (value.as_py() or b"").decode()
            except UnicodeDecodeError as error:
                raise ReadError(
                    f"column '{source}' is a string, and holds {error.object[:40]!r} here, which is not UTF-8",
                    path=where.entry.url,
                    row=where.file_row(row),
                    hint="Write such values as binary, or leave the column out",
                ) from None


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return True
    return any(_holds_text(kind.field(i).type) for i in range(kind.num_fields))


def _class_type(column: Column | None, partition: str | None) -> pa.DataType:
    """The type in which a file's own labels are read."""
    if column is not None:
        return output_type(column.type)
    return pa.null() if partition is None else pa.string()


def text_of(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Strings or bytes as bytes with 64-bit offsets."""
    return array if pa.types.is_large_binary(array.type) else array.cast(pa.large_binary())


def numbered(array: pa.ChunkedArray, classes: Sequence[str], where: Place, name: str) -> pa.ChunkedArray:
    """Labels as int64, their places among the classes; nulls stay.

    Raises:
        ReadError: the first row whose label is no class.
    """
    array = text_of(array)
    known = pa.array([one.encode() for one in classes], pa.large_binary())
    numbers = pc.index_in(array, known)
    if numbers.null_count > array.null_count:
        row = pc.index(pc.and_(pc.is_null(numbers), pc.is_valid(array)), True).as_py()
        value = array[row].as_py().decode(errors="backslashreplace")
        near = difflib.get_close_matches(value, classes, 1)
        raise ReadError(
            f"column '{name}' is {value!r} here, which is none of the {len(classes)} classes in source.classes",
            path=where.entry.url,
            row=where.file_row(row),
            hint=f"Did you mean '{near[0]}'?" if near else "Add it to source.classes, or leave such rows out by where",
        )
    return numbers.cast(pa.int64())


def constant(value: str | None, kind: pa.DataType, count: int, where: Place, source: str) -> pa.ChunkedArray:
    """A hive partition's value, or nulls for a column that this file does not have."""
    if value is None or value == HIVE_NULL:
        return pa.chunked_array([pa.nulls(count, kind)])
    return pa.chunked_array([pa.repeat(_partition_scalar(value, kind, where, source), count)])


def _partition_scalar(value: str, kind: pa.DataType, where: Place, source: str) -> pa.Scalar:
    try:
        return pa.scalar(value, pa.string()).cast(kind)
    except pa.ArrowException as error:
        raise ReadError(
            f"the hive directory {source}={value} does not fit the type of column '{source}', {kind}",
            path=where.entry.url,
        ) from error


def check_agrees(array: pa.ChunkedArray, value: str, where: Place, source: str) -> None:
    """Refuse a column that the file has otherwise than its hive directory says.

    Raises:
        ReadError: the first row that disagrees.
    """
    if value == HIVE_NULL:
        same = pc.is_null(array)
    else:
        same = pc.fill_null(pc.equal(array, _partition_scalar(value, array.type, where, source)), False)
    row = pc.index(same, False).as_py()
    if row >= 0:
        raise ReadError(
            f"column '{source}' is {array[row].as_py()!r} in the file, and its directory says {source}={value}",
            path=where.entry.url,
            row=where.file_row(row),
        )


def without_nulls(array: pa.ChunkedArray, value: Any, where: Place, name: str) -> pa.ChunkedArray:
    """Nulls filled where a value is given; refused where the type has no room for them.

    Raises:
        ReadError: the first such row.
    """
    kind = array.type
    _check_inside(array, where, name)
    if not array.null_count:
        return array
    if value is not None:
        return pc.fill_null(array, pa.scalar(value, kind))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        row = pc.index(pc.is_null(array), True).as_py()
        raise ReadError(
            f"column '{name}' is null here, and {kind} has no value for that",
            path=where.entry.url,
            row=where.file_row(row),
            hint=f"Say what stands for a null: source.fill: {{{name}: 0}}",
        )
    return array


def _check_inside(array: pa.ChunkedArray, where: Place, name: str) -> None:
    """Refuse nulls inside lists of integers or booleans, and null lists of a fixed size of them.

    Raises:
        ReadError: the first such row.
    """
    if not is_list(array.type):
        return
    kind, fixed = array.type.value_type, pa.types.is_fixed_size_list(array.type)
    while fixed and pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return
    first = 0
    for chunk in array.chunks:
        row = _null_inside(chunk)
        if row is not None:
            raise ReadError(
                f"column '{name}' is {array.type} and has a null {'' if fixed else 'inside its list '}here, for which "
                f"NumPy has no {kind}",
                path=where.entry.url,
                row=where.file_row(first + row),
                hint="Write the data without it, or leave the column out",
            )
        first += len(chunk)


def _null_inside(lists: pa.Array) -> int | None:
    """The first row of an array of lists that has a null inside; of fixed-size ones, that has one or is null."""
    fixed = pa.types.is_fixed_size_list(lists.type)
    if fixed and lists.null_count:
        return int(pc.index(pc.is_null(lists), True).as_py())
    inner = lists.flatten()
    at = _null_inside(inner) if pa.types.is_fixed_size_list(inner.type) else None
    if at is None and inner.null_count:
        at = int(pc.index(pc.is_null(inner), True).as_py())
    if at is None:
        return None
    return at // lists.type.list_size if fixed else int(pc.list_parent_indices(lists)[at].as_py())
