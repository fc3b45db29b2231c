"""A made-up batch that a pipeline goes through before the first real one: what is needed once is there by then."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from ingest.augment.finish import dense
from ingest.augment.headers import read_header
from ingest.augment.landing import Landing
from ingest.augment.render import Plan
from ingest.augment.steps import draws, steps
from ingest.augment.work import Job
from ingest.ops import Op

USUAL = (1024, 1024)  # of the images of a data set, where nothing is said: few of the usual ones are larger
_QUALITY = 90


def warm_job(ops: Sequence[Op], size: tuple[int, int], rows: int, landing: Landing) -> Job | None:
    """A batch of one JPEG of noise, whose bytes are many for its size, through the least and most of what is random.

    Args:
        ops: of the pipeline.
        size: (height, width) of the JPEG.
        rows: of the batch; every other one has the largest random numbers, the rest the smallest.
        landing: where results go.

    Returns:
        The batch; None where the ops refuse an image of that size.
    """
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    _, data = cv2.imencode(".jpg", noise, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    header, shapes = read_header(data), np.full((rows, 2), size, np.int64)
    numbers = np.zeros((rows, max(1, draws(ops))))
    numbers[1::2] = np.nextafter(1, 0)
    found, problems = steps(ops, shapes, numbers)
    if problems:
        return None
    one = dense(ops)
    out = np.empty(rows, object) if one is None else landing.empty((rows, *one[0]), one[1])
    return Job([data] * rows, [header] * rows, {}, shapes, numbers, Plan(found), out)
