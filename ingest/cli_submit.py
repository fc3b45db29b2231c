"""`ingest submit` and `ingest jobs`: a job of ours on a cluster, its logs here, its exit status ours."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ingest import cli_package
from ingest.cli_common import OK, human_bytes, load_spec
from ingest.cli_follow import follow, logs, say, stop
from ingest.cli_jobs import find, listed, table
from ingest.cli_request import RUN, STATE, Wanted, prepare, variables
from ingest.cli_server import explained, job_server

__all__ = [
    "Wanted",
    "describe",
    "find",
    "follow",
    "job_server",
    "listed",
    "logs",
    "prepare",
    "stop",
    "submit",
    "table",
    "variables",
]


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
    with explained("listing jobs"):
        request = prepare(wanted, client.list_jobs())
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ingest-submit-") as folder, explained("submitting"):
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
