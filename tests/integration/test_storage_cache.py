"""The cache on local disk: a warm epoch asks for nothing, a budget holds, and neither crash nor full disk does harm."""

from __future__ import annotations

import errno
import logging
import os
import random
import subprocess
import sys
from pathlib import Path

import faults
import numpy as np
import pyarrow as pa
import pytest
import s3

from ingest.errors import SpecError
from ingest.manifest.build import build_manifest
from ingest.manifest.listing import list_files
from ingest.manifest.parquet import index_files
from ingest.read.parquet import Piece, read_window
from ingest.read.sources import _footers
from ingest.spec import Cache, CachedStorage, Spec
from ingest.storage import counters
from ingest.storage.cache import _HEAD, DiskCache
from ingest.storage.filesystem import open_filesystem

pytestmark = pytest.mark.integration

bucket, s3_endpoint = s3.bucket, s3.s3_endpoint  # fixtures


def entries(path):
    return [p for p in Path(path).rglob("*") if p.is_file() and len(p.parent.name) == 2]


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "ingest.storage.cache"]


def cache_of(path, budget=1 << 20):
    return DiskCache(Cache(path=str(path), bytes=budget))


@pytest.fixture
def dataset(bucket, tmp_path):
    rng = np.random.default_rng(0)
    for i in range(3):
        table = pa.table({"x": range(100 * i, 100 * i + 100), "b": [rng.bytes(500) for _ in range(100)]})
        bucket.put_table(f"d/{i}.parquet", table, row_group_size=25)
    return Spec(
        source={"path": bucket.url("d"), "storage": bucket.storage.model_dump()},
        cache={"path": str(tmp_path / "cache"), "bytes": "10MiB"},
    )


def epoch(spec):
    """All rows, and the requests that it took, listing and footers of the index aside."""
    source = spec.source
    files = list_files(source)
    manifest = build_manifest(files, index_files(files, None, source.storage), source)
    units = manifest.units
    pieces = [Piece(manifest.files[f], int(o), None) for f, o in zip(units.file, units.ordinal, strict=True)]
    _footers._kept.clear()
    before = counters()
    table = read_window(pieces, manifest.schema, manifest.columns, spec.reading(spec.source), {}, {})
    return table, {name: value - before[name] for name, value in counters().items()}


def test_a_warm_epoch_asks_the_store_for_nothing(dataset):
    cold, first = epoch(dataset)
    warm, second = epoch(dataset)
    assert warm.equals(cold)
    assert warm["x"].to_pylist() == list(range(300))
    assert first["get_requests"] == first["cache_misses"] == second["cache_hits"] == 12 + 3
    assert [second[name] for name in ("get_requests", "head_requests", "list_requests", "get_bytes")] == [0, 0, 0, 0]
    assert second["cache_hit_bytes"] == first["get_bytes"]


def test_a_changed_object_is_not_served_from_the_cache(dataset, bucket):
    epoch(dataset)
    bucket.put_table("d/1.parquet", pa.table({"x": range(1000, 1100), "b": [b"new"] * 100}))
    table, counted = epoch(dataset)
    assert table["x"].to_pylist()[100:200] == list(range(1000, 1100))
    assert counted["get_requests"] == 2


def test_a_damaged_entry_is_read_anew(dataset):
    cold, first = epoch(dataset)
    for i, path in enumerate(entries(dataset.cache.path)):
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes((raw, raw[: len(raw) // 2], b"")[i % 3])
    again, counted = epoch(dataset)
    assert again.equals(cold)
    assert counted["cache_hits"] == 0
    assert counted["get_bytes"] == first["get_bytes"]
    assert epoch(dataset)[1]["get_requests"] == 0


def test_the_least_recently_used_go_when_the_budget_is_full(tmp_path):
    cache = cache_of(tmp_path, 100_000)
    for i in range(9):
        cache.put(f"{i:040d}", bytes(10_000))
        os.utime(cache._path(f"{i:040d}"), (1000 + i, 1000 + i))
    assert cache.get(f"{0:040d}") is not None  # used now
    cache.put(f"{9:040d}", bytes(10_000))
    kept = [i for i in range(10) if cache.get(f"{i:040d}") is not None]
    assert kept == [0, 3, 4, 5, 6, 7, 8, 9]
    assert sum(p.stat().st_size for p in entries(tmp_path)) <= 100_000
    cache.put("f" * 40, bytes(100_001))  # larger than all of it
    assert cache.get("f" * 40) is None
    assert cache.get(f"{9:040d}") is not None


def test_processes_share_one_budget(tmp_path):
    caches = [cache_of(tmp_path, 50_000) for _ in range(4)]
    rng = random.Random(1)
    for i in range(60):
        rng.choice(caches).put(f"{i:040d}", bytes(rng.randrange(1000, 9000)))
        assert sum(p.stat().st_size for p in entries(tmp_path)) <= 50_000
    assert caches[0].get(f"{59:040d}") is not None


SIZES = [(7919 * i) % 60_000 + 1 for i in range(50)]
# Its own interpreter, since this one has threads, which a fork would not survive.
KILLS = """
import os, pathlib, random, signal, sys, time
from ingest.spec import Cache
from ingest.storage.cache import DiskCache, _whole

def entries():
    return [p for p in pathlib.Path(sys.argv[1]).rglob("*") if p.is_file() and len(p.parent.name) == 2]

for turn in range(20):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        cache = DiskCache(Cache(path=sys.argv[1], bytes=1 << 20))
        os.write(writing, b"x")
        while True:
            i = random.Random(os.urandom(8)).randrange(50)
            cache.put(f"{i:040d}", bytes([i]) * ((7919 * i) % 60_000 + 1))
    os.read(reading, 1)  # it writes from now on
    time.sleep(0.002 * (turn + 1))
    os.kill(child, signal.SIGKILL)
    os.close(reading), os.close(writing)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert all(_whole(memoryview(path.read_bytes())) for path in entries())
print(len(entries()))
"""


def test_a_process_killed_while_it_writes_leaves_nothing_corrupt(tmp_path):
    run = subprocess.run([sys.executable, "-c", KILLS, tmp_path], capture_output=True, text=True, check=True)
    assert int(run.stdout) > 5
    cache = cache_of(tmp_path)
    for i in range(50):
        found = cache.get(f"{i:040d}")
        assert found is None or bytes(found) == bytes([i]) * SIZES[i]
    cache.put("a" * 40, b"x")
    assert list((tmp_path / "ranges-1" / "tmp").iterdir()) == []
    stored = int.from_bytes((tmp_path / "ranges-1" / "total").read_bytes(), "little")
    assert sum(p.stat().st_size for p in entries(tmp_path)) <= stored <= 1 << 20


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_means_no_cache_and_one_warning(dataset, monkeypatch, caplog, code):
    caplog.set_level(logging.WARNING)

    def full(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "replace", full)
    table, _ = epoch(dataset)
    assert table["x"].to_pylist() == list(range(300))
    (warning,) = warnings_of(caplog)
    assert os.strerror(code) in warning
    assert entries(dataset.cache.path) == []
    assert list(Path(dataset.cache.path).rglob("tmp/*")) == []


def test_a_cache_that_cannot_be_made_is_no_error(dataset, tmp_path, caplog):
    (tmp_path / "cache").write_text("a file")
    table, _ = epoch(dataset)
    assert len(table) == 300
    assert len(warnings_of(caplog)) == 1


def test_a_process_stopped_with_the_lock_stops_nobody(tmp_path):
    import fcntl

    cache = cache_of(tmp_path)
    cache.put("a" * 40, b"x")
    with (tmp_path / "ranges-1" / "total").open("a+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        cache.put("b" * 40, b"y")
        assert cache.get("b" * 40) is None
        assert bytes(cache.get("a" * 40)) == b"x"
    cache.put("b" * 40, b"y")
    assert bytes(cache.get("b" * 40)) == b"y"


def test_failures_of_the_store_are_no_entries(bucket, tmp_path):
    bucket.put("x", b"0123456789" * 100)
    cache = Cache(path=str(tmp_path), bytes=1 << 20)
    with faults.proxy(bucket.endpoint) as proxy:
        storage = CachedStorage(endpoint_url=proxy.endpoint, retry_s=0.5, cache=cache)
        files = open_filesystem(bucket.url(), storage)
        etag = files.info(bucket.url("x")).etag
        proxy.add(faults.short, 1)
        assert bytes(files.read_ranges(bucket.url("x"), [(0, 100)], etag)[0]) == b"0123456789" * 10
    assert [path.stat().st_size for path in entries(tmp_path)] == [_HEAD.size + 100]


def test_the_spec_says_what_a_cache_needs():
    for wrong in ({"path": "/x"}, {"bytes": "1GB"}, {"path": "x", "bytes": 1}, {"path": "/x", "bytes": 0}):
        with pytest.raises(SpecError):
            Spec(source={"path": "/d"}, cache=wrong)
    plain, cached = Spec(source={"path": "/d"}), Spec(source={"path": "/d"}, cache={"path": "/x", "bytes": "1GiB"})
    assert plain.fingerprint == cached.fingerprint
    assert plain.reading(plain.source) == plain.source.storage
    assert cached.reading(cached.source).cache.bytes == 1 << 30
