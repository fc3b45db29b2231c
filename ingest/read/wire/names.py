"""The table of feature names: found by their bytes, learnt where they are new."""

from __future__ import annotations

from typing import Any

from ingest.read.wire.arrays import Names
from ingest.read.wire.codes import BAD_KEY
from ingest.read.wire.compile import helper, int64, kernel


@helper
def is_utf8(data: Any, at: int, stop: int) -> bool:
    while at < stop:
        byte = int64(data[at])
        if byte < 0x80:
            at += 1
            continue
        # Bytes that follow, and the smallest code point that needs so many.
        if 0xC2 <= byte < 0xE0:
            more, point, least = 1, byte & 0x1F, 0x80
        elif 0xE0 <= byte < 0xF0:
            more, point, least = 2, byte & 0x0F, 0x800
        elif 0xF0 <= byte < 0xF5:
            more, point, least = 3, byte & 0x07, 0x10000
        else:
            return False
        if more >= stop - at:
            return False
        for k in range(1, more + 1):
            follows = int64(data[at + k])
            if follows & 0xC0 != 0x80:
                return False
            point = point << 6 | (follows & 0x3F)
        if point < least or point > 0x10FFFF or 0xD800 <= point < 0xE000:
            return False
        at += more + 1
    return True


@helper
def is_name(data: Any, start: int, stop: int, names: Names, number: int) -> bool:
    first = names.ends[number]
    if names.ends[number + 1] - first != stop - start:
        return False
    for k in range(stop - start):  # noqa: SIM110, a generator is no loop to the compiler
        if data[start + k] != names.text[first + k]:
            return False
    return True


@helper
def _slot_of(data: Any, start: int, stop: int, names: Names) -> int:
    """The slot in which a name stands, or the empty one in which it would."""
    mask = len(names.slots) - 1
    code = 0xCBF29CE484222325 - (1 << 64)  # FNV-1a, on int64
    for k in range(start, stop):
        code = (code ^ int64(data[k])) * 0x100000001B3
    slot: int = (code ^ (code >> 29)) & mask
    while names.slots[slot] >= 0 and not is_name(data, start, stop, names, names.slots[slot]):
        slot = (slot + 1) & mask
    return slot


@helper
def learn_name(data: Any, start: int, stop: int, names: Names) -> int:
    """The id of a name, a new one where it was not known; -1 where there is no room, minus a code where it is bad."""
    slot = _slot_of(data, start, stop, names)
    number: int = names.slots[slot]
    if number >= 0:
        return number
    if not is_utf8(data, start, stop):
        return -BAD_KEY
    number = names.known[0]
    first = names.ends[number]
    if number + 1 >= len(names.ends) or stop - start > len(names.text) - first:
        return -1
    for k in range(stop - start):
        names.text[first + k] = data[start + k]
    names.ends[number + 1] = first + stop - start
    names.slots[slot] = number
    names.known[0] = number + 1
    return number


@kernel
def learn_names(text: Any, ends: Any, names: Names) -> None:
    """Make names known: name i is text[ends[i]:ends[i + 1]]."""
    for k in range(len(ends) - 1):
        learn_name(text, ends[k], ends[k + 1], names)
