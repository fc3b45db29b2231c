"""Operations on colours: one value or one pixel at a time, after statistics of the whole image where it takes them."""

from __future__ import annotations

from functools import partial
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.augment.kinds import Input, Kind, Pixels, Rows, Step, Values, add, between, column, plan
from ingest.ops import Autocontrast, ColorJitter, Equalize, Grayscale, Invert, Posterize, Solarize

LEVELS = np.arange(256, dtype=np.float64)
INVERTED = np.arange(255, -1, -1, dtype=np.uint8)


def _table(levels: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.rint(np.clip(levels, 0, 255)).astype(np.uint8)


def _look_up(pixels: Pixels, table: NDArray[np.uint8]) -> Pixels:
    found: Pixels = cv2.LUT(pixels, table)
    return found


def _rounded(d: Any, values: Any) -> Any:
    """Floats to uint8 on the graph, rounded, within bounds."""
    return d.fn.cast(d.math.floor(d.math.clamp(values, 0.0, 255.0) + 0.5), dtype=d.types.UINT8)


def _brightness(pixels: Pixels, value: Any, _: Any) -> Pixels:
    return _look_up(pixels, _table(LEVELS * value[0]))


def _brightness_graph(d: Any, images: Any, inputs: dict[str, Any], _: Any) -> Any:
    return _rounded(d, images * inputs["factor"])


def _contrast(pixels: Pixels, value: Any, _: Any) -> Pixels:
    grey = float(np.floor(cv2.mean(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY))[0] + 0.5))
    return _look_up(pixels, _table((LEVELS - grey) * value[0] + grey))


def _contrast_graph(d: Any, images: Any, inputs: dict[str, Any], _: Any) -> Any:
    grey = d.fn.color_space_conversion(images, image_type=d.types.RGB, output_type=d.types.GRAY)
    mean = d.math.floor(d.fn.reductions.mean(grey, dtype=d.types.FLOAT) + 0.5)
    return _rounded(d, (images - mean) * inputs["factor"] + mean)


def _saturation(pixels: Pixels, value: Any, _: Any) -> Pixels:
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    mixed: Pixels = cv2.addWeighted(pixels, value[0], cv2.merge([grey, grey, grey]), 1 - value[0], 0)
    return mixed


def _saturation_graph(d: Any, images: Any, inputs: dict[str, Any], _: Any) -> Any:
    grey = d.fn.color_space_conversion(images, image_type=d.types.RGB, output_type=d.types.GRAY)
    return _rounded(d, images * inputs["factor"] + grey * (1.0 - inputs["factor"]))


def _hue(pixels: Pixels, value: Any, _: Any) -> Pixels:
    hsv = cv2.cvtColor(pixels.astype(np.float32), cv2.COLOR_RGB2HSV)  # 8 bits of hue would show as steps
    hue = hsv[..., 0]
    hue += np.float32(value[0] % 1.0 * 360)
    hue[hue >= 360] -= 360
    turned: Pixels = np.rint(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)).clip(0, 255).astype(np.uint8)
    return turned


def _hue_graph(d: Any, images: Any, inputs: dict[str, Any], _: Any) -> Any:
    """HSV in arithmetic: DALI's own hue turns colours about the grey axis, which is another thing."""
    m = d.math
    values = d.fn.cast(images, dtype=d.types.FLOAT)
    red, green, blue = values[:, :, 0:1], values[:, :, 1:2], values[:, :, 2:3]
    top = m.max(m.max(red, green), blue)
    chroma = top - m.min(m.min(red, green), blue)
    safe = chroma + (chroma <= 0.0)
    is_red = (top <= red) * 1.0
    is_green = (top <= green) * (1.0 - is_red)
    hue = is_red * ((green - blue) / safe) + is_green * ((blue - red) / safe + 2.0)
    hue = hue + (1.0 - is_red - is_green) * ((red - green) / safe + 4.0) + inputs["turn"] * 6.0
    channels = []
    for offset in (5.0, 3.0, 1.0):
        place = hue + offset
        place = place - 6.0 * m.floor(place / 6.0)
        channels.append(top - chroma * m.clamp(m.min(place, 4.0 - place), 0.0, 1.0))
    return d.fn.reshape(_rounded(d, d.fn.cat(*channels, axis=2)), layout="HWC")


def _posterize(pixels: Pixels, value: Any, _: Any) -> Pixels:
    return _look_up(pixels, np.arange(256).astype(np.uint8) & np.uint8(_mask(value[0])))


def _mask(bits: Any) -> Any:
    return 256 - 2 ** (8 - bits)


def _solarize(pixels: Pixels, value: Any, _: Any) -> Pixels:
    return _look_up(pixels, np.where(value[0] <= LEVELS, INVERTED, LEVELS).astype(np.uint8))


def _solarize_graph(d: Any, images: Any, inputs: dict[str, Any], _: Any) -> Any:
    values = d.fn.cast(images, dtype=d.types.FLOAT)
    return _rounded(d, values + (values >= inputs["threshold"]) * (255.0 - 2.0 * values))


def _equalize(pixels: Pixels, _: Any, __: Any) -> Pixels:
    evened: Pixels = cv2.merge([cv2.equalizeHist(channel) for channel in cv2.split(pixels)])
    return evened


def _autocontrast(pixels: Pixels, _: Any, __: Any) -> Pixels:
    stretched = []
    for channel in cv2.split(pixels):
        low, high, _low_at, _high_at = cv2.minMaxLoc(channel)
        stretched.append(channel if high <= low else cv2.LUT(channel, _table((LEVELS - low) * (255.0 / (high - low)))))
    merged: Pixels = cv2.merge(stretched)
    return merged


def _autocontrast_graph(d: Any, images: Any, _: dict[str, Any], __: Any) -> Any:
    values = d.fn.cast(images, dtype=d.types.FLOAT)
    low = d.fn.reductions.min(values, axis_names="HW", keep_dims=True)
    span = d.fn.reductions.max(values, axis_names="HW", keep_dims=True) - low
    flat = (span <= 0.0) * 1.0
    return _rounded(d, (values - low) * (255.0 / (span + flat)) * (1.0 - flat) + values * flat)


def _invert(pixels: Pixels, _: Any, __: Any) -> Pixels:
    inverted: Pixels = cv2.bitwise_not(pixels)
    return inverted


def _number(name: str) -> Input:
    return Input(name, "float32", 0, column)


add(
    Kind("brightness", _brightness, _brightness_graph, (_number("factor"),)),
    Kind("contrast", _contrast, _contrast_graph, (_number("factor"),)),
    Kind("saturation", _saturation, _saturation_graph, (_number("factor"),)),
    Kind("hue", _hue, _hue_graph, (_number("turn"),)),
    Kind(
        "posterize",
        _posterize,
        lambda _d, images, inputs, _: images & inputs["mask"],
        (Input("mask", "uint8", 0, lambda values: column(_mask(values), dtype="uint8")),),
    ),
    Kind("solarize", _solarize, _solarize_graph, (_number("threshold"),)),
    Kind("equalize", _equalize, lambda d, images, _inputs, _: d.fn.equalize(images)),
    Kind("autocontrast", _autocontrast, _autocontrast_graph),
    Kind("invert", _invert, lambda d, images, _inputs, _: images ^ d.types.Constant(np.uint8(255))),
)


@plan(ColorJitter, 4)
def _color_jitter(op: ColorJitter, rows: Rows) -> list[Step]:
    parts = (("brightness", op.brightness), ("contrast", op.contrast), ("saturation", op.saturation), ("hue", op.hue))
    return [
        Step(kind, between(bounds, rows.numbers[:, i : i + 1]))
        for i, (kind, bounds) in enumerate(parts)
        if bounds != ((0, 0) if kind == "hue" else (1, 1))
    ]


def _constant(kind: str, value: float, rows: Rows) -> list[Step]:
    values: Values = np.full((len(rows.shapes), 1), value)
    return [Step(kind, values)]


plan(Grayscale, 0)(lambda _, rows: _constant("saturation", 0.0, rows))
plan(Posterize, 0)(lambda op, rows: _constant("posterize", op.bits, rows))
plan(Solarize, 0)(lambda op, rows: _constant("solarize", op.threshold, rows))
for _op, _kind in ((Equalize, "equalize"), (Autocontrast, "autocontrast"), (Invert, "invert")):
    plan(_op, 0)(partial(lambda kind, _, rows: _constant(kind, 0.0, rows), _kind))
