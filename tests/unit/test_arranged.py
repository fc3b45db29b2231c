"""Rows in the order of delivery: the reader arranges what the plan says, and slices give what gathering gives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import first_ids, sizes_of

from ingest.augment.collate import collate
from ingest.errors import ReadError, SchemaError
from ingest.loader.arranged import MOST_BATCHES, Arranged, join, join_run, run_length
from ingest.loader.ragged import Ragged, empty_lists, shape
from ingest.plan.layout import EpochLayout, Order
from ingest.plan.reads import gather_reads
from ingest.plan.schedule import Schedule, Share
from ingest.read.arranged import read_arranged

pytestmark = pytest.mark.unit


class Rows(NamedTuple):
    unit: int
    rows: np.ndarray | slice


def fake_read(pieces, unit_rows):
    """A table whose only column tells unit and row apart, in two chunks where there are two units."""
    kept = [np.arange(unit_rows[p.unit])[p.rows] if isinstance(p.rows, slice) else p.rows for p in pieces]
    return pa.concat_tables([pa.table({"x": p.unit * 1000 + rows}) for p, rows in zip(pieces, kept, strict=True)])


@given(
    unit_rows=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    lanes=st.sampled_from([1, 2, 4, 8]),
    interleave=st.integers(1, 4),
    shuffle=st.sampled_from(["none", "window", "full"]),
    epoch=st.integers(0, 3),
)
def test_a_read_arranges_its_rows_as_the_plan_delivers_them(unit_rows, lanes, interleave, shuffle, epoch):
    unit_rows = np.array(unit_rows)
    layout = EpochLayout(unit_rows, Order(7, shuffle, lanes, interleave), epoch)
    first = first_ids(unit_rows)

    def ids_of(unit, rows):
        return first[unit] + (np.arange(unit_rows[unit]) if rows is None else rows)

    for read in gather_reads(Schedule(layout, Share(0, 1, 4, "keep")), sizes_of(unit_rows)):
        pieces = [
            Rows(unit, slice(0, int(unit_rows[unit])) if rows is None else rows) for unit, rows in read.units.items()
        ]
        table = read_arranged(
            read.arrangement(layout), tuple(read.units.values()), first[list(read.units)].tolist(), fake_read, pieces,
            unit_rows,
        )  # fmt: skip
        assert len(table) == read.rows(layout)
        for window, start in zip(read.windows, read.window_starts(layout), strict=True):
            _, ids = read.window_rows(layout, ids_of, window)
            rows = table.slice(start, len(ids))
            assert rows["sample_id"].to_pylist() == ids.tolist()
            unit = np.searchsorted(first, ids, side="right") - 1
            assert rows["x"].to_pylist() == (unit * 1000 + ids - first[unit]).tolist()


def table_of(start, rows, seed):
    random = np.random.default_rng(seed)
    lists = [random.integers(0, 9, random.integers(0, 4)).tolist() for _ in range(rows)]
    return pa.table(
        {
            "sample_id": np.arange(start, start + rows),
            "f": pa.array([None if i % 5 == 0 else i / 2 for i in range(rows)], pa.float32()),
            "flag": [i % 2 == 0 for i in range(rows)],
            "list": pa.array([None if i == 2 else v for i, v in enumerate(lists)], pa.list_(pa.int64())),
            "fixed": pa.array([[i, i + 1] for i in range(rows)], pa.list_(pa.int32(), 2)),
            "text": [f"t{i}" for i in range(rows)],
            "when": pa.array(range(rows), pa.timestamp("us")),
            "nested": [[[i], [i, i]] for i in range(rows)],
            "blob": [bytes([i]) for i in range(rows)],
        }
    )


def same(a, b):
    if isinstance(a, np.ndarray) and a.dtype == object:
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b


def test_slices_give_what_gathering_gives():
    one, two = table_of(0, 20, 1), table_of(100, 30, 2)
    parts = [(one, slice(3, 9)), (two, slice(0, 12)), (one, slice(0, 3))]
    joined = shape(join([(Arranged(table), rows) for table, rows in parts]), "arrays")
    gathered = collate([(table, np.arange(rows.start, rows.stop)) for table, rows in parts])
    assert list(joined) == list(gathered)
    for name, array in gathered.items():
        same(joined[name], array)


def test_some_rows_give_what_gathering_gives():
    one, two = table_of(0, 20, 1), table_of(100, 30, 2)
    parts = [(one, np.array([1, 2, 7, 19])), (two, slice(4, 6)), (two, np.array([0, 29])), (one, np.array([0]))]
    joined = shape(join([(Arranged(table), rows) for table, rows in parts]), "arrays")
    listed = [(table, np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows) for table, rows in parts]
    for name, array in collate(listed).items():
        same(joined[name], array)


def wide(start, rows):
    """A table as readers make them: many columns of one type side by side, in one buffer after the other."""
    numbers = {f"i{j}": np.arange(start, start + rows) * 100 + j for j in range(5)}
    floats = {f"f{j}": (np.arange(start, start + rows) + j / 8).astype(np.float32) for j in range(3)}
    table = pa.table({**numbers, **floats, "list": [[i] * (i % 3) for i in range(rows)], "text": ["x"] * rows})
    return table.take(pa.array(np.arange(rows)))


@pytest.mark.parametrize("make", [wide, lambda start, rows: table_of(start, rows, 3)], ids=["wide", "every type"])
def test_batches_that_go_on_are_joined_as_each_alone(make):
    one, two = Arranged(make(0, 64)), Arranged(make(100, 90))
    batches = [[(one, slice(4 * k, 4 * k + 4)), (two, slice(5 + 7 * k, 12 + 7 * k))] for k in range(12)]
    assert run_length(batches) == MOST_BATCHES
    for count in (1, 3, MOST_BATCHES):
        for parts, arrays in zip(batches, join_run(batches[:count]), strict=False):
            got = shape(arrays, "arrays")
            want = collate([(part.table, np.arange(rows.start, rows.stop)) for part, rows in parts])
            assert list(got) == list(want)
            for name, array in want.items():
                same(got[name], array)


def test_equally_distant_columns_are_one_band():
    buffer = pa.py_buffer(np.arange(40).tobytes())
    columns = {f"c{j}": pa.Array.from_buffers(pa.int64(), 8, [None, buffer.slice(80 * j, 64)]) for j in range(4)}
    (band,) = Arranged(pa.table(columns)).bands.values()
    assert band.names == ("c0", "c1", "c2", "c3")
    assert band.values.tolist() == [list(range(10 * j, 10 * j + 8)) for j in range(4)]
    shuffled = pa.table({name: columns[name] for name in ("c0", "c3", "c1", "c2")})
    assert [b.names for b in Arranged(shuffled).bands.values()] == [("c0", "c3"), ("c1", "c2")]


def test_a_run_ends_where_a_part_does_not_go_on():
    one, two = Arranged(wide(0, 50)), Arranged(wide(50, 50))
    begin = [(one, slice(0, 4)), (two, slice(0, 4))]
    assert run_length([begin]) == 1
    for other in (
        [(one, slice(4, 8)), (one, slice(4, 8))],  # of another table
        [(one, slice(4, 8)), (two, slice(5, 9))],  # with a gap
        [(one, slice(4, 7)), (two, slice(4, 8))],  # of another size
        [(one, slice(4, 8))],  # fewer
        [(one, np.arange(4, 8)), (two, slice(4, 8))],  # listed
    ):
        assert run_length([begin, other]) == 1
    assert run_length([begin, [(one, slice(4, 8)), (two, slice(4, 8))], begin]) == 2


def test_a_null_integer_is_refused_in_slices_too():
    table = pa.table({"n": pa.array([1, None], pa.int64())})
    with pytest.raises(ReadError, match="nulls"):
        Arranged(table)


def ragged():
    return Ragged(np.array([1, 2, 3, 4]), np.array([0, 2, 2, 3, 4]), np.array([False, True, False, False]))


def test_ragged_as_arrays_of_their_own():
    rows = shape({"h": ragged()}, "arrays")["h"]
    assert [None if row is None else row.tolist() for row in rows] == [[1, 2], None, [3], [4]]


def test_ragged_padded_has_lengths_beside_it():
    out = shape({"h": ragged()}, "padded")
    assert out["h"].tolist() == [[1, 2], [0, 0], [3, 0], [4, 0]]
    assert out["h_length"].tolist() == [2, 0, 1, 1]


def test_ragged_as_values_and_offsets():
    out = shape({"h": ragged()}, "offsets")
    assert (out["h"].tolist(), out["h_offsets"].tolist()) == ([1, 2, 3, 4], [0, 2, 2, 3, 4])


@pytest.mark.parametrize("form", ["padded", "offsets"])
def test_an_object_array_of_lists_is_shaped_like_its_ragged_twin(form):
    rows = {"h": ragged().arrays(), "n": np.arange(4)}
    for name, array in shape({"h": ragged(), "n": np.arange(4)}, form).items():
        same(shape(rows, form)[name], array)


def test_images_of_different_sizes_and_python_values_stay_as_they_are():
    images = np.fromiter([np.zeros((2, 3, 3)), np.zeros((1, 1, 3))], dtype=object, count=2)
    text = np.array(["a", "b"], object)
    out = shape({"image": images, "text": text}, "padded")
    assert out["image"] is images
    assert out["text"] is text


@pytest.mark.parametrize(("form", "beside"), [("padded", "x_length"), ("offsets", "x_offsets")])
def test_a_batch_of_null_lists_alone_has_the_form_of_any_other(form, beside):
    schema = pa.schema([("x", pa.list_(pa.float32())), ("nested", pa.list_(pa.list_(pa.int8())))])
    nulls = np.array([None, None], object)
    out = shape({"x": nulls, "nested": nulls}, form, empty_lists(schema, form))
    assert list(out) == ["x", beside, "nested"]
    assert (out["x"].dtype, out["x"].size) == (np.float32, 0)
    assert out[beside].tolist() == ([0, 0] if form == "padded" else [0, 0, 0])


@pytest.mark.parametrize(("form", "beside"), [("padded", "x_length"), ("offsets", "x_offsets")])
def test_what_lies_beside_lists_takes_no_columns_place(form, beside):
    schema = pa.schema([("x", pa.list_(pa.int8())), (beside, pa.int64())])
    with pytest.raises(SchemaError, match=f"batch.ragged: {form} puts '{beside}' beside the lists of 'x'"):
        empty_lists(schema, form)
    assert list(empty_lists(schema, "arrays")) == ["x"]
