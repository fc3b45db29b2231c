"""Reading units: exact rows and types, the policy on nulls, damage named, memory bounded."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole import manifest_of, pieces_of, read_all

from ingest.errors import ReadError
from ingest.manifest.model import FileEntry
from ingest.read import parquet as read
from ingest.read.parquet import Piece, read_unit, read_window
from ingest.read.sources import coalesce
from ingest.spec import Storage

pytestmark = pytest.mark.unit

WATCHED = pa.proxy_memory_pool(pa.system_memory_pool())  # kept for good: buffers may outlive the test


def write(folder, table, name="a", **options):
    table = table if isinstance(table, pa.Table) else pa.table(table)
    pq.write_table(table, folder / f"{name}.parquet", **options)
    return table


def unit(manifest, ordinal, rows, fill=None, **options):
    entry = manifest.files[0]
    return read_unit(entry, ordinal, rows, manifest.schema, manifest.columns, Storage(), fill or {}, **options)


IMAGES = {"image": [bytes([i]) * 5000 for i in range(100)], "label": list(range(100)), "unused": ["x"] * 100}


@pytest.mark.parametrize("stream_bytes", [1, 1 << 30], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    "rows",
    [
        None,
        slice(0, 40),
        slice(0, 7),
        slice(5, 9),
        np.array([0, 3, 39]),
        np.array([], np.int64),
        np.delete(np.arange(40), [3, 20]),
        np.arange(5, 40),
    ],
    ids=["all", "whole slice", "head", "middle", "indices", "none", "long runs", "one run"],
)
def test_the_asked_rows_of_a_unit(tmp_path, monkeypatch, rows, stream_bytes):
    monkeypatch.setattr(read, "_BATCH_BYTES", 30_000)  # several batches in a unit
    table = write(tmp_path, IMAGES, row_group_size=40)
    manifest = manifest_of(tmp_path, columns={"img": "image", "y": "label"})
    got = unit(manifest, 1, rows, stream_bytes=stream_bytes)
    want = table.slice(40, 40).select(["image", "label"]).rename_columns(["img", "y"])
    if isinstance(rows, slice):
        want = want.slice(rows.start, rows.stop - rows.start)
    elif rows is not None:
        want = want.take(rows)
    assert got.equals(want)


def test_long_runs_of_large_rows_are_not_copied(tmp_path):
    write(tmp_path, IMAGES)
    manifest = manifest_of(tmp_path, columns=["image"])
    whole, some = unit(manifest, 0, None), unit(manifest, 0, np.delete(np.arange(100), [10, 70]))
    assert some["image"].num_chunks == 3
    assert whole["image"].num_chunks == unit(manifest, 0, np.arange(0, 100, 2))["image"].num_chunks == 1


@pytest.mark.parametrize(
    ("size", "units", "at_a_time"), [(2_000, 500, 16), (2_000, 2, 2), (800_000, 50, 5), (10**8, 50, 3)]
)
def test_more_units_of_small_remote_files_are_read_at_a_time(size, units, at_a_time):
    entry = FileEntry("a", "s3://b/a", size)
    assert read._ahead([Piece(entry, 0, None)] * units) == at_a_time


def test_a_window_keeps_the_chunks_of_its_units(tmp_path):
    table = write(tmp_path, IMAGES, row_group_size=40)
    manifest = manifest_of(tmp_path)
    window = read_window(pieces_of(manifest), manifest.schema, manifest.columns, Storage(), {})
    assert window.equals(table)
    assert [len(chunk) for chunk in window["image"].chunks] == [40, 40, 20]
    assert read_window([], manifest.schema, manifest.columns, Storage(), {}).schema == manifest.schema


def test_nothing_keeps_what_was_read(tmp_path):
    write(tmp_path, IMAGES)
    manifest = manifest_of(tmp_path)
    unit(manifest, 0, None)
    before = pa.total_allocated_bytes()
    for _ in range(3):
        assert len(unit(manifest, 0, None)) == 100
    assert pa.total_allocated_bytes() == before


def test_whole_units_are_not_copied(tmp_path):
    write(tmp_path, IMAGES, row_group_size=40)
    manifest = manifest_of(tmp_path, columns=["image"])
    before = pa.total_allocated_bytes()
    part = unit(manifest, 0, slice(0, 10))
    assert part["image"].chunk(0).buffers()[2].size > 30 * 5000  # a slice of what was read
    assert pa.total_allocated_bytes() - before < 2 * 40 * 5000


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "lz4"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_encoding_gives_the_same_values(tmp_path, compression, dictionary, version):
    values = [None if i % 7 == 3 else bytes([i % 5]) * (5000 + i % 5) for i in range(50)]
    table = write(
        tmp_path,
        {"image": values, "again": values},
        compression=compression,
        use_dictionary=dictionary,
        data_page_version=version,
        row_group_size=20,
    )
    assert read_all(tmp_path).equals(table)


def test_types_that_are_decoded(tmp_path):  # P11
    write(
        tmp_path,
        {
            "sv": pa.array(["a", None], pa.string_view()),
            "bv": pa.array([b"a" * 100, b""], pa.binary_view()),
            "dict": pa.array(["x", "y"]).dictionary_encode(),
            "large": pa.array([b"1", b"2"], pa.large_binary()),
            "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
        },
    )
    got = read_all(tmp_path)
    assert got.schema.types == [pa.large_string(), pa.large_binary(), pa.string(), pa.large_binary(), pa.binary(2)]
    assert got.to_pydict() == {
        "sv": ["a", None],
        "bv": [b"a" * 100, b""],
        "dict": ["x", "y"],
        "large": [b"1", b"2"],
        "fixed": [b"ab", b"cd"],
    }


def test_nested_columns_and_fixed_size_lists_with_null_rows(tmp_path):  # P10
    table = write(
        tmp_path,
        {
            "box": pa.array([[1.0, 2.0], None, [3.0, None]], pa.list_(pa.float32(), 2)),
            "tags": pa.array([["a"], [], None]),
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        },
    )
    assert read_all(tmp_path).to_pydict() == table.to_pydict()


def test_images_as_the_hub_writes_them(tmp_path):  # P09
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": b"jpeg", "path": "a"}, {"bytes": None, "path": "b"}, None]
    write(tmp_path, {"image": pa.array(rows, image), "more": pa.array([rows[:2], [], None], pa.list_(image))})
    # A path alone and a null struct both give null bytes; what stands for a null image is the augmenter's policy.
    assert read_all(tmp_path, columns={"image": "image.bytes"}).to_pydict() == {"image": [b"jpeg", None, None]}
    assert read_all(tmp_path, columns=["more"]).to_pydict() == {"more": [rows[:2], [], None]}


def test_only_the_wanted_leaves_are_read(tmp_path):
    struct = pa.array([{"a": 1, "b": {"c": "x", "d": 2.0}}])
    write(tmp_path, {"s": struct, "z": [1]})
    assert read_all(tmp_path, columns={"d": "s.b.d", "z": "z"}).to_pydict() == {"d": [2.0], "z": [1]}


def test_int96_far_from_today_is_exact(tmp_path):  # P13
    times = [dt.datetime(9999, 12, 31, 2), dt.datetime(1, 1, 1), dt.datetime(2024, 5, 6, 7, 8, 9, 10)]  # noqa: DTZ001
    write(tmp_path, {"t": pa.array(times, pa.timestamp("us"))}, use_deprecated_int96_timestamps=True)
    got = read_all(tmp_path)
    assert got.schema.field("t").type == pa.timestamp("us")
    assert got["t"].to_pylist() == times


@pytest.mark.parametrize("nested", [False, True])
def test_int96_too_far_is_an_error_and_never_wraps(tmp_path, nested):
    times = pa.array([0, 9_400_000_000_000], pa.timestamp("s"))  # the year 299,845
    if nested:
        times = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2], times)], ["t"])
    write(tmp_path, {"t": times}, use_deprecated_int96_timestamps=True, store_schema=False)
    with pytest.raises(ReadError, match="INT96"):
        read_all(tmp_path)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("second", [0, -7_000_000_000, 5_000_000_000])
def test_int96_finer_than_microseconds_is_an_error_and_never_cut(tmp_path, nested, second):
    def times(*nanos):
        made = pa.array([None, *(second * 10**9 + n for n in nanos)], pa.timestamp("ns"))
        return (
            pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, len(made)], made)], ["t"]) if nested else made
        )

    options = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    write(tmp_path, {"t": times(0, 999_000, 1_000_000)}, **options)
    got = read_all(tmp_path)["t"].to_pylist()
    got = got[1]["t"] if nested else got[1:]
    assert [int(t.timestamp() * 10**6) - second * 10**6 for t in (g.replace(tzinfo=dt.UTC) for g in got)] == [
        0,
        999,
        1000,
    ]
    write(tmp_path, {"t": times(0, 999_001)}, **options)
    with pytest.raises(ReadError, match="INT96 time that is no whole number of microseconds"):
        read_all(tmp_path)


def test_nulls_stay_where_the_type_has_room(tmp_path):
    nulls = {"f": [0.5, None], "s": ["a", None], "b": [b"a", None]}
    write(tmp_path, nulls)
    assert read_all(tmp_path).to_pydict() == nulls


@pytest.mark.parametrize(("values", "fill"), [([1, None, 3], -1), ([True, None, True], False)])
def test_nulls_in_integers_and_booleans_need_a_fill(tmp_path, values, fill):
    write(tmp_path, {"y": [values[0]] * 4 + values}, row_group_size=4)
    with pytest.raises(ReadError, match=r"source\.fill") as caught:
        read_all(tmp_path)
    assert (caught.value.path, caught.value.row) == (str(tmp_path / "a.parquet"), 5)
    manifest = manifest_of(tmp_path)
    with pytest.raises(ReadError) as caught:
        unit(manifest, 1, np.array([1, 2]))
    assert caught.value.row == 5
    assert unit(manifest, 1, np.array([0, 2]))["y"].to_pylist() == [values[0], values[2]]
    assert read_all(tmp_path, fill={"y": fill})["y"].to_pylist()[4:] == [values[0], fill, values[2]]


def test_fill_for_strings_and_bytes(tmp_path):
    write(tmp_path, {"s": ["a", None], "b": [None, b"b"]})
    assert read_all(tmp_path, fill={"s": "?", "b": "!"}).to_pydict() == {"s": ["a", "?"], "b": [b"!", b"b"]}


@pytest.mark.parametrize("inside", [[1, 1], [1, 2], [None, 1]], ids=str)
def test_a_hive_key_that_is_also_a_column(tmp_path, inside):  # P18
    folder = tmp_path / "yo=1"
    folder.mkdir()
    write(folder, {"yo": inside, "x": [5, 6]})
    if inside == [1, 1]:
        assert read_all(tmp_path).to_pydict() == {"yo": [1, 1], "x": [5, 6]}
        return
    with pytest.raises(ReadError, match="directory says yo=1") as caught:
        read_all(tmp_path)
    assert caught.value.row == inside.index(next(v for v in inside if v != 1))


def test_hive_null_and_a_column_in_some_files_only(tmp_path):
    for value, table in (("__HIVE_DEFAULT_PARTITION__", {"x": [1]}), ("7", {"x": [2], "k": pa.array([7], pa.int32())})):
        (tmp_path / f"k={value}").mkdir()
        write(tmp_path / f"k={value}", table)
    assert read_all(tmp_path, fill={"k": -1}).to_pydict() == {"x": [2, 1], "k": [7, -1]}
    assert read_all(tmp_path, columns=["k"], fill={"k": -1}).to_pydict() == {"k": [7, -1]}


def test_garbage_in_the_middle_is_an_error_for_that_file(tmp_path):  # P15
    write(tmp_path, {"x": np.random.default_rng(0).integers(0, 1 << 40, 20_000)}, use_dictionary=False)
    path = tmp_path / "a.parquet"
    data = bytearray(path.read_bytes())
    data[4:68] = b"\xff" * 64  # the first page header
    path.write_bytes(data)
    with pytest.raises(ReadError, match="damaged") as caught:
        read_all(tmp_path)
    assert caught.value.path == str(path)


def test_a_page_checksum_is_checked_where_there_is_one(tmp_path):
    write(tmp_path, {"b": [bytes(100_000)]}, use_dictionary=False, compression="none", write_page_checksum=True)
    path = tmp_path / "a.parquet"
    data = bytearray(path.read_bytes())
    data[50_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(ReadError, match="damaged"):
        read_all(tmp_path)


def test_a_changed_or_missing_file_is_named(tmp_path):
    write(tmp_path, {"x": range(10)}, row_group_size=5)
    manifest = manifest_of(tmp_path)
    read_unit(manifest.files[0], 0, None, manifest.schema, manifest.columns, Storage(), {})
    write(tmp_path, {"x": range(3)})
    with pytest.raises(ReadError, match="changed since it was listed"):
        unit(manifest, 1, slice(0, 5))
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(ReadError, match="gone"):
        unit(manifest, 1, slice(0, 5))


def test_more_rows_than_the_file_has_are_refused(tmp_path):
    write(tmp_path, {"x": range(10)}, row_group_size=5)
    manifest = manifest_of(tmp_path)
    for ordinal, rows in ((0, slice(0, 6)), (0, np.array([5])), (2, None)):
        with pytest.raises(ReadError, match="changed since it was listed"):
            unit(manifest, ordinal, rows)


def test_a_large_unit_is_read_in_bounded_memory(tmp_path, monkeypatch):  # P06
    rows = 200_000
    values = np.random.default_rng(0).integers(0, 256, (rows, 160), np.uint8)
    write(tmp_path, {"b": [row.tobytes() for row in values]}, use_dictionary=False, row_group_size=rows)
    monkeypatch.setattr(read, "_BATCH_BYTES", 1 << 20)
    manifest = manifest_of(tmp_path)
    assert manifest.units.memory_bytes[0] > 30 << 20
    usual = pa.default_memory_pool()
    pa.set_memory_pool(WATCHED)
    try:
        wanted = np.arange(0, rows, 1000)
        got = unit(manifest, 0, wanted, stream_bytes=1 << 20)
        assert 0 < WATCHED.max_memory() < 12 << 20
        assert WATCHED.bytes_allocated() < 1 << 20
        unit(manifest, 0, wanted)
        assert WATCHED.max_memory() > 30 << 20  # what reading it whole takes
    finally:
        pa.set_memory_pool(usual)
    assert got["b"].to_pylist() == [values[i].tobytes() for i in wanted]


def test_partition_columns_alone_read_no_bytes(tmp_path):
    (tmp_path / "k=a").mkdir()
    write(tmp_path / "k=a", {"x": range(5)})
    manifest = manifest_of(tmp_path, columns=["k"])
    assert unit(manifest, 0, np.array([1, 4]))["k"].to_pylist() == ["a", "a"]
    assert manifest.units.bytes.tolist() == [0]


def test_coalesce_joins_near_ranges_only():
    assert coalesce([(0, 10), (12, 20), (40, 50)], 5) == [(0, 20), (40, 50)]
    assert coalesce([(0, 10), (10, 20)], 0) == [(0, 20)]
    assert coalesce([], 5) == []


@pytest.mark.slow
def test_binary_chunks_over_2_gib_together(tmp_path):  # P05
    big = pa.chunked_array([pa.array([bytes(1 << 20)] * 1200) for _ in range(2)])
    write(tmp_path, pa.table({"b": big}), use_dictionary=False, row_group_size=1200)
    got = read_all(tmp_path)
    assert (len(got), got.nbytes > 2 << 30) == (2400, True)


@pytest.mark.slow
def test_a_nested_column_over_2_gib_in_one_group(tmp_path):  # P04
    kind = pa.struct([("bytes", pa.binary())])
    big = pa.chunked_array([pa.array([{"bytes": bytes(1 << 20)}] * 1100, kind) for _ in range(2)])
    write(tmp_path, pa.table({"s": big}), use_dictionary=False, row_group_size=2200)
    manifest = manifest_of(tmp_path)
    assert len(manifest.units) == 1
    got = read_window([Piece(manifest.files[0], 0, None)], manifest.schema, manifest.columns, Storage(), {})
    assert (len(got), got.nbytes > 2 << 30) == (2200, True)


def test_a_string_that_is_not_utf_8_is_named_by_its_row(tmp_path):
    raw = pa.array([b"ok", b"\xff\xfe", b"z"])
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    write(tmp_path, {"x": text, "n": [1, 2, 3]})
    with pytest.raises(ReadError, match=r"column 'x' is a string, and holds b'\\xff\\xfe' here.*row 1"):
        read_all(tmp_path)
    assert read_all(tmp_path, columns=["n"])["n"].to_pylist() == [1, 2, 3]
    write(tmp_path, {"x": pa.ListArray.from_arrays([0, 1, 3], text)})
    with pytest.raises(ReadError, match=r"column 'x'.*UTF8"):
        read_all(tmp_path)


@pytest.mark.parametrize(
    ("values", "kind", "row"),
    [
        ([[1], [], [2, None]], pa.list_(pa.int64()), 2),
        ([[True, None], [True]], pa.large_list(pa.bool_()), 0),
        ([[1, 2], None], pa.list_(pa.int32(), 2), 1),
        ([[1, 2], [3, 4], [5, None]], pa.list_(pa.int32(), 2), 2),
        ([[[1], [2]], [[3], [None]]], pa.list_(pa.list_(pa.int8(), 1), 2), 1),
    ],
    ids=str,
)
def test_nulls_inside_lists_of_integers_are_named_by_their_row(tmp_path, values, kind, row):
    write(tmp_path, {"x": pa.array([*values], kind)}, row_group_size=1)
    with pytest.raises(ReadError, match=f"column 'x' is .*list.* null .*row {row}"):
        read_all(tmp_path)


def test_list_views_with_nulls_are_lists(tmp_path):
    values = [[1, 2], None, [], [3]]
    write(tmp_path, {"x": pa.array(values, pa.list_view(pa.int64()))})
    assert read_all(tmp_path)["x"].to_pylist() == values
