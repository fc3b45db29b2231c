"""Where a row group's bytes come from: footers kept by the process, and column chunks in as few requests as can be."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ingest.errors import ReadError
from ingest.manifest.model import FileEntry
from ingest.manifest.parquet import Footer, read_footer
from ingest.storage.filesystem import FileSystem

GAP_BYTES = 1 << 20  # a gap between wanted ranges that is cheaper to read than to ask around
BLOCK_BYTES = 8 << 20  # of one request, when a column chunk is read in pieces
_CACHE_BYTES = 32 << 20  # of serialised footers; in memory they take several times that


class _Footers:
    """The least recently used footers go first. Threads share it."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, str | None, int], Footer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, entry: FileEntry, filesystem: FileSystem) -> Footer:
        key = (entry.url, entry.etag, entry.size)
        with self._lock:
            footer = self._kept.get(key)
            if footer is not None:
                self._kept.move_to_end(key)
                return footer
        footer = read_footer(entry, filesystem)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = footer
                self._bytes += footer.metadata.serialized_size
            while self._bytes > self._capacity_bytes and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].metadata.serialized_size
        return footer


_footers = _Footers(_CACHE_BYTES)


def cached_footer(entry: FileEntry, filesystem: FileSystem) -> Footer:
    """A file's footer, read once by this process while it is in use.

    Raises:
        SourceError: as `read_footer`.
    """
    return _footers.get(entry, filesystem)


def chunk_ranges(group: Any, leaves: Sequence[int]) -> list[tuple[int, int]]:
    """Bytes [start, end) of each leaf's column chunk in the file, in order of place."""
    ranges = []
    for leaf in leaves:
        chunk = group.column(leaf)
        starts = [chunk.data_page_offset]
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            starts.append(chunk.dictionary_page_offset)
        start = min(starts)
        ranges.append((start, start + chunk.total_compressed_size))
    return sorted(ranges)


def coalesce(ranges: Sequence[tuple[int, int]], gap_bytes: int) -> list[tuple[int, int]]:
    """Sorted ranges, those at most `gap_bytes` apart joined."""
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and start - joined[-1][1] <= gap_bytes:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def open_chunks(entry: FileEntry, filesystem: FileSystem, group: Any, leaves: Sequence[int], *, whole: bool) -> Any:
    """What pyarrow reads a row group's leaves from.

    Args:
        entry: the file, which must be as it was listed.
        filesystem: its store.
        group: the row group's metadata.
        leaves: the Parquet columns.
        whole: fetch them now, in one go; else a block at a time, as they are read.

    Raises:
        ReadError: the file has changed.
        SourceError: it cannot be read.
    """
    path = filesystem.local_path(entry.url)
    if path is not None:
        info = filesystem.info(entry.url)
        if info is None or info.size != entry.size or (entry.etag is not None and info.etag != entry.etag):
            what = "it is gone" if info is None else f"{info.size} bytes now, {entry.size} then"
            raise ReadError(
                f"the file has changed since it was listed: {what}", path=entry.url, hint="Start the run again"
            )
        return pa.OSFile(path)
    ranges = chunk_ranges(group, leaves)
    if whole:
        spans = coalesce(ranges, GAP_BYTES)
        blobs = filesystem.read_ranges(entry.url, spans, entry.etag)
        parts = [(start, memoryview(blob)) for (start, _), blob in zip(spans, blobs, strict=True)]
        return pa.PythonFile(_Fetched(entry.size, parts), mode="r")
    return pa.PythonFile(_Blocks(entry, filesystem, ranges), mode="r")


class _Sparse:
    """A read-only file of which only some ranges exist; pyarrow asks for no others."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, count: int) -> memoryview:
        data = self._bytes(self._at, min(self._at + count, self._size))
        self._at += len(data)
        return data

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return True

    def _bytes(self, start: int, end: int) -> memoryview:
        raise NotImplementedError


class _Fetched(_Sparse):
    """Ranges in memory, handed out without a copy."""

    def __init__(self, size: int, parts: list[tuple[int, memoryview]]) -> None:
        super().__init__(size)
        self._parts = parts

    def _bytes(self, start: int, end: int) -> memoryview:
        for first, data in self._parts:
            if first <= start and end <= first + len(data):
                return data[start - first : end - first]
        raise OSError(f"bytes {start} to {end} lie outside the column chunks that the footer names")


class _Blocks(_Sparse):
    """Column chunks fetched a block at a time; each keeps its latest block only."""

    def __init__(self, entry: FileEntry, filesystem: FileSystem, ranges: list[tuple[int, int]]) -> None:
        super().__init__(entry.size)
        self._entry = entry
        self._filesystem = filesystem
        self._ranges = ranges
        self._blocks: dict[tuple[int, int], tuple[int, memoryview]] = {}

    def _bytes(self, start: int, end: int) -> memoryview:
        for span in self._ranges:
            if span[0] <= start and end <= span[1]:
                break
        else:
            raise OSError(f"bytes {start} to {end} lie outside the column chunks that the footer names")
        first, block = self._blocks.get(span, (0, memoryview(b"")))
        if not (first <= start and end <= first + len(block)):
            stop = min(span[1], max(end, start + BLOCK_BYTES))
            first = start
            block = memoryview(self._filesystem.read_ranges(self._entry.url, [(start, stop)], self._entry.etag)[0])
            self._blocks[span] = (first, block)
        return block[start - first : end - first]
