"""Every operation: near its reference on the CPU and in DALI's graph, and taken by a share of the samples."""

from __future__ import annotations

import numpy as np
import pytest
from augment_images import augment, encoded
from augment_ops import CASES, PIXEL_CASES, apart, images, op, planned, rendered, run_graph

from ingest.augment import reference
from ingest.augment.finish import finish
from ingest.augment.graph import Runner, device_pipeline
from ingest.augment.kinds import KINDS, PLANNERS
from ingest.augment.steps import draws, slots
from ingest.ops import OPS, AutoAugment, Cast, Cutmix, Mixup, Normalize, RandAugment, Random, Transpose, TrivialAugment

pytestmark = pytest.mark.unit

PICTURES = images(200)


def check_steps(ops, pictures):
    """Step by step from the same pixels: what the CPU makes of them, and the reference; and both are what comes out."""
    found, problems = planned(ops, pictures)
    assert not problems
    got = rendered(ops, pictures, found)
    for row, image in enumerate(pictures):
        pixels = image
        for step in found:
            if step.active is None or step.active[row]:
                value = step.values[row].tolist()
                expected = reference.STEPS[step.kind](pixels, value, step.constant)
                pixels = KINDS[step.kind].cpu(pixels, value, step.constant)
                off = apart([pixels], [expected])
                assert off <= reference.TOLERANCE[step.kind], (step.kind, value, row, image.shape, off)
        assert np.array_equal(pixels, got[row])


@pytest.mark.parametrize("name", PIXEL_CASES)
def test_the_cpu_path_is_within_its_tolerance_of_the_reference(name):
    check_steps([op(name)], PICTURES)


@pytest.mark.parametrize("name", CASES)
def test_dalis_graph_agrees_with_the_cpu_path(name):
    ops = [op(name)]
    found, _ = planned(ops, PICTURES[:10])
    got, expected = run_graph(ops, PICTURES[:10], found), rendered(ops, PICTURES[:10], found)
    assert all(a.dtype == b.dtype for a, b in zip(got, expected, strict=True))
    if OPS[name.split()[0]] in (TrivialAugment, RandAugment, AutoAugment):  # one step more at one level may move a jump
        off = [np.abs(a.astype(float) - b).mean() for a, b in zip(got, expected, strict=True)]
        assert max(off) <= 1
    else:
        limit = 1e-2 if name not in PIXEL_CASES else sum(reference.TOLERANCE[step.kind] for step in found)
        assert apart(got, expected) <= 2 * limit


@pytest.mark.parametrize("name", [name for name in CASES if issubclass(OPS[name.split()[0]], Random)])
def test_probability_0_is_identity_and_a_share_takes_the_op(name):
    pictures = PICTURES[:12]
    for ops in ([op(name, p=0)], [op("flip"), op(name, p=0)]):
        found, problems = planned(ops, pictures)
        assert not problems
        flipped = [image[:, ::-1] if len(ops) == 2 else image for image in pictures]
        assert apart(rendered(ops, pictures, found), flipped) == 0
    ops, always = [op(name, p=0.5)], [op(name, p=1)]
    found, everyone = planned(ops, pictures)[0], planned(always, pictures)[0]
    mixed, full = rendered(ops, pictures, found), rendered(always, pictures, everyone)
    as_before = [np.array_equal(a, b) for a, b in zip(mixed, pictures, strict=True)]
    as_all = [np.array_equal(a, b) for a, b in zip(mixed, full, strict=True)]
    assert all(a or b for a, b in zip(as_before, as_all, strict=True))
    assert any(as_before)
    assert any(as_all)
    graph = run_graph(ops, pictures, found)
    assert (
        apart([graph[i] for i in range(12) if as_before[i]], [p for i, p in enumerate(pictures) if as_before[i]]) == 0
    )


@pytest.mark.parametrize("name", CASES)
def test_the_gpu_graph_of_every_op_is_defined_without_a_gpu(name):
    ops = [op("resize"), op(name)]
    for decode in (True, False):
        pipe = device_pipeline(8, 2, 0, slots(ops), finish(ops), decode=decode)
        pipe._py_graph_built or pipe._build_graph()
        (output,) = pipe._graph_out
        assert output.device == "gpu"


def test_every_op_has_a_planner_or_is_an_end_and_every_kind_a_reference():
    assert set(OPS.values()) - set(PLANNERS) == {Normalize, Cast, Transpose, Mixup, Cutmix}
    assert set(KINDS) - {"function", "numpy"} == set(reference.STEPS) == set(reference.TOLERANCE)


@pytest.mark.parametrize("name", PIXEL_CASES)
def test_the_numbers_an_op_takes_are_fixed(name):
    assert draws([op(name)]) == draws([op(name, p=0.3)])


def test_policies_take_as_many_ops_as_they_say_and_all_of_them():
    pictures = [PICTURES[0]] * 4000
    for name, least, most in (("trivial_augment", 0, 1), ("rand_augment", 1, 3), ("auto_augment", 0, 2)):
        found, _ = planned([op(name)], pictures)
        taken = np.sum([step.active for step in found if step.active is not None], 0)
        assert taken.min() <= least
        assert taken.max() == most
        assert all(step.active.any() for step in found if step.active is not None)
    found, _ = planned([op("trivial_augment")], pictures)
    share = {step.kind: step.active.mean() for step in found[1:]}
    assert abs(share["warp"] - 5 / 14) < 0.03  # two shears, two moves, one rotation of 14 choices
    assert abs(share["posterize"] - 1 / 14) < 0.02


def test_a_finished_batch_goes_through_the_whole_augmenter():
    files = [encoded(image, "PNG") for image in PICTURES[:6]]
    ops = [{"resize": {"size": 20}}, {"color_jitter": {"brightness": 0.3}}, {"cast": {"scale": 1 / 255}}, "transpose"]
    got = augment(files, ops=ops)
    assert (got.shape, got.dtype) == ((6, 3, 20, 20), np.float32)
    assert 0 <= got.min() < got.max() <= 1


def test_a_broken_graph_is_rebuilt():
    ops = [op("resize")]
    runner = Runner(lambda: device_pipeline(2, 1, None, slots(ops), finish(ops), decode=False))
    with pytest.raises(RuntimeError):
        runner({"pixels": [np.zeros((4, 4), np.uint8)], "size1": np.ones((1, 2), np.float32)})
    assert len(runner({"pixels": [np.zeros((4, 4, 3), np.uint8)], "size1": np.full((1, 2), 9, np.float32)})) == 1
