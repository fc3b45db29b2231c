"""Laws of mixing: partners stay in their group, label weights sum to 1, and all is a function of the ids that meet."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from augment_images import augmenter, jpegs, table
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest import rng
from ingest.augment.host import HostLanding
from ingest.augment.mix import NO_GROUP, Mixer, partners, symmetric_beta
from ingest.errors import ReadError, SampleError, SpecError
from ingest.ops import Cutmix, Mixup, Resize

pytestmark = pytest.mark.property

IDS = st.lists(st.integers(0, 10**9), min_size=1, max_size=40, unique=True).map(lambda ids: np.array(ids, np.int64))
CLASSES = 5


def mixed(ops, ids, groups, planar=False, dtype=np.float32):
    """A batch whose images hold one number each, their id's place, mixed."""
    values = (np.arange(len(ids)) % 250).astype(dtype)
    shape = (len(ids), 3, 8, 10) if planar else (len(ids), 8, 10, 3)
    images = np.broadcast_to(values[:, None, None, None], shape).copy()
    batch = {"image": images, "label": ids % CLASSES}
    mixer = Mixer((Resize(size=(8, 10)), *ops), "image", HostLanding(), planar=planar)
    mixer(batch, ids, groups, rng.uniforms(3, 1, ids, mixer.draws))
    return batch


@given(IDS, st.data())
def test_partners_are_a_ring_in_each_group_that_ids_alone_order(ids, data):
    groups = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=len(ids), max_size=len(ids))))
    numbers = rng.uniforms(0, 0, ids, 1)[:, 0]
    partner = partners(ids, groups, numbers)
    assert sorted(partner.tolist()) == list(range(len(ids)))
    assert (groups[partner] == groups).all()
    assert (partner[groups == NO_GROUP] == np.flatnonzero(groups == NO_GROUP)).all()
    for group in set(groups.tolist()) - {NO_GROUP}:
        rows = np.flatnonzero(groups == group)
        assert len(rows) == 1 or (partner[rows] != rows).all()
    order = np.random.default_rng(0).permutation(len(ids))
    again = partners(ids[order], groups[order], numbers[order])
    assert np.array_equal(ids[order][again], ids[partner][order])


@settings(max_examples=30)
@given(IDS, st.floats(0.05, 3), st.booleans(), st.sampled_from([np.float32, np.float16, np.uint8]))
def test_label_weights_sum_to_1_and_say_what_is_in_the_image(ids, alpha, planar, dtype):
    groups = np.zeros(len(ids), np.int64)
    batch = mixed([Mixup(alpha=alpha, num_classes=CLASSES)], ids, groups, planar, dtype)
    assert batch["label"].dtype == np.float32
    assert batch["image"].dtype == dtype
    assert np.allclose(batch["label"].sum(1), 1, atol=1e-6)
    batch = mixed([Cutmix(alpha=alpha, num_classes=CLASSES)], ids, groups, planar, dtype)
    assert np.allclose(batch["label"].sum(1), 1, atol=1e-6)
    for row, image in enumerate(batch["image"].reshape(len(ids), -1)):
        kept = (image == dtype(row % 250)).mean()
        own = batch["label"][row, ids[row] % CLASSES]
        assert own >= kept - 1e-6  # more where the partner is of the same class
        assert len(np.unique(image)) <= 2


def test_a_mean_of_two_images_has_the_labels_shares():
    ids = np.array([0, 1])
    batch = mixed([Mixup(alpha=1.0, num_classes=CLASSES)], ids, np.zeros(2, np.int64))
    share = batch["label"][0, 0]
    assert 0 < share < 1
    assert batch["label"][0].tolist() == pytest.approx([share, 1 - share, 0, 0, 0])
    assert np.allclose(batch["image"][0], 1 - share, atol=1e-6)  # share of 0 and the rest of 1


@settings(max_examples=30)
@given(IDS, st.data())
def test_ranks_that_hold_whole_lanes_agree_however_many_they_are(ids, data):
    groups = np.sort(np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(ids), max_size=len(ids)))))
    ops = [Mixup(num_classes=CLASSES, probability=0.7), Cutmix(num_classes=CLASSES, probability=0.5)]
    whole = mixed(ops, ids, groups)["label"]
    for lane in range(4):
        mine = groups == lane
        if mine.any():
            assert np.array_equal(mixed(ops, ids[mine], groups[mine])["label"], whole[mine])


def test_probability_0_leaves_images_and_1_mixes_all():
    ids, groups = np.arange(30), np.zeros(30, np.int64)
    for kind in (Mixup, Cutmix):
        never = mixed([kind(num_classes=CLASSES, probability=0)], ids, groups)
        assert np.array_equal(never["image"][:, 0, 0, 0], np.arange(30))
        assert np.array_equal(never["label"], np.eye(CLASSES, dtype=np.float32)[ids % CLASSES])
    always = mixed([Mixup(num_classes=CLASSES, alpha=5)], ids, groups)
    assert (always["image"][:, 0, 0, 0] != np.arange(30)).all()


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 3.0])
def test_shares_have_the_moments_of_the_beta_distribution(alpha):
    u = rng.uniforms(0, 0, np.arange(100_000), 2)
    shares = symmetric_beta(alpha, u[:, 0], u[:, 1])
    assert shares.min() >= 0
    assert shares.max() <= 1
    assert abs(shares.mean() - 0.5) < 0.005
    assert abs(shares.var() - 1 / (4 * (2 * alpha + 1))) < 0.002
    fourth = ((shares - 0.5) ** 4).mean()
    assert abs(fourth - 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))) < 0.001
    assert np.isfinite(symmetric_beta(0.01, np.array([0, 1 - 2**-53, 0.5]), np.array([0.0, 0.25, 0.5]))).all()


OPS = [{"resize": {"size": 16}}, "normalize", {"mixup": {"num_classes": CLASSES}}]


def test_the_augmenter_mixes_after_the_last_op_and_not_with_what_failed():
    images, ids = jpegs(6), np.arange(6)
    worker = augmenter(batch_rows=6, ops=OPS)
    held = table(images, label=ids % CLASSES)
    full = worker([(held, np.arange(6))], ids, 0)
    assert (full["image"].shape, full["label"].shape) == ((6, 3, 16, 16), (6, CLASSES))
    order = np.array([3, 1, 5, 0, 2, 4])
    again = worker([(held, order)], ids[order], 0)
    assert np.array_equal(again["image"], full["image"][order])
    assert np.array_equal(again["label"], full["label"][order])
    broken = table([*images[:2], b"no image", *images[3:]], label=ids % CLASSES)
    batch, failures = worker.attempt([(broken, np.arange(6))], ids, 0)
    assert list(failures) == [2]
    kept = np.delete(np.arange(6), 2)
    alone = worker([(held, kept)], ids[kept], 0)
    assert np.array_equal(batch["image"][kept], alone["image"])
    assert np.array_equal(batch["label"][kept], alone["label"])
    with pytest.raises(SampleError, match=r"label 9 in column 'label', and mixup has 5 classes"):
        worker([(table(images, label=[0, 1, 9, 3, 4, 0]), np.arange(6))], ids, 0)
    with pytest.raises(ReadError, match="no column 'label'"):
        worker([(table(images), np.arange(6))], ids, 0)
    with pytest.raises(ReadError, match="not whole numbers"):
        worker([(table(images, label=[str(i) for i in ids]), np.arange(6))], ids, 0)
    worker.close()


@pytest.mark.parametrize("value", [None, [0.5, float("nan")], [float("inf"), 0.5], [None, 1.0]])
def test_weights_that_are_no_numbers_reach_no_partner(value):
    images, ids, kept = jpegs(6), np.arange(6), np.delete(np.arange(6), 2)
    weights = [[row / 5, 1 - row / 5] for row in range(6)]
    weights[2] = value
    held = table(images, label=pa.array(weights, pa.list_(pa.float32(), 2)))
    worker = augmenter(batch_rows=6, ops=[{"resize": {"size": 16}}, {"mixup": {"num_classes": 2}}])
    batch, failures = worker.attempt([(held, np.arange(6))], ids, 0)
    alone = worker([(held, kept)], ids[kept], 0)
    worker.close()
    assert list(failures) == [2]
    assert "not finite" in str(failures[2])
    assert np.isfinite(batch["label"][kept]).all()
    assert np.array_equal(batch["label"][kept], alone["label"])
    assert np.array_equal(batch["image"][kept], alone["image"])


def test_what_cannot_be_mixed_is_refused():
    for ops, said in (
        (["flip", {"mixup": {"num_classes": 2}}], "needs images of one size"),
        (
            [{"resize": {"size": 8}}, {"mixup": {"num_classes": 2}}, {"cutmix": {"num_classes": 3}}],
            "must have the same",
        ),
    ):
        with pytest.raises(SpecError, match=said):
            augmenter(ops=ops)
