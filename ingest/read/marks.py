"""Rows that cannot be read, as rows: a unit whose content is damaged gives nulls, each marked with what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ingest.errors import DamagedError
from ingest.read.mark import MARK
from ingest.read.parquet import Piece, read_window
from ingest.spec import Storage


def read_marked(
    pieces: Sequence[Piece],
    schema: pa.Schema,
    columns: Mapping[str, str],
    storage: Storage,
    fill: Mapping[str, Any],
    classes: Mapping[str, Sequence[str]],
) -> pa.Table:
    """As `read_window`; but what is damaged, and still is when it is read once more, is marked instead of raised.

    Returns:
        A table of `schema`, with the column `MARK` behind it where any row is marked.

    Raises:
        ReadError: what could not be read for another reason than its content.
    """
    tables = [_read(piece, schema, columns, storage, fill, classes) for piece in pieces]
    if any(MARK in table.column_names for table in tables):
        tables = [table if MARK in table.column_names else marked(table, None) for table in tables]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def marked(table: pa.Table, text: str | None) -> pa.Table:
    """The table with every row marked as bad, or (None) as healthy."""
    values = pa.nulls(len(table), pa.string()) if text is None else pa.repeat(pa.scalar(text), len(table))
    return table.append_column(MARK, values)


def _read(
    piece: Piece,
    schema: pa.Schema,
    columns: Mapping[str, str],
    storage: Storage,
    fill: Mapping[str, Any],
    classes: Mapping[str, Sequence[str]],
) -> pa.Table:
    for last in (False, True):
        try:
            return read_window([piece], schema, columns, storage, fill, classes)
        except DamagedError as error:
            if last:  # a fresh read gave the same
                count = _count(piece)
                nulls = pa.Table.from_arrays([pa.nulls(count, field.type) for field in schema], schema=schema)
                return marked(nulls, error.message)
    raise AssertionError


def _count(piece: Piece) -> int:
    rows = piece.rows
    assert rows is not None
    return len(range(rows.start or 0, rows.stop)) if isinstance(rows, slice) else int(np.size(rows))
