"""How fast tf.Example records become columns on one thread: python -m jobs.bench_parser FOLDER [--passes N].

FOLDER holds uncompressed TFRecord files. They are read into memory first, and their features are inferred. To compare
with tf.data, run its pipeline over the same files in the same sitting.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from ingest.manifest.records import Frames, scan
from ingest.read.example import parse, warm_up
from ingest.read.survey import Survey, features_of

_RECORDS = 12_000  # parsed at once: about as many click records as a unit holds


def _framed(path: Path) -> tuple[np.ndarray, Frames]:
    data = np.fromfile(path, np.uint8)
    return data, scan(data, check_payload=False)


def main() -> None:
    """Print one JSON line.

    Raises:
        SystemExit: the folder holds no TFRecord files.
    """
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--passes", type=int, default=5)
    given = options.parse_args()
    files = [_framed(path) for path in sorted(given.folder.iterdir()) if "tfrecord" in path.name]
    if not files:
        raise SystemExit(f"{given.folder} holds no TFRecord files")
    began = time.perf_counter()
    warm_up()
    warm_up_s = time.perf_counter() - began
    survey = Survey()
    for data, frames in files:
        survey.add(data, frames.starts[:1000], frames.stops[:1000])
    features = features_of(survey, {})
    records = sum(len(frames.starts) for _, frames in files)
    passes_s = []
    for _ in range(given.passes):
        began = time.perf_counter()
        for data, frames in files:
            for first in range(0, len(frames.starts), _RECORDS):
                part = slice(first, first + _RECORDS)
                parse(data, frames.starts[part], frames.stops[part], features)
        passes_s.append(time.perf_counter() - began)
    told = {
        "what": "parser_alone",
        "features": len(features),
        "samples": records,
        "samples_per_s": records / statistics.median(passes_s),
        "warm_up_s": warm_up_s,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
