"""Filesystems: local and generic ones keep the same small contract, literal names above all."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_storage_options
from obstore import exceptions as failures

from ingest.errors import SourceError
from ingest.spec import Storage
from ingest.storage.filesystem import open_filesystem, read_file, write_file
from ingest.storage.obstore_errors import explained

pytestmark = pytest.mark.unit

AWKWARD = ["a b", "a+b", "a=b", "é", "%3A", "a?b", "a*b", "[1]", "a#b"]


@pytest.fixture(params=["local", "file-url", "memory"])
def root(request, tmp_path):
    """A URL under which `put` writes; memory stands for everything that fsspec knows."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    return ("file://" if request.param == "file-url" else "") + str(tmp_path)


def put(url, data):
    if url.startswith("memory://"):
        fsspec.filesystem("memory").pipe(url.removeprefix("memory:/"), data)
        return
    path = Path(url.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("name", AWKWARD)
def test_names_are_literal(root, name):
    url = f"{root}/deep/{name}"
    put(url, name.encode() * 3)
    put(f"{root}/deep/other", b"x")
    files = open_filesystem(root, Storage())
    listed = {info.url: info for info in files.walk(f"{root}/deep")}
    found = next(info for key, info in listed.items() if key.endswith("/" + name))
    assert found.size == len(name.encode()) * 3
    assert bytes(files.read_ranges(found.url, [(0, found.size)], found.etag)[0]) == name.encode() * 3
    assert files.info(url).size == found.size


def test_ranges_come_in_the_order_asked(root):
    put(f"{root}/f", bytes(range(100)))
    blobs = open_filesystem(root, Storage()).read_ranges(f"{root}/f", [(90, 100), (0, 3), (5, 6)])
    assert [bytes(blob) for blob in blobs] == [bytes(range(90, 100)), bytes(range(3)), b"\x05"]


def test_short_data_is_an_error(root):
    put(f"{root}/f", b"12345")
    with pytest.raises(SourceError, match="truncated"):
        open_filesystem(root, Storage()).read_ranges(f"{root}/f", [(0, 6)])


def test_what_is_missing(root):
    files = open_filesystem(root, Storage())
    assert files.info(f"{root}/none") is None
    assert files.walk(f"{root}/none") == []
    assert not files.is_directory(f"{root}/none")
    with pytest.raises(SourceError, match="no such file") as caught:
        files.read_ranges(f"{root}/none", [(0, 1)])
    assert caught.value.path.endswith("/none")


def test_a_directory_is_no_file(root):
    put(f"{root}/d/f", b"x")
    files = open_filesystem(root, Storage())
    assert files.info(f"{root}/d") is None
    assert files.is_directory(f"{root}/d")


def test_a_changed_local_file_is_refused(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"12345")
    files = open_filesystem(str(file), Storage())
    etag = files.info(str(file)).etag
    file.write_bytes(b"123456")
    with pytest.raises(SourceError, match="changed since it was listed"):
        files.read_ranges(str(file), [(0, 5)], etag)


def test_a_link_to_nothing_is_listed_as_such_and_no_file(tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "folder")
    files = open_filesystem("/", Storage())
    found = sorted((Path(info.url).name, info.dangling) for info in files.walk(str(tmp_path)))
    assert found == [("f", False), ("gone", True)]
    assert files.info(str(tmp_path / "gone")) is None


def test_a_link_to_the_directory_above_is_walked_once(tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [info.url for info in open_filesystem("/", Storage()).walk(str(tmp_path))] == [f"{tmp_path}/f"]


def test_unknown_scheme_and_missing_bucket_are_named():
    with pytest.raises(SourceError, match="nosuch://"):
        open_filesystem("nosuch://x/y", Storage())
    with pytest.raises(SourceError, match="names no bucket"):
        open_filesystem("s3:///key", Storage())


@pytest.mark.parametrize(
    "endpoint",
    [
        "nonsense",
        "127.0.0.1:9000",
        "minio:9000",
        "http://",
        "http://a b:9000",
        "http://h:99999999",
        "ftp://h",
        "http://[::1",
    ],
)
@pytest.mark.parametrize("url", ["s3://bucket/x", "abfs://c@account.dfs.core.windows.net/x"])
def test_an_endpoint_that_is_no_url_is_named_wherever_it_comes_from(monkeypatch, endpoint, url):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(SourceError, match=f"the endpoint is no URL: {re.escape(endpoint)}"):
        open_filesystem(url, Storage(endpoint_url=endpoint, retry_s=1.1)).info(url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    with pytest.raises(SourceError, match="http://HOST:PORT"):
        open_filesystem(url, Storage(retry_s=1 + len(endpoint))).info(url)  # one that is not cached


@pytest.mark.parametrize("bucket", ["a b", "a?b", "a#b", "b\u00fc", "a%20b", "[b]", "{b}", "b*", 'b"'])
def test_what_is_no_name_of_a_bucket_is_refused(bucket):
    with pytest.raises(SourceError, match="cannot be the name of a bucket"):
        open_filesystem(f"s3://{bucket}/x", Storage())


class OnHosts(MemoryFileSystem):
    """As SFTP, FTP and HDFS have it: the server is an option, and no part of a path."""

    protocol = "onhosts"
    servers: ClassVar[dict] = {}

    def __init__(self, host, port=None, **options):
        super().__init__(**options)
        if host == "nowhere":
            raise OSError("no route to host\nand a long story")
        self.store = self.servers.setdefault((host, port), {})

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(infer_storage_options(path)["path"])

    @staticmethod
    def _get_kwargs_from_urls(path):
        found = infer_storage_options(path)
        return {key: found[key] for key in ("host", "port") if key in found}


def test_servers_that_a_url_names_are_reached_and_stay_in_what_is_listed():
    fsspec.register_implementation("onhosts", OnHosts, clobber=True)
    for host in ("one", "two:2022"):
        write_file(f"onhosts://{host}/data/a.bin", host.encode(), Storage())
    for host in ("one", "two:2022"):
        files = open_filesystem(f"onhosts://{host}/data", Storage())
        (found,) = files.walk(f"onhosts://{host}/data")
        assert found.url == files.canonical(f"onhosts://{host}/data") + "/a.bin" == f"onhosts://{host}/data/a.bin"
        assert read_file(found.url, Storage()) == host.encode()
    with pytest.raises(SourceError, match=r"cannot open onhosts:// URLs: no route to host$"):
        open_filesystem("onhosts://nowhere/data", Storage())
    with pytest.raises(SourceError, match=r"cannot open onhosts:// URLs: .*host"):
        open_filesystem("onhosts:///data", Storage())


def test_missing_credentials_are_named():
    error = failures.GenericError(
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1s"
    )
    assert "no credentials" in str(explained(error, "s3://b/x"))
    assert "Debug source" not in str(explained(failures.GenericError("a\n\nDebug source: b"), "s3://b/x"))


def test_cloud_options_on_another_scheme_are_refused():
    with pytest.raises(SourceError, match=r"source\.storage"):
        open_filesystem("memory://x", Storage(region="eu-central-1"))


def test_filesystems_are_cached_by_bucket_and_options():
    one = open_filesystem("s3://a/x", Storage(anonymous=True, region="r"))
    assert open_filesystem("s3://a/y", Storage(anonymous=True, region="r")) is one
    assert open_filesystem("s3://b/x", Storage(anonymous=True, region="r")) is not one


def test_canonical_urls_are_prefixes_of_what_is_listed(root):
    put(f"{root}/d/e/f", b"x")
    files = open_filesystem(root, Storage())
    for given in (f"{root}/d", f"{root}/d/"):
        (found,) = files.walk(given)
        assert found.url == files.canonical(given).rstrip("/") + "/e/f"
    assert files.info(f"{root}/d/e/f").url == files.canonical(f"{root}/d/e/f")


def test_canonical_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_filesystem("data/", Storage()).canonical("data/") == f"{tmp_path}/data/"
    cloud = open_filesystem("s3://b/x", Storage(anonymous=True, region="r"))
    assert cloud.canonical("s3://b/a b%3A//?#") == "s3://b/a b%3A//?#"
    assert cloud.canonical("s3://b") == "s3://b/"
