"""Which function reads a window of units, by the format of the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from ingest.manifest.model import Manifest
from ingest.spec import Spec, Storage


@dataclass(frozen=True)
class ReadOptions:
    """What the spec says about reading.

    Attributes:
        storage: how to reach the store.
        fill: output name: the value that stands for a null.
        check_payload: compare TFRecord payloads with their checksums.
        mark_bad: give rows whose content is damaged a row that means nothing, and say so in a column, instead of an
            error.
    """

    storage: Storage = field(default_factory=Storage)
    fill: dict[str, Any] = field(default_factory=dict)
    check_payload: bool = True
    mark_bad: bool = False

    @classmethod
    def of(cls, spec: Spec, number: int = 0) -> ReadOptions:
        """Of the source with that number."""
        source = spec.inputs[number]
        mark_bad = spec.errors.on_bad_sample == "replace"
        return cls(spec.reading(source), dict(source.fill), source.tfrecord.check_payload_crc, mark_bad)


def window_call(
    manifest: Manifest, units: Mapping[int, NDArray[Any] | None], options: ReadOptions
) -> tuple[Callable[..., pa.Table], tuple[Any, ...]]:
    """(function, arguments) that read some units, one after another, as one table; to be called anywhere.

    Args:
        manifest: of the data.
        units: index of a unit: which of its kept rows, sorted int64 (n,); None for all of them. All of one source.
        options: from the spec, of that source.
    """
    source, local = manifest.local(units)
    manifest, units = manifest.parts[source], dict(zip(local, units.values(), strict=True))
    held = manifest.units
    places = [(manifest.files[held.file[unit]], unit, manifest.unit_rows(unit, rows)) for unit, rows in units.items()]
    if manifest.format == "parquet":
        from ingest.read.marks import read_marked
        from ingest.read.parquet import Piece, read_window

        pieces = tuple(
            Piece(entry, int(held.ordinal[unit]), rows, manifest.unit_total(unit)) for entry, unit, rows in places
        )
        args = (manifest.schema, manifest.columns, options.storage, options.fill, manifest.classes)
        return read_marked if options.mark_bad else read_window, (pieces, *args)
    from ingest.read.tfrecord import Run, Wanted, read_records

    runs = tuple(
        Run(entry, int(held.offset[unit]), int(held.bytes[unit]), int(held.file_row[unit]), rows)
        for entry, unit, rows in places
    )
    wanted = Wanted(
        manifest.schema,
        manifest.columns,
        manifest.features,
        manifest.classes,
        options.fill,
        options.check_payload,
        "mark" if options.mark_bad else "raise",
    )
    return read_records, (runs, wanted, options.storage)
