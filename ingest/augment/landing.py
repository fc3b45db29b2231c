"""Where a batch's images go when a pipeline has made them: into host memory, or to the trainer, never off the device.

DALI's memory goes no further than the worker that ran the pipeline: results are copied, on their own device, into an
array of whoever keeps it. Handing DALI's own buffers on would save that copy (two passes over the batch in device
memory, beside decoding it), and then a tensor that dies while its trainer's kernels still read it would give its memory
back to a pipeline at once: no framework can order that, since the memory is not of its own allocator.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Landing(Protocol):
    """Makes and fills the arrays of a framework. For any number of threads at a time."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """An array whose values are not set yet; `array[rows] = value` must work on it.

        Args:
            shape: (rows, ...).
            dtype: NumPy's name of it.
        """

    def put(self, out: Any, rows: list[int], results: Any) -> None:
        """Copies results of one shape into some rows; their memory may be written again when this returns.

        Args:
            out: what `empty` gave.
            rows: distinct places in it.
            results: DALI's tensor list, as many as rows.
        """

    def order(self) -> AbstractContextManager[Any]:
        """What this thread does to arrays inside comes after what was put into them."""

    def blend(self, images: Any, partner: NDArray[np.int64], own: NDArray[np.float64]) -> Any:
        """Each image with another one's share in it, as a new array.

        Args:
            images: (rows, ...).
            partner: int64 (rows,), whose the rest is.
            own: float64 (rows,), the share of its own; 1 leaves an image as it is.
        """

    def paste(self, images: Any, partner: NDArray[np.int64], boxes: NDArray[np.int64], *, planar: bool) -> Any:
        """Each image with a rectangle of another one's in it, as a new array.

        Args:
            images: (rows, height, width, channels), or (rows, channels, height, width) where `planar`.
            partner: int64 (rows,), whose the rectangle is.
            boxes: int64 (rows, 4), of (top, left, bottom, right), the last two not included; may be empty.
            planar: see `images`.
        """
