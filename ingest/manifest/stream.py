"""A TFRecord file read from its beginning in bounded memory: blocks from storage, decompressed, cut into records."""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingest.errors import SourceError
from ingest.manifest.model import Damage, FileEntry
from ingest.manifest.records import (
    FRAME_BYTES,
    HEADER_BYTES,
    LENGTH,
    LONG,
    MOST_BYTES,
    Frames,
    begins_record,
    masked_crc,
    scan,
)  # fmt: skip
from ingest.storage.filesystem import Blob, FileSystem

BLOCK_BYTES = 8 << 20
_AHEAD = 4  # blocks on their way from a store while one is looked at; a disk needs one
_EMPTY_ZLIB_BYTES = 8  # the least that compressed data can have, which is less than a record's header
_PIECE_BYTES = 64 << 10  # of compressed data given to zlib at once: what follows a member's end is copied
_LOOKS_LIKE = (
    (b"version https://git-lfs", "a Git LFS pointer", "Fetch the file itself: git lfs pull"),
    (b"PAR1", "Parquet", None),
    (b"PARE", "encrypted Parquet", None),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "TFRecord is read plain, or compressed by GZIP or ZLIB"),
    (b"BZh", "compressed by bzip2", "TFRecord is read plain, or compressed by GZIP or ZLIB"),
    (b"\xfd7zXZ", "compressed by xz", "TFRecord is read plain, or compressed by GZIP or ZLIB"),
    (b"PK\x03\x04", "a ZIP archive", "Unpack it"),
    (b"ARROW1", "Arrow", None),
)


class BrokenStreamError(Exception):
    """Compressed data that cannot be decompressed further; what came before is whole."""


class Chunk(NamedTuple):
    """Some whole records that follow each other in a file.

    Attributes:
        data: uint8 (bytes,), the first record at its beginning.
        frames: where the records lie in `data`.
        offset: of `data` in the file (decompressed, where it is compressed).
        record: number of the first record in the file.
        compression: of the file.
    """

    data: NDArray[np.uint8]
    frames: Frames
    offset: int
    record: int
    compression: str | None = None

    def place(self, index: int) -> str:
        """Where a record lies, as errors say it."""
        begin = self.offset + int(self.frames.starts[index]) - HEADER_BYTES
        return place(self.record + index, begin, self.compression)


def place(record: int, offset: int, compression: str | None) -> str:
    """Where a record lies, as errors say it."""
    return f"record {record} at byte {offset}" + (
        f" of the {compression} file's decompressed data" if compression else ""
    )


@dataclass
class RecordStream:
    """The records of a file, in chunks; one pass. Memory: some blocks, or the longest record where that is longer.

    Attributes:
        entry: the file.
        filesystem: its store.
        check_payload: compare payloads with their checksums.
        block_bytes: of one range request.
        compression: `gzip` or `zlib`; None for a plain file. Known from the first chunk on.
        damage: why the records end before the file does; known at the end.
    """

    entry: FileEntry
    filesystem: FileSystem
    check_payload: bool
    block_bytes: int = BLOCK_BYTES
    compression: str | None = None
    damage: Damage | None = None

    def __iter__(self) -> Iterator[Chunk]:
        """Cut the file into chunks.

        Raises:
            SourceError: the file cannot be read, or is not TFRecord.
        """
        blocks = fetch(self.entry, self.filesystem, self.block_bytes)
        first = next(blocks, None)
        if first is None:
            return
        head = np.frombuffer(first, np.uint8)
        self.compression = compression_of(head)
        blocks = itertools.chain([first], blocks)
        if self.compression is not None:
            blocks = inflate(blocks, gzip=self.compression == "gzip")
        elif not begins_record(head) and not _first_length_is_damaged(head):
            raise not_tfrecord(self.entry, bytes(head[:64]))
        yield from self._cut(blocks)

    def _cut(self, blocks: Iterator[Blob]) -> Iterator[Chunk]:
        """Records out of blocks; what a block leaves over waits for the next."""
        waiting: list[NDArray[np.uint8]] = []
        have = need = offset = record = 0
        frames, broken = None, None
        try:
            for block in blocks:
                waiting.append(np.frombuffer(block, np.uint8))
                have += len(waiting[-1])
                if have < max(need, HEADER_BYTES):
                    continue
                data = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
                frames = scan(data, check_payload=self.check_payload)
                if self.compression and not record and frames.stopped == LENGTH and not frames.end:
                    raise not_tfrecord(self.entry, bytes(data[:64]), inside=self.compression)
                if len(frames.starts):
                    yield Chunk(data, frames, offset, record, self.compression)
                offset, record, need = offset + frames.end, record + len(frames.starts), frames.need
                waiting, have = [data[frames.end :]], len(data) - frames.end
                if frames.stopped in {LENGTH, LONG} or self._beyond_end(offset + need):
                    break
        except BrokenStreamError as error:
            broken = str(error)
        if self.compression and frames is None and (have or broken):
            raise not_tfrecord(self.entry, b"".join(map(bytes, waiting)), inside=self.compression, why=broken)
        self.damage = self._describe(frames, offset, record, have, need, broken)

    def _beyond_end(self, end: int) -> bool:
        return self.compression is None and end > self.entry.size

    def _describe(
        self, frames: Frames | None, offset: int, record: int, have: int, need: int, broken: str | None
    ) -> Damage | None:
        """What is wrong behind the last whole record; None where nothing is."""
        lost = self.entry.size - offset if self.compression is None else None
        found = have if lost is None else lost
        if frames is not None and frames.stopped == LENGTH and broken is None:
            what = "its length does not match its checksum; the rest of the file cannot be read"
        elif frames is not None and frames.stopped == LONG and broken is None:
            what = f"its length is more than the {MOST_BYTES} bytes that a record can have"
        elif broken is not None:
            what = broken
        elif not found:
            return None
        elif need:
            what = f"the file ends inside it: it should have {need} bytes, and {found} are there"
        else:
            what = f"the file ends inside its {HEADER_BYTES}-byte header: {found} bytes are there"
        message = f"{place(record, offset, self.compression)}: {what}"
        return Damage(self.entry.url, record, offset, message, None, lost)


def fetch(entry: FileEntry, filesystem: FileSystem, block_bytes: int = BLOCK_BYTES) -> Iterator[Blob]:
    """The file's bytes in order, as blocks of `block_bytes`, the next ones on their way while one is looked at.

    Raises:
        SourceError: it cannot be read, or has changed.
    """
    spans = [(start, min(start + block_bytes, entry.size)) for start in range(0, entry.size, block_bytes)]

    def one(span: tuple[int, int]) -> Blob:
        return filesystem.read_ranges(entry.url, [span], entry.etag)[0]

    if len(spans) <= 1:
        yield from map(one, spans)
        return
    pool = ThreadPoolExecutor(_AHEAD if filesystem.remote else 1)
    try:
        coming: deque[Future[Blob]] = deque()
        for span in spans:
            coming.append(pool.submit(one, span))
            if len(coming) > (_AHEAD if filesystem.remote else 1):
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def inflate(blocks: Iterator[Blob], *, gzip: bool, most_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Decompressed data in pieces of about `most_bytes`; of gzip, all members.

    Raises:
        BrokenStreamError: after all that could be decompressed.
    """
    kind, wbits = ("gzip", zlib.MAX_WBITS | 16) if gzip else ("zlib", zlib.MAX_WBITS)
    stream, compressed_at = zlib.decompressobj(wbits), 0
    out: list[bytes] = []
    for piece in _pieces(blocks):
        rest = piece
        while rest:
            if stream.eof:
                rest = rest.lstrip(b"\0") if gzip else rest  # gzip files may be padded
                if not rest:
                    break
                if not gzip:
                    yield b"".join(out)
                    raise BrokenStreamError("other bytes follow the end of the zlib data")
                stream = zlib.decompressobj(wbits)
            before = stream.copy()
            try:
                out.append(stream.decompress(rest, most_bytes))
            except zlib.error as error:
                yield b"".join([*out, _until_broken(before, rest)])
                at = f"near byte {compressed_at} of the file"
                raise BrokenStreamError(f"the {kind} data is damaged {at}: {error}") from error
            rest = stream.unused_data if stream.eof else stream.unconsumed_tail
            if sum(map(len, out)) >= most_bytes:
                yield b"".join(out)
                out = []
        compressed_at += len(piece)
    yield b"".join(out)
    if not stream.eof:
        raise BrokenStreamError(f"the file ends inside its {kind} data")


def _pieces(blocks: Iterator[Blob]) -> Iterator[bytes]:
    for block in blocks:
        view = memoryview(block)
        for at in range(0, len(view), _PIECE_BYTES):
            yield bytes(view[at : at + _PIECE_BYTES])


def _until_broken(stream: zlib._Decompress, piece: bytes) -> bytes:
    """What a piece gives up to the byte that breaks the stream."""
    out = []
    for at in range(len(piece)):
        try:
            out.append(stream.decompress(piece[at : at + 1]))
        except zlib.error:
            break
    return b"".join(out)


def compression_of(head: NDArray[np.uint8]) -> str | None:
    """What the first bytes say. A length that fits its checksum is a plain file, whatever its bytes look like."""
    if begins_record(head) or len(head) < _EMPTY_ZLIB_BYTES:
        return None
    first = bytes(head[:3])
    if first == b"\x1f\x8b\x08":
        return "gzip"
    deflate = first[0] & 0x0F == 8 and first[0] >> 4 <= 7
    return "zlib" if deflate and int.from_bytes(first[:2], "big") % 31 == 0 and not first[1] & 0x20 else None


def looks_like_tfrecord(head: bytes) -> bool:
    """Whether a file's first bytes are those of a record, or of compressed data that may hold some."""
    data = np.frombuffer(head, np.uint8)
    return begins_record(data) or compression_of(data) is not None


def _first_length_is_damaged(head: NDArray[np.uint8]) -> bool:
    """Whether the payload's own checksum says that this is TFRecord, though the first length's does not."""
    if len(head) < FRAME_BYTES:
        return False
    stop = HEADER_BYTES + int.from_bytes(bytes(head[:8]), "little")
    return stop + 4 <= len(head) and masked_crc(bytes(head[HEADER_BYTES:stop])) == bytes(head[stop : stop + 4])


def not_tfrecord(entry: FileEntry, head: bytes, *, inside: str | None = None, why: str | None = None) -> SourceError:
    """The error for a file of another kind, which its first length gives away before anything is made of that size."""
    looks, hint = next(
        ((f", which is {name}", hint) for magic, name, hint in _LOOKS_LIKE if head.startswith(magic)), ("", None)
    )
    if why is None and entry.size < HEADER_BYTES:
        why = f"it has {entry.size} bytes, fewer than a record's header"
    elif why is None:
        why = f"{f'inside its {inside} data ' if inside else ''}it begins with {head[:16]!r}{looks}"
    return SourceError(
        f"not a TFRecord file: {entry.url}: {why}",
        path=entry.url,
        hint=hint or "source.path should lead to TFRecord files only",
    )
