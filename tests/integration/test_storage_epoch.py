"""Epochs from a bucket: what they ask of it stands in the report, failures change no bit, a warm cache asks nothing."""

from __future__ import annotations

import random

import faults
import numpy as np
import pyarrow as pa
import pytest
import s3

import ingest
from ingest.manifest.build import build_manifest
from ingest.manifest.listing import list_files
from ingest.manifest.parquet import index_files
from ingest.read.parquet import Piece, read_window
from ingest.read.sources import _footers
from ingest.spec import Source, Spec, Storage
from ingest.storage import counters

pytestmark = pytest.mark.integration

bucket, s3_endpoint = s3.bucket, s3.s3_endpoint  # fixtures
FILES, ROWS, GROUP = 3, 100, 20


@pytest.fixture
def public(bucket):
    """A bucket of numbers and bytes that anybody may list and read: the cluster's processes have no credentials."""
    rng = np.random.default_rng(0)
    for i in range(FILES):
        table = pa.table({"x": range(ROWS * i, ROWS * (i + 1)), "b": [rng.bytes(300) for _ in range(ROWS)]})
        bucket.put_table(f"d/{i}.parquet", table, row_group_size=GROUP)
        bucket.publish(f"d/{i}.parquet")
    return bucket


def epoch_of(spec, epoch):
    """(x of every row in order, the loader's report) of one epoch."""
    with ingest.Loader(spec, rank=0, world_size=1, epochs=epoch + 1, cache_dir=None) as loader:
        loader.set_epoch(epoch)
        rows = np.concatenate([batch["x"] for batch in loader])
        return rows.tolist(), loader.report()


@pytest.mark.usefixtures("cluster")
def test_requests_stand_in_the_report_and_a_warm_cache_asks_for_nothing(public, tmp_path):
    paths = [public.url(f"d/{i}.parquet") for i in range(FILES)]  # moto lists buckets to their owner alone
    spec = Spec(
        source={"path": paths, "columns": ["x"], "storage": {"endpoint_url": public.endpoint, "anonymous": True}},
        batch={"size": 10},
        cache={"path": str(tmp_path / "cache"), "bytes": "10MiB"},
    )
    rows, report = epoch_of(spec, 0)
    cold = report["storage"]
    assert sorted(rows) == list(range(FILES * ROWS))
    assert report["storage_epochs"] == {"0": cold}
    listed = report["index_storage"]
    assert (listed["head_requests"], listed["list_requests"]) == (FILES, 0)  # named one by one
    assert listed["get_requests"] == FILES  # a footer each
    units = FILES * ROWS // GROUP
    assert units <= cold["get_requests"] <= 2 * units
    assert cold["get_bytes"] > 0
    again, report = epoch_of(spec, 1)
    warm = report["storage"]
    assert sorted(again) == list(range(FILES * ROWS))
    assert [warm[name] for name in ("get_requests", "head_requests", "list_requests", "get_bytes")] == [0, 0, 0, 0]
    assert warm["cache_hits"] > 0
    with ingest.Loader(spec, rank=0, world_size=1, epochs=4, cache_dir=None) as loader:
        loader.set_epoch(2)
        for _ in range(2):
            assert len(list(loader)) == FILES * ROWS // 10
        by_epoch = loader.report()["storage_epochs"]
    assert list(by_epoch) == ["2", "3"]
    assert [asked["get_requests"] for asked in by_epoch.values()] == [0, 0]
    assert all(asked["cache_hits"] >= units for asked in by_epoch.values())


def test_failures_of_five_kinds_change_no_bit(public):
    rng = random.Random(1)
    broken = faults.answer(500, "InternalError")
    kinds = [faults.slow_down(), broken, faults.reset_at_half, faults.reset_at_once, faults.short]
    failed = []

    async def now_and_then(proxy, request):
        if rng.random() >= 0.2:
            return await proxy.forward(request)
        failed.append(rng.randrange(len(kinds)))
        return await kinds[failed[-1]](proxy, request)

    def whole(storage):
        source = Source(path=public.url("d"), storage=storage)
        files = list_files(source)
        manifest = build_manifest(files, index_files(files, None, storage), source)
        units = manifest.units
        pieces = [Piece(manifest.files[f], int(o), None) for f, o in zip(units.file, units.ordinal, strict=True)]
        _footers._kept.clear()
        return read_window(pieces, manifest.schema, manifest.columns, storage, {})

    clean = whole(public.storage)
    with faults.proxy(public.endpoint) as proxy:
        proxy.add(now_and_then)
        before = counters()["retries"]
        for _ in range(4):
            assert whole(Storage(endpoint_url=proxy.endpoint)).equals(clean)
    assert set(failed) == set(range(len(kinds)))
    assert counters()["retries"] - before >= len(failed) // 2
