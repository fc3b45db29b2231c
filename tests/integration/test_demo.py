"""The demo as `make demo` runs it, on fewer images: its proof, its exit status, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_proves_coverage_and_leaves_nothing_behind():
    left = set(Path(tempfile.gettempdir()).glob("ingest-demo-*"))
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:  # short: a socket's path has 107 bytes
        # The address of a cluster that is gone, in the environment and in Ray's own file, must not matter.
        (Path(folder) / "ray").mkdir()
        (Path(folder) / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from jobs.demo import demo; sys.exit(demo(rows=600))"],
            cwd=ROOT,
            env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1", "RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "600 JPEGs in 8 Parquet files" in done.stdout
    assert "proved: in each of 2 epochs, of 600 samples 0 were missing and 0 came twice" in done.stdout
    assert "Traceback" not in done.stderr
    assert set(Path(tempfile.gettempdir()).glob("ingest-demo-*")) == left
