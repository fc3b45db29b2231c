"""Arrays of each framework: numbers as they are, the rest untouched, and no bit lost without a word."""

from __future__ import annotations

import numpy as np
import pytest

from ingest.errors import SpecError, StageError
from ingest.loader.convert import converter

pytestmark = pytest.mark.unit


def batch():
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    image.setflags(write=False)
    text = np.array(["a", None], object)
    return {"image": image, "x": np.array([0.5, np.nan], np.float32), "ok": np.array([True, False]), "text": text,
            "label": np.array([1, -2]), "sample_id": np.array([2**40, 7])}  # fmt: skip


def same(made, given):
    assert list(made) == list(given)
    assert made["text"] is given["text"]
    for name in set(given) - {"text"}:
        np.testing.assert_array_equal(np.asarray(made[name]), given[name])


def test_numpy_arrays_are_read_only():
    given = batch()
    same(converter("numpy")(given), given)
    with pytest.raises(ValueError, match="read-only"):
        given["label"][0] = 3


def test_torch_tensors_can_be_written():
    torch = pytest.importorskip("torch")
    given = batch()
    made = converter("torch")(given)
    same(made, given)
    assert isinstance(made["image"], torch.Tensor)
    made["image"] += 1
    assert given["image"][0, 0, 0] == 0


def test_tensorflow_tensors_keep_their_dtypes():
    tensorflow = pytest.importorskip("tensorflow")
    given = batch()
    made = converter("tf")(given)
    same(made, given)
    assert (made["sample_id"].dtype, made["image"].dtype) == (tensorflow.int64, tensorflow.uint8)


def test_jax_without_64_bits_keeps_ids_and_narrows_what_fits():
    jax = pytest.importorskip("jax")
    given = batch()
    made = converter("jax")(given)
    same(made, given)
    assert isinstance(made["image"], jax.Array)
    assert (made["label"].dtype, made["sample_id"].dtype) == (np.int32, np.int64)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_jax_without_64_bits_refuses_what_does_not_fit(value):
    pytest.importorskip("jax")
    with pytest.raises(StageError, match=r"column .label. holds .* 32 bits"):
        converter("jax")({"label": np.array([0, value])})


def test_a_framework_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    with pytest.raises(SpecError, match=r"jax is not installed.*ingest\[jax\]"):
        converter("jax")
