"""What a coverage log keeps of a plan, so that positions can be turned into sample ids without the data."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ingest.errors import SourceError
from ingest.plan.layout import Order
from ingest.plan.mixture import Layout, Mix, layout_of

PLAN_SUFFIX = ".plan.parquet"
_VERSION = 1
_META = b"ingest.plan"


@dataclass(frozen=True)
class PlanFacts:
    """What gives a plan's ids back.

    Attributes:
        digest: of the data.
        order: resolved.
        unit_rows, first_id: int64 (units,): kept rows of each unit, and the id of the first row it has in its file.
        kept: unit: int64 (rows,), which of the unit's rows are kept, where they are not its first ones.
        mix: how much of which units makes an epoch; None where an epoch is all of them once.
    """

    digest: str
    order: Order
    unit_rows: NDArray[np.int64]
    first_id: NDArray[np.int64]
    kept: Mapping[int, NDArray[np.int64]]
    mix: Mix | None = None

    @property
    def rows(self) -> int:
        """Of an epoch."""
        return int(self.unit_rows.sum()) if self.mix is None else self.mix.rows

    def layout(self, epoch: int) -> Layout:
        """Of an epoch."""
        return layout_of(self.unit_rows, self.order, epoch, self.mix)

    @property
    def _choices(self) -> dict[str, Any]:
        """Beside the arrays."""
        mixed = {} if self.mix is None else {"mix": asdict(self.mix)}
        return {"digest": self.digest, "order": asdict(self.order), **mixed}

    def sample_ids(self, unit: int, rows: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """The ids of a unit's rows, numbered as they are kept; all when None."""
        inside = np.arange(self.unit_rows[unit]) if rows is None else rows
        kept = self.kept.get(unit)
        ids: NDArray[np.int64] = self.first_id[unit] + (inside if kept is None else kept[inside])
        return ids

    def encode(self) -> bytes:
        """As a Parquet file, a row for each unit."""
        units = len(self.unit_rows)
        listed = [self.kept.get(unit, np.zeros(0, np.int64)) for unit in range(units)]
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in listed])]).astype(np.int64)
        missing = pa.array([unit not in self.kept for unit in range(units)], pa.bool_())
        values = pa.array(np.concatenate([np.zeros(0, np.int64), *listed]))
        kept = pa.LargeListArray.from_arrays(offsets, values, mask=missing)
        table = pa.table({"rows": self.unit_rows, "first_id": self.first_id, "kept": kept})
        facts = {"version": _VERSION, **self._choices}
        sink = io.BytesIO()
        table = table.replace_schema_metadata({_META: json.dumps(facts, sort_keys=True).encode()})
        pq.write_table(table, sink, compression="zstd")
        return sink.getvalue()

    @property
    def name(self) -> str:
        """Names the plan by what it says."""
        whole = hashlib.blake2b(json.dumps(list(self._choices.values()), sort_keys=True).encode(), digest_size=8)
        for array in (self.unit_rows, self.first_id, *(self.kept[unit] for unit in sorted(self.kept))):
            whole.update(array.astype("<i8").tobytes())
        return whole.hexdigest()


def decode_plan(name: str, data: bytes) -> PlanFacts:
    """The plan in a Parquet file.

    Raises:
        SourceError: it is something else.
    """
    try:
        table = pq.read_table(pa.BufferReader(data))
        facts = json.loads((table.schema.metadata or {})[_META])
        lists = table["kept"].combine_chunks()
        kept = {unit: lists[unit].values.to_numpy() for unit in range(len(lists)) if lists[unit].is_valid}
        order = Order(**facts["order"])
        rows, first = (table[column].to_numpy() for column in ("rows", "first_id"))
        mix = Mix(**{name: tuple(of_each) for name, of_each in facts["mix"].items()}) if "mix" in facts else None
        return PlanFacts(str(facts["digest"]), order, rows, first, kept, mix)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"not a plan of a coverage log: {error}", path=name) from error
