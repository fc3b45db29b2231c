"""The operations a spec can ask for, as data: names, parameters, defaults. What they do lives in `augment`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Union, cast

from pydantic import BeforeValidator, ConfigDict, SerializeAsAny, create_model

from ingest.ops.base import OpBase, Random, parse, sides
from ingest.ops.colour import Autocontrast, ColorJitter, Equalize, Grayscale, Invert, Posterize, Solarize
from ingest.ops.finish import Cast, Normalize, Transpose
from ingest.ops.geometry import (
    Affine,
    CenterCrop,
    Erase,
    Flip,
    Pad,
    Perspective,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Rotate,
)
from ingest.ops.media import Clip, MelSpectrogram, Waveform
from ingest.ops.mix import Cutmix, Mix, Mixup
from ingest.ops.policy import AutoAugment, RandAugment, TrivialAugment
from ingest.ops.texture import GaussianBlur, GaussianNoise, JpegDistortion, Sharpness
from ingest.ops.user import Function, Numpy, User

Op = OpBase
_CLASSES: tuple[type[OpBase], ...] = (
    *(RandomResizedCrop, Resize, CenterCrop, RandomCrop, Flip, Rotate, Affine, Perspective, Pad, Erase),
    *(ColorJitter, Grayscale, Posterize, Solarize, Equalize, Autocontrast, Invert),
    *(Sharpness, GaussianBlur, GaussianNoise, JpegDistortion),
    *(TrivialAugment, RandAugment, AutoAugment),
    *(Function, Numpy),
    *(Waveform, MelSpectrogram, Clip),
    *(Normalize, Cast, Transpose),
    *(Mixup, Cutmix),
)
OPS: dict[str, type[OpBase]] = {op.name: op for op in _CLASSES}

RECIPES: dict[str, tuple[Any, ...]] = {  # as a spec would spell their ops
    "none": (),
    "imagenet_train": ({"random_resized_crop": {"size": 224}}, "flip"),
    "imagenet_eval": ({"resize": {"shorter": 256}}, {"center_crop": {"size": 224}}),
    "audio_waveform": ({"waveform": {"seconds": 2.0}},),
    "audio_mel": ({"waveform": {"seconds": 2.0}}, "mel_spectrogram"),
    "video_clip": ({"clip": {"frames": 16, "stride": 2}}, {"random_resized_crop": {"size": 112}}, "flip"),
}


def parse_op(value: Any) -> Op:
    """`flip`, or `{flip: {probability: 0.5}}`, as an op.

    Raises:
        ValueError: the name is not known, or the parameters do not validate.
    """
    return parse(OPS, value)


@cache
def recipe(name: str) -> tuple[Op, ...]:
    """The ops of a recipe. Made when asked for: most processes that load this module never look at one."""
    return tuple(map(parse_op, RECIPES[name]))


_spelling: Any = create_model(  # one op and its parameters, as editors complete it
    "OpSpelling",
    __config__=ConfigDict(extra="forbid", defer_build=True, json_schema_extra={"minProperties": 1, "maxProperties": 1}),
    **cast("dict[str, Any]", {name: (Union[op, None], None) for name, op in OPS.items()}),  # noqa: UP007 - types at run time
)

SpelledOp = Annotated[SerializeAsAny[OpBase], BeforeValidator(parse_op, json_schema_input_type=_spelling | str)]
"""An op in a spec: `flip`, or `{flip: {probability: 0.5}}`."""


def _one_of(kind: type[User]) -> Any:
    """A field that holds the parameters of one op, or the name of its function."""

    def parsed(value: Any) -> Any:
        inside = isinstance(value, dict) and list(value) == [kind.name]
        return value if value is None or isinstance(value, kind) else parse_op(value if inside else {kind.name: value})

    return BeforeValidator(parsed, json_schema_input_type=kind | str | None)


SpelledFunction = Annotated[Function | None, _one_of(Function)]
SpelledNumpy = Annotated[Numpy | None, _one_of(Numpy)]


def output_bytes(ops: tuple[Op, ...]) -> int:
    """Bytes of one image after the ops; a guess of 256 x 256 where they leave the size open."""
    if ops and isinstance(ops[0], Waveform):
        mel = next((op for op in ops if isinstance(op, MelSpectrogram)), None)
        return 4 * (ops[0].samples if mel is None else mel.bands * (1 + ops[0].samples // mel.hop))
    height = width = 256
    frames = ops[0].frames if ops and isinstance(ops[0], Clip) else 1
    width_bytes = 1
    for op in ops:
        if isinstance(op, (Normalize, Cast)):
            width_bytes = 4 if op.dtype == "float32" else 2
        elif isinstance(op, Resize) and op.size is None:
            height = width = op.shorter or op.longer or height
        else:
            size = getattr(op, "size", None)
            height, width = (height, width) if size is None else sides(size)
    return frames * height * width * 3 * width_bytes


__all__ = [
    "OPS",
    "RECIPES",
    "Affine",
    "AutoAugment",
    "Autocontrast",
    "Cast",
    "CenterCrop",
    "Clip",
    "ColorJitter",
    "Cutmix",
    "Equalize",
    "Erase",
    "Flip",
    "Function",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "Invert",
    "JpegDistortion",
    "MelSpectrogram",
    "Mix",
    "Mixup",
    "Normalize",
    "Numpy",
    "Op",
    "OpBase",
    "Pad",
    "Perspective",
    "Posterize",
    "RandAugment",
    "Random",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "Rotate",
    "Sharpness",
    "Solarize",
    "SpelledFunction",
    "SpelledNumpy",
    "SpelledOp",
    "Transpose",
    "TrivialAugment",
    "User",
    "Waveform",
    "output_bytes",
    "parse_op",
    "recipe",
    "sides",
]
