"""NumPy batches to the framework that the spec names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingest.errors import SpecError, StageError

Convert: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
_PACKAGES = {"torch": "torch", "jax": "jax", "tf": "tensorflow"}
_NARROW = {"i8": np.int32, "u8": np.uint32, "f8": np.float32}


def converter(framework: str) -> Convert:
    """A function from a dict of NumPy arrays to one of the framework's arrays: of numbers and booleans, that is.

    What the framework has no type for (strings, times, arrays of their own lengths) stays a NumPy array.

    - `numpy`: read-only views of shared memory
    - `torch`: tensors of the trainer's own memory, pinned where there is CUDA
    - `jax`: arrays on the default device. Without `jax_enable_x64` JAX has no 64 bits: `sample_id` then stays NumPy,
      integers become 32 bits wide where all fit (else it is an error), floats become float32
    - `tf`: eager tensors

    Raises:
        SpecError: the framework is not installed.
    """
    if framework == "numpy":
        return _read_only
    make = {"torch": _torch, "jax": _jax, "tf": _tf}[framework]
    try:
        one = make()
    except ImportError:
        package = _PACKAGES[framework]
        raise SpecError(
            f"loader.framework is {framework}, and {package} is not installed",
            hint=f"Install it: pip install 'ingest[{framework}]'",
        ) from None

    def convert(arrays: dict[str, Any]) -> dict[str, Any]:
        return {
            name: one(name, value) if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else value
            for name, value in arrays.items()
        }

    return convert


def _torch() -> Callable[[str, NDArray[Any]], Any]:
    import torch

    pin = torch.cuda.is_available()

    def tensor(_: str, value: NDArray[Any]) -> Any:
        # The array is a read-only view of shared memory, on which an in-place operation would fault: copy it.
        out = torch.empty(value.shape, dtype=torch.from_numpy(np.empty(0, value.dtype)).dtype, pin_memory=pin)
        np.copyto(out.numpy(), value)
        return out

    return tensor


def _jax() -> Callable[[str, NDArray[Any]], Any]:
    import jax

    def array(name: str, value: NDArray[Any]) -> Any:
        if not jax.config.jax_enable_x64 and value.dtype.itemsize == 8:
            if name == "sample_id":
                return value
            value = _narrowed(name, value)
        return jax.device_put(value)

    return array


def _narrowed(name: str, value: NDArray[Any]) -> NDArray[Any]:
    """64 bits in 32, which JAX would do without a word."""
    kind: np.dtype[Any] = np.dtype(_NARROW[value.dtype.str[1:]])
    if kind.kind in "iu" and value.size:
        limits, least, most = np.iinfo(kind.type), value.min(), value.max()
        if least < limits.min or most > limits.max:
            raise StageError(
                f"column '{name}' holds {least if least < limits.min else most}, which JAX cannot hold in 32 bits",
                stage="loader",
                hint="Set jax_enable_x64, or make the column smaller where it is written",
            )
    return value.astype(kind)


def _tf() -> Callable[[str, NDArray[Any]], Any]:
    import tensorflow as tf

    def tensor(_: str, value: NDArray[Any]) -> Any:
        return tf.convert_to_tensor(value)

    return tensor


def _read_only(arrays: dict[str, Any]) -> dict[str, Any]:
    """Shared memory is read-only already; arrays made in this process become so, that it never depends on the path."""
    for value in arrays.values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return arrays
