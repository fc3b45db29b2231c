"""`ingest submit` and `ingest jobs`: a job of ours on a cluster, its logs here, its exit status ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.text import Text

from ingest import cli_auth, cli_package
from ingest.cli_common import FAULT, INTERRUPTED, OK, console, human_bytes, load_spec
from ingest.errors import ClusterError, SpecError

JOBS = ("train", "index", "bench", "convert")
DEFAULT_ADDRESS = "http://127.0.0.1:8265"
STOP_GRACE_S = 30  # from the signal that a job is stopped by to its end by force; a state is saved within
POLL_S, GONE_S = 1.0, 60.0
RUN, JOB, STATE, ARGS = "ingest_run", "ingest_job", "ingest_state", "ingest_args"
SECRETS_FILE = "INGEST_SECRETS_FILE"
_FINAL = ("STOPPED", "SUCCEEDED", "FAILED")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Wanted:
    """What to submit.

    Attributes:
        spec: its file.
        job: of `JOBS`.
        args: of the job, after the spec.
        run_id: made up when left out; one that was used before goes on from its last state.
        state: URL of the folder that runs keep their states in; None: on the disk of the head node.
        sets: overrides of the spec.
        env: `image` (the cluster has all that is needed), `pip` or `uv` (installed for the job, pinned).
        files: to bring along.
        variables: of the job's environment.
        secrets_file: a file on every node, of NAME=VALUE lines that the job's processes take into their environment.
        max_package_bytes: refuse a larger package.
    """

    spec: Path
    job: str = "train"
    args: tuple[str, ...] = ()
    run_id: str | None = None
    state: str | None = None
    sets: tuple[str, ...] = ()
    env: str = "image"
    files: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets_file: str | None = None
    max_package_bytes: int = 64 << 20


@dataclass(frozen=True)
class Request:
    """A job as the job server takes it, but for the package."""

    submission_id: str
    entrypoint: str
    runtime_env: dict[str, Any]
    metadata: dict[str, str]


# -- the job server ----------------------------------------------------------------------------------------------------


def job_server(address: str | None) -> Any:
    """A client of the cluster's job server.

    Args:
        address: the dashboard's URL, or `host:port` of the head; RAY_API_SERVER_ADDRESS, RAY_ADDRESS, and the default
            of a cluster on this machine when left out.

    Raises:
        ClusterError: it cannot be reached, or wants a token that is not here.
    """
    address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or DEFAULT_ADDRESS
    if address == "auto":
        address = DEFAULT_ADDRESS
    if "://" not in address:
        address = _url_of_head(address)
    address = address.rstrip("/")
    if not address.startswith(("http://", "https://")):
        raise ClusterError(f"{address} is no job server", hint="Give the dashboard's URL, http://127.0.0.1:8265 say")
    headers = cli_auth.job_server_headers(address)
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard_sdk", "job.sdk"):  # what they say about uploads and sockets is said here, shorter
        logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.WARNING)
    with _environment({"RAY_API_SERVER_ADDRESS": address}), _explained(address):  # else one that is set would win
        return JobSubmissionClient(address, headers=headers)


def _url_of_head(address: str) -> str:
    """The dashboard's URL of the cluster whose head listens at `host:port`; a port 8265 is taken for a dashboard's."""
    if address.endswith(":8265"):
        return f"http://{address}"
    from ingest.cli_common import check_reachable
    from ingest.engine import gcs

    check_reachable(address)
    with _explained(address):
        return str(gcs.dashboard_url(address))


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """A refusal of the job server as an error of ours."""
    import ray
    import requests

    try:
        yield
    except (RuntimeError, ConnectionError, ray.exceptions.AuthenticationError, requests.RequestException) as error:
        text = str(error).strip().splitlines()
        raise ClusterError(
            f"the job server refuses ({what})", cause=text[0] if text else type(error).__name__
        ) from error


# -- submitting --------------------------------------------------------------------------------------------------------


def prepare(wanted: Wanted, earlier: Sequence[Any] = ()) -> Request:
    """The request for a job; one of the same run before it gives what was left out now.

    Args:
        wanted: what to submit.
        earlier: `JobDetails` of the cluster.

    Raises:
        SpecError: an option is wrong, or carries a secret.
        ClusterError: the run is still going.
    """
    if wanted.job not in JOBS:
        raise SpecError(f"--job {wanted.job}: is none of {', '.join(JOBS)}")
    run_id = wanted.run_id or f"{wanted.job}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    if not _RUN_ID.fullmatch(run_id):
        raise SpecError(f"--run-id {run_id}: letters, digits, dots, dashes and underscores only, at most 63")
    before = [job for job in earlier if (job.metadata or {}).get(RUN) == run_id]
    for job in before:
        if str(job.status) not in _FINAL:
            raise ClusterError(
                f"run {run_id} is still going, as job {job.submission_id}",
                hint=f"Follow it (ingest jobs logs {run_id}) or stop it first (ingest jobs stop {run_id})",
            )
    last = max(before, key=lambda job: job.start_time or 0).metadata if before else {}
    if last and last.get(JOB) != wanted.job:
        raise SpecError(f"run {run_id} was of job {last.get(JOB)}, not {wanted.job}", hint="Use another --run-id")
    args = wanted.args or tuple(json.loads(last.get(ARGS, "[]")))
    if wanted.job == "convert":
        _check_folder(args)
    state = _state_url(wanted.state, run_id, last.get(STATE))
    _refuse_secrets(wanted, args, state)
    return Request(
        submission_id=f"{run_id}.{len(before) + 1}",
        entrypoint=_entrypoint(wanted, args, state),
        runtime_env=_runtime_env(wanted, run_id),
        metadata={RUN: run_id, JOB: wanted.job, STATE: state, ARGS: json.dumps(args)},
    )


def _state_url(base: str | None, run_id: str, before: str | None) -> str:
    """Where the run keeps its state; on the head's disk where nobody says otherwise."""
    if base is None:
        return before or f"~/.cache/ingest/runs/{run_id}/state"
    return f"{base.rstrip('/')}/{run_id}/state"


def _check_folder(args: Sequence[str]) -> None:
    """Where `convert` writes comes first, and is somewhere that is still there when the job's own folder is gone.

    Raises:
        SpecError: it is not.
    """
    hint = "For example: ingest submit SPEC --job convert -- s3://bucket/copy --to tfrecord"
    if not args or args[0].startswith("-"):
        raise SpecError("--job convert: the job's first argument is the folder to write, and there is none", hint=hint)
    if "://" not in args[0] and not args[0].startswith("/"):
        raise SpecError(f"--job convert: {args[0]} would lie in the job's own folder, which goes with it", hint=hint)


def _refuse_secrets(wanted: Wanted, args: Sequence[str], state: str) -> None:
    for name, value in wanted.variables.items():
        cli_package.refuse_secret("--env-var", name, value)
    for override in wanted.sets:
        name, _, value = override.partition("=")
        cli_package.refuse_secret("--set", name, value)
    for at, value in enumerate(args):
        cli_package.refuse_secret("job argument", f"number {at + 1}", value)
    cli_package.refuse_secret("--state", "", state)


def _entrypoint(wanted: Wanted, args: Sequence[str], state: str) -> str:
    """The command, as a shell reads it."""
    words = ["python", "-m", f"jobs.{wanted.job}", wanted.spec.name]
    words += [word for override in wanted.sets for word in ("--set", override)]
    words += args
    if wanted.job == "train" and not any(word == "--state" or word.startswith("--state=") for word in args):
        words += ["--state", state]
    return shlex.join(words)


def _runtime_env(wanted: Wanted, run_id: str) -> dict[str, Any]:
    variables = {
        "PYTHONUNBUFFERED": "1",
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_GRACE_S),
        "INGEST_RUN_ID": run_id,
        **wanted.variables,
    }
    env: dict[str, Any] = {"env_vars": variables}
    if wanted.secrets_file is not None:
        variables[SECRETS_FILE] = wanted.secrets_file
        env["worker_process_setup_hook"] = "ingest.engine.credentials.load"
    if wanted.env == "pip":
        env["pip"] = {"packages": cli_package.pins(), "pip_check": False}
    elif wanted.env == "uv":
        env["uv"] = {"packages": cli_package.pins(), "uv_check": False}
    elif wanted.env != "image":
        raise SpecError(f"--env {wanted.env}: is none of image, pip, uv")
    return env


def submit(wanted: Wanted, address: str | None, *, detach: bool = False) -> dict[str, Any]:
    """Submit, stream the logs, and wait for the end.

    Returns:
        run_id, submission_id, status, exit_code, seconds, package_files, package_bytes, state.

    Raises:
        SpecError, ClusterError: nothing was submitted, or the job server is gone.
    """
    load_spec(wanted.spec, wanted.sets)  # a spec that is wrong is refused here, not in the cluster
    package = cli_package.collect(wanted.spec, wanted.files, wanted.max_package_bytes)
    client = job_server(address)
    with _explained("listing jobs"):
        request = prepare(wanted, client.list_jobs())
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ingest-submit-") as folder, _explained("submitting"):
        archive = package.write(Path(folder))
        say(
            f"package: {len(package.files)} files, {human_bytes(package.bytes)} "
            f"({human_bytes(archive.stat().st_size)} packed); the biggest: {', '.join(package.biggest[:3])}"
        )
        client.submit_job(**{**asdict(request), "runtime_env": {**request.runtime_env, "working_dir": str(archive)}})
    run_id = request.metadata[RUN]
    say(f"run {run_id}, job {request.submission_id}: {request.entrypoint}")
    result = {
        "run_id": run_id,
        "submission_id": request.submission_id,
        "package_files": len(package.files),
        "package_bytes": package.bytes,
        "state": request.metadata[STATE],
    }
    if detach:
        say(f"it goes on by itself: ingest jobs logs {run_id}, ingest jobs stop {run_id}")
        return {**result, "status": "SUBMITTED", "exit_code": OK, "seconds": time.monotonic() - began}
    status, code = follow(client, request.submission_id)
    if status != "SUCCEEDED" and wanted.job == "train":
        say(f"go on from its last state with: ingest submit {wanted.spec} --run-id {run_id}")
    return {**result, "status": status, "exit_code": code, "seconds": time.monotonic() - began}


def describe(wanted: Wanted) -> dict[str, Any]:
    """What `submit` would send, without a cluster."""
    load_spec(wanted.spec, wanted.sets)
    package = cli_package.collect(wanted.spec, wanted.files, wanted.max_package_bytes)
    request = prepare(wanted)
    return {
        "entrypoint": request.entrypoint,
        "metadata": request.metadata,
        "runtime_env": request.runtime_env,
        "package_bytes": package.bytes,
        "package_files": dict(sorted(package.sizes.items())),
    }


# -- following ---------------------------------------------------------------------------------------------------------


def follow(client: Any, submission_id: str) -> tuple[str, int]:
    """Write the job's log to standard output until it ends; at Ctrl-C ask whether to stop it.

    Returns:
        (status, exit status): the job's own; 130 when it was stopped or left here.
    """
    while True:
        try:
            asyncio.run(_stream(client, submission_id))
            return _ended(client, submission_id)
        except KeyboardInterrupt:
            if _stop_it():
                return stop(client, submission_id)[0], INTERRUPTED
            say(f"job {submission_id} goes on; ingest jobs logs {submission_id} follows it again")
            return "RUNNING", INTERRUPTED


async def _stream(client: Any, submission_id: str) -> None:
    """The log as it grows; a connection that breaks is made again, and goes on where it stood.

    Raises:
        ClusterError: the job server has not answered for a minute.
    """
    import aiohttp
    import requests

    written, lost_at = 0, None
    while True:
        seen = 0
        try:
            async for text in client.tail_job_logs(submission_id):
                lost_at = None
                fresh = text[max(0, written - seen) :] if seen < written else text
                seen += len(text)
                written = max(written, seen)
                sys.stdout.write(fresh)
                sys.stdout.flush()
        except (RuntimeError, OSError, aiohttp.ClientError):
            pass  # the connection broke, or there is no log yet; what the server says of the job decides
        try:
            if str(client.get_job_status(submission_id)) in _FINAL:
                return
            lost_at = None
        except (RuntimeError, OSError, requests.RequestException) as error:
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > GONE_S:
                raise ClusterError(
                    f"the job server has not answered for {GONE_S:.0f} s",
                    cause=str(error).strip().partition("\n")[0] or type(error).__name__,
                    hint=f"The job may go on: ingest jobs logs {submission_id}",
                ) from error
        await asyncio.sleep(POLL_S)


def _ended(client: Any, submission_id: str) -> tuple[str, int]:
    with _explained("asking for the end"):
        info = client.get_job_info(submission_id)
    status = str(info.status)
    color = "bold green" if status == "SUCCEEDED" else "bold red"
    console.print(Text(f"job {submission_id}: {status}", style=color))
    if status == "SUCCEEDED":
        return status, OK
    if status == "STOPPED":
        return status, INTERRUPTED
    if info.driver_exit_code:
        return status, int(info.driver_exit_code) if info.driver_exit_code > 0 else 128 - int(info.driver_exit_code)
    # The job never began: its message says why; one that ran has said it in its log.
    console.print(Text((info.message or "").strip()[-2000:]), soft_wrap=True)
    return status, FAULT


def _stop_it() -> bool:
    """Ask whether to stop the job; without a terminal, or at another Ctrl-C, it goes on."""
    if not sys.stdin.isatty():
        return False
    try:
        console.print(Text("\nstop the job? [y/N] "), end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        return False


# -- jobs --------------------------------------------------------------------------------------------------------------


def listed(client: Any) -> list[dict[str, Any]]:
    """Jobs that were submitted, the newest first."""
    with _explained("listing jobs"):
        jobs = [job for job in client.list_jobs() if job.submission_id]
    return [
        {
            "run": (job.metadata or {}).get(RUN),
            "submission_id": job.submission_id,
            "job": (job.metadata or {}).get(JOB),
            "status": str(job.status),
            "exit_code": job.driver_exit_code,
            "start_s": (job.start_time or 0) / 1000,
            "seconds": ((job.end_time or time.time() * 1000) - (job.start_time or 0)) / 1000
            if job.start_time
            else None,
            "state": (job.metadata or {}).get(STATE),
        }
        for job in sorted(jobs, key=lambda job: -(job.start_time or 0))
    ]


def table(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Jobs as lines of columns."""
    lines = [("RUN", "JOB", "STATUS", "EXIT", "STARTED", "SECONDS", "ID")]
    for job in jobs:
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job["start_s"])) if job["start_s"] else "-"
        seconds = "-" if job["seconds"] is None else f"{job['seconds']:.0f}"
        code = "-" if job["exit_code"] is None else str(job["exit_code"])
        lines.append(
            (job["run"] or "-", job["job"] or "-", job["status"], code, started, seconds, job["submission_id"])
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def find(client: Any, name: str) -> str:
    """The submission id of a job, by itself or by its run (then the last job of it).

    Raises:
        ClusterError: there is none.
    """
    jobs = listed(client)
    for job in jobs:
        if name in (job["submission_id"], job["run"]):
            return str(job["submission_id"])
    known = ", ".join(dict.fromkeys(str(job["run"] or job["submission_id"]) for job in jobs[:10])) or "none"
    raise ClusterError(f"no run or job {name} on this cluster", hint=f"There are: {known}")


def stop(client: Any, submission_id: str) -> tuple[str, bool]:
    """Ask a job to stop, and wait until it has: it saves its state first.

    Returns:
        (status, whether it was going).
    """
    with _explained("stopping"):
        going = bool(client.stop_job(submission_id))
        deadline = time.monotonic() + STOP_GRACE_S + GONE_S
        while (status := str(client.get_job_status(submission_id))) not in _FINAL and time.monotonic() < deadline:
            time.sleep(POLL_S)
    say(f"job {submission_id}: {status}" if going else f"job {submission_id} had ended: {status}")
    return status, going


def logs(client: Any, submission_id: str, *, follow_it: bool) -> int:
    """Show a job's log; following it, the exit status is the job's."""
    if follow_it:
        return follow(client, submission_id)[1]
    with _explained("asking for the log"):
        sys.stdout.write(client.get_job_logs(submission_id))
    return OK


def variables(pairs: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE pairs as a mapping.

    Raises:
        SpecError: one is no pair.
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise SpecError(f"--env-var {name}: is not NAME=VALUE")
        found[name] = value
    return found


def say(text: str) -> None:
    """A line about the job, beside its log."""
    console.print(Text(text), soft_wrap=True)


__all__ = ["Wanted", "describe", "find", "follow", "job_server", "listed", "logs", "prepare", "stop", "submit"]
