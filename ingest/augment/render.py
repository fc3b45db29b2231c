"""The ops after decoding, one image at a time, by OpenCV and NumPy.

Resizing is bilinear over the four neighbours, with half-pixel centres and without antialiasing, for training and
evaluation alike: so are DALI's GPU resize with `antialias=False` and OpenCV's INTER_LINEAR, and one rule for all keeps
the pixels of an evaluation like those of the training, on CPU and GPU. On a CPU, OpenCV's is much faster than
DALI's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.augment.windows import Step, fixed_shape, kinds
from ingest.ops import Normalize, Op

cv2.setNumThreads(1)  # our own threads each take an image; OpenCV's would fight them


class Plan:
    """The steps of a batch, and their values in plain Python, which cost less one by one than NumPy's.

    Attributes:
        steps: as `windows.steps` gives them.
        windows: int64 (rows, 4), the part of each image to decode: upright (y, x, height, width).
        values: for each further step its values by row; a scale's as (width, height), in OpenCV's order.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.windows = steps[0].values.astype(np.int64, copy=False)
        self.values: list[list[Any]] = [
            step.values[:, ::-1].tolist() if step.kind == "scale" else step.values.tolist() for step in steps[1:]
        ]


class Renderer:
    """Takes decoded windows to finished images. Not for two threads at a time."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._kinds = kinds(ops)[1:]
        self._shape = fixed_shape(ops)
        self._normalize = normalizer(ops)
        sized = [i for i, kind in enumerate(self._kinds) if kind != "flip"]
        # The last step that changes the size writes straight to the result, if it is a scale.
        self._direct = sized[-1] if sized and self._kinds[sized[-1]] == "scale" and self._shape is not None else -1
        self._scratch = None if self._shape is None else np.empty((*self._shape, 3), np.uint8)

    def __call__(self, pixels: NDArray[np.uint8], plan: Plan, row: int, out: NDArray[Any]) -> None:
        """Writes the result of row `row` of a batch to `out[row]`.

        Args:
            pixels: uint8 (h, w, 3), the decoded window; not written to.
            plan: the batch's steps.
            row: which row.
            out: as `allocate` makes it.
        """
        into = None if self._shape is None else self._scratch if self._normalize else out[row]
        owned = False
        for i, kind in enumerate(self._kinds):
            value = plan.values[i][row]
            if kind == "scale":
                target = into if i == self._direct else None
                pixels = cv2.resize(pixels, value, dst=target, interpolation=cv2.INTER_LINEAR)
                owned = True
            elif kind == "window":
                y, x, height, width = value
                pixels = pixels[y : y + height, x : x + width]
            elif value:
                pixels = cv2.flip(pixels, 1, dst=pixels if owned else None)
                owned = True
        if self._normalize is not None:
            finished = self._normalize(pixels, out[row] if self._shape is not None else None)
            if self._shape is None:
                out[row] = finished
        elif self._shape is None:
            out[row] = pixels if owned and pixels.base is None else pixels.copy()
        elif self._direct < 0:
            out[row] = pixels


def allocate(ops: Sequence[Op], rows: int) -> NDArray[Any]:
    """An array for the results of a batch: dense where every image ends in one size, else an object array of arrays."""
    shape, last = fixed_shape(ops), ops[-1]
    if shape is None:
        return np.empty(rows, object)
    if isinstance(last, Normalize):
        return np.empty((rows, 3, *shape) if last.layout == "CHW" else (rows, *shape, 3), last.dtype)
    return np.empty((rows, *shape, 3), np.uint8)


class Normalizer:
    """(pixel * scale - mean) / std, by a table of the 256 values of each channel: exact, and one look-up a pixel."""

    def __init__(self, op: Normalize) -> None:
        levels = np.arange(256, dtype=np.float64)[:, None] * op.scale
        self._dtype = np.dtype(op.dtype)
        self._planar = op.layout == "CHW"
        table = ((levels - op.mean) / op.std).astype(self._dtype)
        # OpenCV's LUT only moves values; as unsigned integers they may be of any type it knows.
        self._bits = np.dtype(np.uint16) if self._dtype.itemsize == 2 else np.dtype(np.float32)
        self._table = table.view(self._bits).reshape(1, 256, 3)
        self._tables = [np.ascontiguousarray(self._table[..., c]) for c in range(3)]

    def __call__(self, pixels: NDArray[np.uint8], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Uint8 (h, w, 3) to (3, h, w) or (h, w, 3) of the op's dtype, into `out` where given."""
        if out is None:
            shape = (3, *pixels.shape[:2]) if self._planar else pixels.shape
            out = np.empty(shape, self._dtype)
        bits = out.view(self._bits)
        if self._planar:
            for plane, table, target in zip(cv2.split(pixels), self._tables, bits, strict=True):
                cv2.LUT(plane, table, dst=target)
        else:
            cv2.LUT(pixels, self._table, dst=bits)
        return out


def normalizer(ops: Sequence[Op]) -> Normalizer | None:
    """The normalizer of a list of ops, if it ends in one."""
    return Normalizer(ops[-1]) if ops and isinstance(ops[-1], Normalize) else None
