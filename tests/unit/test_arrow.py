"""Arrow columns made by hand are what pyarrow itself makes of the same values, and need no pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.manifest import arrow

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXT, BYTES = st.text(max_size=5), st.binary(max_size=5)
STRUCT = pa.struct([("number", pa.int64()), ("text", pa.string())])
STRUCTS = st.fixed_dictionaries({"number": st.none() | INTEGERS, "text": st.none() | TEXT})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), INTEGERS),
        (pa.string(), TEXT),
        (pa.binary(), BYTES),
        (pa.large_binary(), BYTES),
        (STRUCT, STRUCTS),
        (pa.list_(pa.int64()), st.lists(st.none() | INTEGERS, max_size=3)),
        (pa.list_(STRUCT), st.lists(st.none() | STRUCTS, max_size=3)),
    ],
    ids=str,
)
@given(data=st.data())
def test_a_column_is_what_pyarrow_makes(kind, values, data):
    listed = data.draw(st.lists(st.none() | values, max_size=12))
    made = arrow.column(listed, kind)
    made.validate(full=True)
    assert made.equals(pa.array(listed, kind))
    assert made.to_pylist() == listed


def test_a_table_is_what_pyarrow_makes():
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    rows = [{"a": 1, "b": "x"}, {"a": None, "b": None}]
    assert arrow.table(rows, schema).equals(pa.Table.from_pylist(rows, schema=schema))
    assert arrow.table([], schema).equals(schema.empty_table())


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_numbers_come_back_from_one_chunk_from_several_and_from_none(kind):
    values = np.arange(10, dtype=kind)[::2]
    column = arrow.of_numbers(values)
    assert column.equals(pa.array(values))
    for chunks in ([], [column], [column[1:3]], [column[:0], column[2:], column]):
        found = arrow.numbers(pa.chunked_array(chunks, column.type))
        assert found.dtype == kind
        assert found.tolist() == [int(value) for chunk in chunks for value in chunk.to_pylist()]


def test_listing_and_keeping_a_manifest_loads_no_pandas(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for part in range(2):
        pq.write_table(pa.table({"x": range(10), "y": ["a"] * 10}), data / f"{part}.parquet", row_group_size=4)
    code = f"""
import sys
from ingest.manifest import store
from ingest.manifest.build import build_manifest
from ingest.manifest.listing import list_files
from ingest.manifest.parquet import index_files
from ingest.spec import Spec
source = Spec.load({{"source": {{"path": {str(data)!r}}}}}).inputs[0]
files = list_files(source)
manifest = build_manifest(files, index_files(files, source.columns, source.storage), source)
store.save({str(tmp_path)!r}, "key", manifest)
assert store.load({str(tmp_path)!r}, "key").digest == manifest.digest
print(manifest.rows, "pandas" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["20", "False"]
