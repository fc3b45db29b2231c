"""Record indices that lie beside TFRecord files, as tfrecord2idx writes them: a line "offset size" for each record."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ingest.errors import SourceError
from ingest.manifest.model import FileEntry
from ingest.manifest.records import FRAME_BYTES, HEADER_BYTES, begins_record
from ingest.storage.filesystem import FileSystem

_CHECKED = 32  # records whose headers are compared, all over the file
_MOST_BYTES = 1 << 30


def read_sidecar(entry: FileEntry, filesystem: FileSystem) -> NDArray[np.int64] | None:
    """The bytes at which a file's records begin, int64 (records,), checked against the file.

    Returns:
        None where no record begins the file: it is compressed, so that an index cannot lead to its records, or damaged.

    Raises:
        SourceError: the two do not fit together.
    """
    assert entry.sidecar is not None
    head = filesystem.read_ranges(entry.url, [(0, min(HEADER_BYTES, entry.size))], entry.etag)[0]
    if not begins_record(np.frombuffer(head, np.uint8)):
        return None
    info = filesystem.info(entry.sidecar)
    if info is None:
        raise _unfit(entry, "it is gone")
    if not info.size:
        raise _unfit(entry, f"it is empty, and the file has {entry.size} bytes")
    if info.size > _MOST_BYTES:
        raise _unfit(entry, f"it has {info.size} bytes")
    begins, sizes = _parse(entry, bytes(filesystem.read_ranges(entry.sidecar, [(0, info.size)], info.etag)[0]))
    ends = begins + sizes
    if begins[0] != 0 or (begins[1:] != ends[:-1]).any() or (sizes < FRAME_BYTES).any():
        row = 0 if begins[0] else int(np.argmax(np.append(begins[1:] != ends[:-1], True)))
        raise _unfit(entry, f"its records do not follow each other after line {row + 1}")
    if ends[-1] != entry.size:
        raise _unfit(entry, f"its last record ends at byte {ends[-1]}, and the file at byte {entry.size}")
    _check_headers(entry, filesystem, begins, sizes)
    return begins


def _parse(entry: FileEntry, text: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    try:
        values = np.array(text.split(), dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise _unfit(entry, f"it does not hold lines of two numbers: {error}") from None
    if len(values) % 2 or not len(values) or text.count(b"\n") not in {len(values) // 2, len(values) // 2 - 1}:
        raise _unfit(entry, "it does not hold lines of two numbers")
    return values[::2], values[1::2]


def _check_headers(
    entry: FileEntry, filesystem: FileSystem, begins: NDArray[np.int64], sizes: NDArray[np.int64]
) -> None:
    """Compare the lengths that some records have in the file."""
    records = np.unique(np.linspace(0, len(begins) - 1, min(_CHECKED, len(begins))).astype(np.int64))
    spans = [(begin, begin + HEADER_BYTES) for begin in begins[records].tolist()]
    blobs = filesystem.read_ranges(entry.url, spans, entry.etag)
    for record, blob in zip(records.tolist(), blobs, strict=True):
        head = np.frombuffer(blob, np.uint8)
        length = int.from_bytes(bytes(head[:8]), "little")
        if not begins_record(head):
            raise _unfit(entry, f"no record begins at byte {begins[record]}, where it has record {record}")
        if length + FRAME_BYTES != sizes[record]:
            raise _unfit(entry, f"record {record} has {length + FRAME_BYTES} bytes, and in the index {sizes[record]}")


def _unfit(entry: FileEntry, why: str) -> SourceError:
    return SourceError(
        f"the record index {entry.sidecar} does not fit {entry.url}: {why}",
        path=entry.url,
        hint="Make it again with tfrecord2idx, or remove it",
    )
