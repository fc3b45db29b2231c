"""Thirty random deaths on three nodes over ten epochs: each row once, not a pixel changed, no hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_deaths_change_nothing(pictures, tmp_path):
    command = [sys.executable, "-m", "tests.chaos", str(pictures), "--kills", "30", "--epochs", "10"]
    done = subprocess.run(
        [*command, "--log", str(tmp_path / "log")], cwd=ROOT, capture_output=True, text=True, timeout=3500, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["kills"], result["epochs"]) == (30, 10)
    assert (result["missing"], result["repeated"], result["changed"]) == (0, 0, 0)
    proof = subprocess.run(
        [sys.executable, "-m", "ingest.cli", "verify", "--log", str(tmp_path / "log"), "--epochs", "10"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert proof.returncode == 0, proof.stdout + proof.stderr
