"""Operations that end a list: the type and the layout of what comes out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import PositiveFloat, model_validator

from ingest.ops.base import OpBase

_MOST = {"float16": 65504.0, "float32": 3.4028235e38}


class Normalize(OpBase):
    """(pixel * scale - mean) / std per channel, then dtype and layout."""

    name: ClassVar[str] = "normalize"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.229, 0.224, 0.225)
    scale: PositiveFloat = 1 / 255
    dtype: Literal["float32", "float16"] = "float32"
    layout: Literal["HWC", "CHW"] = "CHW"

    @model_validator(mode="after")
    def _holds(self) -> Normalize:
        levels = [
            (level * self.scale - mean) / std
            for level in (0, 255)
            for mean, std in zip(self.mean, self.std, strict=True)
        ]
        _check_range(levels, self.dtype)
        return self


class Cast(OpBase):
    """(pixel * scale) in another dtype."""

    name: ClassVar[str] = "cast"
    dtype: Literal["float32", "float16"] = "float32"
    scale: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _holds(self) -> Cast:
        _check_range([255 * self.scale], self.dtype)
        return self


class Transpose(OpBase):
    """From (height, width, channel) to (channel, height, width)."""

    name: ClassVar[str] = "transpose"


def _check_range(levels: Iterable[float], dtype: str) -> None:
    most = max(map(abs, levels))
    if most > _MOST[dtype]:
        raise ValueError(f"pixels would become {most:.4g}, and {dtype} ends at {_MOST[dtype]:.4g}")
