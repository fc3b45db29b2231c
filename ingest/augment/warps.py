"""Operations that bend an image: rotation, affine maps and perspective, all as one homography per sample."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.augment.geometry import moved
from ingest.augment.kinds import Input, Kind, Pixels, Rows, Shapes, Step, add, between, plan
from ingest.ops import Affine, Perspective, Rotate


def _warp(pixels: Pixels, value: Any, fill: int) -> Pixels:
    """By a homography from the result's pixels to the image's, both with (0, 0) in the middle of the first pixel."""
    height, width = pixels.shape[:2]
    warped: Pixels = cv2.warpPerspective(
        pixels,
        np.array(value, np.float32).reshape(3, 3),  # DALI's precision
        (width, height),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(fill, fill, fill),
    )
    return warped


def _warp_graph(d: Any, images: Any, inputs: dict[str, Any], fill: int) -> Any:
    return d.fn.experimental.warp_perspective(
        images,
        matrix=inputs["matrix"],
        border_mode="constant",
        fill_value=[float(fill)] * 3,
        interp_type=d.types.INTERP_LINEAR,
        pixel_origin="center",
    )


def _warped(value: Any, _: tuple[int, int]) -> NDArray[np.float64]:
    inverse = np.array(value, np.float64).reshape(3, 3)
    return moved(0.5, 0.5) @ np.linalg.inv(inverse) @ moved(-0.5, -0.5)


add(
    Kind(
        "warp",
        _warp,
        _warp_graph,
        (Input("matrix", "float32", 2, lambda values: np.ascontiguousarray(values, np.float32).reshape(-1, 3, 3)),),
        matrix=_warped,
    ),
)


@plan(Rotate, 1)
def _rotate(op: Rotate, rows: Rows) -> list[Step]:
    zero = np.zeros(len(rows.shapes))
    angle = np.radians(between(op.degrees, rows.numbers[:, 0]))
    return [Step("warp", inverse_affine(rows.shapes, angle, zero, zero, zero + 1, zero, zero), constant=op.fill)]


@plan(Affine, 6)
def _affine(op: Affine, rows: Rows) -> list[Step]:
    u = rows.numbers
    down = between((-op.translate[0], op.translate[0]), u[:, 1]) * rows.shapes[:, 0]
    right = between((-op.translate[1], op.translate[1]), u[:, 2]) * rows.shapes[:, 1]
    shear_x, shear_y = (np.radians(between(span, u[:, i])) for span, i in ((op.shear_x, 4), (op.shear_y, 5)))
    angle, scale = np.radians(between(op.degrees, u[:, 0])), between(op.scale, u[:, 3])
    values = inverse_affine(rows.shapes, angle, down, right, scale, np.tan(shear_x), np.tan(shear_y))
    return [Step("warp", values, constant=op.fill)]


@plan(Perspective, 8)
def _perspective(op: Perspective, rows: Rows) -> list[Step]:
    far = (rows.shapes[:, [1, 0]] - 1).astype(np.float64)  # x and y of the last pixel
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float64)
    inwards = rows.numbers.reshape(-1, 4, 2) * (op.distortion / 2) * (1 - 2 * corners)
    given, moved = corners * far[:, None], (corners + inwards) * far[:, None]
    return [Step("warp", homographies(moved, given), constant=op.fill)]


def inverse_affine(
    shapes: Shapes,
    angle: NDArray[np.float64],
    down: NDArray[np.float64],
    right: NDArray[np.float64],
    scale: NDArray[np.float64],
    shear_x: NDArray[np.float64],
    shear_y: NDArray[np.float64],
) -> NDArray[np.float64]:
    """From the result's pixels to the image's: float64 (rows, 9).

    The image is sheared (x + shear_x * y, y + shear_y * x), scaled, turned by `angle` radians counter-clockwise, all
    about its middle, and moved by `down` and `right` pixels.
    """
    count = len(shapes)
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.stack([cos, sin, -sin, cos], 1).reshape(count, 2, 2)  # y points down
    shear = np.ones((count, 2, 2))
    shear[:, 0, 1], shear[:, 1, 0] = shear_x, shear_y
    inverse = np.linalg.inv(scale[:, None, None] * (turn @ shear))
    centre = (shapes[:, [1, 0]] - 1) / 2
    offset = centre - np.einsum("nij,nj->ni", inverse, centre + np.stack([right, down], 1))
    values = np.zeros((count, 3, 3))
    values[:, :2, :2], values[:, :2, 2], values[:, 2, 2] = inverse, offset, 1
    return values.reshape(count, 9)


def homographies(source: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The homographies that take four points each, (rows, 4, 2) of (x, y), to four others: float64 (rows, 9)."""
    count = len(source)
    system, right = np.zeros((count, 8, 8)), np.zeros((count, 8, 1))
    for i in range(4):
        for axis in range(2):
            row = 2 * i + axis
            system[:, row, 3 * axis : 3 * axis + 2] = source[:, i]
            system[:, row, 3 * axis + 2] = 1
            system[:, row, 6:] = -source[:, i] * target[:, i, axis, None]
            right[:, row, 0] = target[:, i, axis]
    thin = (source.reshape(count, -1).max(1) == 0) | (np.ptp(source, axis=1).min(1) == 0)  # one pixel wide or high
    system[thin] = np.eye(8)
    right[thin, :, 0] = (1, 0, 0, 0, 1, 0, 0, 0)
    solved = np.linalg.solve(system, right)[:, :, 0]
    return np.concatenate([solved, np.ones((count, 1))], 1)
