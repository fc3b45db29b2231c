"""Records to columns: the kernel that parses."""

from __future__ import annotations

from typing import Any

from ingest.read.wire.arrays import Columns, Faults, Found, Names, Wanted
from ingest.read.wire.codes import BAD_FLOATS, BYTES, INT64, KIND, LENGTH, MISSING, OK, ROOM
from ingest.read.wire.compile import helper, kernel
from ingest.read.wire.fields import FIRST, LEN
from ingest.read.wire.record import walk_record
from ingest.read.wire.values import put_floats, put_ints, put_value


@helper
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


@kernel
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
        code, at = walk_record(data, starts[r], stops[r], names, found, r, False)
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
                    and data[begin] == (kind << 3 | LEN)
                    and data[begin + 1] == end - begin - 2
                    and data[begin + 2] == FIRST
                    and data[begin + 3] == end - begin - 4
                ):
                    if kind == INT64:
                        code, at, count = put_ints(data, begin + 4, end, slots, base, 0, room)
                    else:
                        count = put_floats(data, begin + 4, end, floats, base, 0, room)
                        if (end - begin) & 3:
                            code, at = BAD_FLOATS, begin + 2
                    if code != OK:
                        feature = f
                        break
                else:
                    heap, most = wanted.heap[f], wanted.heap_room[f]
                    held, count, heap_at = 0, 0, used[1, f]
                    if there:
                        code, at, held, count, heap_at = put_value(
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
                        _, _, held, count, heap_at = put_value(
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
