"""Arrow columns of plain values and back without pandas, which pyarrow's own conversions import: 0.3 s of a core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_MOST_BYTES = 2**31 - 1  # of a chunk of strings whose offsets are int32


def table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows by the names of a schema; see `column`."""
    columns = [column([row[field.name] for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Values of a type, None for a null.

    Args:
        values: int, str or bytes; of a list sequences, of a struct mappings with all of its names.
        kind: int64, string, binary, large_binary, or a list or struct of such.
    """
    valid = _valid(values)
    if pa.types.is_struct(kind):
        children = [column([None if v is None else v[field.name] for v in values], field.type) for field in kind]
        return pa.Array.from_buffers(kind, len(values), [valid], children=children)
    if pa.types.is_list(kind):
        inner = column(list(chain.from_iterable(v for v in values if v is not None)), kind.value_type)
        return pa.Array.from_buffers(kind, len(values), [valid, _offsets(values, np.int32)], children=[inner])
    if pa.types.is_int64(kind):
        known: NDArray[np.int64] = np.array([0 if value is None else value for value in values], np.int64)
        return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(known)])
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    large = pa.types.is_large_binary(kind)
    if not large and sum(len(value) for value in raw if value is not None) > _MOST_BYTES:
        return pa.array(values, kind)  # in several chunks
    data = pa.py_buffer(b"".join(value for value in raw if value is not None))
    return pa.Array.from_buffers(kind, len(values), [valid, _offsets(raw, np.int64 if large else np.int32), data])


def of_numbers(values: NDArray[Any]) -> pa.Array:
    """An integer array (n,) as it is."""
    kind = getattr(pa, values.dtype.name)()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def numbers(values: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The numbers of a column without nulls, read-only where it is one chunk."""
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    found: list[NDArray[Any]] = [np.from_dlpack(chunk) for chunk in chunks if len(chunk)]
    if not found:
        return np.zeros(0, str(values.type))
    return found[0] if len(found) == 1 else np.concatenate(found)


def _valid(values: Iterable[Any]) -> pa.Buffer | None:
    present = np.array([value is not None for value in values], np.bool_)
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def _offsets(values: Sequence[Any], kind: type[np.int32 | np.int64]) -> pa.Buffer:
    lengths = [0, *(0 if value is None else len(value) for value in values)]
    return pa.py_buffer(np.cumsum(lengths, dtype=kind))
