"""Which pixels each op takes, as integers, from image sizes and random numbers: the same for CPU, GPU and reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ingest.augment.headers import MAX_PIXELS
from ingest.errors import SpecError
from ingest.ops import CenterCrop, Flip, Normalize, Op, RandomResizedCrop, Resize, sides

TRIES = 10  # torchvision's
Kind = Literal["window", "scale", "flip"]


@dataclass(frozen=True)
class Step:
    """One geometric step over a batch.

    Attributes:
        kind: `window`, `scale` or `flip`.
        values: int64 (rows, 4) of (y, x, height, width) for a window; int64 (rows, 2) of (height, width) for a scale;
            bool (rows,) for a flip.
    """

    kind: Kind
    values: NDArray[np.int64] | NDArray[np.bool_]


def check(ops: Sequence[Op]) -> None:
    """Refuses an order of ops that has no meaning.

    Raises:
        SpecError: `normalize` is not the last op.
    """
    for op in ops[:-1]:
        if isinstance(op, Normalize):
            names = ", ".join(each.name for each in ops)
            raise SpecError(f"augment.ops: normalize must be the last op, found {names}")


def kinds(ops: Sequence[Op]) -> tuple[Kind, ...]:
    """The kinds of the steps that `steps` gives, which depend on the ops alone; the first is the decoder's window."""
    found: list[Kind] = []
    for op in ops:
        if isinstance(op, RandomResizedCrop):
            found += ["window", "scale"]
        elif not isinstance(op, Normalize):
            found.append({Resize: "scale", CenterCrop: "window", Flip: "flip"}[type(op)])  # type: ignore[arg-type]
    return tuple(found) if found[:1] == ["window"] else ("window", *found)


def draws(ops: Sequence[Op]) -> int:
    """Random numbers that one sample needs: every op has columns of its own."""
    return sum(_draws(op) for op in ops)


def fixed_shape(ops: Sequence[Op]) -> tuple[int, int] | None:
    """(height, width) of every result; None where it depends on the image."""
    shape = None
    for op in ops:
        if isinstance(op, (RandomResizedCrop, CenterCrop)):
            shape = sides(op.size)
        elif isinstance(op, Resize):
            shape = sides(op.size) if op.size is not None else None if shape is None else _shorter_of(shape, op)
    return shape


def steps(
    ops: Sequence[Op], shapes: NDArray[np.int64], numbers: NDArray[np.float64]
) -> tuple[list[Step], dict[int, str]]:
    """Every step of a batch.

    Args:
        ops: see `ingest.ops`.
        shapes: int64 (rows, 2), upright height and width of each image.
        numbers: float64 (rows, draws(ops)) in [0, 1).

    Returns:
        The steps, of the kinds that `kinds` names, and for each row that an op cannot do, the reason. The steps of
        such a row are inside its image but mean nothing.
    """
    found: list[Step] = []
    problems: dict[int, str] = {}
    images, column = shapes, 0
    for op in ops:
        u = numbers[:, column : column + _draws(op)]
        column += _draws(op)
        if isinstance(op, RandomResizedCrop):
            found.append(Step("window", random_windows(shapes, op.area, op.ratio, u)))
            shapes = np.broadcast_to(np.array(sides(op.size), np.int64), shapes.shape)
            found.append(Step("scale", shapes))
        elif isinstance(op, CenterCrop):
            size = np.array(sides(op.size), np.int64)
            for row in np.flatnonzero((shapes < size).any(1)).tolist():
                height, width = shapes[row].tolist()
                problems.setdefault(
                    row, f"{width} x {height} pixels are fewer than center_crop's {size[1]} x {size[0]}"
                )
            window = np.minimum(size, shapes)
            found.append(Step("window", np.concatenate([_middle(shapes, window), window], 1)))
            shapes = window
        elif isinstance(op, Resize):
            shapes = _resized(op, shapes)
            for row in np.flatnonzero(shapes.prod(1) > MAX_PIXELS).tolist():
                height, width = shapes[row].tolist()
                problems.setdefault(row, f"resize would make {width} x {height} pixels, over the limit of {MAX_PIXELS}")
            found.append(Step("scale", shapes))
        elif isinstance(op, Flip):
            found.append(Step("flip", u[:, 0] < op.probability))
    if not found or found[0].kind != "window":
        found.insert(0, Step("window", np.concatenate([np.zeros_like(images), images], 1)))
    return found, problems


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
    place[~found] = _middle(shapes[~found], window[~found])
    return np.concatenate([place, window], 1)


def _draws(op: Op) -> int:
    return {RandomResizedCrop: 2 * TRIES + 2, Flip: 1}.get(type(op), 0)


def _clamped(shapes: NDArray[np.int64], ratio: tuple[float, float]) -> NDArray[np.int64]:
    """The largest (height, width) whose ratio is within bounds."""
    height = np.minimum(shapes[:, 0], np.rint(shapes[:, 1] / ratio[0]))
    width = np.minimum(shapes[:, 1], np.rint(shapes[:, 0] * ratio[1]))
    clamped: NDArray[np.int64] = np.maximum(np.stack([height, width], 1), 1).astype(np.int64)
    return clamped


def _middle(shapes: NDArray[np.int64], window: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.rint((shapes - window) / 2).astype(np.int64)  # half to even, as torchvision's center_crop


def _resized(op: Resize, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
    if op.size is not None:
        return np.broadcast_to(np.array(sides(op.size), np.int64), shapes.shape)
    assert op.shorter is not None
    short = shapes.min(1, keepdims=True)
    resized: NDArray[np.int64] = op.shorter * shapes // short  # the longer side rounds down, as torchvision's
    return resized


def _shorter_of(shape: tuple[int, int], op: Resize) -> tuple[int, int]:
    height, width = _resized(op, np.array([shape], np.int64))[0].tolist()
    return height, width
