"""Operations that move pixels. Targets (boxes, masks, keypoints) move with them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, Field, PositiveFloat, model_validator

from ingest.ops.base import Level, Random, Range, Share, Side, Size, Span


class RandomResizedCrop(Random):
    """A random window of the image, resized. The window is torchvision's, after Szegedy et al. 2014 (GoogLeNet)."""

    name: ClassVar[str] = "random_resized_crop"
    size: Size = Field(description="side, or (height, width), in pixels")
    area: tuple[PositiveFloat, PositiveFloat] = (0.08, 1.0)
    ratio: tuple[PositiveFloat, PositiveFloat] = (3 / 4, 4 / 3)

    @model_validator(mode="after")
    def _ordered(self) -> RandomResizedCrop:
        _check_window(self.area, self.ratio)
        return self


class Resize(Random):
    """To (height, width), or so that the shorter or the longer side is what is given and the ratio stays."""

    name: ClassVar[str] = "resize"
    size: Size | None = None
    shorter: Side | None = None
    longer: Side | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Resize:
        if sum(value is not None for value in (self.size, self.shorter, self.longer)) != 1:
            raise ValueError("give one of size, shorter and longer")
        return self


class CenterCrop(Random):
    """The middle of the image, (height, width); an image smaller than that is one sample's error."""

    name: ClassVar[str] = "center_crop"
    size: Size


class RandomCrop(Random):
    """A window of (height, width) at a random place; an image smaller than that is one sample's error (see `pad`)."""

    name: ClassVar[str] = "random_crop"
    size: Size


class Flip(Random):
    """Left to right (horizontal) or top to bottom (vertical), for a share of the samples."""

    name: ClassVar[str] = "flip"
    probability: Share = Field(0.5, validation_alias=AliasChoices("probability", "p"))
    direction: Literal["horizontal", "vertical"] = "horizontal"


class Rotate(Random):
    """Turned about its middle, counter-clockwise, by a random angle; the size stays, corners are cut off."""

    name: ClassVar[str] = "rotate"
    degrees: Span = Field((-30.0, 30.0), description="least and greatest angle; a number x is [-x, x]")
    fill: Level = Field(0, description="of what lies outside the image")


class Affine(Random):
    """Sheared, scaled and turned about its middle, then moved."""

    name: ClassVar[str] = "affine"
    degrees: Span = Field((0.0, 0.0), description="of rotation, counter-clockwise")
    translate: tuple[Share, Share] = Field(
        (0.0, 0.0), description="most to either side, as a share of height and width"
    )
    scale: Range = Field((1.0, 1.0), description="factor of the image's size")
    shear_x: Span = Field((0.0, 0.0), description="degrees")
    shear_y: Span = Field((0.0, 0.0), description="degrees")
    fill: Level = 0

    @model_validator(mode="after")
    def _possible(self) -> Affine:
        if self.scale[0] <= 0:
            raise ValueError(f"scale: {self.scale[0]:g} is not above 0")
        for name in ("shear_x", "shear_y"):
            if max(map(abs, getattr(self, name))) >= 90:
                raise ValueError(f"{name}: {getattr(self, name)} must stay below 90 degrees")
        return self


class Perspective(Random):
    """Each corner moves inwards by up to `distortion` / 2 of the width and of the height."""

    name: ClassVar[str] = "perspective"
    distortion: Annotated[float, Field(ge=0, lt=1)] = 0.5
    fill: Level = 0


class Pad(Random):
    """Space around the image: up to `size`, the image in the middle, or `border` pixels on each side."""

    name: ClassVar[str] = "pad"
    size: Size | None = Field(None, description="least (height, width); a larger image stays as it is")
    border: Annotated[int, Field(ge=0, le=4096)] | None = None
    fill: Level = 0

    @model_validator(mode="after")
    def _one_of(self) -> Pad:
        if (self.size is None) == (self.border is None):
            raise ValueError("give size or border")
        return self


def _check_window(area: tuple[float, float], ratio: tuple[float, float]) -> None:
    for name, (low, high) in (("area", area), ("ratio", ratio)):
        if low > high:
            raise ValueError(f"{name}: {low} is above {high}")
    if area[1] > 1:
        raise ValueError(f"area: {area[1]} is above 1")


class Erase(Random):
    """A random rectangle filled with one colour, after Zhong et al. 2017 (random erasing)."""

    name: ClassVar[str] = "erase"
    area: tuple[PositiveFloat, PositiveFloat] = (0.02, 0.33)
    ratio: tuple[PositiveFloat, PositiveFloat] = (0.3, 3.3)
    fill: tuple[Level, Level, Level] = (0, 0, 0)

    @model_validator(mode="after")
    def _ordered(self) -> Erase:
        _check_window(self.area, self.ratio)
        return self
