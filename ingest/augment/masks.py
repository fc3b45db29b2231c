"""Masks of class numbers: decoded as numbers, not colours, and moved with their image to the nearest pixel."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.augment.headers import read_header
from ingest.augment.kinds import Step
from ingest.errors import SampleError
from ingest.ops.targets import Mask

Numbers = NDArray[Any]
_PNG = b"\x89PNG\r\n\x1a\n"
_PALETTE, _GREY = 3, 0


def decode_mask(data: NDArray[np.uint8] | None, spec: Mask, shape: tuple[int, int]) -> Numbers:
    """Uint8 or uint16 (height, width): grey values, or places in the palette.

    Args:
        data: uint8 (bytes,), or None.
        spec: the column and its dtype.
        shape: of the upright image.

    Raises:
        SampleError: not an image, more than one channel, too many bits for the dtype, or of another size.
    """
    if data is None:
        raise SampleError(f"null in column '{spec.column}', where a mask should be")
    header = read_header(data)
    data, levels = _indices(data)
    try:
        mask = cv2.imdecode(data, cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise SampleError(f"a mask ({header.format}) that OpenCV cannot decode ({error.err})") from None
    if mask is None:
        raise SampleError(f"a mask ({header.format}) that OpenCV cannot decode")
    if mask.ndim != 2:
        raise SampleError(f"a mask with {mask.shape[2]} channels; one channel of class numbers is expected")
    if mask.shape != shape:
        raise SampleError(f"a mask of {mask.shape[1]} x {mask.shape[0]} pixels for an image of {shape[1]} x {shape[0]}")
    if mask.dtype not in (np.uint8, spec.dtype):
        raise SampleError(f"a mask of {mask.dtype}, and column '{spec.column}' has dtype {spec.dtype}")
    if levels < 256:
        mask = mask // (255 // (levels - 1))
    return np.ascontiguousarray(mask, spec.dtype)


def move_mask(mask: Numbers, steps: Sequence[Step], row: int, fill: int) -> Numbers:
    """A mask through the steps of its row."""
    for step in steps:
        if step.active is None or step.active[row]:
            move = _MOVES.get(step.kind)
            mask = mask if move is None else move(mask, step.values[row].tolist(), fill)
    return mask


def _indices(data: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
    """A PNG with a palette as a grey one, whose values are places in the palette; and how many levels grey has.

    OpenCV gives colours for a palette. Below 8 bits it spreads grey over 0 to 255, so the caller divides again.
    """
    head = data[:33].tobytes()
    if head[:8] != _PNG or head[12:16] != b"IHDR":
        return data, 256
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", head[16:29])
    levels = 2 ** min(depth, 8)
    if colour != _PALETTE:
        return data, levels if colour == _GREY else 256
    chunks = [_PNG, _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, _GREY, *rest))]
    body, at = data.tobytes(), 33
    while at + 8 <= len(body):
        length, name = struct.unpack(">I4s", body[at : at + 8])
        if name not in (b"PLTE", b"tRNS"):
            chunks.append(body[at : at + 12 + length])
        at += 12 + length
    return np.frombuffer(b"".join(chunks), np.uint8), levels


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _window(mask: Numbers, value: Any, _: int) -> Numbers:
    y, x, height, width = value
    return mask[y : y + height, x : x + width]


def _scale(mask: Numbers, value: Any, _: int) -> Numbers:
    scaled: Numbers = cv2.resize(mask, (value[1], value[0]), interpolation=cv2.INTER_NEAREST_EXACT)
    return scaled


def _flip(mask: Numbers, value: Any, _: int) -> Numbers:
    return mask[:: -1 if value[1] else 1, :: -1 if value[0] else 1]


def _warp(mask: Numbers, value: Any, fill: int) -> Numbers:
    warped: Numbers = cv2.warpPerspective(
        np.ascontiguousarray(mask),
        np.array(value, np.float32).reshape(3, 3),
        mask.shape[::-1],
        flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=fill,
    )
    return warped


def _pad(mask: Numbers, value: Any, fill: int) -> Numbers:
    top, left, height, width = value
    padded = np.full((height, width), fill, mask.dtype)
    padded[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    return padded


_MOVES: Mapping[str, Callable[[Numbers, Any, int], Numbers]] = {
    "window": _window,
    "scale": _scale,
    "flip": _flip,
    "warp": _warp,
    "pad": _pad,
}
