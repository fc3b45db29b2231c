"""What every test shares: Hypothesis profiles, markers by folder, visible skips where there is no GPU."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings

TESTS = Path(__file__).parent
FOLDER_MARKERS = {"unit", "property", "integration", "gpu"}

# A machine that is busy makes any example slow: a deadline would test the machine.
settings.register_profile("dev", deadline=None, max_examples=50)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=100,
    derandomize=True,  # a run repeats: a failure is the change's, not the draw's
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "debug",
    deadline=None,
    max_examples=10,
    verbosity=Verbosity.verbose,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # the first failing example as it was drawn
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def cuda_devices() -> int:
    """CUDA devices that the driver shows; 0 without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def folder_of(path: Path) -> str:
    """The folder below tests/ that a test file lies in; '' for one that lies in none."""
    parts = path.relative_to(TESTS).parts
    return parts[0] if len(parts) > 1 else ""


def check_markers(name: str, folder: str, markers: set[str]) -> None:
    """Refuse a test outside the four folders, or one that is marked for another.

    Raises:
        pytest.UsageError: the test's folder and markers disagree.
    """
    if folder not in FOLDER_MARKERS:
        raise pytest.UsageError(f"{name} lies in tests/{folder}: move it to one of {', '.join(sorted(FOLDER_MARKERS))}")
    foreign = (markers & FOLDER_MARKERS) - {folder}
    if foreign:
        raise pytest.UsageError(f"{name} lies in tests/{folder} and is marked {', '.join(sorted(foreign))}")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_gpu = pytest.mark.skip(reason="no CUDA device on this machine")
    gpu = cuda_devices() > 0
    for item in items:
        folder = folder_of(item.path)
        check_markers(item.nodeid, folder, {marker.name for marker in item.iter_markers()})
        item.add_marker(folder)
        if folder == "gpu" and not gpu:
            item.add_marker(no_gpu)
