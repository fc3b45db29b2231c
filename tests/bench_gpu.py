"""What the augmenter costs beside bare DALI: `python -m tests.bench_gpu IMAGES [--device cpu] [--rounds 5]`.

IMAGES is a folder of Parquet with an `image` column. Both sides do a random resized crop to 224, a flip, uint8, from
memory, with the same threads and batches, one after the other in each round:

- bare: DALI's own graph and random numbers (`image_random_crop`, `resize`, `flip`), which prefetches two batches; its
  output stays where DALI made it
- ours: the augmenter with two calls at a time, as in a trainer's process; images land in torch's tensors on the GPU

Prints one JSON line: medians, and `ratio`, the median of each round's ours over bare. With `--device cpu` both run on
the CPU, ours into host memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from nvidia.dali import fn, pipeline_def, types

from ingest.augment.augmenter import Augmenter
from ingest.loader.landing import landing_of
from ingest.spec import Augment

SIZE, AREA, RATIO = 224, (0.08, 1.0), (3 / 4, 4 / 3)
CALLS, WARM_UP = 2, 8


@pipeline_def(prefetch_queue_depth=2)
def _bare(feed: Callable[[], list[np.ndarray]], *, gpu: bool):
    special = {"hw_decoder_load": 0.0, "jpeg_fancy_upsampling": True} if gpu else {"use_fast_idct": True}
    images = fn.decoders.image_random_crop(
        fn.external_source(source=feed, dtype=types.UINT8, no_copy=True),
        device="mixed" if gpu else "cpu",
        output_type=types.RGB,
        random_area=AREA,
        random_aspect_ratio=RATIO,
        **special,
    )
    images = fn.resize(images, size=[SIZE, SIZE], antialias=False)
    return fn.flip(images, horizontal=fn.random.coin_flip())


def chunks(order: np.ndarray, batch: int) -> Iterator[np.ndarray]:
    """Rows of batches, for ever."""
    for _ in itertools.count():
        for at in range(0, len(order) - batch + 1, batch):
            yield order[at : at + batch]


def bare(encoded: Sequence[np.ndarray], order: np.ndarray, args: argparse.Namespace) -> float:
    """DALI's own graph, in samples/s."""
    rows, gpu = chunks(order, args.batch), args.device == "gpu"
    pipe = _bare(
        lambda: [encoded[row] for row in next(rows)],
        gpu=gpu,
        batch_size=args.batch,
        num_threads=args.threads,
        device_id=0 if gpu else None,
    )
    pipe.build()
    for _ in range(WARM_UP):
        pipe.run()
    began = time.perf_counter()
    for _ in range(args.batches):
        pipe.run()
    return args.batch * args.batches / (time.perf_counter() - began)


def ours(table: pa.Table, order: np.ndarray, args: argparse.Namespace) -> float:
    """The augmenter with two calls at a time, in samples/s."""
    gpu = args.device == "gpu"
    landing = landing_of("torch") if gpu else None
    if gpu and landing is None:
        raise SystemExit("this torch has no CUDA device: install one that has, or use --device cpu")
    augmenter = Augmenter(
        Augment(recipe="imagenet_train"),
        seed=0,
        batch_rows=args.batch,
        threads=args.threads,
        device_id=0 if gpu else None,
        landing=landing,
    )

    def make(rows: np.ndarray) -> Callable[[], None] | None:
        batch = augmenter([(table, rows)], rows, 0)
        return None if landing is None else landing.sealed(batch)

    rows, begun = chunks(order, args.batch), deque()
    with ThreadPoolExecutor(CALLS) as pool:
        for number in range(WARM_UP + args.batches):
            if number == WARM_UP:
                began = time.perf_counter()
            while len(begun) <= CALLS:
                begun.append(pool.submit(make, next(rows)))
            if arrive := begun.popleft().result():
                arrive()
        seconds = time.perf_counter() - began
    augmenter.close()
    return args.batch * args.batches / seconds


def loaded(path: str, rows: int) -> pa.Table:
    """The first images of a folder of Parquet.

    Raises:
        SystemExit: there is none.
    """
    files = sorted(Path(path).glob("*.parquet"))
    if not files:
        raise SystemExit(f"no .parquet in {path}")
    found: list[pa.Table] = []
    while files and sum(map(len, found)) < rows:
        found.append(pq.read_table(files.pop(0), columns=["image"]))
    return pa.concat_tables(found).slice(0, rows).combine_chunks()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=100, help="of each side and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args(argv)
    table = loaded(args.path, args.rows)
    args.batch = min(args.batch, len(table))
    encoded = [np.frombuffer(each.as_buffer(), np.uint8) for each in table["image"].chunk(0)]
    order = np.random.default_rng(0).permutation(len(table)).astype(np.int64)
    found = [(bare(encoded, order, args), ours(table, order, args)) for _ in range(args.rounds)]
    medians = [statistics.median(each) for each in zip(*found, strict=True)]
    ratios = [mine / theirs for theirs, mine in found]
    print(
        json.dumps(
            {
                "what": "bench_gpu",
                "device": args.device,
                "ratio": statistics.median(ratios),
                "ratio_each": ratios,
                "bare_samples_per_s": medians[0],
                "samples_per_s": medians[1],
            }
        )
    )


if __name__ == "__main__":
    main()
