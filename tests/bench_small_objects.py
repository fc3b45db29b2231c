"""Many small objects: `python -m tests.bench_small_objects [--objects 50000] [--nginx PATH] [--ray]`.

Objects of 2 kB, Parquet files all alike, in moto's S3 server, in a process of its own. The server's ceiling stands
beside each figure: obstore's listing and obstore's gets, side by side with ours. moto answers a few hundred requests a
second; with `--nginx` it answers listings alone, and nginx (Debian's) before it gives the objects.

With `--ray` a loader starts: seconds until the data is indexed, until the first batch, and memory of this process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

import ingest
from ingest.manifest.listing import list_files
from ingest.manifest.parquet import index_files
from ingest.spec import Source, Spec, Storage
from ingest.storage import counters
from jobs.s3_server import dummy_credentials
from tests.bench_server import in_a_process, serve_objects, serve_until_closed

BUCKET, ROWS, SAMPLE, THREADS, PER_TASK = "small", 8, 5000, 16, 256

# Two servers: the first sends listings on to moto and takes the pinned version off a request for an object, since the
# second knows no ETag of its own making: moto's stand in the listing, and all objects have the same.
NGINX = """
worker_processes 1; daemon off; pid %(folder)s/pid; error_log %(folder)s/error warn;
events { worker_connections 512; }
http {
  access_log off; keepalive_requests 1000000; default_type application/octet-stream;
  client_body_temp_path %(folder)s/b; proxy_temp_path %(folder)s/p; fastcgi_temp_path %(folder)s/f;
  uwsgi_temp_path %(folder)s/u; scgi_temp_path %(folder)s/s;
  upstream objects { server unix:%(folder)s/objects; keepalive 64; }
  server {
    listen 127.0.0.1:%(port)d;
    location / {
      if ($args ~ list-type) { proxy_pass %(moto)s; }
      proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header If-Match "";
      proxy_pass http://objects;
    }
  }
  server {
    listen unix:%(folder)s/objects;
    etag off; add_header ETag '%(etag)s';
    location ~ [.]parquet$ { root %(folder)s; try_files /object =404; }
    location / { return 404; }
  }
}
"""


def _object() -> bytes:
    """A Parquet file of about 2 kB."""
    sink = pa.BufferOutputStream()
    table = pa.table({"x": range(ROWS), "b": [os.urandom(60) for _ in range(ROWS)]})
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    return sink.getvalue().to_pybytes()


def _serve(data: bytes, objects: int, pipe: Any) -> None:
    serve_until_closed(pipe, serve_objects(BUCKET, ((f"d/{i:06d}.parquet", data) for i in range(objects))))


@contextmanager
def served(objects: int, nginx: str | None) -> Iterator[str]:
    """The endpoint."""
    data = _object()
    with in_a_process(_serve, data, objects, deadline_s=300) as endpoint:
        if nginx is None:
            yield endpoint
        else:
            with _before(nginx, endpoint, data) as front:
                yield front


@contextmanager
def _before(nginx: str, moto: str, data: bytes) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # its worker is another user
        (Path(folder) / "object").write_bytes(data)
        etag = f'"{hashlib.md5(data).hexdigest()}"'  # as S3 names versions
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        (Path(folder) / "conf").write_text(NGINX % {"folder": folder, "port": port, "moto": moto, "etag": etag})
        server = subprocess.Popen([nginx, "-c", f"{folder}/conf", "-e", f"{folder}/error"])
        try:
            for _ in range(100):
                if (Path(folder) / "pid").exists():
                    break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(10)


def timed(work: Callable[[], Any]) -> tuple[Any, float, float, dict[str, int]]:
    """(result, seconds, seconds of this process's processor time, its requests and bytes)."""
    before, began, cpu = counters(), time.perf_counter(), time.process_time()
    found = work()
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return found, seconds, cpu_s, {name: total - before[name] for name, total in counters().items()}


def alone(endpoint: str) -> dict[str, Any]:
    """Listing, and footers of some objects in one process; ours and obstore's."""
    storage = Storage(endpoint_url=endpoint)
    store = obstore.store.S3Store(BUCKET, endpoint=endpoint, client_options={"allow_http": True})
    files, list_s, list_cpu_s, listed = timed(lambda: list_files(Source(path=f"s3://{BUCKET}/d", storage=storage)))
    plain, plain_list_s, _, _ = timed(lambda: sum(len(page) for page in obstore.list(store, "d", chunk_size=1000)))
    assert plain == len(files), (plain, len(files))
    some = files[:SAMPLE]

    def ours() -> int:
        groups = [some[at : at + PER_TASK] for at in range(0, len(some), PER_TASK)]
        return sum(len(index_files(group, None, storage)) for group in groups)

    def theirs() -> int:
        with ThreadPoolExecutor(THREADS) as pool:
            keys = [entry.url.partition(f"{BUCKET}/")[2] for entry in some]
            return sum(pool.map(lambda key: len(obstore.get(store, key).bytes()) > 0, keys))

    indexed, index_s, index_cpu_s, asked = timed(ours)
    got, get_s, get_cpu_s, _ = timed(theirs)
    assert indexed == got == len(some)
    return {
        "objects": len(files),
        "list_s": list_s,
        "list_cpu_s": list_cpu_s,
        "list_requests": listed["list_requests"],
        "other_requests": listed["get_requests"] + listed["head_requests"],
        "obstore_list_s": plain_list_s,
        "indexed": indexed,
        "index_us_each": 1e6 * index_s / indexed,
        "index_cpu_us_each": 1e6 * index_cpu_s / indexed,
        "index_requests_each": asked["get_requests"] / indexed,
        "obstore_get_us_each": 1e6 * get_s / got,
        "obstore_get_cpu_us_each": 1e6 * get_cpu_s / got,
    }


def started(endpoint: str) -> dict[str, Any]:
    """A loader, from nothing to its first batch."""
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    source = {"path": f"s3://{BUCKET}/d", "storage": {"endpoint_url": endpoint}}
    began = time.perf_counter()
    with ingest.Loader(Spec(source=source, batch={"size": 64}), rank=0, world_size=1, cache_dir=None) as loader:
        next(iter(loader))
        seconds = time.perf_counter() - began
        report = loader.report()
    return {
        "index_s": report["manifest_s"],
        "first_batch_s_more": seconds - report["manifest_s"],
        "index_storage": report["index_storage"],
        "driver_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Print one JSON line with the figures and the command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--objects", type=int, default=50_000)
    options.add_argument("--nginx", help="the path of nginx, to serve the objects")
    options.add_argument("--ray", action="store_true", help="start a loader instead")
    given = options.parse_args()
    with dummy_credentials(), served(given.objects, given.nginx) as endpoint:
        told = started(endpoint) if given.ray else alone(endpoint)
    print(json.dumps({**told, "command": f"python -m tests.bench_small_objects {' '.join(sys.argv[1:])}"}))


if __name__ == "__main__":
    main()
