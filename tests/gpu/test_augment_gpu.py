"""The augmenter on a GPU: close to the reference, the same bits in any batch, alive after bad samples."""

from __future__ import annotations

import numpy as np
import pytest
from augment_images import assert_close, augment, augmenter, encoded, jpegs, oriented, smooth, table
from PIL import Image

from ingest.augment import reference
from ingest.errors import SampleError
from ingest.spec import Augment

pytestmark = pytest.mark.gpu

IMAGES = jpegs(24)
IDS = np.arange(24) * 977 + 5
TRAIN = {"ops": [{"random_resized_crop": {"size": (48, 64)}}, "flip"]}


@pytest.mark.parametrize(
    "ops",
    [
        TRAIN["ops"],
        [{"resize": {"shorter": 40}}, {"center_crop": {"size": 32}}],
        ["flip"],
        [{"random_resized_crop": {"size": 32}}, {"normalize": {"layout": "HWC"}}],
    ],
)
def test_pixels_are_close_to_the_reference(ops):
    expected = reference.augment(IMAGES, Augment(ops=ops).pipeline, seed=1, pass_=3, sample_ids=IDS)
    got = augment(IMAGES, IDS, 3, device_id=0, ops=ops)
    # steps of 255, or of what normalize makes of them (one step is about 0.017)
    share = 1 if got.dtype != np.float32 else 0.0175
    assert_close(list(got), expected, mean=2 * share, p999=12 * share, most=24 * share)


def test_bits_do_not_depend_on_the_batch():
    expected = augment(IMAGES, IDS, 0, device_id=0, **TRAIN)
    worker = augmenter(batch_rows=64, threads=3, device_id=0, **TRAIN)
    held, order = table(IMAGES), np.random.default_rng(0).permutation(24)
    for start, rows in ((0, 1), (1, 7), (8, 16)):
        picked = order[start : start + rows]
        assert np.array_equal(worker([(held, picked)], IDS[picked], 0)["image"], expected[picked])
    worker.close()


def test_other_formats_and_turned_images_join_after_decoding():
    images = [
        IMAGES[0],
        encoded(Image.fromarray(smooth(50, 60)).quantize(32), "GIF"),
        oriented(smooth(50, 60), 6, quality=90, subsampling=0),
        encoded(smooth(50, 60), "PNG"),
    ]
    expected = reference.augment(images, Augment(**TRAIN).pipeline, seed=1, pass_=0, sample_ids=np.arange(4))
    assert_close(list(augment(images, device_id=0, **TRAIN)), expected, mean=2, p999=12, most=24)


def test_a_bad_image_is_named_and_the_augmenter_lives_on():
    worker = augmenter(batch_rows=8, device_id=0, ops=[{"resize": {"size": 32}}])
    rows = np.arange(8)
    broken = [*IMAGES[:4], IMAGES[4][: len(IMAGES[4]) // 2], *IMAGES[5:8]]
    for _ in range(2):
        with pytest.raises(SampleError) as caught:
            worker([(table(broken), rows)], rows, 0)
        assert caught.value.index == 4
        assert worker([(table(IMAGES[:8]), rows)], rows, 0)["image"].any(axis=(1, 2, 3)).all()
    worker.close()
