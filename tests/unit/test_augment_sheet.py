"""The sheet of pictures: originals first, boxes and masks where the pixels are, a cross where there is no image."""

from __future__ import annotations

import cv2
import numpy as np
import pyarrow as pa
import pytest
from augment_images import encoded, table

from ingest.augment.sheet import BACK, CELL, COLOURS, GAP, png, sheet
from ingest.spec import Augment

pytestmark = pytest.mark.unit


def cell(pixels, down, across):
    y, x = (GAP + place * (CELL + GAP) for place in (down, across))
    return pixels[y : y + CELL, x : x + CELL]


def test_a_sheet_shows_originals_and_passes_with_what_moves_along():
    grey = np.full((96, 96, 3), 100, np.uint8)
    image = encoded(grey, "PNG")
    half = np.zeros((96, 96), np.uint8)
    half[:, :48] = 1
    held = table(
        [image, b"no image"],
        boxes=pa.array([[[0.0, 0, 48, 96]], []]),
        mask=pa.array([encoded(half, "PNG"), encoded(half, "PNG")], pa.binary()),
    )
    spec = Augment(ops=[{"flip": {"p": 1}}, {"pad": {"border": 0}}, "normalize"], boxes="boxes", masks=["mask"])
    pixels, bad = sheet(spec, held, np.arange(2), seed=0, passes=2)
    assert bad == 1
    assert pixels.shape == (2 * (CELL + GAP) + GAP, 3 * (CELL + GAP) + GAP, 3)
    original, flipped = cell(pixels, 0, 0), cell(pixels, 0, 1)
    assert original[CELL // 2, 0].tolist() == list(COLOURS[0])  # the box's left side
    tint = (0.55 * 100 + 0.45 * np.array(COLOURS[0])).astype(np.uint8)
    assert (original[20, 40] == tint).all()
    assert (original[20, 150] == 100).all()
    assert (flipped[20, 40] == 100).all()
    assert (flipped[20, 150] == tint).all()
    assert flipped[CELL // 2, CELL - 1].tolist() == list(COLOURS[0])
    crossed = cell(pixels, 1, 0)
    assert crossed[5, 5].tolist() == list(COLOURS[0])
    assert crossed[CELL // 2, 5].tolist() == [BACK] * 3
    assert np.array_equal(cv2.imdecode(np.frombuffer(png(pixels), np.uint8), cv2.IMREAD_COLOR_RGB), pixels)
