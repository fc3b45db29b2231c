"""Users' own functions: run with the sample's own numbers, held to their shape, refused by field before a start."""

from __future__ import annotations

import numpy as np
import own_functions
import pytest
from augment_images import augment, augmenter, encoded, oriented, smooth, table

from ingest.augment.trial import trial
from ingest.errors import SampleError, SpecError, StageError
from ingest.spec import Augment, Spec

pytestmark = pytest.mark.unit

PICTURES = [smooth(20, 30, seed=i) for i in range(6)]
FILES = [encoded(image, "PNG") for image in PICTURES]


def test_a_numpy_function_gets_pixels_and_the_samples_numbers():
    got = augment(FILES, ops=[{"numpy": {"call": "own_functions:brighter", "draws": 2}}])
    for one, image in zip(got, PICTURES, strict=True):
        added = int(one.max()) - int(image.max()) if one.max() < 255 else int(one.min()) - int(image.min())
        assert np.array_equal(one, np.clip(image.astype(int) + added, 0, 255))
    assert len({int(one.astype(int).sum()) for one in got}) > 1
    alone = augment(FILES[3:4], ids=[3], ops=[{"numpy": {"call": "own_functions:brighter", "draws": 2}}])
    assert np.array_equal(alone[0], got[3])


def test_a_function_may_say_its_size_and_stand_between_other_ops():
    ops = [{"resize": {"size": 16}}, {"numpy": {"call": own_functions.halved, "size": 8}}, {"flip": {"p": 1}}]
    plain = augment(FILES, ops=ops[:1])
    assert np.array_equal(augment(FILES, ops=ops), plain[:, :8, :8][:, :, ::-1])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("own_functions:floats", "returned float64 .* must return uint8"),
        ("own_functions:halved", r"returned uint8 \(8, 8, 3\), and must return uint8 \(20, 30, 3\)"),
        ("own_functions:in_place", "read-only"),
    ],
)
def test_what_a_numpy_function_may_not_do_is_that_samples_error(call, said):
    with pytest.raises(SampleError, match=said) as caught:
        augment(FILES, numpy=call)
    assert caught.value.index == 0


def test_a_numpy_function_may_use_its_array_again():
    got = augment(FILES, numpy="own_functions:into_one_array", threads=1)
    assert all(np.array_equal(one, 255 - image) for one, image in zip(got, PICTURES, strict=True))


def test_dali_nodes_run_with_the_samples_numbers():
    spec = {"function": {"call": "own_functions:nodes", "draws": 1}}
    got = augment(FILES, **spec)
    for one, image in zip(got, PICTURES, strict=True):
        factor = one.astype(float).sum() / image.sum()
        assert np.abs(one - image[:, ::-1] * factor).max() <= 1.5
    worker = augmenter(batch_rows=6, threads=3, **spec)
    order = np.array([4, 1, 3])
    again = worker([(table(FILES), order)], order, 0)["image"]
    worker.close()
    for one, row in zip(again, order, strict=True):
        assert np.array_equal(one, got[row])


def test_a_dali_function_may_say_its_size_and_is_followed_by_other_ops():
    ops = [{"function": {"call": "own_functions:cropped", "size": [8, 10]}}, "normalize"]
    assert augment(FILES, ops=ops).shape == (6, 3, 8, 10)
    with pytest.raises(StageError, match=r"'own_functions:cropped' returned images that end as .*\(8, 10, 3\)"):
        augment(FILES, ops=[{"resize": {"size": 20}}, {"function": "own_functions:cropped"}])


def test_an_image_on_which_a_dali_function_fails_is_one_samples_error_however_it_was_decoded():
    small = smooth(6, 6)
    files = [*FILES[:2], encoded(small, "PNG"), oriented(small, 6), *FILES[2:4]]
    worker = augmenter(batch_rows=6, ops=[{"function": {"call": "own_functions:cropped", "size": [8, 10]}}])
    rows = np.arange(6)
    for _ in range(2):
        batch, failures = worker.attempt([(table(files), rows)], rows, 0)
        assert {row: error.message.partition(" (")[0] for row, error in failures.items()} == {
            2: "png that DALI cannot decode or augment",
            3: "jpeg that DALI cannot decode or augment",
        }
        healthy = worker([(table(FILES), np.arange(4))], np.array([0, 1, 4, 5]), 0)["image"]
        assert np.array_equal(batch["image"][[0, 1, 4, 5]], healthy)
    worker.close()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"function": "own_functions:missing"}, "augment.function: 'own_functions:missing' cannot be imported"),
        ({"numpy": "no_such_module:f"}, "augment.numpy: 'no_such_module:f' cannot be imported"),
        ({"numpy": "own_functions:__name__"}, "augment.numpy: 'own_functions:__name__' is str, and not a function"),
        ({"numpy": "own_functions:locked"}, "augment.numpy: 'own_functions:locked' cannot be pickled"),
        ({"ops": ["flip", {"numpy": "own_functions:closed_over"}]}, "augment.ops.1.numpy: .* cannot be pickled"),
        ({"function": "own_functions:raises"}, "augment.function: it does not work .KeyError: 'nothing here'"),
        ({"function": "own_functions:unbuildable"}, "augment.function: it does not work"),
        ({"numpy": "own_functions:floats"}, r"augment.numpy: .*'own_functions:floats' returned float64"),
        ({"numpy": "own_functions:nodes"}, r"augment.numpy: .*'own_functions:nodes' failed"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_with_its_field(section, said):  # D15
    with pytest.raises(SpecError, match=said):
        trial(Augment(**section), gpu=False)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"numpy": "own_functions"}, "augment.numpy: numpy.call: 'own_functions' is not of the form"),
        ({"numpy": own_functions.locked}, "augment.numpy: numpy.call: .*Locked.* cannot be pickled"),
        ({"function": lambda images, numbers: images}, "augment.function: function.call: .* cannot be pickled"),
        ({"numpy": "own_functions:halved", "device": "gpu"}, "numpy functions run on the CPU"),
        ({"numpy": "own_functions:halved", "recipe": "imagenet_train"}, "give recipe or numpy, not both"),
        ({"ops": [{"numpy": "a:b"}, {"function": "a:c"}]}, "function and numpy do not go together"),
    ],
)
def test_what_cannot_be_is_refused_by_the_spec(section, said):  # D15
    with pytest.raises(SpecError, match=said):
        Spec(source={"path": "x"}, augment=section)


def test_a_function_given_in_python_is_kept_as_its_name():
    spec = Spec(source={"path": "x"}, augment={"numpy": own_functions.halved})
    assert spec.augment.numpy.call == "own_functions:halved"
    assert Spec(**spec.model_dump(mode="json")) == spec
    assert spec.pixel_facts()["ops"][0]["numpy"]["call"] == "own_functions:halved"


def test_the_gpu_graph_of_a_function_is_defined_without_a_gpu():
    trial(Augment(function={"call": "own_functions:nodes", "draws": 1}), gpu=True)
    with pytest.raises(SpecError, match=r"augment\.function: it does not work"):
        trial(Augment(function="own_functions:raises"), gpu=True)
