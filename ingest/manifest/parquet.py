"""Parquet footers: what each file holds, as rows of an Arrow table that workers send to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ingest.errors import SourceError
from ingest.manifest import arrow
from ingest.manifest.columns import Columns
from ingest.manifest.indexing import over_files
from ingest.manifest.model import FileEntry
from ingest.manifest.thrift import struct
from ingest.spec import Storage
from ingest.storage.filesystem import FileSystem, open_filesystem

INDEX_SCHEMA = pa.schema(
    [
        ("url", pa.string()),
        ("error", pa.string()),  # why the file cannot be read; the other values are empty then
        ("schema", pa.dictionary(pa.int32(), pa.binary())),  # the file's Arrow schema, serialised
        ("rows", pa.list_(pa.int64())),  # of each row group
        ("bytes", pa.list_(pa.int64())),  # of its wanted columns, as encoded in the file
        ("memory_bytes", pa.list_(pa.int64())),  # of the same once decoded
    ]
)
"""One row for each file."""

TAIL_BYTES = 64 << 10  # one request fetches most footers whole
# Fields of parquet.thrift: FileMetaData.row_groups, RowGroup.columns, ColumnChunk.meta_data, ColumnMetaData.statistics,
# and of those max, min, max_value, min_value.
_ROW_GROUPS, _CHUNKS, _CHUNK, _STATISTICS, _BOUNDS = 4, 1, 3, 12, (1, 2, 5, 6)
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}


@dataclass(frozen=True)
class Footer:
    """A file's metadata and its Arrow schema (INT96 as microseconds, so that years beyond 2262 fit).

    Attributes:
        raw: the metadata as the file has it, in Thrift.
    """

    metadata: Any
    columns: Columns
    has_int96: bool
    raw: bytes

    @property
    def schema(self) -> pa.Schema:
        return self.columns.schema

    @cached_property
    def bounds_bytes(self) -> list[list[set[int]]]:
        """For each row group and Parquet column, how many bytes its least and greatest value have in the statistics.

        pyarrow decodes them when it is asked for statistics, and ends the process where they are too short.

        Raises:
            ValueError, IndexError, KeyError, AttributeError, TypeError: the footer is damaged.
        """
        groups = struct(self.raw)[0][_ROW_GROUPS]
        statistics = ([chunk[_CHUNK].get(_STATISTICS, {}) for chunk in group[_CHUNKS]] for group in groups)
        return [[{len(one[i]) for i in _BOUNDS if i in one} for one in each] for each in statistics]


def index_files(files: Sequence[FileEntry], columns: Mapping[str, str] | None, storage: Storage) -> pa.Table:
    """Read the footers of some files; a file that cannot be read is a row with `error`, never an exception.

    Args:
        files: as listed, on one store.
        columns: output name: source column; all columns when None.
        storage: how to reach the store.

    Returns:
        A table of `INDEX_SCHEMA`, one row for each file, in order.
    """
    if not files:
        return INDEX_SCHEMA.empty_table()
    wanted = None if columns is None else tuple(columns.values())
    filesystem = open_filesystem(files[0].url, storage)

    def last(entry: FileEntry) -> memoryview | SourceError:
        try:
            return _last(entry, filesystem)
        except SourceError as error:
            return error

    def one(entry: FileEntry, tail: memoryview | SourceError) -> dict[str, Any]:
        try:
            if isinstance(tail, SourceError):
                raise tail
            return _index_row(entry, _footer(entry, filesystem, tail), wanted)
        except SourceError as error:
            text = error.message + (f". {error.hint}" if error.hint else "")
            return {"url": entry.url, "error": text, "schema": None, "rows": [], "bytes": [], "memory_bytes": []}

    plain = pa.schema([f.with_type(pa.binary()) if f.name == "schema" else f for f in INDEX_SCHEMA])
    # Threads wait for the store and this one parses: more would only pass Python's lock to and fro (a third more CPU).
    tails = over_files(files, last, storage)
    rows = [one(entry, tail) for entry, tail in zip(files, tails, strict=True)]
    return arrow.table(rows, plain).cast(INDEX_SCHEMA)


def read_footer(entry: FileEntry, filesystem: FileSystem) -> Footer:
    """A file's footer, by one range request, or two where it is larger than 64 KiB.

    Raises:
        SourceError: the file is missing, truncated, encrypted, or not Parquet.
    """
    return _footer(entry, filesystem, _last(entry, filesystem))


def _last(entry: FileEntry, filesystem: FileSystem) -> memoryview:
    """The file's last bytes."""
    if entry.size < 12:
        raise SourceError(f"not a Parquet file: it has {entry.size} bytes", path=entry.url)
    return _tail(entry, filesystem, TAIL_BYTES)


def _footer(entry: FileEntry, filesystem: FileSystem, tail: memoryview) -> Footer:
    _check_magic(entry, bytes(tail[-4:]), filesystem)
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    if footer_bytes + 4 > entry.size:
        raise SourceError(
            f"the Parquet file is truncated or damaged: its footer should have {footer_bytes} bytes, "
            f"the file has {entry.size}",
            path=entry.url,
        )
    if footer_bytes > len(tail):
        tail = _tail(entry, filesystem, footer_bytes)
    try:
        return parse_footer(tail)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise _broken(error, entry) from error


def _broken(error: Exception, entry: FileEntry) -> SourceError:
    """What a footer is that pyarrow cannot parse; it may be encrypted as a whole, or some columns of it."""
    text = str(error)
    if "encrypt" in text.lower() or "decrypt" in text.lower():
        return SourceError(
            "the Parquet file is encrypted, which is not supported",
            path=entry.url,
            hint="Where some of its columns are not, name those in source.columns",
        )
    return SourceError(f"the Parquet footer is damaged: {text}", path=entry.url)


def parse_footer(tail: bytes | memoryview) -> Footer:
    """The footer at the end of a file's last bytes, all of which are there.

    Raises:
        OSError, ArrowException, UnicodeDecodeError: it is damaged.
    """
    metadata = pq.read_metadata(pa.BufferReader(pa.py_buffer(tail)))
    raw = bytes(tail[-8 - int.from_bytes(tail[-8:-4], "little") : -8])
    schema = metadata.schema
    has_int96 = any(schema.column(i).physical_type == "INT96" for i in range(len(schema)))
    if has_int96:
        empty = pa.BufferReader(b"")
        schema_arrow = pq.ParquetFile(empty, metadata=metadata, coerce_int96_timestamp_unit="us").schema_arrow
    else:
        schema_arrow = schema.to_arrow_schema()
    return Footer(metadata, Columns(schema_arrow.remove_metadata()), has_int96, raw)


def _tail(entry: FileEntry, filesystem: FileSystem, count: int) -> memoryview:
    start = max(0, entry.size - count)
    return memoryview(filesystem.read_ranges(entry.url, [(start, entry.size)], entry.etag)[0])


def _check_magic(entry: FileEntry, magic: bytes, filesystem: FileSystem) -> None:
    if magic == b"PAR1":
        return
    if magic == b"PARE":
        raise SourceError("the Parquet file is encrypted, which is not supported", path=entry.url)
    head = bytes(filesystem.read_ranges(entry.url, [(0, 4)], entry.etag)[0])
    if head in (b"PAR1", b"PARE"):
        raise SourceError(
            "the Parquet file is truncated: it begins as one and does not end as one",
            path=entry.url,
            hint="Write or copy it again",
        )
    raise SourceError(f"not a Parquet file: it begins with {head!r}", path=entry.url)


_REACHED = "File too short"  # what pyarrow says when a file gives fewer bytes than were asked for


class _NoData:
    """A file that ends before its first byte. (An exception raised in `read` would be kept by pyarrow for ever, and
    with it the frames of all its callers.)
    """

    closed = False

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def readable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, _: int) -> bytes:
        return b""

    def close(self) -> None:
        """Nothing is open."""


def column_chunks(footer: Footer, ordinals: Sequence[int], leaves: Sequence[int], size: int) -> list[list[Any]]:
    """The metadata of some column chunks, checked: for each row group, one for each leaf.

    pyarrow parses a chunk's metadata when it is asked for it, and where that is damaged (a type that is not its
    column's, a histogram of another length) an exception leaves C++ and ends the process. Its reader parses the same
    and says so; it is asked first, with a file in which there is nothing to read.

    Args:
        footer: of the file.
        ordinals: row groups.
        leaves: Parquet columns.
        size: of the file, in bytes.

    Raises:
        OSError, ArrowException: the metadata is damaged.
    """
    metadata = footer.metadata
    # To plan what to fetch (`pre_buffer`) the reader parses all chunks before it reads the first.
    reader = pq.ParquetFile(pa.PythonFile(_NoData(size), mode="r"), metadata=metadata, pre_buffer=True).reader
    if ordinals and leaves:
        try:
            reader.read_row_groups(list(ordinals), column_indices=list(leaves), use_threads=False)
        except OSError as error:
            if _REACHED not in str(error):
                raise
    groups = [metadata.row_group(ordinal) for ordinal in ordinals]
    found = [[group.column(leaf) for leaf in leaves] for group in groups]
    # What the reader does not look at, and `statistics` would end the process for.
    types = [metadata.schema.column(leaf).physical_type for leaf in leaves]
    for chunks in found:
        for chunk, kind in zip(chunks, types, strict=True):
            if chunk.physical_type != kind:
                raise pa.ArrowInvalid(
                    f"column '{chunk.path_in_schema}' is {kind} in the schema and {chunk.physical_type} in a row group"
                )
    return found


def _index_row(entry: FileEntry, footer: Footer, wanted: Sequence[str] | None) -> dict[str, Any]:
    metadata, leaves = footer.metadata, wanted_leaves(footer, wanted)
    rows, encoded, decoded = [], [], []
    ordinals = range(metadata.num_row_groups)
    try:
        columns = column_chunks(footer, ordinals, leaves, entry.size)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise _broken(error, entry) from error
    for ordinal, chunks in zip(ordinals, columns, strict=True):
        rows.append(metadata.row_group(ordinal).num_rows)
        encoded.append(sum(chunk.total_compressed_size for chunk in chunks))
        decoded.append(
            sum(
                max(chunk.total_uncompressed_size, chunk.num_values * _WIDTHS.get(chunk.physical_type, 0))
                for chunk in chunks
            )
        )
    if any(count < 0 for count in rows):
        raise SourceError("the Parquet footer is damaged: a row group has fewer than 0 rows", path=entry.url)
    schema = footer.schema.serialize().to_pybytes()
    return {
        "url": entry.url, "error": None, "schema": schema, "rows": rows, "bytes": encoded, "memory_bytes": decoded,
    }  # fmt: skip


def wanted_leaves(footer: Footer, sources: Sequence[str] | None) -> list[int]:
    """The Parquet columns that hold the given source columns (all when None), in file order, each once."""
    if sources is None:
        return list(range(footer.metadata.num_columns))
    columns = (footer.columns.find(source) for source in sources)
    return sorted({leaf for column in columns if column is not None for leaf in column.leaves})
