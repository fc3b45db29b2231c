"""Batches out of tables that are arranged in the order of delivery: a few slices of each column, joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.augment.collate import collate, is_plain_list, nulls, to_numpy
from ingest.loader.ragged import Ragged
from ingest.plan.lanes import expand

MOST_BATCHES = 8  # joined at a time: together they should fit a processor's cache

_Column: TypeAlias = NDArray[Any] | Ragged | None


@dataclass(frozen=True)
class _Band:
    """Neighbouring columns of one dtype, as one array.

    Attributes:
        names: of the columns.
        values: (columns, rows, ...), a view of their table.
    """

    names: tuple[str, ...]
    values: NDArray[Any]

    def found_in(self, table: Arranged) -> bool:
        """Whether that table has the same columns as one, too."""
        other = table.bands.get(self.names)
        if other is None:
            return False
        mine, others = self.values, other.values
        return mine.dtype == others.dtype and mine.shape[2:] == others.shape[2:]


class Arranged:
    """A table's columns, converted once, so that a slice of it costs a view of each.

    Args:
        table: each column in one chunk.

    Attributes:
        columns: name: the column as `collate` gives it; None for a type that is converted row by row.
        bands: the arrays among them by their names, those that the table has side by side as one.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.columns: dict[str, _Column] = {name: _opened(table.column(name), name) for name in table.column_names}
        self.bands = {band.names: band for band in _bands(self.columns)}


Part: TypeAlias = tuple[Arranged, slice | NDArray[np.int64]]
"""Some rows of a table: int64 (n,), or a slice of step 1."""


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


def _bands(columns: dict[str, _Column]) -> Iterator[_Band]:
    """The arrays, those of one dtype that lie at equal distances as one: a table of many columns is one copy then."""
    names: list[str] = []
    found: list[NDArray[Any]] = []
    for name, column in columns.items():
        if not isinstance(column, np.ndarray):
            continue
        if found and not _goes_on(found, column):
            yield _band(names, found)
            names, found = [], []
        names.append(name)
        found.append(column)
    if found:
        yield _band(names, found)


def _goes_on(found: list[NDArray[Any]], column: NDArray[Any]) -> bool:
    last = found[-1]
    if not (column.dtype == last.dtype and column.shape == last.shape and column.ndim == 1 and column.size):
        return False
    if not (column.flags.c_contiguous and last.flags.c_contiguous):
        return False
    distance = _address(column) - _address(last)
    return len(found) == 1 or distance == _address(last) - _address(found[-2])


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _band(names: list[str], found: list[NDArray[Any]]) -> _Band:
    """Each column is read inside its own bounds alone, and kept alive by its table."""
    first = found[0]
    if len(found) == 1:
        return _Band(tuple(names), first[None])
    strides = (_address(found[1]) - _address(first), first.itemsize)
    shape = (len(found), len(first))
    return _Band(tuple(names), np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False))


def join(parts: Sequence[Part]) -> dict[str, Any]:
    """The columns of a batch, one part after another.

    Returns:
        Column name: array (rows, ...) or `Ragged`, sharing no memory with the tables.

    Raises:
        ReadError: a null where NumPy has none, or tables that disagree on a column.
    """
    return join_run([parts])[0]


def run_length(batches: Sequence[Sequence[Part]]) -> int:
    """How many of the first batches go on, part by part, where the one before them ends; at most `MOST_BATCHES`."""
    count = 1
    while count < min(len(batches), MOST_BATCHES) and _follows(batches[count - 1], batches[count]):
        count += 1
    return count


def _follows(one: Sequence[Part], two: Sequence[Part]) -> bool:
    if len(one) != len(two):
        return False
    for (table, rows), (next_table, next_rows) in zip(one, two, strict=True):
        if table is not next_table or not isinstance(rows, slice) or not isinstance(next_rows, slice):
            return False
        if next_rows.start != rows.stop or next_rows.stop - next_rows.start != rows.stop - rows.start:
            return False
    return True


def join_run(batches: Sequence[Sequence[Part]]) -> list[dict[str, Any]]:
    """As `join`, of several batches that `run_length` finds together. Their arrays are views of common ones.

    A few rows of each of many columns lie far apart in memory, and fetching them costs more than copying them; of
    several batches they lie together.
    """
    first = batches[0]
    together: dict[str, NDArray[Any]] = {}  # (batches, rows, ...)
    for band in first[0][0].bands.values():
        if all(band.found_in(table) for table, _ in first):
            together.update(zip(band.names, _joined(band, batches), strict=True))
    out = []
    for number, parts in enumerate(batches):
        rest = _join_rest(parts, together)
        arrays = {name: values[number] for name, values in together.items()}
        out.append({name: arrays[name] if name in arrays else rest[name] for name in first[0][0].columns})
    return out


def _joined(band: _Band, batches: Sequence[Sequence[Part]]) -> NDArray[Any]:
    """(columns, batches, rows, ...) of one band."""
    first, last, count = batches[0], batches[-1], len(batches)
    sizes = [rows.stop - rows.start if isinstance(rows, slice) else len(rows) for _, rows in first]
    shape = band.values.shape
    out = np.empty((shape[0], count, sum(sizes), *shape[2:]), band.values.dtype)
    at = 0
    for (table, rows), (_, end), size in zip(first, last, sizes, strict=True):
        values = table.bands[band.names].values
        some = (
            values[:, rows.start : end.stop] if isinstance(rows, slice) and isinstance(end, slice) else values[:, rows]
        )
        out[:, :, at : at + size] = some.reshape(shape[0], count, size, *shape[2:])
        at += size
    return out


def _join_rest(parts: Sequence[Part], done: dict[str, Any]) -> dict[str, Any]:
    """The columns of a batch that are not done."""
    out: dict[str, Any] = {}
    slow = []
    for name, column in parts[0][0].columns.items():
        if name in done:
            continue
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
    return out


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
