"""The augmenter: close to the reference, the same bits however rows are grouped, alive after bad samples."""

from __future__ import annotations

import io
import pickle
import threading

import device_checks
import numpy as np
import pyarrow as pa
import pytest
from augment_images import assert_close, augment, augmenter, encoded, jpegs, oriented, smooth, table
from PIL import Image

from ingest.augment import reference
from ingest.augment.augmenter import Augmenter, BadSampleError
from ingest.augment.finish import Finisher, finish
from ingest.errors import ReadError, SampleError, StageError
from ingest.ops import Normalize
from ingest.spec import Augment

pytestmark = pytest.mark.unit

IMAGES = jpegs(20)
IDS = np.arange(20) * 977 + 5
TRAIN = {"ops": [{"random_resized_crop": {"size": (48, 64)}}, "flip"]}
PIPELINES = {
    "train": TRAIN,
    "eval": {"ops": [{"resize": {"shorter": 40}}, {"center_crop": {"size": 32}}]},
    "resize": {"ops": [{"resize": {"size": (30, 50)}}]},
    "crop": {"ops": [{"center_crop": {"size": (33, 37)}}, "flip"]},
    "ragged": {"ops": ["flip"]},
    "ragged resize": {"ops": [{"resize": {"shorter": 24}}, "flip"]},
    "crop, then more": {
        "ops": [{"random_resized_crop": {"size": 80}}, "flip", {"random_resized_crop": {"size": 40}}, "flip"]
    },
}


@pytest.mark.parametrize("name", PIPELINES)
def test_jpegs_are_close_to_the_reference(name):
    spec = PIPELINES[name]
    expected = reference.augment(IMAGES, Augment(**spec).pipeline, seed=1, pass_=3, sample_ids=IDS)
    got = augment(IMAGES, IDS, 3, **spec)
    assert_close(list(got), expected)
    assert got.dtype == (object if "ragged" in name else np.uint8)


@pytest.mark.parametrize("name", ["crop", "ragged"])
def test_crops_and_flips_of_lossless_images_are_exact(name):
    images = [encoded(smooth(40 + i, 70 - i, seed=i), "PNG") for i in range(8)]
    expected = reference.augment(images, Augment(**PIPELINES[name]).pipeline, seed=1, pass_=0, sample_ids=np.arange(8))
    for got, want in zip(augment(images, **PIPELINES[name]), expected, strict=True):
        assert np.array_equal(got, want)


def test_resizing_lossless_images_is_within_rounding():
    images = [encoded(smooth(40 + i, 70 - i, seed=i), "PNG") for i in range(8)]
    expected = reference.augment(images, Augment(**TRAIN).pipeline, seed=1, pass_=0, sample_ids=np.arange(8))
    assert_close(list(augment(images, **TRAIN)), expected, mean=0.2, p999=1, most=1)


@pytest.mark.parametrize(("batch_rows", "threads", "rows"), [(1, 1, 1), (20, 1, 20), (20, 3, 7), (64, 2, 3), (9, 4, 9)])
def test_pixels_do_not_depend_on_grouping_threads_or_order_of_calls(batch_rows, threads, rows):
    expected = augment(IMAGES, IDS, 2, **TRAIN)
    worker = augmenter(batch_rows=batch_rows, threads=threads, **TRAIN)
    held = table(IMAGES)
    order = np.random.default_rng(0).permutation(20)
    for start in range(0, 20, rows):
        picked = order[start : start + rows]
        batch = worker([(held, picked)], IDS[picked], 2)
        assert np.array_equal(batch["image"], expected[picked])
    worker.close()


def test_two_calls_at_a_time_do_not_disturb_each_other():
    expected = augment(IMAGES, IDS, 0, **TRAIN)
    worker = augmenter(batch_rows=20, threads=2, **TRAIN)
    held = table(IMAGES)
    wrong = []

    def call(seed):
        for n in range(6):
            picked = np.random.default_rng([seed, n]).permutation(20)[: 3 * n + 2]
            batch = worker([(held, picked)], IDS[picked], 0)
            if not np.array_equal(batch["image"], expected[picked]):
                wrong.append((seed, n))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    worker.close()
    assert not wrong


def test_another_seed_pass_or_id_changes_pixels():
    one = augment(IMAGES, IDS, 0, **TRAIN)
    for other in (augment(IMAGES, IDS, 1, **TRAIN), augment(IMAGES, IDS, 0, seed=2, **TRAIN)):
        assert (one != other).any(axis=(1, 2, 3)).all()
    same = augment([IMAGES[0]] * 2, [5, 6], 0, **TRAIN)
    assert (same[0] != same[1]).any()


def test_grey_and_colour_images_of_different_sizes_come_in_one_batch():  # I14
    images = [encoded(smooth(32, 32, 1)), encoded(smooth(64, 64))]
    got = augment(images, ops=[{"resize": {"size": 16}}])
    assert got.shape == (2, 16, 16, 3)
    assert (got[0] == got[0][..., :1]).all()
    assert [image.shape for image in augment(images, ops=["flip"])] == [(32, 32, 3), (64, 64, 3)]


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalize_is_what_a_hand_computes(dtype, layout):
    op = Normalize(mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 2.0), scale=1 / 255, dtype=dtype, layout=layout)
    pixels = np.array([[[0, 0, 0], [255, 255, 255]], [[51, 51, 102], [102, 204, 51]]], np.uint8)
    got = Finisher(finish([op]))(pixels)
    assert got.dtype == dtype
    values = got if layout == "HWC" else got.transpose(1, 2, 0)
    # (0 - .5) / .5, (0 - .25) / .25, 0 / 2; then of 1; then of .2, .2, .4; then of .4, .8, .2
    expected = [[[-1, -1, 0], [1, 3, 0.5]], [[-0.6, -0.2, 0.2], [-0.2, 2.2, 0.1]]]
    assert np.allclose(values, expected, atol=1e-6 if dtype == "float32" else 1e-3)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_normalized_batches_are_the_pixels_normalized(layout):
    op = {"normalize": {"layout": layout}}
    for ops in (TRAIN["ops"], ["flip"]):
        spec = {"ops": [*ops, op]}
        plain = augment(IMAGES[:5], ops=ops)
        for got, image in zip(augment(IMAGES[:5], **spec), plain, strict=True):
            assert got.dtype == np.float32
            assert np.allclose(got, reference.finished(image, finish(Augment(**spec).pipeline)), atol=1e-6)


def _batch_with(bad):
    """Eight images, of which index 2 and 5 are bad."""
    return [*IMAGES[:2], bad[0], *IMAGES[3:5], bad[1], *IMAGES[6:8]]


TRUNCATED = IMAGES[5][: len(IMAGES[5]) * 2 // 3]


@pytest.mark.parametrize(
    "bad",
    [(b"", bytes(range(9, 200))), (IMAGES[2][:300], TRUNCATED), (None, b"<html>")],
    ids=["empty and noise", "damaged pixels", "null and HTML"],
)
@pytest.mark.parametrize("threads", [1, 4])
def test_a_bad_image_is_named_and_the_augmenter_lives_on(bad, threads):  # I06
    worker = augmenter(batch_rows=8, threads=threads, ops=[{"resize": {"size": 32}}])
    rows = np.arange(8)
    for _ in range(2):
        with pytest.raises(SampleError) as caught:
            worker([(table(_batch_with(bad)), rows)], rows, 0)
        assert caught.value.index == 2
        batch, failures = worker.attempt([(table(_batch_with(bad)), rows)], rows, 0)
        assert sorted(failures) == [2, 5]
        whole = worker([(table(IMAGES[:8]), rows)], rows, 0)["image"]
        good = [0, 1, 3, 4, 6, 7]
        assert np.array_equal(batch["image"][good], whole[good])
        assert not batch["image"][[2, 5]].any()
    worker.close()


def test_an_error_says_the_reason_and_the_first_bytes_and_survives_pickling():
    with pytest.raises(BadSampleError, match=r"jpeg that DALI cannot decode .*first b'\\xff\\xd8") as caught:
        augment([IMAGES[0], TRUNCATED], ops=[{"resize": {"size": 8}}])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.index, str(again)) == (1, str(caught.value))


def test_a_bad_image_in_a_row_that_only_fills_up_does_not_fail_the_batch():
    worker = augmenter(batch_rows=2, ops=[{"resize": {"size": 8}}])
    rows, pieces = np.arange(2), [(table([IMAGES[0], b"no image"]), np.arange(2))]
    batch = worker(pieces, rows, 0, np.array([True, False]))
    assert batch["image"][0].any()
    assert not batch["image"][1].any()
    with pytest.raises(BadSampleError):
        worker(pieces, rows, 0, np.array([True, True]))
    worker.close()


def test_an_image_too_small_for_center_crop_is_one_samples_error():
    images = [encoded(smooth(40, 40)), encoded(smooth(39, 90))]
    with pytest.raises(BadSampleError, match="90 x 39 pixels are fewer than center_crop's 40 x 40") as caught:
        augment(images, ops=[{"center_crop": {"size": 40}}])
    assert caught.value.index == 1


def test_a_resize_that_would_make_too_many_pixels_is_one_samples_error():
    thin = encoded(smooth(1, 30_000), "PNG")
    with pytest.raises(BadSampleError, match="resize would make"):
        augment([thin], ops=[{"resize": {"shorter": 512}}])


def test_other_columns_come_along_and_rows_may_come_from_several_tables():
    pieces = [
        (table(IMAGES[:10], label=list(range(10))), np.array([3, 1])),
        (table(IMAGES[10:], label=list(range(10, 20))), np.array([0])),
    ]
    worker = augmenter(batch_rows=3, ops=[{"resize": {"size": 8}}])
    batch = worker(pieces, np.arange(3), 0)
    worker.close()
    assert list(batch) == ["image", "label"]
    assert batch["label"].tolist() == [3, 1, 10]
    assert np.array_equal(batch["image"], augment([IMAGES[3], IMAGES[1], IMAGES[10]], ops=[{"resize": {"size": 8}}]))


@pytest.mark.parametrize("reuse", [0, 1])
def test_a_call_may_have_more_rows_than_usual(reuse):
    spec = {"ops": [{"random_resized_crop": {"size": 8}}]}
    worker = augmenter(batch_rows=2, reuse=reuse, **spec)
    for rows in (2, 7, 1, 5):
        ids = np.arange(rows)
        got = worker([(table(IMAGES[:rows]), ids)], ids, 0)["image"]
        assert np.array_equal(got, augment(IMAGES[:rows], ids, **spec))
    worker.close()


def test_without_ops_images_stay_as_they_are():
    worker = augmenter(recipe="none")
    batch = worker([(table(IMAGES[:2], label=[4, 5]), np.array([1, 0]))], np.arange(2), 0)
    worker.close()
    assert batch["image"].tolist() == [IMAGES[1], IMAGES[0]]
    assert batch["label"].tolist() == [5, 4]


def test_wrong_calls_are_refused():
    worker = augmenter(batch_rows=2, ops=["flip"])
    with pytest.raises(StageError, match="3 rows with 2 sample ids"):
        worker([(table(IMAGES[:3]), np.arange(3))], np.arange(2), 0)
    with pytest.raises(ReadError, match=r"no column 'image' .* it has picture"):
        worker([(pa.table({"picture": IMAGES[:1]}), np.arange(1))], np.arange(1), 0)
    worker.close()
    worker.close()
    with pytest.raises(StageError, match="closed"):
        worker([(table(IMAGES[:1]), np.arange(1))], np.arange(1), 0)


@pytest.fixture
def on_graph(monkeypatch):
    device_checks.on_cpu_backend(monkeypatch)


@pytest.mark.parametrize("name", PIPELINES)
def test_dalis_own_graph_is_close_to_the_reference(on_graph, name):
    spec = PIPELINES[name]
    expected = reference.augment(IMAGES, Augment(**spec).pipeline, seed=1, pass_=3, sample_ids=IDS)
    got = augment(IMAGES, IDS, 3, device_id=0, **spec)
    assert_close(list(got), expected)
    assert got.dtype == (object if "ragged" in name else np.uint8)


def test_dalis_own_graph_normalizes_as_we_do(on_graph):
    for normalize in ("normalize", {"normalize": {"dtype": "float16", "layout": "HWC"}}):
        spec = {"ops": [{"center_crop": {"size": 40}}, normalize]}
        images = [encoded(smooth(40, 50, seed=i), "PNG") for i in range(3)]
        got, expected = augment(images, device_id=0, **spec), augment(images, **spec)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert np.allclose(got, expected, atol=1e-5 if got.dtype == np.float32 else 2e-3)


def test_on_the_graph_other_formats_and_turned_images_join_after_decoding(on_graph):
    images = [
        IMAGES[0],
        encoded(Image.fromarray(smooth(50, 60)).quantize(32), "GIF"),
        oriented(smooth(50, 60), 6, quality=90, subsampling=0),
        IMAGES[1],
    ]
    expected = reference.augment(images, Augment(**TRAIN).pipeline, seed=1, pass_=0, sample_ids=np.arange(4))
    assert_close(list(augment(images, device_id=0, **TRAIN)), expected)


def test_on_the_graph_a_bad_image_is_named_and_the_augmenter_lives_on(on_graph):
    worker = augmenter(batch_rows=8, device_id=0, ops=[{"resize": {"size": 32}}])
    rows, pieces = np.arange(8), [(table(_batch_with((b"", TRUNCATED))), np.arange(8))]
    for _ in range(2):
        batch, failures = worker.attempt(pieces, rows, 0)
        assert sorted(failures) == [2, 5]
        whole = worker([(table(IMAGES[:8]), rows)], rows, 0)["image"]
        assert np.array_equal(batch["image"][[0, 1, 3, 4, 6, 7]], whole[[0, 1, 3, 4, 6, 7]])
    worker.close()


def test_a_jpeg_without_its_end_is_good_or_bad_whatever_the_window():
    rng = np.random.default_rng(3)
    image = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize((160, 120))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    whole = out.getvalue()
    ops = [{"random_resized_crop": {"size": 16, "area": [0.02, 0.1]}}]
    ids = np.arange(40)

    def attempt(data):
        augmenter = Augmenter(Augment(ops=ops), seed=0, batch_rows=40, threads=1)
        try:
            batch, failures = augmenter.attempt([(pa.table({"image": [data] * 40}), ids)], ids, 0)
            return batch["image"], failures, augmenter.noted()
        finally:
            augmenter.close()

    pixels, failures, notes = attempt(whole)
    assert (failures, notes) == ({}, {})
    for cut in (whole[: len(whole) * 9 // 10], whole[:-2]):
        _, failures, _ = attempt(cut)
        assert set(failures) == set(range(40))
        assert "cut short" in str(failures[0])
    trailing, failures, notes = attempt(whole + b"\0" * 100)
    assert (failures, notes) == ({}, {})
    assert (trailing == pixels).all()
