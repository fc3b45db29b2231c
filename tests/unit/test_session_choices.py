"""What a rank may hold in the object store, by share or by the spec, for blocks and batches, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ingest.errors import PlanError, SchemaError
from ingest.session_choices import Memory, check_memory, check_outputs, memory_of, prefetch_depth
from ingest.spec import Spec

MIB = 1 << 20


def spec(**loader):
    return Spec.load({"source": {"path": "/data"}, "augment": {"recipe": "imagenet_train"}, "loader": loader})


SCHEMA = pa.schema([("image", pa.binary()), ("label", pa.int64()), ("s", pa.struct([("bytes", pa.binary())]))])


@pytest.mark.parametrize(
    ("augment", "said"),
    [
        ({"column": "imgae"}, "no output 'imgae'; there are image, label, s.*Did you mean 'image'"),
        ({"column": "s"}, "output 's' is struct<bytes: binary>, and encoded images are binary.*dots"),
        ({"column": "label"}, "output 'label' is int64"),
        ({"also": ["depth"]}, "no output 'depth'"),
        ({"masks": ["label"]}, "output 'label' is int64"),
        ({"boxes": "box"}, "no output 'box'"),
        ({"ops": [{"mixup": {"num_classes": 2, "label": "lable"}}]}, "no output 'lable'.*Did you mean 'label'"),
    ],
)
def test_what_is_not_there_to_be_augmented_is_refused_before_a_start(augment, said):
    asked = Spec.load({"source": {"path": "/data"}, "augment": {"ops": ["flip"], **augment}})
    with pytest.raises(SchemaError, match=said):
        check_outputs(asked, SCHEMA)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.binary(4), pa.null()])
def test_images_are_bytes_of_any_kind(kind):
    check_outputs(spec(), pa.schema([("image", kind)]))
    check_outputs(Spec.load({"source": {"path": "/data"}}), pa.schema([("x", pa.int64())]))  # nothing is augmented


def test_without_a_word_each_rank_has_its_share_of_the_store():
    assert memory_of(spec(), 1000 * MIB, 4) == Memory(150 * MIB, 100 * MIB)


def test_a_store_of_unknown_size_limits_nothing():
    assert memory_of(spec(), 0, 4) == Memory(None, None)
    assert prefetch_depth(spec(), 1, 10, None) == 256


def test_what_the_spec_says_is_split_alike():
    assert memory_of(spec(memory_bytes="100MiB"), 1000 * MIB, 4) == Memory(60 * MIB, 40 * MIB)
    assert memory_of(spec(memory_bytes="100MiB"), 0, 4) == Memory(60 * MIB, 40 * MIB)


def test_ranks_that_may_hold_more_than_there_is_are_refused_with_both_numbers():
    with pytest.raises(PlanError, match=rf"{300 * MIB} on each of 4 ranks is {1200 * MIB} bytes.* has {1000 * MIB}"):
        memory_of(spec(memory_bytes="300MiB"), 1000 * MIB, 4)


@pytest.mark.parametrize(
    ("batches_bytes", "depth"),
    [(None, 12), (1000 * MIB, 12), (60 * MIB, 6), (25 * MIB, 2), (5 * MIB, 2)],
)
def test_batches_kept_ahead_fit_their_share(batches_bytes, depth):
    row_bytes = 10 * MIB // 64
    assert prefetch_depth(spec(), 64, row_bytes, batches_bytes) == depth


@pytest.mark.parametrize("augment", [{}, {"placement": "trainer"}, {"actors_per_trainer": 1}])
def test_large_batches_are_enough_to_keep_whoever_makes_them_busy(augment):
    values = {"source": {"path": "/data"}, "augment": {"recipe": "imagenet_train", **augment}}
    assert prefetch_depth(Spec.load(values), 64, 4 * MIB, None) == 4  # two in the making, two on their way


def test_a_depth_that_the_user_gives_stays():
    assert prefetch_depth(spec(prefetch_batches=7), 64, MIB, 10 * MIB) == 7


@pytest.mark.parametrize(
    ("loader", "batch", "unit", "what"),
    [
        ({"memory_bytes": "100MiB"}, 21 * MIB, MIB, f"2 batches take about {42 * MIB} bytes, and may take {40 * MIB}"),
        ({"memory_bytes": "100MiB", "prefetch_batches": 5}, 9 * MIB, MIB, f"5 batches take about {45 * MIB} bytes"),
        (
            {"memory_bytes": "100MiB"},
            MIB,
            61 * MIB,
            f"unit takes about {61 * MIB} bytes, and may take {60 * MIB}",
        ),
    ],
)
def test_a_budget_that_holds_no_step_is_refused_and_the_hint_is_enough(loader, batch, unit, what):
    asked = spec(**loader)
    with pytest.raises(PlanError, match=what) as refused:
        check_memory(asked, memory_of(asked, 0, 1), batch, unit)
    enough = int("".join(filter(str.isdigit, refused.value.hint.split(",")[0])))
    more = spec(**{**loader, "memory_bytes": enough + 1})
    check_memory(more, memory_of(more, 0, 1), batch, unit)


def test_a_share_of_the_store_is_never_refused():
    check_memory(spec(), memory_of(spec(), 10, 1), MIB, MIB)
