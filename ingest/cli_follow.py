"""A job's log here as it grows, its exit status ours, and its end when it is asked to stop."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from rich.text import Text

from ingest.cli_common import FAULT, INTERRUPTED, OK, console
from ingest.cli_request import STOP_GRACE_S
from ingest.cli_server import FINAL, explained
from ingest.errors import ClusterError

POLL_S, GONE_S = 1.0, 60.0


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
            if str(client.get_job_status(submission_id)) in FINAL:
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
    with explained("asking for the end"):
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


def stop(client: Any, submission_id: str) -> tuple[str, bool]:
    """Ask a job to stop, and wait until it has: it saves its state first.

    Returns:
        (status, whether it was going).
    """
    with explained("stopping"):
        going = bool(client.stop_job(submission_id))
        deadline = time.monotonic() + STOP_GRACE_S + GONE_S
        while (status := str(client.get_job_status(submission_id))) not in FINAL and time.monotonic() < deadline:
            time.sleep(POLL_S)
    say(f"job {submission_id}: {status}" if going else f"job {submission_id} had ended: {status}")
    return status, going


def logs(client: Any, submission_id: str, *, follow_it: bool) -> int:
    """Show a job's log; following it, the exit status is the job's."""
    if follow_it:
        return follow(client, submission_id)[1]
    with explained("asking for the log"):
        sys.stdout.write(client.get_job_logs(submission_id))
    return OK


def say(text: str) -> None:
    """A line about the job, beside its log."""
    console.print(Text(text), soft_wrap=True)
