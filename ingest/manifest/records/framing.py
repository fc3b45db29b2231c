"""TFRecord's framing: where the records of a buffer lie, with their checksums.

A record is its length (uint64), a checksum of that, the payload, and a checksum of that, all little-endian. The
checksums are CRC-32C, rotated and shifted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingest.jit import kernel
from ingest.manifest.records.crc import crc32c, load64

HEADER_BYTES, FOOTER_BYTES = 12, 4  # length and its checksum before the payload, the payload's after it
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
MOST_BYTES = 2**31 - 1  # of a protocol buffer, and so of a payload

CUT, LENGTH, LONG = 0, 1, 2  # why a scan stopped
_FIRST = 1024  # records that there is room for at first
_SHIFT = np.uint32(0xA282EAD8)


class Frames(NamedTuple):
    """The records of a buffer.

    Attributes:
        starts, stops: int64 (records,), each payload's bytes in the buffer.
        bad: int64, sorted indices of records whose payload does not match its checksum.
        end: where the last whole record ends.
        stopped: why there is no other: CUT, the buffer ends (or ends inside one); LENGTH, the next length does not
            match its checksum; LONG, it does and is more than a payload can have.
        need: bytes from `end` on that the next record has, known from a length that matches its checksum; else 0.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    bad: NDArray[np.int64]
    end: int
    stopped: int
    need: int


def scan(data: NDArray[np.uint8], *, check_payload: bool) -> Frames:
    """The whole records of a buffer that begins with one.

    Args:
        data: uint8 (bytes,), C-contiguous.
        check_payload: compare payloads with their checksums; lengths are compared always, before they are used.
    """
    starts, stops, bad, end, stopped, need = _scan(data, check_payload)
    return Frames(starts, stops, bad, int(end), int(stopped), int(need))


def begins_record(head: NDArray[np.uint8]) -> bool:
    """Whether at least 12 bytes begin with a length and its checksum."""
    return len(head) >= HEADER_BYTES and bool(_length_fits(head, 0))


def frame(payload: bytes) -> bytes:
    """A payload as a record."""
    length = len(payload).to_bytes(8, "little")
    return length + masked_crc(length) + payload + masked_crc(payload)


def masked_crc(data: bytes) -> bytes:
    """The four bytes that stand behind `data` as its checksum."""
    return int(_masked(np.frombuffer(data, np.uint8), 0, len(data))).to_bytes(4, "little")


@kernel
def seal(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> None:
    """Put checksums into records whose lengths and payloads are in place.

    Args:
        data: uint8 (bytes,), C-contiguous.
        starts: int64 (records + 1,), where each begins, and the end of the last.
    """
    for record in range(len(starts) - 1):
        start, stop = starts[record], starts[record + 1]
        _put_checksum(data, start, start + 8, start + 8)
        _put_checksum(data, start + HEADER_BYTES, stop - FOOTER_BYTES, stop - FOOTER_BYTES)


@kernel
def _put_checksum(data: NDArray[np.uint8], start: int, stop: int, at: int) -> None:
    crc = _masked(data, start, stop)
    for byte in range(4):
        data[at + byte] = np.uint8((crc >> np.uint32(8 * byte)) & np.uint32(255))


@kernel
def _masked(data: NDArray[np.uint8], start: int, stop: int) -> np.uint32:
    crc = crc32c(data, start, stop)
    return np.uint32(((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _SHIFT)


@kernel
def _stored(data: NDArray[np.uint8], at: int) -> np.uint32:
    return np.uint32(
        np.uint32(data[at])
        | np.uint32(data[at + 1]) << np.uint32(8)
        | np.uint32(data[at + 2]) << np.uint32(16)
        | np.uint32(data[at + 3]) << np.uint32(24)
    )


@kernel
def _length_fits(data: NDArray[np.uint8], at: int) -> bool:
    return bool(_masked(data, at, at + 8) == _stored(data, at + 8))


@kernel
def _length(data: NDArray[np.uint8], at: int) -> int:
    """The payload's length as written; -1 for one that no payload has."""
    length = load64(data, at)
    return -1 if length > np.uint64(MOST_BYTES) else np.int64(length)  # type: ignore[return-value]


@kernel
def _grown(values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    more = np.empty(2 * len(values), np.int64)
    more[:count] = values[:count]
    return more


@kernel
def _scan(
    data: NDArray[np.uint8], check_payload: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int, int, int]:
    starts, stops = np.empty(_FIRST, np.int64), np.empty(_FIRST, np.int64)
    bad = np.empty(_FIRST, np.int64)
    count = wrong = at = 0
    stopped, need = CUT, 0
    size = len(data)
    while size - at >= HEADER_BYTES:
        if not _length_fits(data, at):
            stopped = LENGTH
            break
        length = _length(data, at)
        if length < 0:
            stopped = LONG
            break
        whole = FRAME_BYTES + length
        if whole > size - at:
            need = whole
            break
        start = at + HEADER_BYTES
        stop = start + length
        if count == len(starts):
            starts, stops = _grown(starts, count), _grown(stops, count)
        starts[count], stops[count] = start, stop
        if check_payload and _masked(data, start, stop) != _stored(data, stop):
            if wrong == len(bad):
                bad = _grown(bad, wrong)
            bad[wrong] = count
            wrong += 1
        count += 1
        at += whole
    return starts[:count], stops[:count], bad[:wrong], at, stopped, need
