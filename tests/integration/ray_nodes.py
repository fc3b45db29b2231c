"""Clusters as `ray start` makes them: a head and more raylets on this machine, on ports of their own, ended by id."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
START_S = 120
_CLEAN = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@dataclass
class Nodes:
    """A running cluster.

    Attributes:
        folder: short, holds sessions and the token.
        address: of the head, host:port.
        url: of the dashboard.
        token: what callers must show, or None.
        server_env: of its processes.
        python: that its nodes run.
        logs: what `ray start` said, by process id.
    """

    folder: Path
    address: str
    url: str
    token: str | None
    server_env: dict[str, str]
    python: str = sys.executable
    processes: list[subprocess.Popen] = field(default_factory=list)
    logs: dict[int, Path] = field(default_factory=dict)

    def env(self, *, token: str | None = "own", mode: str | None = None, **more: str) -> dict[str, str]:
        """The environment of a user with the cluster's token, another, or none."""
        home = self.folder / f"home-{token}"
        (home / ".ray").mkdir(parents=True, exist_ok=True)
        shown = self.token if token == "own" else token
        if shown:
            (home / ".ray" / "auth_token").write_text(shown)
        env = {name: value for name, value in os.environ.items() if name not in _CLEAN}
        env |= {"HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "200", **more}
        return env | ({"RAY_AUTH_MODE": mode} if mode else {})

    def ingest(self, *arguments: str, env: dict[str, str] | None = None, timeout: float = 150, **options):
        return subprocess.run(
            [sys.executable, "-m", "ingest.cli", *arguments],
            env=env or self.env(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            **options,
        )

    def add(self, *options: str, cpus: int = 1) -> subprocess.Popen:
        """Another raylet, with a folder of its own: in a shared one, each unpacks a job's package over the other's."""
        own = [f"--temp-dir={self.folder}/{len(self.logs)}", f"--num-cpus={cpus}", *_ports(free_ports(4))]
        process = _start(self, f"--address={self.address}", *own, *options)
        self._await(process)
        return process

    def _await(self, process: subprocess.Popen) -> None:
        """Until `ray start` has done its work: of two that start together, both may take one name for their sockets."""
        log, deadline = self.logs[process.pid], time.monotonic() + START_S
        while "will now block" not in (text := log.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a node does not start:\n{text}")
            time.sleep(0.1)

    def end(self, process: subprocess.Popen) -> None:
        """End a node: what `ray start` began, by id."""
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _, alive = psutil.wait_procs(children, timeout=5)
        for child in alive:
            child.kill()
        if process in self.processes:
            self.processes.remove(process)


def _ports(ports: list[int]) -> list[str]:
    names = ("object-manager-port", "node-manager-port", "dashboard-agent-listen-port", "metrics-export-port")
    return [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]


def _start(nodes: Nodes, *options: str) -> subprocess.Popen:
    file = nodes.folder / f"node-{len(nodes.logs)}.log"
    log = file.open("w")
    ray_start = [nodes.python, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    process = subprocess.Popen(
        [*ray_start, "--object-store-memory=150000000", *options],
        env=nodes.server_env,
        stdout=log,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    log.close()
    nodes.processes.append(process)
    nodes.logs[process.pid] = file
    return process


@contextmanager
def cluster_of(
    folder: Path,
    *,
    token: bool,
    cpus: int = 2,
    options: tuple[str, ...] = (),
    python: str = sys.executable,
    port: int | None = None,
    **variables: str,
) -> Iterator[Nodes]:
    """A head whose job server answers; `folder` is short, since a socket's path has 107 bytes."""
    gcs, dashboard, *rest = free_ports(6)
    gcs = port or gcs
    text = secrets.token_hex(32) if token else None
    env = {name: value for name, value in os.environ.items() if name not in _CLEAN}
    env |= {
        "RAY_TMPDIR": str(folder),
        "PATH": f"{Path(python).parent}:{env['PATH']}",
        "HOME": str(folder),
        "RAY_AUTH_MODE": "token" if token else "disabled",
        "PYTHONPATH": "",
        **variables,
    }
    if text:
        (folder / ".ray").mkdir(exist_ok=True)
        (folder / ".ray" / "auth_token").write_text(text)
    nodes = Nodes(folder, f"127.0.0.1:{gcs}", f"http://127.0.0.1:{dashboard}", text, env, python)
    head = (f"--port={gcs}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", "--include-dashboard=true")
    try:
        _start(nodes, "--head", "--node-ip-address=127.0.0.1", *head, *_ports(rest), f"--num-cpus={cpus}", *options)
        _await_job_server(nodes)
        yield nodes
    finally:
        for process in list(reversed(nodes.processes)):
            nodes.end(process)


def _await_job_server(nodes: Nodes) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{nodes.url}/api/authentication_mode", timeout=5).close()
        except OSError:
            if time.monotonic() > deadline or nodes.processes[0].poll() is not None:
                log = (nodes.folder / "node-0.log").read_text()
                raise RuntimeError(f"the cluster does not start:\n{log}") from None
            time.sleep(0.2)
        else:
            return
