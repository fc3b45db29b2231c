"""INT96 times, of which pyarrow reads some as others: those that microseconds in 64 bits cannot hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.errors import ReadError
from ingest.manifest.columns import is_list
from ingest.manifest.model import FileEntry

_MOST_MILLISECONDS = (2**63 - 1) // 1000
_HINT = "Leave the column out, or write it as INT64"


def check_times(coarse: pa.Table, fine: pa.Table, entry: FileEntry, ordinal: int) -> None:
    """Refuse times that pyarrow would wrap round, and those whose nanoseconds it would cut off.

    Args:
        coarse: the INT96 columns of a row group, read as milliseconds, which hold them all.
        fine: the same, read as nanoseconds. They may have wrapped round too; what they have beyond a whole
            millisecond is right all the same.
        entry: the file.
        ordinal: the row group inside it.

    Raises:
        ReadError: there is one.
    """
    for one, other in zip(coarse.columns, fine.columns, strict=True):
        pairs = zip(_times_in(one.combine_chunks()), _times_in(other.combine_chunks()), strict=True)
        for millis, nanos in ((_numbers(a), _numbers(b)) for a, b in pairs):
            if len(millis) and max(abs(int(millis.min())), abs(int(millis.max()))) > _MOST_MILLISECONDS:
                wrong = "further from 1970 than microseconds in 64 bits reach"
            elif np.any((nanos.view(np.uint64) - millis.view(np.uint64) * np.uint64(10**6)) % np.uint64(1000)):
                wrong = "that is no whole number of microseconds"
            else:
                continue
            raise ReadError(f"row group {ordinal} holds an INT96 time {wrong}", path=entry.url, hint=_HINT)


def _numbers(times: pa.Array) -> NDArray[np.int64]:
    """Int64 (those that are not null,)."""
    numbers: NDArray[np.int64] = times.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers


def _times_in(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_struct(array.type):
        for i in range(array.type.num_fields):
            yield from _times_in(array.field(i))
    elif pa.types.is_map(array.type):
        yield from (values for side in (array.keys, array.items) for values in _times_in(side))
    elif is_list(array.type):
        yield from _times_in(array.flatten())
    elif pa.types.is_timestamp(array.type):
        yield array
