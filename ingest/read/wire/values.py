"""The values of a Feature, written to the columns, or only counted."""

from __future__ import annotations

from typing import Any

from ingest.read.wire.arrays import Columns
from ingest.read.wire.codes import BAD_FLOATS, CUT, FLOAT, INT64, OK
from ingest.read.wire.compile import helper
from ingest.read.wire.copying import copy_bytes
from ingest.read.wire.fields import FIRST, LEN, SECOND, read_length, read_tag, read_varint, skip_field


@helper
def put_ints(data: Any, start: int, stop: int, slots: Any, base: int, count: int, room: int) -> tuple[int, int, int]:
    """Packed varints to slots[base + count:]: (code, at, new count). Those past `room` are counted, not written."""
    at = start
    while at < stop:
        value, end = read_varint(data, at, stop)
        if end < 0:
            return -end, at, count
        if count < room:
            slots[base + count] = value
        count += 1
        at = end
    return OK, at, count


@helper
def put_floats(data: Any, start: int, stop: int, floats: Any, base: int, count: int, room: int) -> int:
    """Packed floats to floats[base + count:]: new count. Those past `room` are counted, not written."""
    new = (stop - start) >> 2
    size = min(new, max(room - count, 0)) * 4
    copy_bytes(floats, (base + count) * 4, data, start, size)
    return count + new


@helper
def _put_bytes(
    data: Any, start: int, stop: int, columns: Columns, base: int, count: int, room: int, heap: int, at: int, most: int
) -> int:
    """A byte string to heap[heap + at:], its end to slots[base + 1 + count]: where the string ends, from `heap`.

    What is past `room` strings or `most` bytes is counted, not written.
    """
    end = at + stop - start
    if end <= most:
        copy_bytes(columns.heap, heap + at, data, start, stop - start)
    if count < room:
        columns.slots[base + 1 + count] = end
    return end


@helper
def _put_list(
    data: Any,
    start: int,
    stop: int,
    kind: int,
    columns: Columns,
    base: int,
    count: int,
    room: int,
    heap: int,
    heap_at: int,
    most: int,
) -> tuple[int, int, int, int]:
    """The values of one BytesList, FloatList or Int64List, after `count` others: (code, at, count, heap_at)."""
    at = start
    while at < stop:
        tag, body = read_tag(data, at, stop)
        if body < 0:
            return -body, at, count, heap_at
        if tag == FIRST:
            length, begin = read_length(data, body, stop)
            if begin < 0:
                return -begin, at, count, heap_at
            end = begin + length
            if kind == INT64:
                code, bad, count = put_ints(data, begin, end, columns.slots, base, count, room)
                if code != OK:
                    return code, bad, count, heap_at
            elif kind == FLOAT:
                if length & 3:
                    return BAD_FLOATS, at, count, heap_at
                count = put_floats(data, begin, end, columns.floats, base, count, room)
            else:
                heap_at = _put_bytes(data, begin, end, columns, base, count, room, heap, heap_at, most)
                count += 1
        elif kind == INT64 and tag == 1 << 3:
            value, end = read_varint(data, body, stop)
            if end < 0:
                return -end, at, count, heap_at
            if count < room:
                columns.slots[base + count] = value
            count += 1
        elif kind == FLOAT and tag == (1 << 3 | 5):
            if stop - body < 4:
                return CUT, at, count, heap_at
            end = body + 4
            count = put_floats(data, body, end, columns.floats, base, count, room)
        else:
            end = skip_field(data, body, stop, tag, 4)
            if end < 0:
                return -end, at, count, heap_at
        at = end
    return OK, at, count, heap_at


@helper
def _put_feature(
    data: Any,
    start: int,
    stop: int,
    kind: int,
    found: int,
    columns: Columns,
    base: int,
    count: int,
    room: int,
    heap: int,
    heap_start: int,
    heap_at: int,
    most: int,
) -> tuple[int, int, int, int, int]:
    """The values of a Feature: (code, at, kind found, count, heap_at).

    `found`, `count` and `heap_at` are those of the Feature that this one is merged into. With `kind` 0 nothing is
    written, and values of any kind are counted; so are those of another kind than was asked.
    """
    at = start
    while at < stop:
        tag, body = read_tag(data, at, stop)
        if body < 0:
            return -body, at, found, count, heap_at
        if tag & 7 == LEN and tag < 4 << 3:  # fields 1 to 3
            length, begin = read_length(data, body, stop)
            if begin < 0:
                return -begin, at, found, count, heap_at
            held = tag >> 3
            if held != found:  # another member of the oneof: what was there goes
                found, count, heap_at = held, 0, heap_start
            may = held == kind
            code, bad, count, heap_end = _put_list(
                data,
                begin,
                begin + length,
                held,
                columns,
                base,
                count,
                room if may else 0,
                heap,
                heap_at,
                most if may else -1,
            )
            if code != OK:
                return code, bad, found, count, heap_at
            if may:
                heap_at = heap_end
            at = begin + length
        else:
            end = skip_field(data, body, stop, tag, 3)
            if end < 0:
                return -end, at, found, count, heap_at
            at = end
    return OK, at, found, count, heap_at


@helper
def put_value(
    data: Any,
    start: int,
    stop: int,
    form: int,
    kind: int,
    columns: Columns,
    base: int,
    room: int,
    heap: int,
    heap_start: int,
    most: int,
) -> tuple[int, int, int, int, int]:
    """`_put_feature` of what `_entries` found: a value, or an entry with none or several, which are merged."""
    if form == 1:
        return _put_feature(data, start, stop, kind, 0, columns, base, 0, room, heap, heap_start, heap_start, most)
    found, count, heap_at = 0, 0, heap_start
    at = start
    while at < stop:
        tag, body = read_tag(data, at, stop)
        if tag & 7 == LEN:  # the entry was walked before: all of it is in bounds
            length, begin = read_length(data, body, stop)
            at = begin + length
            if tag == SECOND:
                code, bad, found, count, heap_at = _put_feature(
                    data, begin, at, kind, found, columns, base, count, room, heap, heap_start, heap_at, most
                )
                if code != OK:
                    return code, bad, found, count, heap_at
        else:
            at = skip_field(data, body, stop, tag, 2)
    return OK, at, found, count, heap_at
