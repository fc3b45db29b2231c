"""The fences around the tests themselves: unit tests cannot sleep or start a cluster, and markers match folders."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from tests.conftest import check_markers, folder_of

pytestmark = pytest.mark.unit


def test_no_two_test_modules_share_a_name():
    names = [path.name for path in (Path(__file__).parents[1]).rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)  # pytest finds them by that alone


def test_sleeping_is_refused():
    with pytest.raises(AssertionError, match="must not sleep"):
        time.sleep(0)


def test_ray_init_is_refused():
    with pytest.raises(AssertionError, match=r"must not call ray\.init"):
        ray.init(address="local")


@pytest.mark.parametrize("command", [["/opt/ray/gcs_server", "--port=0"], ["ray", "start", "--head"], "ray start"])
def test_cluster_processes_are_refused(command):
    with pytest.raises(AssertionError, match="must not start a Ray cluster"):
        subprocess.run(command, check=False)


def test_other_processes_run():
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True).stdout.strip() == b"1"


@pytest.mark.parametrize(
    ("folder", "markers", "said"),
    [
        ("unit", {"integration"}, "lies in tests/unit and is marked integration"),
        ("integration", {"integration", "gpu"}, "lies in tests/integration and is marked gpu"),
        ("", {"unit"}, "move it to one of gpu, integration, property, unit"),
        ("helpers", set(), "move it to one of"),
    ],
)
def test_a_marker_of_another_folder_is_refused(folder, markers, said):
    with pytest.raises(pytest.UsageError, match=said):
        check_markers("test_x", folder, markers)


def test_a_marker_of_its_folder_or_none_passes(request):
    check_markers("test_x", "unit", {"unit", "slow", "parametrize"})
    check_markers("test_x", "gpu", set())
    assert folder_of(request.path) == "unit"
    assert request.node.get_closest_marker("unit")
