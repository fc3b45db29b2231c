"""Parquet page headers: Thrift's compact protocol, as little of it as a page header uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Buffer: TypeAlias = bytes | memoryview

DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)

_MAX_DEPTH = 8  # page headers nest three deep; damage could nest without end


@dataclass(frozen=True)
class PageHeader:
    """What a page says of itself.

    Attributes:
        type: DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE or DATA_PAGE_V2.
        header_bytes: of the header itself.
        compressed_bytes: of what follows it.
        uncompressed_bytes: of the same decompressed.
        crc: CRC-32 of what follows, where the writer gave one.
        values: number of values, nulls among them.
        encoding: Parquet's number for it.
        levels_bytes: of definition and repetition levels in front of the values, in a DATA_PAGE_V2.
        compressed: whether the values are.
    """

    type: int
    header_bytes: int
    compressed_bytes: int
    uncompressed_bytes: int
    crc: int | None
    values: int
    encoding: int
    levels_bytes: int = 0
    compressed: bool = True


def page_header(data: Buffer) -> PageHeader:
    """The header at the beginning of `data`.

    Raises:
        IndexError: it goes on after the end of `data`.
        ValueError: it is none.
    """
    fields, end = _struct(data, 0, 0)
    try:
        kind, uncompressed_bytes, compressed_bytes = (int(fields[i]) for i in (1, 2, 3))
        inner = fields[{DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}[kind]]
        values, encoding = int(inner[1]), int(inner[4 if kind == DATA_PAGE_V2 else 2])
        levels_bytes = int(inner[5]) + int(inner[6]) if kind == DATA_PAGE_V2 else 0
        compressed = bool(inner.get(7, True)) if kind == DATA_PAGE_V2 else True
    except (KeyError, TypeError) as error:
        raise ValueError(f"no page header: {error!r}") from error
    if min(uncompressed_bytes, compressed_bytes, values, levels_bytes) < 0:
        raise ValueError("a page header has a negative size")
    crc = None if fields.get(4) is None else int(fields[4]) & 0xFFFFFFFF
    return PageHeader(kind, end, compressed_bytes, uncompressed_bytes, crc, values, encoding, levels_bytes, compressed)


def _struct(data: Buffer, at: int, depth: int) -> tuple[dict[int, Any], int]:
    if depth > _MAX_DEPTH:
        raise ValueError("no page header: it nests too deep")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            raw, at = varint(data, at)
            number = _zigzag(raw)
        fields[number], at = _value(data, at, head & 15, depth)


def _value(data: Buffer, at: int, kind: int, depth: int) -> tuple[Any, int]:  # noqa: PLR0911  # one line a type
    if kind in (1, 2):  # a boolean is its type
        return kind == 1, at
    if kind == 3:  # a byte
        return data[at], at + 1
    if kind in (4, 5, 6):  # integers of 16, 32 and 64 bits
        raw, at = varint(data, at)
        return _zigzag(raw), at
    if kind == 7:  # a double, of which headers have none
        return None, at + 8
    if kind == 8:  # bytes: a minimum or maximum, skipped
        size, at = varint(data, at)
        return None, at + size
    if kind in (9, 10):  # a list or set, skipped
        head = data[at]
        count, at = (head >> 4, at + 1) if head >> 4 != 15 else varint(data, at + 1)
        for _ in range(count):
            _, at = _value(data, at, head & 15, depth + 1) if head & 15 not in (1, 2) else (None, at + 1)
        return None, at
    if kind == 12:
        return _struct(data, at, depth + 1)
    raise ValueError(f"no page header: it has a field of unknown type {kind}")


def varint(data: Buffer, at: int) -> tuple[int, int]:
    """An unsigned variable-length integer, and where the next value begins."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("an integer has more than ten bytes")


def _zigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
