"""Users' own functions: imported where they run, checked before anything is started, and held to what they promise."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ingest.augment.kinds import Input, Kind, Pixels, Rows, Step, add, plan
from ingest.errors import SampleError, SpecError
from ingest.ops import Function, Numpy, Op, User, sides


@cache
def load(place: str) -> Callable[..., Any]:
    """The function that `package.module:name` names.

    Raises:
        SpecError: it cannot be imported, is not there, or cannot be called or pickled.
    """
    module, _, name = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise SpecError(
            f"'{place}' cannot be imported ({type(error).__name__}: {error})",
            hint="The module must be installed on the workers, or sent with Ray's runtime environment (working_dir)",
        ) from error
    if not callable(found):
        raise SpecError(f"'{place}' is {type(found).__name__}, and not a function")
    try:
        pickle.dumps(found)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SpecError(
            f"'{place}' cannot be pickled ({error})",
            hint="A function at the top of a module can; locks, files and connections belong inside it",
        ) from None
    return found  # type: ignore[no-any-return]


def check_loads(ops: Sequence[Op], fields: Sequence[str]) -> None:
    """Imports every function of a list of ops.

    Raises:
        SpecError: one cannot be used; its field is named.
    """
    for op, field in zip(ops, fields, strict=True):
        if isinstance(op, User):
            try:
                load(op.call)
            except SpecError as error:
                error.message = f"{field}: {error.message}"
                raise


def _numpy(pixels: Pixels, value: Any, place: str) -> Pixels:
    *numbers, height, width = value
    given = pixels.view()
    given.flags.writeable = False
    try:
        made = load(place)(given, np.array(numbers))
    except Exception as error:
        raise SampleError(f"'{place}' failed on an image of {pixels.shape}: {type(error).__name__}: {error}") from error
    shape = (int(height), int(width), 3)
    if not isinstance(made, np.ndarray) or made.dtype != np.uint8 or made.shape != shape:
        got = f"{made.dtype} {made.shape}" if isinstance(made, np.ndarray) else type(made).__name__
        raise SampleError(f"'{place}' returned {got}, and must return uint8 {shape}")
    return made


def _function(_: Pixels, __: Any, place: str) -> Pixels:
    raise SpecError(f"'{place}' builds DALI nodes, and has no CPU path of its own")


def _function_graph(_: Any, images: Any, inputs: dict[str, Any], place: str) -> Any:
    call, _, draws = place.rpartition("/")
    return load(call)(images, inputs["numbers"] if int(draws) else None)


def _numpy_graph(_: Any, __: Any, ___: dict[str, Any], place: str) -> Any:
    raise SpecError(f"'{place}' is a NumPy function, and cannot be part of a DALI graph", hint="Use device: cpu")


def _numbers(values: Any) -> Any:
    return np.ascontiguousarray(values[:, :-2] if values.shape[1] > 2 else np.zeros((len(values), 1)), np.float32)


add(
    Kind("numpy", _numpy, _numpy_graph, shape=lambda values, _: values[:, -2:].astype(np.int64)),
    Kind(
        "function",
        _function,
        _function_graph,
        (Input("numbers", "float32", 1, _numbers),),
        shape=lambda values, _: values[:, -2:].astype(np.int64),
    ),
)


def _fixed(op: User, shape: tuple[int, int] | None) -> tuple[int, int] | None:
    return shape if op.size is None else sides(op.size)


def _values(op: User, rows: Rows) -> Any:
    size = rows.shapes if op.size is None else np.broadcast_to(np.array(sides(op.size)), rows.shapes.shape)
    return np.concatenate([rows.numbers, size], 1)


@plan(Numpy, lambda op: op.draws, fixed=_fixed)
def _numpies(op: Numpy, rows: Rows) -> list[Step]:
    return [Step("numpy", _values(op, rows), constant=op.call)]


@plan(Function, lambda op: op.draws, fixed=_fixed)
def _functions(op: Function, rows: Rows) -> list[Step]:
    return [Step("function", _values(op, rows), constant=f"{op.call}/{op.draws}")]
