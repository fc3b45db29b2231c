"""What is there: files, and in them units, the smallest pieces read at once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.errors import PlanError


@dataclass(frozen=True)
class FileEntry:
    """One listed file.

    Attributes:
        path: relative to the source's root, as listing found it (literal, never quoted).
        url: what storage opens.
        size: bytes.
        etag: the store's version of the content (ETag; or the time of change for local files), where there is one.
        partitions: hive key=value pairs found in the path, as written.
    """

    path: str
    url: str
    size: int
    etag: str | None = None
    partitions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Units:
    """The units of a data set in manifest order (files sorted by path, then by place in the file); none has 0 rows.

    Attributes:
        file: int32 (units,), index into the manifest's files.
        ordinal: int32 (units,), the row group inside the file.
        rows: int64 (units,).
        bytes: int64 (units,), encoded bytes that reading the wanted columns fetches.
        memory_bytes: int64 (units,), the wanted columns once decoded from the file format (images still encoded).
        file_row: int64 (units,), row inside the file at which the unit begins.
    """

    file: NDArray[np.int32]
    ordinal: NDArray[np.int32]
    rows: NDArray[np.int64]
    bytes: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    file_row: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Manifest:
    """The files and units of a data set, the same on every rank.

    Attributes:
        format: `parquet`.
        files: sorted by path.
        units: see `Units`.
        schema: the Arrow schema of the wanted columns under their output names, merged over all files.
        columns: output name: source column, resolved (never None).
    """

    format: str
    files: tuple[FileEntry, ...]
    units: Units
    schema: pa.Schema
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return int(self.units.rows.sum())

    @cached_property
    def unit_first_id(self) -> NDArray[np.int64]:
        """Int64 (units + 1,): the sample id at which each unit begins; the last value is the number of rows."""
        return np.concatenate([[0], np.cumsum(self.units.rows)]).astype(np.int64)

    @cached_property
    def digest(self) -> str:
        """A digest of relative paths, sizes and rows: a copy of the data elsewhere is the same data."""
        h = hashlib.blake2b(digest_size=16)
        h.update(json.dumps([self.format, [[f.path, f.size] for f in self.files]]).encode())
        for array in (self.units.file, self.units.ordinal, self.units.rows):
            h.update(np.ascontiguousarray(array, "<i8").tobytes())
        return h.hexdigest()

    def locate(self, sample_id: int) -> tuple[str, int]:
        """(path as opened, row inside the file) of a sample.

        Raises:
            PlanError: no such sample.
        """
        if not 0 <= sample_id < self.rows:
            raise PlanError(f"no sample {sample_id}: the data set has {self.rows} rows, ids 0 to {self.rows - 1}")
        unit = int(np.searchsorted(self.unit_first_id, sample_id, side="right")) - 1
        row = int(self.units.file_row[unit]) + sample_id - int(self.unit_first_id[unit])
        return self.files[int(self.units.file[unit])].url, row
