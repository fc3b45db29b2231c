"""The oracle: the same ops in plain NumPy on pixels that Pillow decoded. For tests: only they install Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ingest import rng
from ingest.augment.windows import Step, draws, steps
from ingest.ops import Normalize, Op


def decode(encoded: bytes) -> NDArray[np.uint8]:
    """Uint8 (height, width, 3): RGB, upright, alpha dropped, 16 bits rounded to 8."""
    with Image.open(io.BytesIO(encoded)) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I;16"):  # Pillow's own conversion clips
            grey = np.rint(np.asarray(upright).astype(np.float64) / 257).astype(np.uint8)
            return np.repeat(grey[..., None], 3, axis=2)
        return np.asarray(upright.convert("RGB"))


def augment(
    encoded: Sequence[bytes], ops: Sequence[Op], *, seed: int, pass_: int, sample_ids: NDArray[np.int64]
) -> list[NDArray[Any]]:
    """What the augmenter makes of each image, but for rounding: uint8 (h, w, 3), or as `normalize` says."""
    images = [decode(one) for one in encoded]
    shapes = np.array([image.shape[:2] for image in images], np.int64)
    found, problems = steps(ops, shapes, rng.uniforms(seed, pass_, sample_ids, max(1, draws(ops))))
    if problems:
        raise ValueError(f"the ops do not fit: {problems}")
    done = [_geometry(image, found, row) for row, image in enumerate(images)]
    last = ops[-1] if ops else None
    return [normalize(image, last) for image in done] if isinstance(last, Normalize) else list(done)


def resize(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Bilinear in float64: half-pixel centres, edges repeated, no antialiasing, rounded."""
    top, bottom, down = _taps(image.shape[0], height)
    left, right, across = _taps(image.shape[1], width)
    pixels = image.astype(np.float64)
    rows = pixels[top] * (1 - down)[:, None, None] + pixels[bottom] * down[:, None, None]
    both = rows[:, left] * (1 - across)[None, :, None] + rows[:, right] * across[None, :, None]
    return np.rint(both).astype(np.uint8)


def normalize(image: NDArray[np.uint8], op: Normalize) -> NDArray[Any]:
    """(pixel * scale - mean) / std in float64, then dtype and layout."""
    values = (image.astype(np.float64) * op.scale - np.array(op.mean)) / np.array(op.std)
    done: NDArray[Any] = (values.transpose(2, 0, 1) if op.layout == "CHW" else values).astype(op.dtype)
    return done


def _taps(old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The two neighbours of each new pixel along one axis, and the share of the second."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    first = np.floor(at).astype(np.int64)
    return first, np.minimum(first + 1, old - 1), at - first


def _geometry(image: NDArray[np.uint8], found: Sequence[Step], row: int) -> NDArray[np.uint8]:
    for step in found:
        value = step.values[row]
        if step.kind == "window":
            y, x, height, width = value.tolist()
            image = image[y : y + height, x : x + width]
        elif step.kind == "scale":
            image = resize(image, *value.tolist())
        elif value:
            image = image[:, ::-1]
    return image
