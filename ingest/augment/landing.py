"""Where a batch's images go when a pipeline has made them: into host memory, or to the trainer, never off the device.

DALI's memory goes no further than the worker that ran the pipeline: results are copied, on their own device, into an
array of whoever keeps it. Handing DALI's own buffers on would save that copy (two passes over the batch in device
memory, beside decoding it), and then a tensor that dies while its trainer's kernels still read it would give its memory
back to a pipeline at once: no framework can order that, since the memory is not of its own allocator.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
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


class HostLanding:
    """NumPy arrays in host memory."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        return np.empty(shape, dtype)

    def put(self, out: NDArray[Any], rows: list[int], results: Any) -> None:
        out[rows] = np.asarray(results.as_cpu().as_tensor())

    def order(self) -> AbstractContextManager[None]:
        return nullcontext()
