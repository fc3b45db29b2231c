"""Columns of large values (images, mostly) decoded with one copy, where pyarrow makes two of dictionary pages.

Most writers put distinct images into a dictionary page and their numbers into a data page. pyarrow copies each value
out of the page into its dictionary, and from there into the array. Here each goes from its place in the file to its
place in the array: for local, uncompressed files by the kernel itself, without a buffer between.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.manifest.thrift import varint
from ingest.read.page_headers import DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, PageHeader, page_header
from ingest.read.sources import Chunks

MIN_VALUE_BYTES = 2048  # below it, this module's Python costs more than pyarrow's second copy

_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE"}  # levels of old writers may be BIT_PACKED instead
_CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd", "GZIP": "gzip"}
_TYPES: dict[pa.DataType, type[np.signedinteger[Any]]] = {
    pa.binary(): np.int32,
    pa.string(): np.int32,
    pa.large_binary(): np.int64,
    pa.large_string(): np.int64,
}
_LARGEST = {np.int32: 2**31 - 1, np.int64: 2**63 - 1}
_HEADER_BYTES = 512  # holds nearly every page header; a longer one is read again


def is_blob(chunk: Any, column: Any, kind: pa.DataType) -> bool:
    """Whether `read_blobs` takes a column chunk.

    Args:
        chunk: its metadata.
        column: its column in the Parquet schema.
        kind: its Arrow type.
    """
    return (
        kind in _TYPES
        and column.max_repetition_level == 0
        and chunk.physical_type == "BYTE_ARRAY"
        and chunk.compression in _CODECS
        and set(chunk.encodings) <= _ENCODINGS
        and MIN_VALUE_BYTES * max(chunk.num_values, 1) <= chunk.total_uncompressed_size < 2**31 - 1
    )


def read_blobs(source: Chunks, span: tuple[int, int], chunk: Any, column: Any, kind: pa.DataType) -> pa.Array:
    """A column chunk as one array; a value is null where it, or a struct around it, is.

    Args:
        source: where its bytes are.
        span: which of them, [start, end).
        chunk: its metadata.
        column: its column in the Parquet schema.
        kind: its Arrow type, one of binary, string and their large kinds.

    Raises:
        pa.ArrowInvalid: the chunk is damaged.
        SourceError: it cannot be read.
    """
    decoder = _Decoder(source, chunk, column.max_definition_level)
    try:
        decoder.run(*span)
        return decoder.array(kind)
    except (IndexError, ValueError, KeyError, zlib.error) as error:
        raise pa.ArrowInvalid(f"column '{chunk.path_in_schema}': {error}") from error


class _Decoder:
    """Goes through the pages of one column chunk."""

    def __init__(self, source: Chunks, chunk: Any, max_level: int) -> None:
        self._source = source
        self._rows = int(chunk.num_values)
        self._max_level = max_level
        codec = _CODECS[chunk.compression]
        self._codec = None if codec is None else pa.Codec(codec)
        self._target = pa.allocate_buffer(chunk.total_uncompressed_size)
        self._room = _octets(self._target)
        self._used = 0
        self._lengths: list[int] = []  # of the values in the target, in their order there
        self._dictionary_values = 0
        self._picks: list[NDArray[np.int64]] = []  # for each page, which of them its values are
        self._valid: list[NDArray[np.bool_]] = []

    def run(self, at: int, end: int) -> None:
        seen = 0
        while seen < self._rows:
            if at >= end:
                raise ValueError(f"its pages hold {seen} values where {self._rows} are promised")
            header = self._header(at, end)
            begin, at = at + header.header_bytes, at + header.header_bytes + header.compressed_bytes
            if at > end:
                raise ValueError("a page goes on after the end of its column chunk")
            if header.uncompressed_bytes > len(self._room):
                raise ValueError("a page is larger than its column chunk")
            if header.type == DICTIONARY_PAGE:
                self._plain(header, begin, 0, header.values)
                self._dictionary_values = len(self._lengths)
            elif header.type in (DATA_PAGE, DATA_PAGE_V2):
                if header.values > self._rows - seen:
                    raise ValueError(f"its pages hold more values than the {self._rows} promised")
                self._data_page(header, begin)
                seen += header.values

    def array(self, kind: pa.DataType) -> pa.Array:
        picks = np.concatenate(self._picks) if self._picks else np.zeros(0, np.int64)
        valid = np.concatenate(self._valid) if self._valid else np.zeros(0, np.bool_)
        lengths = np.array(self._lengths, np.int64)
        data = self._target
        if not np.array_equal(picks, np.arange(len(lengths))):
            if len(picks) and not 0 <= picks.min() <= picks.max() < len(lengths):
                raise ValueError("a value lies outside the dictionary")
            ends = np.cumsum(lengths)
            spans = zip((ends - lengths)[picks].tolist(), ends[picks].tolist(), strict=True)
            data = pa.py_buffer(b"".join([self._room[start:end] for start, end in spans]))
        row_lengths = np.zeros(len(valid), np.int64)
        row_lengths[valid] = lengths[picks]
        offsets = np.zeros(len(valid) + 1, np.int64)
        np.cumsum(row_lengths, out=offsets[1:])
        if offsets[-1] > _LARGEST[_TYPES[kind]]:
            raise ValueError(f"its {offsets[-1]} bytes are more than {kind} can hold")
        nulls = len(valid) - int(valid.sum())
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        return pa.Array.from_buffers(
            kind, len(valid), [bitmap, pa.py_buffer(offsets.astype(_TYPES[kind])), data], nulls
        )

    def _header(self, at: int, end: int) -> PageHeader:
        for count in (_HEADER_BYTES, 1 << 20):
            try:
                return page_header(self._source.at(at, min(at + count, end)))
            except IndexError:
                if at + count >= end:
                    raise ValueError("a page header is cut short") from None
        raise ValueError("a page header has more than 1 MiB")

    def _data_page(self, header: PageHeader, at: int) -> None:
        """Levels, then values or their numbers in the dictionary."""
        page: memoryview | None = None
        if header.type == DATA_PAGE_V2:
            skip = header.levels_bytes
            if skip > header.compressed_bytes:
                raise ValueError("a page's levels are larger than it is")
            levels = self._source.at(at, at + skip)
        elif header.encoding == _PLAIN and self._codec is None and header.crc is None:
            skip, levels = self._levels_in_front(at, header)
        else:
            page = self._page(header, at, 0)
            skip = 4 + int.from_bytes(page[:4], "little") if self._max_level else 0
            levels = page[4:skip] if self._max_level else page[:0]
        valid = self._validity(levels, header.values)
        count = int(valid.sum())
        if header.encoding == _PLAIN:
            first = len(self._lengths)
            self._plain(header, at, skip, count, page)
            picks = np.arange(first, first + count)
        elif header.encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
            numbers = page[skip:] if page is not None else self._page(header, at, skip)
            picks = hybrid(numbers[1:], numbers[0], count) if count else np.zeros(0, np.int64)
            if count and picks.max() >= self._dictionary_values:
                raise ValueError("a value lies outside the dictionary")
        else:
            raise ValueError(f"a page has encoding {header.encoding}, which its footer does not name")
        self._picks.append(picks)
        self._valid.append(valid)

    def _levels_in_front(self, at: int, header: PageHeader) -> tuple[int, memoryview]:
        """(bytes before the values, definition levels) of a page of the first version that is not compressed."""
        if not self._max_level:
            return 0, memoryview(b"")
        count = int.from_bytes(self._source.at(at, at + 4), "little")
        if 4 + count > header.compressed_bytes:
            raise ValueError("a page's levels are larger than it is")
        return 4 + count, self._source.at(at + 4, at + 4 + count)

    def _validity(self, levels: memoryview, count: int) -> NDArray[np.bool_]:
        if not self._max_level:
            return np.ones(count, np.bool_)
        levels_of: NDArray[np.int64] = hybrid(levels, self._max_level.bit_length(), count)
        return np.equal(levels_of, self._max_level)

    def _page(self, header: PageHeader, at: int, skip: int) -> memoryview:
        """A page's bytes after the first `skip`, decompressed, its checksum compared."""
        raw = self._source.at(at, at + header.compressed_bytes)
        if header.crc is not None and zlib.crc32(raw) != header.crc:
            raise ValueError("a page's checksum is wrong")
        body = raw[skip:]
        if self._codec is None or not header.compressed:
            return body
        if not header.uncompressed_bytes - skip:
            return body[:0]
        return _octets(self._codec.decompress(pa.py_buffer(body), header.uncompressed_bytes - skip))

    def _plain(self, header: PageHeader, at: int, skip: int, count: int, page: memoryview | None = None) -> None:
        """Values, each after its length, to the end of what is in the target."""
        descriptor = self._source.descriptor
        if page is None and self._codec is None and header.crc is None and descriptor is not None:
            self._plain_from_file(descriptor, at + skip, at + header.compressed_bytes, count)
            return
        # Of a decoded page the levels are still in front; else `_page` leaves them out.
        data = page[skip:] if page is not None else self._page(header, at, skip)
        place = 0
        for _ in range(count):
            size = int.from_bytes(data[place : place + 4], "little")
            value = data[place + 4 : place + 4 + size]
            if len(value) != size or place + 4 > len(data):
                raise ValueError("a value goes on after the end of its page")
            self._slot(size)[:] = value
            place += 4 + size

    def _plain_from_file(self, descriptor: int, at: int, end: int, count: int) -> None:
        """The kernel puts each value in its place, and the length of the next one beside it."""
        if not count:
            return
        head = bytearray(os.pread(descriptor, 4, at))
        at += 4
        for left in range(count, 0, -1):
            size = int.from_bytes(head, "little")
            if at + size > end:
                raise ValueError("a value goes on after the end of its page")
            slot = self._slot(size)
            want = size + (4 if left > 1 else 0)
            if os.preadv(descriptor, [slot, head] if left > 1 else [slot], at) != want:
                self._again(descriptor, slot, head, at)
            at += want

    def _again(self, descriptor: int, slot: memoryview, head: bytearray, at: int) -> None:
        """A read may come back short; in pieces it must not."""
        done = 0
        while done < len(slot):
            got = os.preadv(descriptor, [slot[done:]], at + done)
            if not got:
                raise ValueError("the file ends inside a value")
            done += got
        head[:] = os.pread(descriptor, 4, at + done).ljust(4, b"\xff")

    def _slot(self, size: int) -> memoryview:
        slot = self._room[self._used : self._used + size]
        if len(slot) != size:
            raise ValueError("its values are larger than its footer says")
        self._used += size
        self._lengths.append(size)
        return slot


def _octets(buffer: pa.Buffer) -> memoryview:
    """A buffer's bytes as unsigned numbers; by itself it shows them signed."""
    return memoryview(buffer).cast("B")


def hybrid(data: memoryview, width: int, count: int) -> NDArray[np.int64]:
    """Int64 (count,): Parquet's mixture of runs and bit-packed groups of `width` bits.

    Raises:
        IndexError, ValueError: `data` is too short, or no such mixture.
    """
    if width > 32:
        raise ValueError(f"numbers of {width} bits")
    out = np.zeros(count, np.int64)
    size = (width + 7) // 8
    done = at = 0
    weights = np.int64(1) << np.arange(width, dtype=np.int64)
    while done < count:
        head, at = varint(data, at)
        if head & 1:
            packed = np.frombuffer(data[at : at + (head >> 1) * width], np.uint8)
            bits = np.unpackbits(packed, bitorder="little")
            values = bits[: len(bits) // width * width].reshape(-1, width) @ weights if width else np.zeros(count)
            values = values[: count - done]
            if not len(values):
                raise ValueError("a run of numbers is empty")
            out[done : done + len(values)] = values
            done += len(values)
            at += (head >> 1) * width
        else:
            if not head:
                raise ValueError("a run of numbers is empty")
            value = int.from_bytes(data[at : at + size], "little")
            out[done : done + (head >> 1)] = value
            done += head >> 1
            at += size
    return out
