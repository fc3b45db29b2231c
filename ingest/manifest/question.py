"""What the data itself must be asked before a manifest stands, and the answers of many units put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.errors import SchemaError, SourceError
from ingest.manifest.model import FileEntry, Manifest
from ingest.manifest.selection import Kept
from ingest.manifest.statistics import directory_bounds
from ingest.manifest.where import FALSE, NULL, TRUE, Bound, Bounds, is_text, outcomes
from ingest.spec import FeatureType

MAX_CLASSES = 1 << 20
TASK_ROWS, TASK_FILES, TASK_BYTES = 1 << 22, 64, 64 << 20  # what one task looks at
WAVE_UNITS = 64  # asked first where a limit may make the rest needless

ANSWERS = pa.schema(
    [
        ("unit", pa.int64()),
        ("kept", pa.int64()),  # rows that the filter keeps
        ("bits", pa.binary()),  # which, as in `Selection`; null where it is all of them or none
        ("values", pa.list_(pa.list_(pa.binary()))),  # of each class column, those not seen in earlier rows
    ]
)
"""One row for each unit asked."""


class Target(NamedTuple):
    """A unit to ask: its number, file, place in it and rows; of TFRecord, read whole, its bytes and first record."""

    unit: int
    entry: FileEntry
    ordinal: int
    rows: int
    offset: int = 0
    size: int = 0
    first_record: int = 0


@dataclass(frozen=True)
class Question:
    """What is asked of units.

    Attributes:
        format: of the files.
        where: the filter; None when nothing is filtered.
        where_schema: source columns that the filter names, with the types it is bound to.
        class_schema: source columns whose distinct values are wanted.
        features: of TFRecord, the types of those that are features; a single value that is missing is a null, unless
            it has a default.
        check_payload: compare TFRecord payloads with their checksums.
    """

    format: str
    where: Bound | None
    where_schema: pa.Schema
    class_schema: pa.Schema
    features: Mapping[str, FeatureType] = field(default_factory=dict)
    check_payload: bool = True


Look: TypeAlias = Callable[[Question, Sequence[Target]], pa.Table]
"""Reads: asks the units and gives a table of `ANSWERS`."""

Enough: TypeAlias = Callable[[Kept], bool]
"""Whether what is kept of the first units makes the rest of them needless."""


def ask(
    question: Question, manifest: Manifest, directories: frozenset[str], look: Look, enough: Enough | None = None
) -> tuple[Kept | None, dict[str, tuple[str, ...]]]:
    """Ask every unit that its directory does not answer for.

    Args:
        question: what is asked.
        manifest: before any selection.
        directories: columns that no file has, hive keys alone.
        look: reads.
        enough: asked between waves of growing size; without it, or where values are wanted, all are asked at once.

    Returns:
        What the filter keeps, None without one; and of each class column, its distinct values, sorted.

    Raises:
        SchemaError: a class column has too many values, or one that is no text.
        IngestError: a unit cannot be read.
    """
    units = manifest.units
    may = np.full(len(units), TRUE)
    if question.where is not None:
        may = _by_directory(question.where, manifest.files, directories)[units.file]
    read = [name for name in question.class_schema.names if name not in directories]
    asked = np.arange(len(units)) if read else np.flatnonzero((may & TRUE != 0) & (may != TRUE))
    kept = np.where(may == TRUE, units.rows, 0)
    bitmaps: list[bytes | None] = [None] * len(units)
    values: dict[str, set[bytes]] = {name: _directory_values(name, manifest) for name in question.class_schema.names}
    if len(asked):
        fields = [question.class_schema.field(name) for name in read]
        question = replace(question, class_schema=pa.schema(fields))
        for wave in _waves(asked, enough is not None and not read):
            for unit, count, bits, found in _answers(look(question, _targets(manifest, wave)), wave):
                kept[unit], bitmaps[unit] = count, bits
                for name, new in zip(read, found, strict=True):
                    values[name].update(new)
            end = int(wave[-1]) + 1
            if end < len(units) and enough is not None and not read and enough(Kept(kept[:end], bitmaps[:end])):
                break
    classes = {name: _classes(name, found) for name, found in values.items()}
    return (None if question.where is None else Kept(kept, bitmaps)), classes


def _waves(asked: NDArray[np.int64], growing: bool) -> Iterator[NDArray[np.int64]]:
    """Runs of the units asked: all in one, or each four times as long as the one before."""
    start, size = 0, WAVE_UNITS if growing else len(asked)
    while start < len(asked):
        yield asked[start : start + size]
        start, size = start + size, 4 * size


def _by_directory(bound: Bound, files: Sequence[FileEntry], directories: frozenset[str]) -> NDArray[np.int64]:
    """Int64 (files,): what the filter may be in each file, by its directories alone."""
    unknown, seen = Bounds(), {}
    for entry in files:
        if entry.partitions not in seen:
            seen[entry.partitions] = outcomes(
                bound,
                lambda name, kind, entry=entry: (  # type: ignore[misc]
                    directory_bounds(entry, name, kind) if name in directories else unknown
                ),
            )
    return np.array([seen[entry.partitions] for entry in files], np.int64)


def _directory_values(name: str, manifest: Manifest) -> set[bytes]:
    used = np.unique(manifest.units.file).tolist()
    found = (directory_bounds(manifest.files[file], name, pa.string()).low for file in used)
    return {value for value in found if isinstance(value, bytes)}


def _targets(manifest: Manifest, asked: NDArray[np.int64]) -> list[Target]:
    units = manifest.units
    sizes = units.bytes if manifest.format == "tfrecord" else np.zeros(len(units), np.int64)
    return [
        Target(unit, manifest.files[file], *places)
        for unit, file, *places in zip(
            asked.tolist(),
            units.file[asked].tolist(),
            units.ordinal[asked].tolist(),
            units.rows[asked].tolist(),
            units.offset[asked].tolist(),
            sizes[asked].tolist(),
            units.file_row[asked].tolist(),
            strict=True,
        )
    ]


def _answers(table: pa.Table, asked: NDArray[np.int64]) -> list[tuple[int, int, bytes | None, list[list[bytes]]]]:
    columns = [table[name].to_pylist() for name in ANSWERS.names]
    if columns[0] != asked.tolist():
        raise SourceError(f"{len(asked)} units were asked and {len(table)} answered", hint="This is a bug in ingest")
    return list(zip(*columns, strict=True))


def _classes(name: str, values: set[bytes]) -> tuple[str, ...]:
    check_count(name, len(values))
    try:
        return tuple(value.decode() for value in sorted(values))
    except UnicodeDecodeError as error:
        raise SchemaError(f"source.classes: column '{name}' holds {error.object!r}, which is no text") from None


def check_count(name: str, count: int) -> None:
    """Refuse a column that is no label.

    Raises:
        SchemaError: it has more distinct values than classes may be.
    """
    if count > MAX_CLASSES:
        raise SchemaError(
            f"source.classes: column '{name}' has more than {MAX_CLASSES} distinct values",
            hint="Is it a label? Declare the classes, or leave them out",
        )


def check_class_type(name: str, kind: pa.DataType) -> None:
    """Refuse a class column that holds no text.

    Raises:
        SchemaError: with its type.
    """
    if not is_text(kind) and not pa.types.is_null(kind):
        raise SchemaError(
            f"source.classes names '{name}', whose column has type {kind}: classes number strings",
            hint="Leave it out of source.classes",
        )


def grouped(targets: Sequence[Target]) -> list[Sequence[Target]]:
    """Targets as they are given to tasks: a few million rows, the units of some files, or some bytes of records."""
    cuts, rows, files, size = [0], 0, 0, 0
    for i, target in enumerate(targets):
        new = i == 0 or target.entry is not targets[i - 1].entry
        full = rows + target.rows > TASK_ROWS or files + new > TASK_FILES or size + target.size > TASK_BYTES
        if rows and full:
            cuts.append(i)
            rows, files, size, new = 0, 0, 0, True
        rows, files, size = rows + target.rows, files + new, size + target.size
    return [targets[a:b] for a, b in zip(cuts, [*cuts[1:], len(targets)], strict=True)]


def answer_of(may: int, rows: int) -> int | None:
    """The rows that a filter keeps of a unit where its bounds decide it; None where they do not."""
    if not may & TRUE:
        return 0
    return None if may & (FALSE | NULL) else rows


def columns_in(types: Mapping[str, pa.DataType], names: Sequence[str]) -> pa.Schema:
    """A schema of some source columns."""
    return pa.schema([pa.field(name, types[name]) for name in names])
