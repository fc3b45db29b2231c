"""The demo: an S3 server, images in a bucket, index, plan, training with two trainers, and the proof of coverage.

`make demo` runs it. Server, cluster and files are gone when it ends, however it ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from ingest import cli_plan
from ingest.cli_common import FAULT, OK, cluster_session, finish, guarded, humane, load_spec
from ingest.spec import Spec
from jobs.demo_data import write_images
from jobs.learner import Run, Task
from jobs.s3_server import create_bucket, dummy_credentials, s3_server
from jobs.train import REPORTED, train

ROWS, TRAINERS, EPOCHS, CLASSES = 3_000, 2, 2, 6
OBJECT_STORE_BYTES = 1 << 30


def write_spec(folder: Path, path: str, endpoint_url: str) -> Path:
    """A spec over the bucket, as a user would write it; returns its file."""
    spec = {
        "source": {
            "path": path,
            "columns": {"image": "image.bytes", "label": "label"},
            "storage": {"endpoint_url": endpoint_url, "region": "us-east-1"},
        },
        "augment": {"recipe": "imagenet_train"},
        "batch": {"size": 64, "last": "keep"},
    }
    file = folder / "spec.yaml"
    file.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    return file


def demo(rows: int = ROWS) -> int:
    """Run it all; returns the exit status: 1 when a sample was missing or came twice, or nothing was learnt."""
    with tempfile.TemporaryDirectory(prefix="ingest-demo-") as folder, dummy_credentials(), s3_server() as endpoint_url:
        began = time.perf_counter()
        bucket = create_bucket("demo", endpoint_url)
        files = write_images(f"{bucket}/train", rows, endpoint_url=endpoint_url)
        say(f"{rows:,} JPEGs in {len(files)} Parquet files at {bucket}/train ({time.perf_counter() - began:.1f} s)")
        path = write_spec(Path(folder), f"{bucket}/train/", endpoint_url)
        say("the spec:")
        print(path.read_text(encoding="utf-8"))
        # A cluster elsewhere could not reach a server on this machine's loopback.
        os.environ.pop("RAY_ADDRESS", None)
        with cluster_session(object_store_memory=OBJECT_STORE_BYTES):
            return steps(load_spec(path))[0]


def steps(spec: Spec, kind: str = "auto") -> tuple[int, dict[str, Any]]:
    """Index, plan, train, and judge, on the cluster in use; returns the exit status and what the training came to.

    Args:
        spec: what to train on.
        kind: of model, as `python -m jobs.train --model` has them.
    """
    say("ingest index")
    finish("index", cli_plan.index(spec, None), None)
    say(f"ingest plan --world-size {TRAINERS}")
    finish("plan", cli_plan.plan(spec, TRAINERS, None), None)
    say(f"python -m jobs.train SPEC --model {kind} --trainers {TRAINERS} --epochs {EPOCHS}")
    result = train(Task.of(spec, kind=kind, epochs=EPOCHS, classes=CLASSES), Run(TRAINERS))
    for rank in result["ranks"]:
        print(f"rank {rank['rank']}: " + ", ".join(f"{name} {humane(name, rank[name])}" for name in REPORTED))
    epochs = result["epochs"]
    learnt = epochs[-1]["loss"] < epochs[0]["loss_first"]
    missing, repeated = (max(epoch[name] for epoch in epochs) for name in ("missing", "repeated"))
    say(
        f"{'proved' if result['ok'] else 'FAILED'}: in each of {len(epochs)} epochs, of {epochs[0]['expected']:,} "
        f"samples {missing} were missing and {repeated} came twice; "
        f"the loss {'fell' if learnt else 'DID NOT FALL'} from {epochs[0]['loss_first']:.3f} "
        f"to {epochs[-1]['loss_last']:.3f}"
    )
    return OK if result["ok"] and learnt else FAULT, result


def say(text: str) -> None:
    """A step of the demo."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(guarded(demo))
