"""Operations on rectangles of pixels: windows, scales, flips, padding, and one that covers them."""

from __future__ import annotations

from functools import partial
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.augment.headers import MAX_PIXELS
from ingest.augment.kinds import Input, Kind, Pixels, Rows, Shapes, Step, Values, add, column, columns, plan
from ingest.augment.windows import TRIES, middle, random_windows
from ingest.ops import (
    CenterCrop,
    Erase,
    Flip,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    sides,
)

# -- kinds -------------------------------------------------------------------------------------------------------------


def _window(pixels: Pixels, value: Any, _: Any) -> Pixels:
    y, x, height, width = value
    return pixels[y : y + height, x : x + width]


def _window_graph(d: Any, images: Any, inputs: dict[str, Any], _: Any) -> Any:
    return d.fn.slice(
        images, inputs["anchor"], inputs["shape"], axis_names="HW", normalized_anchor=False, normalized_shape=False
    )


def _whole(values: Values, shapes: Shapes, off: NDArray[np.bool_]) -> Values:
    """Windows, or places in a padded image, that leave the rows of `off` as they are."""
    return np.where(off[:, None], np.concatenate([np.zeros_like(shapes), shapes], 1), values)


def moved(x: float, y: float) -> NDArray[np.float64]:
    return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])


def _scaled(value: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    return np.diag([value[1] / shape[1], value[0] / shape[0], 1.0])


def _scale(pixels: Pixels, value: Any, _: Any) -> Pixels:
    height, width = value
    resized: Pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    return resized


def _scale_graph(d: Any, images: Any, inputs: dict[str, Any], _: Any) -> Any:
    return d.fn.resize(images, size=inputs["size"], interp_type=d.types.INTERP_LINEAR, antialias=False)


_CODES = {(1, 0): 1, (0, 1): 0, (1, 1): -1}  # OpenCV's, of (horizontal, vertical)


def _flip(pixels: Pixels, value: Any, _: Any) -> Pixels:
    code = _CODES.get(tuple(value))
    flipped: Pixels = pixels if code is None else cv2.flip(pixels, code)
    return flipped


def _flip_graph(d: Any, images: Any, inputs: dict[str, Any], _: Any) -> Any:
    return d.fn.flip(images, horizontal=inputs["horizontal"], vertical=inputs["vertical"])


def _flipped(value: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    horizontal, vertical = value
    height, width = shape
    return np.array(
        [[1.0 - 2 * horizontal, 0.0, width * horizontal], [0.0, 1.0 - 2 * vertical, height * vertical], [0.0, 0.0, 1.0]]
    )


def _pad(pixels: Pixels, value: Any, fill: int) -> Pixels:
    top, left, height, width = value
    bottom, right = height - top - pixels.shape[0], width - left - pixels.shape[1]
    if not any((top, left, bottom, right)):
        return pixels
    padded: Pixels = cv2.copyMakeBorder(pixels, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(fill, fill, fill))
    return padded


def _pad_graph(d: Any, images: Any, inputs: dict[str, Any], fill: int) -> Any:
    return d.fn.slice(
        images,
        inputs["anchor"],
        inputs["shape"],
        axis_names="HW",
        normalized_anchor=False,
        normalized_shape=False,
        out_of_bounds_policy="pad",
        fill_values=[float(fill)] * 3,
    )


def _erase(pixels: Pixels, value: Any, fill: tuple[int, int, int]) -> Pixels:
    y, x, height, width = value
    if not height:
        return pixels
    pixels = pixels.copy()
    pixels[y : y + height, x : x + width] = fill
    return pixels


def _erase_graph(d: Any, images: Any, inputs: dict[str, Any], fill: tuple[int, int, int]) -> Any:
    return d.fn.erase(
        images,
        anchor=inputs["anchor"],
        shape=inputs["shape"],
        axis_names="HW",
        fill_value=[float(value) for value in fill],
    )


def _pair(name: str, first: int, dtype: Any = "int32", sign: int = 1) -> Input:
    return Input(name, dtype, 1, lambda values: columns(sign * values, first, first + 2, dtype))


add(
    Kind(
        "window",
        _window,
        _window_graph,
        (_pair("anchor", 0), _pair("shape", 2)),
        neutral=_whole,
        shape=lambda values, _: values[:, 2:],
        matrix=lambda value, _: moved(-value[1], -value[0]),
    ),
    Kind(
        "scale",
        _scale,
        _scale_graph,
        (_pair("size", 0, "float32"),),
        shape=lambda values, _: values,
        matrix=_scaled,
    ),
    Kind(
        "flip",
        _flip,
        _flip_graph,
        (
            Input("horizontal", "int32", 0, partial(column, index=0, dtype="int32")),
            Input("vertical", "int32", 0, partial(column, index=1, dtype="int32")),
        ),
        neutral=lambda values, _, off: values * ~off[:, None],
        matrix=_flipped,
    ),
    Kind(
        "pad",
        _pad,
        _pad_graph,
        (_pair("anchor", 0, sign=-1), _pair("shape", 2)),
        neutral=_whole,
        shape=lambda values, _: values[:, 2:],
        matrix=lambda value, _: moved(value[1], value[0]),
    ),
    Kind(
        "erase",
        _erase,
        _erase_graph,
        (_pair("anchor", 0, "float32"), _pair("shape", 2, "float32")),
        neutral=lambda values, _, off: values * ~off[:, None],
    ),
)

# -- planners ----------------------------------------------------------------------------------------------------------


def _resized(op: Resize, shapes: Shapes) -> Shapes:
    if op.size is not None:
        return np.broadcast_to(np.array(sides(op.size), np.int64), shapes.shape)
    side = (shapes.min if op.longer is None else shapes.max)(1, keepdims=True)
    wanted = op.shorter if op.longer is None else op.longer
    assert wanted is not None
    resized: Shapes = np.maximum(wanted * shapes // side, 1)  # the other side rounds down, as torchvision's
    return resized


def _resized_shape(op: Resize, shape: tuple[int, int] | None) -> tuple[int, int] | None:
    if op.size is not None:
        return sides(op.size)
    if shape is None:
        return None
    height, width = _resized(op, np.array([shape], np.int64))[0].tolist()
    return height, width


def _sides(op: Pad) -> tuple[int, int]:
    assert op.size is not None
    return sides(op.size)


def _padded_shape(op: Pad, shape: tuple[int, int] | None) -> tuple[int, int] | None:
    if shape is None:
        return None
    if op.border is not None:
        return shape[0] + 2 * op.border, shape[1] + 2 * op.border
    height, width = _sides(op)
    return max(height, shape[0]), max(width, shape[1])


@plan(RandomResizedCrop, 2 * TRIES + 2, fixed=lambda op, _: sides(op.size))
def _random_resized_crop(op: RandomResizedCrop, rows: Rows) -> list[Step]:
    window = Step("window", random_windows(rows.shapes, op.area, op.ratio, rows.numbers))
    return [window, Step("scale", _all(sides(op.size), rows))]


@plan(CenterCrop, 0, fixed=lambda op, _: sides(op.size))
def _center_crop(op: CenterCrop, rows: Rows) -> list[Step]:
    window = _fitting(op, rows)
    return [Step("window", np.concatenate([middle(rows.shapes, window), window], 1))]


@plan(RandomCrop, 2, fixed=lambda op, _: sides(op.size))
def _random_crop(op: RandomCrop, rows: Rows) -> list[Step]:
    window = _fitting(op, rows)
    place = (rows.numbers * (rows.shapes - window + 1)).astype(np.int64)
    return [Step("window", np.concatenate([place, window], 1))]


@plan(Resize, 0, fixed=_resized_shape)
def _resize(op: Resize, rows: Rows) -> list[Step]:
    shapes = _resized(op, rows.shapes)
    _check_pixels("resize", shapes, rows)
    return [Step("scale", shapes)]


@plan(Flip, 0)
def _flips(op: Flip, rows: Rows) -> list[Step]:
    return [Step("flip", _all((1, 0) if op.direction == "horizontal" else (0, 1), rows))]


@plan(Pad, 0, fixed=_padded_shape)
def _pads(op: Pad, rows: Rows) -> list[Step]:
    size = rows.shapes + 2 * op.border if op.border is not None else np.maximum(rows.shapes, _all(_sides(op), rows))
    _check_pixels("pad", size, rows)
    return [Step("pad", np.concatenate([(size - rows.shapes) // 2, size], 1), constant=op.fill)]


@plan(Erase, 2 * TRIES + 2)
def _erases(op: Erase, rows: Rows) -> list[Step]:
    return [Step("erase", random_windows(rows.shapes, op.area, op.ratio, rows.numbers), constant=op.fill)]


# -- helpers -----------------------------------------------------------------------------------------------------------


def _all(values: tuple[int, int], rows: Rows) -> Shapes:
    return np.broadcast_to(np.array(values, np.int64), (len(rows.shapes), 2))


def _fitting(op: CenterCrop | RandomCrop, rows: Rows) -> Shapes:
    """The window of each row, and a problem for each that is smaller."""
    size = _all(sides(op.size), rows)
    for row in np.flatnonzero((rows.shapes < size).any(1)).tolist():
        (height, width), (high, wide) = rows.shapes[row].tolist(), sides(op.size)
        rows.problems.setdefault(row, f"{width} x {height} pixels are fewer than {op.name}'s {wide} x {high}")
    return np.minimum(size, rows.shapes)


def _check_pixels(name: str, shapes: Shapes, rows: Rows) -> None:
    for row in np.flatnonzero(shapes.prod(1) > MAX_PIXELS).tolist():
        height, width = shapes[row].tolist()
        rows.problems.setdefault(row, f"{name} would make {width} x {height} pixels, over the limit of {MAX_PIXELS}")
