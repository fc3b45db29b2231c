"""A real S3 server (moto's) on a free port, and servers that always give one answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.s3.models import get_canned_acl, s3_backends
from moto.server import ThreadedMotoServer

from ingest.spec import Storage

ACCOUNT = "123456789012"  # moto's own


class Bucket:
    """A bucket on a running server; written straight into the server's memory, read over HTTP."""

    def __init__(self, name: str, endpoint: str) -> None:
        self.name = name
        self.endpoint = endpoint
        self.storage = Storage(endpoint_url=endpoint)
        self._backend = s3_backends[ACCOUNT]["aws"]
        self._backend.create_bucket(name, "us-east-1")

    def url(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}"

    def put(self, key: str, data: bytes) -> None:
        self._backend.put_object(self.name, key, data)

    def objects(self) -> dict[str, bytes]:
        """All objects by key."""
        return {
            key.name: key.value
            for key in self._backend.list_objects(self._backend.get_bucket(self.name), None, None, None, None)[0]
        }

    def publish(self, key: str) -> None:
        """Let everyone read an object."""
        self._backend.get_object(self.name, key).set_acl(get_canned_acl("public-read"))

    def put_table(self, key: str, table: pa.Table, **options) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, **options)
        self.put(key, sink.getvalue().to_pybytes())


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_endpoint, request, monkeypatch) -> Bucket:
    """An empty bucket of its own for each test, its name with a dot in it, and credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    number = len(s3_backends[ACCOUNT]["aws"].buckets)
    return Bucket(f"bucket.{number}", s3_endpoint)


@contextmanager
def always(status: int, body: bytes = b"") -> Iterator[tuple[str, list[str]]]:
    """(endpoint, paths asked for so far) of a server with one answer to everything."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *args) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
