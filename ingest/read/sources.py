"""Where a row group's bytes come from: footers kept by the process, and column chunks in as few requests as can be."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

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
        self._reading: dict[tuple[str, str | None, int], threading.Lock] = {}

    def get(self, entry: FileEntry, filesystem: FileSystem) -> Footer:
        key = (entry.url, entry.etag, entry.size)
        footer = self._found(key)
        if footer is not None:
            return footer
        with self._lock:
            reading = self._reading.setdefault(key, threading.Lock())
        with reading:  # units of one file are read at a time, and one of their threads asks the store
            footer = self._found(key)
            if footer is None:
                footer = read_footer(entry, filesystem)
                self._keep(key, footer)
        with self._lock:
            self._reading.pop(key, None)
        return footer

    def _found(self, key: tuple[str, str | None, int]) -> Footer | None:
        with self._lock:
            footer = self._kept.get(key)
            if footer is not None:
                self._kept.move_to_end(key)
            return footer

    def _keep(self, key: tuple[str, str | None, int], footer: Footer) -> None:
        with self._lock:
            self._kept[key] = footer
            self._bytes += footer.metadata.serialized_size
            while self._bytes > self._capacity_bytes and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].metadata.serialized_size


_footers = _Footers(_CACHE_BYTES)


def cached_footer(entry: FileEntry, filesystem: FileSystem) -> Footer:
    """A file's footer, read once by this process while it is in use.

    Raises:
        SourceError: as `read_footer`.
    """
    return _footers.get(entry, filesystem)


def chunk_range(chunk: Any) -> tuple[int, int]:
    """Bytes [start, end) of a column chunk in its file."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


def coalesce(ranges: Sequence[tuple[int, int]], gap_bytes: int) -> list[tuple[int, int]]:
    """Sorted ranges, those at most `gap_bytes` apart joined."""
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and start - joined[-1][1] <= gap_bytes:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


class Chunks(Protocol):
    """The bytes of some column chunks of a file."""

    @property
    def descriptor(self) -> int | None:
        """Of the open file, where it is on this machine."""

    def at(self, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the file, which lie in one column chunk.

        Raises:
            SourceError: they cannot be read.
            OSError: they lie elsewhere.
        """

    def arrow_file(self) -> Any:
        """The same for pyarrow to read."""

    def close(self) -> None:
        """Let the file go; buffers that were handed out stay."""


def open_chunks(entry: FileEntry, filesystem: FileSystem, ranges: Sequence[tuple[int, int]], *, whole: bool) -> Chunks:
    """What a row group's leaves are read from.

    Args:
        entry: the file, which must be as it was listed.
        filesystem: its store.
        ranges: bytes [start, end) of the column chunks.
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
        return _Local(path)
    if not whole:
        return _Blocks(entry, filesystem, ranges)
    spans = coalesce(sorted(ranges), GAP_BYTES)
    blobs = filesystem.read_ranges(entry.url, spans, entry.etag)
    return _Fetched(entry.size, [(start, memoryview(blob)) for (start, _), blob in zip(spans, blobs, strict=True)])


class _Local:
    """A file on this machine. It is read, not mapped: a file cut short while mapped kills the process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.descriptor = os.open(path, os.O_RDONLY)

    def at(self, start: int, end: int) -> memoryview:
        data = os.pread(self.descriptor, end - start, start)
        if len(data) != end - start:
            raise OSError(f"the file ends at byte {start + len(data)}, before byte {end}")
        return memoryview(data)

    def arrow_file(self) -> Any:
        return pa.OSFile(self._path)

    def close(self) -> None:
        os.close(self.descriptor)


class _Sparse:
    """A read-only file of which only some ranges exist; pyarrow asks for no others."""

    closed = False
    descriptor = None

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
        data = self.at(self._at, min(self._at + count, self._size))
        self._at += len(data)
        return data

    def close(self) -> None:
        """Nothing is open; pyarrow calls this on what it has read."""

    def arrow_file(self) -> Any:
        return pa.PythonFile(self, mode="r")

    def readable(self) -> bool:
        return True

    def at(self, start: int, end: int) -> memoryview:
        raise NotImplementedError


class _Fetched(_Sparse):
    """Ranges in memory, handed out without a copy."""

    def __init__(self, size: int, parts: list[tuple[int, memoryview]]) -> None:
        super().__init__(size)
        self._parts = parts

    def at(self, start: int, end: int) -> memoryview:
        for first, data in self._parts:
            if first <= start and end <= first + len(data):
                return data[start - first : end - first]
        raise OSError(f"bytes {start} to {end} lie outside the column chunks that the footer names")


class _Blocks(_Sparse):
    """Column chunks fetched a block at a time; each keeps its latest block only."""

    def __init__(self, entry: FileEntry, filesystem: FileSystem, ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__(entry.size)
        self._entry = entry
        self._filesystem = filesystem
        self._ranges = ranges
        self._blocks: dict[tuple[int, int], tuple[int, memoryview]] = {}

    def at(self, start: int, end: int) -> memoryview:
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
