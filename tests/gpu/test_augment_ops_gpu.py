"""Every operation on a GPU: near the CPU path, and the same bits whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest
from augment_images import augmenter, jpegs, table
from augment_ops import CASES, PIXEL_CASES, apart, images, op, planned, rendered, run_graph

from ingest.augment import reference
from ingest.ops import OPS, AutoAugment, RandAugment, TrivialAugment

pytestmark = pytest.mark.gpu

PICTURES = images(24)
JPEGS = jpegs(16)


@pytest.mark.parametrize("name", CASES)
def test_the_gpu_agrees_with_the_cpu_path(name):
    ops = [op(name)]
    found, _ = planned(ops, PICTURES)
    got, expected = run_graph(ops, PICTURES, found, device_id=0), rendered(ops, PICTURES, found)
    assert all(a.dtype == b.dtype for a, b in zip(got, expected, strict=True))
    if OPS[name.split()[0]] in (TrivialAugment, RandAugment, AutoAugment):  # one step more at one level may move a jump
        assert max(np.abs(a.astype(float) - b).mean() for a, b in zip(got, expected, strict=True)) <= 2
    elif name == "jpeg_distortion":  # on a GPU, DALI imitates the coder
        assert max(np.abs(a.astype(float) - b).mean() for a, b in zip(got, expected, strict=True)) <= 4
    else:
        limit = 1e-2 if name not in PIXEL_CASES else 1 + sum(reference.TOLERANCE[step.kind] for step in found)
        assert apart(got, expected) <= 2 * limit


@pytest.mark.parametrize("name", ["train", "colours", "policy"])
def test_bits_do_not_depend_on_the_batch(name):
    more = {
        "train": ["flip"],
        "colours": [{"color_jitter": {"brightness": 0.4, "contrast": 0.4, "hue": 0.1, "p": 0.5}}, "gaussian_noise"],
        "policy": ["rand_augment"],
    }
    held, ids = table(JPEGS), np.arange(16) * 7
    worker = augmenter(batch_rows=16, device_id=0, ops=[{"random_resized_crop": {"size": 48}}, *more[name]])
    whole = worker([(held, np.arange(16))], ids, 0)["image"].copy()
    for rows in (np.array([3]), np.array([9, 2, 11, 4, 4])):
        assert np.array_equal(worker([(held, rows)], ids[rows], 0)["image"], whole[rows])
    worker.close()
