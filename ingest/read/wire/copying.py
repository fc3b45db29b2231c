"""Bytes from one array to another, as fast as the machine copies."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ingest.read.wire.compile import helper

_SHORT = 16  # bytes that a loop copies sooner than a call does


@intrinsic  # type: ignore[untyped-decorator]
def _memcpy(typing: Any, out: Any, out_at: Any, data: Any, start: Any, size: Any) -> Any:
    """Bytes between contiguous uint8 arrays, from and to places that the caller has checked."""
    del typing, out_at, start, size

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = []
        for k in (0, 2):
            array = context.make_array(signature.args[k])(context, builder, args[k])
            places.append(builder.gep(array.data, [args[k + 1]]))
        cgutils.raw_memcpy(builder, *places, args[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), generate


@helper
def copy_bytes(out: Any, out_at: int, data: Any, start: int, size: int) -> None:
    """Bytes data[start:start + size] to out[out_at:]."""
    if size < _SHORT:
        for k in range(size):
            out[out_at + k] = data[start + k]
    else:  # a loop would not become a copy of many bytes at a time, since an index may be negative
        out[out_at] = data[start]  # where bounds are checked, these two lines check them
        out[out_at + size - 1] = data[start + size - 1]
        _memcpy(out, out_at, data, start, size)
