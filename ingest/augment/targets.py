"""Boxes and keypoints through the steps of their image. Coordinates are pixels, (0, 0) the corner of the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.augment.kinds import KINDS, Step
from ingest.errors import ReadError, SampleError
from ingest.ops.targets import Boxes, Keypoints

Points = NDArray[np.float64]


@dataclass(frozen=True)
class Move:
    """One step of one image.

    Attributes:
        matrix: float64 (3, 3), where a point (x, y, 1) goes.
        shape: (height, width) after it.
        cuts: whether what lies outside is gone for good.
    """

    matrix: Points
    shape: tuple[int, int]
    cuts: bool


def moves(steps: Sequence[Step], row: int, shape: tuple[int, int]) -> list[Move]:
    """The steps of a row that move pixels, in order; `shape` is the image's (height, width)."""
    found = []
    for step in steps:
        kind = KINDS[step.kind]
        if kind.matrix is None or (step.active is not None and not step.active[row]):
            continue
        values = step.values[row]
        matrix = kind.matrix(values.tolist(), shape)
        if kind.shape is not None:
            height, width = kind.shape(step.values[row : row + 1], np.array([shape], np.int64))[0].tolist()
            shape = (height, width)
        found.append(Move(matrix, shape, kind.shape is not None and step.kind != "scale"))
    return found


def moved(points: Points, matrix: Points) -> Points:
    """Points (..., 2) by a homography."""
    flat = points.reshape(-1, 2) @ matrix[:, :2].T + matrix[:, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        return (flat[:, :2] / flat[:, 2:]).reshape(points.shape)


def move_boxes(values: Any, spec: Boxes, path: Sequence[Move], shape: tuple[int, int]) -> tuple[Any, NDArray[np.bool_]]:
    """One image's boxes.

    Args:
        values: n boxes of four numbers, or None for none.
        spec: their format.
        path: as `moves` gives it.
        shape: (height, width) of the image before it.

    Returns:
        Float32 (kept, 4) in the same format, of the image after; and bool (n,), which were kept.

    Raises:
        SampleError: a box has no size, is not four finite numbers.
    """
    corners = _corners(values, spec, shape)
    visible = np.ones(len(corners))
    for before, move in zip([shape, *(move.shape for move in path)], path, strict=False):
        if spec.clip and move.cuts:
            corners, visible = _clipped(corners, visible, before)
        corners = moved(corners, move.matrix)
        if move.cuts:
            corners, visible = _clipped(corners, visible, move.shape, keep=not spec.clip)
    last = path[-1].shape if path else shape
    corners, visible = _clipped(corners, visible, last, keep=not spec.clip)
    low, high = corners.min(1), corners.max(1)
    size = high - low
    kept = (size > 0).all(1) & (size.prod(1) >= spec.min_area) & (visible >= max(spec.min_visible, 1e-9))
    return _formatted(low[kept], size[kept], spec, last), kept


def move_keypoints(values: Any, spec: Keypoints, path: Sequence[Move], shape: tuple[int, int]) -> NDArray[np.float32]:
    """One image's keypoints, float32 (n, columns) as they came.

    Raises:
        SampleError: they are not rows of at least two numbers, or `flip_pairs` names one that is not there.
    """
    found = _table(values, None, "keypoints")
    if spec.flip_pairs and len(found) and max(map(max, spec.flip_pairs)) >= len(found):
        raise SampleError(f"{len(found)} keypoints, and flip_pairs names number {max(map(max, spec.flip_pairs))}")
    scale = np.array([shape[1], shape[0]] if spec.relative else [1, 1], np.float64)
    points, inside, mirrored = found[:, :2] * scale, np.ones(len(found), bool), False
    for move in path:
        points = moved(points, move.matrix)
        mirrored ^= bool(np.linalg.det(move.matrix[:2, :2]) < 0)
        if move.cuts:
            inside &= _inside(points, move.shape)
    last = path[-1].shape if path else shape
    inside &= _inside(points, last)
    found[:, :2] = points / np.array([last[1], last[0]] if spec.relative else [1, 1])
    if found.shape[1] > 2:
        found[~inside, 2] = 0
    else:
        found[~inside] = np.nan
    if mirrored:
        for one, other in spec.flip_pairs if len(found) else ():
            found[[one, other]] = found[[other, one]]
    return found.astype(np.float32)


def pick(values: Any, kept: NDArray[np.bool_], column: str) -> Any:
    """The values of the boxes that were kept.

    Raises:
        SampleError: they are not a list, or not as many as boxes.
    """
    if not isinstance(values, (list, np.ndarray, NoneType)):
        raise SampleError(f"column '{column}' holds {type(values).__name__}, and has a list with a value for each box")
    found = values if isinstance(values, np.ndarray) else _values(values or [])
    if len(found) != len(kept):
        raise SampleError(f"{len(found)} values in column '{column}' for {len(kept)} boxes")
    return found[kept]


def _values(values: list[Any]) -> NDArray[Any]:
    """A list as an array of one dimension or more; of Python's own lists where they are of different lengths."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.fromiter(values, object, len(values))


def ragged(batch: dict[str, NDArray[Any]], column: str) -> NDArray[Any]:
    """A column as an object array, one entry for each image.

    Raises:
        ReadError: there is no such column.
    """
    if column not in batch:
        raise ReadError(f"no column '{column}'; there are {', '.join(batch)}")
    values = batch[column]
    out = np.empty(len(values), object)
    for row, value in enumerate(values):
        out[row] = value
    return out


def _corners(values: Any, spec: Boxes, shape: tuple[int, int]) -> Points:
    """Float64 (n, 4, 2): the corners, clockwise."""
    boxes = _table(values, 4, "boxes")
    if spec.relative:
        boxes = boxes * np.array([shape[1], shape[0]] * 2, np.float64)
    first, second = boxes[:, :2], boxes[:, 2:]
    if spec.format == "cxcywh":
        first, second = first - second / 2, first + second / 2
    elif spec.format == "xywh":
        second = first + second
    bad = np.flatnonzero((second < first).any(1))
    if len(bad):
        raise SampleError(f"box {bad[0]} ({boxes[bad[0]].tolist()} as {spec.format}) ends before it begins")
    (left, top), (right, bottom) = first.T, second.T
    return _rectangles(left, top, right, bottom)


def _rectangles(left: Points, top: Points, right: Points, bottom: Points) -> Points:
    """Float64 (n, 4, 2): the corners, clockwise."""
    return np.stack([left, top, right, top, right, bottom, left, bottom], 1).reshape(-1, 4, 2)


def _table(values: Any, width: int | None, name: str) -> Points:
    """Float64 (n, columns)."""
    if not isinstance(values, (list, np.ndarray, NoneType)):
        raise SampleError(f"{name} that are {type(values).__name__}, and not rows of numbers")
    if values is None or len(values) == 0:
        return np.zeros((0, width or 2))
    try:
        table = np.array([list(row) for row in values] if np.ndim(values[0]) else values, np.float64)
    except (TypeError, ValueError) as error:
        raise SampleError(f"{name} that are not rows of numbers ({error})") from None
    if table.ndim == 1 and width is not None and len(table) % width == 0:
        table = table.reshape(-1, width)
    if table.ndim != 2 or table.shape[1] < 2 or (width is not None and table.shape[1] != width):
        raise SampleError(f"{name} of shape {table.shape}, and (n, {width or '2 or more'}) is expected")
    if not np.isfinite(table[:, : width or 2]).all():
        raise SampleError(f"{name} that are not all finite")
    return table


def _clipped(corners: Points, visible: Points, shape: tuple[int, int], *, keep: bool = False) -> tuple[Points, Points]:
    """Upright boxes cut off at the image, as corners, and what is left of their area; `keep` only counts the area."""
    low, high = corners.min(1), corners.max(1)
    border = np.array([shape[1], shape[0]], np.float64)
    inner_low, inner_high = np.clip(low, 0, border), np.clip(high, 0, border)
    if ((low == inner_low) & (high == inner_high)).all():
        return corners, visible  # as they are, turned ones too
    area, left = (high - low).prod(1), (inner_high - inner_low).prod(1)
    visible = visible * np.where(area > 0, left / np.where(area > 0, area, 1), 0)
    if keep:
        return corners, visible
    cut = (low != inner_low).any(1) | (high != inner_high).any(1)
    (left, top), (right, bottom) = inner_low.T, inner_high.T
    return np.where(cut[:, None, None], _rectangles(left, top, right, bottom), corners), visible


def _inside(points: Points, shape: tuple[int, int]) -> NDArray[np.bool_]:
    found = (points >= 0) & (points <= np.array([shape[1], shape[0]]))  # NaN is outside
    return found[:, 0] & found[:, 1]


def _formatted(low: Points, size: Points, spec: Boxes, shape: tuple[int, int]) -> NDArray[np.float32]:
    first = low + size / 2 if spec.format == "cxcywh" else low
    second = low + size if spec.format == "xyxy" else size
    boxes = np.concatenate([first, second], 1)
    scale = np.array([shape[1], shape[0]] * 2 if spec.relative else [1] * 4, np.float64)
    done: NDArray[np.float32] = (boxes / scale).astype(np.float32)
    return done
