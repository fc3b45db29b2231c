"""Two thousand images of which one in a hundred is spoiled: nothing changes for the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.demo_data import write_images

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundredth_of_the_images_spoiled_in_ten_ways_changes_nothing_for_the_others(tmp_path):
    write_images(tmp_path / "images", 2000)
    command = [sys.executable, "-m", "tests.poison", str(tmp_path / "images")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["rows"], result["poisoned"], result["unreadable"]) == (2000, 20, 14)
    assert (result["lost"], result["changed"], result["quarantine_missing"], result["quarantine_extra"]) == (0, 0, 0, 0)
    assert result["steps_poisoned"] == result["steps_clean"] == [32, 32]
