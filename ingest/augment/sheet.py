"""A sheet of pictures: each sample as it is and as several passes augment it, with what moves along drawn on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.augment.augmenter import Augmenter
from ingest.ops import Cast, Normalize, Transpose
from ingest.spec import Augment

Pixels = NDArray[np.uint8]
CELL, GAP, BACK = 192, 4, 40  # pixels, and a level of grey
COLOURS = ((255, 64, 64), (64, 255, 64), (80, 140, 255), (255, 220, 0), (255, 0, 255), (0, 255, 255))
_TINT = 0.45


def sheet(
    spec: Augment, table: pa.Table, sample_ids: NDArray[np.int64], *, seed: int, passes: int
) -> tuple[Pixels, int]:
    """Uint8 (height, width, 3): a row for each sample, the original first; and how many samples were bad.

    Args:
        spec: dtype and layout of its ops do not matter here, since people look at pixels.
        table: the samples.
        sample_ids: int64 (rows,).
        seed: the spec's `order.seed`.
        passes: augmented versions of each.
    """
    pixels = tuple(op for op in spec.pipeline if not isinstance(op, (Normalize, Cast, Transpose)))
    as_is = spec.model_copy(update={"ops": (), "recipe": None, "function": None, "numpy": None})
    columns, bad = [], np.zeros(len(sample_ids), bool)
    flip_never = {"ops": ({"flip": {"probability": 0.0}},)}
    for pass_, ops in [(0, Augment.model_validate(flip_never).pipeline), *((n, pixels) for n in range(passes))]:
        worker = Augmenter(
            as_is.model_copy(update={"ops": ops}), seed=seed, batch_rows=len(sample_ids), threads=1, device_id=None
        )
        try:
            batch, failures = worker.attempt([(table, np.arange(len(sample_ids)))], sample_ids, pass_)
        finally:
            worker.close()
        bad[list(failures)] = True
        columns.append([_cell(spec, batch, row) for row in range(len(sample_ids))])
    wide, high = len(columns) * (CELL + GAP) + GAP, len(sample_ids) * (CELL + GAP) + GAP
    whole = np.full((high, wide, 3), BACK, np.uint8)
    for across, cells in enumerate(columns):
        for down, cell in enumerate(cells):
            y, x = (GAP + place * (CELL + GAP) for place in (down, across))
            whole[y : y + CELL, x : x + CELL] = cell
    return whole, int(bad.sum())


def png(pixels: Pixels) -> bytes:
    """Pixels as a PNG file."""
    done, encoded = cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))
    assert done
    return bytes(encoded.tobytes())


def _cell(spec: Augment, batch: dict[str, NDArray[Any]], row: int) -> Pixels:
    """One image in its square, with its masks, boxes and keypoints; a cross where there is none."""
    cell = np.full((CELL, CELL, 3), BACK, np.uint8)
    image = np.asarray(batch[spec.column][row])
    if 0 in image.shape:
        cv2.line(cell, (0, 0), (CELL, CELL), COLOURS[0], 2)
        cv2.line(cell, (0, CELL), (CELL, 0), COLOURS[0], 2)
        return cell
    for mask in spec.masks:
        image = _tinted(image, np.asarray(batch[mask.column][row]))
    height, width = image.shape[:2]
    share = CELL / max(height, width)
    size = max(1, round(width * share)), max(1, round(height * share))
    shown = cv2.resize(image, size, interpolation=cv2.INTER_AREA if share < 1 else cv2.INTER_NEAREST)
    cell[: size[1], : size[0]] = shown
    if spec.boxes is not None:
        for i, box in enumerate(np.asarray(batch[spec.boxes.column][row], np.float64)):
            first, second = box[:2], box[2:]
            if spec.boxes.format == "cxcywh":
                first = first - second / 2
            if spec.boxes.format != "xyxy":
                second = first + second
            scale = np.array([width, height]) * share if spec.boxes.relative else np.array([share, share])
            _rectangle(cell, first * scale, second * scale, COLOURS[i % len(COLOURS)])
    if spec.keypoints is not None:
        scale = np.array([width, height]) * share if spec.keypoints.relative else np.array([share, share])
        for i, point in enumerate(np.asarray(batch[spec.keypoints.column][row], np.float64)):
            if np.isfinite(point[:2]).all() and (len(point) < 3 or point[2] > 0):
                x, y = (point[:2] * scale).tolist()
                cv2.circle(cell, (int(x), int(y)), 3, COLOURS[i % len(COLOURS)], -1)
    return cell


def _rectangle(cell: Pixels, low: NDArray[np.float64], high: NDArray[np.float64], colour: Sequence[int]) -> None:
    (left, top), (right, bottom) = np.rint(low).astype(int).tolist(), np.rint(high).astype(int).tolist()
    cv2.rectangle(cell, (left, top), (right - 1, bottom - 1), colour, 2)


def _tinted(image: Pixels, mask: NDArray[Any]) -> Pixels:
    colours = np.array(COLOURS, np.float64)[(mask.astype(np.int64) - 1) % len(COLOURS)]
    mixed = np.where((mask > 0)[..., None], (1 - _TINT) * image + _TINT * colours, image)
    return mixed.astype(np.uint8)
