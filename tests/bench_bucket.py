"""What a bucket costs: `python -m tests.bench_bucket FOLDER [--rows N] [--epochs E] [--rounds R]`.

Rows of Parquet images in FOLDER are put into moto's S3 server, in a process of its own with proxies before it. Sides
take turns; each figure is the median of its rounds, and the answers are ratios.

First whole objects, eight at a time, without Ray and without a proxy: through `storage`, and by obstore's own get. Then
epochs of augmented images: from local files, from the server, from the server 30 ms further away, and from behind a
proxy that fails 5% of its requests in five ways. Every sample of every side is compared.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import ray

import ingest
from ingest.spec import Spec, Storage
from ingest.storage.filesystem import open_filesystem
from jobs.s3_server import dummy_credentials
from tests.bench_server import in_a_process, serve_objects, serve_until_closed
from tests.integration import faults

BUCKET, GROUP_ROWS, FILE_ROWS = "bench", 64, 128
DELAY_S, FAILING = 0.03, 0.05
WORKERS, OBJECT_TIMES, OBJECT_ROUNDS = 8, 8, 9  # of whole objects


def cut(folder: Path, rows: int, into: Path) -> None:
    """The first rows of a folder of Parquet files, in small files: moto copies a whole object for each range of it."""
    tables, count = [], 0
    for path in sorted(folder.glob("*.parquet")):
        tables.append(pq.read_table(path, columns=["image", "label"]))
        count += len(tables[-1])
        if count >= rows:
            break
    whole = pa.concat_tables(tables).slice(0, rows)
    for at in range(0, len(whole), FILE_ROWS):
        part = whole.slice(at, FILE_ROWS)
        pq.write_table(part, into / f"{at:06d}.parquet", row_group_size=GROUP_ROWS, compression="none")


def _serve(folder: str, pipe: Any) -> None:
    """The server, and proxies before it."""
    direct = serve_objects(BUCKET, ((path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir())))
    with ExitStack() as stack:
        near, far, failing = (stack.enter_context(faults.proxy(direct)) for _ in range(3))
        far.delay_s = DELAY_S
        failing.add(now_and_then(random.Random(1)))
        ends = {"near": near.endpoint, "far": far.endpoint, "failing": failing.endpoint}
        serve_until_closed(pipe, {"direct": direct, **ends})


def now_and_then(rng: random.Random) -> Any:
    """A share of the requests fails, each in one of five ways."""
    broken = faults.answer(500, "InternalError")
    kinds = [faults.slow_down(), broken, faults.reset_at_half, faults.reset_at_once, faults.short]

    async def fault(proxy: faults.Proxy, request: faults.Request) -> Any:
        if rng.random() >= FAILING:
            return await proxy.forward(request)
        return await rng.choice(kinds)(proxy, request)

    return fault


def epochs_of(source: dict[str, Any], epochs: int) -> dict[str, Any]:
    """Epochs of augmented images, the first not timed: seconds of the others, requests, and a digest of each sample."""
    spec = Spec(source=source, augment={"recipe": "imagenet_train"}, batch={"size": 64, "last": "keep"})
    digests: dict[tuple[int, int], int] = {}
    with ingest.Loader(spec, rank=0, world_size=1, epochs=epochs, cache_dir=None) as loader:
        units, began = 0, 0.0
        for epoch in range(epochs):
            if epoch == 1:
                began = time.perf_counter()
            for batch in loader:
                for sample, pixels in zip(batch["sample_id"].tolist(), batch["image"], strict=True):
                    digests[epoch, sample] = zlib.crc32(pixels)
        seconds = time.perf_counter() - began
        report = loader.report()
    units = -(-len({sample for _, sample in digests}) // GROUP_ROWS)
    return {
        "samples_per_s": sum(epoch > 0 for epoch, _ in digests) / seconds,
        "seconds": seconds,
        "requests_per_unit": [asked["get_requests"] / units for asked in report["storage_epochs"].values()],
        "retries": report["storage"]["retries"],
        "verdict": report["verdict"],
        "digests": digests,
    }


def rounds_of(sides: dict[str, Callable[[], dict[str, Any]]], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Every side's results, in turns."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for turn in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
            shown = {key: value for key, value in found[name][-1].items() if key != "digests"}
            print(f"round {turn}, {name}: {json.dumps(shown)}", file=sys.stderr, flush=True)
    return found


def median(results: list[dict[str, Any]], name: str) -> float:
    return statistics.median(result[name] for result in results)


def remote(endpoint: str) -> dict[str, Any]:
    return {"path": f"s3://{BUCKET}/", "columns": ["image", "label"], "storage": {"endpoint_url": endpoint}}


def epochs(folder: Path, ends: dict[str, str], count: int, rounds: int) -> dict[str, Any]:
    """Four sides: local files, the server, the server further away, and the server behind a proxy that fails."""
    sources = {"local": {"path": str(folder), "columns": ["image", "label"]}}
    sources |= {name: remote(ends[name]) for name in ("near", "far", "failing")}
    found = rounds_of({n: lambda s=s: epochs_of(s, count) for n, s in sources.items()}, rounds)
    rates = {name: median(results, "samples_per_s") for name, results in found.items()}
    expected = found["local"][0]["digests"]
    return {
        "samples_per_s": rates,
        "near_of_local": rates["near"] / rates["local"],
        "far_of_local": rates["far"] / rates["local"],
        "far_of_near": rates["far"] / rates["near"],
        "requests_per_unit": [result["requests_per_unit"] for result in found["far"]],
        "failing_time_of_near": median(found["failing"], "seconds") / median(found["near"], "seconds"),
        "retries": [result["retries"] for result in found["failing"]],
        "samples": len(expected),
        "unchanged": all(result["digests"] == expected for results in found.values() for result in results),
    }


def whole_objects(folder: Path, ends: dict[str, str], times: int, rounds: int) -> dict[str, Any]:
    """Whole objects, each so many times, through `storage` and through obstore's own get."""
    names = sorted(path.name for path in folder.iterdir())
    sizes = {name: (folder / name).stat().st_size for name in names}
    files = open_filesystem(f"s3://{BUCKET}/", Storage(endpoint_url=ends["direct"]))
    theirs = obstore.store.S3Store(BUCKET, endpoint=ends["direct"], client_options={"allow_http": True})

    def ours(name: str) -> int:
        return len(files.read_ranges(f"s3://{BUCKET}/{name}", [(0, sizes[name])])[0])

    def plain(name: str) -> int:
        return len(obstore.get(theirs, name).bytes())

    def ranged(name: str) -> int:
        return len(obstore.get(theirs, name, options={"range": (0, sizes[name])}).bytes())

    def timed(read: Callable[[str], int]) -> dict[str, Any]:
        began = time.perf_counter()
        with ThreadPoolExecutor(WORKERS) as pool:
            total = sum(pool.map(read, names * times))
        return {"mib_per_s": total / 2**20 / (time.perf_counter() - began)}

    sides = {"ours": ours, "obstore": plain, "obstore_range": ranged}  # a range costs moto more than a whole object
    found = rounds_of({name: lambda read=read: timed(read) for name, read in sides.items()}, rounds)
    rates = {name: median(results, "mib_per_s") for name, results in found.items()}
    told = {f"of_{name}": rates["ours"] / rates[name] for name in ("obstore", "obstore_range")}
    return {"mib_per_s": rates, **told}


def main() -> None:
    """Print one JSON line with the ratio and the command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--rows", type=int, default=1536)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--rounds", type=int, default=2)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as made, dummy_credentials():
        folder = Path(made)
        cut(given.folder, given.rows, folder)
        with in_a_process(_serve, str(folder), deadline_s=60) as ends:
            told = {"whole_objects": whole_objects(folder, ends, OBJECT_TIMES, OBJECT_ROUNDS)}
            print(json.dumps(told), file=sys.stderr, flush=True)
            ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            told["epochs"] = epochs(folder, ends, given.epochs, given.rounds)
    command = f"python -m tests.bench_bucket {' '.join(sys.argv[1:])}"
    print(json.dumps({**told, "command": command}))


if __name__ == "__main__":
    main()
