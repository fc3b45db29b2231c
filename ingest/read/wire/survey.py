"""What records hold: the kernel that counts names, kinds and lengths."""

from __future__ import annotations

from typing import Any

from ingest.read.wire.arrays import Columns, Faults, Found, Names, Seen
from ingest.read.wire.codes import NAMES, OK
from ingest.read.wire.compile import kernel
from ingest.read.wire.record import walk_record
from ingest.read.wire.values import put_value


@kernel
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
        code, at = walk_record(data, starts[r], stops[r], names, found, r, True)
        if code == NAMES:
            return NAMES, r
        if code == OK:
            for k in range(names.known[0]):
                if stamps[k] == r:
                    code, at, kinds[k], counts[k], _ = put_value(
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
