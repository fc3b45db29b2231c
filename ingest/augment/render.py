"""The steps after decoding, one image at a time, by OpenCV and NumPy.

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

from ingest.augment.finish import Finisher, finish
from ingest.augment.kinds import KINDS, Step
from ingest.augment.steps import fixed_shape, slots
from ingest.ops import Op

cv2.setNumThreads(1)  # our own threads each take an image; OpenCV's would fight them


class Plan:
    """The steps of a batch, and their values in plain Python, which cost less one by one than NumPy's.

    Attributes:
        steps: as `steps.steps` gives them.
        windows: int64 (rows, 4), the part of each image to decode: upright (y, x, height, width).
        values: for each further step its values by row.
        active: for each further step whether each row takes it; None: all do.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.windows = steps[0].values.astype(np.int64, copy=False)
        self.values: list[list[Any]] = [step.values.tolist() for step in steps[1:]]
        self.active = [None if step.active is None else step.active.tolist() for step in steps[1:]]


class Renderer:
    """Takes decoded windows to finished images. Not for two threads at a time."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._slots = slots(ops)[1:]
        self._shape = fixed_shape(ops)
        end = finish(ops)
        self._finish = None if end.plain else Finisher(end)
        self._keeps = any(slot.kind == "numpy" for slot in self._slots)  # a user's function may use its array again
        sized = [i for i, slot in enumerate(self._slots) if KINDS[slot.kind].shape is not None]
        # The last step that changes the size writes straight to the result, if it is a scale that all rows take.
        last = self._slots[sized[-1]] if sized and self._shape is not None else None
        self._direct = sized[-1] if last is not None and last.kind == "scale" and not last.optional else -1
        self._scratch = None if self._shape is None else np.empty((*self._shape, 3), np.uint8)

    def __call__(
        self, pixels: NDArray[np.uint8], plan: Plan, row: int, out: NDArray[Any], at: int | None = None
    ) -> None:
        """Writes the result of row `row` of a batch to `out[row]`, or to `out[at]` where given.

        Args:
            pixels: uint8 (h, w, 3), the decoded window; not written to.
            plan: the batch's steps.
            row: which row's steps.
            out: as `allocate` makes it.
            at: where in `out`.
        """
        place = row if at is None else at
        into = None if self._shape is None else self._scratch if self._finish else out[place]
        given, placed = pixels, None
        for i, slot in enumerate(self._slots):
            active = plan.active[i]
            if active is not None and not active[row]:
                continue
            value = plan.values[i][row]
            if i == self._direct:
                pixels = placed = cv2.resize(pixels, value[::-1], dst=into, interpolation=cv2.INTER_LINEAR)
            elif slot.kind == "flip" and pixels is placed:
                if value[0] and not value[1]:
                    cv2.flip(pixels, 1, dst=pixels)
                elif value[1]:
                    cv2.flip(pixels, -1 if value[0] else 0, dst=pixels)
            else:
                pixels = KINDS[slot.kind].cpu(pixels, value, slot.constant)
        if self._finish is not None:
            finished = self._finish(pixels, out[place] if self._shape is not None else None)
            if self._shape is None:
                out[place] = finished
        elif self._shape is None:
            kept = pixels is given or pixels.base is not None or self._keeps
            out[place] = np.array(pixels) if kept else pixels
        elif pixels is not placed:
            out[place] = pixels
