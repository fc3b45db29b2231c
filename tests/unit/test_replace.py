"""Bad samples that are replaced: who stands for whom, what is counted, and where it ends."""

from __future__ import annotations

import io
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.engine import replace
from ingest.errors import SampleError, SourceError
from ingest.loader.quarantine import FILE_ROWS, SCHEMA, Quarantine, Record, decode, distinct, encode
from ingest.manifest.model import FileEntry
from ingest.read.mark import MARK
from ingest.read.marks import read_marked
from ingest.read.parquet import Piece
from ingest.spec import Storage


def test_the_next_healthy_row_stands_for_a_bad_one_round_the_end():
    assert replace.donors(6, {1, 2, 5}).tolist() == [0, 3, 3, 3, 4, 0]
    assert replace.donors(3, ()).tolist() == [0, 1, 2]


def marked(values, texts):
    return pa.table({"x": values, MARK: pa.array(texts, pa.string())})


def test_marked_rows_are_replaced_across_tables_and_described():
    one, two = marked([10, None, 12], [None, "torn", None]), pa.table({"x": [20, 21]})
    pieces = [(one, np.array([2, 1])), (two, np.array([1, 0]))]
    found = replace.collate_healthy(pieces, np.array([5, 6, 7, 8]))
    assert found["x"].tolist() == [12, 21, 21, 20]
    assert found[replace.BAD] == [replace.Bad(1, 2, 6, "torn", b"")]
    assert set(replace.collate_healthy([(two, np.array([0]))], np.array([1]))) == {"x"}


def test_a_batch_without_a_healthy_row_is_an_error_that_says_the_first():
    with pytest.raises(SampleError, match=r"none of the 2 rows.*torn") as raised:
        replace.collate_healthy([(marked([1, 2], ["torn", "gone"]), np.array([0, 1]))], np.array([7, 9]))
    assert raised.value.sample_id == 7


def test_donors_are_copied_in_every_array():
    arrays = {"image": np.arange(12).reshape(3, 2, 2), "name": np.array(["a", "b", "c"], object)}
    replace.fill(arrays, [replace.Bad(0, 1, 9, "bad", b"")])
    assert arrays["image"][0].tolist() == arrays["image"][1].tolist() == [[4, 5], [6, 7]]
    assert arrays["name"].tolist() == ["b", "b", "c"]


def entry(path):
    return FileEntry(path.name, str(path), path.stat().st_size)


def test_a_damaged_unit_gives_marked_nulls_and_the_others_their_rows(tmp_path):
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    for path in (good, bad):
        pq.write_table(pa.table({"x": np.arange(100)}), path, use_dictionary=False, write_page_checksum=True)
    data = bytearray(bad.read_bytes())
    data[200:264] = b"\xa5" * 64
    bad.write_bytes(data)
    schema, columns = pa.schema([("x", pa.int64())]), {"x": "x"}
    pieces = [Piece(entry(good), 0, slice(0, 100)), Piece(entry(bad), 0, np.array([3, 5]))]
    table = read_marked(pieces, schema, columns, Storage(), {}, {})
    assert table["x"].to_pylist() == [*range(100), None, None]
    assert table[MARK][:100].null_count == 100
    assert all("damaged" in text for text in table[MARK][100:].to_pylist())
    assert read_marked(pieces[:1], schema, columns, Storage(), {}, {}).column_names == ["x"]


def record(sample, epoch=0, error="torn"):
    return Record(sample, epoch, "s3://b/f", sample, error, b"\xff\xd8")


def quarantine(kept=(), budget=0.5, rows=10, counts=None):
    files, seen = {}, counts or {}

    def count(epoch, ids):
        seen.setdefault(epoch, set()).update(ids)
        return len(seen[epoch])

    return Quarantine("run-rank0", files.__setitem__, kept, budget=budget, rows=rows, count=count), files


def kept_in(files):
    return [each for name, data in sorted(files.items()) for each in decode(name, data)]


def test_each_bad_sample_is_kept_and_counted_once_over_retries_and_attempts():
    first, files = quarantine()
    for _ in range(2):
        first.add([record(3), record(4)])
    first.add([record(3, epoch=1)])
    first.flush()
    assert first.total == 3
    assert kept_in(files) == [record(3), record(4), record(3, epoch=1)]
    second, more = quarantine(kept=kept_in(files))
    second.add([record(4), record(5)])
    second.flush()
    assert (second.total, kept_in(more)) == (2, [record(5)])
    assert distinct([*kept_in(files), *kept_in(more), record(4)]) == [
        record(3),
        record(4),
        record(5),
        record(3, epoch=1),
    ]


def test_the_budget_counts_what_other_ranks_and_earlier_attempts_found():
    counts = {0: {7, 8, 9}}
    rank, files = quarantine(counts=counts)
    rank.add([record(1), record(2)])
    with pytest.raises(SampleError, match=r"6 bad samples in epoch 0.*0\.5 of 10 rows is 5.*row 3: torn"):
        rank.add([record(3)])
    assert kept_in(files) == [record(1), record(2), record(3)]
    resumed, _ = quarantine(kept=[record(n) for n in range(5)])
    resumed.resume(0)
    with pytest.raises(SampleError, match="6 bad samples"):
        resumed.add([record(9)])
    fresh, _ = quarantine(kept=[record(n) for n in range(5)])
    fresh.add([record(9)])


def test_a_full_file_is_closed_and_what_is_no_quarantine_file_is_named():
    rank, files = quarantine(budget=1.0, rows=10**9)
    rank.add([record(n) for n in range(FILE_ROWS)])
    rank.add([record(FILE_ROWS)])
    rank.flush()
    assert [len(list(decode(name, data))) for name, data in sorted(files.items())] == [FILE_ROWS, 1]
    with pytest.raises(SourceError, match=r"not a quarantine file.*x\.parquet"):
        list(decode("x.parquet", b"nothing"))
    assert list(decode("x", encode([]))) == []


@pytest.mark.parametrize("change", [{"sample_id": None}, {"epoch": None}, {"path": None}, {"epoch": -1}])
def test_a_foreign_file_with_the_same_columns_is_no_quarantine_file(change):
    table = pa.Table.from_pylist([{**asdict(record(1)), **change}], schema=SCHEMA)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    with pytest.raises(SourceError, match=r"not a quarantine file.*x\.parquet"):
        list(decode("x.parquet", sink.getvalue()))
