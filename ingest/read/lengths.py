"""The lengths that batches are sorted by, out of a column of lists or of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from ingest.errors import SchemaError
from ingest.manifest.model import Manifest
from ingest.read.windows import ReadOptions, window_call

SAMPLE_UNITS = 16
MIXED_ROWS = 32_768  # drawn for a mixture


def check_column(schema: pa.Schema, column: str) -> None:
    """Refuse a column that has no lengths.

    Raises:
        SchemaError: there is no such output, or it is neither lists nor integers.
    """
    if column not in schema.names:
        raise SchemaError(
            f"batch.bucket_by.column: '{column}' is not an output; there are {', '.join(schema.names)}",
            hint="Name it in source.columns",
        )
    kind = schema.field(column).type
    if not (_is_list(kind) or pt.is_integer(kind)):
        raise SchemaError(
            f"batch.bucket_by.column: '{column}' is {kind}, and lengths are those of lists, or integers",
            hint="Store each row's length in a column of its own",
        )


def lengths_of(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Int64 (rows,): of lists, how many values each has; of integers, themselves. A null, or less than none, is 0."""
    values = pc.list_value_length(column) if _is_list(column.type) else column
    found: NDArray[np.int64] = pc.fill_null(values, 0).cast(pa.int64()).to_numpy()
    return np.maximum(found, 0)


def sample_lengths(manifest: Manifest, column: str, options: ReadOptions) -> NDArray[np.int64]:
    """Int64 (rows,): the lengths of some units that lie evenly in the data, or of all where there are few.

    Nothing but that column is read. The same data gives the same lengths.

    Raises:
        SchemaError: the column has no lengths.
        ReadError: a unit cannot be read.
    """
    check_column(manifest.schema, column)
    units = len(manifest.units)
    count = min(units, SAMPLE_UNITS)
    chosen = [(2 * each + 1) * units // (2 * count) for each in range(count)]
    source = manifest.columns[column]
    alone = replace(
        manifest,
        schema=pa.schema([manifest.schema.field(column)]),
        columns={column: source},
        features={name: kind for name, kind in manifest.features.items() if name == source},
    )
    function, args = window_call(alone, dict.fromkeys(chosen), options)
    return lengths_of(function(*args).column(column))


def mixed_lengths(lengths: Sequence[NDArray[np.int64]], weights: Sequence[float]) -> NDArray[np.int64]:
    """Int64 (rows,): lengths that stand for a mixture, drawn from those of each source by weight; always the same."""
    draw, total = np.random.default_rng(0), sum(weights)
    found = [np.zeros(0, np.int64)]
    for one, weight in zip(lengths, weights, strict=True):
        if len(one):
            found.append(draw.choice(one, round(MIXED_ROWS * weight / total)))
    return np.concatenate(found)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))
