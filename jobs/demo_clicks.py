"""The demo of click logs: TFRecord in a bucket, index, plan, training an embedding model, the proof of coverage.

`make demo-clicks` runs it. As of `make demo`, nothing is left when it ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from ingest.cli_common import FAULT, cluster_session, finish, guarded, load_spec
from ingest.write.example import encode
from jobs.clicks import CATEGORIES, NUMBERS
from jobs.demo import OBJECT_STORE_BYTES, TRAINERS, say, steps
from jobs.demo_data import file_rows, put
from jobs.s3_server import create_bucket, dummy_credentials, s3_server

ROWS, FILES = 200_000, 6
BATCH = 1024
KINDS = np.geomspace(10, 10_000, CATEGORIES).astype(np.int64)  # values that each category has
ITEMS, LONGEST = 2_000, 19  # that a history is made of, and the most of them
CHANCE_AUC, LEARNT_AUC = 0.5, 0.6


def write_clicks(target: str, rows: int, *, seed: int = 0, endpoint_url: str | None = None) -> list[str]:
    """Write a click log as TFRecord files of different sizes. The same arguments give the same bytes.

    A record holds `label` (1 for a click, about one in four), `numbers` (13 floats), `categories` (26 integers, small
    ones being frequent) and `history` (up to 19 integers). What a click depends on is drawn once, from the seed: on
    some of the numbers and categories, and on the mean over the history.

    Args:
        target: a directory, made where it is missing, or `s3://bucket/prefix` with a bucket that exists.
        rows: records in all, at least one for each file.
        seed: decides every record.
        endpoint_url: the S3 server of an `s3://` target; credentials come from the environment.

    Returns:
        Paths or URLs of the files, sorted.

    Raises:
        ValueError: fewer rows than files.
    """
    truth = _truth(seed)
    return [
        put(
            target,
            f"log-{i:05d}-of-{FILES:05d}.tfrecord",
            encode(_log(truth, count, (seed, 1, i))).tobytes(),
            endpoint_url,
        )
        for i, count in enumerate(file_rows(rows, FILES, spread=4.0))
    ]


def _truth(seed: int) -> dict[str, NDArray[np.float64]]:
    """What each number, value of a category, and item of a history adds to the logarithm of the odds of a click."""
    rng = np.random.default_rng((seed, 0))
    return {
        "numbers": rng.normal(0, 0.4, NUMBERS) * (np.arange(NUMBERS) % 2),
        "categories": rng.normal(0, 0.4, (CATEGORIES, int(KINDS.max()))) * (np.arange(CATEGORIES)[:, None] % 3 == 0),
        "items": rng.normal(0, 2.0, ITEMS),
    }


def _log(truth: dict[str, NDArray[np.float64]], rows: int, seed: tuple[int, ...]) -> pa.Table:
    """The records of one file."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(0, 1, (rows, NUMBERS)).astype(np.float32)
    categories = (KINDS * rng.random((rows, CATEGORIES)) ** 3).astype(np.int64)
    lengths = rng.integers(0, LONGEST + 1, rows)
    history = rng.integers(0, ITEMS, lengths.sum())
    odds = numbers @ truth["numbers"] + truth["categories"][np.arange(CATEGORIES), categories].sum(axis=1) - 1.5
    odds += np.bincount(np.repeat(np.arange(rows), lengths), truth["items"][history], rows) / np.maximum(lengths, 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.table(
        {
            "label": (rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int64),
            "numbers": pa.FixedSizeListArray.from_arrays(numbers.ravel(), NUMBERS),
            "categories": pa.FixedSizeListArray.from_arrays(categories.ravel(), CATEGORIES),
            "history": pa.ListArray.from_arrays(offsets, history),
        }
    )


def clicks_spec(path: str, endpoint_url: str | None = None) -> dict[str, Any]:
    """A spec over such a log, as a user would write it."""
    return {
        "source": {
            "path": path,
            "schema": {
                "label": {"dtype": "int64"},
                "numbers": {"dtype": "float32", "shape": [NUMBERS]},
                "categories": {"dtype": "int64", "shape": [CATEGORIES]},
                "history": {"dtype": "int64", "shape": [None]},
            },
            "storage": {"endpoint_url": endpoint_url, "region": "us-east-1"},
        },
        "batch": {"size": BATCH, "ragged": "offsets", "last": "keep"},
    }


def demo(rows: int = ROWS) -> int:
    """Run it all; returns the exit status: 1 when a sample was missing or came twice, or nothing was learnt."""
    with tempfile.TemporaryDirectory(prefix="ingest-demo-") as folder, dummy_credentials(), s3_server() as endpoint_url:
        began = time.perf_counter()
        bucket = create_bucket("demo", endpoint_url)
        files = write_clicks(f"{bucket}/clicks", rows, endpoint_url=endpoint_url)
        took = time.perf_counter() - began
        say(f"{rows:,} records in {len(files)} TFRecord files at {bucket}/clicks ({took:.1f} s)")
        path = Path(folder) / "spec.yaml"
        path.write_text(
            yaml.safe_dump(clicks_spec(f"{bucket}/clicks/", endpoint_url), sort_keys=False), encoding="utf-8"
        )
        say("the spec:")
        print(path.read_text(encoding="utf-8"))
        # A cluster elsewhere could not reach a server on this machine's loopback.
        os.environ.pop("RAY_ADDRESS", None)
        with cluster_session(object_store_memory=OBJECT_STORE_BYTES):
            status, result = steps(load_spec(path), "clicks")
    say("the report of rank 0")
    finish("report", result["ranks"][0], None)
    # Each row was scored just before it was learnt: in the first epoch, none had been seen.
    first = result["epochs"][0]["auc"]
    learnt = first is not None and first > LEARNT_AUC
    say(
        f"{'learnt' if learnt else 'NOT LEARNT'} by {TRAINERS} trainers ({result['model']}): the AUC of rows that the "
        f"model had not seen is {0.0 if first is None else first:.3f}, where chance gives {CHANCE_AUC}"
    )
    return status if learnt else max(status, FAULT)


if __name__ == "__main__":
    sys.exit(guarded(demo))
