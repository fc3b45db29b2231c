"""The benchmark of a GPU runs, on the CPU: both sides do the same work, and what it prints can be compared."""

from __future__ import annotations

import json

import bench_gpu
import pyarrow.parquet as pq
import pytest
from augment_images import jpegs, table

pytestmark = pytest.mark.unit


def test_both_sides_are_measured_and_put_into_proportion(tmp_path, capsys):
    pq.write_table(table(jpegs(12)), tmp_path / "a.parquet")
    bench_gpu.main(
        [str(tmp_path), "--device", "cpu", "--batch", "4", "--batches", "6", "--rounds", "3", "--threads", "1"]
    )
    said = json.loads(capsys.readouterr().out)
    assert said["device"] == "cpu"
    assert sorted(said["ratio_each"])[1] == said["ratio"] > 0
    assert min(said["samples_per_s"], said["bare_samples_per_s"]) > 0


def test_a_folder_without_images_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"no \.parquet in"):
        bench_gpu.main([str(tmp_path)])
