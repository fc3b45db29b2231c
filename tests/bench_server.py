"""moto's S3 server for benchmarks: in a process of its own, its objects put straight into its memory."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

ACCOUNT, REGION = "123456789012", "us-east-1"  # moto's own


def serve_objects(bucket: str, objects: Iterable[tuple[str, bytes]]) -> str:
    """Start a server in a thread of this process, with a public bucket of (key, content); returns its endpoint."""
    from moto.s3.models import get_canned_acl, s3_backends
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    backend = s3_backends[ACCOUNT]["aws"]
    backend.create_bucket(bucket, REGION).set_acl(get_canned_acl("public-read"))
    for key, content in objects:
        backend.put_object(bucket, key, content)
    return f"http://{host}:{port}"


def serve_until_closed(pipe: Connection, told: Any) -> None:
    """Tell the other end, and end this process, the server's thread included, when that end is closed or gone."""
    pipe.send(told)
    pipe.poll(None)
    os._exit(0)


@contextmanager
def in_a_process(serve: Callable[..., None], *arguments: Any, deadline_s: float) -> Iterator[Any]:
    """What `serve(*arguments, pipe)` tells, from a process of its own that lasts as long as this.

    Raises:
        RuntimeError: it has told nothing within `deadline_s` seconds.
    """
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=serve, args=(*arguments, theirs), daemon=True)
    child.start()
    try:
        if not ours.poll(deadline_s):
            raise RuntimeError(f"the server said nothing within {deadline_s:.0f} s")
        yield ours.recv()
    finally:
        child.terminate()
        child.join(10)
