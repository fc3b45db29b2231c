"""The entries of a record: which names it holds, and where the value of each lies."""

from __future__ import annotations

from typing import Any

from ingest.read.wire.arrays import Found, Names
from ingest.read.wire.codes import BAD_KEY, LONG_VARINT, NAMES, OK, SEQUENCE
from ingest.read.wire.compile import helper, int64
from ingest.read.wire.fields import FIRST, LEN, MOST_BYTES, SECOND, read_length, read_tag, skip_field
from ingest.read.wire.names import is_name, is_utf8, learn_name


@helper
def _entry(data: Any, start: int, stop: int) -> tuple[int, int, int, int, int, int, int]:
    """A map entry in any form: (code, at, name start, name stop, value start, value stop, values).

    Without a value, or with several, the value is the whole entry, to be walked by `put_value`.
    """
    name_start, name_stop, value_start, value_stop, values = start, start, start, stop, 0
    at = start
    while at < stop:
        tag, body = read_tag(data, at, stop)
        if body < 0:
            return -body, at, start, start, start, stop, 0
        if tag & 7 == LEN and tag < 3 << 3:  # fields 1 and 2
            length, begin = read_length(data, body, stop)
            if begin < 0:
                return -begin, at, start, start, start, stop, 0
            if tag == FIRST:
                if not is_utf8(data, begin, begin + length):
                    return BAD_KEY, begin, start, start, start, stop, 0
                name_start, name_stop = begin, begin + length
            else:
                value_start, value_stop = begin, begin + length
                values += 1
            at = begin + length
        else:
            end = skip_field(data, body, stop, tag, 2)
            if end < 0:
                return -end, at, start, start, start, stop, 0
            at = end
    if values != 1:
        value_start, value_stop = start, stop
    return OK, start, name_start, name_stop, value_start, value_stop, values


@helper
def _entries(
    data: Any,
    start: int,
    stop: int,
    names: Names,
    found: Found,
    record: int,
    must_learn: bool,
) -> tuple[int, int]:
    """The entries of one Features message: (code, at).

    Each name that is known is told in `found`, as its last entry in the record has it.
    """
    before = 0
    at = start
    while at < stop:
        tag, body = read_tag(data, at, stop)
        if body < 0:
            return -body, at
        if tag != FIRST:
            end = skip_field(data, body, stop, tag, 1)
            if end < 0:
                return -end, at
            at = end
            continue
        length, begin = read_length(data, body, stop)
        if begin < 0:
            return -begin, at
        end = begin + length
        # What every writer writes: a short name, then one value that ends with the entry.
        plain = False
        name_start = name_stop = value = begin
        if length >= 4 and data[begin] == FIRST and data[begin + 1] < 128:
            name_start = begin + 2
            name_stop = name_start + int64(data[begin + 1])
            if name_stop + 2 <= end and data[name_stop] == SECOND:
                size, value = read_length(data, name_stop + 1, end)
                plain = value > 0 and value + size == end
        value_stop, form = end, 1
        if not plain:
            code, bad, name_start, name_stop, value, value_stop, form = _entry(data, begin, end)
            if code != OK:
                return code, bad
        number = names.after[before]
        if number < 0 or not is_name(data, name_start, name_stop, names, number):
            number = learn_name(data, name_start, name_stop, names)
            if number < -1:
                return -number, name_start
            if number == -1 and must_learn:
                return NAMES, begin
            names.after[before] = number
        if number >= 0:
            found.start[number] = value
            found.stop[number] = value_stop
            found.values[number] = form
            found.record[number] = record
        before = number + 1
        at = end
    return OK, at


@helper
def walk_record(
    data: Any,
    start: int,
    stop: int,
    names: Names,
    found: Found,
    record: int,
    must_learn: bool,
) -> tuple[int, int]:
    """`_entries` of a whole record. Several Features messages are merged."""
    if stop - start > MOST_BYTES:
        return LONG_VARINT, start
    at = start
    while at < stop:
        tag, body = read_tag(data, at, stop)
        if body < 0:
            return -body, at
        if tag == FIRST:
            length, begin = read_length(data, body, stop)
            if begin < 0:
                return -begin, at
            at = begin + length
            code, bad = _entries(data, begin, at, names, found, record, must_learn)
            if code != OK:
                return code, bad
        elif tag == SECOND:
            return SEQUENCE, at
        else:
            end = skip_field(data, body, stop, tag, 0)
            if end < 0:
                return -end, at
            at = end
    return OK, at
