"""Published policies as steps: one of each kind that a policy may choose, of which each sample takes the chosen ones.

Magnitudes and tables are those of the papers as torchvision reads them: shears and moves from the upper left corner,
strengths of colours as a distance from 1 to either side. Two things differ: warps are bilinear, and equalize is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.augment.kinds import Rows, Shapes, Step, plan
from ingest.augment.warps import inverse_affine
from ingest.ops import AutoAugment, RandAugment, TrivialAugment

Strengths = NDArray[np.float64]


@dataclass(frozen=True)
class Space:
    """How strong each choice is at the top of the scale, 0 being no change (solarize: a threshold of 255 down to 0).

    Attributes:
        shear: of x by y.
        translate: pixels of (height, width), from shapes int64 (rows, 2).
        rotate: degrees.
        colour: distance of the factor from 1.
        posterize: bits taken away.
    """

    shear: float
    translate: Callable[[Shapes], NDArray[Any]]
    rotate: float
    colour: float
    posterize: float


WIDE = Space(0.99, lambda shapes: np.full(shapes.shape, 32.0), 135, 0.99, 6)  # Mueller and Hutter, table 1
USUAL = Space(0.3, lambda shapes: 150 / 331 * shapes, 30, 0.9, 4)  # Cubuk et al., of images of 331 pixels

CHOICES = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast"),
    *("sharpness", "posterize", "solarize", "autocontrast", "equalize"),
)
# (operation, probability, level of 0 to 9) twice, by sub-policy: Cubuk et al. 2018, table 9
IMAGENET = (
    (("posterize", 0.4, 8), ("rotate", 0.6, 9)),
    (("solarize", 0.6, 5), ("autocontrast", 0.6, 0)),
    (("equalize", 0.8, 0), ("equalize", 0.6, 0)),
    (("posterize", 0.6, 7), ("posterize", 0.6, 6)),
    (("equalize", 0.4, 0), ("solarize", 0.2, 4)),
    (("equalize", 0.4, 0), ("rotate", 0.8, 8)),
    (("solarize", 0.6, 3), ("equalize", 0.6, 0)),
    (("posterize", 0.8, 5), ("equalize", 1.0, 0)),
    (("rotate", 0.2, 3), ("solarize", 0.6, 8)),
    (("equalize", 0.6, 0), ("posterize", 0.4, 6)),
    (("rotate", 0.8, 8), ("color", 0.4, 0)),
    (("rotate", 0.4, 9), ("equalize", 0.6, 0)),
    (("equalize", 0.0, 0), ("equalize", 0.8, 0)),
    (("invert", 0.6, 0), ("equalize", 1.0, 0)),
    (("color", 0.6, 4), ("contrast", 1.0, 8)),
    (("rotate", 0.8, 8), ("color", 1.0, 2)),
    (("color", 0.8, 8), ("solarize", 0.8, 7)),
    (("sharpness", 0.4, 7), ("invert", 0.6, 0)),
    (("shear_x", 0.6, 5), ("equalize", 1.0, 0)),
    (("color", 0.4, 0), ("equalize", 0.6, 0)),
    (("equalize", 0.4, 0), ("solarize", 0.2, 4)),
    (("solarize", 0.6, 5), ("autocontrast", 0.6, 0)),
    (("invert", 0.6, 0), ("equalize", 1.0, 0)),
    (("color", 0.6, 4), ("contrast", 1.0, 8)),
    (("equalize", 0.8, 0), ("equalize", 0.6, 0)),
)
IMAGENET_BINS = 10


@plan(TrivialAugment, 3)
def _trivial(op: TrivialAugment, rows: Rows) -> list[Step]:
    u = rows.numbers
    strength = np.floor(u[:, 1] * op.bins) / (op.bins - 1)
    return choose(CHOICES, _index(u[:, 0], len(CHOICES)), strength, _sign(u[:, 2]), WIDE, rows.shapes, op.fill)


@plan(RandAugment, lambda op: 2 * op.ops)
def _rand(op: RandAugment, rows: Rows) -> list[Step]:
    strength = np.full(len(rows.shapes), op.magnitude / (op.bins - 1))
    found: list[Step] = []
    for i in range(op.ops):
        which, sign = rows.numbers[:, 2 * i], rows.numbers[:, 2 * i + 1]
        found += choose(CHOICES, _index(which, len(CHOICES)), strength, _sign(sign), USUAL, rows.shapes, op.fill)
    return found


@plan(AutoAugment, 5)
def _auto(op: AutoAugment, rows: Rows) -> list[Step]:
    u = rows.numbers
    which = _index(u[:, 0], len(IMAGENET))
    found: list[Step] = []
    for i in range(2):
        names = tuple(dict.fromkeys(pair[i][0] for pair in IMAGENET))
        table = np.array([(names.index(pair[i][0]), pair[i][1], pair[i][2]) for pair in IMAGENET])[which]
        index = np.where(u[:, 1 + 2 * i] < table[:, 1], table[:, 0], -1).astype(np.int64)
        strength = table[:, 2] / (IMAGENET_BINS - 1)
        found += choose(names, index, strength, _sign(u[:, 2 + 2 * i]), USUAL, rows.shapes, op.fill)
    return found


def choose(
    names: Sequence[str],
    index: NDArray[np.int64],
    strength: Strengths,
    sign: Strengths,
    space: Space,
    shapes: Shapes,
    fill: int,
) -> list[Step]:
    """One step for each kind behind `names`, taken by the rows whose `index` says so.

    Args:
        names: the choices.
        index: int64 (rows,), which of them; -1 for none.
        strength: float64 (rows,), 0 to 1 of the top of the scale.
        sign: float64 (rows,), -1 or 1.
        space: the scale.
        shapes: int64 (rows, 2).
        fill: of what warps bring in.
    """
    active: dict[str, NDArray[np.bool_]] = {}
    values: dict[str, NDArray[Any]] = {}
    for i, name in enumerate(names):
        if name == "identity":
            continue
        kind, made = _STEPS[name](strength, sign, space, shapes)
        mine = index == i
        if kind in values:
            made = np.where(mine[:, None], made, values[kind])
            active[kind] = active[kind] | mine
        else:
            active[kind] = mine
        values[kind] = made
    return [Step(kind, values[kind], active[kind], fill if kind == "warp" else None) for kind in values]


def _affine(shapes: Shapes, **changes: Strengths) -> NDArray[np.float64]:
    """A warp about the upper left corner, or about the middle if it turns."""
    zero = np.zeros(len(shapes))
    base = {"angle": zero, "down": zero, "right": zero, "scale": zero + 1, "shear_x": zero, "shear_y": zero, **changes}
    values = inverse_affine(shapes, **base)
    if "shear_x" in changes or "shear_y" in changes:  # moved so that the corner of the first pixel stays
        inverse = values.reshape(-1, 3, 3)
        inverse[:, :2, 2] = np.einsum("nij,j->ni", inverse[:, :2, :2], np.full(2, 0.5)) - 0.5
    return values


Made = tuple[str, NDArray[Any]]


def _blend(kind: str) -> Callable[[Strengths, Strengths, Space, Shapes], Made]:
    return lambda strength, sign, space, _: (kind, (1 + sign * strength * space.colour)[:, None])


def _plain(kind: str) -> Callable[[Strengths, Strengths, Space, Shapes], Made]:
    return lambda strength, _sign, _space, _shapes: (kind, np.zeros((len(strength), 1)))


_STEPS: Mapping[str, Callable[[Strengths, Strengths, Space, Shapes], Made]] = {
    "shear_x": lambda m, sign, space, shapes: ("warp", _affine(shapes, shear_x=sign * m * space.shear)),
    "shear_y": lambda m, sign, space, shapes: ("warp", _affine(shapes, shear_y=sign * m * space.shear)),
    "translate_x": lambda m, sign, space, shapes: (
        "warp",
        _affine(shapes, right=np.trunc(sign * m * space.translate(shapes)[:, 1])),
    ),
    "translate_y": lambda m, sign, space, shapes: (
        "warp",
        _affine(shapes, down=np.trunc(sign * m * space.translate(shapes)[:, 0])),
    ),
    "rotate": lambda m, sign, space, shapes: ("warp", _affine(shapes, angle=np.radians(sign * m * space.rotate))),
    "brightness": _blend("brightness"),
    "color": _blend("saturation"),
    "contrast": _blend("contrast"),
    "sharpness": _blend("sharpness"),
    "posterize": lambda m, _sign, space, _: ("posterize", (8 - np.rint(m * space.posterize))[:, None]),
    "solarize": lambda m, _sign, _space, _: ("solarize", (255 * (1 - m))[:, None]),
    "autocontrast": _plain("autocontrast"),
    "equalize": _plain("equalize"),
    "invert": _plain("invert"),
}


def _index(numbers: Strengths, count: int) -> NDArray[np.int64]:
    return np.floor(numbers * count).astype(np.int64)


def _sign(numbers: Strengths) -> Strengths:
    return np.where(numbers < 0.5, -1.0, 1.0)
