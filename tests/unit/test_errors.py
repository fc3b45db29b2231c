"""Errors say what, where and what to do, and cross processes with every field."""

from __future__ import annotations

import pickle

import cloudpickle
import pytest

from ingest import errors

pytestmark = pytest.mark.unit

KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.IngestError)
]  # fmt: skip
FIELDS = {
    "stage": "read",
    "path": "s3://b/part-1.parquet",
    "row": 17,
    "rank": 3,
    "hint": "Upload it again",
    "cause": "OSError: short read",
}


def test_the_tree_is_all_here():
    assert {kind.__name__ for kind in KINDS} >= {"IngestError", "SpecError", "SchemaError", "ReadError", "StateError"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_every_field_crosses_processes(kind, codec):
    before = kind("the footer is cut off", **FIELDS)
    before.add_note("seen in the second epoch")
    after = pickle.loads(codec.dumps(before))
    assert type(after) is kind
    assert after.__dict__ == before.__dict__
    assert {name: getattr(after, name) for name in FIELDS} == FIELDS
    assert str(after) == str(before)


def test_text_has_what_where_cause_and_hint():
    text = str(errors.ReadError("the footer is cut off", **FIELDS))
    assert text == (
        "[read] the footer is cut off (rank 3, file s3://b/part-1.parquet, row 17); "
        "cause: OSError: short read. Upload it again"
    )


def test_rank_0_and_row_0_are_places():
    assert str(errors.SampleError("cannot be decoded", rank=0, row=0)) == "[augment] cannot be decoded (rank 0, row 0)"


def test_text_leaves_out_what_is_not_known():
    assert str(errors.IngestError("no luck")) == "no luck"


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        (errors.SpecError, "spec"),
        (errors.SourceError, "manifest"),
        (errors.SchemaError, "manifest"),
        (errors.PlanError, "plan"),
        (errors.ReadError, "read"),
        (errors.SampleError, "augment"),
        (errors.ClusterError, "cluster"),
        (errors.StateError, "loader"),
    ],
)
def test_a_kind_knows_its_stage_and_a_caller_may_know_better(kind, stage):
    assert kind("x").stage == stage
    assert kind("x", stage="feed").stage == "feed"


@pytest.mark.parametrize("kind", [errors.SpecError, errors.PlanError, errors.StateError])
def test_wrong_arguments_are_value_errors_too(kind):
    with pytest.raises(ValueError, match="batch"):
        raise kind("batch is 0")


def test_a_field_set_later_crosses_too():
    error = errors.SpecError("unknown key")
    error.path = "spec.yaml"
    assert pickle.loads(pickle.dumps(error)).path == "spec.yaml"
