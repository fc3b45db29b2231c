"""The command line without a cluster: calls that are wrong, exit statuses, the schema, overrides, results shown."""

from __future__ import annotations

import contextlib
import json

import pytest
import typer
from typer.testing import CliRunner

from ingest import cli, cli_options, cli_plan, cli_verify
from ingest.cli_common import guarded, humane, json_target, load_spec, rows, write_json
from ingest.errors import ClusterError, ReadError, SourceError, SpecError

pytestmark = pytest.mark.unit
runner = CliRunner()


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("source: {path: /data}\nbatch: {size: 8}\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def no_cluster(monkeypatch):
    monkeypatch.setattr(cli_options, "cluster_session", contextlib.nullcontext)


def test_schema_is_the_specs_json_schema():
    done = runner.invoke(cli.app, ["schema"])
    assert done.exit_code == 0
    assert set(json.loads(done.stdout)["properties"]) >= {"source", "order", "augment", "batch", "loader"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["plan", "SPEC"], "--world-size"),
        (["plan", "SPEC", "--world-size", "0"], "--world-size"),
        (["run", "SPEC", "--world-size", "1"], "--epochs"),
        (["index", "SPEC", "--json", "/no/such/folder/a.json"], "/no/such/folder"),
        (["verify", "SPEC", "--world-size", "1", "--resume-batch", "4"], "--resume-at"),
        (["idnex", "SPEC"], "idnex"),
    ],
)
def test_a_wrong_call_has_status_2_and_names_what_is_wrong(spec, arguments, named):
    done = runner.invoke(
        cli.app, [spec if a == "SPEC" else a for a in arguments], env={"COLUMNS": "200", "TERM": "dumb"}
    )
    assert done.exit_code == 2
    assert named in done.stderr


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("source: {path: /data}\nbatch: {sise: 8}\n", "did you mean 'size'"),
        ("source: {path: /data}\norder: {lanes: 3}\n", "power of two"),
        ("- 1\n", "not a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_an_invalid_spec_has_status_2_and_one_line_without_a_traceback(tmp_path, text, named):
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    done = runner.invoke(cli.app, ["index", str(path)])
    assert done.exit_code == 2
    assert named in done.stderr
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_spec_has_status_2():
    done = runner.invoke(cli.app, ["index", "/no/such/spec.yaml"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "/no/such/spec.yaml" in done.stderr


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SourceError("gone", path="s3://b/x", hint="Look"), 1),
        (ReadError("short", path="p", row=3, rank=2), 1),
        (ClusterError("8 CPUs are needed"), 1),
        (SpecError("global_size 7 does not divide"), 2),
    ],
)
def test_an_error_is_one_line_and_its_kind_decides_the_status(spec, monkeypatch, error, status):
    def fail(*args):
        raise error

    monkeypatch.setattr(cli_plan, "index", fail)
    done = runner.invoke(cli.app, ["index", spec])
    assert (done.exit_code, done.stderr, done.stdout) == (status, f"error: {error}\n", "")
    with_debug = runner.invoke(cli.app, ["index", spec, "--debug"])
    assert "Traceback" in with_debug.stderr
    assert with_debug.stderr.endswith(f"error: {error}\n")


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_a_failed_check_has_status_1_and_its_json_is_written_all_the_same(spec, tmp_path, monkeypatch, ok, status):
    monkeypatch.setattr(cli_verify, "verify", lambda *args, **kwargs: {"missing": 3, "ok": ok})
    target = tmp_path / "out.json"
    done = runner.invoke(cli.app, ["verify", spec, "--world-size", "2", "--json", str(target)])
    assert done.exit_code == status
    assert json.loads(target.read_text()) == {"missing": 3, "ok": ok}
    assert "verify missing: 3" in done.stdout


@pytest.mark.usefixtures("no_cluster")
def test_json_to_standard_output_stands_alone_there(spec, monkeypatch):
    monkeypatch.setattr(cli_plan, "index", lambda *args: {"files": 2})
    done = runner.invoke(cli.app, ["index", spec, "--json", "-"])
    assert json.loads(done.stdout) == {"files": 2}
    assert "index files: 2" in done.stderr


def test_an_interrupt_ends_with_status_130():
    def interrupted():
        raise KeyboardInterrupt

    assert guarded(interrupted) == 130


def test_other_errors_are_bugs_and_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: 1 // 0)


def test_overrides_reach_into_sections_and_are_validated(spec):
    loaded = load_spec(spec, ["batch.size=64", "order.seed=7", "augment.ops=[{center_crop: {size: 32}}, flip]"])
    assert (loaded.batch.size, loaded.order.seed) == (64, 7)
    assert [op.name for op in loaded.augment.pipeline] == ["center_crop", "flip"]
    assert load_spec(spec).batch.size == 8


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("batch.size", "is not section.key=VALUE"),
        (".size=1", "is not section.key=VALUE"),
        ("batch.size=[", "not YAML"),
        ("batch.size.x=1", "'size' is not a mapping"),
        ("batch.sise=1", "did you mean 'size'"),
        ("source.fill.day=2024-02-30", "not YAML: day is out of range"),
        ("order.seed=" + "9" * 5000, "not YAML"),
    ],
)
def test_a_bad_override_is_refused(spec, override, named):
    with pytest.raises(SpecError, match=named):
        load_spec(spec, [override])


def test_a_sheet_that_cannot_be_written_is_a_wrong_call(tmp_path, spec):
    for bad in (tmp_path, tmp_path / "missing" / "a.png"):
        result = runner.invoke(cli.app, ["show", str(spec), "-o", str(bad)])
        assert result.exit_code == 2
        assert "Invalid value for '-o'" in result.stderr


def test_a_json_file_that_cannot_be_written_is_refused_at_once(tmp_path):
    assert json_target("-") == "-"
    assert json_target(str(tmp_path / "a.json")) == str(tmp_path / "a.json")
    for bad in (tmp_path, tmp_path / "missing" / "a.json"):
        with pytest.raises(typer.BadParameter, match=str(bad.parent if bad != tmp_path else bad)):
            json_target(str(bad))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("rows", 1_234_567, "1,234,567"),
        ("bytes", 1536, "1.5 KiB"),
        ("window_bytes", 256 << 20, "256.0 MiB"),
        ("waiting_fraction", 0.0512, "5.1%"),
        ("samples_per_s", 2345.6, "2,346"),
        ("label_variance", float("nan"), "-"),
        ("epoch_gap_s", [0.25, 0.5], "0.25, 0.5"),
        ("epoch_gap_s", [], "none"),
        ("steps_per_rank", [1] * 20, ", ".join(["1"] * 16) + ", ... (20)"),
        ("ok", True, "yes"),
        ("epochs", None, "-"),
        ("verdict", "read: slow", "read: slow"),
    ],
)
def test_values_are_shown_with_their_units(name, value, text):
    assert humane(name, value) == text


def test_nested_values_have_a_row_each():
    assert rows({"columns": {"x": {"type": "int64"}}, "files": 1}) == [("columns.x", "type: int64"), ("files", "1")]


def test_json_has_null_for_what_has_no_value(tmp_path):
    target = tmp_path / "a.json"
    write_json({"label_variance": float("nan"), "list": (1, float("inf"))}, str(target))
    assert json.loads(target.read_text()) == {"label_variance": None, "list": [1, None]}


def test_a_cluster_that_is_gone_is_said_at_once(spec, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody listens on port 1
    done = runner.invoke(cli.app, ["index", spec])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: [cluster] no cluster at 127.0.0.1:1; cause: 127.0.0.1: ")
    assert "Check RAY_ADDRESS" in done.stderr
