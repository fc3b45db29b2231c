"""A batch as the trainer receives it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Batch(dict[str, Any]):
    """A dict of output names to arrays, always with `sample_id` (int64), and `valid` (bool) where rows may be padded.

    NumPy arrays are read-only views of the object store: copy before writing in place. Torch tensors are the
    trainer's own.

    Attributes:
        epoch: the epoch it belongs to.
        after: the position in the epoch once this batch is taken by all ranks.
        ends_epoch: whether it is the epoch's last.
        positions: int64 (rows,), each row's place in the epoch's sequence, whatever the world and the batch size.
        valid_rows: rows that count; `valid` is False for the others.
    """

    epoch: int
    after: int
    ends_epoch: bool
    positions: NDArray[np.int64]
    valid_rows: int

    @classmethod
    def make(
        cls,
        arrays: dict[str, Any],
        *,
        epoch: int,
        after: int,
        ends_epoch: bool,
        positions: NDArray[np.int64],
        valid_rows: int,
    ) -> Batch:
        batch = cls(arrays)
        batch.epoch, batch.after, batch.ends_epoch = epoch, after, ends_epoch
        batch.positions, batch.valid_rows = positions, valid_rows
        return batch
