"""An S3 server of our own for the demo and the tests: moto's, in a child process, gone when its parent is.

Run as a module it is that child: it serves on a free loopback port, prints its URL, and ends with its standard input.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import boto3
from botocore.config import Config

DUMMY_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",  # a stray request must not wait for a metadata service that is not there
}
REAL_CREDENTIALS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


@contextmanager
def s3_server(*, deadline_s: float = 60) -> Iterator[str]:
    """Serve S3 on a free loopback port and yield the endpoint's URL; the server's data lives in its memory.

    Raises:
        RuntimeError: the server ended, or said nothing within `deadline_s` seconds.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "jobs.s3_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each request
        env={**os.environ, **DUMMY_CREDENTIALS},
    )
    try:
        yield _first_line(child, deadline_s)
    finally:
        _end(child)


@contextmanager
def dummy_credentials() -> Iterator[None]:
    """Credentials that mean nothing, in the environment, in place of any real ones; afterwards it is as it was."""
    names = (*DUMMY_CREDENTIALS, *REAL_CREDENTIALS)
    before = {name: os.environ.get(name) for name in names}
    for name in REAL_CREDENTIALS:
        os.environ.pop(name, None)
    os.environ.update(DUMMY_CREDENTIALS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def client(endpoint_url: str | None = None) -> Any:
    """A boto3 client of an S3 server; path-style, since a server on an IP address has no bucket names in DNS."""
    return boto3.client("s3", endpoint_url=endpoint_url, config=Config(s3={"addressing_style": "path"}))


def create_bucket(name: str, endpoint_url: str | None = None) -> str:
    """Create a bucket and return its `s3://` URL."""
    client(endpoint_url).create_bucket(Bucket=name)
    return f"s3://{name}"


def put_object(url: str, data: bytes, endpoint_url: str | None = None) -> None:
    """Write one object.

    Raises:
        ValueError: `url` is not `s3://bucket/key`.
    """
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not bucket or not key:
        raise ValueError(f"not an s3://bucket/key URL: {url}")
    client(endpoint_url).put_object(Bucket=bucket, Key=key, Body=data)


def _first_line(child: subprocess.Popen[bytes], deadline_s: float) -> str:
    stdout = _pipe(child.stdout)
    end, line = time.monotonic() + deadline_s, b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([stdout], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            raise RuntimeError(f"the S3 server said nothing within {deadline_s} s")
        piece = os.read(stdout.fileno(), 4096)
        if not piece:
            raise RuntimeError(f"the S3 server ended with status {child.wait()}; is moto[server] installed?")
        line += piece
    return line.decode().strip()


def _end(child: subprocess.Popen[bytes]) -> None:
    _pipe(child.stdin).close()  # the child's signal to end
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    _pipe(child.stdout).close()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("the S3 server was started without pipes")
    return stream


def _serve() -> None:
    from moto.server import ThreadedMotoServer  # the parent has no use for it

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()  # ends when the parent closes it, or is gone; the server's thread ends with the process


if __name__ == "__main__":
    _serve()
