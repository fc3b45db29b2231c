"""The commands on a real cluster: JSON fields, exit statuses, errors in bounded time, and the train job's resume."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import yaml
from typer.testing import CliRunner

from ingest import cli, cli_run
from ingest.cli_trainers import Trainers
from ingest.errors import StageError
from jobs import train
from jobs.demo_clicks import write_clicks

pytestmark = pytest.mark.usefixtures("cluster")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module
runner = CliRunner()


@pytest.fixture
def write(tmp_path):
    """A spec file from its sections; nothing is augmented unless said."""

    def spec(folder, **sections):
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump({"source": {"path": str(folder)}, **sections}), encoding="utf-8")
        return str(path)

    return spec


def call(*arguments, status=0):
    """The JSON of a command, which must end with `status`; with another than 0, its error line."""
    done = runner.invoke(cli.app, [*arguments, "--json", "-"])
    assert done.exit_code == status, done.output
    return json.loads(done.stdout) if status == 0 else done.stderr.splitlines()[-1]


def test_index_counts_what_is_there(write, numbers):
    result = call("index", write(numbers), "--no-cache")
    assert (result["files"], result["rows"]) == (7, 1010)
    assert result["units"] == 1 + 8 + 15 + 1 + 6 + 1 + 5
    assert result["bytes"] == sum(file.stat().st_size for file in numbers.iterdir())
    assert result["seconds"] > 0
    assert len(result["digest"]) == 32
    assert result["columns"] == {"x": {"source": "x", "type": "int64"}, "y": {"source": "y", "type": "double"}}


@pytest.mark.parametrize(("last", "steps", "dropped", "padded"), [("drop", 16, 50, 0), ("pad", 17, 0, 10)])
def test_plan_shows_steps_and_what_auto_became(write, numbers, last, steps, dropped, padded):
    spec = write(numbers, batch={"size": 20, "last": last})
    result = call("plan", spec, "--world-size", "3", "--no-cache")
    assert (result["steps"], result["dropped"], result["padded"], result["global_batch"]) == (
        steps,
        dropped,
        padded,
        60,
    )
    assert result["lanes"] & (result["lanes"] - 1) == 0
    assert result["windows"] >= result["lanes"]
    assert result["interleave"] >= 1
    assert 1 <= result["read_amplification"] < 2
    assert len(result["rank_units"]) == 3


def test_a_plan_that_cannot_run_is_refused_with_need_and_have(write, numbers):
    line = call("plan", write(numbers, read={"cpus": 64}), "--world-size", "1", status=1)
    assert "64 CPUs are needed" in line
    assert "the cluster has 2" in line


def test_run_reports_what_the_ranks_saw(write, numbers, tmp_path):
    spec = write(numbers, batch={"size": 50})
    target = tmp_path / "run.json"
    arguments = ["--world-size", "2", "--epochs", "3", "--no-cache", "--json", str(target)]
    done = runner.invoke(cli.app, ["run", spec, *arguments])
    assert done.exit_code == 0, done.output
    result = json.loads(target.read_text())
    assert (result["world_size"], result["epochs"], result["samples"]) == (2, 3, 3000)
    assert result["steps_per_rank"] == [30, 30]
    assert (result["dropped"], result["padded"], result["quarantined"]) == (30, 0, 0)
    assert len(result["epoch_gap_s"]) == 2
    assert result["samples_per_s"] == pytest.approx(result["samples"] / result["seconds"])
    assert 0 < result["first_batch_s"] < result["wall_s"]
    assert 0 <= result["waiting_fraction"] <= 1
    assert result["loader_cpu_s"] > 0
    assert result["peak_rss_bytes"] > 1 << 20
    assert result["object_store_peak_bytes"] >= 0
    assert result["spilled_bytes"] == 0
    assert result["verdict"].split(":")[0] in {"trainer", "read", "augment", "transfer"}
    assert "run samples: 3,000" in done.stdout


def test_step_ms_slows_the_trainer_and_the_verdict_says_so(write, numbers):
    spec = write(numbers, batch={"size": 100})
    result = call("run", spec, "--world-size", "1", "--epochs", "1", "--step-ms", "100")
    assert result["steps_per_rank"] == [10]
    assert result["seconds"] >= 9 * 0.1
    assert result["verdict"].startswith("trainer:")


def test_verify_proves_coverage_and_the_same_order_and_content_for_another_world_after_a_resume(write, numbers):
    spec = write(numbers, batch={"size": 80, "last": "keep"}, order={"lanes": 8, "interleave": 3})
    whole = call("verify", spec, "--world-size", "1", "--epoch", "1")
    counts = {name: whole[name] for name in ("expected", "missing", "repeated", "dropped", "padded")}
    assert counts == {"expected": 1010, "missing": 0, "repeated": 0, "dropped": 0, "padded": 0}
    assert whole["steps_per_rank"] == [13]
    resume = ["--resume-at", "3", "--resume-world-size", "1", "--resume-batch", "17"]
    moved = call("verify", spec, "--world-size", "2", "--epoch", "1", *resume)
    assert (moved["missing"], moved["repeated"], moved["ok"]) == (0, 0, True)
    assert moved["steps_per_rank"] == [32]  # 530 rows are left after 3 steps of 2 * 80
    assert moved["order_digest"] == whole["order_digest"]
    assert moved["content_digest"] == whole["content_digest"]


def test_a_step_beyond_the_epoch_is_no_place_to_resume_at(write, numbers):
    line = call("verify", write(numbers, batch={"size": 505}), "--world-size", "1", "--resume-at", "2", status=1)
    assert "no step 2 to resume at: the epoch has 2 steps" in line


@pytest.mark.parametrize(
    ("columns", "named"), [(None, "/no/such/place"), ({"picture": "imgae"}, "Did you mean 'image'?")]
)
def test_data_at_fault_has_status_1_and_is_named(write, pictures, columns, named):
    folder = "/no/such/place" if columns is None else pictures
    path = write(folder)
    arguments = [] if columns is None else ["--set", f"source.columns={json.dumps(columns)}"]
    assert named in call("index", path, "--no-cache", *arguments, status=1)


def test_a_bad_sample_ends_the_run_soon_naming_file_and_row(write, tmp_path, pictures):
    table = pq.read_table(pictures / "part-0.parquet")
    images = table["image"].to_pylist()
    images[7] = b"\xff\xd8 no picture"
    bad = tmp_path / "bad"
    bad.mkdir()
    pq.write_table(table.set_column(0, "image", pa.array(images, pa.binary())), bad / "x.parquet", row_group_size=10)
    spec = write(bad, augment={"ops": [{"resize": {"size": 32}}]}, batch={"size": 10}, order={"shuffle": "none"})
    began = time.monotonic()
    line = call("run", spec, "--world-size", "1", "--epochs", "1000", "--step-ms", "50", status=1)
    assert time.monotonic() - began < 90  # 1,000 epochs would take eight minutes
    assert "x.parquet" in line
    assert "row 7" in line
    assert line.startswith("error: [augment]")


def test_an_interrupt_ends_the_run_with_status_130(write, numbers, monkeypatch):
    def interrupted(self, progress, verdicts):
        if any(rank["samples"] for rank in progress):
            raise KeyboardInterrupt

    monkeypatch.setattr(cli_run.LiveLine, "show", interrupted)
    line = call("run", write(numbers), "--world-size", "1", "--epochs", "100000", status=130)
    assert line == "interrupted"


@pytest.mark.parametrize("fails", ["dies", "raises"])
def test_a_rank_that_fails_ends_the_wait_for_the_others_and_is_named(fails):
    class Rank:
        def __init__(self, rank):
            self.rank = rank

        def work(self):
            if self.rank == 1:
                if fails == "dies":
                    os._exit(1)
                raise ZeroDivisionError("by hand")
            threading.Event().wait()

    with Trainers(Rank, 2) as trainers, pytest.raises(StageError, match="rank 1") as caught:
        trainers.call("work")
    text = {"dies": "the trainer died", "raises": "cause: ZeroDivisionError: by hand"}[fails]
    assert text in str(caught.value)


def test_show_writes_a_sheet_of_the_first_samples(write, pictures, tmp_path):
    spec = write(pictures, augment={"ops": [{"resize": {"size": 32}}, "rand_augment", "normalize"]})
    target = tmp_path / "sheet.png"
    result = call("show", spec, "-o", str(target), "--samples", "3", "--passes", "2", "--no-cache")
    assert result == {"samples": 3, "passes": 2, "bad": 0, "output": str(target)}
    assert target.read_bytes().startswith(b"\x89PNG")
    assert "augments nothing" in call("show", write(pictures), "-o", str(target), "--no-cache", status=2)


def test_bench_measures_ceiling_reading_and_the_whole(write, pictures):
    spec = write(pictures, augment={"ops": [{"random_resized_crop": {"size": 32}}]}, batch={"size": 20})
    result = call("bench", spec, "--seconds", "0.5", "--repeats", "1")
    rates = [result[f"{name}samples_per_s"] for name in ("ceiling_", "read_", "")]
    assert all(rate > 0 for rate in rates)
    assert result["ratio_to_ceiling"] == pytest.approx(rates[2] / rates[0])
    assert result["first_batch_s"] > 0


def test_the_train_job_learns_and_resumes_in_mid_epoch_on_another_world(write, pictures, tmp_path, capsys):
    spec = write(pictures, augment={"ops": [{"resize": {"size": 32}}]}, batch={"size": 24})
    state, target = tmp_path / "state", tmp_path / "out.json"
    common = ["--state", str(state), "--epochs", "1", "--model", "numpy", "--classes", "2", "--json", str(target)]
    assert train.main([spec, "--trainers", "2", "--steps", "2", *common]) == 0
    (first,) = json.loads(target.read_text())["epochs"]
    assert (first["expected"], first["missing"], first["repeated"]) == (96, 0, 0)
    assert train.main([spec, "--trainers", "1", *common]) == 0
    result = json.loads(target.read_text())
    (rest,) = result["epochs"]
    assert (rest["position"], rest["expected"], rest["missing"], rest["repeated"]) == (96, 144, 0, 0)
    assert (result["state"]["epoch"], result["state"]["position"]) == (1, 0)
    assert "missing 0, repeated 0" in capsys.readouterr().out


@pytest.mark.slow
def test_the_train_job_counts_kept_rows_over_a_resume_inside_a_chunk_of_like_lengths(tmp_path, capsys):
    write_clicks(str(tmp_path / "log"), 1500, seed=1)
    source = {"path": str(tmp_path / "log"), "where": "label >= 0", "limit": 1200}
    source |= {"split": {"take": "a", "of": {"a": 0.9, "b": 0.1}}}
    batch = {"size": 24, "ragged": "offsets", "last": "keep", "bucket_by": {"column": "history", "chunk": 5}}
    spec, target = tmp_path / "spec.yaml", tmp_path / "out.json"
    spec.write_text(yaml.safe_dump({"source": source, "batch": batch, "order": {"lanes": 4}}), encoding="utf-8")
    common = ["--state", str(tmp_path / "state"), "--epochs", "1", "--model", "clicks", "--json", str(target)]
    assert train.main([str(spec), "--trainers", "2", "--steps", "7", *common]) == 0
    result = json.loads(target.read_text())
    assert result["state"]["chunk"] == [240, 480, 48]
    (first,) = result["epochs"]
    assert (first["missing"], first["repeated"], first["foreign"]) == (0, 0, 0)
    assert train.main([str(spec), "--trainers", "3", *common]) == 0
    (rest,) = json.loads(target.read_text())["epochs"]
    assert first["expected"] + rest["expected"] == 1200
    assert (rest["missing"], rest["repeated"], rest["foreign"]) == (0, 0, 0)


def test_the_train_job_refuses_what_cannot_be_learnt(write, numbers, capsys):
    assert train.main([write(numbers)]) == 2
    assert "nothing to learn" in capsys.readouterr().err


def test_a_job_that_can_never_start_is_refused_before_launch(write, pictures, capsys):  # D18
    spec = write(pictures, augment={"ops": [{"resize": {"size": 32}}]})
    for options, named in [
        (["--trainer-gpus", "1"], "2 GPUs are needed (2 for 2 trainers) and the cluster has 0"),
        (["--trainer-cpus", "1"], "3 CPUs are needed (1 for a reader, 0 for 2 augmentation actors, 2 for 2 trainers)"),
        (["--trainer-label", "zone=moon"], "trainers want nodes labelled zone=moon, and there is none"),
        (["--set", "read.labels={zone: moon}"], "readers want a node with label zone=moon, and there is none"),
    ]:
        assert train.main([spec, "--model", "numpy", *options]) == 1
        assert named in capsys.readouterr().err


def test_readers_are_refused_where_trainers_hold_every_cpu(write, numbers):  # R33
    holder = ray.remote(num_cpus=1)(Holder).remote()
    group = ray.util.placement_group([{"CPU": 1}])
    try:
        ray.get([holder.ready.remote(), group.ready()])
        line = call("run", write(numbers), "--world-size", "1", "--epochs", "1", status=1)
    finally:
        ray.kill(holder)
        ray.util.remove_placement_group(group)
    assert "of 2 CPUs, actors and placement groups hold 2" in line


class Holder:
    """Holds what Ray counts for it."""

    def ready(self):
        return True
