"""Columns to framed tf.Example records: sizes first, then every byte in its place, by kernels compiled once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ingest.errors import SchemaError
from ingest.jit import compiled
from ingest.manifest.columns import is_list
from ingest.manifest.records import FRAME_BYTES, HEADER_BYTES, seal

_LIST = {"bytes": 0x0A, "float": 0x12, "int64": 0x1A}  # Feature's oneof, as tags
_SHORT = 64


@dataclass(frozen=True)
class _Column:
    """The values of a column, row after row.

    Attributes:
        name: UTF-8, uint8 (bytes,).
        kind: `bytes`, `float` or `int64`.
        rows: int64 (rows + 1,), row i has items [rows[i], rows[i + 1]).
        present: bool (rows,), false where the row has no such feature.
        values: int64 or float32 (items,); of bytes uint8 (bytes,), item j being values[ends[j] : ends[j + 1]].
        ends: int64 (items + 1,), for bytes; else empty.
    """

    name: NDArray[np.uint8]
    kind: str
    rows: NDArray[np.int64]
    present: NDArray[np.bool_]
    values: NDArray[Any]
    ends: NDArray[np.int64]


def encode(table: pa.Table) -> NDArray[np.uint8]:
    """A table as the content of a TFRecord file: one tf.Example a row, features in order of their names.

    Integers and booleans become int64 lists, floats float lists (float32), strings and binary bytes lists; a list
    column gives as many values as it has, nested fixed-size lists in C order. A null is a feature that is not there; an
    empty list is there, without a value.

    Raises:
        SchemaError: a column's type has no place in a tf.Example, or a value does not survive in it.
    """
    rows = len(table)
    columns = sorted((_column(name, table.column(name)) for name in table.column_names), key=lambda c: c.name.tobytes())
    sizes = np.zeros(rows, np.int64)
    for column in columns:
        _add_sizes(column.name, column.rows, column.present, column.ends, column.values, _LIST[column.kind], sizes)
    payload = sizes + _wrapping(sizes)
    starts = np.zeros(rows + 1, np.int64)
    np.cumsum(payload + FRAME_BYTES, out=starts[1:])
    out = np.empty(int(starts[-1]), np.uint8)
    at = starts[:-1].copy()
    _begin(out, at, payload, sizes)
    for column in columns:
        _put(column.name, column.rows, column.present, column.ends, column.values, _LIST[column.kind], out, at)
    seal(out, starts)
    return out


# -- columns -----------------------------------------------------------------------------------------------------------


def _column(name: str, chunked: pa.ChunkedArray) -> _Column:
    array = chunked.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    present = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), bool)
    rows = np.arange(len(array) + 1, dtype=np.int64)
    if array.null_count:
        array, rows = array.drop_null(), np.concatenate([[0], np.cumsum(present)]).astype(np.int64)
    while is_list(array.type):
        lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
        rows = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)[rows]
        array = array.flatten()
        if array.null_count:
            raise SchemaError(f"column '{name}' has a null inside a list, and a tf.Example has no place for it")
    kind, values, ends = _values(name, array)
    return _Column(np.frombuffer(name.encode(), np.uint8), kind, rows, present, values, ends)


def _values(name: str, array: pa.Array) -> tuple[str, NDArray[Any], NDArray[np.int64]]:
    kind, none = array.type, np.zeros(0, np.int64)
    if pa.types.is_dictionary(kind):
        return _values(name, array.dictionary_decode())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        try:
            wide = array.cast(pa.int8()).cast(pa.int64()) if pa.types.is_boolean(kind) else array.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise SchemaError(f"column '{name}' of type {kind} does not fit int64: {error}") from None
        return "int64", wide.to_numpy(), none
    if pa.types.is_floating(kind):
        exact = array.to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            narrow = exact.astype(np.float32)
        if not np.array_equal(narrow, exact, equal_nan=True):
            row = int(np.flatnonzero((narrow != exact) & ~np.isnan(exact))[0])
            raise SchemaError(
                f"column '{name}' is {kind}, and {exact[row]!r} is no float32, the only floats of a tf.Example",
                hint="Leave the column out, or round it where it is written",
            )
        return "float", narrow, none
    if _is_bytes(kind):
        data = array.cast(pa.large_binary())
        ends = (
            np.frombuffer(data.buffers()[1], np.int64, len(data) + 1, data.offset * 8)
            if len(data)
            else np.zeros(1, np.int64)
        )
        content = data.buffers()[2]
        return "bytes", np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8), ends
    raise SchemaError(
        f"column '{name}' is {kind}, and a tf.Example holds integers, floats, bytes and lists of them",
        hint="Name the columns to convert in source.columns; fields of a struct with dots",
    )


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_string(kind) or types.is_large_string(kind)
    return bool(plain or types.is_fixed_size_binary(kind))


# -- kernels -----------------------------------------------------------------------------------------------------------


def _wrapping(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes before a record's features: the tag and the length of its only field."""
    widths = np.ones(len(sizes), np.int64)
    for bits in range(7, 63, 7):
        widths += sizes >= 1 << bits
    return 1 + widths


@compiled
def _width(value: int) -> int:
    """Bytes of a varint; a negative number has ten."""
    if value < 0:
        return 10
    width = 1
    while value >= 128:
        value >>= 7
        width += 1
    return width


@compiled
def _put_varint(out: NDArray[np.uint8], at: int, value: int) -> int:
    left = np.uint64(value)
    while left >= np.uint64(128):
        out[at] = np.uint8((left & np.uint64(127)) | np.uint64(128))
        left >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(left)
    return at + 1


@compiled
def _put_bytes(out: NDArray[np.uint8], at: int, data: NDArray[np.uint8], start: int, stop: int) -> int:
    if stop - start > _SHORT:
        out[at : at + stop - start] = data[start:stop]
    else:  # a slice costs more than its bytes
        for byte in range(stop - start):
            out[at + byte] = data[start + byte]
    return at + stop - start


@compiled
def _content(values: NDArray[Any], ends: NDArray[np.int64], first: int, last: int, tag: int) -> tuple[int, int]:
    """(bytes of the list message, bytes of the packed numbers in it; 0 for bytes)."""
    packed = 0
    if tag == 0x0A:
        whole = 0
        for item in range(first, last):
            size = ends[item + 1] - ends[item]
            whole += 1 + _width(size) + size
        return whole, 0
    if last == first:
        return 0, 0
    if tag == 0x12:
        packed = 4 * (last - first)
    else:
        for item in range(first, last):
            packed += _width(np.int64(values[item]))  # type: ignore[arg-type]
    return 1 + _width(packed) + packed, packed


@compiled
def _nested(name: NDArray[np.uint8], content: int) -> tuple[int, int]:
    """(bytes of the Feature, bytes of the map entry), each without its own tag and length."""
    feature = 1 + _width(content) + content
    return feature, 1 + _width(len(name)) + len(name) + 1 + _width(feature) + feature


@compiled
def _add_sizes(
    name: NDArray[np.uint8],
    rows: NDArray[np.int64],
    present: NDArray[np.bool_],
    ends: NDArray[np.int64],
    values: NDArray[Any],
    tag: int,
    sizes: NDArray[np.int64],
) -> None:
    for row in range(len(sizes)):
        if present[row]:
            content, _ = _content(values, ends, rows[row], rows[row + 1], tag)
            _, entry = _nested(name, content)
            sizes[row] += 1 + _width(entry) + entry


@compiled
def _begin(out: NDArray[np.uint8], at: NDArray[np.int64], payload: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    for row in range(len(at)):
        place = at[row]
        for byte in range(8):
            out[place + byte] = np.uint8((payload[row] >> (8 * byte)) & 255)
        out[place + HEADER_BYTES] = 0x0A
        at[row] = _put_varint(out, place + HEADER_BYTES + 1, sizes[row])


@compiled
def _put(
    name: NDArray[np.uint8],
    rows: NDArray[np.int64],
    present: NDArray[np.bool_],
    ends: NDArray[np.int64],
    values: NDArray[Any],
    tag: int,
    out: NDArray[np.uint8],
    at: NDArray[np.int64],
) -> None:
    raw = values.view(np.uint8)
    for row in range(len(at)):
        if not present[row]:
            continue
        first, last = rows[row], rows[row + 1]
        content, packed = _content(values, ends, first, last, tag)
        feature, entry = _nested(name, content)
        place = at[row]
        out[place] = 0x0A
        place = _put_varint(out, place + 1, entry)
        out[place] = 0x0A
        place = _put_varint(out, place + 1, len(name))
        place = _put_bytes(out, place, name, 0, len(name))
        out[place] = 0x12
        place = _put_varint(out, place + 1, feature)
        out[place] = tag
        place = _put_varint(out, place + 1, content)
        if tag == 0x0A:
            for item in range(first, last):
                start, stop = ends[item], ends[item + 1]
                out[place] = 0x0A
                place = _put_varint(out, place + 1, stop - start)
                place = _put_bytes(out, place, raw, start, stop)
        elif last > first:
            out[place] = 0x0A
            place = _put_varint(out, place + 1, packed)
            if tag == 0x12:
                place = _put_bytes(out, place, raw, 4 * first, 4 * last)
            else:
                for item in range(first, last):
                    place = _put_varint(out, place, np.int64(values[item]))  # type: ignore[arg-type]
        at[row] = place
