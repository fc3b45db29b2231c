"""Listing and reading over real HTTP from an S3 server: literal keys, many keys, few requests, named failures."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import s3

from ingest.errors import ReadError, SourceError
from ingest.manifest.build import build_manifest
from ingest.manifest.listing import list_files
from ingest.manifest.parquet import index_files
from ingest.read.parquet import Piece, read_unit, read_window
from ingest.read.sources import _footers
from ingest.spec import Source, Storage
from ingest.storage import cloud

pytestmark = pytest.mark.integration

bucket, s3_endpoint = s3.bucket, s3.s3_endpoint  # fixtures


def manifest_of(source):
    files = list_files(source)
    return build_manifest(files, index_files(files, source.columns, source.storage), source)


@pytest.fixture
def requests(monkeypatch):
    """Every range asked of a store, as (url, start, end)."""
    asked = []
    read = cloud.CloudFiles.read_ranges

    def counted(self, url, ranges, etag=None):
        asked.extend((url, *span) for span in ranges)
        return read(self, url, ranges, etag)

    monkeypatch.setattr(cloud.CloudFiles, "read_ranges", counted)
    return asked


@pytest.mark.parametrize("name", ["a b", "a+b", "a=b", "é", "%3A", "a?b", "a#b", "a*b", "[1]"])
def test_keys_are_literal(bucket, name):  # S01, S02
    key = f"dir {name}/{name}.parquet"
    bucket.put_table(key, pa.table({"x": [1, 2, 3]}))
    for path in (bucket.url(key), bucket.url(f"dir {name}"), bucket.url(f"dir {name}/")):
        source = Source(path=path, columns=["x"], storage=bucket.storage)
        manifest = manifest_of(source)
        assert [entry.path for entry in manifest.files] == [f"{name}.parquet"]
        assert manifest.files[0].url == bucket.url(key)
        window = read_window([Piece(manifest.files[0], 0, None)], manifest.schema, manifest.columns, bucket.storage, {})
        assert window["x"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("count", [1001, 2500])
def test_more_keys_than_a_page_of_listing(bucket, count):  # S06
    for i in range(count):
        bucket.put(f"many/{i:05d}.parquet", b"x")
    files = list_files(Source(path=bucket.url("many"), storage=bucket.storage))
    assert [entry.path for entry in files] == [f"{i:05d}.parquet" for i in range(count)]


def test_directory_markers_and_neighbours_are_no_data(bucket):
    bucket.put("data/", b"")
    bucket.put("data/sub/", b"")
    bucket.put_table("data/sub/a.parquet", pa.table({"x": [1]}))
    bucket.put_table("data2/b.parquet", pa.table({"x": [1]}))
    source = Source(path=bucket.url("data"), storage=bucket.storage)
    assert [entry.path for entry in list_files(source)] == ["sub/a.parquet"]


def test_a_directory_may_be_marked_by_an_empty_object_of_its_name(bucket):  # S05, S3's kin of it
    bucket.put("data", b"")
    bucket.put_table("data/a.parquet", pa.table({"x": [1]}))
    assert len(list_files(Source(path=bucket.url("data"), storage=bucket.storage))) == 1
    bucket.put("file", b"")
    with pytest.raises(SourceError, match="0 bytes"):
        list_files(Source(path=bucket.url("file"), storage=bucket.storage))


def test_a_whole_bucket(bucket):
    bucket.put_table("a.parquet", pa.table({"x": [1]}))
    bucket.put_table("d/b.parquet", pa.table({"x": [1]}))
    for path in (f"s3://{bucket.name}", bucket.url()):
        assert [e.path for e in list_files(Source(path=path, storage=bucket.storage))] == ["a.parquet", "d/b.parquet"]


def test_globs_and_lists(bucket):
    for key in ("d/a1.parquet", "d/b1.parquet", "e/a2.parquet"):
        bucket.put_table(key, pa.table({"x": [1]}))
    source = Source(path=[bucket.url("d/a*.parquet"), bucket.url("e")], storage=bucket.storage)
    assert [entry.path for entry in list_files(source)] == ["d/a1.parquet", "e/a2.parquet"]


def test_a_copy_in_another_place_has_the_same_digest(bucket, tmp_path):
    for key in ("one/a.parquet", "one/k=1/b.parquet", "two/deep/a.parquet", "two/deep/k=1/b.parquet"):
        bucket.put_table(key, pa.table({"x": [1, 2]}))
    one, two = (manifest_of(Source(path=bucket.url(p), storage=bucket.storage)) for p in ("one", "two/deep/"))
    assert one.digest == two.digest


def test_a_unit_costs_one_request_and_a_footer_one_more(bucket, requests):
    rng = np.random.default_rng(0)
    table = pa.table({"image": [rng.bytes(5000) for _ in range(300)], "skip": ["x"] * 300, "label": range(300)})
    bucket.put_table("a.parquet", table, row_group_size=100, use_dictionary=False)
    source = Source(path=bucket.url("a.parquet"), columns=["image", "label"], storage=bucket.storage)
    manifest = manifest_of(source)
    assert len(requests) == 1
    _footers._kept.clear()
    requests.clear()
    for ordinal in (0, 2):
        got = read_unit(manifest.files[0], ordinal, None, manifest.schema, manifest.columns, bucket.storage, {})
        assert got.equals(table.select(["image", "label"]).slice(100 * ordinal, 100))
    assert len(requests) == 3
    assert sum(end - start for _, start, end in requests[1:]) < 2 * 510_000


def test_far_columns_are_fetched_without_what_lies_between(bucket, requests):
    rng = np.random.default_rng(0)
    table = pa.table({"a": range(20), "fat": [rng.bytes(100_000) for _ in range(20)], "z": range(20)})
    bucket.put_table("a.parquet", table)
    manifest = manifest_of(Source(path=bucket.url("a.parquet"), columns=["a", "z"], storage=bucket.storage))
    got = read_unit(manifest.files[0], 0, None, manifest.schema, manifest.columns, bucket.storage, {})
    assert got.equals(table.select(["a", "z"]))
    assert sum(end - start for _, start, end in requests[2:]) < 1000


def test_a_large_unit_is_streamed_in_blocks(bucket, requests, monkeypatch):
    monkeypatch.setattr("ingest.read.sources.BLOCK_BYTES", 100_000)
    monkeypatch.setattr("ingest.read.parquet._STREAM_BUFFER_BYTES", 10_000)
    monkeypatch.setattr("ingest.read.parquet._BATCH_BYTES", 50_000)
    rng = np.random.default_rng(0)
    table = pa.table({"b": [rng.bytes(1000) for _ in range(1000)], "y": range(1000)})
    bucket.put_table("a.parquet", table, use_dictionary=False, data_page_size=20_000, write_batch_size=16)
    manifest = manifest_of(Source(path=bucket.url("a.parquet"), storage=bucket.storage))
    requests.clear()
    rows = np.array([0, 499, 500, 999])
    arguments = (manifest.schema, manifest.columns, bucket.storage, {})
    assert read_unit(manifest.files[0], 0, rows, *arguments, stream_bytes=1000).equals(table.take(rows))
    blocks = [end - start for _, start, end in requests]
    assert max(blocks) <= 110_000
    assert 1_000_000 < sum(blocks) < 1_500_000


def test_a_footer_larger_than_the_first_request(bucket, requests):
    table = pa.table({f"column_{i:04d}": pa.array([1]) for i in range(1000)})
    bucket.put_table("wide.parquet", table)
    manifest = manifest_of(Source(path=bucket.url("wide.parquet"), storage=bucket.storage))
    assert len(manifest.schema) == 1000
    assert len(requests) == 2


def test_an_object_replaced_after_listing_is_refused(bucket):
    bucket.put_table("a.parquet", pa.table({"x": [1, 2]}))
    manifest = manifest_of(Source(path=bucket.url("a.parquet"), storage=bucket.storage))
    bucket.put_table("a.parquet", pa.table({"x": [3, 4]}))  # the same size
    _footers._kept.clear()
    with pytest.raises(ReadError, match="changed since it was listed") as caught:
        read_unit(manifest.files[0], 0, None, manifest.schema, manifest.columns, bucket.storage, {})
    assert caught.value.path == bucket.url("a.parquet")


def test_a_new_run_sees_a_new_object(bucket):
    source = Source(path=bucket.url("d"), storage=bucket.storage)
    bucket.put_table("d/a.parquet", pa.table({"x": [1]}))
    assert len(list_files(source)) == 1
    bucket.put_table("d/b.parquet", pa.table({"x": [1]}))
    assert len(list_files(source)) == 2


def test_the_endpoint_may_stand_in_the_environment(bucket, monkeypatch):
    bucket.put_table("a.parquet", pa.table({"x": [1]}))
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    assert len(list_files(Source(path=bucket.url("a.parquet"), storage=Storage(region="us-east-1")))) == 1


def test_a_public_bucket_needs_no_credentials(bucket, monkeypatch):
    bucket.put_table("a.parquet", pa.table({"x": [1]}))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    source = Source(path=bucket.url("a.parquet"), storage=Storage(endpoint_url=bucket.endpoint, anonymous=True))
    with pytest.raises(SourceError, match="denied"):
        list_files(source)
    bucket.publish("a.parquet")
    assert manifest_of(source).rows == 1


def test_missing_keys_prefixes_and_buckets_are_named(bucket):
    for path, message in (
        (bucket.url("none"), "no such file or directory"),
        (bucket.url("none/*.parquet"), "no file matches"),
        ("s3://nobody/x", "no such bucket"),
    ):
        with pytest.raises(SourceError, match=message) as caught:
            list_files(Source(path=path, storage=bucket.storage))
        assert caught.value.path == path


@pytest.mark.parametrize("status", [401, 403])
def test_denied_is_said(bucket, status):
    with s3.always(status) as (endpoint, asked):
        with pytest.raises(SourceError, match="denied"):
            list_files(Source(path="s3://secret/x", storage=Storage(endpoint_url=endpoint)))
        assert len(asked) <= 2
