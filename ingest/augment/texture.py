"""Operations on a pixel's neighbourhood, and noise."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.augment.colour import _rounded
from ingest.augment.kinds import Input, Kind, Pixels, Rows, Step, Values, add, between, column, plan
from ingest.ops import GaussianBlur, GaussianNoise, JpegDistortion, Sharpness

SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float64) / 13  # Pillow's
NOISE_STEP = 1 / 4096  # of the standard deviation


def _kernel(factor: Any) -> NDArray[np.float32]:
    """Float32 (..., 3, 3) for factors (...)."""
    share = np.asarray(factor, np.float64)[..., None, None]
    whole = np.zeros((3, 3))
    whole[1, 1] = 1
    return np.ascontiguousarray((1 - share) * SMOOTH + share * whole, np.float32)


def _sharpness(pixels: Pixels, value: Any, _: Any) -> Pixels:
    filtered: Pixels = cv2.filter2D(pixels, -1, _kernel(value[0]))
    return filtered


def _blur(pixels: Pixels, value: Any, _: Any) -> Pixels:
    sigma, window = value[0], int(value[1])
    blurred: Pixels = cv2.GaussianBlur(pixels, (window, window), sigma)
    return blurred


def _blur_graph(d: Any, images: Any, inputs: dict[str, Any], _: Any) -> Any:
    return d.fn.gaussian_blur(images, sigma=inputs["sigma"], window_size=inputs["window"])


@cache
def _normals() -> NDArray[np.int16]:
    """Int16 (65536,): the standard normal distribution at even quantiles, in steps of `NOISE_STEP`."""
    inverse = NormalDist().inv_cdf
    half = np.array([inverse((i + 0.5) / 65536) for i in range(32768, 65536)])
    steps = np.rint(half / NOISE_STEP).astype(np.int16)
    return np.concatenate([-steps[::-1], steps])


def normal_noise(key: int, height: int, width: int) -> NDArray[np.int16]:
    """Int16 (height, width, 3), standard normal in steps of `NOISE_STEP`, a function of the key and the size.

    The bits are those of NumPy's Philox bit generator, whose stream NumPy keeps (it is the distributions that change).
    """
    count = height * width * 3
    drawn = np.random.Philox(key=key).random_raw(-(-count // 4)).astype("<u8").view("<u2")[:count]
    noise: NDArray[np.int16] = _normals()[drawn].reshape(height, width, 3)
    return noise


def _noise(pixels: Pixels, value: Any, _: Any) -> Pixels:
    std, key = value[0], int(value[1])
    noise = normal_noise(key, *pixels.shape[:2]).astype(np.float32)
    noisy: Pixels = cv2.addWeighted(pixels, 1.0, noise, std * NOISE_STEP, 0.0, dtype=cv2.CV_8U)
    return noisy


def _noise_input(values: Values) -> list[NDArray[np.int16]]:
    return [normal_noise(int(key), int(height), int(width)) for _, key, height, width in values.tolist()]


def _noise_graph(d: Any, images: Any, inputs: dict[str, Any], _: Any) -> Any:
    noise = d.to_device(inputs["noise"])
    return _rounded(d, images + noise * (inputs["std"] * NOISE_STEP))


def _jpeg(pixels: Pixels, value: Any, _: Any) -> Pixels:
    quality = [cv2.IMWRITE_JPEG_QUALITY, int(value[0])]
    _done, encoded = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), quality)
    left: Pixels | None = cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB)
    assert left is not None  # it has just been encoded
    return left


def _jpeg_graph(d: Any, images: Any, inputs: dict[str, Any], _: Any) -> Any:
    return d.fn.jpeg_compression_distortion(images, quality=inputs["quality"])


add(
    Kind(
        "sharpness",
        _sharpness,
        lambda d, images, inputs, _: d.fn.filter(images, d.to_device(inputs["kernel"])),
        (Input("kernel", "float32", 2, lambda values: _kernel(values[:, 0])),),
    ),
    Kind(
        "blur",
        _blur,
        _blur_graph,
        (
            Input("sigma", "float32", 0, column),
            Input("window", "int32", 0, lambda values: column(values, 1, "int32")),
        ),
    ),
    Kind(
        "noise",
        _noise,
        _noise_graph,
        (Input("std", "float32", 0, column), Input("noise", "int16", 3, _noise_input)),
    ),
    Kind("jpeg", _jpeg, _jpeg_graph, (Input("quality", "int32", 0, lambda values: column(values, 0, "int32")),)),
)


@plan(Sharpness, 1)
def _sharpens(op: Sharpness, rows: Rows) -> list[Step]:
    return [Step("sharpness", between(op.factor, rows.numbers))]


@plan(GaussianBlur, 1)
def _blurs(op: GaussianBlur, rows: Rows) -> list[Step]:
    sigma = between(op.sigma, rows.numbers)
    window = 2 * np.ceil(3 * sigma) + 1 if op.window is None else np.full_like(sigma, op.window)
    return [Step("blur", np.concatenate([sigma, window], 1))]


@plan(GaussianNoise, 2)
def _adds_noise(op: GaussianNoise, rows: Rows) -> list[Step]:
    std, key = between(op.std, rows.numbers[:, :1]), np.floor(rows.numbers[:, 1:] * 2.0**53)
    return [Step("noise", np.concatenate([std, key, rows.shapes], 1))]


@plan(JpegDistortion, 1)
def _distorts(op: JpegDistortion, rows: Rows) -> list[Step]:
    low, high = op.quality
    return [Step("jpeg", np.floor(between((low, high + 1), rows.numbers)))]
