"""The oracle: the same steps in plain NumPy and Pillow, on pixels that Pillow decoded. For tests alone."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageEnhance, ImageOps

from ingest import rng
from ingest.augment.finish import Finish, finish
from ingest.augment.kinds import Step
from ingest.augment.steps import draws, steps
from ingest.augment.texture import NOISE_STEP, normal_noise
from ingest.ops import Op

Pixels = NDArray[np.uint8]

TOLERANCE: Mapping[str, int] = {
    "window": 0, "flip": 0, "pad": 0, "erase": 0, "posterize": 0, "solarize": 0, "invert": 0, "jpeg": 0,
    "scale": 1, "warp": 1, "brightness": 1, "contrast": 3, "saturation": 3, "hue": 1, "autocontrast": 1, "equalize": 1,
    "sharpness": 1, "blur": 2, "noise": 1,
}  # fmt: skip
"""How far the CPU path may be from here on the same pixels, in steps of 255, at any pixel, by kind of step."""


def decode(encoded: bytes) -> Pixels:
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
    """What the augmenter makes of each image, but for rounding: uint8 (h, w, 3), or as the last ops say."""
    images = [decode(one) for one in encoded]
    shapes = np.array([image.shape[:2] for image in images], np.int64)
    found, problems = steps(ops, shapes, rng.uniforms(seed, pass_, sample_ids, max(1, draws(ops))))
    if problems:
        raise ValueError(f"the ops do not fit: {problems}")
    return [finished(apply(image, found, row), finish(ops)) for row, image in enumerate(images)]


def apply(image: Pixels, found: Sequence[Step], row: int) -> Pixels:
    """One row's steps."""
    for step in found:
        if step.active is None or step.active[row]:
            image = STEPS[step.kind](image, step.values[row].tolist(), step.constant)
    return image


def resize(image: Pixels, height: int, width: int) -> Pixels:
    """Bilinear in float64: half-pixel centres, edges repeated, no antialiasing, rounded."""
    top, bottom, down = _taps(image.shape[0], height)
    left, right, across = _taps(image.shape[1], width)
    pixels = image.astype(np.float64)
    rows = pixels[top] * (1 - down)[:, None, None] + pixels[bottom] * down[:, None, None]
    return _rounded(rows[:, left] * (1 - across)[None, :, None] + rows[:, right] * across[None, :, None])


def finished(image: Pixels, end: Finish) -> NDArray[Any]:
    """(pixel * scale - mean) / std in float64, then dtype and layout."""
    values: NDArray[Any] = image
    if end.dtype != "uint8":
        values = ((image.astype(np.float64) * end.scale - np.array(end.mean)) / np.array(end.std)).astype(end.dtype)
    return values.transpose(2, 0, 1) if end.planar else values


def warp(image: Pixels, matrix: NDArray[np.float64], fill: int) -> Pixels:
    """Bilinear in float64, by a homography from result to image; what lies outside is `fill`."""
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float64)
    along, down, depth = np.einsum("ij,jhw->ihw", matrix, np.stack([x, y, np.ones_like(x)]))
    with np.errstate(divide="ignore", invalid="ignore"):
        along, down = along / depth, down / depth
    inside = (along > -1) & (along < width) & (down > -1) & (down < height)
    along, down = np.where(inside, along, -1), np.where(inside, down, -1)
    framed = np.full((height + 3, width + 3, 3), float(fill))
    framed[1:-2, 1:-2] = image
    left, top = np.floor(along).astype(np.int64), np.floor(down).astype(np.int64)
    across, below = (along - left)[..., None], (down - top)[..., None]
    upper = framed[top + 1, left + 1] * (1 - across) + framed[top + 1, left + 2] * across
    lower = framed[top + 2, left + 1] * (1 - across) + framed[top + 2, left + 2] * across
    return _rounded(upper * (1 - below) + lower * below)


def correlate(image: Pixels, kernel: NDArray[np.float64]) -> Pixels:
    """By an odd kernel, in float64, the borders mirrored about their last pixel."""
    high, wide = kernel.shape[0] // 2, kernel.shape[1] // 2
    framed = np.pad(image.astype(np.float64), ((high, high), (wide, wide), (0, 0)), mode="reflect")
    height, width = image.shape[:2]
    total = np.zeros(image.shape)
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[1]):
            total += kernel[i, j] * framed[i : i + height, j : j + width]
    return _rounded(total)


def hue(image: Pixels, turn: float) -> Pixels:
    """Each pixel's hue turned by a share of the circle, saturation and value kept (HSV)."""
    values = image.astype(np.float64)
    top, low = values.max(2), values.min(2)
    chroma = top - low
    red, green, blue = np.moveaxis(values, 2, 0)
    safe = np.where(chroma > 0, chroma, 1)
    sixths = np.select(
        [top == red, top == green], [(green - blue) / safe, (blue - red) / safe + 2], (red - green) / safe + 4
    )
    places = [(sixths + turn * 6 + offset) % 6 for offset in (5, 3, 1)]
    return _rounded(np.stack([top - chroma * np.clip(np.minimum(k, 4 - k), 0, 1) for k in places], 2))


def equalize(channel: Pixels) -> Pixels:
    """(cumulated count - first count) / (all - first count) * 255, rounded."""
    counts = np.bincount(channel.ravel(), minlength=256)
    first = int(np.flatnonzero(counts)[0])
    if counts[first] == channel.size:
        return channel
    table = (np.cumsum(counts) - counts[first]) * (255 / (channel.size - counts[first]))
    evened: Pixels = np.rint(np.clip(table, 0, 255)).astype(np.uint8)[channel]
    return evened


def jpeg(image: Pixels, quality: int) -> Pixels:
    """Through Pillow's encoder and decoder."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def _window(image: Pixels, value: Any, _: Any) -> Pixels:
    y, x, height, width = value
    return image[y : y + height, x : x + width]


def _flip(image: Pixels, value: Any, _: Any) -> Pixels:
    return image[:: -1 if value[1] else 1, :: -1 if value[0] else 1]


def _pad(image: Pixels, value: Any, fill: int) -> Pixels:
    top, left, height, width = value
    padded = np.full((height, width, 3), fill, np.uint8)
    padded[top : top + image.shape[0], left : left + image.shape[1]] = image
    return padded


def _erase(image: Pixels, value: Any, fill: Any) -> Pixels:
    y, x, height, width = value
    erased = image.copy()
    erased[y : y + height, x : x + width] = fill
    return erased


def _sharpness(image: Pixels, value: Any, _: Any) -> Pixels:
    smooth = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    whole = np.zeros((3, 3))
    whole[1, 1] = 1
    return correlate(image, (1 - value[0]) * smooth + value[0] * whole)


def _blur(image: Pixels, value: Any, _: Any) -> Pixels:
    sigma, window = value[0], int(value[1])
    line = np.array([math.exp(-((i - window // 2) ** 2) / (2 * sigma**2)) for i in range(window)])
    return correlate(image, np.outer(line, line) / line.sum() ** 2)


def _noise(image: Pixels, value: Any, _: Any) -> Pixels:
    noise = normal_noise(int(value[1]), *image.shape[:2])
    return _rounded(image + noise * (NOISE_STEP * value[0]))


def _pillow(change: Callable[[Image.Image, Any], Image.Image]) -> Callable[[Pixels, Any, Any], Pixels]:
    return lambda image, value, _: np.asarray(change(Image.fromarray(image), value[0]))


STEPS: dict[str, Callable[[Pixels, Any, Any], Pixels]] = {
    "window": _window,
    "scale": lambda image, value, _: resize(image, *value),
    "flip": _flip,
    "warp": lambda image, value, fill: warp(image, np.array(value).reshape(3, 3), fill),
    "pad": _pad,
    "erase": _erase,
    "brightness": _pillow(lambda image, factor: ImageEnhance.Brightness(image).enhance(factor)),
    "contrast": _pillow(lambda image, factor: ImageEnhance.Contrast(image).enhance(factor)),
    "saturation": _pillow(lambda image, factor: ImageEnhance.Color(image).enhance(factor)),
    "hue": lambda image, value, _: hue(image, value[0]),
    "posterize": _pillow(lambda image, bits: ImageOps.posterize(image, int(bits))),
    "solarize": _pillow(ImageOps.solarize),
    "equalize": lambda image, _value, _: np.stack([equalize(image[..., c]) for c in range(3)], 2),
    "autocontrast": _pillow(lambda image, _: ImageOps.autocontrast(image)),
    "invert": _pillow(lambda image, _: ImageChops.invert(image)),
    "sharpness": _sharpness,
    "blur": _blur,
    "noise": _noise,
    "jpeg": lambda image, value, _: jpeg(image, int(value[0])),
}


def _rounded(values: NDArray[np.float64]) -> Pixels:
    return np.rint(np.clip(values, 0, 255)).astype(np.uint8)


def _taps(old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The two neighbours of each new pixel along one axis, and the share of the second."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    first = np.floor(at).astype(np.int64)
    return first, np.minimum(first + 1, old - 1), at - first
