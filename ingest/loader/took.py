"""What each step took, where positions alone do not tell rows: packed for the coverage log."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_NONE = np.zeros(0, np.int64)


class Took(NamedTuple):
    """A step of a rank, where rows are sorted by length.

    Attributes:
        after: the position once it is taken by all ranks.
        chunk_end: of the chunk whose rows it takes; 0 where these are not sorted.
        left: see `Batch.left`.
        places: int64 (rows,), of the rows that count, in their order.
    """

    after: int
    chunk_end: int
    left: int
    places: NDArray[np.int64]

    @staticmethod
    def pack(steps: Sequence[Took]) -> str:
        """Steps in a few bytes: differences, their bytes by weight, deflated, as base64."""
        heads = np.array([[*step[:3], len(step.places)] for step in steps], np.int64).reshape(-1, 4)
        places = np.concatenate([_NONE, *(step.places for step in steps)])
        numbers = np.concatenate([[len(steps)], np.diff(heads, axis=0, prepend=0).ravel(), np.diff(places, prepend=0)])
        planes = np.ascontiguousarray(numbers, "<i8").view(np.uint8).reshape(-1, 8).T
        return base64.b64encode(zlib.compress(planes.tobytes())).decode()

    @classmethod
    def unpack(cls, packed: str) -> list[Took]:
        """The inverse of `pack`.

        Raises:
            ValueError: it is something else.
        """
        try:
            planes = np.frombuffer(zlib.decompress(base64.b64decode(packed, validate=True)), np.uint8)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        numbers = np.ascontiguousarray(planes.reshape(8, -1).T).view("<i8").ravel().astype(np.int64)
        steps, numbers = int(numbers[0]), numbers[1:]
        heads, places = np.cumsum(numbers[: 4 * steps].reshape(steps, 4), axis=0), np.cumsum(numbers[4 * steps :])
        each = np.split(places, np.cumsum(heads[:, 3])[:-1]) if steps else []
        return [cls(after, end, left, own) for (after, end, left, _), own in zip(heads.tolist(), each, strict=True)]
