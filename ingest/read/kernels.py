"""Loads the compiled kernels: from a cache that can be written to, and compiled by one process while others wait."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_NAME = "ingest.read.wire"
_SOURCE = Path(__file__).with_name("wire.py")


@functools.cache
def kernels() -> ModuleType:
    """The module of kernels, with a cache of compiled code that works.

    numba keeps compiled code in NUMBA_CACHE_DIR, else beside the source, else in the user's cache folder, and refuses
    where it can write to none of them: then the cache is the user's own folder below the system's temporary one. Code
    that checks bounds (NUMBA_BOUNDSCHECK=1) is kept apart, since numba would take either for the other.
    """
    from numba import config

    if config.BOUNDSCHECK:
        config.CACHE_DIR = str(Path(config.CACHE_DIR or own_folder()) / "bounds_checked")
    try:
        return importlib.import_module(_NAME)
    except RuntimeError as error:
        if "cannot cache" not in str(error) or config.CACHE_DIR:
            raise
        config.CACHE_DIR = str(own_folder())
        return importlib.import_module(_NAME)


@functools.cache
def own_folder() -> Path:
    """A folder that nobody else can write to: code is loaded from it. The same for all processes of a user."""
    folder = Path(tempfile.gettempdir()) / f"ingest-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix="ingest-"))  # somebody laid another there: this process takes a new one


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Around the first calls of the kernels: of several processes without compiled code one compiles, the rest wait.

    They then load what it left. Where that was done before, nobody waits.
    """
    import numba

    facts = (_SOURCE.read_bytes(), str(_SOURCE), numba.__version__, numba.config.CACHE_DIR, sys.version)
    mark = own_folder() / hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
    done = mark.with_suffix(".compiled")
    if done.exists():
        yield
        return
    with mark.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system lets go of it if this process dies
        yield
        done.touch()
