"""Arrow rows to NumPy: encoded images as views, every other column as an array whose dtype its Arrow type decides."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from ingest.errors import ReadError

Pieces = Sequence[tuple[pa.Table, NDArray[np.int64]]]
_NO_BYTES = np.empty(0, np.uint8)


def gather(pieces: Pieces, column: str) -> list[NDArray[np.uint8] | None]:
    """Views of the encoded values of a batch; nothing is copied from binary, string and fixed-size columns.

    Args:
        pieces: (table, row indices int64 (rows,)) in the order of the batch. The tables may be chunked or sliced.
        column: a column of bytes.

    Returns:
        For each row a read-only uint8 (bytes,), valid as long as its table; None for null.

    Raises:
        ReadError: there is no such column, or it does not hold bytes.
    """
    out: list[NDArray[np.uint8] | None] = []
    for table, rows in pieces:
        chunks = _chunked(table, column).chunks
        opened: dict[int, _Bytes] = {}
        # Row by row: a batch has a row or two of each of many chunks, too few for NumPy to gain anything.
        for home, row in zip(*(each.tolist() for each in _places(chunks, rows)), strict=True):
            if home not in opened:
                opened[home] = _opened(chunks[home], column)
            starts, stops, data, missing = opened[home]
            out.append(None if missing is not None and missing[row] else data[starts.item(row) : stops.item(row)])
    return out


def collate(pieces: Pieces, skip: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """The columns of a batch as NumPy arrays. The dtype of each depends on its Arrow type alone:

    - integers, floats, bools: the same in NumPy, (rows,); a null float is NaN
    - date, timestamp, duration: datetime64 and timedelta64 of the same unit (UTC, where there is a zone); null is NaT
    - fixed_size_list<T>: (rows, k, ...) of what T gives; a null row of floats is NaN throughout
    - strings, binary: object array of str or bytes, or None
    - list<number>: object array of 1-D arrays, of any lengths, or None
    - null, struct, map, decimal, time and other lists: object array of Python values

    Args:
        pieces: (table, row indices int64 (rows,)) in the order of the batch; all tables have the same columns.
        skip: names left out.

    Returns:
        Column name: array (rows, ...), writable, sharing no memory with the tables.

    Raises:
        ReadError: a null where NumPy has none (integers, bools), or tables that disagree on a column.
    """
    names = [name for name in (pieces[0][0].column_names if pieces else ()) if name not in skip]
    return {name: _column(pieces, name) for name in names}


def _chunked(table: pa.Table, column: str) -> pa.ChunkedArray:
    try:
        return table.column(column)
    except KeyError:
        raise ReadError(f"no column '{column}' in a block; it has {', '.join(table.column_names)}") from None


def _places(chunks: Sequence[pa.Array], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Int64 (rows,) each: the chunk of every row, and the row inside it."""
    ends = np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64)
    home = np.searchsorted(ends, rows, side="right")
    return home, rows - np.concatenate([np.zeros(1, np.int64), ends])[home]


# Where each value starts and stops in the data, the data, and which values are null (None: none is).
_Bytes = tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8], NDArray[np.bool_] | None]


def _opened(chunk: pa.Array, column: str) -> _Bytes:
    kind = chunk.type
    if not pt.is_binary(kind):
        chunk = _without_views(chunk.dictionary_decode() if pt.is_dictionary(kind) else chunk)
        kind = chunk.type
    buffers = chunk.buffers()
    if pt.is_fixed_size_binary(kind):
        starts = np.arange(chunk.offset, chunk.offset + len(chunk)) * kind.byte_width
        stops = starts + kind.byte_width
    elif pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_string(kind) or pt.is_large_string(kind):
        wide = pt.is_large_binary(kind) or pt.is_large_string(kind)
        offsets = np.frombuffer(buffers[1], np.int64 if wide else np.int32)[chunk.offset :]
        starts, stops = offsets, offsets[1:]
    else:
        raise ReadError(
            f"column '{column}' is {kind}, and encoded images are binary",
            hint="Name a field inside a struct with dots, such as image.bytes, in source.columns",
        )
    data = _NO_BYTES if buffers[-1] is None else np.frombuffer(buffers[-1], np.uint8)
    data.flags.writeable = False
    return starts, stops, data, nulls(chunk) if chunk.null_count else None


def _is_view(kind: pa.DataType) -> bool:
    return bool(pt.is_binary_view(kind) or pt.is_string_view(kind))


def _without_views(array: pa.Array) -> pa.Array:
    """Arrow has no `take` for view types yet, so a chunk of them is copied as a whole."""
    if not _is_view(array.type):
        return array
    return array.cast(pa.large_binary() if pt.is_binary_view(array.type) else pa.large_string())


def _column(pieces: Pieces, name: str) -> NDArray[Any]:
    """One column of the batch."""
    columns = [_chunked(table, name) for table, _ in pieces]
    types = {str(column.type) for column in columns}
    if len(types) > 1:
        raise ReadError(f"column '{name}' is {' here and '.join(sorted(types))} there")
    kind = columns[0].type
    if _is_plain(kind) and all(_whole_is_cheap(c, len(rows)) for c, (_, rows) in zip(columns, pieces, strict=True)):
        return np.concatenate(
            [to_numpy(c.combine_chunks(), name)[rows] for c, (_, rows) in zip(columns, pieces, strict=True)]
        )
    parts, places, first = [], [], 0
    for column, (_, rows) in zip(columns, pieces, strict=True):
        chunks = column.chunks
        home, local = _places(chunks, rows)
        for index in np.unique(home).tolist():
            here = np.flatnonzero(home == index)
            parts.append(_picked(chunks[index], local[here]))
            places.append(first + here)
        first += len(rows)
    if not parts:  # no rows: the dtype is the type's all the same
        return to_numpy(_picked(pa.array([], kind), np.zeros(0, np.int64)), name)
    values = to_numpy(parts[0] if len(parts) == 1 else pa.concat_arrays(parts), name)
    out = np.empty_like(values)
    out[np.concatenate(places)] = values
    return out


def _whole_is_cheap(column: pa.ChunkedArray, rows: int) -> bool:
    """Whether a column without nulls is faster converted as a whole than picked chunk by chunk."""
    return column.null_count == 0 and (column.num_chunks == 1 or len(column) <= 1024 * max(rows, 1))


def _picked(chunk: pa.Array, rows: NDArray[np.int64]) -> pa.Array:
    picked = _without_views(chunk).take(pa.array(rows))
    return picked.dictionary_decode() if pt.is_dictionary(picked.type) else picked


def to_numpy(array: pa.Array, name: str) -> NDArray[Any]:
    """An Arrow array as NumPy, possibly a read-only view; `collate` states the rule for each type.

    Raises:
        ReadError: a null where NumPy has none.
    """
    kind = array.type
    if isinstance(kind, pa.ExtensionType | pa.BaseExtensionType):
        values = to_numpy(array.storage, name)
        shape = getattr(kind, "shape", None)  # a fixed-shape tensor
        return values.reshape(len(array), *shape) if shape and values.ndim == 2 else values
    if _is_plain(kind):
        if array.null_count and not (pt.is_floating(kind) or pt.is_temporal(kind)):
            raise ReadError(
                f"column '{name}' is {kind} and holds {array.null_count} nulls in this batch; NumPy has no null for it",
                hint=f"Give source.fill: {{{name}: VALUE}}; it fills no nulls inside lists",
            )
        return _numbers(array) if pt.is_integer(kind) or pt.is_floating(kind) else array.to_numpy(zero_copy_only=False)
    if pt.is_fixed_size_list(kind):
        return _fixed_lists(array, name)
    if is_plain_list(kind):
        return _lists(array, name)
    return _python(array, name)


def _python(array: pa.Array, name: str) -> NDArray[np.object_]:
    """Python values.

    Raises:
        ReadError: Python has none: a date beyond the year 9999, a time of day to the nanosecond, a struct with two
            fields of one name, a string that is not UTF-8.
    """
    hint = "Leave the column out: name the others in source.columns"
    if pt.is_time64(array.type) and array.type.unit == "ns":
        lost = np.flatnonzero(_numbers(array.cast(pa.int64()).fill_null(0)) % 1000)
        if len(lost):
            raise ReadError(f"column '{name}' holds a time of day to the nanosecond, which Python has not", hint=hint)
    try:
        return _objects(array.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise ReadError(
            f"column '{name}' is {array.type}, with a value that Python has not: {error}", hint=hint
        ) from error


def _numbers(array: pa.Array) -> NDArray[Any]:
    """A view of the values, or a copy with NaN for null. (Arrow's own conversion loads pandas: 0.4 s of a start.)"""
    size = array.type.bit_width // 8
    letter = "f" if pt.is_floating(array.type) else "i" if pt.is_signed_integer(array.type) else "u"
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), f"{letter}{size}")
    values = np.frombuffer(buffer, f"{letter}{size}", len(array), array.offset * size)
    return np.where(nulls(array), np.nan, values).astype(values.dtype) if array.null_count else values


def nulls(array: pa.Array) -> NDArray[np.bool_]:
    """Bool (rows,): which are null."""
    validity = array.buffers()[0]
    if validity is None or not array.null_count:
        return np.full(len(array), array.null_count > 0)  # of type null, all are
    bits = np.frombuffer(validity, np.uint8)[array.offset // 8 : (array.offset + len(array) + 7) // 8]
    valid: NDArray[np.uint8] = np.unpackbits(bits, bitorder="little")[array.offset % 8 :][: len(array)]
    missing: NDArray[np.bool_] = valid == 0
    return missing


def is_plain_list(kind: pa.DataType) -> bool:
    """Whether a type is a list of any length whose values NumPy has a dtype for."""
    return bool(pt.is_list(kind) or pt.is_large_list(kind)) and _is_plain(kind.value_type)


def _is_plain(kind: pa.DataType) -> bool:
    clock = pt.is_time(kind)  # time of day has no NumPy dtype
    return pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind) or (pt.is_temporal(kind) and not clock)


def _fixed_lists(array: pa.FixedSizeListArray, name: str) -> NDArray[Any]:
    size = array.type.list_size
    missing = nulls(array) if array.null_count else None
    if missing is not None and not _holds_nulls(array.type.value_type):
        raise ReadError(
            f"column '{name}' is {array.type} and has {array.null_count} null rows in this batch",
            hint="NumPy has no null for them: leave the column out, or fill it where it is written",
        )
    inner = array.values.slice(array.offset * size, len(array) * size)
    if missing is not None:  # what stands under a null row is undefined, and may be null itself
        keep = np.flatnonzero(~np.repeat(missing, size))
        found = to_numpy(inner.take(pa.array(keep)), name)
        values = np.full((len(inner), *found.shape[1:]), None if found.dtype == object else np.nan, found.dtype)
        values[keep] = found
    else:
        values = to_numpy(inner, name)
    return values.reshape(len(array), size, *values.shape[1:])


def _holds_nulls(kind: pa.DataType) -> bool:
    """Whether an array of this type has a value for null: NaN, NaT or None."""
    if pt.is_fixed_size_list(kind):
        return _holds_nulls(kind.value_type)
    return pt.is_floating(kind) or pt.is_temporal(kind) or not _is_plain(kind)


def _lists(array: pa.ListArray | pa.LargeListArray, name: str) -> NDArray[np.object_]:
    ends = to_numpy(array.offsets, name)
    values = np.array(to_numpy(array.values.slice(int(ends[0]), int(ends[-1] - ends[0])), name))
    cuts = (ends - ends[0]).tolist()
    rows: list[NDArray[Any] | None] = [values[a:b] for a, b in itertools.pairwise(cuts)]
    if array.null_count:
        for row in np.flatnonzero(nulls(array)).tolist():
            rows[row] = None
    return _objects(rows)


def _objects(values: Sequence[Any]) -> NDArray[np.object_]:
    return np.fromiter(values, dtype=object, count=len(values))
