"""The end of a list of operations: the dtype, scale and layout of what comes out, and the array that takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.augment.steps import fixed_shape
from ingest.ops import Cast, Clip, MelSpectrogram, Normalize, Op, Transpose, Waveform


@dataclass(frozen=True)
class Finish:
    """(pixel * scale - mean) / std as `dtype`, in planes or not.

    Attributes:
        dtype: `uint8` leaves the values as they are.
        planar: (channel, height, width) instead of (height, width, channel).
        scale, mean, std: of `normalize` and `cast`.
    """

    dtype: str = "uint8"
    planar: bool = False
    scale: float = 1.0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @property
    def plain(self) -> bool:
        """Whether nothing is left to do."""
        return self.dtype == "uint8" and not self.planar

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        return (3, height, width) if self.planar else (height, width, 3)


def finish(ops: Sequence[Op]) -> Finish:
    """How a list of ops ends."""
    planar = any(isinstance(op, Transpose) for op in ops)
    for op in ops:
        if isinstance(op, Normalize):
            return Finish(op.dtype, planar or op.layout == "CHW", op.scale, op.mean, op.std)
        if isinstance(op, Cast):
            return Finish(op.dtype, planar, op.scale)
    return Finish(planar=planar)


def dense(ops: Sequence[Op]) -> tuple[tuple[int, ...], str] | None:
    """(shape, dtype) of every result; None where images end in different sizes."""
    shape, end = fixed_shape(ops), finish(ops)
    first = ops[0] if ops else None
    if isinstance(first, Waveform):
        mel = ops[1] if len(ops) > 1 else None
        spectrum = (mel.bands, 1 + first.samples // mel.hop) if isinstance(mel, MelSpectrogram) else (first.samples,)
        return spectrum, "float32"
    frames = (first.frames,) if isinstance(first, Clip) else ()
    return None if shape is None else ((*frames, *end.shape(*shape)), end.dtype)


def allocate(ops: Sequence[Op], rows: int) -> NDArray[Any]:
    """An array for the results of a batch: dense where every image ends in one size, else an object array of arrays."""
    one = dense(ops)
    return np.empty(rows, object) if one is None else np.empty((rows, *one[0]), one[1])


class Finisher:
    """Takes pixels to their end, by a table of the 256 values of each channel: exact, and one look-up a pixel."""

    def __init__(self, end: Finish) -> None:
        self._end = end
        self._dtype = np.dtype(end.dtype)
        if end.dtype == "uint8":
            return
        levels = np.arange(256, dtype=np.float64)[:, None] * end.scale
        table = ((levels - end.mean) / end.std).astype(self._dtype)
        # OpenCV's LUT only moves values; as unsigned integers they may be of any type it knows.
        self._bits = np.dtype(np.uint16) if self._dtype.itemsize == 2 else np.dtype(np.float32)
        self._table = table.view(self._bits).reshape(1, 256, 3)
        self._tables = [np.ascontiguousarray(self._table[..., c]) for c in range(3)]

    def __call__(self, pixels: NDArray[np.uint8], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Uint8 (h, w, 3) to (3, h, w) or (h, w, 3) of the dtype, into `out` where given."""
        if out is None:
            out = np.empty(self._end.shape(*pixels.shape[:2]), self._dtype)
        if self._end.dtype == "uint8":
            out[:] = pixels.transpose(2, 0, 1) if self._end.planar else pixels
            return out
        bits = out.view(self._bits)
        if self._end.planar:
            for plane, table, target in zip(cv2.split(pixels), self._tables, bits, strict=True):
                cv2.LUT(plane, table, dst=target)
        else:
            cv2.LUT(pixels, self._table, dst=bits)
        return out
