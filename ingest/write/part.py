"""One part of a conversion: rows in, one file out, and the file read back and compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest.errors import ReadError, SourceError
from ingest.manifest.columns import is_list
from ingest.manifest.records import scan
from ingest.read.example import Feature, parse
from ingest.read.feature import Kind
from ingest.spec import Storage
from ingest.storage.filesystem import open_filesystem
from ingest.write.example import encode

Target = Literal["parquet", "tfrecord"]
GROUP_BYTES = 16 << 20  # of a Parquet row group, uncompressed


def convert_part(
    read: Callable[..., pa.Table], args: tuple[Any, ...], url: str, target: Target, storage: Storage, *, compare: bool
) -> pa.Table:
    """Read some units, write them as one file, and compare what the file gives with what was written.

    Args:
        read: with `args` gives the rows.
        args: its arguments.
        url: the file.
        target: its format.
        storage: how to reach it.
        compare: read it back.

    Returns:
        One row: url, rows, bytes.

    Raises:
        SchemaError: a column has no place in the format.
        ReadError: the rows cannot be read, or the file does not give them back.
    """
    table = read(*args)
    data = encode(table).tobytes() if target == "tfrecord" else _parquet(table)
    filesystem = open_filesystem(url, storage)
    filesystem.write(url, data)
    if compare:
        info = filesystem.info(url)
        if info is None or info.size != len(data):
            have = "nothing" if info is None else f"{info.size} bytes"
            raise SourceError(f"{len(data)} bytes were written, and the store has {have}", path=url)
        stored = filesystem.read_ranges(url, [(0, len(data))])[0]
        again = _records(stored, table, url) if target == "tfrecord" else pq.read_table(pa.BufferReader(stored))
        _compare(table, again, url, target)
    return pa.table({"url": [url], "rows": [len(table)], "bytes": [len(data)]})


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    group_rows = max(1, min(len(table), len(table) * GROUP_BYTES // max(1, table.nbytes)))
    pq.write_table(table, sink, row_group_size=group_rows, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _records(stored: Any, table: pa.Table, url: str) -> pa.Table:
    """Every feature as a list, whatever the column was: an absent one is an empty list."""
    data = np.frombuffer(stored, np.uint8)
    frames = scan(data, check_payload=True)
    if frames.end != len(data) or len(frames.bad):
        raise ReadError("the file that was written is not whole TFRecord", path=url)
    features = [Feature(name, _kind(table.schema.field(name).type), (None,)) for name in table.column_names]
    return parse(data, frames.starts, frames.stops, features)


def _kind(kind: pa.DataType) -> Kind:
    while is_list(kind):
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_floating(kind):
        return "float"
    return "int64" if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else "bytes"


def _compare(table: pa.Table, again: pa.Table, url: str, target: Target) -> None:
    if len(again) != len(table):
        raise ReadError(f"{len(table)} rows were written, and {len(again)} are there", path=url)
    for name in table.column_names:
        wrote, found = table.column(name).combine_chunks(), again.column(name).combine_chunks()
        if target == "tfrecord":
            wrote = _as_lists(wrote).cast(found.type)
        if not wrote.equals(found) and not _same_floats(wrote, found):
            raise ReadError(f"column '{name}' does not come back as it was written", path=url)


def _as_lists(array: pa.Array) -> pa.Array:
    """A column as what its features hold: lists of one value, none for null; nested lists one after another."""
    offsets = np.arange(len(array) + 1, dtype=np.int64)
    if array.null_count:
        offsets = np.concatenate([[0], np.cumsum(array.is_valid().to_numpy(zero_copy_only=False))]).astype(np.int64)
        array = array.drop_null()
    while is_list(array.type):
        lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)[offsets]
        array = array.flatten()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    return pa.LargeListArray.from_arrays(pa.array(offsets), array)


def _same_floats(a: pa.Array, b: pa.Array) -> bool:
    """Arrow's equality tells a NaN from itself."""
    while is_list(a.type):
        if not pc.all(pc.equal(pc.list_value_length(a), pc.list_value_length(b)), min_count=0).as_py():
            return False
        a, b = a.flatten(), b.flatten()
    if not pa.types.is_floating(a.type) or len(a) != len(b) or not a.is_valid().equals(b.is_valid()):
        return False
    return np.array_equal(a.drop_null().to_numpy(), b.drop_null().to_numpy(), equal_nan=True)
