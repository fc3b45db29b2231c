"""Where, split, limit and classes on Parquet files: what is kept, what is read for it, and errors that say where."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole import manifest_of, read_all, read_units

from ingest.errors import PlanError, ReadError, SchemaError, SpecError
from ingest.manifest import question
from ingest.manifest.build import build_manifest
from ingest.manifest.listing import list_files
from ingest.manifest.parquet import index_files
from ingest.manifest.question import Target, grouped
from ingest.manifest.selection import Part, select
from ingest.read import answer
from ingest.spec import Source, Split

pytestmark = pytest.mark.unit
VAL = {"take": "val", "of": {"train": 0.5, "val": 0.5}}


@pytest.fixture
def animals(tmp_path):
    """20 rows in two files, row groups of 4: `x` counts up, labels are strings in one, a dictionary in the other."""
    labels = pa.array(["cat", "dog", None, "ant", "cat"] * 2)
    for i, kind in enumerate([labels, labels.dictionary_encode()]):
        table = pa.table({"x": range(10 * i, 10 * i + 10), "label": kind, "y": [0.5, None] * 5})
        pq.write_table(table, tmp_path / f"{i}.parquet", row_group_size=4)
    return tmp_path


def test_units_without_a_row_go_and_ids_stay(animals):
    manifest = manifest_of(animals, where="x >= 5 and x != 6 and x < 13")
    assert manifest.kept_ids().tolist() == [5, 7, 8, 9, 10, 11, 12]
    assert manifest.units.rows.tolist() == [2, 2, 3]
    assert manifest.unit_first_id.tolist() == [4, 8, 10]
    assert (manifest.rows, manifest.data_rows) == (7, 20)
    assert manifest.digest == manifest_of(animals).digest
    path, row = manifest.locate(11)
    assert (path.rpartition("/")[2], row) == ("1.parquet", 1)
    with pytest.raises(PlanError, match="sample 6 is left out"):
        manifest.locate(6)
    with pytest.raises(PlanError, match="sample 3 is left out"):
        manifest.locate(3)
    with pytest.raises(PlanError, match=r"no sample 20: the data set has 20 rows, ids 0 to 19"):
        manifest.locate(20)


def test_filter_columns_need_not_be_read_and_nulls_are_excluded(animals):
    for where, kept in [("y = 0.5", 10), ("y != 0.5", 0), ("not y = 7", 10), ("y is null", 10), ("label < 'b'", 4)]:
        if kept:
            assert len(read_all(animals, columns=["x"], where=where)) == kept
        else:
            with pytest.raises(PlanError, match=r"no row is left of 20: source\.where, 'y != 0\.5', keeps 0 of them"):
                manifest_of(animals, columns=["x"], where=where)


@pytest.mark.parametrize(
    ("one", "other", "where", "kept"),
    [
        (pa.array([0.1, 3], pa.float32()), pa.array([0.1, 0.5], pa.float64()), "x = 0.1", [2]),
        (pa.array([0.1, 3], pa.float32()), pa.array([0.1, 0.5], pa.float64()), "not x > 0.1", [2]),
        (pa.array([1, 2], pa.int8()), pa.array([1, 2**40]), "x in (1, 1099511627776, 300)", [0, 2, 3]),
        (pa.array([250, 2], pa.uint8()), pa.array([-1, 2], pa.int16()), "x < 251 and x > 1.5", [0, 1, 3]),
        (pa.array(["a", None]), pa.nulls(2), "x is null or x > 'b'", [1, 2, 3]),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "c"], pa.large_string()), "x = 'b'", [1, 2]),
        (pa.array(["a", "b"], pa.string_view()), pa.array(["b", "c"], pa.large_string()), "x <= 'b'", [0, 1, 2]),
        (
            pa.array([1000, 2000]).cast(pa.timestamp("ms")), pa.array([1, 1_500_001]).cast(pa.timestamp("us")),
            "x > '1970-01-01T00:00:01.5' or x = '1970-01-01T00:00:01'", [0, 1, 3],
        ),
        (
            pa.array(["1.25"] * 2).cast(pa.decimal128(5, 2)), pa.array(["99999.99", "1"]).cast(pa.decimal128(9, 2)),
            "x >= 1.25", [0, 1, 2],
        ),
    ],
)  # fmt: skip
def test_a_filter_sees_one_type_over_files_that_differ(tmp_path, one, other, where, kept):
    pq.write_table(pa.table({"x": one, "i": [0, 1]}), tmp_path / "a.parquet", row_group_size=1)
    pq.write_table(pa.table({"x": other, "i": [2, 3]}), tmp_path / "b.parquet", row_group_size=1)
    assert manifest_of(tmp_path, columns=["i"], where=where).kept_ids().tolist() == kept


def test_what_is_held_in_memory_follows_what_is_kept(animals):
    whole, some = manifest_of(animals), manifest_of(animals, where="x in (0, 1)")
    assert some.units.memory_bytes[0] == -(-whole.units.memory_bytes[0] // 2)
    assert some.units.bytes[0] == whole.units.bytes[0]


def test_where_comes_before_split_and_split_before_limit(animals):
    ids = np.arange(20)
    expected = [i for i in ids[Part.of(Split(**VAL)).holds(ids)].tolist() if i != 3][:4]
    assert manifest_of(animals, where="x != 3", split=VAL, limit=4).kept_ids().tolist() == expected
    assert read_all(animals, where="x != 3", split=VAL, limit=4, fill={"y": 0})["x"].to_pylist() == expected


def test_golden_split():
    # Which rows are held out for validation depends on it.
    held = Part.of(Split(take="val", of={"train": 0.9, "val": 0.1})).holds(np.arange(100))
    assert np.flatnonzero(held).tolist() == [3, 9, 22, 29, 30, 45, 58, 60, 70, 73, 74, 97]


def test_three_thirds_are_everything():
    of = dict.fromkeys("abc", 1 / 3)
    parts = [Part.of(Split(take=name, of=of)) for name in "abc"]
    assert [parts[0].low, parts[0].high, parts[1].high] == [0, parts[1].low, parts[2].low]
    assert parts[2].high == 2**53


def test_a_split_that_takes_nothing_says_so(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    parts = {"take": "b" if Part.of(Split(take="a", of={"a": 0.5, "b": 0.5})).holds(np.zeros(1, int))[0] else "a"}
    with pytest.raises(PlanError, match=r"no row is left of 1: source\.split takes '\w', a share of 0\.5"):
        manifest_of(tmp_path, split={**parts, "of": {"a": 0.5, "b": 0.5}})


@pytest.mark.parametrize(("limit", "waves"), [(1, 1), (8, 1), (9, 2), (30, 2), (50, 3), (999, 3)])
def test_a_limit_asks_no_more_units_than_it_needs(tmp_path, monkeypatch, limit, waves):
    """40 units of 4 rows, of which the filter keeps 2 each: waves of 4, 16 and the rest."""
    monkeypatch.setattr(question, "WAVE_UNITS", 4)
    pq.write_table(pa.table({"x": [0, 1, 2, 3] * 40}), tmp_path / "a.parquet", row_group_size=4)
    source = Source(path=str(tmp_path), where="x in (1, 2)", limit=limit)
    asked = []

    def look(what, targets):
        asked.append(len(targets))
        return answer.answer(what, targets, source.storage)

    files = list_files(source)
    manifest = build_manifest(files, index_files(files, None, source.storage), source, look)
    kept = [i for i in range(160) if i % 4 in (1, 2)]
    assert manifest.kept_ids().tolist() == kept[:limit]
    assert asked == [4, 16, 20][:waves]
    asked.clear()
    with_split = source.model_copy(update={"split": Split(**VAL)})
    held = [i for i in kept if Part.of(Split(**VAL)).holds(np.array([i]))[0]]
    assert (
        build_manifest(files, index_files(files, None, source.storage), with_split, look).kept_ids().tolist()
        == (held[:limit])
    )


def test_a_limit_and_a_split_read_nothing(tmp_path):
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet", row_group_size=10)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4:200] = bytes(196)
    (tmp_path / "a.parquet").write_bytes(data)
    assert manifest_of(tmp_path, limit=15).kept_ids().tolist() == list(range(15))
    assert 20 < manifest_of(tmp_path, split=VAL).rows < 80


def test_row_groups_that_statistics_decide_are_not_read(tmp_path):
    table = pa.table({"x": range(100), "k": [f"{i:03}" for i in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10, use_dictionary=False)
    group = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(3)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    start = group.column(0).data_page_offset
    data[start : start + group.total_byte_size] = bytes(group.total_byte_size)
    (tmp_path / "a.parquet").write_bytes(data)
    assert manifest_of(tmp_path, where="x < 25").rows == 25
    assert manifest_of(tmp_path, where="x >= 30 and k < '040' or k >= '095'").rows == 15
    with pytest.raises(ReadError, match="row group 3 cannot be read"):
        manifest_of(tmp_path, where="x < 35")


def test_files_that_directories_decide_are_not_opened(tmp_path):
    for day in (1, 2, 3):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"x": [day] * 5}), tmp_path / f"day={day}" / "a.parquet")
    asked = []

    def look(_, targets):
        asked.append([target.entry.path for target in targets])
        raise LookedError

    def manifest(where):
        source = Source(path=str(tmp_path), columns=["x"], where=where)
        files = list_files(source)
        return build_manifest(files, index_files(files, source.columns, source.storage), source, look)

    assert manifest("day in (1, 3)").kept_ids().tolist() == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert asked == []
    with pytest.raises(LookedError):  # raised by `look`
        manifest("day = 2 and x = 2")
    assert asked == [["day=2/a.parquet"]]


class LookedError(Exception):
    pass


def test_a_filter_that_does_not_fit_is_refused_before_anything_is_read(animals):
    for where, said in [
        ("lable = 'cat'", r"at character 1, 'lable = 'cat'': there is no column 'lable'\. Did you mean 'label'\?"),
        ("x = 'cat'", r"column 'x' has type int64, and 'cat' is a string"),
        ("label = 3", r"column 'label' has type string, and 3 is a number"),
    ]:
        with pytest.raises(SpecError, match=said):
            manifest_of(animals, where=where)


def test_a_file_that_changes_while_it_is_asked_is_named(animals, monkeypatch):
    whole = answer.READERS["parquet"]
    monkeypatch.setitem(answer.READERS, "parquet", whole._replace(columns=lambda *a: whole.columns(*a).slice(1)))
    with pytest.raises(ReadError, match=r"the file has changed since it was listed: 4 rows then, 3 now .*0\.parquet"):
        manifest_of(animals, where="y = 0.5")


def test_a_row_group_that_has_other_rows_than_were_filtered_is_an_error(animals):
    manifest = manifest_of(animals, where="x < 3", columns=["x"])
    table = pq.read_table(animals / "0.parquet")
    pq.write_table(table, animals / "0.parquet", row_group_size=5)
    changed = replace(manifest, files=manifest_of(animals).files)  # a store without versions of its files
    with pytest.raises(ReadError, match="row group 0 had 4 rows then, and has 5 now"):
        read_units(changed)
    assert read_units(manifest_of(animals, where="x < 3", columns=["x"])).to_pydict() == {"x": [0, 1, 2]}


def test_classes_found_are_sorted_and_data_wide(animals):
    manifest = manifest_of(animals, classes={"label": "auto"}, fill={"label": -1})
    assert manifest.classes == {"label": ("ant", "cat", "dog")}
    assert manifest.schema.field("label").type == pa.int64()
    found = read_all(animals, classes={"label": "auto"}, fill={"label": -1})["label"]
    assert found.to_pylist() == [1, 2, -1, 0, 1] * 4
    # Neither a filter nor a limit moves them: training and validation agree.
    some = {"where": "label = 'dog'", "limit": 2, "classes": {"label": "auto"}}
    assert manifest_of(animals, **some).classes == manifest.classes
    assert read_all(animals, **some)["label"].to_pylist() == [2, 2]


def test_declared_classes_keep_their_order(animals):
    declared = {"columns": {"kind": "label"}, "classes": {"kind": ["dog", "cat", "ant", "bee"]}}
    got = read_all(animals, where="label is not null", **declared)
    assert got["kind"].to_pylist() == [1, 0, 2, 1] * 4
    assert got["kind"].type == pa.int64()


def test_a_label_that_is_no_class_names_value_file_and_row(animals):
    with pytest.raises(ReadError) as caught:
        read_all(animals, where="x > 10", classes={"label": ["cat", "dogs"]}, fill={"label": 0})
    error = caught.value
    assert "column 'label' is 'dog' here, which is none of the 2 classes" in error.message
    assert "Did you mean 'dogs'?" in str(error)
    assert (error.path.rpartition("/")[2], error.row) == ("1.parquet", 1)


def test_a_null_label_wants_a_number(animals):
    with pytest.raises(ReadError, match=r"column 'label' is null here.*row 2"):
        read_all(animals, classes={"label": "auto"})


def test_classes_from_bytes_and_from_directories(tmp_path):
    for key in ("b", "a"):
        (tmp_path / f"kind={key}").mkdir()
        table = pa.table({"l": pa.array([b"q", key.encode()], pa.large_binary())})
        pq.write_table(table, tmp_path / f"kind={key}" / "x.parquet")
    got = read_all(tmp_path, classes={"l": "auto", "kind": "auto"})
    assert got.to_pydict() == {"l": [2, 0, 2, 1], "kind": [0, 0, 1, 1]}


@pytest.mark.parametrize(
    ("column", "classes", "said"),
    [
        (pa.array([1, 2]), {"l": "auto"}, "source.classes names 'l', whose column has type int64"),
        (pa.array(["a", "b"]), {"m": "auto"}, "source.classes names 'm', which is no output column"),
        (pa.array([b"a", b"\xff"]), {"l": "auto"}, r"column 'l' holds b'\xff', which is no text"),
        (pa.array(["a", "b", "c"]), {"l": "auto"}, "column 'l' has more than 2 distinct values"),
    ],
)
def test_what_is_no_label_is_refused(tmp_path, monkeypatch, column, classes, said):
    monkeypatch.setattr(question, "MAX_CLASSES", 2)
    pq.write_table(pa.table({"l": column}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError) as caught:
        manifest_of(tmp_path, classes=classes)
    assert said in str(caught.value)


def test_facts_follow_the_classes_found(animals):
    facts = manifest_of(animals, classes={"label": "auto"}).content_facts()
    declared = {"label": ["ant", "cat", "dog"]}
    assert facts == manifest_of(animals, classes=declared).content_facts()
    assert facts != manifest_of(animals, classes={"label": ["cat", "ant", "dog"]}).content_facts()
    assert manifest_of(animals).content_facts() == {}


@pytest.mark.parametrize(
    ("rows", "files", "sizes"),
    [([5] * 3, 1, [3]), ([60, 60, 60], 1, [1, 1, 1]), ([200, 1], 1, [1, 1]), ([1] * 10, 10, [4, 4, 2]), ([], 1, [0])],
)
def test_tasks_hold_rows_and_files_up_to_a_limit(monkeypatch, rows, files, sizes):
    monkeypatch.setattr(question, "TASK_ROWS", 100)
    monkeypatch.setattr(question, "TASK_FILES", 4)
    entries = [SimpleNamespace() for _ in range(files)]
    targets = [Target(i, entries[i % files], i, n) for i, n in enumerate(rows)]
    assert [len(group) for group in grouped(targets)] == sizes


def test_tasks_of_records_hold_bytes_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(question, "TASK_BYTES", 100)
    targets = [Target(i, None, i, 1, size=size) for i, size in enumerate([40, 40, 40, 500, 10, 10])]
    assert [[target.size for target in group] for group in grouped(targets)] == [[40, 40], [40], [500], [10, 10]]


def test_a_billion_rows_are_split_and_limited_cheaply():
    unit_rows = np.full(100_000, 10_000)
    began = time.process_time()
    left, rows, selection = select(unit_rows, None, None, 123_456_789, "digest")
    assert (len(left), int(rows.sum()), len(selection.bits)) == (12_346, 123_456_789, 0)
    few = select(unit_rows[:500], None, Split(**VAL), None, "digest")
    assert len(few[2].bits) == 0
    assert abs(int(few[1].sum()) - 2_500_000) < 10_000
    assert time.process_time() - began < 5  # 0.2 s on a slow core
