"""Mixtures on a real cluster: two Parquet sources and one of TFRecord, on two ranks, resumed, verified and shown."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

import ingest
from ingest import cli, rng
from ingest.errors import StateError
from ingest.manifest.records import frame
from tests.examples import entry, example, floats, ints

pytestmark = pytest.mark.usefixtures("cluster")
ROWS = (600, 90, 200)  # of each source, before any filter


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """`x` is the sample id that a row has in the mixture: sources begin at 0, 600 and 690."""
    root, start = tmp_path_factory.mktemp("mixture"), 0
    for name, rows in zip("ab", ROWS[:2], strict=True):
        (root / name).mkdir()
        table = pa.table({"x": np.arange(start, start + rows), "y": np.arange(rows, dtype=np.float32)})
        pq.write_table(table.slice(0, rows // 2), root / name / "0.parquet", row_group_size=40)
        pq.write_table(table.slice(rows // 2), root / name / "1.parquet", row_group_size=25)
        start += rows
    (root / "c").mkdir()
    records = [example(entry(b"x", ints(start + i)), entry(b"y", floats(i))) for i in range(ROWS[2])]
    (root / "c" / "0.tfrecord").write_bytes(b"".join(map(frame, records)))
    return root


def mixture(root, **sections):
    sources = [
        {"path": str(root / "a"), "weight": 3},
        {"path": str(root / "b"), "weight": 1.5, "where": "y >= 10"},
        {"path": str(root / "c"), "weight": 0.5},
    ]
    return {"sources": sources, "mix": {"stop": "all_exhausted"}, "batch": {"size": 25, "last": "keep"}, **sections}


def epoch(spec, world, state=None, steps=None):
    """Ids by position of what `world` ranks take, and their state."""
    seen = {}
    ranks = [ingest.Loader(spec, rank, world, cache_dir=None) for rank in range(world)]
    try:
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
        for taken, batches in enumerate(zip(*ranks, strict=True), 1):
            for batch in batches:
                assert batch["x"].tolist() == batch["sample_id"].tolist()
                places, ids = batch.positions[: batch.valid_rows].tolist(), batch["sample_id"].tolist()
                seen.update(zip(places, ids, strict=False))
            if taken == steps:
                break
        states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
        assert all(one == states[0] for one in states)
        return seen, states[0], ranks[0].report()["sources"]
    finally:
        for rank in ranks:
            rank.close()


def check_passes(first, rest):
    """Two parts of an epoch of 2,000 rows: each row once a pass of its source, which are 2, 7.5 and 1."""
    assert sorted([*first, *rest]) == list(range(2000))
    times = np.bincount([*first.values(), *rest.values()], minlength=890)
    assert (times[:600] == 2).all()
    assert (times[600:610] == 0).all()
    assert set(times[610:690].tolist()) == {7, 8}
    assert (times[690:] == 1).all()


def check_log(folder):
    """It proves the first epoch."""
    done = CliRunner().invoke(cli.app, ["verify", "--log", str(folder), "--epochs", "1", "--json", "-"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["ok"], told["expected"], told["delivered"]) == (0, True, 2000, 2000), told


def test_rows_come_once_a_pass_across_a_resume_on_another_world_and_the_log_proves_it(folders, tmp_path):
    # c is used up last: 200 rows are a tenth of 2,000. Of b, 80 rows pass the filter.
    spec = mixture(folders, order={"lanes": 8}, loader={"log": str(tmp_path)})
    first, state, sources = epoch(spec, 2, steps=7)
    assert [(one["epoch_rows"], one["first_id"]) for one in sources] == [(1200, 0), (600, 600), (200, 690)]
    assert [one["passes"] for one in sources] == [2, 7.5, 1]
    rest, _, _ = epoch({**spec, "batch": {"size": 100, "last": "keep"}}, 1, state)
    check_passes(first, rest)
    check_log(tmp_path)


@pytest.mark.slow
def test_weights_may_not_change_at_a_resume(folders):
    with ingest.Loader(mixture(folders), 0, 1, cache_dir=None) as loader:
        state = loader.state_dict()
    changed = mixture(folders)
    changed["sources"][0]["weight"] = 2
    with (
        ingest.Loader(changed, 0, 1, cache_dir=None) as loader,
        pytest.raises(StateError, match=r"sources\.0 was .*3\.0.* and is .*2\.0"),
    ):
        loader.load_state_dict(state)


@pytest.mark.slow
def test_the_commands_tell_each_source(folders, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(mixture(folders, batch={"size": 48})), encoding="utf-8")

    def call(*arguments):
        done = CliRunner().invoke(cli.app, [*arguments, "--no-cache", "--json", "-"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    found = call("index", str(path))
    assert (found["format"], found["rows"], found["data_rows"]) == ("parquet and tfrecord", 880, 890)
    assert [one["rows"] for one in found["sources"]] == [600, 80, 200]
    planned = call("plan", str(path), "--world-size", "2")
    assert (planned["rows"], planned["steps"], planned["dropped"]) == (2000, 20, 80)
    assert [one["share"] for one in planned["sources"]] == [0.6, 0.3, 0.1]
    proof = call("verify", str(path), "--world-size", "2", "--resume-at", "4", "--resume-world-size", "1")
    assert (proof["expected"], proof["missing"], proof["repeated"], proof["foreign"]) == (1968, 0, 0, 0)
    assert [abs(one["delivered"] - one["epoch_rows"]) < 60 for one in proof["sources"]] == [True] * 3


@pytest.mark.slow
def test_mixed_rows_of_like_lengths_come_once_a_pass_across_a_resume_inside_a_chunk(folders, tmp_path):
    bucket_by = {"column": "x", "chunk": 4}
    batch = {"size": 25, "last": "keep", "bucket_by": bucket_by}
    log = {"log": str(tmp_path)}
    first, state, _ = epoch(mixture(folders, order={"lanes": 4}, batch=batch, loader=log), 2, steps=6)
    assert state["chunk"] == [200, 400, 50]
    rest, _, _ = epoch(mixture(folders, batch={**batch, "size": 40}, loader=log), 3, state)
    check_passes(first, rest)
    check_log(tmp_path)


@pytest.mark.slow
def test_steps_keep_their_rows_on_another_world(folders):
    spec = mixture(folders, mix={"stop": "steps", "steps": 4})
    first, state, _ = epoch(spec, 2, steps=1)
    assert state["rows"] == 200
    rest, _, _ = epoch(spec, 1, state)
    assert sorted([*first, *rest]) == list(range(200))


def test_a_rows_numbers_are_of_its_sources_pass(tmp_path):
    from tests.integration.conftest import jpeg

    for name, rows in (("a", 12), ("b", 4)):
        images = [jpeg(i, (40, 40)) for i in range(rows)]
        pq.write_table(pa.table({"image": pa.array(images, pa.binary())}), tmp_path / f"{name}.parquet")
    spec = {
        "sources": [{"path": str(tmp_path / f"{name}.parquet")} for name in "ab"],
        "mix": {"stop": "all_exhausted"},
        "augment": {"ops": [{"random_resized_crop": {"size": 8}}], "device": "cpu"},
        "batch": {"size": 8},
        "order": {"lanes": 2},
    }
    seen = []
    with ingest.Loader(spec, 0, 1, epochs=1, cache_dir=None) as loader:
        for batch in loader:
            seen += zip(batch["sample_id"].tolist(), (image.tobytes() for image in batch["image"]), strict=True)
    assert len(seen) == 24
    assert len({image for sample, image in seen if sample == 13}) == 3  # a pass has numbers of its own
    assert (
        rng.uniforms(0, np.array([0, 2]), np.array([13, 13]), 2)[1].tolist()
        == rng.uniforms(0, 2, np.array([13]), 2)[0].tolist()
    )
