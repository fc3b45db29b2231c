"""What is there: files, and in them units, the smallest pieces read at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.errors import PlanError, SourceError
from ingest.manifest.selection import Selection
from ingest.spec import FeatureType, class_facts


@dataclass(frozen=True)
class FileEntry:
    """One listed file.

    Attributes:
        path: relative to the source's root, as listing found it (literal, never quoted).
        url: what storage opens.
        size: bytes.
        etag: the store's version of the content (ETag; or the time of change for local files), where there is one.
        partitions: hive key=value pairs found in the path, as written.
        sidecar: the URL of a record index that lies beside a TFRecord file.
    """

    path: str
    url: str
    size: int
    etag: str | None = None
    partitions: tuple[tuple[str, str], ...] = ()
    sidecar: str | None = None


@dataclass(frozen=True)
class Units:
    """The units of a data set in manifest order (files sorted by path, then by place in the file); none has 0 rows.

    Attributes:
        file: int32 (units,), index into the manifest's files.
        ordinal: int32 (units,), the unit inside the file: of Parquet, the row group.
        rows: int64 (units,), kept by the source's where, split and limit.
        bytes: int64 (units,), encoded bytes that reading the wanted columns fetches.
        memory_bytes: int64 (units,), the wanted columns of the kept rows once decoded from the file format (images
            still encoded).
        file_row: int64 (units,), row inside the file at which the unit begins.
        offset: int64 (units,), byte of the file at which a run of TFRecord records begins; 0 for Parquet.
    """

    file: NDArray[np.int32]
    ordinal: NDArray[np.int32]
    rows: NDArray[np.int64]
    bytes: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    file_row: NDArray[np.int64]
    offset: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Damage:
    """Records that indexing found damaged. Those that are lost are in no unit, so no count holds them.

    Attributes:
        url: the file.
        record: number of the first of them in the file.
        offset: the byte at which it begins; in the decompressed data, where the file is compressed.
        message: where and why.
        lost_records: how many; None where that cannot be known, since no record after it can be found; 0 where it
            stays, for reading to judge.
        lost_bytes: bytes of the file that they took; None where that cannot be known.
    """

    url: str
    record: int
    offset: int
    message: str
    lost_records: int | None
    lost_bytes: int | None


@dataclass(frozen=True)
class Manifest:
    """The files and units of a data set, the same on every rank.

    Attributes:
        format: `parquet` or `tfrecord`.
        files: sorted by path.
        units: see `Units`.
        schema: the Arrow schema of the wanted columns under their output names, merged over all files.
        columns: output name: source column, resolved (never None).
        selection: which rows of the units are kept; None for all.
        classes: output name: the strings that its numbers stand for, in order.
        features: of TFRecord, source column: its type, declared or found; fixed for the run.
        damage: what indexing left out, in file order. Whether that ends a run is the spec's to say.
    """

    format: str
    files: tuple[FileEntry, ...]
    units: Units
    schema: pa.Schema
    columns: dict[str, str] = field(default_factory=dict)
    selection: Selection | None = None
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    features: dict[str, FeatureType] = field(default_factory=dict)
    damage: tuple[Damage, ...] = ()

    @property
    def rows(self) -> int:
        """Rows kept, of which an epoch consists."""
        return int(self.units.rows.sum())

    @property
    def data_rows(self) -> int:
        """Rows of the data set before where, split and limit: sample ids lie below it."""
        return self.rows if self.selection is None else self.selection.data_rows

    @cached_property
    def unit_first_id(self) -> NDArray[np.int64]:
        """Int64 (units,): the sample id of the first row that each unit has in its file, kept or not."""
        if self.selection is not None:
            return self.selection.first_id
        return np.cumsum(self.units.rows) - self.units.rows

    def unit_rows(self, unit: int, kept: NDArray[np.int64] | None = None) -> NDArray[np.int64] | slice:
        """Kept rows as rows inside the unit: those numbered `kept` among them (int64, sorted or not); all when None."""
        if self.selection is None or self.selection.is_prefix(unit):
            return slice(0, int(self.units.rows[unit])) if kept is None else kept
        rows = self.selection.rows(unit, int(self.units.rows[unit]))
        return rows if kept is None else rows[kept]

    def unit_total(self, unit: int) -> int:
        """Rows that a unit has in its file, kept or not."""
        return int(self.units.rows[unit] if self.selection is None else self.selection.total_rows[unit])

    def sample_ids(self, unit: int, kept: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Int64: the sample ids of the kept rows numbered `kept` in a unit; of all of them when None."""
        rows = self.unit_rows(unit, kept)
        inside = np.arange(rows.stop, dtype=np.int64) if isinstance(rows, slice) else rows
        ids: NDArray[np.int64] = inside + self.unit_first_id[unit]
        return ids

    def kept_ids(self) -> NDArray[np.int64]:
        """Int64 (rows,): the sample ids of all kept rows, sorted."""
        return np.concatenate([np.zeros(0, np.int64), *(self.sample_ids(unit) for unit in range(len(self.units)))])

    def content_facts(self) -> dict[str, str]:
        """What decides the content of a row beside the spec, JSON-ready and small: the classes that were found."""
        return class_facts(self.classes)

    # -- as of any manifest: a mixture has several sources -------------------------------------------------------------

    @property
    def parts(self) -> tuple[Manifest, ...]:
        """The manifest of each source."""
        return (self,)

    @property
    def first_ids(self) -> tuple[int, ...]:
        """Of each source, where its sample ids begin."""
        return (0,)

    def local(self, units: Iterable[int]) -> tuple[int, list[int]]:
        """The source of some units, all of one, and their numbers there."""
        return 0, list(units)

    @cached_property
    def digest(self) -> str:
        """A digest of relative paths, sizes and rows, kept or not: a copy of the data elsewhere is the same data."""
        if self.selection is not None:
            return self.selection.digest
        h = hashlib.blake2b(digest_size=16)
        h.update(json.dumps([self.format, [[f.path, f.size] for f in self.files]]).encode())
        for array in (self.units.file, self.units.ordinal, self.units.rows):
            h.update(np.ascontiguousarray(array, "<i8").tobytes())
        return h.hexdigest()

    def locate(self, sample_id: int) -> tuple[str, int]:
        """(path as opened, row inside the file) of a sample.

        Raises:
            PlanError: no such sample, or one that is not kept.
        """
        if not 0 <= sample_id < self.data_rows:
            last = self.data_rows - 1
            raise PlanError(f"no sample {sample_id}: the data set has {self.data_rows} rows, ids 0 to {last}")
        unit = int(np.searchsorted(self.unit_first_id, sample_id, side="right")) - 1
        if unit < 0 or sample_id not in self.sample_ids(unit):
            raise PlanError(f"sample {sample_id} is left out by the source's where, split or limit")
        row = int(self.units.file_row[unit]) + sample_id - int(self.unit_first_id[unit])
        return self.files[int(self.units.file[unit])].url, row


def refuse_damage(manifest: Manifest) -> None:
    """Refuse data that indexing found damaged, for a spec that does not allow it to be left out.

    Raises:
        SourceError: the first damage, with its file, record and byte.
    """
    if not manifest.damage:
        return
    first, files = manifest.damage[0], len({each.url for each in manifest.damage})
    more = f" ({len(manifest.damage)} such places in {files} files)" if len(manifest.damage) > 1 else ""
    raise SourceError(
        first.message + more,
        path=first.url,
        row=first.record,
        hint="Write or copy the file again; or leave out what is damaged: errors.on_bad_sample: replace",
    )
