"""What moves with the image: boxes, masks, keypoints, and further images. Data only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ingest.ops.base import Share


def _named(value: Any) -> Any:
    return {"column": value} if isinstance(value, str) else value


class Target(BaseModel):
    """A column that moves with the image."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
    column: str


class Boxes(Target):
    """Lists of four numbers for each image, of the upright image."""

    format: Literal["xyxy", "xywh", "cxcywh"] = Field("xyxy", description="corners; corner and size; centre and size")
    relative: bool = Field(False, description="shares of width and height instead of pixels")
    clip: bool = Field(True, description="cut off at the borders of the image, after each crop too")
    min_area: Annotated[float, Field(ge=0)] = Field(1.0, description="pixels of the result; smaller boxes are dropped")
    min_visible: Share = Field(0.0, description="share of a box's area that must be left; else it is dropped")
    labels: tuple[str, ...] = Field((), description="columns with one value for each box, dropped with it")


class Keypoints(Target):
    """Lists of points for each image: (x, y) or (x, y, visibility, ...), in pixels of the upright image.

    A point that is no longer in the image gets visibility 0, or, without one, NaN for both coordinates.
    """

    relative: bool = False
    flip_pairs: tuple[tuple[int, int], ...] = Field((), description="points that change places in a mirrored image")


class Mask(Target):
    """An encoded image of class numbers (PNG, grey or palette), of the upright image's size; moved without mixing."""

    dtype: Literal["uint8", "uint16"] = "uint8"
    fill: Annotated[int, Field(ge=0, le=65535)] = Field(0, description="of what lies outside the image")

    @model_validator(mode="after")
    def _fits(self) -> Mask:
        if self.dtype == "uint8" and self.fill > 255:
            raise ValueError(f"fill: {self.fill} is above 255, the most that uint8 holds; dtype: uint16 holds it")
        return self


SpelledBoxes = Annotated[Boxes | None, BeforeValidator(_named, json_schema_input_type=Boxes | str | None)]
SpelledKeypoints = Annotated[Keypoints | None, BeforeValidator(_named, json_schema_input_type=Keypoints | str | None)]
SpelledMask = Annotated[Mask, BeforeValidator(_named, json_schema_input_type=Mask | str)]
