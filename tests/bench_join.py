"""How soon a reader node that joins is used: `python -m tests.bench_join [--delay 1] [--cpus 2] [--seconds 25]`.

A cluster of a head without CPUs and a reader node of one; a store whose every answer takes `--delay` seconds, so that
readers are the bottleneck and no processor is. A node of `--cpus` more joins an epoch under way, and leaves it again.
Printed as one JSON line: reads a second with one node, with both and after; how many CPUs read meanwhile; the ratio of
the rates beside that of the CPUs; and the seconds from the node's registration to its first read, and to the first two
at 80% of the rate with both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from jobs.s3_server import dummy_credentials, s3_server
from tests.integration import faults, ray_nodes

UNITS, UNIT_ROWS, FILES = 800, 100, 8
LABEL = "--labels=ingest-role=reader"
CONSUMER = """
import sys, ray, ingest
ray.init(log_to_driver=False, logging_level="ERROR")
with ingest.Loader(sys.argv[1], 0, 1, epochs=1, cache_dir=None) as loader:
    for batch in loader:
        print(len(batch["x"]), flush=True)
"""
READS = """
import json, ray
from ray.util.state import list_tasks
ray.init(log_to_driver=False, logging_level="ERROR")
tasks = [t for t in list_tasks(limit=10000, detail=True) if t.name.startswith("Read") and t.node_id and t.end_time_ms]
print(json.dumps([(t.node_id, t.start_time_ms / 1000, t.end_time_ms / 1000) for t in tasks]))
"""


def put_data(endpoint: str) -> None:
    """Whole numbers, in row groups that are one request each."""
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket="join")
    each = UNITS // FILES * UNIT_ROWS
    for number in range(FILES):
        sink = pa.BufferOutputStream()
        table = pa.table({"x": range(number * each, (number + 1) * each)})
        pq.write_table(table, sink, row_group_size=UNIT_ROWS)
        client.put_object(Bucket="join", Key=f"train/{number}.parquet", Body=sink.getvalue().to_pybytes())


@contextmanager
def consumer(nodes: ray_nodes.Nodes, spec: Path) -> Iterator[None]:
    """A trainer that takes batches as they come, in a process of its own; entered once the first is there."""
    command = [sys.executable, "-c", CONSUMER, str(spec)]
    env = nodes.env(RAY_ADDRESS=nodes.address)
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        if not process.stdout.readline():
            raise RuntimeError("no batch came")
        yield
    finally:
        process.terminate()
        process.wait(30)


@dataclass
class Reads:
    """(node, start, end) of every read, instants in seconds."""

    all: list[tuple[str, float, float]]

    def rate(self, begin: float, end: float) -> float:
        """Reads a second that ended between two instants."""
        return sum(begin <= at < end for _, _, at in self.all) / (end - begin)

    def busy(self, begin: float, end: float) -> float:
        """CPUs that read, on average between two instants."""
        return sum(max(0.0, min(end, till) - max(begin, start)) for _, start, till in self.all) / (end - begin)

    def first_on_last_node(self) -> float:
        """The instant when the node that was read from last began its first read."""
        return max(min(start for node, start, _ in self.all if node == each) for each, *_ in self.all)


def measure(nodes: ray_nodes.Nodes, spec: Path, cpus: int, seconds: float) -> dict[str, object]:
    """The figures of the module's docstring."""
    pause = threading.Event()
    nodes.add(LABEL, cpus=1)
    with consumer(nodes, spec):
        pause.wait(seconds)
        started = time.time()
        joined = nodes.add(LABEL, cpus=cpus)
        registered = time.time()
        pause.wait(seconds)
        leaving = time.time()
        nodes.end(joined)
        pause.wait(2 * seconds)
        last = time.time()
        reads = Reads(json.loads(_python(nodes, READS).splitlines()[-1]))
    both = reads.rate(leaving - seconds / 2, leaving)
    alone = reads.rate(started - seconds / 2, started)
    full = (at for at in range(int(registered), int(leaving)) if reads.rate(at, at + 2.0) >= 0.8 * both)
    return {
        "reads_per_s_alone": alone,
        "reads_per_s_both": both,
        "reads_per_s_after": reads.rate(last - seconds, last),
        "cpus_busy_alone": reads.busy(started - seconds / 2, started),
        "cpus_busy_both": reads.busy(leaving - seconds / 2, leaving),
        "ratio": both / alone,
        "ratio_of_cpus": 1 + cpus,
        "started_to_registered_s": registered - started,
        "registered_to_first_read_s": reads.first_on_last_node() - registered,
        "registered_to_80_percent_s": next(full) - registered,
        "reads_of_each_second": [round(reads.rate(at, at + 1.0)) for at in range(int(started), int(last))],
        "left_after_s": leaving - started,
    }


def _python(nodes: ray_nodes.Nodes, code: str) -> str:
    env = nodes.env(RAY_ADDRESS=nodes.address)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=90, check=True)
    return done.stdout


def main(argv: Sequence[str] | None = None) -> None:
    """Print one JSON line with the figures and the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=25.0)
    given = parser.parse_args(argv)
    with dummy_credentials(), s3_server() as endpoint, tempfile.TemporaryDirectory(prefix="j", dir="/tmp") as name:
        put_data(endpoint)
        with faults.proxy(endpoint) as proxy, ray_nodes.cluster_of(Path(name), token=False, cpus=0) as nodes:
            proxy.delay_s = given.delay
            values = {
                "source": {"path": "s3://join/train/", "storage": {"endpoint_url": proxy.endpoint}},
                "order": {"lanes": 4, "interleave": 1},
                "read": {"labels": {"ingest-role": "reader"}},
                "batch": {"size": 20},
            }
            spec = Path(name) / "spec.yaml"
            spec.write_text(yaml.safe_dump(values), encoding="utf-8")
            found = measure(nodes, spec, given.cpus, given.seconds)
    print(json.dumps({**found, "command": f"python -m tests.bench_join {' '.join(sys.argv[1:])}".rstrip()}))


if __name__ == "__main__":
    main()
