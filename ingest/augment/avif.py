"""What the boxes of an AVIF say: its size, and how it is to be turned and mirrored (ISO 23008-12, 6.5)."""

from __future__ import annotations

import struct

_NO_IMAGE = (0, 0)
# EXIF orientation by quarter turns anticlockwise, then by mirroring: none, top to bottom, left to right.
_ORIENTATIONS = ((1, 4, 2), (8, 5, 7), (3, 2, 4), (6, 7, 5))


def measures(data: bytes | memoryview) -> tuple[int, int, int]:
    """(height, width, EXIF orientation) of an AVIF: the largest extent (`ispe`) that its properties name.

    Raises:
        IndexError, struct.error: there is none in these bytes.
    """
    properties, sizes, at = _properties(data), [_NO_IMAGE], -1
    while (at := properties.find(b"ispe", at + 1)) >= 0:
        sizes.append(struct.unpack_from(">II", properties, at + 8))
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    if not width:
        raise IndexError
    turns = _first(properties, b"\0\0\0\x09irot", 0x03, 0)
    mirrored = _first(properties, b"\0\0\0\x09imir", 0x01, -1) + 1
    return height, width, _ORIENTATIONS[turns][mirrored]


def _properties(data: bytes | memoryview) -> bytes:
    """The `meta` box."""
    at = 0
    while True:
        length, kind = struct.unpack_from(">I4s", data, at)
        if length < 8:
            raise IndexError
        if kind == b"meta":
            data[at + length - 1]  # raises when the box is longer than what we hold
            return bytes(data[at : at + length])
        at += length


def _first(properties: bytes, box: bytes, bits: int, otherwise: int) -> int:
    at = properties.find(box)
    return otherwise if at < 0 else properties[at + len(box)] & bits
