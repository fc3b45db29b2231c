"""Tags, lengths and varints of a message, each checked against what holds it; unknown fields are skipped."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingest.read.wire.codes import BAD_GROUP, BAD_TAG, CUT, LONG_VARINT
from ingest.read.wire.compile import allocating_helper, helper, int64

MOST_BYTES = 2**31 - 1  # of a protobuf message
_DEEPEST = 100  # messages and groups inside each other, as protobuf counts
LEN = 2  # wire type
FIRST = 1 << 3 | LEN  # the tag of field 1 with a length: features, entries, keys, packed values, byte strings
SECOND = 2 << 3 | LEN


@helper
def read_varint(data: Any, at: int, stop: int) -> tuple[int, int]:
    """(value as int64, where it ends); the second is minus the code where there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            return 0, -CUT
        byte = int64(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    return 0, -LONG_VARINT


@helper
def _short_varint(data: Any, at: int, stop: int) -> tuple[int, int]:
    """`read_varint` of tags and lengths: below 2**32, in at most 5 bytes."""
    if at < stop and data[at] < 128:
        return int64(data[at]), at + 1
    value, end = read_varint(data, at, stop)
    if end - at > 5 or value < 0 or value >= 1 << 32:
        return 0, -LONG_VARINT
    return value, end


@helper
def read_tag(data: Any, at: int, stop: int) -> tuple[int, int]:
    tag, end = _short_varint(data, at, stop)
    if end > 0 and (tag < 8 or tag & 7 > 5):
        return 0, -BAD_TAG
    return tag, end


@helper
def read_length(data: Any, at: int, stop: int) -> tuple[int, int]:
    """(bytes, where they begin): they end before `stop`."""
    length, start = _short_varint(data, at, stop)
    if start > 0:
        if length > MOST_BYTES:
            return 0, -LONG_VARINT
        if length > stop - start:
            return 0, -CUT
    return length, start


@helper
def _skip_plain(data: Any, at: int, stop: int, tag: int) -> int:
    """Where an unknown field that is no group ends, its tag ending at `at`; or minus a code."""
    wire = tag & 7
    if wire == 0:
        _, end = read_varint(data, at, stop)
        return end
    if wire == LEN:
        length, start = read_length(data, at, stop)
        return start + length if start > 0 else start
    if wire == 4:
        return -BAD_TAG
    size = 8 if wire == 1 else 4
    return at + size if size <= stop - at else -CUT


@allocating_helper
def skip_field(data: Any, at: int, stop: int, tag: int, depth: int) -> int:
    """Where an unknown field ends, its tag ending at `at`, in a message `depth` deep; or minus a code."""
    if tag & 7 != 3:
        return _skip_plain(data, at, stop, tag)
    open_fields = np.empty(_DEEPEST + 1, np.int64)
    open_fields[0] = tag >> 3
    groups = 1
    while groups > 0:
        if depth + groups > _DEEPEST:
            return -BAD_GROUP
        tag, at = _short_varint(data, at, stop)  # upb does not mind field number 0 in here
        if at < 0:
            return at
        if tag & 7 > 5:
            return -BAD_TAG
        if tag & 7 == 3:
            open_fields[groups] = tag >> 3
            groups += 1
        elif tag & 7 == 4:
            groups -= 1
            if open_fields[groups] != tag >> 3:
                return -BAD_GROUP
        else:
            at = _skip_plain(data, at, stop, tag)
            if at < 0:
                return at
    return at
