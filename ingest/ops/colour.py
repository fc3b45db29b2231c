"""Operations on colours, pixel by pixel; what they mean is Pillow's, with results rounded instead of cut off."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from ingest.ops.base import Factor, Random, Span


class ColorJitter(Random):
    """Random brightness, contrast, saturation and hue, in this order."""

    name: ClassVar[str] = "color_jitter"
    brightness: Factor = Field((1.0, 1.0), description="factor; a number x is [1 - x, 1 + x]")
    contrast: Factor = Field((1.0, 1.0), description="factor of the distance from the image's mean grey")
    saturation: Factor = Field((1.0, 1.0), description="factor of the distance from each pixel's grey")
    hue: Span = Field((0.0, 0.0), description="turns of the colour circle, -0.5 to 0.5; a number x is [-x, x]")

    @model_validator(mode="after")
    def _possible(self) -> ColorJitter:
        for name in ("brightness", "contrast", "saturation"):
            if getattr(self, name)[0] < 0:
                raise ValueError(f"{name}: {getattr(self, name)[0]:g} is negative")
        if max(map(abs, self.hue)) > 0.5:
            raise ValueError(f"hue: {self.hue} is not within -0.5 and 0.5")
        return self


class Grayscale(Random):
    """Grey (ITU-R 601), still in three channels."""

    name: ClassVar[str] = "grayscale"


class Posterize(Random):
    """The upper `bits` of each value."""

    name: ClassVar[str] = "posterize"
    bits: Annotated[int, Field(ge=1, le=8)] = 4


class Solarize(Random):
    """Values from `threshold` on are inverted."""

    name: ClassVar[str] = "solarize"
    threshold: Annotated[int, Field(ge=0, le=256)] = 128


class Equalize(Random):
    """Each channel's histogram made even, as OpenCV's `equalizeHist` does."""

    name: ClassVar[str] = "equalize"


class Autocontrast(Random):
    """Each channel stretched to 0 to 255."""

    name: ClassVar[str] = "autocontrast"


class Invert(Random):
    """255 less each value."""

    name: ClassVar[str] = "invert"
