"""Real JPEGs for the demo and the tests: cut and varied from photographs that scikit-learn and scikit-image ship.

`python -m jobs.demo_data FOLDER` writes them where a first run on a cluster of one's own can read them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skimage.data
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images

from jobs.s3_server import put_object

SCHEMA = pa.schema(
    [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())]
)  # as the Hugging Face hub writes images
QUALITY = 90
NOISE_FIELDS = 4


def write_images(
    target: str | os.PathLike[str],
    rows: int,
    *,
    seed: int = 0,
    size: tuple[int, int] = (320, 240),
    files: int = 8,
    spread: float = 4.0,
    rows_per_group: int = 64,
    endpoint_url: str | None = None,
    threads: int | None = None,
) -> list[str]:
    """Write `rows` distinct JPEGs as Parquet files of different sizes. The same arguments give the same bytes.

    The label (int64, 0 to 5) says which photograph the image was cut from, so that a small model can learn it.

    Args:
        target: a directory, made where it is missing, or `s3://bucket/prefix` with a bucket that exists.
        rows: images in all, at least one for each file.
        seed: decides every image and label.
        size: (width, height) of the images in pixels; the default gives about 25 kB an image.
        files: Parquet files.
        spread: rows of the largest file over those of the smallest; sizes between grow geometrically.
        rows_per_group: rows of a row group, the last one of a file excepted.
        endpoint_url: the S3 server of an `s3://` target; credentials come from the environment.
        threads: encoder threads; as many as CPUs when left out.

    Returns:
        Paths or URLs of the files, sorted.

    Raises:
        ValueError: fewer rows than files, or a number that is not positive.
    """
    photos = _photographs()
    noise = _noise(seed, size)
    written, first = [], 0
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        for number, count in enumerate(file_rows(rows, files, spread)):
            made = pool.map(lambda row: _sample(photos, noise, seed, row, size), range(first, first + count))
            name = f"part-{number:05d}.parquet"
            written.append(put(target, name, _parquet(made, rows_per_group), endpoint_url))
            first += count
    return written


def file_rows(rows: int, files: int, spread: float) -> list[int]:
    """Rows of each file: they sum to `rows` and grow geometrically, the last about `spread` times the first.

    Raises:
        ValueError: fewer rows than files, no file, or a spread below 1.
    """
    if files < 1 or rows < files or spread < 1:
        raise ValueError(f"{rows} rows do not make {files} files of at least one row, with a spread of {spread}")
    weights = np.geomspace(1, spread, files)
    ends = np.round(np.cumsum(weights) / weights.sum() * rows).astype(int)
    ends = np.maximum(ends, np.arange(1, files + 1))  # a row each, where the smallest would round to none
    return [int(n) for n in np.diff(ends, prepend=0)]


def _photographs() -> list[NDArray[np.uint8]]:
    """Uint8 (height, width, 3) in OpenCV's channel order."""
    arrays = [*load_sample_images().images]
    arrays += [getattr(skimage.data, name)() for name in ("astronaut", "coffee", "chelsea", "rocket")]
    return [np.ascontiguousarray(np.asarray(array)[..., ::-1], np.uint8) for array in arrays]


def _noise(seed: int, size: tuple[int, int]) -> NDArray[np.int16]:
    """Int16 (fields, 2 * height, 2 * width, 3), grey: drawn once, as drawing costs more than encoding."""
    draw = np.random.default_rng((seed, 0)).normal(0, 6, (NOISE_FIELDS, 2 * size[1], 2 * size[0], 1))
    return np.repeat(draw.astype(np.int16), 3, axis=3)


def _sample(
    photos: list[NDArray[np.uint8]], noise: NDArray[np.int16], seed: int, row: int, size: tuple[int, int]
) -> dict[str, Any]:
    rng = np.random.default_rng((seed, 1, row))  # by row, so that threads cannot change an image
    label = int(rng.integers(len(photos)))
    height, width = (
        int(side * share) for side, share in zip(photos[label].shape[:2], rng.uniform(0.5, 1, 2), strict=True)
    )
    top, left = (int(rng.integers(0, n)) for n in np.array(photos[label].shape[:2]) - (height, width) + 1)
    y, x = (int(rng.integers(0, n)) for n in (size[1], size[0]))
    cut = cv2.resize(photos[label][top : top + height, left : left + width], size, interpolation=cv2.INTER_AREA)
    grain = noise[rng.integers(len(noise)), y : y + size[1], x : x + size[0]]
    _, data = cv2.imencode(".jpg", cv2.add(cut, grain, dtype=cv2.CV_8U), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    return {"image": {"bytes": data.tobytes(), "path": f"{row:07d}.jpg"}, "label": label}


def _parquet(samples: Iterator[dict[str, Any]], rows_per_group: int) -> bytes:
    table = pa.Table.from_pylist(list(samples), schema=SCHEMA)
    out = pa.BufferOutputStream()
    pq.write_table(table, out, row_group_size=rows_per_group, compression="none")  # JPEGs do not compress
    return bytes(out.getvalue())


def put(target: str | os.PathLike[str], name: str, data: bytes, endpoint_url: str | None) -> str:
    """Write a file into a directory, made where it is missing, or under an `s3://` prefix; returns its path or URL."""
    target = os.fspath(target)
    if target.startswith("s3://"):
        url = f"{target.rstrip('/')}/{name}"
        put_object(url, data, endpoint_url)
        return url
    path = Path(target) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the images that the options ask for."""
    parser = argparse.ArgumentParser(prog="python -m jobs.demo_data", description="JPEGs as Parquet files.")
    parser.add_argument("target", metavar="FOLDER", help="or s3://bucket/prefix, with credentials in the environment")
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--endpoint-url", help="of the S3 server")
    args = parser.parse_args(argv)
    files = write_images(args.target, args.rows, endpoint_url=args.endpoint_url)
    print(f"{args.rows:,} JPEGs in {len(files)} Parquet files at {args.target}")


if __name__ == "__main__":
    main()
