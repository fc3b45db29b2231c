"""The manifests of several sources as one: units one source after another, sample ids offset."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.errors import PlanError, SchemaError
from ingest.manifest.columns import common_type
from ingest.manifest.model import Manifest, Units


@dataclass(frozen=True)
class MixedManifest(Manifest):
    """Several manifests as one; what it tells of a unit or a sample is what the unit's own manifest tells.

    Attributes:
        sources: the manifests, with one schema.
    """

    sources: tuple[Manifest, ...] = ()

    @property
    def parts(self) -> tuple[Manifest, ...]:
        return self.sources

    @cached_property
    def first_ids(self) -> tuple[int, ...]:
        """Of each source, where its sample ids begin: at the rows of all sources before it, kept or not."""
        totals = np.cumsum([0, *(part.data_rows for part in self.sources)])
        return tuple(int(total) for total in totals[:-1])

    @cached_property
    def _first_units(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(len(part.units) for part in self.sources)]).astype(np.int64)

    def _of(self, unit: int) -> tuple[int, Manifest, int]:
        source = int(np.searchsorted(self._first_units, unit, side="right")) - 1
        return source, self.sources[source], unit - int(self._first_units[source])

    def local(self, units: Iterable[int]) -> tuple[int, list[int]]:
        found = [self._of(unit) for unit in units]
        (source,) = {source for source, _, _ in found}
        return source, [unit for _, _, unit in found]

    @property
    def data_rows(self) -> int:
        return sum(part.data_rows for part in self.sources)

    @cached_property
    def unit_first_id(self) -> NDArray[np.int64]:
        firsts = zip(self.sources, self.first_ids, strict=True)
        return np.concatenate([part.unit_first_id + first for part, first in firsts])

    def unit_rows(self, unit: int, kept: NDArray[np.int64] | None = None) -> NDArray[np.int64] | slice:
        _, part, local = self._of(unit)
        return part.unit_rows(local, kept)

    def unit_total(self, unit: int) -> int:
        _, part, local = self._of(unit)
        return part.unit_total(local)

    def sample_ids(self, unit: int, kept: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        source, part, local = self._of(unit)
        return part.sample_ids(local, kept) + self.first_ids[source]

    @cached_property
    def digest(self) -> str:
        """Of the sources' digests, in their order."""
        digests = json.dumps([part.digest for part in self.sources]).encode()
        return hashlib.blake2b(digests, digest_size=16).hexdigest()

    def locate(self, sample_id: int) -> tuple[str, int]:
        if not 0 <= sample_id < self.data_rows:
            last = self.data_rows - 1
            raise PlanError(f"no sample {sample_id}: the sources have {self.data_rows} rows, ids 0 to {last}")
        # The last that begins there or before: a source without rows begins where the next one does.
        source = int(np.searchsorted(self.first_ids, sample_id, side="right")) - 1
        return self.sources[source].locate(sample_id - self.first_ids[source])


def mix_manifests(manifests: Sequence[Manifest], names: Sequence[str]) -> MixedManifest:
    """The manifests of several sources as one.

    Args:
        manifests: one for each source.
        names: what errors call each source.

    Raises:
        SchemaError: outputs, their types or their classes differ; both sides are shown.
    """
    schema = _merged(manifests, names)
    sources = tuple(replace(manifest, schema=schema) for manifest in manifests)
    first_file = np.cumsum([0, *(len(manifest.files) for manifest in manifests)])
    columns = {one.name: [getattr(manifest.units, one.name) for manifest in manifests] for one in fields(Units)}
    columns["file"] = [file + int(first) for file, first in zip(columns["file"], first_file, strict=False)]
    return MixedManifest(
        format=" and ".join(sorted({manifest.format for manifest in manifests})),
        files=tuple(file for manifest in manifests for file in manifest.files),
        units=Units(**{name: np.concatenate(arrays) for name, arrays in columns.items()}),
        schema=schema,
        columns=manifests[0].columns,
        classes=manifests[0].classes,
        damage=tuple(damage for manifest in manifests for damage in manifest.damage),
        sources=sources,
    )


def _merged(manifests: Sequence[Manifest], names: Sequence[str]) -> pa.Schema:
    """The outputs of all sources, in the first one's order."""
    first, name = manifests[0], names[0]
    for other, other_name in zip(manifests[1:], names[1:], strict=True):
        if set(other.schema.names) != set(first.schema.names):
            raise SchemaError(
                f"outputs differ: {name} gives {', '.join(sorted(first.schema.names))}; "
                f"{other_name} gives {', '.join(sorted(other.schema.names))}",
                hint="Give each source columns with the same output names",
            )
        for output in sorted({*first.classes, *other.classes}):
            mine, its = first.classes.get(output), other.classes.get(output)
            if mine != its:
                said = [f"{len(one)} classes" if one is not None else "no classes" for one in (mine, its)]
                raise SchemaError(
                    f"the classes of '{output}' differ: {name} has {said[0]}, {other_name} has {said[1]}, and a number "
                    "would stand for different strings",
                    hint=f"Declare one list in both: classes: {{{output}: [...]}}",
                )
    return pa.schema([pa.field(output, _common(output, manifests, names)) for output in first.schema.names])


def _common(output: str, manifests: Sequence[Manifest], names: Sequence[str]) -> pa.DataType:
    """The smallest type that holds an output of every source; TFRecord is not widened, but read as it was found."""
    kinds = [manifest.schema.field(output).type for manifest in manifests]
    wide = kinds[0]
    for kind in kinds[1:]:
        wide = wide if wide is None else common_type(wide, kind)
    for kind, manifest, name in zip(kinds, manifests, names, strict=True):
        if wide is None or (kind != wide and manifest.format != "parquet"):
            odd = next(i for i, other in enumerate(kinds) if other != kind)
            raise SchemaError(
                f"output '{output}' has type {kind} in {name} and {kinds[odd]} in {names[odd]}",
                hint="Write one of them with the other's type; of TFRecord, declare it in the source's schema",
            )
    return wide
