"""Functions compiled to machine code by numba, once a machine: the result is cached where this process may write."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """`function` as machine code that runs without the interpreter's lock; compiled at its first call, then cached.

    Code that checks bounds (NUMBA_BOUNDSCHECK=1) is not cached, since numba would take either for the other.
    """
    _find_cache(Path(function.__code__.co_filename).parent)
    made: Function = numba.njit(cache=not numba.config.BOUNDSCHECK, nogil=True)(function)
    return made


def kernel(function: Function, **options: Any) -> Function:
    """`compiled`, with more options of numba's, and with what it calls anywhere in its folder.

    What is cached holds as long as no module of that folder changes; numba itself looks at the function's file alone.
    """
    folder = Path(function.__code__.co_filename).parent
    _find_cache(folder)
    made: Any = numba.njit(cache=not numba.config.BOUNDSCHECK, nogil=True, **options)(function)
    if not numba.config.BOUNDSCHECK:
        made._cache._cache_file._source_stamp = _content(folder)  # noqa: SLF001  # numba has no public way to say it
    return made  # type: ignore[no-any-return]


@contextlib.contextmanager
def compiling(source: Path) -> Iterator[None]:
    """Around the first calls of what `source` defines: of several processes one compiles, and the others wait.

    `source` is a module, or the folder of several.
    They then load what it has left in the cache. Where that was done before, nobody waits.
    """
    facts = (_content(source), str(source), numba.__version__, numba.config.CACHE_DIR, sys.version)
    mark = own_folder() / hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
    done = mark.with_suffix(".compiled")
    if done.exists() or numba.config.BOUNDSCHECK:  # checked code is not kept, so nothing is worth waiting for
        yield
        return
    with mark.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system lets go of it if this process dies
        yield
        done.touch()


@functools.cache
def own_folder() -> Path:
    """A folder that nobody else can write to, the same for all processes of a user: numba runs what it finds there."""
    folder = Path(tempfile.gettempdir()) / f"ingest-numba-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix="ingest-numba-"))  # somebody put another there: this process has its own


def _content(source: Path) -> str:
    """A digest of a module, or of all in a folder."""
    modules = sorted(source.glob("*.py")) if source.is_dir() else [source]
    return hashlib.sha256(repr([(module.name, module.read_bytes()) for module in modules]).encode()).hexdigest()


def _find_cache(source: Path) -> None:
    """Give numba a folder of its own where it would find none: with neither source nor home writable it refuses."""
    if numba.config.CACHE_DIR or _writable(source / "__pycache__") or _writable(Path.home() / ".cache" / "numba"):
        return
    numba.config.CACHE_DIR = str(own_folder())


def _writable(folder: Path) -> bool:
    """Whether `folder` can be written, or made by its nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)
