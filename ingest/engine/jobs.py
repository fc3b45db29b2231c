"""What the feeder hands on for each step: which rows of which blocks make the batch, and who they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class Gather:
    """Rows of a batch that come from one read.

    Attributes:
        first_block, blocks: which of the job's blocks, in order, make the read's table.
        rows: int64 (n,), rows of that table.
    """

    first_block: int
    blocks: int
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """One batch of one rank, before augmentation.

    Attributes:
        epoch: the epoch; also the pass that keys random numbers.
        gathers: where the rows lie, in batch order.
        sample_ids: int64 (rows,).
    """

    epoch: int
    gathers: tuple[Gather, ...]
    sample_ids: NDArray[np.int64]

    def pieces(self, blocks: Sequence[pa.Table]) -> list[tuple[pa.Table, NDArray[np.int64]]]:
        """The rows as (table, rows of it), zero copy."""
        pieces = []
        for gather in self.gathers:
            parts = blocks[gather.first_block : gather.first_block + gather.blocks]
            pieces.append((parts[0] if len(parts) == 1 else pa.concat_tables(parts), gather.rows))
        return pieces


@dataclass(frozen=True)
class BatchInfo:
    """What travels beside a batch.

    Attributes:
        epoch, step: of the schedule it belongs to; `step` counts from the schedule's start.
        after: the position in the epoch once this step is taken by all ranks.
        ends_epoch: whether it is the epoch's last.
        sample_ids: int64 (rows,).
        positions: int64 (rows,), each row's place in the epoch.
        valid_rows: rows that count; later ones repeat a row.
        read_wait_s: duration, how long the feeder waited for blocks of this batch.
    """

    epoch: int
    step: int
    after: int
    ends_epoch: bool
    sample_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    valid_rows: int
    read_wait_s: float = 0.0
