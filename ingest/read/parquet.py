"""A Parquet row group, or a window of them, as an Arrow table of the wanted columns, its chunks never combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ingest.errors import DamagedError, ReadError, SourceError
from ingest.manifest.model import FileEntry
from ingest.manifest.parquet import Footer, column_chunks, wanted_leaves
from ingest.read.blobs import is_blob, read_blobs
from ingest.read.finish import Rows, Where, finish
from ingest.read.sources import Chunks, cached_footer, chunk_range, open_chunks
from ingest.read.times import check_times
from ingest.spec import Storage
from ingest.storage.filesystem import FileSystem, open_filesystem

STREAM_BYTES = 256 << 20
# Units of a remote window that are read at a time: of small files more, whose requests take longer than their bytes.
READ_AHEAD, MOST_AHEAD, AHEAD_BYTES = 3, 16, 4 << 20
_RUN_ROWS, _RUN_ROW_BYTES = 8, 1 << 10  # shorter runs or smaller rows are sooner copied than handled one by one
_NO_CLASSES: Mapping[str, Sequence[str]] = MappingProxyType({})
_BATCH_BYTES = 16 << 20  # of a unit that is streamed
_STREAM_BUFFER_BYTES = 1 << 20  # of each of its columns


class Piece(NamedTuple):
    """Rows of one unit.

    Attributes:
        entry: the file.
        ordinal: the row group.
        rows: sorted int64 (n,) indices inside the unit; or a slice of step 1, which copies nothing: for a whole unit
            slice(0, its rows in the manifest), so that a unit cut by `limit` stays cut; None takes what is there.
        unit_rows: rows that the unit had when it was listed, of which a filter may have counted some; None: not known.
    """

    entry: FileEntry
    ordinal: int
    rows: Rows
    unit_rows: int | None = None


def read_window(
    pieces: Sequence[Piece],
    schema: pa.Schema,
    columns: Mapping[str, str],
    storage: Storage,
    fill: Mapping[str, Any],
    classes: Mapping[str, Sequence[str]] = _NO_CLASSES,
    *,
    stream_bytes: int = STREAM_BYTES,
) -> pa.Table:
    """The rows of several units one after another; the chunks stay as they were read.

    Raises:
        ReadError: as `read_unit`.
    """

    def one(piece: Piece) -> pa.Table:
        entry, ordinal, rows, unit_rows = piece
        how = (schema, columns, storage, fill, classes)
        return read_unit(entry, ordinal, rows, *how, stream_bytes=stream_bytes, unit_rows=unit_rows)

    if len(pieces) > 1 and open_filesystem(pieces[0].entry.url, storage).remote:
        # While one unit is decoded, the next ones come over the network.
        with ThreadPoolExecutor(_ahead(pieces)) as pool:
            tables = list(pool.map(one, pieces))
    else:
        tables = [one(piece) for piece in pieces]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _ahead(pieces: Sequence[Piece]) -> int:
    """How many units are read at a time."""
    fitting = AHEAD_BYTES * len(pieces) // max(1, sum(piece.entry.size for piece in pieces))
    return min(len(pieces), max(READ_AHEAD, min(MOST_AHEAD, fitting)))


def read_unit(
    entry: FileEntry,
    ordinal: int,
    rows: Rows,
    schema: pa.Schema,
    columns: Mapping[str, str],
    storage: Storage,
    fill: Mapping[str, Any] | None,
    classes: Mapping[str, Sequence[str]] = _NO_CLASSES,
    *,
    stream_bytes: int = STREAM_BYTES,
    unit_rows: int | None = None,
) -> pa.Table:
    """One row group of a file.

    Args:
        entry: the file, as the manifest has it.
        ordinal: the row group inside it.
        rows: see `Piece`.
        schema: of the result, as the manifest has it: output names and types.
        columns: output name: source column.
        storage: how to reach the store.
        fill: output name: the value that stands for a null; None leaves every null where it is.
        classes: output name: the strings that its numbers stand for, in order.
        stream_bytes: a unit with more uncompressed bytes is read in pieces, and only the asked rows are held.
        unit_rows: see `Piece`.

    Returns:
        A table of `schema`. Nulls that are not filled stay where the type has room for them (floats, strings, bytes,
        nested); in integers and booleans they are an error.

    Raises:
        DamagedError: the file is damaged.
        ReadError: it is not what the manifest says, or holds a null that cannot be given.
    """
    filesystem = open_filesystem(entry.url, storage)
    try:
        footer = cached_footer(entry, filesystem)
        _check_rows(entry, footer, ordinal, rows, unit_rows)
        table, places = _read_group(entry, filesystem, footer, ordinal, rows, list(columns.values()), stream_bytes)
    except SourceError as error:
        raise ReadError(error.message, path=error.path or entry.url, hint=error.hint) from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        # Arrow's own errors of format carry no number of the system's: those that do are failures of access.
        kind = ReadError if getattr(error, "errno", None) else DamagedError
        raise kind(f"row group {ordinal} cannot be read, the file is damaged: {error}", path=entry.url) from error
    return finish(table, places, Where(entry, footer, ordinal, rows), schema, columns, fill, classes)


def _check_rows(entry: FileEntry, footer: Footer, ordinal: int, rows: Rows, unit_rows: int | None) -> None:
    """Refuse a row group that does not have the rows asked for, or not as many as were listed."""
    groups = footer.metadata.num_row_groups
    if ordinal >= groups:
        raise _changed(entry, f"row group {ordinal} was listed, and the file has {groups}")
    count = int(footer.metadata.row_group(ordinal).num_rows)
    if unit_rows is not None and unit_rows != count:
        raise _changed(entry, f"row group {ordinal} had {unit_rows} rows then, and has {count} now")
    last = 0
    if isinstance(rows, slice):
        last = rows.stop or 0
    elif rows is not None and len(rows):
        last = int(rows[-1]) + 1
    if last > count:
        raise _changed(entry, f"row {last - 1} of row group {ordinal} was asked for, and it has {count} rows")


def _changed(entry: FileEntry, what: str) -> ReadError:
    return ReadError(f"the file has changed since it was listed: {what}", path=entry.url, hint="Start the run again")


def _read_group(
    entry: FileEntry,
    filesystem: FileSystem,
    footer: Footer,
    ordinal: int,
    rows: Rows,
    sources: Sequence[str],
    stream_bytes: int,
) -> tuple[pa.Table, dict[int, int]]:
    """(`rows` of the wanted leaves of a row group, which leaves are columns of their own at which place).

    The table holds the file's own top-level columns, pruned, in file order; then the leaves that were decoded apart.
    """
    group = footer.metadata.row_group(ordinal)
    leaves = wanted_leaves(footer, sources)
    if not leaves:  # partition columns and absent ones only; one column of nulls keeps the count
        return _take(pa.table({"": pa.nulls(group.num_rows)}), rows), {}
    chunks = dict(zip(leaves, column_chunks(footer, [ordinal], leaves, entry.size)[0], strict=True))
    memory_bytes = sum(chunk.total_uncompressed_size for chunk in chunks.values())
    whole = memory_bytes <= stream_bytes
    source = open_chunks(entry, filesystem, [chunk_range(chunk) for chunk in chunks.values()], whole=whole)
    try:
        times = [leaf for leaf in leaves if chunks[leaf].physical_type == "INT96"]
        if times:
            coarse, fine = (
                _open(source, footer, 0, unit).reader.read_row_group(ordinal, column_indices=times, use_threads=False)
                for unit in ("ms", "ns")
            )
            check_times(coarse, fine, entry, ordinal)
        if whole:
            blobs = _blob_leaves(footer, chunks, sources)
            table, places = _read_whole(source, footer, ordinal, chunks, blobs)
            return _take(table, rows), places
        file = _open(source, footer, _STREAM_BUFFER_BYTES)
        batch_rows = max(1, min(group.num_rows, group.num_rows * _BATCH_BYTES // memory_bytes))
        return _stream(file, ordinal, leaves, group.num_rows, batch_rows, rows), {}
    finally:
        source.close()


def _read_whole(
    source: Chunks, footer: Footer, ordinal: int, chunks: Mapping[int, Any], blobs: Mapping[int, pa.DataType]
) -> tuple[pa.Table, dict[int, int]]:
    """What `_read_group` gives, all rows of it: the leaves in `blobs` by our own decoder, the rest by pyarrow's."""
    leaf_of = footer.metadata.schema.column
    arrays = {
        leaf: read_blobs(source, chunk_range(chunks[leaf]), chunks[leaf], leaf_of(leaf), kind)
        for leaf, kind in blobs.items()
    }
    rest = [leaf for leaf in chunks if leaf not in blobs]
    table = None
    if rest:
        # ParquetFile finds columns by dotted name, which a literal dot makes ambiguous; its reader takes numbers.
        table = _open(source, footer, 0).reader.read_row_group(ordinal, column_indices=rest, use_threads=False)
    places = {}
    for leaf, array in arrays.items():
        places[leaf] = 0 if table is None else table.num_columns
        name = str(leaf)
        table = pa.table({name: array}) if table is None else table.append_column(name, array)
    promised = footer.metadata.row_group(ordinal).num_rows
    if table is None or len(table) != promised:
        raise pa.ArrowInvalid(f"{0 if table is None else len(table)} rows came where the footer promises {promised}")
    return table, places


def _open(source: Chunks, footer: Footer, buffer_bytes: int, time_unit: str = "us") -> Any:
    return pq.ParquetFile(
        source.arrow_file(),
        metadata=footer.metadata,
        pre_buffer=False,
        buffer_size=buffer_bytes,
        coerce_int96_timestamp_unit=time_unit if footer.has_int96 else None,
        page_checksum_verification=True,
    )


def _blob_leaves(footer: Footer, chunks: Mapping[int, Any], sources: Sequence[str]) -> dict[int, pa.DataType]:
    """The leaves to decode apart: large values, asked for by themselves and not as a part of a struct."""
    columns = [column for column in map(footer.columns.find, sources) if column is not None]
    shared = {leaf for column in columns if len(column.leaves) > 1 for leaf in column.leaves}
    return {
        leaf: column.type
        for column in columns
        for leaf in column.leaves
        if leaf not in shared and is_blob(chunks[leaf], footer.metadata.schema.column(leaf), column.type)
    }


def _take(table: pa.Table, rows: Rows) -> pa.Table:
    if rows is None:
        return table
    if isinstance(rows, slice):
        start, stop, _ = rows.indices(len(table))
        return table if (start, stop) == (0, len(table)) else table.slice(start, stop - start)
    # A split or a filter that leaves out few rows leaves long runs of the others, which need not be copied.
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    if len(rows) >= _RUN_ROWS * (len(cuts) + 1) and table.nbytes >= _RUN_ROW_BYTES * len(table):
        runs = zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True)
        return pa.concat_tables([table.slice(int(rows[a]), b - a) for a, b in runs])
    return table.take(pa.array(rows))


def _stream(file: Any, ordinal: int, leaves: list[int], group_rows: int, batch_rows: int, rows: Rows) -> pa.Table:
    """Read a large row group a few MiB at a time, holding only the rows asked for."""
    kept = []
    start = 0
    for batch in file.reader.iter_batches(batch_rows, [ordinal], column_indices=leaves, use_threads=False):
        end = start + batch.num_rows
        kept.append(_cut(batch, start, rows))
        start = end
    if start != group_rows:
        raise pa.ArrowInvalid(f"{start} rows came where the footer promises {group_rows}")
    return pa.Table.from_batches([batch for batch in kept if batch.num_rows] or kept[:1])


def _cut(batch: Any, first: int, rows: Rows) -> Any:
    """The asked rows of a batch that begins at row `first` of its unit."""
    if rows is None:
        return batch
    if isinstance(rows, slice):
        start, stop, _ = rows.indices(first + batch.num_rows)
        begin = min(max(start - first, 0), batch.num_rows)
        return batch.slice(begin, max(0, stop - first - begin))
    low, high = np.searchsorted(rows, [first, first + batch.num_rows])
    return batch.take(pa.array(rows[low:high] - first))
