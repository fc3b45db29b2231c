"""Cached manifests: exact round trip, keys that follow the data, bad files rebuilt and said so."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole import manifest_of

from ingest.manifest import store
from ingest.manifest.listing import list_files
from ingest.spec import Source

pytestmark = pytest.mark.unit


@pytest.fixture
def manifest(tmp_path):
    folder = tmp_path / "data" / "k=é%2F"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"x": range(5), "s": [{"a": "b"}] * 5}), folder / "a.parquet", row_group_size=2)
    return manifest_of(tmp_path / "data")


def test_round_trip_is_exact(tmp_path, manifest):
    store.save(tmp_path / "cache", "key", manifest)
    loaded = store.load(tmp_path / "cache", "key")
    assert (loaded.format, loaded.files, loaded.columns) == (manifest.format, manifest.files, manifest.columns)
    assert list(loaded.columns) == list(manifest.columns)
    assert loaded.schema.equals(manifest.schema, check_metadata=True)
    assert loaded.digest == manifest.digest
    for name in ("file", "ordinal", "rows", "bytes", "memory_bytes", "file_row"):
        one, other = getattr(loaded.units, name), getattr(manifest.units, name)
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["manifest-key.parquet"]


def test_classes_and_what_is_kept_come_back(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(20), "s": ["dog", "cat"] * 10}), path, row_group_size=10)
    manifest = manifest_of(path, where="x > 2", split={"take": "a", "of": {"a": 0.5}}, classes={"s": "auto"})
    store.save(tmp_path / "cache", "key", manifest)
    loaded = store.load(tmp_path / "cache", "key")
    assert loaded.classes == manifest.classes == {"s": ("cat", "dog")}
    assert loaded.schema.field("s").type == pa.int64()
    assert loaded.kept_ids().tolist() == manifest.kept_ids().tolist()
    assert loaded.digest == manifest.digest == manifest_of(path).digest


def test_nothing_kept_is_none(tmp_path):
    assert store.load(tmp_path, "key") is None


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_bad_cache_is_said_and_not_used(tmp_path, manifest, damage, caplog):
    store.save(tmp_path, "key", manifest)
    path = tmp_path / "manifest-key.parquet"
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    assert store.load(tmp_path, "key") is None
    assert "built again" in caplog.text


def test_another_version_is_not_used(tmp_path, manifest, caplog, monkeypatch):
    monkeypatch.setattr(store, "FORMAT_VERSION", 0)
    store.save(tmp_path, "key", manifest)
    monkeypatch.undo()
    assert store.load(tmp_path, "key") is None
    assert "version 0" in caplog.text


def test_a_folder_that_cannot_be_written_is_said(tmp_path, manifest, caplog):
    (tmp_path / "file").write_text("in the way")
    store.save(tmp_path / "file" / "cache", "key", manifest)
    assert "cannot be kept" in caplog.text


def test_the_key_follows_data_and_columns(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1]}), path)

    def key(**source):
        source = Source(path=str(tmp_path), **source)
        return store.cache_key(list_files(source), source)

    parts = {"take": "a", "of": {"a": 0.5}}
    keys = {
        key(), key(columns=["x"]), key(columns={"y": "x"}), key(limit=1), key(fill={"x": 0}), key(where="x = 1"),
        key(split=parts), key(split={**parts, "seed": 1}), key(classes={"x": "auto"}), key(classes={"x": ["a"]}),
    }  # fmt: skip
    assert len(keys) == 10
    assert key() in keys
    pq.write_table(pa.table({"x": [1, 2]}), path)
    assert key() not in keys
