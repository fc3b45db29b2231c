"""The operations a spec can ask for, as data: names, parameters, defaults. What they do lives in `augment`."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

Side = Annotated[int, Field(gt=0, le=16384)]


class OpBase(BaseModel):
    """A frozen operation; `name` is its key in the spec."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ClassVar[str]

    @model_serializer(mode="wrap")
    def _under_its_name(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As a spec writes it, so that what is dumped can be loaded."""
        return {self.name: serialize(self)}


class RandomResizedCrop(OpBase):
    """A random window of the image, resized. The window is torchvision's, after Szegedy et al. 2014 (GoogLeNet)."""

    name: ClassVar[str] = "random_resized_crop"
    size: Side | tuple[Side, Side] = Field(description="side, or (height, width), in pixels")
    area: tuple[PositiveFloat, PositiveFloat] = (0.08, 1.0)
    ratio: tuple[PositiveFloat, PositiveFloat] = (3 / 4, 4 / 3)

    @model_validator(mode="after")
    def _ordered(self) -> RandomResizedCrop:
        for name in ("area", "ratio"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: {low} is above {high}")
        if self.area[1] > 1:
            raise ValueError(f"area: {self.area[1]} is above 1")
        return self


class Resize(OpBase):
    """To (height, width), or so that the shorter side is `shorter` and the ratio stays."""

    name: ClassVar[str] = "resize"
    size: Side | tuple[Side, Side] | None = None
    shorter: Side | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Resize:
        if (self.size is None) == (self.shorter is None):
            raise ValueError("give size or shorter")
        return self


class CenterCrop(OpBase):
    """The middle of the image, (height, width); an image smaller than that is one sample's error."""

    name: ClassVar[str] = "center_crop"
    size: Side | tuple[Side, Side]


class Flip(OpBase):
    """Left to right, for a share of the samples."""

    name: ClassVar[str] = "flip"
    probability: Annotated[float, Field(ge=0, le=1)] = 0.5


class Normalize(OpBase):
    """(pixel * scale - mean) / std per channel, then dtype and layout. Always the last op."""

    name: ClassVar[str] = "normalize"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.229, 0.224, 0.225)
    scale: PositiveFloat = 1 / 255
    dtype: Literal["float32", "float16"] = "float32"
    layout: Literal["HWC", "CHW"] = "CHW"


Op = RandomResizedCrop | Resize | CenterCrop | Flip | Normalize
OPS: dict[str, type[OpBase]] = {op.name: op for op in (RandomResizedCrop, Resize, CenterCrop, Flip, Normalize)}

RECIPES: dict[str, tuple[Op, ...]] = {
    "none": (),
    "imagenet_train": (RandomResizedCrop(size=224), Flip()),
    "imagenet_eval": (Resize(shorter=256), CenterCrop(size=224)),
}


def parse_op(value: Any) -> Any:
    """`flip`, or `{flip: {probability: 0.5}}`, as an op.

    Raises:
        ValueError: the name is not known, or the parameters do not validate.
    """
    if isinstance(value, OpBase):
        return value
    name: Any = None
    parameters: Any = {}
    if isinstance(value, str):
        name = value
    if isinstance(value, dict) and len(value) == 1:
        ((name, parameters),) = value.items()
    if not isinstance(name, str):
        raise ValueError("an op is its name, or a mapping of one name to its parameters")  # noqa: TRY004 - pydantic's
    if name not in OPS:
        near = difflib.get_close_matches(name, OPS, 1)
        advice = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(OPS)}"
        raise ValueError(f"unknown op '{name}'; {advice}")
    return OPS[name].model_validate(parameters or {})


class OpSpelling(BaseModel):
    """One op and its parameters, as editors complete it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1, "maxProperties": 1})
    random_resized_crop: RandomResizedCrop | None = None
    resize: Resize | None = None
    center_crop: CenterCrop | None = None
    flip: Flip | None = None
    normalize: Normalize | None = None


SpelledOp = Annotated[
    Op,
    BeforeValidator(
        parse_op,
        json_schema_input_type=OpSpelling | Literal["flip", "normalize"],
    ),
]
"""An op in a spec: `flip`, or `{flip: {probability: 0.5}}`."""


def sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of a size that may be one side."""
    return (size, size) if isinstance(size, int) else size


def output_bytes(ops: tuple[Op, ...]) -> int:
    """Bytes of one image after the ops; a guess of 256 x 256 where they leave the size open."""
    height = width = 256
    width_bytes = 1
    for op in ops:
        if isinstance(op, Normalize):
            width_bytes = 4 if op.dtype == "float32" else 2
        elif isinstance(op, Resize) and op.shorter is not None:
            height = width = op.shorter
        elif isinstance(op, (RandomResizedCrop, Resize, CenterCrop)) and op.size is not None:
            height, width = sides(op.size)
    return height * width * 3 * width_bytes


__all__ = [
    "OPS",
    "RECIPES",
    "CenterCrop",
    "Flip",
    "Normalize",
    "Op",
    "RandomResizedCrop",
    "Resize",
    "SpelledOp",
    "output_bytes",
    "parse_op",
    "sides",
]
