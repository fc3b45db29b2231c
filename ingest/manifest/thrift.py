"""Thrift's compact protocol, as little of it as Parquet uses."""

from __future__ import annotations

from typing import Any, TypeAlias

Buffer: TypeAlias = bytes | memoryview

_MAX_DEPTH = 16  # footers nest some eight deep, and damage could nest without end


def struct(data: Buffer, at: int = 0, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Fields by number, and where the struct ends: integers, booleans, bytes as slices, lists and structs.

    Raises:
        IndexError: it goes on after the end of `data`.
        ValueError: it is none.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("it nests too deep")
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
    if kind == 7:  # a double, which nothing here asks for
        return None, at + 8
    if kind == 8:
        size, at = varint(data, at)
        return data[at : at + size], at + size
    if kind in (9, 10):  # a list or set
        head = data[at]
        count, at = (head >> 4, at + 1) if head >> 4 != 15 else varint(data, at + 1)
        values = []
        for _ in range(count):
            # A boolean of a list has a byte of its own.
            value, at = _value(data, at, head & 15, depth + 1) if head & 15 not in (1, 2) else (data[at] == 1, at + 1)
            values.append(value)
        return values, at
    if kind == 12:
        return struct(data, at, depth + 1)
    raise ValueError(f"it has a field of unknown type {kind}")


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
