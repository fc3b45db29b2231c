"""What every part of the spec is: frozen, and closed to unknown keys; and the types that several parts share."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field


def _number(value: Any) -> Any:
    """YAML's `yes` and `on` are true, which would pass for a 1."""
    if isinstance(value, bool):
        raise ValueError(f"is {str(value).lower()}, and a number is wanted")  # noqa: TRY004  # pydantic's way
    return value


def _size(value: Any) -> Any:
    """All of a text counts: pydantic reads `1,5GiB` as 1, and passes over the rest."""
    if isinstance(value, str) and not re.fullmatch(r"\s*\d*\.?\d+\s*[A-Za-z]*\s*", value, re.ASCII):
        raise ValueError(f"is {value!r}, which is no size; for example 64MiB or 1.5GiB")
    return _number(value)


Auto = Literal["auto"]
NUMBER = BeforeValidator(_number)
Fraction = Annotated[float, Field(ge=0, le=1), NUMBER]
Count = Annotated[int, Field(gt=0, lt=2**31), NUMBER]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER]
Seed = Annotated[int, Field(ge=0, lt=2**63), NUMBER]
Size = Annotated[ByteSize, Field(gt=0, lt=2**62), BeforeValidator(_size)]


class Section(BaseModel):
    """A frozen part of the spec that refuses unknown keys.

    Its validator is built when something is first validated: five of a rank's six processes only unpickle a spec.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True, defer_build=True)
