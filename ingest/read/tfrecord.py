"""A run of TFRecord records, or a window of such runs, as an Arrow table of the wanted features."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ingest.errors import ReadError, RecordError, SourceError
from ingest.jit import compiling
from ingest.manifest import records
from ingest.manifest.model import FileEntry
from ingest.manifest.records import CUT, LENGTH, Frames, scan
from ingest.manifest.stream import Chunk, RecordStream, place
from ingest.read import example
from ingest.read.example import BAD_COLUMN, parse
from ingest.read.finish import check_agrees, constant, numbered, without_nulls
from ingest.read.schema import arrow_type, feature_of
from ingest.spec import FeatureType, Storage
from ingest.storage.filesystem import FileSystem, open_filesystem

OnBad = Literal["raise", "mark"]
_ONE_REQUEST_BYTES = 64 << 20  # a file that is one unit and no larger is fetched at once
_BAD_FIELD = pa.field(BAD_COLUMN, pa.string())
_CALLED = re.compile(r"record \d+ \(byte")


class Run(NamedTuple):
    """Records of one unit.

    Attributes:
        entry: the file.
        offset: byte at which the unit begins.
        size: its bytes in the file; a compressed file is one unit.
        first_record: the number of its first record in the file.
        rows: sorted int64 (n,) indices inside the unit; or a slice of step 1 that begins and ends somewhere.
    """

    entry: FileEntry
    offset: int
    size: int
    first_record: int
    rows: NDArray[np.int64] | slice


class Wanted(NamedTuple):
    """What a table is made of; see `read_records`."""

    schema: pa.Schema
    columns: dict[str, str]
    features: dict[str, FeatureType]
    classes: dict[str, tuple[str, ...]]
    fill: dict[str, Any] | None
    check_payload: bool
    on_bad: OnBad


def read_records(runs: Sequence[Run], wanted: Wanted, storage: Storage) -> pa.Table:
    """The records of several units one after another.

    Args:
        runs: the units.
        wanted: `schema`, of the result, and `columns`, output name: source column, as the manifest has them;
            `features`, source column: its type; `classes`, output name: the strings that its numbers stand for;
            `fill`, output name: what stands for a null, None leaves them; `check_payload`: compare payloads with their
            checksums; `on_bad`: of a record that does not match its checksum, or its type, `raise`
            makes an error, and `mark` a row that means nothing.
        storage: how to reach the store.

    Returns:
        A table of `schema`; with `mark` also a last column `__ingest_bad__`, what is wrong with the row or null.

    Raises:
        RecordError: a record is bad, with `raise`; its file, number and byte.
        ReadError: the file cannot be read, or is not what the manifest says.
    """
    tables = [_read_run(run, wanted, storage) for run in runs]
    return pa.concat_tables(tables) if tables else _schema(wanted).empty_table()


def warm_up() -> None:
    """Have what is compiled compiled, or loaded from the cache."""
    with compiling(Path(records.__file__).parent):
        scan(np.zeros(0, np.uint8), check_payload=True)
    example.warm_up()


def _schema(wanted: Wanted) -> pa.Schema:
    return wanted.schema.append(_BAD_FIELD) if wanted.on_bad == "mark" else wanted.schema


@dataclass(frozen=True)
class _Place:
    """Which records a table holds."""

    entry: FileEntry
    numbers: NDArray[np.int64]

    def file_row(self, row: int) -> int:
        return int(self.numbers[row])


def _read_run(run: Run, wanted: Wanted, storage: Storage) -> pa.Table:
    read = _whole_file if run.offset == 0 and run.size == run.entry.size else _part
    rows = np.arange(run.rows.start, run.rows.stop) if isinstance(run.rows, slice) else run.rows
    try:
        filesystem = open_filesystem(run.entry.url, storage)
        try:
            table = read(run, rows, filesystem, wanted._replace(on_bad="raise"))
        except RecordError:
            return read(run, rows, filesystem, wanted)  # what came damaged may come whole the second time
        return table if wanted.on_bad == "raise" else table.append_column(_BAD_FIELD, pa.nulls(len(table), pa.string()))
    except SourceError as error:
        raise ReadError(error.message, path=error.path or run.entry.url, hint=error.hint) from error


def _part(run: Run, rows: NDArray[np.int64], filesystem: FileSystem, wanted: Wanted) -> pa.Table:
    """A unit of a plain file, as one range."""
    span = (run.offset, run.offset + run.size)
    data = np.frombuffer(filesystem.read_ranges(run.entry.url, [span], run.entry.etag)[0], np.uint8)
    frames = scan(data, check_payload=wanted.check_payload)
    return _table(run.entry, Chunk(data, frames, run.offset, run.first_record), rows, wanted)


def _whole_file(run: Run, rows: NDArray[np.int64], filesystem: FileSystem, wanted: Wanted) -> pa.Table:
    """A file that is one unit, compressed perhaps, in pieces of bounded size."""
    stream = RecordStream(run.entry, filesystem, check_payload=wanted.check_payload, block_bytes=_ONE_REQUEST_BYTES)
    tables, done, low = [], 0, 0
    chunk: Chunk | None = None
    for chunk in stream:
        end = done + len(chunk.frames.starts)
        high = int(np.searchsorted(rows, end))
        tables.append(_table(run.entry, chunk, rows[low:high] - done, wanted))
        done, low = end, high
        if low == len(rows):
            break
    if low < len(rows) or not tables:
        tables.append(_table(run.entry, _behind(chunk, stream), rows[low:] - done, wanted))
    return pa.concat_tables(tables)


def _behind(last: Chunk | None, stream: RecordStream) -> Chunk:
    """A chunk without records, where a file ended before it should."""
    nothing = np.zeros(0, np.int64)
    stopped = LENGTH if stream.damage is not None and "checksum" in stream.damage.message else CUT
    offset = 0 if last is None else last.offset + last.frames.end
    record = 0 if last is None else last.record + len(last.frames.starts)
    frames = Frames(nothing, nothing, nothing, 0, stopped, 0)
    return Chunk(np.zeros(0, np.uint8), frames, offset, record, stream.compression)


def _table(entry: FileEntry, chunk: Chunk, rows: NDArray[np.int64], wanted: Wanted) -> pa.Table:
    """Some rows of a chunk, int64 (n,); a row that has no record there is lost to damage."""
    frames, features = chunk.frames, [feature_of(*item) for item in wanted.features.items()]
    spoilt = (rows >= len(frames.starts)) | np.isin(rows, frames.bad)
    if spoilt.any() and wanted.on_bad == "raise":
        row = int(rows[np.argmax(spoilt)])
        raise RecordError(_spoilt(chunk, row), path=entry.url, row=chunk.record + row)
    sound = np.flatnonzero(~spoilt)
    starts, stops = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    starts[sound], stops[sound] = frames.starts[rows[sound]], frames.stops[rows[sound]]
    try:
        table = parse(chunk.data, starts, stops, features, on_bad=wanted.on_bad) if features else None
    except RecordError as error:
        row = int(rows[error.index])
        message = _placed(error.message, chunk.place(row))
        offset = chunk.offset + error.offset
        raise RecordError(message, offset=offset, path=entry.url, row=chunk.record + row, hint=error.hint) from None
    faults: dict[int, str] = {}
    if wanted.on_bad == "mark":
        found = None if table is None else table.column(BAD_COLUMN)
        texts = [] if found is None or found.null_count == len(found) else found.to_pylist()
        faults = {i: _placed(text, chunk.place(int(rows[i]))) for i, text in enumerate(texts) if text and not spoilt[i]}
        faults |= {i: _spoilt(chunk, int(rows[i])) for i in np.flatnonzero(spoilt).tolist()}
    return _finish(table, _Place(entry, chunk.record + rows), wanted, faults)


def _placed(message: str, place: str) -> str:
    """What the parser says of a record, with its place in the file for its place in the call."""
    return _CALLED.sub(f"{place} (byte", message, count=1)


def _spoilt(chunk: Chunk, row: int) -> str:
    """What is wrong with a row that has no record to parse."""
    frames = chunk.frames
    if row < len(frames.starts):
        return f"{chunk.place(row)}: its payload does not match its checksum"
    at = place(chunk.record + len(frames.starts), chunk.offset + frames.end, chunk.compression)
    what = "its length does not match its checksum" if frames.stopped != CUT else "the data ends before its end"
    lost = "" if row == len(frames.starts) else f"record {chunk.record + row} is lost behind "
    return f"{lost}{at}: {what}; the file is damaged, or has changed since it was listed"


def _finish(table: pa.Table | None, where: _Place, wanted: Wanted, faults: dict[int, str]) -> pa.Table:
    """The manifest's columns out of the features, and of `faults`, row: what is wrong with it, a column with `mark`."""
    partitions = dict(where.entry.partitions)
    arrays = []
    for name, final in zip(wanted.schema.names, wanted.schema.types, strict=True):
        source = wanted.columns[name]
        kind = _label_type(source, partitions, wanted) if name in wanted.classes else final
        if table is not None and source in wanted.features:
            array = table.column(source)
            if array.type != kind:
                array = _as_text(array, kind, source, where, faults if wanted.on_bad == "mark" else None)
            if source in partitions:
                check_agrees(array, partitions[source], where, source)
        else:
            array = constant(partitions.get(source), kind, len(where.numbers), where, source)
        if name in wanted.classes:
            array = _labels(array, wanted.classes[name], where, name, faults)
        arrays.append(array if wanted.fill is None else without_nulls(array, wanted.fill.get(name), where, name))
    if wanted.on_bad == "mark":
        arrays.append(pa.array([faults.get(row) for row in range(len(where.numbers))], pa.string()))
    return pa.Table.from_arrays(arrays, schema=_schema(wanted))


def _labels(
    array: pa.ChunkedArray, classes: Sequence[str], where: _Place, name: str, faults: dict[int, str]
) -> pa.ChunkedArray:
    """Labels as numbers; of rows that mean nothing, 0."""
    if not faults:
        return numbered(array, classes, where, name)
    bad = np.zeros(len(array), bool)
    bad[list(faults)] = True
    numbers = numbered(pc.if_else(bad, pa.scalar(None, array.type), array), classes, where, name)
    return pc.if_else(bad, 0, numbers)


def _label_type(source: str, partitions: dict[str, str], wanted: Wanted) -> pa.DataType:
    """The type in which labels are read."""
    if source in wanted.features:
        return arrow_type(source, wanted.features[source])
    return pa.string() if source in partitions else pa.null()


def _as_text(
    array: pa.ChunkedArray, kind: pa.DataType, source: str, where: _Place, faults: dict[int, str] | None
) -> pa.ChunkedArray:
    """Bytes as strings; those that are not UTF-8 are a fault of their row."""
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        values = array.to_pylist()
    for row, value in enumerate(values):
        try:
            _decoded(value, "strict")
        except UnicodeDecodeError as error:
            message = (
                f"feature '{source}' of record {where.file_row(row)} is not UTF-8, and is declared as string: {error}"
            )
            if faults is None:
                hint = "Declare it as bytes in source.schema"
                raise RecordError(message, path=where.entry.url, row=where.file_row(row), hint=hint) from None
            faults.setdefault(row, message)
    return pa.chunked_array([pa.array([_decoded(value, "replace") for value in values], kind)])


def _decoded(value: Any, errors: str) -> Any:
    return [_decoded(each, errors) for each in value] if isinstance(value, list) else value.decode("utf-8", errors)
