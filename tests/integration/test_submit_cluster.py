"""Jobs on clusters as `ray start` makes them: several raylets, tokens on and off, stopped and resumed."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
import s3
import yaml
from ray_nodes import cluster_of

from ingest.cli_request import SECRETS_FILE

bucket, s3_endpoint = s3.bucket, s3.s3_endpoint  # fixtures
ROWS = 240  # of `pictures`
SMALL = ["--classes", "2", "--model", "numpy"]


@pytest.fixture
def folder():
    """A short one: a socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="n", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def spec(folder, pictures):
    def write(path=pictures, **storage):
        values = {
            "source": {"path": str(path), "columns": ["image", "label"], "storage": storage},
            "augment": {"ops": [{"resize": {"size": 32}}]},
            "batch": {"size": 10},
        }
        file = folder / "spec.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        return str(file)

    return write


def test_a_job_trains_on_two_nodes_of_a_token_cluster_and_strangers_neither_see_nor_do_anything(folder, spec):
    with cluster_of(folder, token=True, cpus=1) as nodes:
        nodes.add(cpus=1)
        common = ["--address", nodes.url]
        done = nodes.ingest(
            "submit", spec(), *common, "--run-id", "r", "--", "--epochs", "1", "--trainers", "2", *SMALL
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"expected {ROWS}, missing 0, repeated 0" in done.stdout
        assert re.search(r"package: \d+ files, .* packed\); the biggest: ingest/", done.stderr)
        for env, command, named in [
            (nodes.env(token=None), ["jobs", "list"], "wants a token and there is none here"),
            (nodes.env(token="0" * 64), ["jobs", "logs", "r"], "does not accept the token"),
            (nodes.env(token=None, mode="token"), ["submit", spec()], "ray get-auth-token"),
            (nodes.env(mode="disabled"), ["jobs", "stop", "r"], "Set RAY_AUTH_MODE=token"),
        ]:
            refused = nodes.ingest(*command, *common, env=env, timeout=20)
            assert (refused.returncode, refused.stdout) == (1, ""), command
            assert named in refused.stderr
        for env, named in [
            (nodes.env(), "wants a token. Set RAY_AUTH_MODE=token; the token in "),
            (nodes.env(token="0" * 64, mode="token"), "does not accept the token"),
        ]:
            began = time.monotonic()
            refused = nodes.ingest("index", spec(), env=env | {"RAY_ADDRESS": nodes.address}, timeout=30)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert named in refused.stderr
            assert time.monotonic() - began < 20
        assert nodes.token not in done.stdout + done.stderr


@pytest.mark.slow
def test_without_tokens_all_works_as_well_and_a_job_that_fails_has_its_own_exit_status(folder, spec):
    with cluster_of(folder, token=False) as nodes:
        common = ["--address", nodes.url]
        target = folder / "out.json"
        done = nodes.ingest("submit", spec(), "--job", "index", *common, "--json", str(target))
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"index rows: {ROWS}" in done.stdout
        result = json.loads(target.read_text())
        assert (result["status"], result["exit_code"]) == ("SUCCEEDED", 0)
        assert nodes.ingest("submit", spec("/no/where"), "--job", "index", *common).returncode == 1
        copy = folder / "copy"
        written = nodes.ingest("submit", spec(), "--job", "convert", *common, "--", str(copy), "--to", "tfrecord")
        assert written.returncode == 0, written.stdout + written.stderr
        assert f"convert rows: {ROWS}" in written.stdout
        assert sum(file.stat().st_size for file in copy.rglob("*") if file.is_file()) > 0
        asked = ["--", "--trainer-gpus", "8"]
        refused = nodes.ingest("submit", spec(), *common, *asked)
        assert refused.returncode == 1
        assert "16 GPUs are needed (16 for 2 trainers) and the cluster has 0" in refused.stdout
        wrong = nodes.ingest("submit", spec(), *common, "--", "--no-such-option")
        assert wrong.returncode == 2
        listed = json.loads(nodes.ingest("jobs", "list", *common, "--json", "-").stdout)["jobs"]
        assert [job["exit_code"] for job in listed] == [2, 1, 0, 1, 0]
        again = nodes.ingest("jobs", "logs", result["run_id"], *common)
        assert (again.returncode, f"index rows: {ROWS}" in again.stdout) == (0, True)
        # A token that a cluster does not want: the driver would wait for workers that show none.
        refused = nodes.ingest("index", spec(), env=nodes.env(mode="token", RAY_ADDRESS=nodes.address))
        assert "takes no tokens" in refused.stderr


def _first_save(path: Path, process: subprocess.Popen, timeout: float = 120) -> None:
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert process.poll() is None, "".join(process.communicate())
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _background(nodes, *arguments):
    command = [sys.executable, "-m", "ingest.cli", *arguments]
    return subprocess.Popen(
        command, env=nodes.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )


def _epochs(text: str) -> list[tuple[int, int, int, int]]:
    """(epoch, expected, missing, repeated) of each line about an epoch."""
    found = re.findall(r"epoch (\d+): .*expected ([\d,]+), missing (-?\d+), repeated (\d+)", text)
    return [tuple(int(value.replace(",", "")) for value in line) for line in found]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_run_that_was_stopped_or_killed_goes_on_by_its_id_from_where_it_stood(folder, spec, how):
    state = folder / "runs"
    slow = ["--epochs", "1", "--trainers", "2", "--step-ms", "500", "--save-every", "2", *SMALL]
    with cluster_of(folder, token=True, cpus=1) as nodes:
        nodes.add(cpus=1)
        common = ["--address", nodes.url]
        began = ["submit", spec(), *common, "--run-id", "r", "--state", str(state), "--", *slow]
        process = _background(nodes, *began)
        _first_save(state / "r" / "state", process)
        if how == "stop":
            stopped = nodes.ingest("jobs", "stop", "r", *common)
            assert stopped.returncode == 0, stopped.stderr
        else:
            (driver,) = [p for p in psutil.process_iter(["cmdline"]) if _is_driver(p, str(nodes.folder))]
            driver.kill()
        out, err = process.communicate(timeout=60)
        assert process.returncode == (130 if how == "stop" else 128 + signal.SIGKILL), out + err
        if how == "stop":
            assert "saving at the next step that all ranks share" in out
        # On one trainer, with the run's id alone: its state is known to the cluster.
        resumed = nodes.ingest(
            "submit", spec(), *common, "--run-id", "r", "--", "--epochs", "2", "--trainers", "1", *SMALL
        )
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        before, after = _epochs(out), _epochs(resumed.stdout)
        assert [epoch for epoch, *_ in after] == [0, 1]
        assert 0 < after[0][1] < ROWS
        assert after[1][1:] == (ROWS, 0, 0)
        assert after[0][2:] == (0, 0)
        if how == "stop":
            assert before == [(0, ROWS - after[0][1], 0, 0)]


def _is_driver(process: psutil.Process, folder: str) -> bool:
    line = process.info["cmdline"] or []
    if "jobs.train" not in line or line[:1] == ["/bin/sh"]:
        return False
    return folder in " ".join(line) and "python" in Path(line[0]).name


@pytest.mark.slow
def test_a_submission_that_is_interrupted_asks_whether_to_stop_the_job(folder, spec):
    slow = ["--", "--epochs", "50", "--step-ms", "500", *SMALL]
    with cluster_of(folder, token=True) as nodes:
        for answer, status, code in [(b"n\n", "RUNNING", 130), (b"y\n", "STOPPED", 130)]:
            run = f"r{status}".lower()
            arguments = ["submit", spec(), "--address", nodes.url, "--run-id", run, *slow]
            master, slave = pty.openpty()
            process = subprocess.Popen(
                [sys.executable, "-m", "ingest.cli", *arguments],
                env=nodes.env(),
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
            )
            os.close(slave)
            seen = _until(master, b"Running entrypoint")
            process.send_signal(signal.SIGINT)
            seen += _until(master, b"stop the job? [y/N]")
            os.write(master, answer)
            _drain(master)
            assert process.wait(60) == code, seen
            os.close(master)
            listed = json.loads(nodes.ingest("jobs", "list", "--address", nodes.url, "--json", "-").stdout)["jobs"]
            assert [job["status"] for job in listed if job["run"] == run] == [status]
            nodes.ingest("jobs", "stop", run, "--address", nodes.url)


def _until(master: int, text: bytes, timeout: float = 60) -> bytes:
    seen, end = b"", time.monotonic() + timeout
    while text not in seen:
        ready, _, _ = select.select([master], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"{text!r} did not come; there is {seen.decode()}"
        seen += os.read(master, 4096)
    return seen


def _drain(master: int) -> None:
    try:
        while os.read(master, 4096):
            pass
    except OSError:
        return  # the other side is closed


KEY_ID, SECRET, SIGNATURE = "AKIAVERYSECRETKEYID", "Very0Secret0Value0Of0A0Test", "Very0Signed0Query0Of0A0Test"


class Commands(threading.Thread):
    """Every command line that the machine shows while this runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[bytes] = set()
        self._enough = threading.Event()

    def run(self) -> None:
        while not self._enough.wait(0.2):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):  # it has ended
                    self.seen.add(file.read_bytes())

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._enough.set()
        self.join()


def _listed(nodes, submission_id) -> str:
    """All that the cluster tells of jobs, tasks, actors, workers, runtime environments and nodes, in full."""
    code = """
        import sys
        from ray.job_submission import JobSubmissionClient
        from ray.util.state import api
        url, job = sys.argv[1:]
        states = api.StateApiClient(address=url)
        for kind in ("JOBS", "TASKS", "ACTORS", "WORKERS", "RUNTIME_ENVS", "NODES", "PLACEMENT_GROUPS"):
            options = api.ListApiOptions(detail=True, limit=10000)
            found = states.list(api.StateResource[kind], options, raise_on_missing_output=False)
            print(kind, len(found), found)
        jobs = JobSubmissionClient(url)
        print(jobs.list_jobs(), jobs.get_job_info(job), jobs.get_job_logs(job))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), nodes.url, submission_id]
    done = subprocess.run(command, env=nodes.env(mode="token"), capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert SECRETS_FILE in done.stdout  # jobs and tasks show what they were given
    for kind in ("JOBS", "TASKS", "ACTORS", "WORKERS", "NODES"):
        assert re.search(rf"^{kind} [1-9]", done.stdout, re.MULTILINE), (kind, done.stdout[:4000])
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_credentials_of_a_nodes_file_reach_the_bucket_and_nothing_else(folder, spec, bucket, pictures, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for file in pictures.iterdir():
        bucket.put(f"train/{file.name}", file.read_bytes())
    secrets, report = folder / "s3.env", folder / "report.json"
    signed = f"AZURE_STORAGE_SAS_TOKEN=?sv=2024-11-04&sig={SIGNATURE}\n"
    secrets.write_text(f"AWS_ACCESS_KEY_ID={KEY_ID}\nAWS_SECRET_ACCESS_KEY={SECRET}\n{signed}", encoding="utf-8")
    secrets.chmod(0o600)
    with cluster_of(folder, token=True, cpus=1, AWS_EC2_METADATA_DISABLED="true") as nodes, Commands() as commands:
        nodes.add(cpus=1)
        common = ["--address", nodes.url, "--state", bucket.url("runs"), "--secrets-file", str(secrets)]
        common += ["--json", str(report)]
        path = spec(bucket.url("train/"), endpoint_url=bucket.endpoint)
        kept = ["--set", f"loader.log={bucket.url('log')}", "--set", f"errors.quarantine={bucket.url('bad')}"]
        options = ["--epochs", "1", "--trainers", "2", *SMALL]
        done = nodes.ingest("submit", path, *common, *kept, "--run-id", "r", "--", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        # What the run left in the bucket is where the next one goes on.
        more = nodes.ingest("submit", path, *common, *kept, "--run-id", "r", "--", "--epochs", "2", *SMALL)
        assert [epoch for epoch, *_ in _epochs(more.stdout)] == [1], more.stdout + more.stderr
        failed = nodes.ingest(
            "submit", path, *common, "--set", f"source.path={bucket.url('no')}", "--job", "index", "--run-id", "f"
        )
        assert failed.returncode == 1, failed.stdout + failed.stderr
        refused = [
            nodes.ingest("submit", path, *common, "--job", "index", *wrong)
            for wrong in (
                ["--set", f"source.path=s3://{KEY_ID}:{SECRET}@{bucket.name}/train/"],
                ["--set", f"loader.log=https://a.blob.core.windows.net/c?sv=1&sig={SIGNATURE}"],
                ["--set", f"source.storage.endpoint_url={bucket.endpoint.replace('://', f'://{KEY_ID}:{SECRET}@')}"],
                ["--env-var", f"AWS_SECRET_ACCESS_KEY={SECRET}"],
            )
        ]
        assert {each.returncode for each in refused} == {2}, [each.stderr for each in refused]
        told = nodes.ingest("jobs", "list", "--address", nodes.url, "--json", "-").stdout
        assert sorted(job["run"] for job in json.loads(told)["jobs"]) == ["f", "r", "r"]
        told += _listed(nodes, "r.2")
        said = "".join(each.stdout + each.stderr for each in (done, more, failed, *refused))
    places = {"output": said.encode(), "lists": told.encode()}
    places |= {f"{bucket.name}/{name}": data for name, data in bucket.objects().items()}
    typed = {line for line in commands.seen if b"ingest.cli" in line}  # what was refused above is in its own command
    places |= {f"command {line[:80]!r}": line for line in commands.seen - typed}
    own = [secrets, *folder.rglob("auth_token")]
    places |= {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file() and file not in own}
    for wanted in ("/runs/r/state", "/log/", str(report), "/1/session_", "job-driver-r.2.log", "python -m jobs.train"):
        assert any(wanted in place.replace("\\x00", " ") for place in places), wanted
    found = {
        (text, place)
        for text in (KEY_ID, SECRET, SIGNATURE, nodes.token)
        for place in places
        if text.encode() in places[place]
    }
    assert found == set()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["numpy", "torch"])
def test_ray_train_goes_on_from_its_checkpoint_when_a_worker_dies(folder, spec, model):
    if model == "torch":
        pytest.importorskip("torch")
    options = ["--runner", "ray-train", "--epochs", "2", "--step-ms", "200", "--save-every", "3"]
    options += ["--classes", "2", "--model", model]
    state = folder / "runs"
    with cluster_of(folder, token=True, cpus=3) as nodes:
        nodes.add(cpus=2)
        common = ["--address", nodes.url, "--run-id", "r", "--state", str(state)]
        process = _background(nodes, "submit", spec(), *common, "--", *options)
        _first_save(state / "r" / "state", process)
        worker = next(
            p for p in psutil.process_iter(["cmdline"]) if "ray::RayTrainWorker" in " ".join(p.info["cmdline"] or [])
        )
        worker.kill()
        out, err = process.communicate(timeout=140)
        assert process.returncode == 0, out[-4000:] + err
        assert _epochs(out) == [(0, ROWS, 0, 0), (1, ROWS, 0, 0)]


@pytest.mark.slow
def test_trainers_that_hold_all_cpus_leave_none_to_read_with_and_the_start_is_refused(folder, spec):  # R33, D18
    with cluster_of(folder, token=False, cpus=2) as nodes:
        code = "\n".join(
            [
                "import ray, ingest, time",
                "ray.init(log_to_driver=False, logging_level='ERROR')",
                "@ray.remote(num_cpus=1)",
                "class Trainer:",
                "    def go(self, rank):",
                f"        with ingest.Loader({spec()!r}, rank, 2) as loader: return next(iter(loader)).valid_rows",
                "trainers = [Trainer.remote() for _ in range(2)]",
                "began = time.monotonic()",
                "try: ray.get([t.go.remote(r) for r, t in enumerate(trainers)])",
                "except ray.exceptions.RayTaskError as error: print(error.cause, time.monotonic() - began < 30)",
            ]
        )
        env = nodes.env(RAY_ADDRESS=nodes.address)
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=90, check=True
        )
        assert (
            "a reader needs 1 CPUs and no node has as many left: of 2 CPUs, actors and placement groups hold 2"
            in done.stdout
        )
        assert done.stdout.rstrip().endswith("True")
