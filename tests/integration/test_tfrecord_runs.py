"""TFRecord on a real cluster: files that TensorFlow wrote, through index, plan, run and verify, and with images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import ingest
from ingest import cli

pytestmark = pytest.mark.usefixtures("cluster")

DATA = Path(__file__).parents[1] / "data"


def call(*arguments):
    done = CliRunner().invoke(cli.app, [*arguments, "--no-cache", "--json", "-"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def clicks(tmp_path):
    """A spec over three files of forty records: plain, GZIP and ZLIB."""
    (tmp_path / "data").mkdir()
    for i, name in enumerate(("clicks.tfrecord-00000-of-00001", "clicks-gzip", "clicks-zlib")):
        shutil.copy(DATA / name, tmp_path / "data" / f"part-{i:05d}-of-00003")
    spec = {"source": {"path": str(tmp_path / "data")}, "batch": {"size": 8, "last": "pad"}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    return str(tmp_path / "spec.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 3])
def test_every_record_comes_once(clicks, world):
    proof = call("verify", clicks, "--world-size", str(world))
    assert (proof["expected"], proof["missing"], proof["repeated"]) == (120, 0, 0)


def test_index_and_plan_tell_what_is_there(clicks):
    found = call("index", clicks)
    assert (found["format"], found["files"], found["units"], found["rows"]) == ("tfrecord", 3, 3, 120)
    assert found["damaged_files"] == found["lost_records"] == 0
    assert call("plan", clicks, "--world-size", "2")["steps"] == 8


def test_damage_ends_a_start_with_its_place(clicks):
    path = Path(clicks).parent / "data" / "part-00000-of-00003"
    path.write_bytes(path.read_bytes()[:-5])
    done = CliRunner().invoke(cli.app, ["index", clicks, "--no-cache"])
    assert done.exit_code == 1
    assert "record 39 at byte" in done.stderr
    assert "the file ends inside it" in done.stderr
    assert str(path) in done.stderr.replace("\n", "")


def test_two_ranks_receive_what_tensorflow_reads(clicks):
    expected = json.loads((DATA / "clicks.json").read_text(encoding="utf-8"))
    seen = {}
    ranks = [ingest.Loader(clicks, rank, 2, epochs=1, cache_dir=None) for rank in range(2)]
    try:
        for batches in zip(*ranks, strict=True):
            for batch in batches:
                for i, sample in enumerate(batch["sample_id"][: batch.valid_rows].tolist()):
                    seen[sample] = {name: batch[name][i] for name in expected[0]}
    finally:
        for rank in ranks:
            rank.close()
    assert sorted(seen) == list(range(120))
    for sample, row in seen.items():
        want = expected[sample % 40]
        assert (row["label"], row["category"], row["query"].decode()) == (
            want["label"],
            want["category"],
            want["query"],
        )
        assert row["numbers"].tolist() == want["numbers"]
        assert row["history"].tolist() == want["history"]
        assert [tag.decode() for tag in row["tags"]] == want["tags"]


def test_images_are_augmented():
    columns = {"image": "image/encoded", "label": "image/class/label"}
    spec = {
        "source": {"path": str(DATA / "images-*"), "columns": columns},
        "augment": {"ops": [{"random_resized_crop": {"size": 16}}, "flip"]},
        "batch": {"size": 4},
    }
    with ingest.Loader(spec, 0, 1, epochs=1, cache_dir=None) as loader:
        batches = list(loader)
    assert sorted(np.concatenate([batch["label"] for batch in batches]).tolist()) == list(range(12))
    assert {batch["image"].shape for batch in batches} == {(4, 16, 16, 3)}
