"""Rows to tf.Example records: bytes that TensorFlow reads, and rows that come back as they went."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.errors import ReadError, SchemaError
from ingest.manifest.records import scan
from ingest.read.example import Feature, parse
from ingest.spec import Storage
from ingest.write.example import encode
from ingest.write.part import convert_part

pytestmark = pytest.mark.unit


def test_a_record_has_the_bytes_that_protobuf_gives():
    record = encode(pa.table({"i": pa.array([3]), "f": pa.array([[0.5]], pa.list_(pa.float32())), "b": [b"xy"]}))
    # Example{features{feature{key:"b" value{bytes_list{value:"xy"}}} ... in order of their keys}}
    payload = bytes.fromhex(
        "0a28" "0a0b" "0a0162" "1206" "0a04" "0a027879"
        "0a0d" "0a0166" "1208" "1206" "0a04" "0000003f"
        "0a0a" "0a0169" "1205" "1a03" "0a0103"
    )  # fmt: skip
    assert record.tobytes()[:8] == len(payload).to_bytes(8, "little")
    assert record.tobytes()[12:-4] == payload
    assert len(scan(record, check_payload=True).bad) == 0


integers = st.lists(st.one_of(st.none(), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)), min_size=1)


@settings(max_examples=40, deadline=None)
@given(ints=integers, data=st.data())
def test_rows_come_back_as_they_went(ints, data):
    rows = len(ints)
    texts = data.draw(st.lists(st.binary(max_size=200), min_size=rows, max_size=rows))
    floats = data.draw(st.lists(st.floats(width=32, allow_nan=False), min_size=rows, max_size=rows))
    table = pa.table(
        {"i": pa.array(ints, pa.list_(pa.int64())), "t": pa.array(texts), "f": pa.array(floats, pa.float32())}
    )
    content = encode(table)
    frames = scan(content, check_payload=True)
    assert (len(frames.starts), frames.end, len(frames.bad)) == (rows, len(content), 0)
    features = [Feature("i", "int64", (None,)), Feature("t", "bytes"), Feature("f", "float")]
    back = parse(content, frames.starts, frames.stops, features)
    assert back["i"].to_pylist() == [row or [] for row in ints]  # a null list is a feature that is not there
    assert back["t"].to_pylist() == texts
    assert back["f"].to_pylist() == floats


def test_a_null_is_a_feature_that_is_not_there():
    content = encode(pa.table({"i": pa.array([7, None, 8])}))
    frames = scan(content, check_payload=True)
    back = parse(content, frames.starts, frames.stops, [Feature("i", "int64", (), -1)])
    assert back["i"].to_pylist() == [7, -1, 8]


@pytest.mark.parametrize(
    ("column", "match"),
    [
        (pa.array([0.1]), "no float32"),
        (pa.array([2**63], pa.uint64()), "does not fit int64"),
        (pa.array([[1, None]]), "null inside a list"),
        (pa.array([{"a": 1}]), "holds integers, floats, bytes"),
    ],
)
def test_what_has_no_place_in_an_example_is_refused(column, match):
    with pytest.raises(SchemaError, match=match):
        encode(pa.table({"x": column}))


def rows_of(table):
    return table


TABLE = pa.table(
    {
        "i": pa.array([1, None, -3], pa.int32()),
        "nan": pa.array([float("nan"), 1.0, None], pa.float32()),
        "flag": [True, False, None],
        "text": ["a", None, "é"],
        "list": pa.array([[1, 2], None, []], pa.list_(pa.int16())),
        "fixed": pa.array([[1.0, float("nan")]] * 3, pa.list_(pa.float32(), 2)),
    }
)


@pytest.mark.parametrize("target", ["parquet", "tfrecord"])
def test_a_part_is_written_and_compared(tmp_path, target):
    url = str(tmp_path / f"part.{target}")
    told = convert_part(rows_of, (TABLE,), url, target, Storage(), compare=True)
    assert told["rows"].to_pylist() == [3]
    assert told["bytes"].to_pylist() == [(tmp_path / f"part.{target}").stat().st_size]


@pytest.mark.parametrize("target", ["parquet", "tfrecord"])
def test_a_part_that_differs_is_an_error(tmp_path, target, monkeypatch):
    other = TABLE.set_column(0, "i", pa.array([1, None, -4], pa.int32()))
    name = "encode" if target == "tfrecord" else "_parquet"
    write = encode if target == "tfrecord" else __import__("ingest.write.part", fromlist=["_parquet"])._parquet
    monkeypatch.setattr(f"ingest.write.part.{name}", lambda _: write(other))
    with pytest.raises(ReadError, match="column 'i' does not come back"):
        convert_part(rows_of, (TABLE,), str(tmp_path / "part"), target, Storage(), compare=True)


def test_no_rows_make_an_empty_file():
    assert len(encode(pa.table({"x": pa.array([], pa.int64())}))) == 0
    assert np.array_equal(scan(np.zeros(0, np.uint8), check_payload=True).starts, [])
