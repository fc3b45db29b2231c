"""What holds on a GPU, as functions: of a device's number, so that all but the device itself is run without one too.

Without a GPU, `on_cpu_backend` puts the same graph on DALI's CPU backend under the augmenter of a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
from augment_images import assert_close, augment, augmenter, encoded, jpegs, oriented, smooth, table
from augment_ops import PIXEL_CASES, apart, images, op, planned, rendered, run_graph
from PIL import Image

from ingest.augment import reference
from ingest.augment.work import DeviceWorker
from ingest.errors import SampleError
from ingest.ops import OPS, AutoAugment, RandAugment, TrivialAugment, recipe
from ingest.spec import Augment

IMAGES = jpegs(24)
IDS = np.arange(24) * 977 + 5
TRAIN = {"ops": [{"random_resized_crop": {"size": (48, 64)}}, "flip"]}
NEAR_REFERENCE = {
    "train": TRAIN["ops"],
    "eval": [{"resize": {"shorter": 40}}, {"center_crop": {"size": 32}}],
    "ragged": ["flip"],
    "normalized": [{"random_resized_crop": {"size": 32}}, {"normalize": {"layout": "HWC"}}],
}
SAME_BITS = {
    "train": ["flip"],
    "colours": [{"color_jitter": {"brightness": 0.4, "contrast": 0.4, "hue": 0.1, "p": 0.5}}, "gaussian_noise"],
    "policy": ["rand_augment"],
}
IMAGE_RECIPES = ("imagenet_train", "imagenet_eval")
DECODED_MEAN, DECODED_P999, DECODED_MOST = 2, 12, 24  # a GPU's decoder against Pillow's, in steps of 255


def on_cpu_backend(monkeypatch):
    """The augmenter of a GPU, its graph on DALI's CPU backend: everything but the device."""

    def host(ops, rows, threads, device_id, landing, **options):
        assert device_id == 0
        return DeviceWorker(ops, rows, threads, None, landing, **options)

    monkeypatch.setattr("ingest.augment.crew.DeviceWorker", host)


def is_near_the_reference(name):
    ops = NEAR_REFERENCE[name]
    expected = reference.augment(IMAGES, Augment(ops=ops).pipeline, seed=1, pass_=3, sample_ids=IDS)
    got = augment(IMAGES, IDS, 3, device_id=0, ops=ops)
    # steps of 255, or of what normalize makes of them (one step is about 0.017)
    share = 1 if got.dtype != np.float32 else 0.0175
    assert_close(list(got), expected, mean=DECODED_MEAN * share, p999=DECODED_P999 * share, most=DECODED_MOST * share)


def recipe_is_near_the_cpu_path(name):
    """From encoded images to the end, against the CPU's decoder and OpenCV."""
    expected = augment(IMAGES, IDS, 3, recipe=name)
    got = augment(IMAGES, IDS, 3, recipe=name, device_id=0)
    assert (got.dtype, got.shape, len(recipe(name)) > 1) == (expected.dtype, expected.shape, True)
    share = 1 if got.dtype == np.uint8 else 0.0175
    assert_close(
        list(got), list(expected), mean=DECODED_MEAN * share, p999=DECODED_P999 * share, most=DECODED_MOST * share
    )


def op_is_near_the_cpu_path(name, device_id):
    pictures, ops = images(24), [op(name)]
    found, _ = planned(ops, pictures)
    got, expected = run_graph(ops, pictures, found, device_id=device_id), rendered(ops, pictures, found)
    assert all(a.dtype == b.dtype for a, b in zip(got, expected, strict=True))
    means = [np.abs(a.astype(float) - b).mean() for a, b in zip(got, expected, strict=True)]
    if OPS[name.split()[0]] in (TrivialAugment, RandAugment, AutoAugment):  # one step more at one level may move a jump
        assert max(means) <= 2
    elif name == "jpeg_distortion":  # on a GPU, DALI imitates the coder
        assert max(means) <= 4
    else:
        limit = 1e-2 if name not in PIXEL_CASES else 1 + sum(reference.TOLERANCE[step.kind] for step in found)
        assert apart(got, expected) <= 2 * limit


def bits_do_not_depend_on_the_batch(name):
    ops = [{"random_resized_crop": {"size": 48}}, *SAME_BITS[name]]
    expected = augment(IMAGES, IDS, 0, device_id=0, ops=ops)
    worker = augmenter(batch_rows=64, threads=3, device_id=0, ops=ops)
    held, order = table(IMAGES), np.random.default_rng(0).permutation(24)
    for start, rows in ((0, 1), (1, 7), (8, 16)):
        picked = order[start : start + rows]
        assert np.array_equal(worker([(held, picked)], IDS[picked], 0)["image"], expected[picked])
    twice = np.array([9, 2, 11, 4, 4])
    assert np.array_equal(worker([(held, twice)], IDS[twice], 0)["image"], expected[twice])
    worker.close()


def other_formats_and_turned_images_join_after_decoding():
    mixed = [
        IMAGES[0],
        encoded(Image.fromarray(smooth(50, 60)).quantize(32), "GIF"),
        oriented(smooth(50, 60), 6, quality=90, subsampling=0),
        encoded(smooth(50, 60), "PNG"),
    ]
    expected = reference.augment(mixed, Augment(**TRAIN).pipeline, seed=1, pass_=0, sample_ids=np.arange(4))
    got = augment(mixed, device_id=0, **TRAIN)
    assert_close(list(got), expected, mean=DECODED_MEAN, p999=DECODED_P999, most=DECODED_MOST)


def a_bad_image_is_named_and_the_augmenter_lives_on():
    worker = augmenter(batch_rows=8, device_id=0, ops=[{"resize": {"size": 32}}])
    rows = np.arange(8)
    broken = [*IMAGES[:4], IMAGES[4][: len(IMAGES[4]) // 2], *IMAGES[5:8]]
    for _ in range(2):
        with pytest.raises(SampleError) as caught:
            worker([(table(broken), rows)], rows, 0)
        assert caught.value.index == 4
        assert worker([(table(IMAGES[:8]), rows)], rows, 0)["image"].any(axis=(1, 2, 3)).all()
    worker.close()
