"""Listing: what counts as data, in which order, and what is said where nothing does."""

from __future__ import annotations

import uuid

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.errors import SourceError
from ingest.manifest.listing import list_files
from ingest.spec import Source

pytestmark = pytest.mark.unit

TABLE = pa.table({"x": [1, 2]})


def write(path, table=TABLE):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def names(path, **source):
    path = [str(p) for p in path] if isinstance(path, list) else str(path)
    return [entry.path for entry in list_files(Source(path=path, **source))]


def test_markers_and_hidden_files_are_left_out(tmp_path):  # P16
    for name in ("part-1.parquet", "_metadata", "_common_metadata", ".part-0.parquet", "_temporary/0/part-2.parquet"):
        write(tmp_path / name)
    (tmp_path / "_SUCCESS").write_bytes(b"")
    (tmp_path / ".part-1.parquet.crc").write_bytes(b"crc")
    (tmp_path / "part-1.parquet.crc").write_bytes(b"crc")
    (tmp_path / "empty.parquet").write_bytes(b"")
    write(tmp_path / ".hidden" / "part-3.parquet")
    assert names(tmp_path) == ["part-1.parquet"]


def test_other_suffixes_beside_parquet_ones_are_no_data(tmp_path):
    for name in ("b.parquet", "sub/a.PQ", "c.parq"):
        write(tmp_path / name)
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "dataset_info.json").write_text("{}")
    assert names(tmp_path) == ["b.parquet", "c.parq", "sub/a.PQ"]


def test_without_suffixes_every_file_counts(tmp_path):
    write(tmp_path / "000000_0")
    write(tmp_path / "000001_0")
    assert names(tmp_path) == ["000000_0", "000001_0"]


def test_a_file_named_itself_is_read_whatever_its_name(tmp_path):
    assert names(write(tmp_path / "_data")) == ["_data"]


def test_globs_stay_inside_a_directory_unless_doubled(tmp_path):
    for name in ("a1.parquet", "a2.parquet", "b1.parquet", "sub/a3.parquet", "_x/a4.parquet"):
        write(tmp_path / name)
    assert names(tmp_path / "a?.parquet") == ["a1.parquet", "a2.parquet"]
    assert names(tmp_path / "**/a*.parquet") == ["a1.parquet", "a2.parquet", "sub/a3.parquet"]
    assert names(tmp_path / "[!a]*.parquet") == ["b1.parquet"]
    assert names(tmp_path / "*/a*.parquet") == ["sub/a3.parquet"]


def test_a_literal_name_wins_over_a_glob(tmp_path):
    for name in ("a[1].parquet", "a1.parquet", "d*/x.parquet", "dd/x.parquet"):
        write(tmp_path / name)
    assert names(tmp_path / "a[1].parquet") == ["a[1].parquet"]
    assert names(tmp_path / "d*") == ["x.parquet"]


def test_lists_share_a_root_and_list_each_file_once(tmp_path):
    for name in ("a/p.parquet", "b/p.parquet"):
        write(tmp_path / name)
    paths = [tmp_path / "b", tmp_path / "a", tmp_path / "a/p.parquet", f"file://{tmp_path}/a"]
    assert names(paths) == ["a/p.parquet", "b/p.parquet"]


def test_hive_directories_become_partitions_unquoted(tmp_path):
    write(tmp_path / "day=2024-01-01" / "city=S%C3%A3o%20Paulo" / "part.parquet")
    write(tmp_path / "_day=x" / "part.parquet")  # an underscore does not hide a hive key
    first, second = list_files(Source(path=str(tmp_path)))
    assert first.partitions == (("_day", "x"),)
    assert second.partitions == (("day", "2024-01-01"), ("city", "São Paulo"))
    assert second.path == "day=2024-01-01/city=S%C3%A3o%20Paulo/part.parquet"


def test_relative_paths(tmp_path, monkeypatch):
    write(tmp_path / "d" / "x.parquet")
    monkeypatch.chdir(tmp_path)
    assert names("d") == ["x.parquet"]
    assert list_files(Source(path="d/*.parquet"))[0].url == f"{tmp_path}/d/x.parquet"


def test_paths_are_relative_on_every_filesystem(tmp_path):
    name = uuid.uuid4().hex
    data = write(tmp_path / "x.parquet").read_bytes()
    for key in ("a/b.parquet", "a/k=1/c.parquet"):
        fsspec.filesystem("memory").pipe(f"/{name}/{key}", data)
    assert names(f"memory://{name}/a") == ["b.parquet", "k=1/c.parquet"]
    assert names(f"memory://{name}/*/*.parquet") == ["a/b.parquet"]
    assert names([f"memory://{name}/a/b.parquet", f"memory://{name}/a/"]) == ["b.parquet", "k=1/c.parquet"]


def test_missing_and_empty_are_told_apart(tmp_path):
    with pytest.raises(SourceError, match="no such file or directory") as caught:
        names(tmp_path / "none")
    assert caught.value.path == str(tmp_path / "none")
    with pytest.raises(SourceError, match="no data file"):
        names(tmp_path)
    with pytest.raises(SourceError, match="no file matches"):
        names(tmp_path / "*.parquet")
    (tmp_path / "f.parquet").write_bytes(b"")
    with pytest.raises(SourceError, match="empty"):
        names(tmp_path / "f.parquet")


@pytest.mark.parametrize("name", ["x.tfrecord", "x.tfrecord-00000-of-00001", "train-00000-of-00002", "a.tfrecord.gz"])
def test_tfrecord_is_named_as_not_supported(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x00" * 32)
    with pytest.raises(SourceError, match="TFRecord, which is not supported"):
        names(tmp_path)


def test_foreign_files_are_named_with_their_first_bytes(tmp_path):
    (tmp_path / "data.json").write_text('{"a": 1}')
    with pytest.raises(SourceError, match="not a Parquet file") as caught:
        names(tmp_path)
    assert caught.value.path.endswith("data.json")
