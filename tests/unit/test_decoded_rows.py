"""Rows kept decoded: to the bit what they are without, whatever is asked for, and nothing is read or decoded twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from augment_images import encoded, jpegs, oriented, smooth

from ingest.augment.augmenter import Augmenter
from ingest.augment.kinds import PLANNERS
from ingest.augment.leading import Leading, stored_augmenter
from ingest.augment.stored import pack, unpack
from ingest.engine import decoded
from ingest.engine.decoded import CHUNK_ROWS, Part, read_decoded
from ingest.engine.jobs import Decoding
from ingest.errors import SpecError
from ingest.ops import OPS, User
from ingest.ops.base import Random
from ingest.ops.leading import STEADY, leading
from ingest.read.mark import MARK
from ingest.spec import Augment, Cache, Spec

pytestmark = pytest.mark.unit

RESIZE, CROP = {"resize": {"shorter": 40}}, {"center_crop": {"size": 32}}
LISTS = {
    "all of it": [RESIZE, CROP],
    "and normalized": [RESIZE, CROP, "normalize"],
    "then a random crop": [RESIZE, {"random_crop": {"size": 32}}, "flip"],
    "of a fixed size": [{"resize": {"size": [30, 50]}}, {"color_jitter": {"brightness": 0.5}}, "flip", "normalize"],
    "of open size": [{"resize": {"longer": 60}}, {"flip": {"p": 1}}, "flip"],
    "whole images": ["autocontrast", {"random_resized_crop": {"size": 24}}],
    "a crop of what is decoded": [{"center_crop": {"size": [33, 37]}}, "rand_augment", "cast"],
    "mixed": [RESIZE, CROP, "flip", {"mixup": {"num_classes": 4}}],
}


def pictures():
    """Of several formats, orientations and sizes; a null, what is no image, one cut short, one that is too small."""
    good = [*jpegs(12), oriented(smooth(60, 90), 6), encoded(smooth(80, 44), "PNG"), encoded(smooth(50, 50), "GIF")]
    return [*good, None, b"no image at all", jpegs(1)[0][:-40], encoded(smooth(8, 9))]


def held(images):
    return pa.table({"image": pa.array(images, pa.binary()), "label": np.arange(len(images)) % 4})


def batch_of(augmenter, table, pass_):
    rows = np.arange(len(table))[::-1]
    try:
        return augmenter.attempt([(table, rows)], rows * 977, pass_)
    finally:
        augmenter.close()


@pytest.mark.parametrize("name", LISTS)
def test_pixels_errors_and_columns_are_those_of_a_run_that_keeps_nothing(name):
    section, table = Augment(ops=LISTS[name]), held(pictures())
    options = {"seed": 3, "batch_rows": 64, "threads": 2}
    first = Leading(section, rows=len(table))
    kept = first(table)
    first.close()
    assert sum(unpack(np.frombuffer(each, np.uint8)) is not None for each in kept["image"].to_pylist() if each) >= 15
    for pass_ in (0, 5):
        plain, failed = batch_of(Augmenter(section, **options), table, pass_)
        ours, also_failed = batch_of(stored_augmenter(section, **options), kept, pass_)
        assert {row: error.message for row, error in failed.items()} == {r: e.message for r, e in also_failed.items()}
        assert plain.keys() == ours.keys()
        for name_, values in plain.items():
            assert values.dtype == ours[name_].dtype
            for one, other in zip(values, ours[name_], strict=True):
                np.testing.assert_array_equal(one, other)


def test_bytes_that_only_begin_like_pixels_are_none():
    whole = np.frombuffer(pack(smooth(4, 5)), np.uint8)
    assert np.array_equal(unpack(whole), smooth(4, 5))
    assert [unpack(whole[:at]) for at in (0, 10, 30, len(whole) - 1)] == [None] * 4


def test_ops_that_draw_no_number_are_those_that_lead():
    known = [op for op in OPS.values() if op in PLANNERS and issubclass(op, Random) and not issubclass(op, User)]
    undrawn = {op for op in known if not _draws(op)}
    assert undrawn == set(STEADY)
    ops = Augment(ops=[RESIZE, CROP, {"flip": {"p": 0.5}}, "invert"]).pipeline
    assert [op.name for op in leading(ops)] == ["resize", "center_crop"]


def _draws(op):
    try:
        return PLANNERS[op].draws(op())
    except ValueError:  # it must be given a size
        given = {"size": 8} if "size" in op.model_fields else {}
        return PLANNERS[op].draws(op(**given))


# -- what is kept ------------------------------------------------------------------------------------------------------


class Unit:
    """A unit that counts how often it is read."""

    def __init__(self, table):
        self.table, self.reads = table, 0

    def __call__(self):
        self.reads += 1
        return self.table


@pytest.fixture
def decoding(tmp_path):
    return Decoding(Augment(ops=[RESIZE, CROP, "flip"]), Cache(path=str(tmp_path), bytes=1 << 26, decoded=True), 1)


def test_what_is_kept_is_neither_read_nor_decoded_again(decoding, monkeypatch):
    images = jpegs(80)
    unit = Unit(held(images))
    cold = read_decoded([Part("a", 80, None, unit, ())], decoding)
    assert (len(cold), unit.reads) == (80, 1)
    assert cold["label"].to_pylist() == (np.arange(80) % 4).tolist()
    monkeypatch.setattr(decoded, "_leading", None)  # decoding would fail
    assert read_decoded([Part("a", 80, None, unit, ())], decoding).equals(cold)
    assert unit.reads == 1


def test_a_part_of_a_unit_decodes_the_stretches_that_it_needs(decoding):
    unit, asked = Unit(held(jpegs(80))), np.array([1, 2, CHUNK_ROWS * 2 + 3])
    every = read_decoded([Part(None, 80, None, unit, ())], decoding)  # not kept
    some = read_decoded([Part("a", 80, asked, unit, ())], decoding)
    assert some.equals(every.take(pa.array(asked)))
    assert unit.reads == 2
    again = np.array([0, 31, 64, 79])
    parts = [Part("a", 80, again, unit, ()), Part("a", 80, asked, unit, ())]
    assert read_decoded(parts, decoding)["label"].to_pylist() == [0, 3, 0, 3, 1, 2, 3]
    assert unit.reads == 2
    read_decoded([Part("a", 80, np.array([40]), unit, ())], decoding)
    assert unit.reads == 3


def test_a_unit_that_could_not_be_read_is_not_kept(decoding):
    table = held(jpegs(10))
    nulls = pa.table([pa.nulls(10, field.type) for field in table.schema], schema=table.schema)
    damaged = Unit(nulls.append_column(MARK, pa.repeat(pa.scalar("damaged"), 10)))
    healthy = Unit(table)
    for _ in range(2):
        both = read_decoded([Part("b", 10, None, damaged, ()), Part("a", 10, None, healthy, ())], decoding)
        assert both[MARK].to_pylist() == ["damaged"] * 10 + [None] * 10
    assert (damaged.reads, healthy.reads) == (2, 1)


# -- the spec ----------------------------------------------------------------------------------------------------------

CACHE = {"path": "/cache", "bytes": "1GB", "decoded": True}


@pytest.mark.parametrize(
    ("augment", "why"),
    [
        ({"recipe": "imagenet_train"}, "random_resized_crop is the first op"),
        ({"ops": ["flip", RESIZE]}, "flip is the first op"),
        ({"ops": [{"resize": {"size": 8, "p": 0.5}}]}, "resize is the first op"),
        ({"recipe": "audio_mel"}, "waveform is the first op"),
        ({"numpy": "own_functions:invert"}, "numpy is the first op"),
        ({}, "augment is empty"),
        ({"ops": [RESIZE, {"function": "own_functions:f"}]}, "with function is not there yet"),
        ({"ops": [RESIZE, "flip"], "boxes": "boxes"}, "with boxes is not there yet"),
        ({"ops": [RESIZE], "device": "gpu"}, "device: cpu"),
    ],
)
def test_the_spec_refuses_what_cannot_be_kept(augment, why):
    with pytest.raises(SpecError, match=f"cache.decoded: .*{why}"):
        Spec(source={"path": "/d"}, cache=CACHE, augment=augment)
    Spec(source={"path": "/d"}, cache={**CACHE, "decoded": False}, augment=augment)


def test_a_cache_changes_nothing_that_a_state_depends_on():
    plain, kept = (Spec(source={"path": "/d"}, augment={"recipe": "imagenet_eval"}, cache=c) for c in ({}, CACHE))
    assert plain.fingerprint == kept.fingerprint
    with pytest.raises(SpecError, match="decoded: needs path and bytes"):
        Spec(source={"path": "/d"}, cache={"decoded": True}, augment={"recipe": "imagenet_eval"})
