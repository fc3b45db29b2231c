"""Functions compiled to machine code by numba, once a machine: the result is cached where this process may write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """`function` as machine code that runs without the interpreter's lock; compiled at its first call, then cached."""
    _find_cache(Path(function.__code__.co_filename).parent)
    made: Function = numba.njit(cache=True, nogil=True)(function)
    return made


def _find_cache(source: Path) -> None:
    """Give numba a folder of its own where it would find none: with neither source nor home writable it refuses."""
    if numba.config.CACHE_DIR or _writable(source / "__pycache__") or _writable(Path.home() / ".cache" / "numba"):
        return
    folder = Path(tempfile.gettempdir()) / f"ingest-numba-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or not os.access(folder, os.W_OK):
        folder = Path(tempfile.mkdtemp(prefix="ingest-numba-"))  # numba runs what it finds, so it must be our own
    numba.config.CACHE_DIR = str(folder)


def _writable(folder: Path) -> bool:
    """Whether `folder` can be written, or made by its nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)
