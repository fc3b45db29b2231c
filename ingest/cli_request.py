"""What a job is submitted as: its id, command, environment and labels; and what is refused before it is sent."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingest import cli_package
from ingest.cli_server import FINAL
from ingest.errors import ClusterError, SpecError

JOBS = ("train", "index", "bench", "convert")
STOP_GRACE_S = 30  # from the signal that a job is stopped by to its end by force; a state is saved within
RUN, JOB, STATE, ARGS = "ingest_run", "ingest_job", "ingest_state", "ingest_args"
SECRETS_FILE = "INGEST_SECRETS_FILE"
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
        if str(job.status) not in FINAL:
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
