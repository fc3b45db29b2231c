"""Exactly once under bad samples and deaths: what is replaced, what is refused, and who learns of whose failure."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from deaths import alive, kill
from PIL import Image
from typer.testing import CliRunner

import ingest
from ingest import cli
from ingest.errors import SampleError, StageError, StateError
from ingest.loader.quarantine import decode

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("cluster")
runner = CliRunner()
OPS = [{"random_resized_crop": {"size": 32}}, "flip"]


def encoded(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def poison(images):
    """Ten ways to spoil an image; returns those that nothing decodes, and those that must decode after all."""
    whole = Image.open(io.BytesIO(images[0]))
    huge = bytearray(encoded(whole, "PNG"))
    huge[16:24] = (20_000).to_bytes(4, "big") * 2
    zero = bytearray(encoded(whole, "PNG"))
    zero[16:24] = bytes(8)
    deep = Image.fromarray((np.arange(64 * 48, dtype=np.uint16) * 20).reshape(48, 64))
    bad = {
        3: b"",
        10: bytes(range(256)) * 4,
        20: images[20][: len(images[20]) * 9 // 10],
        31: b"<html><body>404</body></html>",
        45: None,
        59: bytes(zero),
        77: bytes(huge),
    }
    odd = {90: encoded(whole.convert("CMYK"), "JPEG"), 91: encoded(deep, "PNG"), 92: encoded(whole, "PNG")}
    return bad, odd


def epoch_of(values, world=1, epochs=1):
    """(rows by sample id, batches, reports) of whole epochs; valid rows only."""
    rows, batches = {}, []
    loaders = [ingest.Loader(values, rank, world, cache_dir=None, epochs=epochs) for rank in range(world)]
    try:
        for _ in range(epochs):
            for step in zip(*loaders, strict=True):
                batches += step
                for batch in step:
                    valid = batch.get("valid", np.ones(len(batch["label"]), bool))
                    for i in np.flatnonzero(valid):
                        rows[int(batch["sample_id"][i])] = np.array(batch["image"][i]), int(batch["label"][i])
        return rows, batches, [loader.report() for loader in loaders]
    finally:
        for loader in loaders:
            loader.close()


def records(folder):
    return [each for file in sorted(folder.iterdir()) for each in decode(file.name, file.read_bytes())]


def test_bad_images_are_replaced_counted_and_kept_and_no_healthy_bit_changes(pictures, tmp_path):
    table = pa.concat_tables([pq.read_table(file) for file in sorted(pictures.iterdir())])
    images = table["image"].to_pylist()
    bad, odd = poison(images)
    clean, dirty = [odd.get(i, data) for i, data in enumerate(images)], images.copy()
    for i, data in {**bad, **odd}.items():
        dirty[i] = data
    for name, column in (("clean", clean), ("dirty", dirty)):
        (tmp_path / name).mkdir()
        spoiled = table.set_column(0, "image", pa.array(column, pa.binary()))
        pq.write_table(spoiled, tmp_path / name / "all.parquet", row_group_size=30)
    kept = tmp_path / "kept"
    values = {
        "source": {"path": str(tmp_path / "dirty")},
        "augment": {"ops": OPS},
        "order": {"lanes": 4},
        "batch": {"size": 16, "last": "keep"},
        "errors": {"on_bad_sample": "replace", "budget": 0.1, "quarantine": str(kept)},
    }
    found, batches, (one, two) = epoch_of(values, world=2)
    healthy, _, _ = epoch_of({**values, "source": {"path": str(tmp_path / "clean")}})
    assert set(found) == set(range(240)) - set(bad)
    for sample, (pixels, label) in found.items():
        assert label == sample
        assert (pixels == healthy[sample][0]).all(), sample
    assert [len(batch["label"]) for batch in batches[::2]] == [16] * 7 + [8]
    for batch in batches:
        for row in batch.replaced:
            after = next(
                i % len(batch["label"]) for i in range(row, row + 16) if batch["valid"][i % len(batch["label"])]
            )
            assert batch["sample_id"][row] == batch["sample_id"][after] == batch["label"][row]
            assert (batch["image"][row] == batch["image"][after]).all()
    assert one["quarantined"] + two["quarantined"] == len(bad)
    quarantined = {each.sample_id: each for each in records(kept)}
    assert sorted(quarantined) == sorted(bad)
    assert len(records(kept)) == len(bad)
    for sample, each in quarantined.items():
        assert (each.epoch, each.row, each.path) == (0, sample, str(tmp_path / "dirty" / "all.parquet"))
        assert each.first_bytes == (bad[sample] or b"")[:64]
    assert "HTML" in quarantined[31].error
    shown = runner.invoke(cli.app, ["quarantine", str(kept), "--json", "-"])
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    assert (told["quarantined"], told["by_epoch"]) == (len(bad), {"0": len(bad)})
    assert [each["sample_id"] for each in told["records"]] == sorted(bad)
    (tmp_path / "spec.yaml").write_text(json.dumps(values))
    place = runner.invoke(cli.app, ["locate", str(tmp_path / "spec.yaml"), "45", "--json", "-", "--no-cache"])
    assert json.loads(place.stdout) == {"sample_id": 45, "path": quarantined[45].path, "row": 45}


def test_over_the_budget_the_run_ends_and_says_so(pictures, tmp_path):
    table = pq.read_table(pictures / "part-0.parquet")
    images = table["image"].to_pylist()
    images[::10] = [b"nothing"] * 10
    pq.write_table(table.set_column(0, "image", pa.array(images, pa.binary())), tmp_path / "bad.parquet")
    values = {
        "source": {"path": str(tmp_path)},
        "augment": {"ops": OPS},
        "batch": {"size": 20},
        "errors": {"on_bad_sample": "replace", "budget": 0.05, "quarantine": str(tmp_path / "kept")},
    }
    with (
        ingest.Loader(values, 0, 1, cache_dir=None) as loader,
        pytest.raises(SampleError, match=r"bad samples in epoch 0 are more than errors.budget allows.*100 rows is 5"),
    ):
        list(loader)


def test_an_evaluation_counts_each_of_ten_rows_once_on_three_ranks(pictures):
    values = {
        "source": {"path": str(pictures / "part-1.parquet")},
        "augment": {"recipe": "imagenet_eval", "threads": 1},
        "batch": {"size": 2, "last": "pad"},
    }
    ranks = [ingest.Loader(values, rank, 3, cache_dir=None, epochs=1) for rank in range(3)]
    try:
        steps = list(zip(*ranks, strict=True))
    finally:
        for rank in ranks:
            rank.close()
    assert [[batch["image"].shape for batch in step] for step in steps] == [[(2, 224, 224, 3)] * 3] * 2
    counted = [batch["label"][batch["valid"]].tolist() for step in steps for batch in step]
    assert sorted(label for labels in counted for label in labels) == list(range(100, 110))
    assert sorted(map(len, counted[3:])) == [1, 1, 2]


def test_the_failure_of_a_rank_reaches_the_others_with_its_cause(numbers):  # R04
    values = {"source": {"path": str(numbers)}, "batch": {"size": 4}, "loader": {"prefetch_batches": 2}}
    one, two = (ingest.Loader(values, rank, 2, cache_dir=None) for rank in range(2))
    next(iter(one))

    def train():
        with two:
            next(iter(two))
            return 1 / 0

    def go_on():
        with one:
            for _ in one:
                threading.Event().wait(0.02)

    with pytest.raises(ZeroDivisionError):
        train()
    with pytest.raises(StageError, match=r"\[trainer\] the trainer failed \(rank 1\).*ZeroDivisionError"):
        go_on()


class Other:
    """A rank in a process of its own."""

    def start(self, values):
        self.loader = ingest.Loader(values, 1, 2, cache_dir=None)
        next(iter(self.loader))
        return os.getpid()

    def step(self):
        next(iter(self.loader))


def test_the_death_of_a_rank_reaches_the_others_and_names_it(numbers):  # D06
    values = {"source": {"path": str(numbers)}, "batch": {"size": 4}, "loader": {"prefetch_batches": 2}}
    with ingest.Loader(values, 0, 2, cache_dir=None) as one:
        next(iter(one))
        other = ray.remote(Other).options(num_cpus=0).remote()
        os.kill(ray.get(other.start.remote(values)), signal.SIGKILL)
        began, taken = time.monotonic(), [1]

        def go_on():
            for _ in one:
                taken.append(1)
                threading.Event().wait(0.1)

        with pytest.raises(StageError, match=r"\[trainer\] the trainer died \(rank 1\)"):
            go_on()
        assert time.monotonic() - began < 10
        assert one.state_dict()["position"] == 8 * len(taken)


def test_ranks_hear_of_each_other_after_the_death_of_the_process_that_they_meet_in(numbers):
    values = {"source": {"path": str(numbers)}, "batch": {"size": 2}, "loader": {"prefetch_batches": 2}}
    with ingest.Loader(values, 0, 2, cache_dir=None) as one:
        batches = iter(one)
        next(batches)
        other = ray.remote(Other).options(num_cpus=0).remote()
        pid = ray.get(other.start.remote(values))
        kill("CatalogHost")
        until = time.monotonic() + 60
        steps = 0
        while steps < 12 and time.monotonic() < until:  # both find the new one while they train
            next(batches)
            ray.get(other.step.remote())
            steps += alive("CatalogHost")
            threading.Event().wait(0.1)
        assert steps == 12
        os.kill(pid, signal.SIGKILL)

        def go_on():
            for _ in batches:
                threading.Event().wait(0.1)

        with pytest.raises(StageError, match=r"\[trainer\] the trainer died \(rank 1\)"):
            go_on()


def test_no_batch_for_too_long_is_an_error_that_says_what_is_waited_for(numbers):
    values = {"source": {"path": str(numbers)}, "batch": {"size": 4}, "loader": {"timeout_s": 3}}
    with ingest.Loader(values, 0, 1, cache_dir=None) as loader:
        hog = ray.remote(Other).options(num_cpus=2).remote()
        ray.get(hog.__ray_ready__.remote())
        with pytest.raises(
            StageError, match=r"\[read\] no batch for [3-9] s.*window 0 of lane.*part-.*0 of 2 are free"
        ):
            next(iter(loader))
        loader.set_epoch(1)  # does not wait for what is waited for
        ray.kill(hog)


def test_ranks_that_load_different_states_are_refused(numbers):
    values = {"source": {"path": str(numbers)}, "batch": {"size": 4}}
    one, two = (ingest.Loader(values, rank, 2, cache_dir=None) for rank in range(2))
    with one, two:
        state = one.state_dict()
        one.load_state_dict({**state, "position": 8})
        with pytest.raises(StateError, match=r"position is 8 on rank 0 and 16 on rank 1"):
            two.load_state_dict({**state, "position": 16})
        with pytest.raises(StateError, match="ranks differ"):
            list(one)


def test_a_coverage_log_proves_a_run_over_a_restart_on_another_world_and_finds_a_gap(numbers, tmp_path):
    log = tmp_path / "log"
    values = {
        "source": {"path": str(numbers), "where": "x != 3"},
        "batch": {"size": 50, "last": "keep"},
        "loader": {"log": str(log)},
    }

    def train(world, state, steps):
        loaders = [ingest.Loader(values, rank, world, cache_dir=None, epochs=2) for rank in range(world)]
        states = [state]
        try:
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
            while len(states) <= steps and loaders[0].epoch < 2:
                for _ in zip(*loaders, strict=True):
                    states.append(loaders[0].state_dict())
                    if len(states) > steps:
                        break
            return states
        finally:
            for loader in loaders:
                loader.close()

    def verify():
        done = runner.invoke(cli.app, ["verify", "--log", str(log), "--epochs", "2", "--json", "-"])
        return done.exit_code, json.loads(done.stdout)

    states = train(2, None, 14)
    assert states[14]["epoch"] == 1
    train(1, states[13], 1000)
    status, told = verify()
    assert (status, told["ok"], told["missing"], told["repeated"]) == (0, True, 0, 0), told
    assert (told["expected"], told["worlds"], told["attempts"]) == (2 * 1009, [2, 1], 2)
    file = next(file for file in sorted(log.glob("*rank00001-*.jsonl")))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for i, line in enumerate(lines) if i != 2))  # its first stretch
    status, told = verify()
    assert status == 1
    assert told["missing"] > 0
