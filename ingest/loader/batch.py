"""A batch as the trainer receives it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.plan.lanes import LaneRows
from ingest.plan.schedule import Chunk


class Batch(dict[str, Any]):
    """A dict of output names to arrays, always with `sample_id` (int64), and `valid` (bool) where rows may be padded or
    replaced.

    NumPy arrays are read-only views of the object store: copy before writing in place. Torch tensors are the
    trainer's own; those on a GPU are in order with the stream that was current when the batch was taken.

    Attributes:
        epoch: the epoch it belongs to.
        after: the position in the epoch once this batch is taken by all ranks.
        ends_epoch: whether it is the epoch's last.
        runs: the runs of rows, lane by lane, that it delivers.
        lanes: of the epoch.
        fill: int64 (rows,), which of the runs' rows stands at each place; None when each stands once.
        valid_rows: rows that count; `valid` is False for the others.
        ids: int64 (rows,), the planned sample ids: those of `sample_id`, but for rows that were replaced.
        replaced: row: sample id, of rows that do not count since that sample is bad; a copy of another stands there.
        chunk: where rows are sorted by length, the chunk that it delivers some of.
        left: rows that come behind it in the chunk; each rank counts other lanes, and together they count all.
    """

    epoch: int
    after: int
    ends_epoch: bool
    valid_rows: int
    runs: LaneRows
    lanes: int
    fill: NDArray[np.int64] | None
    ids: NDArray[np.int64]
    chunk: Chunk | None
    left: int = 0
    replaced: Mapping[int, int] = MappingProxyType({})

    @property
    def positions(self) -> NDArray[np.int64]:
        """Int64 (rows,), each row's place in the epoch's sequence, whatever the world and the batch size."""
        return self.runs.positions(self.lanes, self.fill)

    @property
    def planned_rows(self) -> int:
        """Rows that the plan counts, those that were replaced included: they stand before those that only fill up."""
        return self.valid_rows + len(self.replaced)

    @classmethod
    def make(cls, arrays: dict[str, Any], **attributes: Any) -> Batch:
        """A batch of `arrays` with all of the attributes."""
        batch = cls(arrays)
        batch.__dict__.update(attributes)
        return batch
