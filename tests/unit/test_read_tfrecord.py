"""TFRecord from files to tables: what TensorFlow wrote is read as TensorFlow reads it, and damage names its place."""

from __future__ import annotations

import gzip
import json
import shutil
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from whole import manifest_of, read_units

from ingest.errors import ReadError, RecordError, SchemaError, SourceError, SpecError
from ingest.manifest import store, tfrecord
from ingest.manifest.listing import list_files
from ingest.manifest.model import refuse_damage
from ingest.manifest.records import frame, scan
from ingest.read.example import BAD_COLUMN
from ingest.read.feature import varint
from ingest.spec import Source
from tests.examples import entry, example, feature, field, floats, ints, strings

pytestmark = pytest.mark.unit

DATA = Path(__file__).parents[1] / "data"
CLICKS = json.loads((DATA / "clicks.json").read_text(encoding="utf-8"))
CLICK_TYPES = {
    "label": {"dtype": "int64"},
    "numbers": {"dtype": "float32", "shape": [3]},
    "category": {"dtype": "int64"},
    "history": {"dtype": "int64", "shape": [None]},
    "query": {"dtype": "string"},
    "tags": {"dtype": "string", "shape": [None]},
}


def read_all(path, **source):
    return read_units(manifest_of(path, **source), fill=source.get("fill", {}))


def write(path, records, pack=bytes):
    path.write_bytes(pack(b"".join(map(frame, records))))
    return path


def numbered(n, first=0):
    return [example(entry(b"x", ints(first + i)), entry(b"y", floats(i / 2))) for i in range(n)]


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(tfrecord, "UNIT_BYTES", 400)


@pytest.mark.parametrize("name", ["clicks.tfrecord-00000-of-00001", "clicks-gzip", "clicks-zlib"])
def test_what_tensorflow_wrote_is_read_as_it_reads_it(name):  # T02, T07, T11
    table = read_all(DATA / name, schema=CLICK_TYPES)
    table.validate(full=True)
    assert table.select(list(CLICK_TYPES)).to_pylist() == CLICKS
    assert table.schema.field("tags").type == pa.large_list(pa.large_string())


def test_types_are_found_where_none_are_declared():
    manifest = manifest_of(DATA / "clicks-gzip")
    assert {name: (kind.dtype, kind.shape) for name, kind in manifest.features.items()} == {
        "category": ("int64", ()),
        "history": ("int64", (None,)),
        "label": ("int64", ()),
        "numbers": ("float32", (3,)),
        "query": ("bytes", ()),
        "tags": ("bytes", (None,)),
    }
    rows = read_units(manifest).to_pylist()
    assert [row["history"] for row in rows] == [row["history"] for row in CLICKS]
    assert [row["query"].decode() for row in rows] == [row["query"] for row in CLICKS]


def test_columns_choose_and_rename_features():
    table = read_all(DATA / "clicks-zlib", columns={"y": "label", "x": "numbers"})
    assert table.column_names == ["y", "x"]
    assert table["y"].to_pylist() == [row["label"] for row in CLICKS]


def test_a_type_is_found_anywhere_in_the_data_set():  # T09
    table = read_all(DATA / "sparse-*")
    assert table["y"].type == pa.large_list(pa.float32())
    assert table["y"].to_pylist() == [[], [], [], [0.0, 0.0], [0.5, 1.0], [1.0, 2.0]]
    declared = {"y": {"dtype": "float32", "shape": [2], "default": -1}}
    assert read_all(DATA / "sparse-*", schema=declared)["y"].to_pylist()[3:] == [[0.0, 0.0], [0.5, 1.0], [1.0, 2.0]]


def test_a_declared_type_wins(tmp_path):  # T09
    write(tmp_path / "a.tfrecord", [example(entry(b"x", ints()))])
    assert read_all(tmp_path, schema={"x": {"dtype": "float32", "shape": [None]}})["x"].type.value_type == pa.float32()
    (table,) = [read_all(tmp_path)]
    assert table["x"].type.value_type == pa.int64()


def test_lists_of_one_and_of_three_have_one_type():  # T10
    assert read_all(DATA / "lists.tfrecord").to_pydict() == {"x": [[1], [2, 3, 4], [5]]}


def test_a_sequence_example_is_refused_by_name():  # T17
    with pytest.raises(SchemaError, match="SequenceExample") as caught:
        read_all(DATA / "sequence.tfrecord")
    assert caught.value.path == str(DATA / "sequence.tfrecord")
    with pytest.raises(RecordError, match=r"record 0 at byte 0 .*SequenceExample") as caught:
        read_all(DATA / "sequence.tfrecord", schema={"id": {"dtype": "int64"}}, columns=["id"])
    assert (caught.value.path, caught.value.row) == (str(DATA / "sequence.tfrecord"), 0)


def test_records_without_a_feature_are_refused_as_no_column_could_give_them_back(tmp_path):
    path = write(tmp_path / "a.tfrecord", [example(), b""])
    with pytest.raises(SchemaError, match=r"2 rows and not one column.*a\.tfrecord"):
        manifest_of(path)
    table = read_all(path, schema={"x": {"dtype": "int64", "default": 7}})
    assert table["x"].to_pylist() == [7, 7]


def test_an_empty_file_has_no_rows(tmp_path):
    manifest = manifest_of(DATA / "empty.tfrecord", schema={"x": {"dtype": "int64"}})
    assert (manifest.rows, manifest.schema) == (0, pa.schema([("x", pa.int64())]))
    assert manifest_of(DATA / "empty.tfrecord").rows == 0


def test_the_name_of_a_feature_is_no_utf8(tmp_path):  # T19
    write(tmp_path / "a.tfrecord", [*numbered(2), example(entry(b"\xf0\x80", ints(1)), entry(b"x", ints(2)))])
    with pytest.raises(RecordError, match=r"record 2 at byte .* not UTF-8"):
        read_all(tmp_path, columns=["x"], schema={"x": {"dtype": "int64"}})


def test_every_unit_and_row_is_read_alone(tmp_path, small_units):
    write(tmp_path / "a.tfrecord", numbered(40))
    write(tmp_path / "b.tfrecord", numbered(25, 40), gzip.compress)
    manifest = manifest_of(tmp_path)
    units = manifest.units
    assert manifest.rows == 65
    assert units.file.tolist() == [0] * (len(units) - 1) + [1]
    assert units.ordinal.tolist() == [*range(len(units) - 1), 0]
    assert len(units) > 3
    for unit in range(len(units)):
        first, count = int(manifest.unit_first_id[unit]), int(units.rows[unit])
        assert read_units(manifest, {unit: None})["x"].to_pylist() == list(range(first, first + count))
        chosen = np.array([0, count // 2, count - 1])
        assert read_units(manifest, {unit: chosen})["x"].to_pylist() == (first + chosen).tolist()
    assert manifest.locate(64) == (str(tmp_path / "b.tfrecord"), 24)


def test_a_limit_cuts_the_last_unit(tmp_path, small_units):
    write(tmp_path / "a.tfrecord", numbered(40))
    manifest = manifest_of(tmp_path, limit=33)
    assert manifest.rows == 33
    assert read_units(manifest)["x"].to_pylist() == list(range(33))


def test_a_compressed_file_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("ingest.manifest.stream.inflate.__kwdefaults__", {"most_bytes": 500})
    write(tmp_path / "a.tfrecord", numbered(200), gzip.compress)
    table = read_all(tmp_path)
    assert table["x"].num_chunks > 5
    assert table["x"].to_pylist() == list(range(200))


def test_a_store_far_away_is_read_in_blocks_ahead_of_each_other(monkeypatch, small_units):
    monkeypatch.setattr("ingest.manifest.stream.RecordStream.__init__.__defaults__", (1000, None, None))
    root = f"/{uuid.uuid4().hex}"
    files = {"a.tfrecord": bytes, "b.tfrecord": gzip.compress, "c.tfrecord": lambda data: data[:-3]}
    for i, (name, pack) in enumerate(files.items()):
        data = pack(b"".join(map(frame, numbered(100, 100 * i))))
        fsspec.filesystem("memory").pipe(f"{root}/{name}", data)
    manifest = manifest_of(f"memory:/{root}")
    assert len(manifest.units) > 20
    assert read_units(manifest)["x"].to_pylist() == list(range(299))
    assert [(each.record, each.lost_records) for each in manifest.damage] == [(99, None)]


@pytest.mark.slow
def test_millions_of_values_in_one_record(tmp_path):  # T16
    values = np.arange(9_000_000, dtype=np.int64)
    body = b"".join(map(varint, values.tolist()))
    write(tmp_path / "a.tfrecord", [example(entry(b"x", feature("int64", field(1, body)))), *numbered(1)])
    table = read_all(tmp_path, columns=["x"])
    assert (table["x"][0].values.to_numpy() == values).all()
    assert table["x"][1].as_py() == [0]
    with pytest.raises(RecordError, match="record 0 at byte 0") as caught:
        read_all(tmp_path, columns=["x"], schema={"x": {"dtype": "int64"}})
    assert len(str(caught.value)) < 1000


def test_memory_is_told_of_the_wanted_columns(tmp_path):
    records = [example(entry(b"big", strings(bytes(5000))), entry(b"small", ints(i))) for i in range(50)]
    write(tmp_path / "a.tfrecord", records)
    assert 250_000 < manifest_of(tmp_path).units.memory_bytes[0] < 300_000
    assert 400 <= manifest_of(tmp_path, columns=["small"]).units.memory_bytes[0] < 1000
    assert manifest_of(tmp_path, columns=["small"]).units.bytes[0] > 250_000


def test_hive_directories_are_columns(tmp_path):
    (tmp_path / "k=7").mkdir()
    write(tmp_path / "k=7" / "a.tfrecord", numbered(2))
    assert read_all(tmp_path).to_pydict() == {"x": [0, 1], "y": [0.0, 0.5], "k": [7, 7]}
    assert read_all(tmp_path, columns=["k"]).to_pydict() == {"k": [7, 7]}


def test_a_missing_feature_has_its_default_or_is_an_error(tmp_path):
    write(tmp_path / "a.tfrecord", [*numbered(2), example(entry(b"y", floats(1)))])
    declared = {"x": {"dtype": "int64"}}
    with pytest.raises(RecordError, match=r"feature 'x' of record 2 at byte .* is not there, and has no default"):
        read_all(tmp_path, schema=declared)
    for how in ({"schema": {"x": {"dtype": "int64", "default": -1}}}, {"schema": declared, "fill": {"x": -1}}):
        assert read_all(tmp_path, **how)["x"].to_pylist() == [0, 1, -1]


def test_an_unknown_column_is_named_with_the_nearest(tmp_path):
    write(tmp_path / "a.tfrecord", [example(entry(b"image/encoded", ints(1)))])
    with pytest.raises(SchemaError, match=r"'image/encodd' is in none .* Did you mean 'image/encoded'\?"):
        manifest_of(tmp_path, columns={"image": "image/encodd"})


def test_two_types_of_one_feature_are_an_error(tmp_path):
    write(tmp_path / "a.tfrecord", [example(entry(b"x", ints(1)))])
    write(tmp_path / "b.tfrecord", [example(entry(b"x", floats(1)))])
    with pytest.raises(SchemaError, match="feature 'x' holds float and int64"):
        manifest_of(tmp_path)
    with pytest.raises(RecordError, match="feature 'x' of record 0 at byte 0") as caught:
        read_all(tmp_path, schema={"x": {"dtype": "float32"}})
    assert caught.value.path == str(tmp_path / "a.tfrecord")


def test_bytes_that_are_no_text_name_their_record(tmp_path):
    records = [example(entry(b"t", strings(text))) for text in (b"ok", b"\xff", b"fine")]
    write(tmp_path / "a.tfrecord", records)
    schema = {"t": {"dtype": "string"}}
    with pytest.raises(RecordError, match="feature 't' of record 1 is not UTF-8") as caught:
        read_all(tmp_path, schema=schema)
    assert caught.value.row == 1
    marked = read_units(manifest_of(tmp_path, schema=schema), mark_bad=True)
    assert [text is None for text in marked[BAD_COLUMN].to_pylist()] == [True, False, True]
    assert marked["t"].to_pylist()[::2] == ["ok", "fine"]


def test_filters_splits_and_classes(tmp_path, small_units):
    names = (b"cat", b"dog", b"owl")
    records = [example(entry(b"x", ints(i)), entry(b"name", strings(names[i % 3]))) for i in range(60)]
    write(tmp_path / "a.tfrecord", records[:40])
    write(tmp_path / "b.tfrecord", records[40:], gzip.compress)
    how = {"columns": ["x", "name"], "classes": {"name": "auto"}, "where": "x >= 10 and name != 'owl'"}
    manifest = manifest_of(tmp_path, **how)
    assert manifest.classes == {"name": ("cat", "dog", "owl")}
    expected = [i for i in range(10, 60) if i % 3 < 2]
    table = read_units(manifest)
    assert table.to_pydict() == {"x": expected, "name": [i % 3 for i in expected]}
    assert manifest.kept_ids().tolist() == expected
    some = {unit: np.array([0]) for unit in range(len(manifest.units))}
    assert set(read_units(manifest, some)["x"].to_pylist()) <= set(expected)
    assert read_all(tmp_path, columns=["x"], where="name = 'owl'", limit=3)["x"].to_pylist() == [2, 5, 8]
    with pytest.raises(SchemaError, match="'nam' is in none"):
        manifest_of(tmp_path, columns=["x"], where="nam = 'owl'")
    with pytest.raises(ReadError, match="'owl' here, which is none of the 2 classes"):
        read_all(tmp_path, classes={"name": ["cat", "dog"]})


def test_a_feature_that_is_missing_is_null_to_a_filter(tmp_path):
    records = [example(entry(b"x", ints(i)), *([entry(b"m", ints(i % 3))] * (i % 2))) for i in range(12)]
    write(tmp_path / "a.tfrecord", records)
    declared = {"x": {"dtype": "int64"}, "m": {"dtype": "int64"}}
    for schema in ({}, declared):
        for where, ids in [("m is null", [0, 2, 4, 6, 8, 10]), ("m = 1", [1, 7]), ("not m = 1", [3, 5, 9, 11])]:
            assert manifest_of(tmp_path, columns=["x"], where=where, schema=schema).kept_ids().tolist() == ids
    # What stands for a null does so after the filter; a default is the data's own.
    filled = manifest_of(tmp_path, schema=declared, fill={"m": 1}, where="m = 1")
    assert filled.kept_ids().tolist() == [1, 7]
    given = manifest_of(tmp_path, schema={**declared, "m": {"dtype": "int64", "default": 1}}, where="m = 1")
    assert given.kept_ids().tolist() == [0, 1, 2, 4, 6, 7, 8, 10]


def test_a_feature_of_several_values_is_no_match_for_a_filter(tmp_path):
    write(tmp_path / "a.tfrecord", [example(entry(b"x", ints(*range(i)))) for i in (1, 0, 2)])
    with pytest.raises(SpecError, match=r"column 'x' has type large_list<item: int64>, and 1 is a number"):
        manifest_of(tmp_path, where="x = 1")
    with pytest.raises(
        RecordError, match="feature 'x' has 2 values, and a filter or class list takes single"
    ) as caught:
        manifest_of(tmp_path, schema={"x": {"dtype": "int64"}}, where="x = 1")
    assert (caught.value.path, caught.value.row) == (str(tmp_path / "a.tfrecord"), 2)


def test_a_record_that_cannot_be_read_passes_the_filter_and_is_judged_when_read(tmp_path, small_units):
    records = [example(entry(b"x", ints(i)), entry(b"l", strings(b"ab"[i % 2 : i % 2 + 1]))) for i in range(20)]
    records[7] = b"\x0a\xff"  # no Example
    write(tmp_path / "a.tfrecord", records)
    declared = {"x": {"dtype": "int64"}, "l": {"dtype": "string"}}
    manifest = manifest_of(tmp_path, schema=declared, where="x < 3", classes={"l": "auto"})
    assert manifest.kept_ids().tolist() == [0, 1, 2, 7]
    assert manifest.classes == {"l": ("a", "b")}
    with pytest.raises(RecordError, match="record 7"):
        read_units(manifest)
    marked = read_units(manifest, mark_bad=True)
    assert [text is None for text in marked[BAD_COLUMN].to_pylist()] == [True, True, True, False]
    assert marked["l"].to_pylist()[:3] == [0, 1, 0]


# -- damage ------------------------------------------------------------------------------------------------------------


def damaged(tmp_path, at, bit=1, records=20, pack=bytes):
    """A file with a flipped bit in the payload, or `header`, of a record; and where its record begins."""
    data = bytearray(b"".join(map(frame, numbered(records))))
    begin = int(scan(np.frombuffer(bytes(data), np.uint8), check_payload=True).starts[at]) - 12
    data[begin + (8 if bit == "header" else 15)] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(pack(bytes(data)))
    return begin


def test_damage_that_indexing_sees_is_refused_or_left_out(tmp_path):  # T03, T04
    begin = damaged(tmp_path, 5)
    manifest = manifest_of(tmp_path)
    with pytest.raises(SourceError, match=f"record 5 at byte {begin}: its payload does not match") as caught:
        refuse_damage(manifest)
    assert (caught.value.path, caught.value.row) == (str(tmp_path / "a.tfrecord"), 5)
    assert manifest.rows == 19
    assert read_units(manifest)["x"].to_pylist() == [i for i in range(20) if i != 5]
    assert [manifest.locate(i)[1] for i in (4, 5, 18)] == [4, 6, 19]


def test_the_rest_behind_a_bad_length_is_left_out(tmp_path):  # T04
    damaged(tmp_path, 5, "header")
    manifest = manifest_of(tmp_path)
    assert read_units(manifest)["x"].to_pylist() == list(range(5))
    with pytest.raises(SourceError, match="the rest of the file cannot be read"):
        refuse_damage(manifest)


def test_a_cut_file_gives_what_is_whole(tmp_path):  # T03
    for name, first, cut in (("a", 0, None), ("b", 20, -5), ("c", 40, -33)):
        data = b"".join(map(frame, numbered(20, first)))
        (tmp_path / f"{name}.tfrecord").write_bytes(data[:cut])
    manifest = manifest_of(tmp_path)
    assert read_units(manifest)["x"].to_pylist() == [*range(39), *range(40, 59)]
    with pytest.raises(
        SourceError, match=r"record 19 at byte \d+: the file ends inside.* \(2 such places in 2 files\)"
    ):
        refuse_damage(manifest)


def test_a_bad_record_of_a_compressed_file_is_judged_when_it_is_read(tmp_path):  # T04
    begin = damaged(tmp_path, 5, pack=gzip.compress)
    manifest = manifest_of(tmp_path)
    assert manifest.rows == 20
    with pytest.raises(SourceError, match=f"record 5 at byte {begin} of the gzip file's decompressed data"):
        refuse_damage(manifest)
    with pytest.raises(RecordError, match=f"record 5 at byte {begin} of the gzip"):
        read_units(manifest)
    marked = read_units(manifest, mark_bad=True)
    assert [i for i, text in enumerate(marked[BAD_COLUMN].to_pylist()) if text] == [5]
    assert [x for i, x in enumerate(marked["x"].to_pylist()) if i != 5] == [i for i in range(20) if i != 5]


@pytest.mark.parametrize("where", ["payload", "header"])
def test_damage_that_came_after_indexing_names_its_record(tmp_path, small_units, where):
    write(tmp_path / "a.tfrecord", numbered(20))
    manifest = manifest_of(tmp_path)
    begin = damaged(tmp_path, 5, where)
    manifest = _as_listed_now(manifest, tmp_path)
    with pytest.raises(RecordError, match=f"record 5 at byte {begin}: its {'length' if where == 'header' else where}"):
        read_units(manifest)
    marked = read_units(manifest, mark_bad=True)
    bad = [i for i, text in enumerate(marked[BAD_COLUMN].to_pylist()) if text]
    lost = range(5, int(manifest.unit_first_id[1])) if where == "header" else [5]
    assert bad == list(lost)
    assert [x for i, x in enumerate(marked["x"].to_pylist()) if i not in bad] == [i for i in range(20) if i not in bad]


def _as_listed_now(manifest, folder):
    """The same manifest, with the file's present version."""
    from dataclasses import replace

    return replace(manifest, files=list_files(Source(path=str(folder))))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_damage_in_a_file_of_one_unit_names_its_record(tmp_path, pack):
    write(tmp_path / "a.tfrecord", numbered(20), pack)
    manifest = manifest_of(tmp_path)
    begin = damaged(tmp_path, 5, "header", pack=pack)
    manifest = _as_listed_now(manifest, tmp_path)
    if pack is bytes:
        assert manifest.units.bytes[0] == manifest.files[0].size
    else:
        manifest.units.bytes[0] = manifest.files[0].size
    with pytest.raises(RecordError, match=f"record 5 at byte {begin}.*: its length does not match"):
        read_units(manifest)
    marked = read_units(manifest, mark_bad=True)
    assert marked["x"].to_pylist()[:5] == list(range(5))
    texts = marked[BAD_COLUMN].to_pylist()
    assert [text is None for text in texts] == [True] * 5 + [False] * 15
    assert texts[7].startswith(f"record 7 is lost behind record 5 at byte {begin}")


def test_unchecked_payloads_are_not_compared(tmp_path):
    damaged(tmp_path, 5)
    manifest = manifest_of(tmp_path, tfrecord={"check_payload_crc": False}, columns=["y"])
    assert manifest.damage == ()
    assert len(read_units(manifest, check_payload=False, mark_bad=True)) == 20


def test_a_file_that_changed_since_it_was_listed_is_an_error(tmp_path):
    path = write(tmp_path / "a.tfrecord", numbered(20))
    manifest = manifest_of(tmp_path)
    write(path, numbered(21))
    with pytest.raises(ReadError, match="changed since it was listed"):
        read_units(manifest)
    path.unlink()
    with pytest.raises(ReadError, match="no such file"):
        read_units(manifest)


def test_data_that_came_damaged_is_read_again(tmp_path, monkeypatch, small_units):
    write(tmp_path / "a.tfrecord", numbered(20))
    manifest = manifest_of(tmp_path)
    from ingest.storage.local import LocalFiles

    read, calls = LocalFiles.read_ranges, []

    def once_damaged(self, url, ranges, etag=None):
        (blob,) = read(self, url, ranges, etag)
        calls.append(ranges)
        return [blob[:20] + bytes([blob[20] ^ 1]) + blob[21:]] if len(calls) == 1 else [blob]

    monkeypatch.setattr(LocalFiles, "read_ranges", once_damaged)
    assert read_units(manifest, {0: None})["x"].to_pylist() == list(range(int(manifest.units.rows[0])))
    assert len(calls) == 2
    assert len(set(map(str, calls))) == 1


def test_a_manifest_is_kept_with_features_and_damage(tmp_path):
    damaged(tmp_path, 5)
    source = Source(path=str(tmp_path), schema={"x": {"dtype": "int64", "default": 3}})
    manifest = manifest_of(tmp_path, schema={"x": {"dtype": "int64", "default": 3}})
    key = store.cache_key(manifest.files, source)
    store.save(tmp_path / "kept", key, manifest)
    loaded = store.load(tmp_path / "kept", key)
    assert (loaded.features, loaded.damage, loaded.files) == (manifest.features, manifest.damage, manifest.files)
    assert loaded.digest == manifest.digest
    assert loaded.units.offset.tolist() == manifest.units.offset.tolist()
    assert read_units(loaded).equals(read_units(manifest))
    others = [Source(path=str(tmp_path)), source.model_copy(update={"format": "tfrecord"})]
    others.append(Source(path=str(tmp_path), tfrecord={"check_payload_crc": False}))
    assert len({key, *(store.cache_key(manifest.files, other) for other in others)}) == 4


def test_a_copy_elsewhere_is_the_same_data(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        shutil.copy(DATA / "clicks-gzip", tmp_path / folder / "clicks")
    assert manifest_of(tmp_path / "one").digest == manifest_of(tmp_path / "two").digest
