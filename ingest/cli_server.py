"""The job server of a cluster: found, reached, and its refusals as errors of ours."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ingest import cli_auth
from ingest.errors import ClusterError

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
FINAL = ("STOPPED", "SUCCEEDED", "FAILED")  # of a job's statuses


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
    with _environment({"RAY_API_SERVER_ADDRESS": address}), explained(address):  # else one that is set would win
        return JobSubmissionClient(address, headers=headers)


def _url_of_head(address: str) -> str:
    """The dashboard's URL of the cluster whose head listens at `host:port`; a port 8265 is taken for a dashboard's."""
    if address.endswith(":8265"):
        return f"http://{address}"
    from ingest.cli_common import check_reachable
    from ingest.engine import gcs

    check_reachable(address)
    with explained(address):
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
def explained(what: str) -> Iterator[None]:
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
