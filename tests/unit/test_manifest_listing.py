"""Listing: what counts as data, in which order, and what is said where nothing does."""

from __future__ import annotations

import gzip
import os
import uuid
import zlib

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.errors import SourceError
from ingest.manifest.listing import format_of, list_files
from ingest.manifest.records import frame
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


@pytest.mark.parametrize("path", ["", "*.parquet"], ids=["directory", "glob"])
def test_a_link_to_nothing_is_no_silent_gap(tmp_path, path):
    write(tmp_path / "a.parquet")
    for hidden in (".#a.parquet", "_b.parquet", "notes.txt"):  # editors lock files by such links
        (tmp_path / hidden).symlink_to("nowhere")
    assert names(tmp_path / path) == ["a.parquet"]
    (tmp_path / "c.parquet").symlink_to("annex/c")
    with pytest.raises(SourceError, match="it is a link, and what it leads to is not there") as caught:
        names(tmp_path / path)
    assert caught.value.path == str(tmp_path / "c.parquet")


@pytest.mark.parametrize("name", [b"b\xff.parquet", b"d\xff/b.parquet"])
def test_a_name_that_is_no_utf_8_is_named(tmp_path, name):
    write(tmp_path / "a.parquet")
    odd = tmp_path / os.fsdecode(name)
    odd.parent.mkdir(exist_ok=True)
    write(tmp_path / "b.parquet").rename(odd)
    with pytest.raises(SourceError, match="its name is not UTF-8") as caught:
        names(tmp_path)
    assert "\\udcff" in caught.value.path
    str(caught.value).encode()  # an error must be fit to be shown
    assert names(tmp_path / "a*") == ["a.parquet"]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("[z-a]", ""), ("[!z-a]", "-[^abc]"), ("[a-b]", "ab"), ("[b-]", "-b"), ("[]a]", "]a"), ("[!]a]", "-[^bc"),
        ("[^a]", "-[]^bc"), ("[[]", "["), ("[a&&b]", "ab"), ("[a--b]", "b"), ("[!-b]", "[]^ac"), ("[+-9]", "-"),
        ("[c||a]", "ac"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_square_brackets_mean_what_they_mean_in_a_shell(tmp_path, pattern, matched):
    for name in "-[]^abc":
        write(tmp_path / f"{name}.parquet")
    write(tmp_path / "x" / ".parquet")  # a slash is none of them
    try:
        found = names(f"{tmp_path}/{pattern}.parquet")
    except SourceError as error:
        assert "no file matches" in str(error)  # noqa: PT017
        found = []
    assert sorted(found) == sorted(f"{name}.parquet" for name in matched)


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


@pytest.mark.parametrize(
    "name",
    [
        "x.tfrecord", "x.tfrecords", "x.tfrec", "X.TFRECORD", "a.tfrecord.gz", "x.tfrecord-00000-of-00001",
        "train-00000-of-00002", "train-00000-of-00002.gz", "x-00000-of-00001.tfrecord",
    ],
)  # fmt: skip
def test_tfrecord_is_known_by_name(tmp_path, name):  # T07
    (tmp_path / name).write_bytes(bytes(32))
    (tmp_path / "README.md").write_text("about")
    source = Source(path=str(tmp_path))
    files = list_files(source)
    assert [entry.path for entry in files] == [name]
    assert format_of(files, source) == "tfrecord"


def test_shards_of_a_set_are_all_found(tmp_path):  # T07
    for name in ("x.tfrecord-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    assert names(tmp_path) == ["train-00000-of-00002", "train-00001-of-00002", "x.tfrecord-00000-of-00001"]
    assert names(tmp_path / "train-*") == ["train-00000-of-00002", "train-00001-of-00002"]


@pytest.mark.parametrize(
    ("head", "known"),
    [
        (frame(b"x") * 4, "tfrecord"),
        (gzip.compress(frame(b"x"), mtime=0), "tfrecord"),
        (zlib.compress(frame(b"x")), "tfrecord"),
        (b"PAR1" + bytes(60), "parquet"), (frame(bytes(0x9C78)), "tfrecord"),
    ],
)  # fmt: skip
def test_names_that_say_nothing_leave_it_to_the_first_bytes(tmp_path, head, known):
    (tmp_path / "000000_0").write_bytes(head)
    source = Source(path=str(tmp_path))
    assert format_of(list_files(source), source) == known


def test_a_mixed_directory_names_a_file_of_both_kinds(tmp_path):
    write(tmp_path / "a.parquet")
    (tmp_path / "b.tfrecord").write_bytes(frame(b"x"))
    with pytest.raises(SourceError, match=r"both Parquet files \(a.parquet\) and TFRecord files \(b.tfrecord\)"):
        names(tmp_path)
    with pytest.raises(SourceError, match="both"):
        names([tmp_path / "a.parquet", tmp_path / "b.tfrecord"])
    assert names(tmp_path, format="tfrecord") == ["b.tfrecord"]
    assert names(tmp_path, format="parquet") == ["a.parquet"]
    assert names(tmp_path / "*.tfrecord") == ["b.tfrecord"]


def test_record_indices_lie_beside_the_data_and_are_none(tmp_path):
    for name in ("a.tfrecord", "a.idx", "b.tfrecord", "b.tfrecord.idx", "c.tfrecord", "sub/c.idx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    expected = {"a.tfrecord": "a.idx", "b.tfrecord": "b.tfrecord.idx", "c.tfrecord": None}
    for path in (tmp_path, tmp_path / "*.tfrecord", [tmp_path / name for name in expected]):
        paths = [str(p) for p in path] if isinstance(path, list) else str(path)
        found = {e.path: e.sidecar and e.sidecar.removeprefix(f"{tmp_path}/") for e in list_files(Source(path=paths))}
        assert found == expected


def test_an_index_of_a_file_without_a_suffix_is_no_data(tmp_path):
    for name in ("shard0", "shard0.idx", "shard1"):
        (tmp_path / name).write_bytes(b"x")
    assert names(tmp_path) == ["shard0", "shard1"]


def test_an_empty_tfrecord_file_that_the_user_names_counts(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"")
    (tmp_path / "b.tfrecord").write_bytes(frame(b"x"))
    assert names(tmp_path / "a.tfrecord") == ["a.tfrecord"]
    assert names(tmp_path) == ["b.tfrecord"]


def test_foreign_files_are_named_with_their_first_bytes(tmp_path):
    (tmp_path / "data.json").write_text('{"a": 1}')
    source = Source(path=str(tmp_path))
    with pytest.raises(SourceError, match="neither a Parquet file nor a TFRecord file") as caught:
        format_of(list_files(source), source)
    assert caught.value.path.endswith("data.json")
