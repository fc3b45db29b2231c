"""Bounds on a column's values from a Parquet footer's statistics, or from a hive directory."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ingest.manifest.columns import Column, output_type
from ingest.manifest.listing import DIRECTORY_INTEGER, HIVE_NULL
from ingest.manifest.model import FileEntry
from ingest.manifest.parquet import Footer, column_chunks
from ingest.manifest.where import TICKS, Bounds, Point, is_text

_UNKNOWN = Bounds()
_NULLS = Bounds(values=False)

_SIZES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}  # bytes; others may have any
_ANY_SIZE = 1 << 62  # where the chunk lies is not asked here


def unit_bounds(entry: FileEntry, footer: Footer, ordinal: int, source: str, kind: pa.DataType) -> Bounds:
    """What is known of a source column in one row group.

    Args:
        entry: the file.
        footer: its footer.
        ordinal: the row group.
        source: the column, as the spec names it.
        kind: its type over all files, in whose domain the bounds are.
    """
    column = footer.columns.find(source)
    return directory_bounds(entry, source, kind) if column is None else _from_statistics(footer, ordinal, column, kind)


def directory_bounds(entry: FileEntry, source: str, kind: pa.DataType) -> Bounds:
    """What is known of a column that the file itself does not have: its directory's value, or nulls."""
    value = dict(entry.partitions).get(source, HIVE_NULL)
    if value == HIVE_NULL:
        return _NULLS
    point: Point | None = None
    if is_text(kind):
        point = value.encode()
    elif pa.types.is_integer(kind) and DIRECTORY_INTEGER.fullmatch(value):
        point = int(value)
    return Bounds(point, point, nulls=False)


def _from_statistics(footer: Footer, ordinal: int, column: Column, kind: pa.DataType) -> Bounds:
    """Bounds may be wider than the values (truncated strings); absent or doubtful statistics say nothing.

    pyarrow leaves out the deprecated fields where their order is not the type's own.
    """
    if pa.types.is_nested(output_type(column.type)):
        return _UNKNOWN  # its leaves' nulls and values are not its own
    group = footer.metadata.row_group(ordinal)
    try:
        ((chunk,),) = column_chunks(footer, [ordinal], column.leaves[:1], _ANY_SIZE)
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return _UNKNOWN  # reading says what is damaged
    if not _sound(footer, ordinal, column.leaves[0]) or not chunk.is_stats_set:
        return _UNKNOWN
    statistics = chunk.statistics
    if statistics.has_null_count and statistics.null_count >= group.num_rows:
        return _NULLS
    nulls = not statistics.has_null_count or statistics.null_count > 0
    low = high = None
    if statistics.has_min_max:
        # Some values have no Python type: nothing is known then.
        with contextlib.suppress(ValueError, OverflowError, ArithmeticError, NotImplementedError, pa.ArrowException):
            low, high = _points(statistics, output_type(column.type), kind)
    known = low is not None and high is not None and low <= high  # type: ignore[operator]
    return Bounds(low, high, nulls=nulls) if known else Bounds(nulls=nulls)


def _sound(footer: Footer, ordinal: int, leaf: int) -> bool:
    """Whether the bounds of a chunk have as many bytes as their type: pyarrow ends the process for fewer."""
    column = footer.metadata.schema.column(leaf)
    size = column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _SIZES.get(column.physical_type)
    try:
        found = footer.bounds_bytes[ordinal][leaf]
    except (ValueError, IndexError, KeyError, AttributeError, TypeError):
        return False  # reading says what is damaged
    return size is None or found <= {size}


def _points(statistics: Any, own: pa.DataType, kind: pa.DataType) -> tuple[Point | None, Point | None]:
    """The least and greatest value in the domain of `kind`, the file's own type being `own`."""
    raw = statistics.min_raw, statistics.max_raw
    if pa.types.is_timestamp(own) and pa.types.is_timestamp(kind):
        factor, rest = divmod(TICKS[kind.unit], TICKS[own.unit])
        return (None, None) if rest or statistics.physical_type != "INT64" else (raw[0] * factor, raw[1] * factor)
    if (is_text(own) and is_text(kind)) or (pa.types.is_date32(own) and pa.types.is_date32(kind)):
        return raw
    if pa.types.is_decimal(own) and pa.types.is_decimal(kind) and own.scale == kind.scale:
        return _unscaled(statistics.min, own.scale), _unscaled(statistics.max, own.scale)
    same = [pa.types.is_integer, pa.types.is_boolean, lambda one: pa.types.is_float32(one) or pa.types.is_float64(one)]
    return (statistics.min, statistics.max) if any(is_a(own) and is_a(kind) for is_a in same) else (None, None)


def _unscaled(value: Decimal, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    if exponent != -scale:
        raise ValueError(f"a decimal of scale {scale} was expected, and {value} came")
    return int("".join(map(str, digits))) * (-1 if sign else 1)
