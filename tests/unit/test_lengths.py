"""Lengths out of columns, rows by window, and what a state says of a chunk under way."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole import manifest_of

from ingest.engine.jobs import BatchInfo
from ingest.errors import SchemaError, SpecError, StateError
from ingest.loader import state as states
from ingest.plan.buckets import Bucketing, Course
from ingest.plan.lanes import LaneRows, by_window
from ingest.plan.layout import Order
from ingest.plan.resolve import Wanted, resolve
from ingest.plan.schedule import Chunk, Share
from ingest.plan.waste import estimate, rows_for
from ingest.read.lengths import SAMPLE_UNITS, check_column, lengths_of, sample_lengths
from ingest.read.windows import ReadOptions
from ingest.spec import Spec
from tests.plans import sizes_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([[1, 2], [], None, [3]], pa.list_(pa.int32()), [2, 0, 0, 1]),
        ([[1, 2], [None]], pa.large_list(pa.float32()), [2, 1]),
        ([[1, 2], None], pa.list_(pa.int8(), 2), [2, 0]),
        ([5, 0, -3, None], pa.int32(), [5, 0, 0, 0]),
        ([5, 255], pa.uint8(), [5, 255]),
    ],
)
def test_lengths_of_lists_and_integers(values, kind, expected):
    column = pa.chunked_array([pa.array(values[:1], kind), pa.array(values[1:], kind)])
    assert lengths_of(column).tolist() == expected
    assert lengths_of(column).dtype == np.int64
    check_column(pa.schema([("n", kind)]), "n")


@pytest.mark.parametrize(("column", "said"), [("x", "'x' is string"), ("n", "'n' is not an output; there are x")])
def test_a_column_without_lengths_is_refused(column, said):
    with pytest.raises(SchemaError, match=said):
        check_column(pa.schema([("x", pa.string())]), column)


def test_rows_by_window_keep_their_form():
    starts = np.array([0, 4, 5, 9])
    assert list(by_window(slice(2, 7), starts)) == [(0, slice(2, 4)), (1, slice(4, 5)), (2, slice(5, 7))]
    found = [(window, rows.tolist()) for window, rows in by_window(np.array([1, 3, 6, 8]), starts)]
    assert found == [(0, [1, 3]), (2, [6, 8])]
    assert list(by_window(np.zeros(0, np.int64), starts)) == []


def test_runs_of_lanes_and_back():
    rows = {1: np.array([4, 5, 6]), 2: np.array([], np.int64), 3: np.array([0, 2, 3])}
    runs = LaneRows.of(rows)
    assert (runs.lane.tolist(), runs.start.tolist(), runs.count.tolist()) == ([1, 3, 3], [4, 0, 2], [3, 1, 2])
    (one, whole), (three, some) = runs.by_lane()
    assert (one, whole, three, some.tolist()) == (1, slice(4, 7), 3, [0, 2, 3])


def test_a_chunk_travels_with_its_batch():
    runs = LaneRows.of({0: np.array([1, 3])})
    for chunk in (None, Chunk(64, 128, 16)):
        packed = BatchInfo(2, 80, False, 2, runs, None, chunk, 7, 0.25).pack()
        assert BatchInfo.unpack(packed).chunk == chunk
        assert BatchInfo.unpack(packed).read_wait_s == 0.25


FACTS = states.Facts("d", {"seed": 0, "bucket_by": {"column": "n", "chunk": 4}}, {}, lanes=4, interleave=1, rows=100)


def test_a_state_keeps_the_chunk_under_way():
    saved = json.loads(json.dumps(states.save(FACTS, 0, 20, Chunk(0, 64, 10))))
    assert saved["chunk"] == [0, 64, 10]
    assert states.chunk(saved, 20, 100) == Chunk(0, 64, 10)
    assert states.chunk({**saved, "chunk": [20, 20, 10]}, 20, 100) is None
    for broken in (None, [0, 64], [30, 64, 10], [0, 101, 10], [0, 64, 0], [0, "64", 10]):
        with pytest.raises(StateError, match="is none around position 20"):
            states.chunk({**saved, "chunk": broken}, 20, 100)


def test_another_world_finishes_a_chunk_in_parts_of_its_groups():
    # Groups of 10 from 20 on, the last of 4; a global batch of 6 takes each in steps of 6 and 4.
    course = Course(100, 4, Share(0, 2, 3), batches=4, position=20, chunk=Chunk(0, 34, 10))
    assert [course.part(0, i).after for i in range(5)] == [26, 30, 34, 40, 46]
    assert course.part(0, 3).chunk == Chunk(34, 58, 6)
    assert course.steps == 3 + (100 - 34) // 6


def test_auto_lanes_are_few_where_rows_are_sorted_and_windows_still_overlap():
    rows = np.full(64, 1000)
    for world, lanes in ((1, 1), (2, 2), (3, 8), (4, 4)):
        order = resolve(Wanted(0, "window", None, None, 32_000_000, bucketed=True), rows, sizes_of(rows), world)
        assert order.lanes == lanes
        assert order.interleave * 1_000_000 * 4 <= 32_000_000


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"source": {"columns": ["tokens", "image"]}}, "'token' is not an output.*did you mean 'tokens'"),
    ],
)
def test_buckets_that_cannot_be_are_refused(sections, said):
    values = {"source": {"path": "/x"}, "batch": {"bucket_by": {"column": "token"}}}
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    with pytest.raises(SpecError, match=said):
        Spec(**values)


def test_what_rows_are_sorted_by_decides_the_order():
    values = {"source": {"path": "/x"}, "batch": {"bucket_by": {"column": "n", "chunk": 8}}}
    assert Spec(**values).order_facts()["bucket_by"] == {"column": "n", "chunk": 8}
    assert "bucket_by" not in Spec(source={"path": "/x"}).order_facts()


def test_a_token_target_stands_in_place_of_the_rows():
    values = {"source": {"path": "/x"}, "batch": {"bucket_by": {"column": "n", "chunk": 8, "tokens": 4096}}}
    spec = Spec(**values)
    assert spec.batch.target == 4096
    with pytest.raises(SpecError, match=r"batch\.size follows from batch\.bucket_by\.tokens"):
        spec.batch.per_rank(2)
    known = spec.sized(24)
    assert (known.batch.target, known.batch.per_rank(2)) == (None, 24)
    assert known.order_facts() == spec.order_facts()
    assert known.order_facts()["bucket_by"] == {"column": "n", "chunk": 8}  # the size of a batch is free at a resume
    for name in ("size", "global_size"):
        with pytest.raises(SpecError, match=rf"give {name} or bucket_by\.tokens"):
            Spec(**{**values, "batch": {**values["batch"], name: 8}})


@pytest.mark.parametrize(("sigma", "tokens"), [(0.0, 1000), (0.5, 4096), (0.7, 8192), (1.0, 16384), (1.0, 200_000)])
@pytest.mark.parametrize("world", [1, 4])
def test_batches_have_the_tokens_that_are_asked_for(sigma, tokens, world):
    lengths = np.clip(np.random.default_rng(2).lognormal(4, sigma, 20_000), 1, 2048).astype(np.int64)
    rows = rows_for(lengths, tokens, 32)
    waste = estimate(lengths, Order(0, "window", world, 1), Share(0, world, rows), Bucketing("n", 32))
    assert waste.batch_tokens == pytest.approx(tokens, rel=0.03)
    assert waste.batch_tokens_p99 < 1.15 * tokens


def test_a_token_target_below_the_mean_length_gives_single_rows_and_empty_rows_count_as_one():
    assert rows_for(np.full(10, 700), 512, 4) == 1
    assert rows_for(np.zeros(10, np.int64), 64, 4) == 64


def test_waste_is_estimated_from_a_sample():
    lengths = np.clip(np.random.default_rng(1).lognormal(5, 0.7, 3000), 1, 4096).astype(np.int64)
    waste = estimate(lengths, Order(0, "window", 2, 1), Share(1, 2, 64), Bucketing("n", 32))
    assert 0.04 < waste.padding < 0.08
    assert 0.7 < waste.padding_unsorted < 0.85
    assert 1.0 < waste.batch_tokens_p99 / waste.batch_tokens < 1.1
    real = waste.batch_tokens * (1 - waste.padding)
    assert real == pytest.approx(64 * waste.mean_length, rel=0.05)
    same = estimate(np.full(10, 7), Order(0, "window", 4, 1), Share(0, 2, 8), Bucketing("n", 4))
    assert (same.batch_tokens, same.padding, same.padding_unsorted) == (56, 0, 0)


def test_a_sample_of_lengths_reads_units_that_lie_evenly(tmp_path):
    sizes = np.arange(400)
    pq.write_table(pa.table({"n": sizes, "x": sizes / 2}), tmp_path / "a.parquet", row_group_size=10)
    manifest = manifest_of(tmp_path, columns={"count": "n", "x": "x"})
    found = sample_lengths(manifest, "count", ReadOptions())
    assert len(found) == SAMPLE_UNITS * 10
    assert found[:10].tolist() == list(range(10, 20))  # the second of 40 row groups
    assert found[-1] == 389
