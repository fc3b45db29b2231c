"""Operations on a pixel's neighbourhood, and noise."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from ingest.ops.base import Random, Range


class Sharpness(Random):
    """0 is blurred (Pillow's SMOOTH), 1 the image, 2 sharpened; between them a straight line."""

    name: ClassVar[str] = "sharpness"
    factor: Range = (2.0, 2.0)

    @model_validator(mode="after")
    def _possible(self) -> Sharpness:
        if self.factor[0] < 0:
            raise ValueError(f"factor: {self.factor[0]:g} is negative")
        return self


class GaussianBlur(Random):
    """Blurred by a Gaussian of a random sigma; the borders are mirrored."""

    name: ClassVar[str] = "gaussian_blur"
    sigma: Range = Field((0.1, 2.0), description="least and greatest, in pixels")
    window: Annotated[int, Field(ge=1, le=127)] | None = Field(
        None, description="odd; 2 * ceil(3 * sigma) + 1 if not given"
    )

    @model_validator(mode="after")
    def _possible(self) -> GaussianBlur:
        if not 0 < self.sigma[0] <= self.sigma[1] <= 20:
            raise ValueError(f"sigma: {self.sigma} is not within 0 (excluded) and 20")
        if self.window is not None and self.window % 2 == 0:
            raise ValueError(f"window: {self.window} is not odd")
        return self


class GaussianNoise(Random):
    """Normal noise of a random standard deviation on every value."""

    name: ClassVar[str] = "gaussian_noise"
    std: Range = Field((0.0, 20.0), description="least and greatest, in steps of 255")

    @model_validator(mode="after")
    def _possible(self) -> GaussianNoise:
        if not 0 <= self.std[0] <= self.std[1] <= 255:
            raise ValueError(f"std: {self.std} is not within 0 and 255")
        return self


class JpegDistortion(Random):
    """What a JPEG of a random quality leaves of the image."""

    name: ClassVar[str] = "jpeg_distortion"
    quality: Range = Field((50, 95), description="least and greatest, 1 to 100")

    @model_validator(mode="after")
    def _possible(self) -> JpegDistortion:
        if not 1 <= self.quality[0] <= self.quality[1] <= 100:
            raise ValueError(f"quality: {self.quality} is not within 1 and 100")
        return self
