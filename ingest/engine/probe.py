"""What a node says about itself. Crosses to nodes by value and needs nothing of theirs: ingest may be missing there."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import resource
import shutil
import tempfile
import time
from typing import Any

DISTRIBUTIONS = {
    "ray": "ray",
    "pyarrow": "pyarrow",
    "numpy": "numpy",
    "fsspec": "fsspec",
    "obstore": "obstore",
    "pydantic": "pydantic",
    "cv2": "opencv-python-headless",
    "nvidia.dali": "nvidia-dali-cuda120",
    "ingest": "ingest",
}
"""Module to distribution, of all that a node imports in a run."""


def look() -> dict[str, Any]:
    """Versions of what is imported, or why it cannot be; disk, files and time of this node.

    Returns:
        host; python; versions: module to version, with an exclamation mark before what importing it raised;
        free_tmp_bytes; open_files; time_s, since 1970.
    """
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "versions": {module: _version(module, name) for module, name in DISTRIBUTIONS.items()},
        "free_tmp_bytes": shutil.disk_usage(tempfile.gettempdir()).free,
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "time_s": time.time(),
    }


def _version(module: str, distribution: str) -> str:
    try:
        found = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - whatever it raises is what the doctor tells
        return f"!{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    version = getattr(found, "__version__", None)
    return str(version) if version is not None else importlib.metadata.version(distribution)


def decode(augment: Any) -> dict[str, Any]:
    """Build the spec's augmentation on this CPU and decode a picture with it: `error`, why that fails, or None."""
    try:
        from ingest.augment.augmenter import Augmenter

        Augmenter(augment, seed=0, batch_rows=1, threads=1).close()  # it warms up by decoding
    except Exception as error:  # noqa: BLE001 - whatever it raises is what the doctor tells
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": None}
