"""Loads the compiled kernels where they are first used: numba takes a while to import."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


@functools.cache
def kernels() -> ModuleType:
    """`ingest.read.wire`."""
    return importlib.import_module("ingest.read.wire")


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Around the first calls of the kernels, see `ingest.jit.compiling`."""
    from ingest import jit

    with jit.compiling(Path(str(kernels().__file__)).parent):
        yield
