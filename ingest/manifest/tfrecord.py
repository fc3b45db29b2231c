"""TFRecord files: where the units of each lie, what is damaged, and what a survey says of the records' content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.errors import SampleError, SourceError
from ingest.manifest import arrow
from ingest.manifest.indexing import over_files
from ingest.manifest.model import Damage, FileEntry
from ingest.manifest.records import FRAME_BYTES, HEADER_BYTES
from ingest.manifest.sidecar import read_sidecar
from ingest.manifest.stream import Chunk, RecordStream
from ingest.spec import Storage, TFRecord
from ingest.storage.filesystem import FileSystem, open_filesystem

UNIT_BYTES = 8 << 20  # at which a unit ends, with the record that reaches it
_SURVEY_FIRST, _SURVEY_LATER = 1024, 64  # records looked at: of a file's first chunk, of each later one
_SPOT_BYTES = 256 << 10  # looked at in some places, where a sidecar saves reading the file

_DAMAGE = pa.struct(
    [
        ("url", pa.string()), ("record", pa.int64()), ("offset", pa.int64()), ("message", pa.string()),
        ("lost_records", pa.int64()), ("lost_bytes", pa.int64()),
    ]
)  # fmt: skip
RECORD_INDEX_SCHEMA = pa.schema(
    [
        ("url", pa.string()),
        ("error", pa.string()),  # why the file cannot be read at all; the lists are empty then
        ("rows", pa.list_(pa.int64())),  # of each unit
        ("bytes", pa.list_(pa.int64())),  # of the file, that reading it fetches
        ("memory_bytes", pa.list_(pa.int64())),  # of its payloads
        ("offset", pa.list_(pa.int64())),  # where it begins
        ("file_row", pa.list_(pa.int64())),  # number of its first record in the file
        ("damage", pa.list_(_DAMAGE)),
        ("survey", pa.string()),  # of the records' content, as JSON
        ("unparsed", pa.string()),  # what the survey said of the first record that it could not parse
    ]
)
"""One row for each file."""


class Survey(Protocol):
    """What looks at the content of records and says what features they have."""

    def add(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        *,
        on_bad: Literal["raise", "skip"],
    ) -> None:
        """Look at some payloads, int64 (records,) places in `data`.

        Raises:
            SampleError: one of them cannot be parsed, with `raise`; nothing is counted then.
        """

    def to_json(self) -> str:
        """All that was seen, mergeable with others."""


def index_records(
    files: Sequence[FileEntry], options: TFRecord, new_survey: Callable[[], Survey] | None, storage: Storage
) -> pa.Table:
    """Read some files once, from beginning to end; one that cannot be read is a row with `error`, never an exception.

    A file with a sidecar is read in some places only, and its damage is found when it is read.

    Args:
        files: as listed, on one store.
        options: from the spec.
        new_survey: makes a survey for a file; None where nothing is to be found out.
        storage: how to reach the store.

    Returns:
        A table of `RECORD_INDEX_SCHEMA`, one row for each file, in order.
    """

    def one(entry: FileEntry) -> dict[str, Any]:
        row: dict[str, Any] = {name: [] if pa.types.is_list(kind) else None for name, kind in _KINDS}
        survey = None if new_survey is None else new_survey()
        try:
            filesystem = open_filesystem(entry.url, storage)
            found = index_file(entry, filesystem, options, survey)
        except SourceError as error:
            return row | {"url": entry.url, "error": error.message + (f". {error.hint}" if error.hint else "")}
        return row | asdict(found) | {"url": entry.url, "survey": None if survey is None else survey.to_json()}

    return arrow.table(list(over_files(files, one, storage)), RECORD_INDEX_SCHEMA)


_KINDS = [(each.name, each.type) for each in RECORD_INDEX_SCHEMA]


@dataclass
class FileIndex:
    """The units of one file; see `RECORD_INDEX_SCHEMA`."""

    rows: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    file_row: list[int] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    unparsed: str | None = None


def index_file(entry: FileEntry, filesystem: FileSystem, options: TFRecord, survey: Survey | None) -> FileIndex:
    """The units of one file. In a plain one, a record that does not match its checksum ends a unit and is in none.

    Raises:
        SourceError: the file cannot be read, is not TFRecord, or does not fit its sidecar.
    """
    if entry.sidecar is not None and entry.size:
        begins = read_sidecar(entry, filesystem)
        if begins is not None:
            return _from_sidecar(entry, filesystem, begins, survey)
    stream = RecordStream(entry, filesystem, check_payload=options.check_payload_crc)
    units, found = _Units(), FileIndex()
    for chunk in stream:
        frames = chunk.frames
        good = np.ones(len(frames.starts), bool)
        good[frames.bad] = False
        kept = good if stream.compression is None else np.ones_like(good)
        units.add(chunk.offset + frames.starts - HEADER_BYTES, chunk.offset + frames.stops + 4, kept, chunk.record)
        found.damage += _bad_payloads(entry.url, chunk)
        if survey is not None:
            rows = _sample(chunk, good)
            _look(survey, found, chunk.data, chunk.frames.starts[rows], chunk.frames.stops[rows])
    units.end()
    if stream.damage is not None:
        found.damage.append(stream.damage)
    if stream.compression is not None and units.rows:  # it is read from its beginning, whatever is wanted of it
        found.rows, found.memory_bytes = [sum(units.rows)], [sum(units.memory_bytes)]
        found.bytes, found.offset, found.file_row = [entry.size], [0], [0]
    else:
        found.rows, found.bytes, found.memory_bytes = units.rows, units.bytes, units.memory_bytes
        found.offset, found.file_row = units.offset, units.file_row
    return found


class _Units:
    """Cuts records into units, the same whichever way the records come in pieces."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.bytes: list[int] = []
        self.memory_bytes: list[int] = []
        self.offset: list[int] = []
        self.file_row: list[int] = []
        self._begin: tuple[int, int] | None = None  # (byte, record) of the unit under way
        self._end = (0, 0)

    def add(
        self, begins: NDArray[np.int64], ends: NDArray[np.int64], good: NDArray[np.bool_], first_record: int
    ) -> None:
        """Take records that follow those before.

        Args:
            begins: int64 (records,), where each begins in the file.
            ends: int64 (records,), where each ends, framing included.
            good: bool (records,); others end a unit, and are left out.
            first_record: number of the first.
        """
        walls = np.append(np.flatnonzero(~good), len(good))
        at = 0
        for wall in walls.tolist():
            while at < wall:
                if self._begin is None:
                    self._begin = (int(begins[at]), first_record + at)
                last = int(np.searchsorted(ends, self._begin[0] + UNIT_BYTES))
                full, at = last < wall, min(last + 1, wall)
                self._end = (int(ends[at - 1]), first_record + at)
                if full:
                    self.end()
            if wall < len(good):
                self.end()
                at = wall + 1

    def end(self) -> None:
        """Close the unit under way, if there is one."""
        if self._begin is None:
            return
        (byte, record), (end_byte, end_record) = self._begin, self._end
        self.rows.append(end_record - record)
        self.bytes.append(end_byte - byte)
        self.memory_bytes.append(end_byte - byte - FRAME_BYTES * (end_record - record))
        self.offset.append(byte)
        self.file_row.append(record)
        self._begin = None


def _bad_payloads(url: str, chunk: Chunk) -> Iterator[Damage]:
    """In a plain file they are left out. A compressed file is one unit, so there they stay, for reading to judge."""
    frames = chunk.frames
    for index in frames.bad.tolist():
        begin = chunk.offset + int(frames.starts[index]) - HEADER_BYTES
        message = f"{chunk.place(index)}: its payload does not match its checksum"
        size = int(frames.stops[index] - frames.starts[index]) + FRAME_BYTES
        lost = (1, size) if chunk.compression is None else (0, 0)
        yield Damage(url, chunk.record + index, begin, message, *lost)


def _sample(chunk: Chunk, good: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Good records to look at: the first ones of a file, and a few from all over each later chunk."""
    rows = np.flatnonzero(good)
    if chunk.record == 0:
        return rows[:_SURVEY_FIRST]
    if len(rows) > _SURVEY_LATER:
        return rows[np.linspace(0, len(rows) - 1, _SURVEY_LATER).astype(np.int64)]
    return rows


def _look(
    survey: Survey, found: FileIndex, data: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> None:
    """Show records to the survey. What it cannot parse is for reading to judge, and remembered in case it is all."""
    try:
        survey.add(data, starts, stops, on_bad="raise")
    except SampleError as error:
        found.unparsed = found.unparsed or error.message + (f". {error.hint}" if error.hint else "")
        survey.add(data, starts, stops, on_bad="skip")


def _from_sidecar(
    entry: FileEntry, filesystem: FileSystem, begins: NDArray[np.int64], survey: Survey | None
) -> FileIndex:
    ends = np.append(begins[1:], entry.size)
    units = _Units()
    units.add(begins, ends, np.ones(len(begins), bool), 0)
    units.end()
    found = FileIndex(units.rows, units.bytes, units.memory_bytes, units.offset, units.file_row)
    if survey is not None:
        for record in sorted({0, len(begins) // 3, 2 * len(begins) // 3, len(begins) - 1}):
            last = max(record + 1, int(np.searchsorted(begins, begins[record] + _SPOT_BYTES)))
            start, stop = int(begins[record]), int(ends[last - 1])
            blob = filesystem.read_ranges(entry.url, [(start, stop)], entry.etag)[0]
            places = begins[record:last] + HEADER_BYTES - start, ends[record:last] - 4 - start
            _look(survey, found, np.frombuffer(blob, np.uint8), *places)
    return found
