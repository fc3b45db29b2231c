"""Epochs of images from a bucket that are kept decoded: the same bits, and a warm epoch asks for nothing."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
import s3

import ingest
from ingest.spec import Spec

pytestmark = pytest.mark.integration

bucket, s3_endpoint = s3.bucket, s3.s3_endpoint  # fixtures
OPS = [{"resize": {"shorter": 40}}, {"random_crop": {"size": 32}}, "flip"]
ASKED = ("get_requests", "head_requests", "list_requests", "get_bytes")


@pytest.fixture
def public(bucket, pictures):
    """The pictures in a bucket that anybody may read: the cluster's processes have no credentials."""
    for path in sorted(pictures.iterdir()):
        bucket.put_table(path.name, pq.read_table(path), row_group_size=48)
        bucket.publish(path.name)
    names = sorted(path.name for path in pictures.iterdir())
    storage = {"endpoint_url": bucket.endpoint, "anonymous": True}
    return {"path": [bucket.url(name) for name in names], "storage": storage}


def epoch_of(spec, number, world_size=1):
    """({sample id: pixels, label} of an epoch, what was asked of the store), rank 0 alone."""
    with ingest.Loader(spec, rank=0, world_size=world_size, epochs=number + 1, cache_dir=None) as loader:
        loader.set_epoch(number)
        rows = {}
        for batch in loader:
            rows |= {
                i: (p.copy(), y) for i, p, y in zip(batch["sample_id"], batch["image"], batch["label"], strict=True)
            }
        return rows, loader.report()["storage"]


@pytest.mark.usefixtures("cluster")
def test_a_warm_epoch_has_the_same_bits_and_asks_for_nothing(public, tmp_path):
    sections = {"source": public, "augment": {"ops": OPS}, "batch": {"size": 20}}
    plain = Spec(**sections)
    kept = Spec(**sections, cache={"path": str(tmp_path / "cache"), "bytes": "1GiB", "decoded": True})
    cold, asked = epoch_of(kept, 0)
    assert asked["get_bytes"] > 0
    warm, asked_warm = epoch_of(kept, 1)
    assert [asked_warm[name] for name in ASKED] == [0, 0, 0, 0]
    assert asked_warm["cache_hits"] > 0
    assert asked_warm["cache_misses"] == 0
    for number, found in ((0, cold), (1, warm)):
        expected, _ = epoch_of(plain, number)
        assert found.keys() == expected.keys()
        assert len(found) == 240
        for sample, (pixels, label) in expected.items():
            assert np.array_equal(found[sample][0], pixels)
            assert found[sample][1] == label
