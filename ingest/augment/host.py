"""Where a batch's images go when they stay in host memory: NumPy arrays, mixed by OpenCV."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray


class HostLanding:
    """NumPy arrays; see `Landing`."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        return np.empty(shape, dtype)

    def put(self, out: NDArray[Any], rows: list[int], results: Any) -> None:
        out[rows] = np.asarray(results.as_cpu().as_tensor())

    def order(self) -> AbstractContextManager[None]:
        return nullcontext()

    def blend(self, images: NDArray[Any], partner: NDArray[np.int64], own: NDArray[np.float64]) -> NDArray[Any]:
        mixed = np.empty_like(images)
        for row, (other, share) in enumerate(zip(partner.tolist(), own.tolist(), strict=True)):
            if share == 1:
                mixed[row] = images[row]
            elif images.dtype == np.float16:  # OpenCV does not add halves
                mixed[row] = share * images[row].astype(np.float32) + (1 - share) * images[other].astype(np.float32)
            else:
                one, two = images[row].reshape(-1, 1), images[other].reshape(-1, 1)
                cv2.addWeighted(one, share, two, 1 - share, 0, dst=mixed[row].reshape(-1, 1))
        return mixed

    def paste(
        self, images: NDArray[Any], partner: NDArray[np.int64], boxes: NDArray[np.int64], *, planar: bool
    ) -> NDArray[Any]:
        cut = images.copy()
        for row in np.flatnonzero((boxes[:, 2:] > boxes[:, :2]).all(1)).tolist():
            top, left, bottom, right = boxes[row].tolist()
            where: Any = (slice(top, bottom), slice(left, right))
            where = (slice(None), *where) if planar else where
            cut[row][where] = images[partner[row]][where]
        return cut
