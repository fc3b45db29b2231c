"""NumPy batches to the framework that the spec names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ingest.errors import SpecError


def converter(framework: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function from a dict of NumPy arrays to one of the framework's arrays.

    Raises:
        SpecError: the framework is not installed.
    """
    if framework == "numpy":
        return _read_only
    try:
        import torch
    except ImportError:
        raise SpecError(
            "loader.framework is torch, and torch is not installed", hint="Install it: pip install 'ingest[torch]'"
        ) from None
    pin = torch.cuda.is_available()

    def to_torch(arrays: dict[str, Any]) -> dict[str, Any]:
        """Numbers become tensors of the trainer's own memory; what has no tensor type stays as it is."""
        out = {}
        for name, value in arrays.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
                out[name] = value
                continue
            # The array is a read-only view of shared memory, on which an in-place operation would fault: copy it.
            tensor = torch.empty(value.shape, dtype=torch.from_numpy(np.empty(0, value.dtype)).dtype, pin_memory=pin)
            np.copyto(tensor.numpy(), value)
            out[name] = tensor
        return out

    return to_torch


def _read_only(arrays: dict[str, Any]) -> dict[str, Any]:
    """Shared memory is read-only already; arrays made in this process become so, that it never depends on the path."""
    for value in arrays.values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return arrays
