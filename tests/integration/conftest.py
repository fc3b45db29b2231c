"""One local Ray cluster for all integration tests, and small data sets that PyArrow and Pillow write."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="session")
def cluster():
    """Two CPUs and a small object store; ended with the session."""
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=1 << 30,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def numbers(tmp_path_factory):
    """1,010 rows in files of 1 to 500 rows and row groups of 1 to 64, `x` counting up over the sorted files."""
    folder = tmp_path_factory.mktemp("numbers")
    start = 0
    for index, (rows, group) in enumerate([(5, 5), (500, 64), (100, 7), (1, 1), (300, 50), (54, 54), (50, 10)]):
        table = pa.table({"x": np.arange(start, start + rows), "y": np.arange(start, start + rows) / 2})
        pq.write_table(table, folder / f"part-{index:02d}.parquet", row_group_size=group)
        start += rows
    return folder


def jpeg(seed: int, size: tuple[int, int] = (64, 48)) -> bytes:
    """A smooth random picture, (width, height), as JPEG."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
    out = io.BytesIO()
    small.resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """240 JPEGs of several sizes in three files, with the label that counts up."""
    folder = tmp_path_factory.mktemp("pictures")
    start = 0
    for index, (rows, group) in enumerate([(100, 16), (10, 10), (130, 20)]):
        images = [jpeg(i, (48 + 8 * (i % 5), 64 - 8 * (i % 3))) for i in range(start, start + rows)]
        table = pa.table({"image": pa.array(images, pa.binary()), "label": np.arange(start, start + rows)})
        pq.write_table(table, folder / f"part-{index}.parquet", row_group_size=group)
        start += rows
    return folder
