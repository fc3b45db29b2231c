"""`ingest submit --env pip` and `uv`: a job has what is installed where it is submitted, and its nodes lack."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import zipfile
from pathlib import Path

import pytest
import yaml
from ray_nodes import ROOT, cluster_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
NAME, VERSION = "ingest_tiny", "1.5"
FUNCTION = """
    import ingest_tiny

    def inverted(pixels, numbers):
        return ingest_tiny.WHITE - pixels
"""


@pytest.fixture
def folder():
    """A short one: a socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="e", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def nodes_python(tmp_path_factory):
    """Of an environment that sees this one's packages and holds next to nothing: Ray copies it for each job."""
    home = tmp_path_factory.mktemp("python") / "env"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / "bin" / "python"
    (own,) = home.glob("lib/python3*/site-packages")
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (own / "packages.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    return str(python)


def _metadata(name: str, version: str, requires: list[str]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires)]) + "\n"


def _wheel(folder: Path) -> Path:
    """A folder that holds the only copy of a package."""
    folder.mkdir()
    info = f"{NAME}-{VERSION}.dist-info"
    with zipfile.ZipFile(folder / f"{NAME}-{VERSION}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{NAME}.py", "WHITE = 255\n")
        archive.writestr(f"{info}/METADATA", _metadata(NAME, VERSION, []))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder


def _installed_here(folder: Path, wheels: Path, requires: list[str]) -> Path:
    """A folder of the submitter's path: the package is installed, and ingest needs it besides `requires`."""
    with zipfile.ZipFile(next(wheels.iterdir())) as archive:
        archive.extractall(folder)
    version = importlib.metadata.version("ingest")
    info = folder / f"ingest-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(_metadata("ingest", version, [*requires, NAME]), encoding="utf-8")
    return folder


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_a_job_has_the_packages_of_where_it_was_submitted_pinned(folder, pictures, nodes_python, tool):
    wheels = _wheel(folder / "wheels")
    # pip leaves what nodes have already; uv does not look beyond the job's own environment, and would fetch it anew.
    requires = list(importlib.metadata.requires("ingest") or ()) if tool == "pip" else []
    if tool == "uv":
        had = subprocess.run([nodes_python, "-m", "pip", "install", "-q", "uv"], check=False, capture_output=True)
        if had.returncode:
            pytest.skip("needs uv, and no package index answers")
    here = _installed_here(folder / "here", wheels, requires)
    (folder / "mine.py").write_text(textwrap.dedent(FUNCTION), encoding="utf-8")
    spec = folder / "spec.yaml"
    source = {"path": str(pictures), "columns": ["image", "label"]}
    ops = [{"resize": {"size": 32}}, {"numpy": {"call": "mine:inverted"}}]
    spec.write_text(
        yaml.safe_dump({"source": source, "augment": {"ops": ops}, "batch": {"size": 10}}), encoding="utf-8"
    )
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels)}
    with cluster_of(folder, token=False, python=nodes_python, **offline) as nodes:
        env = nodes.env()
        env["PYTHONPATH"] = f"{here}:{ROOT}"

        def submit(*options):
            job = ["submit", str(spec), "--address", nodes.url, "--file", "mine.py", *options, "--"]
            work = ["--trainers", "1", "--epochs", "1", "--classes", "2", "--model", "numpy"]
            return nodes.ingest(*job, *work, env=env, cwd=folder)

        without = submit()
        assert without.returncode == 2  # the spec names a function that cannot be imported
        assert f"No module named '{NAME}'" in without.stdout
        done = submit("--env", tool)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert "expected 240, missing 0, repeated 0" in done.stdout
    made = [path for path in folder.rglob(f"{NAME}-{VERSION}.dist-info") if path.parent != here]
    assert made != []
    assert all(f"/runtime_resources/{tool}/" in str(path) for path in made)
