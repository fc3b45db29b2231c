"""Laws of the augmentation: windows inside their image and their bounds; pixels a function of the sample alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from augment_images import augmenter, jpegs, table
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingest import rng
from ingest.augment.steps import draws, fixed_shape, slots, steps
from ingest.augment.windows import random_windows
from ingest.ops import CenterCrop, Erase, Flip, Pad, Perspective, RandAugment, RandomCrop, RandomResizedCrop, Resize

pytestmark = pytest.mark.property

SIDES = st.integers(1, 5000)
SHAPES = st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=20).map(lambda shapes: np.array(shapes, np.int64))
AREAS = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted).map(tuple)
RATIOS = st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)).map(sorted).map(tuple)
OPS = st.lists(
    st.one_of(
        st.builds(RandomResizedCrop, size=st.integers(1, 64)),
        st.builds(Resize, size=st.tuples(st.integers(1, 64), st.integers(1, 64))),
        st.builds(Resize, shorter=st.integers(1, 64)),
        st.builds(CenterCrop, size=st.integers(1, 64)),
        st.builds(Resize, longer=st.integers(1, 64)),
        st.builds(CenterCrop, size=st.integers(1, 64), probability=st.sampled_from([0, 0.5])),
        st.builds(RandomCrop, size=st.integers(1, 64)),
        st.builds(Pad, size=st.integers(1, 64)),
        st.builds(Flip),
        st.builds(Perspective, probability=st.just(0.5)),
        st.builds(Erase),
        st.builds(RandAugment),
    ),
    min_size=1,
    max_size=5,
)
IMAGES = jpegs(12)
IDS = np.arange(12) * 31 + 2
TABLE = table(IMAGES)
SPECS = {
    "train": [{"random_resized_crop": {"size": (24, 32)}}, "flip"],
    "geometry": [
        {"resize": {"longer": 60}},
        {"pad": {"size": 64}},
        {"random_crop": {"size": 48, "p": 0.5}},
        {"flip": {"direction": "vertical"}},
        {"rotate": {"p": 0.5}},
        {"affine": {"degrees": 20, "shear_x": 10, "p": 0.5}},
        {"perspective": {"p": 0.5}},
        {"erase": {"p": 0.5}},
        {"resize": {"size": 24}},
    ],
    "colour and texture": [
        {"random_resized_crop": {"size": 32}},
        {"color_jitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "p": 0.8}},
        *({name: {"p": 0.3}} for name in ("grayscale", "posterize", "solarize", "equalize", "autocontrast", "invert")),
        *({name: {"p": 0.5}} for name in ("sharpness", "gaussian_blur", "gaussian_noise", "jpeg_distortion")),
        "normalize",
    ],
    "policies": [{"random_resized_crop": {"size": 32}}, "trivial_augment", "rand_augment", "auto_augment"],
}


@given(SHAPES, AREAS, RATIOS, st.integers(0, 2**62))
@example(np.array([[1, 5000], [5000, 1], [1, 1]]), (0.01, 0.02), (0.1, 0.1), 0)
def test_random_windows_are_integers_inside_the_image_and_its_bounds(shapes, area, ratio, seed):
    numbers = rng.uniforms(seed, 0, np.arange(len(shapes)), 22)
    windows = random_windows(shapes, area, ratio, numbers)
    assert windows.dtype == np.int64
    place, size = windows[:, :2], windows[:, 2:]
    assert (place >= 0).all()
    assert (size >= 1).all()
    assert (place + size <= shapes).all()
    for (full_height, full_width), (y, x, height, width) in zip(shapes.tolist(), windows.tolist(), strict=True):
        # sides are rounded to whole pixels: the bounds hold for a window within half a pixel of this one
        shares = [(height + d) * (width + d) / (full_height * full_width) for d in (-0.5, 0.5)]
        ratios = [(width - 0.5) / (height + 0.5), (width + 0.5) / max(height - 0.5, 1e-9)]
        drawn = shares[0] <= area[1] * (1 + 1e-9) and shares[1] >= area[0] * (1 - 1e-9)
        drawn = drawn and ratios[0] <= ratio[1] * (1 + 1e-9) and ratios[1] >= ratio[0] * (1 - 1e-9)
        centred = (2 * y - (full_height - height)) in (-1, 0, 1) and (2 * x - (full_width - width)) in (-1, 0, 1)
        widest = height == full_height or width == full_width
        assert drawn or (centred and widest)


def test_random_windows_are_spread_over_area_ratio_and_place():
    shapes = np.tile(np.array([[480, 640]], np.int64), (20_000, 1))
    y, x, height, width = random_windows(shapes, (0.08, 1), (3 / 4, 4 / 3), rng.uniforms(0, 0, np.arange(20_000), 22)).T
    share = height * width / (480 * 640)
    assert share.min() < 0.082
    # A share s of a 4:3 image fits for every ratio up to s = 9/16, above it for -ln(s) / ln(16/9) of them, so below
    # one half there are 0.42 of 0.4825 + (1 - 9/16 - 9/16 ln(16/9)) / ln(16/9).
    assert abs((share < 0.5).mean() - 0.617) < 0.012
    assert share.max() > 0.95
    small = share < 0.2
    assert abs(np.log(width / height)[small].mean()) < 0.01
    assert abs((y[small] / (480 - height[small])).mean() - 0.5) < 0.02
    assert abs((x[small] / (640 - width[small])).mean() - 0.5) < 0.02


def test_the_first_window_that_fits_is_taken_and_the_fallback_is_centred():
    shapes = np.array([[100, 100], [100, 1000]], np.int64)
    numbers = np.zeros((2, 22))
    numbers[0, 0::2] = 0.99  # area 0.99 of the image
    numbers[0, 1::2] = 0.999  # ratio 4/3: does not fit a square
    numbers[0, 4:6] = (0.0, 0.5)  # the third try: area 0.08, ratio 1
    numbers[0, 20:] = (0.5, 0.0)
    numbers[1, 0:20:2] = 0.999
    side = round(math.sqrt(0.08 * 100 * 100))
    windows = random_windows(shapes, (0.08, 1.0), (3 / 4, 4 / 3), numbers)
    assert windows[0].tolist() == [int(0.5 * (100 - side + 1)), 0, side, side]
    assert windows[1].tolist() == [0, round((1000 - 133) / 2), 100, 133]  # 10:1 is out of bounds: 4:3, full height


@given(OPS, SHAPES, st.integers(0, 2**62))
def test_steps_stay_inside_what_the_step_before_left(ops, shapes, seed):
    found, problems = steps(ops, shapes, rng.uniforms(seed, 0, np.arange(len(shapes)), max(1, draws(ops))))
    assert tuple(step.kind for step in found) == tuple(slot.kind for slot in slots(ops))
    size = shapes
    for step in found:
        values = step.values
        if step.kind in ("window", "erase"):
            assert (values[:, :2] >= 0).all()
            assert (values[:, :2] + values[:, 2:] <= size).all()
        elif step.kind == "pad":
            assert (values[:, :2] >= 0).all()
            assert (values[:, :2] + size <= values[:, 2:]).all()
        elif step.kind == "warp":
            assert np.isfinite(values).all()
        if step.kind in ("window", "pad", "scale"):
            changed = values[:, -2:]
            size = changed if step.active is None else np.where(step.active[:, None], changed, size)
        assert (size >= 1).all()
    good = [row for row in range(len(shapes)) if row not in problems]
    if (shape := fixed_shape(ops)) is not None:
        assert (size[good] == shape).all()


@given(OPS, SHAPES, st.integers(0, 2**62))
def test_steps_of_a_sample_do_not_depend_on_its_batch(ops, shapes, seed):
    numbers = rng.uniforms(seed, 0, np.arange(len(shapes)), max(1, draws(ops)))
    together, _ = steps(ops, shapes, numbers)
    for row in range(len(shapes)):
        alone, _ = steps(ops, shapes[row : row + 1], numbers[row : row + 1])
        for one, many in zip(alone, together, strict=True):
            assert np.array_equal(one.values[0], many.values[row])
            assert (one.active is None) == (many.active is None)
            assert one.active is None or one.active[0] == many.active[row]


def test_an_op_added_behind_changes_no_random_number_before_it():
    shapes = np.array([[100, 140]], np.int64)
    first, both = [RandomResizedCrop(size=8)], [RandomResizedCrop(size=8), Flip(), RandomResizedCrop(size=4)]
    alone, _ = steps(first, shapes, rng.uniforms(3, 0, np.array([7]), draws(first)))
    more, _ = steps(both, shapes, rng.uniforms(3, 0, np.array([7]), draws(both)))
    assert np.array_equal(alone[0].values, more[0].values)
    assert not np.array_equal(more[0].values, more[3].values)


@pytest.fixture(scope="module", params=SPECS)
def workers(request):
    """What one thread makes of the images in one call, and augmenters of other numbers of threads."""
    made = [augmenter(batch_rows=12, threads=threads, ops=SPECS[request.param]) for threads in (1, 3)]
    yield made[0]([(TABLE, np.arange(12))], IDS, 0)["image"], made
    for worker in made:
        worker.close()


@settings(max_examples=20)
@given(picked=st.lists(st.integers(0, 11), min_size=1, max_size=12), which=st.integers(0, 1), cut=st.integers(0, 12))
def test_pixels_are_a_function_of_the_sample(workers, picked, which, cut):
    expected, made = workers
    rows = np.array(picked, np.int64)
    pieces = [(TABLE, rows[:cut]), (TABLE.slice(0), rows[cut:])]
    got = made[which](pieces, IDS[rows], 0)["image"]
    assert np.array_equal(got, expected[rows])
