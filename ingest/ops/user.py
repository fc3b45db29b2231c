"""Operations that users write themselves, named by where they are: `package.module:name`."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from ingest.ops.base import Random, Size

_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _as_place(value: Any) -> Any:
    """A function as the name it can be imported by; workers import it, nothing of it is sent.

    Raises:
        ValueError: it has none, such as one made inside another function, or an object that holds a lock.
    """
    if isinstance(value, str):
        if not _PLACE.fullmatch(value):
            raise ValueError(f"'{value}' is not of the form package.module:name")
        return value
    if not callable(value):
        return value
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(f"{value!r} cannot be pickled ({error}); name it as package.module:name") from None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not name or module in (None, "__main__") or "<" in name:
        raise ValueError(f"{value!r} cannot be imported by a worker; put it in a module: package.module:name")
    return f"{module}:{name}"


Place = Annotated[str, BeforeValidator(_as_place, json_schema_input_type=str)]


class User(Random):
    """What a user's function is given and must return.

    Attributes:
        call: the function.
        draws: random numbers that each sample gets, uniform in [0, 1), keyed by seed, pass and sample id.
        size: of what it returns; without it, images keep their size.
        moves: whether pixels change places; boxes, keypoints and masks cannot follow then.
    """

    call: Place
    draws: Annotated[int, Field(ge=0, le=4096)] = 0
    size: Size | None = None
    moves: bool = True

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return value if isinstance(value, (Mapping, User)) else {"call": value}


class Function(User):
    """`function(images, numbers)`: DALI nodes in, a DALI node out.

    `images` is uint8 (height, width, 3), `numbers` float32 (draws,), or None without draws; the result is uint8
    (height, width, 3). Any DALI operator may be used, on the device that `images.device` names. Operators with a random
    state of their own (`fn.random`) do not repeat when batches change: use `numbers`.
    """

    name: ClassVar[str] = "function"


class Numpy(User):
    """`function(pixels, numbers)`: uint8 (height, width, 3), read-only, and float64 (draws,), to pixels. On the CPU."""

    name: ClassVar[str] = "numpy"
