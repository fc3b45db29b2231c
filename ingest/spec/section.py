"""What every part of the spec is: frozen, and closed to unknown keys; and the types that several parts share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Auto = Literal["auto"]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(gt=0, lt=2**31)]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A frozen part of the spec that refuses unknown keys.

    Its validator is built when something is first validated: five of a rank's six processes only unpickle a spec.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True, defer_build=True)
