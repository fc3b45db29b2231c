"""Published policies: which of many operations a sample gets, and how strong."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ingest.ops.base import Level, Random


class TrivialAugment(Random):
    """One operation, drawn evenly, of a strength drawn evenly: Mueller and Hutter 2021, the wide space."""

    name: ClassVar[str] = "trivial_augment"
    bins: Annotated[int, Field(ge=2, le=1024)] = Field(31, description="strengths to draw from")
    fill: Level = 0


class RandAugment(Random):
    """`ops` operations one after the other, drawn evenly, all of one strength: Cubuk et al. 2019."""

    name: ClassVar[str] = "rand_augment"
    ops: Annotated[int, Field(ge=1, le=8)] = 2
    magnitude: Annotated[int, Field(ge=0)] = Field(9, description="0 to bins - 1")
    bins: Annotated[int, Field(ge=2, le=1024)] = 31
    fill: Level = 0

    @model_validator(mode="after")
    def _possible(self) -> RandAugment:
        if self.magnitude >= self.bins:
            raise ValueError(f"magnitude: {self.magnitude} is not below bins, {self.bins}")
        return self


class AutoAugment(Random):
    """One of 25 pairs of operations with learned probabilities and strengths: Cubuk et al. 2018, for ImageNet."""

    name: ClassVar[str] = "auto_augment"
    policy: Literal["imagenet"] = "imagenet"
    fill: Level = 0
