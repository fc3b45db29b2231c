"""Encoded images without what decoders do of their own accord: OpenCV turns TIFF and hides what is transparent in GIF.

Orientation is applied, and alpha dropped, in one place for all formats; so what asks for either is taken out of the
bytes first.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from ingest.augment.headers import Header

_ORIENTATION = 274


def plain(data: NDArray[np.uint8], header: Header) -> NDArray[np.uint8]:
    """The same image, to be decoded as it is stored: uint8 (bytes,), a copy where something was taken out."""
    if header.format == "tiff" and header.orientation != 1:
        return _unturned(data)
    return _opaque(data) if header.format == "gif" else data


def _unturned(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A TIFF whose first directory says that it is upright."""
    found = bytearray(data.tobytes())
    order = "<" if found[:2] == b"II" else ">"
    (start,) = struct.unpack_from(order + "I", found, 4)
    (count,) = struct.unpack_from(order + "H", found, start)
    for at in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind, values = struct.unpack_from(order + "HHI", found, at)
        if tag == _ORIENTATION and kind in (3, 4) and values == 1:  # a SHORT or a LONG
            struct.pack_into(order + ("H" if kind == 3 else "I"), found, at + 8, 1)
    return np.frombuffer(found, np.uint8)


def _opaque(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A GIF whose first frame has no transparent colour: the palette's own shows."""
    flags = int.from_bytes(data[10:11].tobytes(), "little")
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    while at + 3 < len(data) and data[at] == 0x21:  # extensions, in sub-blocks of up to 255 bytes
        if data[at + 1] == 0xF9:
            data = data.copy()
            data[at + 3] &= 0xFE
        at += 2
        while at < len(data) and data[at]:
            at += 1 + data[at].item()
        at += 1
    return data
