"""The protobuf wire format of tf.Example, walked by compiled kernels: bytes in, flat columns out, never out of bounds.

Importing this module takes numba in and defines the kernels; `ingest.read.kernels` does it at the right time and place.
All of them stand in this one file, because numba's cache looks at the file of the kernel that was called alone: a
helper changed elsewhere would go unnoticed.

What is valid, and what it means, is what protobuf's own parser says of it (`tf.train.Example.FromString`): the last
entry of a map key counts, a repeated message is merged, setting another member of a oneof clears the first, tags and
lengths take at most 5 bytes, values at most 10, groups nest at most 100 deep, keys are UTF-8. Kernels index with
int64, return codes instead of raising, and check each length against the message around it before they use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ingest.jit import kernel

Function = TypeVar("Function", bound=Callable[..., Any])
_int64: Any = np.int64  # to mypy, what it makes is an int, as it is to the compiler

# What a kernel says of a record.
OK = 0
CUT = 1  # a field runs past the end of the message that holds it
LONG_VARINT = 2  # a varint of more than 10 bytes; a tag or a length of more than 5, or too large
BAD_TAG = 3  # field number 0, wire type 6 or 7, or the end of a group that was not begun
BAD_GROUP = 4  # a group ends as another, or nests too deep
BAD_KEY = 5  # a feature's name is not UTF-8
KIND = 6  # a feature holds another kind than was asked; detail: the kind it holds
LENGTH = 7  # a feature of fixed shape has another number of values; detail: how many
MISSING = 8  # a required feature is not there
BAD_FLOATS = 9  # packed floats whose bytes are no multiple of 4
SEQUENCE = 10  # a SequenceExample
ROOM = 11  # not the record's fault: the columns have no room left
NAMES = 12  # not the record's fault: the table of names is full

BYTES, FLOAT, INT64 = 1, 2, 3  # field numbers of Feature's oneof
KIND_NAMES = ("", "bytes", "float", "int64")

_MOST_BYTES = 2**31 - 1  # of a protobuf message
_SHORT = 16  # bytes that a loop copies sooner than a call does
_DEEPEST = 100  # messages and groups inside each other, as protobuf counts
_LEN = 2  # wire type
_FIRST = 1 << 3 | _LEN  # the tag of field 1 with a length: features, entries, keys, packed values, byte strings
_SECOND = 2 << 3 | _LEN


class Names(NamedTuple):
    """Feature names seen so far, found by their bytes; ids count from 0 in the order of learning.

    Attributes:
        text: uint8, the names one after another.
        ends: int64 (most + 1,); name i is text[ends[i]:ends[i + 1]].
        slots: int64 (a power of two, at least twice `most`), open addressing by hash: id, or -1.
        known: int64 (1,), how many there are.
        after: int64 (most + 1,), guess: the name that last followed name i - 1; after[0] the one that came first.
    """

    text: Any
    ends: Any
    slots: Any
    known: Any
    after: Any


class Wanted(NamedTuple):
    """The features asked for; int64 (n,) each, in order.

    Attributes:
        kind: BYTES, FLOAT or INT64.
        width: values a record, of a fixed shape; -1 for a ragged list.
        base: where the feature's values begin: in `slots`, counted in values, for ints; in `floats`, in values, for
            floats; for bytes their string offsets begin there in `slots`, with a leading 0.
        room: values that fit; of ragged features.
        heap: where its bytes begin in `heap`; of bytes.
        heap_room: bytes that fit there.
        row: of a ragged feature, its row in `offsets`.
        default_start: where its default begins in `defaults`, as a serialised Feature; -1: there is none.
        default_stop: where it ends.
    """

    kind: Any
    width: Any
    base: Any
    room: Any
    heap: Any
    heap_room: Any
    row: Any
    default_start: Any
    default_stop: Any


class Columns(NamedTuple):
    """Where values go, see `Wanted`.

    Attributes:
        slots: int64, ints and the offsets of byte strings.
        floats: uint8, float32 values by their bytes.
        heap: uint8, the bytes of byte strings.
        offsets: int64 (ragged features, records + 1), of their lists.
        used: int64 (2, n), state: values and heap bytes of each feature that are final.
        needed: int64 (2, n), out, with ROOM: values and heap bytes that the next record needs in all.
    """

    slots: Any
    floats: Any
    heap: Any
    offsets: Any
    used: Any
    needed: Any


class Faults(NamedTuple):
    """What is wrong with each record; (records,) each.

    Attributes:
        code: int64, OK or what is wrong.
        at: int64, the byte of the data.
        feature: int64, index of the wanted feature, or -1.
        detail: int64, see the codes.
    """

    code: Any
    at: Any
    feature: Any
    detail: Any


class Found(NamedTuple):
    """Of each name, in the record at hand; int64 (most + 1,) each. Scratch, but for `record`, which begins as -1.

    Attributes:
        start: where its value, or the entry around it, begins in the data.
        stop: where that ends.
        values: 1: that is the value; else an entry with so many.
        record: the last record that had the name.
        size: values, of the wanted feature with that id, or of the name in a survey.
        extra: where the bytes of a wanted feature end in its heap; or the kind of the name in a survey.
    """

    start: Any
    stop: Any
    values: Any
    record: Any
    size: Any
    extra: Any


class Seen(NamedTuple):
    """What a survey has seen of each name; int64 (most,) each.

    Attributes:
        records: that hold it with a kind.
        shortest: of its lists.
        longest: of its lists.
        kinds: bit k set: a list of kind k with values.
        empty_kinds: bit k set: a list of kind k without.
    """

    records: Any
    shortest: Any
    longest: Any
    kinds: Any
    empty_kinds: Any


# Without reference counts, which arrays would take at each call, and which took more than half of the time: an array
# outlives all calls that see it, since it comes from outside. So nothing here may make an array, but for `_skip`.
_options = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}


def _kernel(function: Function) -> Function:
    """Called from Python: compiled once, and kept on disk."""
    return kernel(function, **_options)


def _helper(function: Function) -> Function:
    """Compiled into the kernels that call it."""
    compiled: Function = njit(nogil=True, no_cpython_wrapper=True, **_options)(function)
    return compiled


def _allocating_helper(function: Function) -> Function:
    """One that makes an array."""
    compiled: Function = njit(nogil=True, no_cpython_wrapper=True, **{**_options, "_nrt": True})(function)
    return compiled


@intrinsic  # type: ignore[untyped-decorator]
def _memcpy(typing: Any, out: Any, out_at: Any, data: Any, start: Any, size: Any) -> Any:
    """Bytes between contiguous uint8 arrays, from and to places that the caller has checked."""
    del typing, out_at, start, size

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = []
        for k in (0, 2):
            array = context.make_array(signature.args[k])(context, builder, args[k])
            places.append(builder.gep(array.data, [args[k + 1]]))
        cgutils.raw_memcpy(builder, *places, args[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), generate


@_helper
def _copy(out: Any, out_at: int, data: Any, start: int, size: int) -> None:
    """Bytes data[start:start + size] to out[out_at:]."""
    if size < _SHORT:
        for k in range(size):
            out[out_at + k] = data[start + k]
    else:  # a loop would not become a copy of many bytes at a time, since an index may be negative
        out[out_at] = data[start]  # where bounds are checked, these two lines check them
        out[out_at + size - 1] = data[start + size - 1]
        _memcpy(out, out_at, data, start, size)


@_helper
def _varint(data: Any, at: int, stop: int) -> tuple[int, int]:
    """(value as int64, where it ends); the second is minus the code where there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            return 0, -CUT
        byte = _int64(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    return 0, -LONG_VARINT


@_helper
def _short_varint(data: Any, at: int, stop: int) -> tuple[int, int]:
    """`_varint` of tags and lengths: below 2**32, in at most 5 bytes."""
    if at < stop and data[at] < 128:
        return _int64(data[at]), at + 1
    value, end = _varint(data, at, stop)
    if end - at > 5 or value < 0 or value >= 1 << 32:
        return 0, -LONG_VARINT
    return value, end


@_helper
def _tag(data: Any, at: int, stop: int) -> tuple[int, int]:
    tag, end = _short_varint(data, at, stop)
    if end > 0 and (tag < 8 or tag & 7 > 5):
        return 0, -BAD_TAG
    return tag, end


@_helper
def _length(data: Any, at: int, stop: int) -> tuple[int, int]:
    """(bytes, where they begin): they end before `stop`."""
    length, start = _short_varint(data, at, stop)
    if start > 0:
        if length > _MOST_BYTES:
            return 0, -LONG_VARINT
        if length > stop - start:
            return 0, -CUT
    return length, start


@_helper
def _skip_plain(data: Any, at: int, stop: int, tag: int) -> int:
    """Where an unknown field that is no group ends, its tag ending at `at`; or minus a code."""
    wire = tag & 7
    if wire == 0:
        _, end = _varint(data, at, stop)
        return end
    if wire == _LEN:
        length, start = _length(data, at, stop)
        return start + length if start > 0 else start
    if wire == 4:
        return -BAD_TAG
    size = 8 if wire == 1 else 4
    return at + size if size <= stop - at else -CUT


@_allocating_helper
def _skip(data: Any, at: int, stop: int, tag: int, depth: int) -> int:
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


@_helper
def _is_utf8(data: Any, at: int, stop: int) -> bool:
    while at < stop:
        byte = _int64(data[at])
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
            follows = _int64(data[at + k])
            if follows & 0xC0 != 0x80:
                return False
            point = point << 6 | (follows & 0x3F)
        if point < least or point > 0x10FFFF or 0xD800 <= point < 0xE000:
            return False
        at += more + 1
    return True


@_helper
def _is_name(data: Any, start: int, stop: int, names: Names, number: int) -> bool:
    first = names.ends[number]
    if names.ends[number + 1] - first != stop - start:
        return False
    for k in range(stop - start):  # noqa: SIM110, a generator is no loop to the compiler
        if data[start + k] != names.text[first + k]:
            return False
    return True


@_helper
def _slot_of(data: Any, start: int, stop: int, names: Names) -> int:
    """The slot in which a name stands, or the empty one in which it would."""
    mask = len(names.slots) - 1
    code = 0xCBF29CE484222325 - (1 << 64)  # FNV-1a, on int64
    for k in range(start, stop):
        code = (code ^ _int64(data[k])) * 0x100000001B3
    slot: int = (code ^ (code >> 29)) & mask
    while names.slots[slot] >= 0 and not _is_name(data, start, stop, names, names.slots[slot]):
        slot = (slot + 1) & mask
    return slot


@_helper
def _learn(data: Any, start: int, stop: int, names: Names) -> int:
    """The id of a name, a new one where it was not known; -1 where there is no room, minus a code where it is bad."""
    slot = _slot_of(data, start, stop, names)
    number: int = names.slots[slot]
    if number >= 0:
        return number
    if not _is_utf8(data, start, stop):
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


@_kernel
def learn_names(text: Any, ends: Any, names: Names) -> None:
    """Make names known: name i is text[ends[i]:ends[i + 1]]."""
    for k in range(len(ends) - 1):
        _learn(text, ends[k], ends[k + 1], names)


@_helper
def _entry(data: Any, start: int, stop: int) -> tuple[int, int, int, int, int, int, int]:
    """A map entry in any form: (code, at, name start, name stop, value start, value stop, values).

    Without a value, or with several, the value is the whole entry, to be walked by `_put_value`.
    """
    name_start, name_stop, value_start, value_stop, values = start, start, start, stop, 0
    at = start
    while at < stop:
        tag, body = _tag(data, at, stop)
        if body < 0:
            return -body, at, start, start, start, stop, 0
        if tag & 7 == _LEN and tag < 3 << 3:  # fields 1 and 2
            length, begin = _length(data, body, stop)
            if begin < 0:
                return -begin, at, start, start, start, stop, 0
            if tag == _FIRST:
                if not _is_utf8(data, begin, begin + length):
                    return BAD_KEY, begin, start, start, start, stop, 0
                name_start, name_stop = begin, begin + length
            else:
                value_start, value_stop = begin, begin + length
                values += 1
            at = begin + length
        else:
            end = _skip(data, body, stop, tag, 2)
            if end < 0:
                return -end, at, start, start, start, stop, 0
            at = end
    if values != 1:
        value_start, value_stop = start, stop
    return OK, start, name_start, name_stop, value_start, value_stop, values


@_helper
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
        tag, body = _tag(data, at, stop)
        if body < 0:
            return -body, at
        if tag != _FIRST:
            end = _skip(data, body, stop, tag, 1)
            if end < 0:
                return -end, at
            at = end
            continue
        length, begin = _length(data, body, stop)
        if begin < 0:
            return -begin, at
        end = begin + length
        # What every writer writes: a short name, then one value that ends with the entry.
        plain = False
        name_start = name_stop = value = begin
        if length >= 4 and data[begin] == _FIRST and data[begin + 1] < 128:
            name_start = begin + 2
            name_stop = name_start + _int64(data[begin + 1])
            if name_stop + 2 <= end and data[name_stop] == _SECOND:
                size, value = _length(data, name_stop + 1, end)
                plain = value > 0 and value + size == end
        value_stop, form = end, 1
        if not plain:
            code, bad, name_start, name_stop, value, value_stop, form = _entry(data, begin, end)
            if code != OK:
                return code, bad
        number = names.after[before]
        if number < 0 or not _is_name(data, name_start, name_stop, names, number):
            number = _learn(data, name_start, name_stop, names)
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


@_helper
def _record(
    data: Any,
    start: int,
    stop: int,
    names: Names,
    found: Found,
    record: int,
    must_learn: bool,
) -> tuple[int, int]:
    """`_entries` of a whole record. Several Features messages are merged."""
    if stop - start > _MOST_BYTES:
        return LONG_VARINT, start
    at = start
    while at < stop:
        tag, body = _tag(data, at, stop)
        if body < 0:
            return -body, at
        if tag == _FIRST:
            length, begin = _length(data, body, stop)
            if begin < 0:
                return -begin, at
            at = begin + length
            code, bad = _entries(data, begin, at, names, found, record, must_learn)
            if code != OK:
                return code, bad
        elif tag == _SECOND:
            return SEQUENCE, at
        else:
            end = _skip(data, body, stop, tag, 0)
            if end < 0:
                return -end, at
            at = end
    return OK, at


@_helper
def _put_ints(data: Any, start: int, stop: int, slots: Any, base: int, count: int, room: int) -> tuple[int, int, int]:
    """Packed varints to slots[base + count:]: (code, at, new count). Those past `room` are counted, not written."""
    at = start
    while at < stop:
        value, end = _varint(data, at, stop)
        if end < 0:
            return -end, at, count
        if count < room:
            slots[base + count] = value
        count += 1
        at = end
    return OK, at, count


@_helper
def _put_floats(data: Any, start: int, stop: int, floats: Any, base: int, count: int, room: int) -> int:
    """Packed floats to floats[base + count:]: new count. Those past `room` are counted, not written."""
    new = (stop - start) >> 2
    size = min(new, max(room - count, 0)) * 4
    _copy(floats, (base + count) * 4, data, start, size)
    return count + new


@_helper
def _put_bytes(
    data: Any, start: int, stop: int, columns: Columns, base: int, count: int, room: int, heap: int, at: int, most: int
) -> int:
    """A byte string to heap[heap + at:], its end to slots[base + 1 + count]: where the string ends, from `heap`.

    What is past `room` strings or `most` bytes is counted, not written.
    """
    end = at + stop - start
    if end <= most:
        _copy(columns.heap, heap + at, data, start, stop - start)
    if count < room:
        columns.slots[base + 1 + count] = end
    return end


@_helper
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
        tag, body = _tag(data, at, stop)
        if body < 0:
            return -body, at, count, heap_at
        if tag == _FIRST:
            length, begin = _length(data, body, stop)
            if begin < 0:
                return -begin, at, count, heap_at
            end = begin + length
            if kind == INT64:
                code, bad, count = _put_ints(data, begin, end, columns.slots, base, count, room)
                if code != OK:
                    return code, bad, count, heap_at
            elif kind == FLOAT:
                if length & 3:
                    return BAD_FLOATS, at, count, heap_at
                count = _put_floats(data, begin, end, columns.floats, base, count, room)
            else:
                heap_at = _put_bytes(data, begin, end, columns, base, count, room, heap, heap_at, most)
                count += 1
        elif kind == INT64 and tag == 1 << 3:
            value, end = _varint(data, body, stop)
            if end < 0:
                return -end, at, count, heap_at
            if count < room:
                columns.slots[base + count] = value
            count += 1
        elif kind == FLOAT and tag == (1 << 3 | 5):
            if stop - body < 4:
                return CUT, at, count, heap_at
            end = body + 4
            count = _put_floats(data, body, end, columns.floats, base, count, room)
        else:
            end = _skip(data, body, stop, tag, 4)
            if end < 0:
                return -end, at, count, heap_at
        at = end
    return OK, at, count, heap_at


@_helper
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
        tag, body = _tag(data, at, stop)
        if body < 0:
            return -body, at, found, count, heap_at
        if tag & 7 == _LEN and tag < 4 << 3:  # fields 1 to 3
            length, begin = _length(data, body, stop)
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
            end = _skip(data, body, stop, tag, 3)
            if end < 0:
                return -end, at, found, count, heap_at
            at = end
    return OK, at, found, count, heap_at


@_helper
def _put_value(
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
        tag, body = _tag(data, at, stop)
        if tag & 7 == _LEN:  # the entry was walked before: all of it is in bounds
            length, begin = _length(data, body, stop)
            at = begin + length
            if tag == _SECOND:
                code, bad, found, count, heap_at = _put_feature(
                    data, begin, at, kind, found, columns, base, count, room, heap, heap_start, heap_at, most
                )
                if code != OK:
                    return code, bad, found, count, heap_at
        else:
            at = _skip(data, body, stop, tag, 2)
    return OK, at, found, count, heap_at


@_helper
def _blank(row: int, wanted: Wanted, columns: Columns) -> None:
    """A row of zeros, empty strings and empty lists."""
    for f in range(len(wanted.kind)):
        width, kind = wanted.width[f], wanted.kind[f]
        if width < 0:
            columns.offsets[wanted.row[f], row + 1] = columns.used[0, f]
            continue
        first = wanted.base[f] + row * width
        for k in range(width):
            if kind == INT64:
                columns.slots[first + k] = 0
            elif kind == BYTES:
                columns.slots[first + 1 + k] = columns.used[1, f]
            else:
                for b in range(4):
                    columns.floats[(first + k) * 4 + b] = 0


@_kernel
def parse_records(
    data: Any,
    defaults: Any,
    starts: Any,
    stops: Any,
    first: int,
    last: int,
    names: Names,
    found: Found,
    wanted: Wanted,
    columns: Columns,
    faults: Faults,
    go_on: bool,
) -> tuple[int, int]:
    """Parse records [first, last): (OK, last); (ROOM, the record that found no room); or (its code, the bad record).

    With `go_on`, a bad record becomes a blank row and a line in `faults`, and the rest are parsed.
    """
    asked = len(wanted.kind)
    begins, ends, forms, stamps = found.start, found.stop, found.values, found.record
    counts, heap_ends = found.size, found.extra
    kinds, widths, bases = wanted.kind, wanted.width, wanted.base
    slots, floats, used = columns.slots, columns.floats, columns.used
    for r in range(first, last):
        code, at = _record(data, starts[r], stops[r], names, found, r, False)
        feature, detail = -1, 0
        full = False
        if code == OK:
            for f in range(asked):
                kind, width = kinds[f], widths[f]
                if width >= 0:
                    base, room = bases[f] + r * width, width
                else:
                    base, room = bases[f] + used[0, f], wanted.room[f] - used[0, f]
                there = stamps[f] == r
                begin, end = begins[f], ends[f]
                # What every writer writes: one list of this kind, packed in one piece, in less than 128 bytes.
                if (
                    there
                    and kind != BYTES
                    and forms[f] == 1
                    and 4 <= end - begin < 128
                    and data[begin] == (kind << 3 | _LEN)
                    and data[begin + 1] == end - begin - 2
                    and data[begin + 2] == _FIRST
                    and data[begin + 3] == end - begin - 4
                ):
                    if kind == INT64:
                        code, at, count = _put_ints(data, begin + 4, end, slots, base, 0, room)
                    else:
                        count = _put_floats(data, begin + 4, end, floats, base, 0, room)
                        if (end - begin) & 3:
                            code, at = BAD_FLOATS, begin + 2
                    if code != OK:
                        feature = f
                        break
                else:
                    heap, most = wanted.heap[f], wanted.heap_room[f]
                    held, count, heap_at = 0, 0, used[1, f]
                    if there:
                        code, at, held, count, heap_at = _put_value(
                            data, begin, end, forms[f], kind, columns, base, room, heap, used[1, f], most
                        )
                        if code != OK:
                            feature = f
                            break
                    else:
                        begin = starts[r]
                    if held == 0 and width >= 0:
                        if wanted.default_start[f] < 0:
                            code, at, feature = MISSING, begin, f
                            break
                        _, _, held, count, heap_at = _put_value(
                            defaults,
                            wanted.default_start[f],
                            wanted.default_stop[f],
                            1,
                            kind,
                            columns,
                            base,
                            room,
                            heap,
                            used[1, f],
                            most,
                        )
                    if held > 0 and held != kind:
                        if count > 0:
                            code, at, feature, detail = KIND, begin, f, held
                            break
                        heap_at = used[1, f]
                    heap_ends[f] = heap_at
                    full = full or (kind == BYTES and heap_at > most)
                if width >= 0:
                    if count != width:
                        code, at, feature, detail = LENGTH, begin, f, count
                        break
                else:
                    counts[f] = count
                    full = full or count > room
        if code != OK:
            faults.code[r], faults.at[r], faults.feature[r], faults.detail[r] = code, at, feature, detail
            if not go_on:
                return code, r
            _blank(r, wanted, columns)
            continue
        if full:
            for f in range(asked):
                columns.needed[0, f] = used[0, f] + (counts[f] if widths[f] < 0 else 0)
                columns.needed[1, f] = heap_ends[f] if kinds[f] == BYTES else 0
            return ROOM, r
        for f in range(asked):
            if widths[f] < 0:
                used[0, f] += counts[f]
                columns.offsets[wanted.row[f], r + 1] = used[0, f]
            if kinds[f] == BYTES:
                used[1, f] = heap_ends[f]
    return OK, last


@_kernel
def survey_records(
    data: Any,
    starts: Any,
    stops: Any,
    names: Names,
    found: Found,
    columns: Columns,
    seen: Seen,
    faults: Faults,
    go_on: bool,
) -> tuple[int, int]:
    """Count what all records hold: (OK, their number); (NAMES, the record that has too many); or (code, bad record).

    With `go_on`, a bad record is a line in `faults` and counts nowhere else. `columns` are empty ones.
    """
    begins, ends, forms, stamps = found.start, found.stop, found.values, found.record
    counts, kinds = found.size, found.extra
    for r in range(len(starts)):
        code, at = _record(data, starts[r], stops[r], names, found, r, True)
        if code == NAMES:
            return NAMES, r
        if code == OK:
            for k in range(names.known[0]):
                if stamps[k] == r:
                    code, at, kinds[k], counts[k], _ = _put_value(
                        data, begins[k], ends[k], forms[k], 0, columns, 0, 0, 0, 0, -1
                    )
                    if code != OK:
                        break
        if code != OK:
            faults.code[r], faults.at[r], faults.feature[r], faults.detail[r] = code, at, -1, 0
            if not go_on:
                return code, r
            continue
        for k in range(names.known[0]):
            if stamps[k] == r and kinds[k] > 0:
                count = counts[k]
                if seen.records[k] == 0 or count < seen.shortest[k]:
                    seen.shortest[k] = count
                seen.longest[k] = max(seen.longest[k], count)
                seen.records[k] += 1
                if count > 0:
                    seen.kinds[k] |= 1 << kinds[k]
                else:
                    seen.empty_kinds[k] |= 1 << kinds[k]
    return OK, len(starts)
