"""A read's rows in the order in which they are delivered, with their sample ids: a batch of them is a few slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.plan.reads import Arrangement
from ingest.read.finish import Rows

SAMPLE_ID = "sample_id"


class _Piece(Protocol):
    """Rows of one unit, of any format."""

    @property
    def rows(self) -> Rows: ...


def read_arranged(
    arrangement: Arrangement,
    kept: Sequence[NDArray[np.int64] | None],
    first_ids: Sequence[int],
    read: Callable[..., pa.Table],
    pieces: Sequence[_Piece],
    *args: Any,
) -> pa.Table:
    """The rows of several units, window after window, each column in one chunk, and `sample_id` (int64) beside them.

    Args:
        arrangement: the read's.
        kept: of each unit the rows of its plan that the read keeps, sorted; None for all.
        first_ids: the sample id of each unit's first row.
        read: gives the table of (pieces, *args), a format's `read_window`.
        pieces: the units, with the rows of each; None is not among them.
        *args: passed on.

    Raises:
        ReadError: as `read`.
    """
    table = read(pieces, *args)
    ids = np.concatenate([first + _rows(piece.rows) for first, piece in zip(first_ids, pieces, strict=True)])
    order = arrangement.table_rows(kept)
    arranged = table.combine_chunks().take(pa.array(order))
    return arranged.append_column(SAMPLE_ID, pa.array(ids[order]))


def _rows(rows: Rows) -> NDArray[np.int64]:
    """The rows, as numbers inside the unit."""
    if isinstance(rows, slice):
        return np.arange(rows.start or 0, rows.stop, dtype=np.int64)
    assert rows is not None
    return rows
