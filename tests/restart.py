"""What a resume costs beside a fresh start: `python -m tests.restart SPEC [--at 0.9] [--repeats 3]`.

For each of several pairs the seconds from making a loader to its first batch, and the bytes that all processes have
read once reading has come to rest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time

import psutil
import ray

import ingest
from ingest.spec import Spec

REST_S, MOST_S = 2.0, 60.0  # without a byte read; to wait for that


def bytes_read() -> dict[int, int]:
    """By process: what this one's descendants have read from files so far."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            found[process.pid] = process.io_counters().read_chars
        except psutil.Error:
            continue
    return found


def grown(before: dict[int, int], after: dict[int, int]) -> int:
    return sum(count - before.get(pid, 0) for pid, count in after.items())


def start(spec: Spec, cache: str, share: float, epochs: int | None) -> tuple[float, int]:
    """(seconds to the first batch, bytes read) of a loader that begins at a share of the first epoch."""
    before = bytes_read()
    with ingest.Loader(spec, 0, 1, cache_dir=cache, epochs=epochs) as loader:
        if share:
            state = loader.state_dict()
            step = loader.state_dict()["rows"] // len(loader)
            loader.load_state_dict({**state, "position": int(len(loader) * share) * step})
        next(iter(loader))
        first_batch_s = loader.report()["first_batch_s"]
        read, since, began = 0, time.monotonic(), time.monotonic()
        while time.monotonic() - since < REST_S and time.monotonic() - began < MOST_S:
            time.sleep(0.2)
            now = grown(before, bytes_read())
            if now - read > 1 << 20:  # logs and heartbeats are read all the time
                read, since = now, time.monotonic()
        return first_batch_s, read


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("spec")
    parser.add_argument("--at", type=float, default=0.9)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    spec = Spec.load(asked.spec)
    ray.init(address="local", logging_level="ERROR", log_to_driver=False, include_dashboard=False)
    with tempfile.TemporaryDirectory() as cache:
        start(spec, cache, 0.0, None)  # lists the data
        pairs = [(start(spec, cache, 0.0, None), start(spec, cache, asked.at, None)) for _ in range(asked.repeats)]
    ray.shutdown()
    result = {
        "fresh_first_batch_s": [round(fresh[0], 2) for fresh, _ in pairs],
        "resumed_first_batch_s": [round(resumed[0], 2) for _, resumed in pairs],
        "ratio": round(statistics.median(resumed[0] / fresh[0] for fresh, resumed in pairs), 3),
        "fresh_read_mb": [round(fresh[1] / 1e6) for fresh, _ in pairs],
        "resumed_read_mb": [round(resumed[1] / 1e6) for _, resumed in pairs],
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
