"""The jobs of a cluster: listed, shown, and found by their run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ingest.cli_request import JOB, RUN, STATE
from ingest.cli_server import explained
from ingest.errors import ClusterError


def listed(client: Any) -> list[dict[str, Any]]:
    """Jobs that were submitted, the newest first."""
    with explained("listing jobs"):
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
