"""Laws of what moves with an image: boxes inside and where the pixels went, masks aligned, points in their place."""

from __future__ import annotations

import io
import re

import numpy as np
import pyarrow as pa
import pytest
from augment_images import augmenter, encoded, table
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from PIL import Image

from ingest import rng
from ingest.augment import reference
from ingest.augment.masks import decode_mask
from ingest.augment.steps import draws, steps
from ingest.augment.targets import move_boxes, move_keypoints, moves, pick
from ingest.errors import SampleError, SpecError
from ingest.ops import parse_op
from ingest.ops.targets import Boxes, Keypoints, Mask
from ingest.spec import Spec

pytestmark = pytest.mark.property

UPRIGHT = [
    {"random_resized_crop": {"size": [50, 70], "area": [0.4, 1]}},
    {"flip": {}},
    {"flip": {"direction": "vertical"}},
    {"resize": {"shorter": 60}},
    {"pad": {"size": [130, 90]}},
    {"center_crop": {"size": 40}},
    {"random_crop": {"size": [30, 41], "p": 0.5}},
]
TURNED = [
    {"rotate": {"degrees": 45}},
    {"affine": {"degrees": 30, "translate": [0.2, 0.1], "scale": [0.7, 1.4], "shear_x": 15}},
    {"perspective": {"distortion": 0.3}},
    {"color_jitter": {"brightness": 0.2}},
    {"erase": {"area": [0.02, 0.05]}},
]
LISTS = st.lists(st.sampled_from(UPRIGHT), min_size=1, max_size=4)
ANY = st.lists(st.sampled_from(UPRIGHT + TURNED), min_size=1, max_size=5)
SHAPES = st.tuples(st.integers(60, 120), st.integers(60, 120))
NUMBER = st.floats(0, 1)
BOX = st.tuples(NUMBER, NUMBER, NUMBER, NUMBER)


def path_of(spelled, shape, seed):
    ops = [parse_op(one) for one in spelled]
    numbers = rng.uniforms(seed, 0, np.array([7]), max(1, draws(ops)))
    found, problems = steps(ops, np.array([shape], np.int64), numbers)
    if problems:
        reject()
    return moves(found, 0, shape)


def corners(boxes, shape):
    """Boxes of shares of the image as pixels, xyxy."""
    low = np.minimum(boxes[:, :2], boxes[:, 2:]) * [shape[1], shape[0]]
    high = np.maximum(boxes[:, :2], boxes[:, 2:]) * [shape[1], shape[0]]
    return np.concatenate([low, high], 1)


@given(ANY, SHAPES, st.lists(BOX, min_size=1, max_size=5), st.integers(0, 1000), st.sampled_from([0.0, 0.3]))
def test_boxes_are_inside_and_big_and_visible_enough(spelled, shape, boxes, seed, visible):
    path = path_of(spelled, shape, seed)
    spec = Boxes(column="b", min_area=4, min_visible=visible)
    found, kept = move_boxes(corners(np.array(boxes), shape), spec, path, shape)
    assert found.dtype == np.float32
    assert (len(kept), kept.sum()) == (len(boxes), len(found))
    height, width = path[-1].shape if path else shape
    assert (found[:, :2] >= 0).all()
    assert (found[:, 2:] <= np.float32([width, height]) * (1 + 1e-6)).all()
    assert ((found[:, 2:] - found[:, :2]).prod(1) >= 4 * (1 - 1e-5)).all()


@given(ANY, SHAPES, BOX, st.integers(0, 1000))
def test_formats_and_units_agree(spelled, shape, box, seed):
    path = path_of(spelled, shape, seed)
    height, width = path[-1].shape if path else shape
    pixels = corners(np.array([box]), shape)
    want, _ = move_boxes(pixels, Boxes(column="b", min_area=1), path, shape)
    size, scale = pixels[:, 2:] - pixels[:, :2], np.array([shape[1], shape[0]] * 2)
    got, _ = move_boxes(np.concatenate([pixels[:, :2], size], 1), Boxes(column="b", format="xywh"), path, shape)
    assert np.allclose(np.concatenate([got[:, :2], got[:, :2] + got[:, 2:]], 1), want, atol=1e-3)
    middle = np.concatenate([pixels[:, :2] + size / 2, size], 1) / scale
    got, _ = move_boxes(middle, Boxes(column="b", format="cxcywh", relative=True), path, shape)
    got = got * np.array([width, height] * 2)
    assert np.allclose(np.concatenate([got[:, :2] - got[:, 2:] / 2, got[:, :2] + got[:, 2:] / 2], 1), want, atol=1e-2)


EXACT = {"flip", "center_crop", "random_crop", "pad"}  # they move whole pixels


def painted(shape, box):
    image = np.zeros((*shape, 3), np.uint8)
    left, top, right, bottom = box
    image[top:bottom, left:right] = 255
    return image


@settings(max_examples=40, deadline=None)
@given(LISTS, SHAPES, BOX, st.integers(0, 1000))
def test_a_painted_box_is_where_its_box_says_and_its_mask_with_it(spelled, shape, box, seed):
    box = np.rint(corners(np.array([box]), shape)[0]).astype(int)
    assume((box[2:] - box[:2] >= 3).all())
    image = painted(shape, box)
    path = path_of(spelled, shape, 0)
    assume(all(min(move.shape) >= 8 for move in path))
    held = table(
        [encoded(image, "PNG")],
        boxes=pa.array([[box.astype(float).tolist()]]),
        mask=pa.array([encoded(image[..., 0] // 255 * 3, "PNG")], pa.binary()),
    )
    worker = augmenter(batch_rows=1, threads=1, seed=seed, ops=spelled, boxes="boxes", masks=["mask"])
    try:
        batch, failures = worker.attempt([(held, np.arange(1))], np.array([7]), 0)
    finally:
        worker.close()
    assume(not failures)
    got, mask, boxes = batch["image"][0][..., 0], batch["mask"][0], batch["boxes"][0]
    assert mask.shape == got.shape
    assert set(np.unique(mask)) <= {0, 3}
    if sum(name not in EXACT for op in spelled for name in op) <= 1:  # each further resampling may shift an edge
        assert not ((mask == 3) & (got < 60)).any()  # of four neighbours the nearest is bright
        assert not ((mask == 0) & (got > 195)).any()
    if len(boxes):
        bright = np.argwhere(got >= 128)
        assume(len(bright))
        (top, left), (bottom, right) = bright.min(0), bright.max(0) + 1
        assert np.abs(boxes[0] - [left, top, right, bottom]).max() <= 1.5
    else:
        assert (got >= 128).sum() <= 4


@settings(max_examples=40, deadline=None)
@given(ANY, SHAPES, st.tuples(st.floats(0.1, 0.9), st.floats(0.1, 0.9)), st.integers(0, 1000))
def test_a_painted_point_is_where_its_keypoint_says(spelled, shape, place, seed):
    spelled = [one for one in spelled if "erase" not in one and "color_jitter" not in one]
    y, x = int(place[0] * shape[0]), int(place[1] * shape[1])
    image = np.zeros((*shape, 3), np.uint8)
    image[max(0, y - 4) : y + 5, max(0, x - 4) : x + 5] = 255
    held = table([encoded(image, "PNG")], points=pa.array([[[x + 0.5, y + 0.5, 2.0]]]))
    worker = augmenter(batch_rows=1, threads=1, seed=seed, ops=spelled or ["flip"], keypoints="points")
    try:
        batch, failures = worker.attempt([(held, np.arange(1))], np.array([7]), 0)
    finally:
        worker.close()
    assume(not failures)
    got, (point,) = batch["image"][0][..., 0], batch["points"][0]
    height, width = got.shape
    if point[2] == 2:
        assert 0 <= point[0] <= width
        assert 0 <= point[1] <= height
        x, y = np.clip(point[:2], 0.5, [width - 0.5, height - 0.5])
        near = got[int(max(0, y - 1.5)) : int(y + 2.5), int(max(0, x - 1.5)) : int(x + 2.5)]
        assert near.max() >= 100
    else:
        assert point[2] == 0


@settings(max_examples=40)
@given(st.sampled_from(TURNED[:3]), SHAPES, st.integers(0, 1000))
def test_a_dot_in_the_middle_is_turned_to_within_a_pixel_of_its_keypoint(one, shape, seed):
    y, x = shape[0] // 2 + 5, shape[1] // 2 - 8
    image = np.zeros((*shape, 3), np.uint8)
    image[y - 2 : y + 3, x - 2 : x + 3] = 255
    ops = [parse_op(one)]
    found, _ = steps(ops, np.array([shape], np.int64), rng.uniforms(seed, 0, np.array([7]), draws(ops)))
    ((point_x, point_y),) = move_keypoints([[x + 0.5, y + 0.5]], Keypoints(column="k"), moves(found, 0, shape), shape)
    got = reference.apply(image, found, 0)[..., 0].astype(float)
    if np.isfinite(point_x) and 8 < point_x < shape[1] - 8 and 8 < point_y < shape[0] - 8:
        assert abs((got.sum(0) @ (np.arange(shape[1]) + 0.5)) / got.sum() - point_x) < 0.7
        assert abs((got.sum(1) @ (np.arange(shape[0]) + 0.5)) / got.sum() - point_y) < 0.7


def test_boxes_by_hand():
    shape, spec = (100, 200), Boxes(column="b", min_area=0)
    boxes = [[20, 10, 60, 30], [150, 80, 190, 100], [0, 0, 200, 100]]
    crop = path_of([{"center_crop": {"size": [50, 100]}}], shape, 0)  # from (25, 50)
    got, kept = move_boxes(boxes, spec, crop, shape)
    assert kept.tolist() == [True, False, True]
    assert got.tolist() == [[0, 0, 10, 5], [0, 0, 100, 50]]
    got, kept = move_boxes(boxes, Boxes(column="b", min_visible=0.3), crop, shape)
    assert kept.tolist() == [False, False, False]  # 1/16, nothing and 1/4 are left
    flip = path_of([{"flip": {"p": 1}}], shape, 0)
    assert move_boxes(boxes[:1], spec, flip, shape)[0].tolist() == [[140, 10, 180, 30]]
    scale = path_of([{"resize": {"size": [50, 50]}}], shape, 0)
    assert move_boxes(boxes[:1], spec, scale, shape)[0].tolist() == [[5, 5, 15, 15]]
    kept_whole, _ = move_boxes(boxes[:1], Boxes(column="b", clip=False), crop, shape)
    assert kept_whole.tolist() == [[-30, -15, 10, 5]]
    cut = path_of([{"center_crop": {"size": [50, 100]}}, {"pad": {"size": [100, 200]}}], shape, 0)
    assert move_boxes(boxes[:1], spec, cut, shape)[0].tolist() == [[50, 25, 60, 30]]  # what was cut off stays so


def test_keypoints_by_hand():
    shape = (100, 200)
    points = [[20, 10, 2], [150, 80, 1]]
    flip = path_of([{"flip": {"p": 1}}], shape, 0)
    assert move_keypoints(points, Keypoints(column="k"), flip, shape).tolist() == [[180, 10, 2], [50, 80, 1]]
    swapped = move_keypoints(points, Keypoints(column="k", flip_pairs=[(0, 1)]), flip, shape)
    assert swapped.tolist() == [[50, 80, 1], [180, 10, 2]]
    both = path_of([{"flip": {"p": 1}}, {"flip": {"p": 1, "direction": "vertical"}}], shape, 0)
    turned = move_keypoints(points, Keypoints(column="k", flip_pairs=[(0, 1)]), both, shape)
    assert turned.tolist() == [[180, 90, 2], [50, 20, 1]]  # a half turn is no mirror image
    crop = path_of([{"center_crop": {"size": [50, 100]}}], shape, 0)
    assert move_keypoints(points, Keypoints(column="k"), crop, shape)[:, 2].tolist() == [0, 0]
    assert np.isnan(move_keypoints([[20, 10]], Keypoints(column="k"), crop, shape)).all()
    shares = move_keypoints([[0.1, 0.1]], Keypoints(column="k", relative=True), flip, shape)
    assert np.allclose(shares, [[0.9, 0.1]])


def png(array):
    return np.frombuffer(encoded(array, "PNG"), np.uint8)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_palette_mask_gives_places_in_the_palette(bits):
    want = np.random.default_rng(bits).integers(0, 2**bits, (9, 13), dtype=np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(want)
    image.putpalette([7, 200, 30] * 256)
    image.save(file, "PNG", bits=bits)
    got = decode_mask(np.frombuffer(file.getvalue(), np.uint8), Mask(column="m"), (9, 13))
    assert np.array_equal(got, want)


def test_masks_of_16_bits_keep_them_and_others_are_refused():
    deep = np.arange(60, dtype=np.uint16).reshape(6, 10) * 1000
    assert np.array_equal(decode_mask(png(deep), Mask(column="m", dtype="uint16"), (6, 10)), deep)
    with pytest.raises(SampleError, match="a mask of uint16, and column 'm' has dtype uint8"):
        decode_mask(png(deep), Mask(column="m"), (6, 10))
    with pytest.raises(SampleError, match="a mask of 10 x 6 pixels for an image of 12 x 6"):
        decode_mask(png(deep), Mask(column="m"), (6, 12))
    with pytest.raises(SampleError, match="a mask with 3 channels"):
        decode_mask(png(np.zeros((6, 10, 3), np.uint8)), Mask(column="m"), (6, 10))
    with pytest.raises(SampleError, match="null in column 'm'"):
        decode_mask(None, Mask(column="m"), (6, 10))


def test_labels_go_with_their_boxes_and_bad_boxes_are_one_samples_error():
    image = encoded(painted((40, 60), (0, 0, 10, 10)), "PNG")
    boxes = [[[0.0, 0, 10, 10], [30, 20, 50, 30]], [], None, [[5.0, 5, 1, 9]], [[1.0, 2, 3]]]
    held = table([image] * 5, boxes=pa.array(boxes), name=pa.array([["a", "b"], [], None, ["c"], ["d"]]))
    spec = {"ops": [{"center_crop": {"size": 20}}], "boxes": {"column": "boxes", "labels": ["name"]}}
    worker = augmenter(batch_rows=5, **spec)
    batch, failures = worker.attempt([(held, np.arange(5))], np.arange(5), 0)
    worker.close()
    assert sorted(failures) == [3, 4]
    assert "ends before it begins" in str(failures[3])
    assert batch["boxes"][0].tolist() == [[10, 10, 20, 20]]
    assert batch["name"][0].tolist() == ["b"]
    assert [len(batch["boxes"][row]) for row in range(1, 5)] == [0, 0, 0, 0]
    assert [len(batch["name"][row]) for row in range(1, 5)] == [0, 0, 0, 0]


@pytest.mark.parametrize("values", [range(2), [0.5, 1], [True] * 2, ["ab"] * 2, [{"x": 1, "y": 2}] * 2])
def test_columns_that_hold_no_lists_are_the_samples_error(values):
    image = encoded(painted((40, 60), (0, 0, 10, 10)), "PNG")
    held = table([image] * 2, other=pa.array(values), boxes=pa.array([[[0.0, 0, 10, 10]]] * 2))
    for spec, said in (
        ({"boxes": "other"}, "boxes that are .*, and not rows of numbers"),
        ({"keypoints": "other"}, "keypoints that are .*, and not rows of numbers"),
        (
            {"boxes": {"column": "boxes", "labels": ["other"]}},
            "column 'other' holds .* a list with a value for each box",
        ),
    ):
        worker = augmenter(batch_rows=2, ops=["flip"], **spec)
        _, failures = worker.attempt([(held, np.arange(2))], np.arange(2), 0)
        worker.close()
        assert sorted(failures) == [0, 1]
        assert re.search(said, str(failures[0]))


def test_labels_may_be_lists_of_any_lengths():
    kept = pick([[1, 2], [3], [4]], np.array([True, False, True]), "parts")
    assert kept.tolist() == [[1, 2], [4]]


def test_several_images_of_a_sample_move_alike():
    images = [encoded(np.random.default_rng(i).integers(0, 256, (40, 60, 3), dtype=np.uint8), "PNG") for i in range(4)]
    worker = augmenter(batch_rows=4, ops=[{"random_crop": {"size": 20}}, "flip"], also=["right"])
    batch = worker([(table(images, right=pa.array(images, pa.binary())), np.arange(4))], np.arange(4), 0)
    assert np.array_equal(batch["image"], batch["right"])
    broken = table(images, right=pa.array([images[0], b"no", *images[2:]], pa.binary()))
    again, failures = worker.attempt([(broken, np.arange(4))], np.arange(4), 0)
    worker.close()
    assert list(failures) == [1]
    assert not again["image"][1].any()
    assert np.array_equal(again["right"][[0, 2, 3]], batch["right"][[0, 2, 3]])


def test_what_cannot_follow_is_refused():
    for ops, said in (
        ([{"resize": {"size": 8}}, {"cutmix": {"num_classes": 2}}], "cannot follow cutmix"),
        ([{"numpy": "own_functions:brighter"}], r"augment\.ops\.0\.numpy: .* cannot follow numpy"),
    ):
        with pytest.raises(SpecError, match=said):
            augmenter(ops=ops, boxes="boxes")
    augmenter(ops=[{"numpy": {"call": "own_functions:brighter", "draws": 1, "moves": False}}], boxes="boxes").close()
    with pytest.raises(SpecError, match="there are no ops"):
        augmenter(boxes="boxes")
    with pytest.raises(SpecError, match="'boxs' is not an output of columns"):
        Spec(source={"path": "x", "columns": ["image", "boxes"]}, augment={"ops": ["flip"], "boxes": "boxs"})
    with pytest.raises(SpecError, match="'a' is named twice"):
        Spec(source={"path": "x"}, augment={"ops": ["flip"], "boxes": "a", "masks": ["a"]})
