"""Pixels in the place of an encoded image: what the ops before the first random one made of it, kept as bytes."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from ingest.augment.kinds import Rows, Step, plan
from ingest.ops.leading import Stored

_HEAD = struct.Struct("<16sII")  # mark, height, width; RGB pixels follow
_MARK = b"\xb1ingest pixels\x01\n"


@plan(Stored, lambda op: op.draws, fixed=lambda op, _: op.shape)
def _nothing(op: Stored, rows: Rows) -> list[Step]:
    del op, rows  # all is done
    return []


def pack(pixels: NDArray[np.uint8]) -> bytes:
    """Uint8 (height, width, 3) as bytes."""
    return _HEAD.pack(_MARK, *pixels.shape[:2]) + pixels.tobytes()


def unpack(data: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """The pixels, a view of the bytes; None where these are something else: an encoded image."""
    if len(data) < _HEAD.size:
        return None
    mark, height, width = _HEAD.unpack(data[: _HEAD.size].tobytes())
    if mark != _MARK or len(data) != _HEAD.size + height * width * 3:
        return None
    return data[_HEAD.size :].reshape(height, width, 3)
