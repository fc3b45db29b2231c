"""The flat arrays that kernels read and fill, named: what goes in, what comes out, what is remembered."""

from __future__ import annotations

from typing import Any, NamedTuple


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
