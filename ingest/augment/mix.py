"""Mixing the samples of a batch: who with whom, how much, and the labels.

Partners are found among the rows of one group (a lane's share of the global batch), so that ranks that hold whole lanes
agree, however many they are. All numbers are keyed by the ids of both: neither the order of the rows nor other groups
can change a pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.augment.landing import Landing
from ingest.augment.steps import fixed_shape
from ingest.errors import ReadError, SpecError
from ingest.ops import Cutmix, Mix, Mixup, Op

DRAWS = 6  # the place in the ring, whether at all, two for the share, two for the place of the rectangle
NO_GROUP = -1  # of rows that only fill up: they are mixed with nobody


def mixes(ops: Sequence[Op]) -> tuple[Mix, ...]:
    """The mixing ops of a list.

    Raises:
        SpecError: images of different sizes would meet, or the ops disagree on the labels.
    """
    found = tuple(op for op in ops if isinstance(op, Mix))
    if found and fixed_shape(ops) is None:
        raise SpecError(
            f"augment.ops: {found[0].name} needs images of one size, and the ops before leave it open",
            hint="Put random_resized_crop, center_crop or resize with a size before it",
        )
    if len({(op.label, op.num_classes) for op in found}) > 1:
        raise SpecError("augment.ops: mixup and cutmix must have the same label and num_classes")
    return found


class Mixer:
    """Applies the mixing ops of a spec to finished batches."""

    def __init__(self, ops: Sequence[Op], image: str, landing: Landing, *, planar: bool) -> None:
        self._ops = mixes(ops)
        self._image, self._landing, self._planar = image, landing, planar

    def __bool__(self) -> bool:
        return bool(self._ops)

    @property
    def draws(self) -> int:
        """Random numbers of a sample."""
        return DRAWS * len(self._ops)

    def check(self, batch: dict[str, NDArray[Any]]) -> dict[int, str]:
        """Rows whose label is no class or whose weights are no numbers, and why.

        Raises:
            ReadError: there are no labels, or they are of a type that cannot be one.
        """
        if not self._ops:
            return {}
        op = self._ops[0]
        if op.label not in batch:
            raise ReadError(f"{op.name}: no column '{op.label}'; there are {', '.join(batch)}")
        labels = batch[op.label]
        if labels.dtype.kind in "iu" and labels.ndim == 1:
            bad = np.flatnonzero((labels < 0) | (labels >= op.num_classes))
            return {
                row: f"label {labels[row]} in column '{op.label}', and {op.name} has {op.num_classes} classes"
                for row in bad.tolist()
            }
        if labels.dtype.kind == "f" and labels.shape[1:] == (op.num_classes,):
            bad = np.flatnonzero(~_finite(labels))  # a partner would get them too
            return dict.fromkeys(bad.tolist(), f"weights in column '{op.label}' that are null or not finite")
        raise ReadError(
            f"{op.name}: column '{op.label}' is {labels.dtype} {labels.shape[1:]}, not whole numbers and not "
            f"{op.num_classes} weights"
        )

    def __call__(
        self,
        batch: dict[str, Any],
        sample_ids: NDArray[np.int64],
        groups: NDArray[np.int64],
        numbers: NDArray[np.float64],
    ) -> None:
        """Replaces images and labels of a batch.

        Args:
            batch: `check`ed.
            sample_ids: int64 (rows,).
            groups: int64 (rows,); partners are of one group; `NO_GROUP` is mixed with nobody.
            numbers: float64 (rows, draws) in [0, 1).
        """
        images, labels = batch[self._image], self._weights(batch[self._ops[0].label])
        for i, op in enumerate(self._ops):
            u = numbers[:, i * DRAWS : (i + 1) * DRAWS]
            partner = partners(sample_ids, groups, u[:, 0])
            both = (u[:, 1:] + u[partner, 1:]) % 1.0  # of the two ids together, and uniform again
            on = (partner != np.arange(len(partner))) & (both[:, 0] < op.probability)
            own = np.where(on, symmetric_beta(op.alpha, both[:, 1], both[:, 2]), 1.0)
            if isinstance(op, Mixup):
                images = self._landing.blend(images, partner, own)
            else:
                assert isinstance(op, Cutmix)
                images, own = self._cut(images, partner, own, both[:, 3:])
            own = own.astype(np.float32)[:, None]
            labels = own * labels + (1 - own) * labels[partner]
        batch[self._image], batch[self._ops[0].label] = images, labels

    def _weights(self, labels: NDArray[Any]) -> NDArray[np.float32]:
        if labels.ndim == 2:
            return np.where(_finite(labels)[:, None], labels, 0).astype(np.float32)
        classes = self._ops[0].num_classes
        fine = (labels >= 0) & (labels < classes)  # others have failed, and their rows do not count
        weights = np.zeros((len(labels), classes), np.float32)
        weights[np.flatnonzero(fine), labels[fine]] = 1
        return weights

    def _cut(
        self, images: Any, partner: NDArray[np.int64], own: NDArray[np.float64], place: NDArray[np.float64]
    ) -> tuple[Any, NDArray[np.float64]]:
        """Images with a rectangle of their partner's, and the share of each image that is its own."""
        size = np.array(images.shape[2:] if self._planar else images.shape[1:3])
        side = np.sqrt(1 - own)[:, None] * size
        centre = place * size
        low = np.rint(np.clip(centre - side / 2, 0, size)).astype(np.int64)
        high = np.rint(np.clip(centre + side / 2, 0, size)).astype(np.int64)
        cut = self._landing.paste(images, partner, np.concatenate([low, high], 1), planar=self._planar)
        return cut, 1 - (high - low).prod(1) / size.prod()


def _finite(weights: NDArray[Any]) -> NDArray[np.bool_]:
    """Bool (rows,): whose weights all are numbers that float32 has."""
    finite: NDArray[np.bool_] = (np.abs(weights) <= np.finfo(np.float32).max).all(1)
    return finite


def partners(
    sample_ids: NDArray[np.int64], groups: NDArray[np.int64], numbers: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Int64 (rows,): for each row the next one of its group, in a ring that the ids alone order; itself when alone."""
    order = np.lexsort((sample_ids, numbers, groups))
    partner = np.arange(len(order))
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    for ring in np.split(order, cuts):
        if len(ring) and groups[ring[0]] != NO_GROUP:
            partner[ring] = np.roll(ring, -1)
    return partner


def symmetric_beta(alpha: float, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Beta(alpha, alpha) from two uniform numbers each: by Student's t (Bailey 1994; Devroye 1996)."""
    cos = np.cos(2 * np.pi * second)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        square = np.expm1(-np.log1p(-first) / alpha) * cos**2  # t^2 / (2 alpha), from 1 - first, which is not 0
        share = np.sqrt(np.where(np.isinf(square), 1.0, square / (1 + square)))
    return (1 + np.sign(cos) * share) / 2
