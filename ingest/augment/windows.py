"""Random windows, as integers, from image sizes and random numbers: the same for CPU, GPU and reference."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

TRIES = 10  # torchvision's


def random_windows(
    shapes: NDArray[np.int64], area: tuple[float, float], ratio: tuple[float, float], numbers: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Windows of a random area and aspect ratio, after torchvision's RandomResizedCrop.

    Up to ten tries each draw an area, uniform, and a ratio width / height, uniform in its logarithm, and take the first
    window that fits. Where none does, the window is the largest centred one whose ratio is within bounds.

    Args:
        shapes: int64 (rows, 2), height and width.
        area: least and greatest share of the image's area.
        ratio: least and greatest width / height.
        numbers: float64 (rows, 22) in [0, 1): an area and a ratio for each try, then the place in y and x.

    Returns:
        int64 (rows, 4): y, x, height, width.
    """
    pixels = shapes.prod(1).astype(np.float64)[:, None]
    target = pixels * (area[0] + (area[1] - area[0]) * numbers[:, 0 : 2 * TRIES : 2])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = np.exp(low + (high - low) * numbers[:, 1 : 2 * TRIES : 2])
    width, height = np.rint(np.sqrt(target * aspect)), np.rint(np.sqrt(target / aspect))
    fits = (width >= 1) & (width <= shapes[:, 1:]) & (height >= 1) & (height <= shapes[:, :1])
    first = fits.argmax(1)
    rows = np.arange(len(shapes))
    window = np.stack([height[rows, first], width[rows, first]], 1).astype(np.int64)
    found = fits[rows, first]
    window[~found] = _clamped(shapes[~found], ratio)
    place = (numbers[:, 2 * TRIES : 2 * TRIES + 2] * (shapes - window + 1)).astype(np.int64)
    place[~found] = middle(shapes[~found], window[~found])
    return np.concatenate([place, window], 1)


def _clamped(shapes: NDArray[np.int64], ratio: tuple[float, float]) -> NDArray[np.int64]:
    """The largest (height, width) whose ratio is within bounds."""
    height = np.minimum(shapes[:, 0], np.rint(shapes[:, 1] / ratio[0]))
    width = np.minimum(shapes[:, 1], np.rint(shapes[:, 0] * ratio[1]))
    clamped: NDArray[np.int64] = np.maximum(np.stack([height, width], 1), 1).astype(np.int64)
    return clamped


def middle(shapes: NDArray[np.int64], window: NDArray[np.int64]) -> NDArray[np.int64]:
    """Int64 (rows, 2): where windows of (height, width) start that lie in the middle."""
    return np.rint((shapes - window) / 2).astype(np.int64)  # half to even, as torchvision's center_crop
