"""Batches out of tables that are arranged in the order of delivery: a few slices of each column, joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.augment.collate import collate, is_plain_list, nulls, to_numpy
from ingest.loader.ragged import Ragged
from ingest.plan.lanes import expand

_Column = NDArray[Any] | Ragged | None


class Arranged:
    """A table's columns, converted once, so that a slice of it costs a view of each.

    Args:
        table: each column in one chunk.

    Attributes:
        columns: name: the column as `collate` gives it; None for a type that is converted row by row.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.columns: dict[str, _Column] = {name: _opened(table.column(name), name) for name in table.column_names}


def _opened(column: pa.ChunkedArray, name: str) -> _Column:
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no chunk at all, or too long for one
        return None
    if is_plain_list(array.type):
        offsets = to_numpy(array.offsets, name).astype(np.int64)
        missing = nulls(array) if array.null_count else None
        return Ragged(to_numpy(array.values, name), offsets, missing)
    values = to_numpy(array, name) if not _made_of_objects(array.type) else None
    return None if values is None or values.dtype == object else values


def _made_of_objects(kind: pa.DataType) -> bool:
    """Whether converting a whole column would make a Python object of every value."""
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    plain = pa.types.is_primitive(kind) and not pa.types.is_time(kind)
    return not plain and not isinstance(kind, pa.BaseExtensionType)


def join(parts: Sequence[tuple[Arranged, slice | NDArray[np.int64]]]) -> dict[str, Any]:
    """The columns of a batch, one part after another: a slice of a table's rows, or some of them, int64.

    Returns:
        Column name: array (rows, ...) or `Ragged`, sharing no memory with the tables.

    Raises:
        ReadError: a null where NumPy has none, or tables that disagree on a column.
    """
    first = parts[0][0].columns
    out: dict[str, Any] = {}
    slow = []
    for name, column in first.items():
        columns = [part.columns[name] for part, _ in parts]
        if isinstance(column, np.ndarray) and all(isinstance(each, np.ndarray) for each in columns):
            out[name] = np.concatenate([each[rows] for each, (_, rows) in zip(columns, parts, strict=True)])  # type: ignore[index]
        elif isinstance(column, Ragged) and all(isinstance(each, Ragged) for each in columns):
            out[name] = _join_lists([(each, rows) for each, (_, rows) in zip(columns, parts, strict=True)])  # type: ignore[misc]
        else:
            slow.append(name)
    if slow:
        pieces = [(part.table.select(slow), _listed(rows)) for part, rows in parts]
        out.update(collate(pieces))
    return {name: out[name] for name in first}


def _listed(rows: slice | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.arange(rows.start, rows.stop, dtype=np.int64) if isinstance(rows, slice) else rows


def _join_lists(parts: Sequence[tuple[Ragged, slice | NDArray[np.int64]]]) -> Ragged:
    values, lengths, missing = [], [], []
    for column, rows in parts:
        if isinstance(rows, slice):
            ends = column.offsets[rows.start : rows.stop + 1]
            values.append(column.values[ends[0] : ends[-1]])
            lengths.append(np.diff(ends))
        else:
            starts = column.offsets[rows]
            counts = column.offsets[rows + 1] - starts
            values.append(column.values[expand(starts, counts)])
            lengths.append(counts)
        missing.append(None if column.missing is None else column.missing[rows])
    counts = np.concatenate(lengths)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    if all(each is None for each in missing):
        return Ragged(np.concatenate(values), offsets)
    known = [np.zeros(len(n), bool) if each is None else each for n, each in zip(lengths, missing, strict=True)]
    return Ragged(np.concatenate(values), offsets, np.concatenate(known))
