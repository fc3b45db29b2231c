"""launch/cluster.local.yaml as a user starts and ends it: `ray up` and `ray down`, over SSH to a server on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import own_ray
import psutil
import pytest
import yaml

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
HEAD, WORKER = "127.0.0.1", "127.0.0.2"
PORTS = (22, 6379, 8076, 8265)  # the launch file's, of the head
SSHD = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")


def _missing() -> str:
    """Why this cannot run here; empty where it can."""
    if SSHD is None or shutil.which("rsync") is None or shutil.which("ssh-keygen") is None:
        return "needs sshd (Debian's openssh-server), ssh-keygen and rsync"
    if os.geteuid() != 0:
        return "needs root: the head reaches its workers at port 22"
    for host, port in [*((HEAD, port) for port in PORTS), (WORKER, 22)]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                return f"needs {host}:{port} free: {error}"
    return ""


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.skipif(bool(_missing()), reason=_missing() or "-"),
]


@pytest.fixture
def home():
    """A home of its own, short, with a token, a key, and a `ray` that stops this test's processes and no others."""
    with tempfile.TemporaryDirectory(prefix="u", dir="/tmp") as name:
        path = Path(name)
        (path / ".ray").mkdir()
        (path / ".ray" / "auth_token").write_text("1" * 64, encoding="utf-8")
        (path / ".ray" / "auth_token").chmod(0o600)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path / "key")], check=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path / "host")], check=True)
        env = path / "ingest-env" / "bin"
        env.mkdir(parents=True)
        (env / "activate").write_text(f'export PATH="{env}:{BIN}:$PATH"\n', encoding="utf-8")
        _executable(env / "pip", f'exec "{BIN}/pip" "$@"')
        _executable(env / "ray", f'exec "{sys.executable}" "{Path(own_ray.__file__)}" "$@"')
        # ssh takes ~ for the home of the user database, whatever HOME says: the head's key lies in this test's.
        _executable(env / "ssh", f'exec "{shutil.which("ssh")}" "${{@/#~\\//$HOME/}}"')
        profile = "\n".join(
            [
                f'export HOME="{path}" RAY_TMPDIR="{path}" {own_ray.HOME}="{path}"',
                f'export PATH="{os.environ["PATH"]}"',
            ]
        )
        if library := os.environ.get("LD_LIBRARY_PATH"):
            profile += f'\nexport LD_LIBRARY_PATH="{library}"'
        (path / ".bash_profile").write_text(profile + "\n", encoding="utf-8")
        (path / ".bashrc").write_text(profile + "\n", encoding="utf-8")
        yield path
        left = own_ray.running(path)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=10)


def _executable(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def sshd(home):
    """An SSH server on two loopback addresses that lets this test's key in, with this test's home."""
    shown = {"HOME": home, "PATH": os.environ["PATH"], "RAY_TMPDIR": home, own_ray.HOME: home}
    shown |= {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]} if os.environ.get("LD_LIBRARY_PATH") else {}
    config = [f"ListenAddress {HEAD}:22", f"ListenAddress {WORKER}:22", f"HostKey {home}/host", "UsePAM no"]
    config += [
        f"AuthorizedKeysFile {home}/key.pub",
        "StrictModes no",
        "PasswordAuthentication no",
        f"PidFile {home}/pid",
    ]
    config += ["PermitRootLogin prohibit-password", "SetEnv " + " ".join(f'"{k}={v}"' for k, v in shown.items())]
    (home / "sshd_config").write_text("\n".join(config) + "\n", encoding="utf-8")
    Path("/run/sshd").mkdir(exist_ok=True)
    with (home / "sshd.log").open("w") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(home / "sshd_config")], stderr=log)
    deadline = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection((WORKER, 22), timeout=1).close()
            break
        except OSError:
            time.sleep(0.1)
    assert process.poll() is None, (home / "sshd.log").read_text(encoding="utf-8")
    yield
    process.terminate()
    process.wait(10)


def _config(home: Path) -> Path:
    """The launch file with this machine's addresses; nothing is installed, and two nodes share one machine.

    So each has a folder of its own (in a shared one, each unpacks a job's package over the other's), and the worker has
    ports of its own. It waits 10 s for a head that is gone, where Ray waits a minute.
    """
    config = yaml.safe_load((ROOT / "launch" / "cluster.local.yaml").read_text(encoding="utf-8"))
    config["provider"] |= {"head_ip": HEAD, "worker_ips": [WORKER]}
    config["auth"] = {"ssh_user": "root", "ssh_private_key": str(home / "key")}
    config["setup_commands"] = [c for c in config["setup_commands"] if "constraints.txt" not in c]
    config["file_mounts"] = {"~/ingest": str(ROOT), "~/.ray/auth_token": str(home / ".ray" / "auth_token")}
    for which, host in (("head", HEAD), ("worker", WORKER)):
        name, folder = f"{which}_start_ray_commands", own_ray.folder_of(home, host)
        own = f"ray start --temp-dir={folder} --disable-usage-stats --object-store-memory=100000000"
        own += " --metrics-export-port=0 --dashboard-agent-listen-port=0"
        config[name] = [c.replace("ray start", own) for c in config[name]]
    config["worker_start_ray_commands"] = [
        c.replace("--object-manager-port=8076", "--num-cpus=1").replace(
            "RAY_AUTH_MODE", "RAY_gcs_rpc_server_reconnect_timeout_s=10 RAY_AUTH_MODE"
        )
        for c in config["worker_start_ray_commands"]
    ]
    path = home / "cluster.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def _said(home: Path) -> str:
    """The end of what the head's autoscaler logged."""
    logs = sorted((own_ray.folder_of(home, HEAD) / "session_latest" / "logs").glob("monitor*"))
    return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-3000:]}" for log in logs)


def _left(home: Path, host: str, within_s: float, named: str = "") -> list[str]:
    """What still runs of a node after so many seconds, of all that has `named` in its command."""
    processes = [p for p in own_ray.running(own_ray.folder_of(home, host)) if named in _line(p)]
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return [_line(process) or str(process) for process in alive]


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_a_cluster_of_ones_own_hosts_goes_up_trains_and_goes_down(home, sshd, pictures):
    env = {**os.environ, "HOME": str(home), "RAY_TMPDIR": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}
    env = {k: v for k, v in env.items() if k not in ("RAY_ADDRESS", "RAY_AUTH_MODE")} | {"PYTHONPATH": str(ROOT)}
    path = _config(home)

    def call(*command, timeout=170, **more):
        return subprocess.run(
            command, env=env | more, capture_output=True, text=True, timeout=timeout, check=False, cwd=home
        )

    up = call("ray", "up", "-y", "--no-config-cache", str(path))
    assert up.returncode == 0, up.stdout + up.stderr
    code = (
        "import ray, json; ray.init('127.0.0.1:6379', log_to_driver=False, logging_level='ERROR'); "
        "nodes = [node for node in ray.nodes() if node['Alive']]; "
        "print(json.dumps([node['Labels'].get('ingest-role') for node in nodes]))"
    )
    deadline, roles = time.monotonic() + 150, []
    while len(roles) < 2 and time.monotonic() < deadline:
        seen = call(sys.executable, "-c", code, RAY_AUTH_MODE="token")
        roles = json.loads(seen.stdout) if seen.returncode == 0 else []
    assert sorted(roles) == ["head", "reader"], _said(home)
    spec = home / "spec.yaml"
    source = {"path": str(pictures), "columns": ["image", "label"]}
    spec.write_text(
        yaml.safe_dump({"source": source, "augment": {"ops": [{"resize": {"size": 32}}]}, "batch": {"size": 10}}),
        encoding="utf-8",
    )
    job = ["submit", str(spec), "--address", "http://127.0.0.1:8265", "--"]
    options = ["--trainers", "1", "--epochs", "1", "--classes", "2", "--model", "numpy"]
    done = call(sys.executable, "-m", "ingest.cli", *job, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "expected 240, missing 0, repeated 0" in done.stdout
    raylet = "raylet/raylet "
    assert [len(_left(home, host, 0, raylet)) for host in (HEAD, WORKER)] == [1, 1]
    down = call("ray", "down", "-y", str(path))
    assert down.returncode == 0, down.stdout + down.stderr
    assert "No nodes remaining" in down.stdout + down.stderr
    assert _left(home, HEAD, 5) == [], down.stdout + down.stderr
    # Nobody tells the other hosts: their raylets miss the head, and end.
    assert _left(home, WORKER, 60, raylet) == []
