"""How kernels and their helpers are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

from ingest import jit

Function = TypeVar("Function", bound=Callable[..., Any])
int64: Any = np.int64  # to mypy, what it makes is an int, as it is to the compiler


# Without reference counts, which arrays would take at each call, and which took more than half of the time: an array
# outlives all calls that see it, since it comes from outside. So nothing here may make an array, but for `skip_field`.
_options = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}


def kernel(function: Function) -> Function:
    """Called from Python: compiled once, and kept on disk."""
    return jit.kernel(function, **_options)


def helper(function: Function) -> Function:
    """Compiled into the kernels that call it."""
    compiled: Function = njit(nogil=True, no_cpython_wrapper=True, **_options)(function)
    return compiled


def allocating_helper(function: Function) -> Function:
    """One that makes an array."""
    compiled: Function = njit(nogil=True, no_cpython_wrapper=True, **{**_options, "_nrt": True})(function)
    return compiled
