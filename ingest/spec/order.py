"""The order of an epoch's rows: of one source, and how several are mixed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ByteSize, Field, field_validator, model_validator

from ingest.spec.section import NUMBER, Auto, Count, Section, Seed, Size


class Mixing(Section):
    """How several sources make an epoch."""

    stop: Literal["first_exhausted", "all_exhausted", "steps"] = Field(
        "first_exhausted",
        description="the epoch ends with the source that is used up first; or last, others repeating; or after steps",
    )
    steps: Count | None = Field(None, description="of an epoch, with stop: steps")

    @model_validator(mode="after")
    def _steps_with_steps(self) -> Mixing:
        if (self.stop == "steps") != (self.steps is not None):
            raise ValueError("give steps with stop: steps, and only then")
        return self


class Order(Section):
    """The order of rows, which the seed decides."""

    seed: Seed = Field(0, description="of order and augmentation")
    shuffle: Literal["none", "window", "full"] = Field(
        "window", description="file order, permuted within windows, or over all that a rank reads"
    )
    window_bytes: Size = Field(ByteSize(256 << 20), description="read ahead for shuffling, per rank")
    interleave: Count | Auto = Field("auto", description="units per window")
    lanes: Annotated[int, Field(gt=0, le=2**16), NUMBER] | Auto = Field("auto", description="a power of two")

    @field_validator("lanes")
    @classmethod
    def _power_of_two(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value & (value - 1):
            low = 1 << (value.bit_length() - 1)
            raise ValueError(f"is {value}, and must be a power of two: {low} or {2 * low}, say")
        return value
