"""One contract for every store: literal names, exact bytes, pinned versions, what is missing, a data set read whole."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3
import stores

from ingest.errors import IngestError, SourceError
from ingest.manifest.build import build_manifest
from ingest.manifest.listing import list_files
from ingest.manifest.parquet import index_files
from ingest.read.parquet import Piece, read_window
from ingest.spec import Source, Storage
from ingest.storage import counters
from ingest.storage.filesystem import open_filesystem

pytestmark = pytest.mark.integration

bucket, s3_endpoint = s3.bucket, s3.s3_endpoint  # fixtures
place, web_root, gcs_endpoint, azure_endpoint = (
    stores.place, stores.web_root, stores.gcs_endpoint, stores.azure_endpoint,
)  # fmt: skip
DATA = np.random.default_rng(7).bytes(200_000)


def files_of(place):
    return open_filesystem(place.url(), place.storage)


def table_bytes(table, **options):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("name", ["a b", "a+b", "a=b", "é", "%3A", "a*b", "[1]", "a&b", "日本"])
def test_names_are_literal(place, name):  # S01, S02
    place.put(f"deep/{name}", name.encode() * 3)
    place.put("deep/other", b"x")
    files = files_of(place)
    url = place.url(f"deep/{name}")
    found = next(info for info in files.walk(place.url("deep")) if info.size != 1)
    assert found.url == files.canonical(url)
    for info in (found, files.info(url)):
        assert info.size == len(name.encode()) * 3
        assert bytes(files.read_ranges(info.url, [(0, info.size)], info.etag)[0]) == name.encode() * 3


def test_ranges_come_exactly_and_in_the_order_asked(place):
    place.put("f", DATA)
    files = files_of(place)
    spans = [(199_990, 200_000), (0, 3), (5, 6), (1000, 150_000), (7, 7)]
    blobs = files.read_ranges(files.canonical(place.url("f")), spans)
    assert [bytes(blob) for blob in blobs] == [DATA[start:end] for start, end in spans]


def test_short_data_is_an_error(place):
    place.put("f", b"12345")
    with pytest.raises(SourceError, match="truncated"):
        files_of(place).read_ranges(place.url("f"), [(0, 6)])


def test_what_is_missing_is_named(place):
    place.put("f", b"x")
    files = files_of(place)
    assert files.info(place.url("none")) is None
    assert files.walk(place.url("none")) == []
    with pytest.raises(SourceError, match="no such file") as caught:
        files.read_ranges(place.url("none"), [(0, 1)])
    assert caught.value.path == place.url("none")
    with pytest.raises(SourceError, match="no such file or directory"):
        list_files(Source(path=place.url("none"), storage=place.storage))


def test_a_changed_file_is_refused_and_named(place):
    place.put("f", DATA)
    files = files_of(place)
    info = files.info(place.url("f"))
    place.put("f", DATA[:100])
    place.put("f", DATA[::-1])
    with pytest.raises(SourceError, match="changed since it was listed") as caught:
        files.read_ranges(info.url, [(0, 10)], info.etag)
    assert caught.value.path == info.url


def test_listing_is_recursive_and_stops_at_the_directory(place):
    for key in ("d/a", "d/sub/b", "d/sub/deep/c", "d2/x", "dx"):
        place.put(key, b"x")
    files = files_of(place)
    root = files.canonical(place.url("d"))
    for given in (place.url("d"), place.url("d") + "/"):
        names = sorted(info.url.removeprefix(root) for info in files.walk(given))
        assert names == ["/a", "/sub/b", "/sub/deep/c"]


def test_a_new_run_sees_new_files(place):  # S16
    place.put("d/a", b"x")
    files = files_of(place)
    assert len(files.walk(place.url("d"))) == 1
    place.put("d/b", b"x")
    assert len(files.walk(place.url("d"))) == 2


def test_a_data_set_is_read_whole(place):
    tables = [
        pa.table({"x": range(start, start + 100), "b": [DATA[i : i + 50] for i in range(100)]}) for start in (0, 100)
    ]
    for i, table in enumerate(tables):
        place.put(f"set/k={i}/part {i}.parquet", table_bytes(table, row_group_size=30))
    place.put("set/_SUCCESS", b"")
    place.put("set/k=0/empty.parquet", b"")
    source = Source(path=place.url("set"), columns=["x", "b", "k"], storage=place.storage)
    files = list_files(source)
    manifest = build_manifest(files, index_files(files, source.columns, source.storage), source)
    assert manifest.rows == 200
    units = manifest.units
    pieces = [Piece(manifest.files[f], int(o), None) for f, o in zip(units.file, units.ordinal, strict=True)]
    got = read_window(pieces, manifest.schema, manifest.columns, place.storage, {})
    assert got["x"].to_pylist() == list(range(200))
    assert got["k"].to_pylist() == [0] * 100 + [1] * 100
    assert got["b"].to_pylist() == tables[0]["b"].to_pylist() * 2


def test_requests_and_bytes_are_counted(place):
    place.put("f", DATA)
    files = files_of(place)
    url = files.canonical(place.url("f"))
    before = counters()
    files.info(url)
    files.read_ranges(url, [(0, 100), (5000, 5050)])
    got = {name: after - before[name] for name, after in counters().items()}
    remote = not url.startswith("/")
    assert (got["head_requests"], got["get_requests"], got["get_bytes"]) == ((1, 2, 150) if remote else (0, 0, 0))


def test_azure_folders_are_no_files(request, tmp_path, monkeypatch):  # S05
    place = stores.make_place("az", request, tmp_path, monkeypatch)
    place.put_folder("d")
    place.put_folder("d/sub")
    place.put("d/sub/a.parquet", table_bytes(pa.table({"x": [1]})))
    found = list_files(Source(path=place.url("d"), storage=place.storage))
    assert [entry.path for entry in found] == ["sub/a.parquet"]


def test_names_with_empty_parts_are_refused_where_they_cannot_be_read(request, tmp_path, monkeypatch):
    place = stores.make_place("gs", request, tmp_path, monkeypatch)
    place.put("d//x", b"1")
    with pytest.raises(SourceError, match="empty path segment"):
        files_of(place).walk(place.url("d"))


@pytest.mark.parametrize("url", ["hf://datasets/a/b", "sftp://host/x", "gopher://host/x"])
def test_schemes_whose_library_is_missing_are_named(url):
    scheme = url.partition(":")[0]
    with pytest.raises(IngestError, match=f"{scheme}://"):
        list_files(Source(path=url))


def test_a_web_server_without_sizes_or_ranges(web_root):
    folder, url = web_root
    (folder / "plain").write_bytes(DATA)
    with pytest.raises(SourceError, match="no such file"):
        open_filesystem(url, Storage()).read_ranges(f"{url}/gone", [(0, 1)])
    assert open_filesystem(url, Storage()).info(f"{url}/plain").size == len(DATA)
