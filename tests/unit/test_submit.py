"""What is submitted: the list of files, the pins, the command; and what is refused before anything is sent."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ingest import cli, cli_auth, cli_follow, cli_package
from ingest.cli_common import load_spec
from ingest.cli_submit import Wanted, prepare
from ingest.engine import credentials
from ingest.errors import ClusterError, SpecError
from jobs import train

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
MIB = 1 << 20


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder with a spec, in which the user stands."""
    (tmp_path / "spec.yaml").write_text("source: {path: s3://bucket/train/}\n", encoding="utf-8")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "ops.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "mine" / "__pycache__").mkdir()
    (tmp_path / "mine" / "__pycache__" / "ops.pyc").write_bytes(b"0")
    (tmp_path / "data.bin").write_bytes(b"0" * 3 * MIB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass
class Earlier:
    """A job as the cluster lists it."""

    metadata: dict
    status: str = "FAILED"
    submission_id: str = "old.1"
    start_time: int = 1
    extra: dict = field(default_factory=dict)


# -- the package -------------------------------------------------------------------------------------------------------


def test_the_package_is_the_spec_our_sources_and_what_is_named(folder):
    package = cli_package.collect(Path("spec.yaml"), [Path("mine")], 64 * MIB)
    names = set(package.files)
    assert {"spec.yaml", "mine/ops.py", "ingest/__init__.py", "ingest/engine/feeder.py", "jobs/train.py"} <= names
    assert "data.bin" not in names
    assert {name for name in names if name.startswith(("ingest/", "jobs/")) and not name.endswith(".py")} == set()
    assert not [name for name in names if "__pycache__" in name]
    assert package.bytes == sum(path.stat().st_size for path in package.files.values()) < 2 * MIB


def test_a_package_unpacks_to_what_runs_and_the_same_files_are_the_same_archive(folder, tmp_path_factory):
    package = cli_package.collect(Path("spec.yaml"), [], 64 * MIB)
    archives = [package.write(tmp_path_factory.mktemp("zip")) for _ in range(2)]
    assert archives[0].read_bytes() == archives[1].read_bytes()
    there = tmp_path_factory.mktemp("there")
    zipfile.ZipFile(archives[0]).extractall(there)
    code = "import ingest, jobs.train, pathlib; print(pathlib.Path(ingest.__file__).parents[1])"
    run = subprocess.run([sys.executable, "-c", code], cwd=there, capture_output=True, text=True, check=True, env={})
    assert Path(run.stdout.strip()) == there


def test_too_large_a_package_is_refused_with_the_biggest_files_named(folder):
    with pytest.raises(
        SpecError, match=r"at most 1\.0 MiB are sent; the biggest files: data\.bin \(3\.0 MiB\), ingest/"
    ):
        cli_package.collect(Path("spec.yaml"), [Path("data.bin")], MIB)


@pytest.mark.parametrize("name", [".env", "prod.env", "credentials", "auth_token", "server.pem", "id_rsa", "my.key"])
def test_files_that_look_like_secrets_are_refused(folder, name):
    (folder / "mine" / name).write_text("x", encoding="utf-8")
    for given in (Path("mine"), Path("mine") / name):
        with pytest.raises(SpecError, match="looks like a secret"):
            cli_package.collect(Path("spec.yaml"), [given], MIB)


def test_files_keep_their_place_below_the_users_folder_and_none_comes_from_elsewhere(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "x.py"
    other.write_text("", encoding="utf-8")
    for given, named in (
        (other, "is outside"),
        (Path("mine/../../x"), "no such file"),
        (Path("gone.py"), "no such file"),
    ):
        with pytest.raises(SpecError, match=named):
            cli_package.collect(Path("spec.yaml"), [given], MIB)
    (folder / "ingest").mkdir()
    (folder / "ingest" / "spec.py").write_text("", encoding="utf-8")
    with pytest.raises(SpecError, match="would replace a file of ingest's own"):
        cli_package.collect(Path("spec.yaml"), [Path("ingest/spec.py")], MIB)


def test_pins_are_those_of_constraints_without_ray():
    pinned = dict(
        re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
    known = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned.items()}
    found = dict(pin.split("==") for pin in cli_package.pins())
    assert {"pyarrow", "numpy", "obstore", "fsspec", "pydantic", "nvidia-dali-cuda120"} <= set(found)
    assert "ray" not in found
    assert {name: version for name, version in found.items() if name in known} == {
        name: known[name] for name in found if name in known
    }


# -- the request -------------------------------------------------------------------------------------------------------


def test_a_conversion_names_where_it_writes_and_keeps_no_state():
    request = prepare(Wanted(Path("spec.yaml"), job="convert", args=("s3://b/copy", "--to", "tfrecord"), run_id="c"))
    assert request.entrypoint == "python -m jobs.convert spec.yaml s3://b/copy --to tfrecord"


@pytest.mark.parametrize(
    ("args", "named"),
    [((), "there is none"), (("--to", "tfrecord"), "there is none"), (("copy",), "would lie in the job's own folder")],
)
def test_a_conversion_to_nowhere_is_refused_before_anything_is_sent(args, named):
    with pytest.raises(SpecError, match=named):
        prepare(Wanted(Path("spec.yaml"), job="convert", args=args))


def test_a_request_names_the_run_its_state_and_the_command():
    wanted = Wanted(
        Path("a/my spec.yaml"), args=("--trainers", "2"), run_id="r1", state="s3://b/runs/", sets=("batch.size=8",)
    )
    request = prepare(wanted)
    assert request.submission_id == "r1.1"
    assert shlex.split(request.entrypoint) == [
        *("python", "-m", "jobs.train", "my spec.yaml", "--set", "batch.size=8", "--trainers", "2"),
        *("--state", "s3://b/runs/r1/state"),
    ]
    assert request.metadata["ingest_run"] == "r1"
    assert request.runtime_env["env_vars"]["INGEST_RUN_ID"] == "r1"
    assert "pip" not in request.runtime_env


def test_a_run_goes_on_from_the_state_and_with_the_options_of_its_last_job():
    first = prepare(Wanted(Path("s.yaml"), args=("--trainers", "2"), run_id="r1", state="gs://b"))
    again = prepare(
        Wanted(Path("s.yaml"), run_id="r1"), [Earlier(first.metadata), Earlier({}), Earlier({"ingest_run": "r2"})]
    )
    assert again.submission_id == "r1.2"
    assert again.entrypoint == first.entrypoint
    other = prepare(Wanted(Path("s.yaml"), args=("--trainers", "4"), run_id="r1"), [Earlier(first.metadata)])
    assert other.metadata["ingest_state"] == "gs://b/r1/state"
    assert "--trainers 4" in other.entrypoint


def test_a_run_that_is_still_going_is_refused_and_so_is_one_of_another_job():
    earlier = [Earlier({"ingest_run": "r1", "ingest_job": "train"}, status="RUNNING")]
    with pytest.raises(ClusterError, match=r"still going, as job old\.1.*ingest jobs stop r1"):
        prepare(Wanted(Path("s.yaml"), run_id="r1"), earlier)
    earlier[0].status = "STOPPED"
    with pytest.raises(SpecError, match="was of job train, not bench"):
        prepare(Wanted(Path("s.yaml"), job="bench", run_id="r1"), earlier)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (Wanted(Path("s"), job="shell"), "none of train, index"),
        (Wanted(Path("s"), run_id="../x"), "letters, digits"),
        (Wanted(Path("s"), env="conda"), "none of image, pip, uv"),
        (Wanted(Path("s"), variables={"AWS_SECRET_ACCESS_KEY": "x"}), "looks like a secret"),
        (Wanted(Path("s"), variables={"NOTE": "AKIAIOSFODNN7EXAMPLE"}), "looks like a secret"),
        (Wanted(Path("s"), args=("--url", "http://me:pw@host/")), "looks like a secret"),
        (Wanted(Path("s"), state="https://a.blob/c?sig=abcdefghijklmnopqrstuvwxyz"), "looks like a secret"),
        (Wanted(Path("s"), sets=("source.path=s3://key:secret@b",)), "looks like a secret"),
    ],
)
def test_what_is_wrong_or_secret_is_refused_without_repeating_it(wanted, named):
    with pytest.raises(SpecError, match=named) as caught:
        prepare(wanted)
    assert "AKIA" not in str(caught.value)
    assert "pw@" not in str(caught.value)


def test_references_to_secrets_are_no_secrets():
    named = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/run/token",
        "AWS_PROFILE": "training",
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
    }
    request = prepare(Wanted(Path("s"), variables=named, secrets_file="/run/secrets/s3"))
    assert named.items() <= request.runtime_env["env_vars"].items()
    assert request.runtime_env["env_vars"]["INGEST_SECRETS_FILE"] == "/run/secrets/s3"
    assert request.runtime_env["worker_process_setup_hook"] == "ingest.engine.credentials.load"


def test_a_dry_run_lists_every_file_and_sends_nothing(folder):
    done = CliRunner().invoke(cli.app, ["submit", "spec.yaml", "--dry-run", "--run-id", "r", "--", "--trainers", "2"])
    assert done.exit_code == 0, done.output
    assert "python -m jobs.train spec.yaml --trainers 2" in done.stdout
    assert "ingest/engine/feeder.py" in done.stdout


def test_where_nobody_listens_is_said_at_once(folder):
    done = CliRunner().invoke(cli.app, ["submit", "spec.yaml", "--address", "http://127.0.0.1:1"])
    assert done.exit_code == 1
    assert "no job server at http://127.0.0.1:1" in done.stderr
    done = CliRunner().invoke(
        cli.app, ["submit", "spec.yaml", "--set", "batch.sise=3", "--address", "http://127.0.0.1:1"]
    )
    assert (done.exit_code, "did you mean 'size'" in done.stderr) == (2, True)


# -- tokens and credentials --------------------------------------------------------------------------------------------


def test_the_token_is_found_as_ray_finds_it_and_is_in_no_repr(tmp_path):
    home, named = tmp_path / "home" / ".ray", tmp_path / "named"
    home.mkdir(parents=True)
    environ = {"HOME": str(tmp_path / "home")}
    assert cli_auth.find_token(environ) is None
    (home / "auth_token").write_text("from-home\n", encoding="utf-8")
    named.write_text("from-file", encoding="utf-8")
    steps = [{}, {"RAY_AUTH_TOKEN_PATH": str(named)}, {"RAY_AUTH_TOKEN": "from-env"}]
    for step, expected in zip(steps, ["from-home", "from-file", "from-env"], strict=True):
        environ |= step
        token = cli_auth.find_token(environ)
        assert token.text == expected
        assert expected not in repr(token)
    with pytest.raises(ClusterError, match="gone"):
        cli_auth.find_token({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "gone")})


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o644, True)])
def test_a_token_that_others_may_read_is_warned_of_without_being_shown(tmp_path, caplog, mode, warned):
    file = tmp_path / "token"
    file.write_text("secret-text", encoding="utf-8")
    file.chmod(mode)
    assert cli_auth.find_token({"RAY_AUTH_TOKEN_PATH": str(file)}).text == "secret-text"
    assert (f"chmod 600 {file}" in caplog.text) is warned
    assert "secret-text" not in caplog.text


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("http://127.0.0.1:8265", True),
        ("http://localhost:8265", True),
        ("http://[::1]:8265", True),
        ("https://ray.example.com", True),
        ("http://10.0.0.4:8265", False),
        ("http://head:8265", False),
    ],
)
def test_a_token_crosses_no_network_in_clear(url, private, monkeypatch):
    monkeypatch.setattr(cli_auth, "_get", lambda url, headers: (200, b'{"authentication_mode": "token"}'))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t" * 64)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if private:
        assert cli_auth.job_server_headers(url) == {"Authorization": "Bearer " + "t" * 64}
        return
    with pytest.raises(ClusterError, match="in clear"):
        cli_auth.job_server_headers(url)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert cli_auth.job_server_headers(url)


def test_a_nodes_secrets_file_is_read_and_never_repeated(tmp_path, monkeypatch, capsys):
    file = tmp_path / "s3.env"
    file.write_text("# for the bucket\nexport A_KEY='x y'\nB=\"1\"\n\nC=a=b\n", encoding="utf-8")
    file.chmod(0o600)
    assert credentials.read(file) == {"A_KEY": "x y", "B": "1", "C": "a=b"}
    file.write_text("A=1\nhush hush\n", encoding="utf-8")
    with pytest.raises(ClusterError, match="row 1") as caught:
        credentials.read(file)
    assert "hush" not in str(caught.value)
    file.chmod(0o644)
    with pytest.raises(ClusterError, match="others may read"):
        credentials.read(file)
    monkeypatch.setenv("INGEST_SECRETS_FILE", str(tmp_path / "gone"))
    credentials.load()  # a worker that failed here would be started again for ever
    assert "cannot be read on this node" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "source: {path: !!python/object/apply:os.system ['touch ran']}",
        "source: !!python/object/new:subprocess.Popen [[touch, ran]]",
        "!!python/object/apply:os.mkdir [ran]",
    ],
)
def test_loading_a_spec_runs_nothing(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match="not YAML"):
        load_spec("spec.yaml")
    with pytest.raises(SpecError, match="not YAML"):
        load_spec(write_good(tmp_path), [f"source.path={text.partition(': ')[2] or text}".replace("{path: ", "")])
    assert not (tmp_path / "ran").exists()


def write_good(folder):
    (folder / "good.yaml").write_text("source: {path: /data}\n", encoding="utf-8")
    return folder / "good.yaml"


# -- following ---------------------------------------------------------------------------------------------------------


class Server:
    """A job server by script.

    Args:
        tails: for each connection, pieces of the log; an exception breaks it.
        statuses: one for each question; an exception is a server that does not answer.
        exit_code: the job's.
    """

    def __init__(self, tails, statuses, exit_code=None, message=None):
        self.tails, self.statuses, self.exit_code, self.message = iter(tails), iter(statuses), exit_code, message
        self.last = None

    async def tail_job_logs(self, submission_id):
        for piece in next(self.tails, []):
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def get_job_status(self, submission_id):
        self.last = next(self.statuses)
        if isinstance(self.last, Exception):
            raise self.last
        return self.last

    def get_job_info(self, submission_id):
        return SimpleNamespace(status=self.last, driver_exit_code=self.exit_code, message=self.message)


@pytest.mark.parametrize(
    ("server", "ended", "log"),
    [
        (Server([["a\n", "b\n"]], ["SUCCEEDED"]), ("SUCCEEDED", 0), "a\nb\n"),
        (Server([["a\n"]], ["FAILED"], exit_code=7), ("FAILED", 7), "a\n"),
        (Server([["a\n"]], ["FAILED"], exit_code=-9), ("FAILED", 137), "a\n"),
        (Server([[RuntimeError("no log")]], ["FAILED"], message="pip failed"), ("FAILED", 1), ""),
        (Server([["a"]], ["STOPPED"]), ("STOPPED", 130), "a"),
        # A connection that breaks goes on where it stood, whatever the pieces; a server may be silent for a while.
        (Server([["ab", RuntimeError()], ["a", "bcd"]], ["RUNNING", "SUCCEEDED"]), ("SUCCEEDED", 0), "abcd"),
        (Server([["ab"], [OSError()], ["abc"]], ["RUNNING", OSError(), "SUCCEEDED"]), ("SUCCEEDED", 0), "abc"),
    ],
)
def test_a_job_is_followed_to_its_end_and_its_exit_status_is_ours(server, ended, log, monkeypatch, capsys):
    monkeypatch.setattr(cli_follow, "POLL_S", 0)
    assert cli_follow.follow(server, "r.1") == ended
    said = capsys.readouterr()
    assert said.out == log
    assert f"job r.1: {ended[0]}" in said.err
    assert (server.message or "") in said.err


def test_a_job_server_that_stays_away_is_an_error_that_says_how_to_look_again(monkeypatch):
    monkeypatch.setattr(cli_follow, "POLL_S", 0)
    monkeypatch.setattr(cli_follow, "GONE_S", 0)
    with pytest.raises(ClusterError, match=r"refused.*ingest jobs logs r\.1"):
        cli_follow.follow(Server([], [OSError("refused")] * 9), "r.1")


@pytest.mark.parametrize("url", ["s3://KEYID:SECRETKEY@bucket/state", "https://store/state?sig=SECRETKEY"])
def test_a_state_whose_url_carries_credentials_is_a_wrong_call_that_does_not_show_it(url, capsys):
    with pytest.raises(SystemExit) as ended:
        train.main(["spec.yaml", "--state", url])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert "--state has" in said.err
    assert "SECRETKEY" not in said.out + said.err
