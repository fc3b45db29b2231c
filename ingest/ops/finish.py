"""Operations that end a list: the type and the layout of what comes out."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveFloat

from ingest.ops.base import OpBase


class Normalize(OpBase):
    """(pixel * scale - mean) / std per channel, then dtype and layout."""

    name: ClassVar[str] = "normalize"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.229, 0.224, 0.225)
    scale: PositiveFloat = 1 / 255
    dtype: Literal["float32", "float16"] = "float32"
    layout: Literal["HWC", "CHW"] = "CHW"


class Cast(OpBase):
    """(pixel * scale) in another dtype."""

    name: ClassVar[str] = "cast"
    dtype: Literal["float32", "float16"] = "float32"
    scale: PositiveFloat = 1.0


class Transpose(OpBase):
    """From (height, width, channel) to (channel, height, width)."""

    name: ClassVar[str] = "transpose"
