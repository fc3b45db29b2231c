"""The demo's images and its S3 server: real, distinct, repeatable pictures, in a folder or in a bucket."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.demo_data import SCHEMA, file_rows, main, write_images
from jobs.s3_server import DUMMY_CREDENTIALS, client, create_bucket, dummy_credentials, put_object, s3_server

pytestmark = pytest.mark.integration


def read(files) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in files)


def test_images_are_real_distinct_and_learnable(tmp_path):
    files = write_images(tmp_path / "new", 120, files=3, spread=4, rows_per_group=16, size=(64, 48))
    assert [pq.ParquetFile(file).metadata.num_rows for file in files] == file_rows(120, 3, 4) == [17, 34, 69]
    assert pq.ParquetFile(files[2]).metadata.num_row_groups == 5
    table = read(files)
    assert table.schema.equals(SCHEMA)
    images = [row["bytes"] for row in table["image"].to_pylist()]
    assert len(set(images)) == 120
    pixels = np.stack([cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR) for image in images])
    assert pixels.shape == (120, 48, 64, 3)
    assert pixels.std(axis=(1, 2, 3)).min() > 10, "photographs are not flat"
    assert set(table["label"].to_pylist()) == set(range(6))


def test_the_command_writes_what_the_function_does(tmp_path, capsys):
    main([str(tmp_path / "a"), "--rows", "24"])
    files = write_images(tmp_path / "b", 24)
    assert [file.read_bytes() for file in sorted((tmp_path / "a").iterdir())] == [Path(f).read_bytes() for f in files]
    assert "24 JPEGs in 8 Parquet files" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_bytes_with_any_threads(tmp_path):
    def content(name, **options):
        files = write_images(tmp_path / name, 24, files=2, size=(64, 48), **options)
        return [Path(file).read_bytes() for file in files]

    first = content("a", threads=1)
    assert first == content("b", threads=4)
    assert first != content("c", threads=1, seed=1)


@pytest.mark.parametrize(("rows", "files", "spread"), [(1, 1, 1), (8, 8, 100), (500, 6, 100), (16_000, 64, 1)])
def test_file_rows_add_up_and_grow(rows, files, spread):
    counts = file_rows(rows, files, spread)
    assert (len(counts), sum(counts)) == (files, rows)
    assert min(counts) >= 1
    assert counts[-1] == max(counts)


@pytest.mark.parametrize(("rows", "files", "spread"), [(3, 4, 1), (5, 0, 1), (5, 2, 0.5)])
def test_file_rows_that_cannot_be_are_refused(rows, files, spread):
    with pytest.raises(ValueError, match=f"{rows} rows do not make {files} files"):
        file_rows(rows, files, spread)


def test_a_bucket_gets_what_a_folder_gets(tmp_path):
    with dummy_credentials(), s3_server() as endpoint_url:
        bucket = create_bucket("demo", endpoint_url)
        urls = write_images(f"{bucket}/train/", 20, files=2, size=(64, 48), endpoint_url=endpoint_url)
        assert urls == ["s3://demo/train/part-00000.parquet", "s3://demo/train/part-00001.parquet"]
        s3 = client(endpoint_url)
        keys = [url.removeprefix("s3://demo/") for url in urls]
        stored = [s3.get_object(Bucket="demo", Key=key)["Body"].read() for key in keys]
    files = write_images(tmp_path, 20, files=2, size=(64, 48))
    assert stored == [Path(file).read_bytes() for file in files]


def test_the_server_is_gone_afterwards():
    with s3_server() as endpoint_url, urllib.request.urlopen(endpoint_url) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(endpoint_url)


def test_a_server_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="ended with status 1"), s3_server():
        pass


def test_a_server_that_says_nothing_is_an_error_in_time():
    with pytest.raises(RuntimeError, match="said nothing within 0 s"), s3_server(deadline_s=0):
        pass


def test_the_environment_is_as_it_was(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.delenv("AWS_REGION", raising=False)
    before = dict(os.environ)
    with dummy_credentials():
        assert {name: os.environ[name] for name in DUMMY_CREDENTIALS} == DUMMY_CREDENTIALS
        assert "AWS_PROFILE" not in os.environ
    assert dict(os.environ) == before


@pytest.mark.parametrize("url", ["bucket/key", "s3://bucket", "s3:///key"])
def test_an_object_needs_a_bucket_and_a_key(url):
    with pytest.raises(ValueError, match="not an s3://bucket/key URL"):
        put_object(url, b"")
