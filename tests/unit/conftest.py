"""Unit tests stay pure by force: starting a cluster or sleeping is an error."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

CLUSTER_PROCESSES = ("gcs_server", "raylet", "ray start")


def _refuse(what: str):
    def refuse(*args, **kwargs):
        raise AssertionError(f"a unit test must not {what}: move it to tests/integration, or wait on an event")

    return refuse


@pytest.fixture(autouse=True)
def _pure(monkeypatch):
    monkeypatch.setattr(time, "sleep", _refuse("sleep"))
    if (ray := sys.modules.get("ray")) is not None:
        monkeypatch.setattr(ray, "init", _refuse("call ray.init"))

    # Ray may also be imported inside a test: whichever way a cluster starts, it starts these processes.
    start = subprocess.Popen.__init__

    def guarded(self, args, *rest, **kwargs):
        line = args if isinstance(args, (str, bytes)) else " ".join(map(str, args))
        if any(name in str(line) for name in CLUSTER_PROCESSES):
            _refuse("start a Ray cluster")()
        start(self, args, *rest, **kwargs)

    monkeypatch.setattr(subprocess.Popen, "__init__", guarded)
