"""Which ops of a list come before the first random one: what they make of an image is the same in every pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ingest.ops.base import OpBase, Random
from ingest.ops.colour import Autocontrast, Equalize, Grayscale, Invert, Posterize, Solarize
from ingest.ops.geometry import CenterCrop, Flip, Pad, Resize

STEADY: tuple[type[OpBase], ...] = (
    *(Resize, CenterCrop, Flip, Pad),
    *(Grayscale, Posterize, Solarize, Equalize, Autocontrast, Invert),
)
"""Ops that draw no random number of their own."""


class Stored(OpBase):
    """Stands for the leading ops of a list where their result is stored. No spec can name it.

    Attributes:
        draws: random numbers that these ops have columns for.
        shape: (height, width) that they leave; None where it depends on the image.
    """

    name: ClassVar[str] = "stored"
    draws: int
    shape: tuple[int, int] | None


def leading(ops: Sequence[OpBase]) -> tuple[OpBase, ...]:
    """The ops before the first one that is not the same in every pass."""
    for place, op in enumerate(ops):
        if not isinstance(op, STEADY) or (isinstance(op, Random) and op.probability < 1):
            return tuple(ops[:place])
    return tuple(ops)
