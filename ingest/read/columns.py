"""Flat arrays that the kernels fill, and the Arrow columns they become without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.read.feature import KINDS, Feature
from ingest.read.kernels import kernels

_SLACK = 1.25
_FIRST_ROOM = ((8,), (64,))  # values, and bytes of strings, a record, before any was seen
_ALIGN = 64  # bytes; columns are that far apart at least, so that those of 2**k records do not share cache lines
_ARROW = {"bytes": pa.large_binary(), "float": pa.float32(), "int64": pa.int64()}


class FeaturePlan:
    """What follows from the features alone: arrays over them, in order.

    Attributes:
        features: themselves.
        texts: uint8, the names one after another.
        ends: int64 (n + 1,), where each name ends.
        kind: int64 (n,), as the kernels count kinds.
        width: int64 (n,), values a record, -1 where ragged.
        row: int64 (n,), of a ragged feature, its number among them.
        varies: bool (2, n): whether its values, and its bytes of strings, are known only after parsing.
        defaults: uint8, serialised Feature messages, read-only.
        default_start: int64 (n,), -1 where there is none.
        default_stop: int64 (n,).
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        names = [feature.name.encode() for feature in features]
        messages = [b"" if feature.default is None else feature.default_message() for feature in features]
        edges = np.cumsum([0, *map(len, messages)], dtype=np.int64)
        self.features = tuple(features)
        self.texts = np.frombuffer(b"".join(names), np.uint8).copy()
        self.ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
        self.kind = np.array([KINDS.index(feature.kind) + 1 for feature in features], np.int64)
        self.width = np.array([feature.width for feature in features], np.int64)
        self.row = np.cumsum(self.width < 0) - 1
        self.varies = np.array([self.width < 0, self.kind == KINDS.index("bytes") + 1])
        self.defaults = np.frombuffer(b"".join(messages), np.uint8)
        self.default_start = np.where([bool(message) for message in messages], edges[:-1], -1).astype(np.int64)
        self.default_stop = edges[1:].copy()


class Room:
    """The arrays of one call, for `rows` records of it; `grow` moves what is there into larger ones.

    Attributes:
        wanted: `wire.Wanted`.
        columns: `wire.Columns`.
    """

    def __init__(self, plan: FeaturePlan, records: int, rows: int) -> None:
        self._plan = plan
        self._wire = kernels()
        count = len(plan.features)
        self._offsets = np.zeros((int(plan.varies[0].sum()), records + 1), np.int64)
        self._used = np.zeros((2, count), np.int64)
        self._needed = np.zeros((2, count), np.int64)
        self._lay_out(rows, np.array(_FIRST_ROOM) * rows * plan.varies)

    def grow(self, kept: int, done: int, rows: int, needed: NDArray[np.int64], ahead_bytes: int) -> None:
        """Room for `rows` records, if they are like the first `done`, which need `needed` (int64 (2, n)).

        The first `kept` records move along. The room is not more than the `ahead_bytes` of the records still to come
        could fill: a value takes a byte at least, and so does a byte of a string, unless it comes from a default.
        """
        plan = self._plan
        from_default = np.maximum(plan.default_stop - plan.default_start, 0) * rows
        most = needed + ahead_bytes + [np.zeros_like(from_default), from_default]
        room = np.clip((needed * (rows / done * _SLACK)).astype(np.int64) + 8, needed, most)
        wanted, columns = self.wanted, self.columns
        self._lay_out(rows, room * plan.varies)
        for f, width in enumerate(plan.width.tolist()):
            if plan.kind[f] == self._wire.FLOAT:
                old, new, size = columns.floats, self.columns.floats, 4
            else:
                old, new, size = columns.slots, self.columns.slots, 1
            values = int(self._used[0, f]) if width < 0 else kept * width
            if plan.kind[f] == self._wire.BYTES:
                values += 1
                _move(columns.heap, wanted.heap[f], self.columns.heap, self.wanted.heap[f], int(self._used[1, f]))
            _move(old, wanted.base[f] * size, new, self.wanted.base[f] * size, values * size)

    def table(self, records: int) -> pa.Table:
        """The columns, over these arrays."""
        columns, arrays = self.columns, []
        for f, feature in enumerate(self._plan.features):
            base, width = int(self.wanted.base[f]), feature.width
            count = int(self._used[0, f]) if feature.ragged else records * width
            if feature.kind == "bytes":
                ends = pa.py_buffer(columns.slots[base : base + count + 1])
                heap = int(self.wanted.heap[f])
                text = pa.py_buffer(columns.heap[heap : heap + int(self._used[1, f])])
                values = pa.Array.from_buffers(pa.large_binary(), count, [None, ends, text])
            elif feature.kind == "float":
                buffer = pa.py_buffer(columns.floats.view(np.float32)[base : base + count])
                values = pa.Array.from_buffers(pa.float32(), count, [None, buffer])
            else:
                buffer = pa.py_buffer(columns.slots[base : base + count])
                values = pa.Array.from_buffers(pa.int64(), count, [None, buffer])
            arrays.append(self._shaped(values, feature, f, records))
        names = [feature.name for feature in self._plan.features]
        return pa.Table.from_arrays(arrays, names=names)

    def _shaped(self, values: pa.Array, feature: Feature, f: int, records: int) -> pa.Array:
        if feature.ragged:
            edges = pa.py_buffer(self._offsets[self._plan.row[f], : records + 1])
            return pa.Array.from_buffers(feature.arrow_type, records, [None, edges], children=[values])
        for size in reversed(feature.shape):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        return values

    def _lay_out(self, rows: int, room: NDArray[np.int64]) -> None:
        """New arrays, each feature's part at a place of its own."""
        plan, wire = self._plan, self._wire
        values = np.where(plan.width < 0, room[0], rows * plan.width) + (plan.kind == wire.BYTES)
        floats = plan.kind == wire.FLOAT
        slot_base, slots = _places(np.where(floats, 0, values), 8)
        float_base, float_count = _places(np.where(floats, values, 0), 4)
        heap, heap_bytes = _places(room[1], 1)
        self.wanted = wire.Wanted(
            kind=plan.kind,
            width=plan.width,
            base=np.where(floats, float_base, slot_base),
            room=room[0].copy(),
            heap=heap,
            heap_room=room[1].copy(),
            row=plan.row,
            default_start=plan.default_start,
            default_stop=plan.default_stop,
        )
        self.columns = wire.Columns(
            slots=np.empty(slots, np.int64),
            floats=np.empty(float_count, np.float32).view(np.uint8),
            heap=np.empty(heap_bytes, np.uint8),
            offsets=self._offsets,
            used=self._used,
            needed=self._needed,
        )
        self.columns.slots[slot_base[plan.kind == wire.BYTES]] = 0


def _places(sizes: NDArray[np.int64], item_bytes: int) -> tuple[NDArray[np.int64], int]:
    """(where each begins, the size of all), in items."""
    step = _ALIGN // item_bytes
    ends = np.cumsum(np.where(sizes > 0, -(-sizes // step) * step + step, 0))
    return np.concatenate([[0], ends[:-1]]).astype(np.int64), int(ends[-1]) if len(ends) else 0


def _move(old: Any, old_at: int, new: Any, new_at: int, size: int) -> None:
    new[new_at : new_at + size] = old[old_at : old_at + size]
