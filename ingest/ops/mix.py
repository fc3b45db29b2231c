"""Operations that mix the samples of a batch, and their labels; the last of a list."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from ingest.ops.base import Random


class Mix(Random):
    """Each sample with a partner of its own lane in the same batch, by a share drawn from Beta(alpha, alpha).

    Labels become float32 (rows, num_classes) that say how much of each class there is.
    """

    alpha: Annotated[float, Field(gt=0, le=100)] = 1.0
    label: str = Field("label", description="the output that holds classes (whole numbers), or a weight for each class")
    num_classes: PositiveInt


class Mixup(Mix):
    """The weighted mean of both images: Zhang et al. 2017."""

    name: ClassVar[str] = "mixup"
    alpha: Annotated[float, Field(gt=0, le=100)] = 0.2


class Cutmix(Mix):
    """A rectangle of the partner in the image, its share of the area being that of the label: Yun et al. 2019."""

    name: ClassVar[str] = "cutmix"
