"""Batches of like lengths on a real cluster: every row once, equal steps, exact resumes, what the ranks' states say."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

import ingest
from ingest import cli
from ingest.errors import SchemaError, StateError
from tests.augment_images import augment

pytestmark = pytest.mark.usefixtures("cluster")
ROWS = 1210


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """1,210 rows of 1 to 200 tokens in four files; each token is its row's number, `size` counts them."""
    folder = tmp_path_factory.mktemp("texts")
    sizes = np.clip(np.random.default_rng(0).lognormal(3, 0.8, ROWS), 1, 200).astype(np.int64)
    tokens = pa.array([np.full(size, row, np.int32) for row, size in enumerate(sizes)])
    table = pa.table({"tokens": tokens, "size": sizes})
    for index, (start, stop) in enumerate([(0, 500), (500, 510), (510, 1000), (1000, ROWS)]):
        pq.write_table(table.slice(start, stop - start), folder / f"{index}.parquet", row_group_size=60)
    return folder


def spec(folder, column="tokens", last="keep", **batch):
    sections = {"size": 16, "last": last, "ragged": "padded", "bucket_by": {"column": column, "chunk": 8}, **batch}
    return {"source": {"path": str(folder)}, "batch": sections, "order": {"lanes": 4}}


def epoch_of(values, world, state=None):
    """For each step, the batches of all ranks; and the state after each, the same on all."""
    ranks = [ingest.Loader(values, rank, world, cache_dir=None, epochs=1) for rank in range(world)]
    steps, states = [], []
    try:
        for rank in ranks if state is not None else ():
            rank.load_state_dict(state)
        for batches in zip(*ranks, strict=True):
            steps.append(batches)
            found = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
            assert all(each == found[0] for each in found)
            states.append(found[0])
    finally:
        for rank in ranks:
            rank.close()
    return steps, states


def rows_of(steps):
    """Of each step, the ids of all ranks in their order."""
    return [np.concatenate([b["sample_id"][b["valid"]] for b in batches]).tolist() for batches in steps]


def test_two_ranks_take_like_lengths_once_in_equal_steps_and_resume_anywhere(texts, tmp_path):
    log = {"loader": {"log": str(tmp_path)}}
    whole, states = epoch_of(spec(texts) | log, 2)
    ids = rows_of(whole)
    assert sorted(itertools.chain(*ids)) == list(range(ROWS))
    assert len(whole) == -(-ROWS // 32)
    padded = real = 0
    for batch in (b for batches in whole for b in batches):
        assert batch["valid"].all()
        assert batch["size"].tolist() == batch["tokens_length"].tolist()
        assert batch["tokens"].shape == (len(batch["size"]), batch["size"].max())
        inside = np.arange(batch["tokens"].shape[1]) < batch["size"][:, None]
        assert (batch["tokens"] == np.where(inside, batch["sample_id"][:, None], 0)).all()
        padded, real = padded + batch["tokens"].size, real + int(batch["size"].sum())
    assert 1 - real / padded < 0.3  # two small lanes a rank; unsorted it is 0.6

    assert len({tuple(state) for state in states}) == 1
    with ingest.Loader(spec(texts, size=32) | log, 0, 1, cache_dir=None, epochs=1) as one:
        for at in (8, 21):  # at a border of chunks, and in the midst of one
            assert states[at - 1]["position"] == 32 * at
            one.load_state_dict(states[at - 1])
            assert rows_of([batch] for batch in one) == ids[at:]
    other, _ = epoch_of(spec(texts, size=9) | log, 2, states[20])
    assert sorted(itertools.chain(*rows_of(other))) == sorted(itertools.chain(*ids[21:]))
    done = CliRunner().invoke(cli.app, ["verify", "--log", str(tmp_path), "--epochs", "1", "--json", "-"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["ok"], told["expected"], told["delivered"]) == (0, True, ROWS, ROWS), told
    assert (told["worlds"], told["turns"], told["attempts"]) == ([2, 1, 2], 3, 3)
    said = r"bucket_by was .*'tokens'.* and is .*'size'"
    with ingest.Loader(spec(texts, "size"), 0, 1, cache_dir=None) as loader, pytest.raises(StateError, match=said):
        loader.load_state_dict(states[0])


@pytest.mark.slow
def test_verify_and_plan_with_buckets(texts, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec(texts, column="size", last="drop")), encoding="utf-8")

    def call(*arguments):
        done = CliRunner().invoke(cli.app, [*arguments, "--no-cache", "--json", "-"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    checked = call("verify", str(path), "--world-size", "3", "--resume-at", "11", "--resume-world-size", "2")
    assert checked["ok"]
    assert (checked["missing"], checked["repeated"], checked["foreign"], checked["padded"]) == (0, 0, 0, 0)
    assert checked["expected"] == ROWS - checked["dropped"]
    planned = call("plan", str(path), "--world-size", "2")
    assert (planned["bucket_by"], planned["chunk"], planned["batch_size"]) == ("size", 8, 16)
    assert 0 < planned["padding_waste"] < 0.35 < planned["padding_waste_unsorted"] < 0.8
    assert planned["batch_tokens"] < planned["batch_tokens_p99"]


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["actor", "trainer"])
def test_two_ranks_take_images_by_length_with_the_pixels_they_have_alone(pictures, placement):
    ops = [{"random_resized_crop": {"size": 16}}, "flip"]
    values = {
        "source": {"path": str(pictures)},
        "augment": {"ops": ops, "device": "cpu", "placement": placement},
        "batch": {"size": 12, "last": "keep", "bucket_by": {"column": "label", "chunk": 4}},
        "order": {"lanes": 4},
    }

    def pixels(steps):
        seen = [
            (int(i), image.tobytes())
            for bs in steps
            for b in bs
            for i, image in zip(b["sample_id"], b["image"], strict=True)
        ]
        assert len(dict(seen)) == len(seen)
        return dict(seen)

    images = pa.concat_tables([pq.read_table(file) for file in sorted(pictures.iterdir())])["image"].to_pylist()
    alone = augment(images, seed=0, ops=ops)
    whole, states = epoch_of(values, 2)
    assert pixels(whole) == {i: image.tobytes() for i, image in enumerate(alone)}
    assert len({len(batch["label"]) for batches in whole for batch in batches}) > 3
    assert max(len(batch["label"]) for batches in whole for batch in batches) > 18  # of the shortest
    rest, _ = epoch_of(values, 1, states[5])
    assert pixels([*whole[:6], *rest]) == pixels(whole)


@pytest.mark.slow
def test_two_ranks_find_the_rows_of_a_token_target_and_go_on_as_three(texts, tmp_path):
    values = spec(texts)
    values["batch"] = {"last": "keep", "ragged": "padded", "bucket_by": {"column": "tokens", "chunk": 4, "tokens": 500}}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    done = CliRunner().invoke(cli.app, ["plan", str(path), "--world-size", "2", "--no-cache", "--json", "-"])
    planned = json.loads(done.stdout)
    whole, states = epoch_of(values, 2)
    assert len(whole) == planned["steps"]
    chunks = [batches for batches in whole if batches[0].chunk and batches[0].chunk.groups == 4]
    padded = [batch["tokens"].size for batches in chunks for batch in batches]
    assert 0.75 * 500 < np.mean(padded) < 1.25 * 500  # ten rows a lane and chunk are a small sample
    assert {batch.chunk.batch for batches in chunks for batch in batches} == {2 * planned["batch_size"]}
    rest, _ = epoch_of(values, 3, states[4])
    assert sorted(itertools.chain(*rows_of([*whole[:5], *rest]))) == list(range(ROWS))


def test_a_column_without_lengths_is_refused_before_training(tmp_path):
    pq.write_table(pa.table({"weight": [0.5, 1.0]}), tmp_path / "x.parquet")
    with pytest.raises(SchemaError, match="is double, and lengths are"):
        ingest.Loader(spec(tmp_path, column="weight"), 0, 1, cache_dir=None)
