"""The manifest: schemas merged over files, columns resolved, bad files named, units laid out."""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from whole import manifest_of, read_all

from ingest.errors import SchemaError, SourceError
from ingest.manifest.build import build_manifest
from ingest.manifest.listing import list_files
from ingest.manifest.parquet import index_files
from ingest.spec import Source

pytestmark = pytest.mark.unit


def write(folder, **tables):
    for name, table in tables.items():
        pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), folder / f"{name}.parquet")


def test_units_are_row_groups_in_file_order(tmp_path):
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "b.parquet", row_group_size=4)
    pq.write_table(pa.table({"x": range(3)}), tmp_path / "a.parquet")
    units = manifest_of(tmp_path).units
    assert units.file.tolist() == [0, 1, 1, 1]
    assert units.ordinal.tolist() == [0, 0, 1, 2]
    assert units.rows.tolist() == [3, 4, 4, 2]
    assert units.file_row.tolist() == [0, 0, 4, 8]
    assert (units.bytes > 0).all()
    assert units.memory_bytes.tolist() >= [24, 32, 32, 16]


def test_bytes_count_the_wanted_columns_only(tmp_path):
    write(tmp_path, a={"big": [bytes(1000)] * 10, "small": range(10)})
    both, small = manifest_of(tmp_path), manifest_of(tmp_path, columns=["small"])
    assert small.units.bytes[0] < both.units.bytes[0]
    assert small.units.memory_bytes[0] < 500


def test_a_file_with_no_row_groups(tmp_path):  # P01
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("x", pa.int32())])):
        pass
    manifest = manifest_of(tmp_path)
    assert (manifest.rows, len(manifest.units), len(manifest.files)) == (0, 0, 1)
    assert manifest.schema == pa.schema([("x", pa.int32())])


def test_a_file_of_zero_rows_keeps_its_schema(tmp_path):  # P03
    write(tmp_path, a=pa.table({"x": pa.array([], pa.int64()), "y": pa.array([], pa.binary())}))
    manifest = manifest_of(tmp_path)
    assert manifest.rows == 0
    assert manifest.schema.names == ["x", "y"]


def test_empty_row_groups_among_full_ones_are_dropped(tmp_path):
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("x", pa.int64())])) as writer:
        for rows in (0, 2, 0, 3):
            writer.write_table(pa.table({"x": pa.array(range(rows), pa.int64())}))
    write(tmp_path, b=pa.table({"x": pa.array([], pa.int64())}))
    manifest = manifest_of(tmp_path)
    assert manifest.units.rows.tolist() == [2, 3]
    assert manifest.units.ordinal.tolist() == [1, 3]
    assert len(manifest.files) == 2
    assert read_all(tmp_path)["x"].to_pylist() == [0, 1, 0, 1, 2]


def test_schemas_merge_over_files(tmp_path):  # P07
    write(
        tmp_path,
        a={"s": pa.nulls(2), "n": pa.array([1, 2], pa.int32())},
        b={"s": ["x", "y"], "n": pa.array([3, 4], pa.int64()), "new": [0.5, 1.5]},
    )
    assert read_all(tmp_path).to_pydict() == {
        "s": [None, None, "x", "y"],
        "n": [1, 2, 3, 4],
        "new": [None, None, 0.5, 1.5],
    }


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.uint8(), pa.int16(), pa.int16()),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.large_list(pa.int64())),
        (pa.struct({"a": pa.int32()}), pa.struct({"b": pa.string()}), pa.struct({"a": pa.int32(), "b": pa.string()})),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
    ],
    ids=str,
)
def test_types_that_fit_each_other(tmp_path, one, other, merged):
    write(tmp_path, a={"x": pa.nulls(1, one)}, b={"x": pa.nulls(1, other)})
    assert manifest_of(tmp_path).schema.field("x").type == merged
    assert read_all(tmp_path, columns={"y": "x"})["y"].type == merged if not pa.types.is_integer(merged) else True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int64(), pa.string()),
        (pa.int64(), pa.float64()),
        (pa.uint64(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.struct({"a": pa.int64()}), pa.struct({"a": pa.string()})),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
def test_conflicts_name_both_types_and_files(tmp_path, one, other):
    write(tmp_path, a={"x": pa.nulls(1, one)}, b={"x": pa.nulls(1, other)})
    with pytest.raises(SchemaError) as caught:
        manifest_of(tmp_path)
    for part in (str(one), str(other), "a.parquet", "b.parquet", "'x'"):
        assert part in str(caught.value)


def test_missing_columns_name_the_nearest(tmp_path):
    write(tmp_path, a={"image": pa.array([{"bytes": b"", "path": ""}]), "label": [1], "boxes": [[{"x": 1}]]})
    for wanted, near in (("lable", "label"), ("image.byte", "image.bytes")):
        with pytest.raises(SchemaError, match=f"no column '{wanted}'.*Did you mean '{near}'"):
            manifest_of(tmp_path, columns=[wanted])
    with pytest.raises(SchemaError, match="dots go into structs only"):
        manifest_of(tmp_path, columns=["boxes.x"])


def test_a_literal_dot_wins_over_a_struct(tmp_path):
    write(tmp_path, a={"a": pa.array([{"b": 1}]), "a.b": [2]})
    assert read_all(tmp_path, columns={"x": "a.b"}).to_pydict() == {"x": [2]}
    assert read_all(tmp_path, columns={"x": "a"}).to_pydict() == {"x": [{"b": 1}]}


def test_names_that_batches_have_already_are_refused(tmp_path):
    write(tmp_path, a={"valid": [True]})
    with pytest.raises(SchemaError, match="valid"):
        manifest_of(tmp_path)
    assert manifest_of(tmp_path, columns={"ok": "valid"}).schema.names == ["ok"]


def test_fill_must_fit_its_column(tmp_path):
    write(tmp_path, a={"x": [1]})
    with pytest.raises(SchemaError, match="does not fit column 'x'"):
        manifest_of(tmp_path, fill={"x": "none"})
    with pytest.raises(SchemaError, match="no output column"):
        manifest_of(tmp_path, fill={"z": 1})


@pytest.mark.parametrize(
    ("value", "kind", "why"),
    [
        (1.5, pa.int64(), "it has a fraction"), (-0.5, pa.int8(), "it has a fraction"),
        (1.5, pa.timestamp("s"), "it has a fraction"), (1e39, pa.float32(), "it is larger than the type holds"),
        (1e6, pa.float16(), "it is larger than the type holds"),
    ],
)  # fmt: skip
def test_a_fill_that_would_be_another_value_is_refused(tmp_path, value, kind, why):
    write(tmp_path, a={"x": pa.array([1, None]).cast(kind)})
    with pytest.raises(SchemaError, match=f"does not fit column 'x' of type .*: {why}"):
        manifest_of(tmp_path, fill={"x": value})


@pytest.mark.parametrize(
    ("value", "kind"),
    [(2.0, pa.int64()), (0.1, pa.float32()), (float("inf"), pa.float32()), (float("nan"), pa.float64())],
)
def test_a_fill_that_fits_is_taken(tmp_path, value, kind):
    write(tmp_path, a={"x": pa.array([1, None]).cast(kind)})
    assert manifest_of(tmp_path, fill={"x": value}).schema.field("x").type == kind


@pytest.mark.parametrize(("limit", "rows"), [(1, [1]), (3, [3]), (4, [3, 1]), (99, [3, 3, 3, 1])])
def test_limit_cuts_the_last_unit(tmp_path, limit, rows):
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet", row_group_size=3)
    manifest = manifest_of(tmp_path, limit=limit)
    assert manifest.units.rows.tolist() == rows
    assert read_all(tmp_path, limit=limit)["x"].to_pylist() == list(range(min(limit, 10)))


def test_partition_columns_are_integers_where_all_are(tmp_path):
    for year, kind in (("2020", "a"), ("2021", "7")):
        (tmp_path / f"year={year}" / f"kind={kind}").mkdir(parents=True)
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"year={year}" / f"kind={kind}" / "p.parquet")
    assert read_all(tmp_path).to_pydict() == {"x": [1, 1], "year": [2020, 2021], "kind": ["a", "7"]}
    assert read_all(tmp_path, columns={"y": "year"}).to_pydict() == {"y": [2020, 2021]}


def encrypted(path, **how):
    class Kms(pe.KmsClient):
        def wrap_key(self, key, _name):
            return base64.b64encode(key)

        def unwrap_key(self, key, _name):
            return base64.b64decode(key)

    factory = pe.CryptoFactory(lambda _config: Kms())
    config = pe.EncryptionConfiguration(footer_key="k", **(how or {"uniform_encryption": True}))
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    table = pa.table({"x": [1, 2], "y": [3, 4]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def good_bytes(rows=1000):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": range(rows)}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (good_bytes()[:-8], "truncated"),  # P15
        (good_bytes()[: len(good_bytes()) // 2], "truncated"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a Parquet file: it begins with b'vers'"),
        (b"PAR1", "not a Parquet file: it has 4 bytes"),
        (b"PAR1" + b"\xff" * 20 + (20).to_bytes(4, "little") + b"PAR1", "footer is damaged"),
        (b"PAR1" + b"\0" * 20 + (2**31).to_bytes(4, "little") + b"PAR1", "truncated or damaged"),
    ],
    ids=["tail cut", "half", "foreign", "tiny", "garbage footer", "impossible footer"],
)
def test_files_that_are_no_parquet_are_named(tmp_path, data, message):
    write(tmp_path, a={"x": [1]})
    (tmp_path / "b.parquet").write_bytes(data)
    with pytest.raises(SourceError, match=message) as caught:
        manifest_of(tmp_path)
    assert caught.value.path == str(tmp_path / "b.parquet")


def test_an_encrypted_file_is_named_so(tmp_path):  # P14
    encrypted(tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="encrypted"):
        manifest_of(tmp_path)


def test_a_file_of_which_some_columns_are_encrypted(tmp_path):  # P14
    encrypted(tmp_path / "a.parquet", column_keys={"c": ["x"]}, plaintext_footer=True)
    for columns in (None, ["x"]):
        with pytest.raises(SourceError, match=r"the Parquet file is encrypted.*name those in source.columns"):
            manifest_of(tmp_path, columns=columns)
    assert manifest_of(tmp_path, columns=["y"]).rows == 2


def test_of_several_bad_files_the_first_by_path_is_named(tmp_path):
    write(tmp_path, a={"x": [1]})
    for name in ("d", "b", "c"):
        (tmp_path / f"{name}.parquet").write_bytes(b"garbage garbage")
    with pytest.raises(SourceError, match="2 more files") as caught:
        manifest_of(tmp_path)
    assert caught.value.path.endswith("b.parquet")


def test_chunks_of_the_index_may_come_in_any_order(tmp_path):
    write(tmp_path, **{f"f{i}": {"x": range(i + 1), f"only{i}": range(i + 1)} for i in range(5)})
    source = Source(path=str(tmp_path))
    files = list_files(source)
    whole = build_manifest(files, index_files(files, None, source.storage), source)
    chunks = [index_files(part, None, source.storage) for part in (files[3:], files[:1], files[1:3])]
    shuffled = build_manifest(files, pa.concat_tables(chunks), source)
    assert shuffled.schema == whole.schema
    assert shuffled.digest == whole.digest
    np.testing.assert_array_equal(shuffled.units.rows, [1, 2, 3, 4, 5])
