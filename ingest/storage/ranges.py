"""Byte ranges of a file that cost a round trip each: several at a time, and the error of one that is cut short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ingest.storage.base import Blob
from ingest.storage.failures import Kind, StoreError, failure

_PARALLEL = 8
_SHORT_TRIES = 3


def fetch_ranges(fetch: Callable[[tuple[int, int]], Blob], ranges: Sequence[tuple[int, int]]) -> list[Blob]:
    """The bytes of each range [start, end), by a function of one."""
    if len(ranges) <= 1:
        return [fetch(span) for span in ranges]
    with ThreadPoolExecutor(min(_PARALLEL, len(ranges))) as pool:
        return list(pool.map(fetch, ranges))


def cut_short(url: str, blob: Blob, span: tuple[int, int]) -> StoreError:
    """The error of bytes that are not as many as were asked for."""
    start, end = span
    error = failure(
        Kind.BROKEN,
        url,
        f"{len(blob)} bytes came where {end - start} were asked for, from byte {start}: it is truncated",
    )
    error.most_tries = _SHORT_TRIES
    return error
