"""Which rows of the units are kept: by a filter, by a share of the ids, and of those that are left, the first ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ingest import rng
from ingest.spec import Split

_DRAWS = 1 << 53  # a share is a range of so many numbers
_BLOCK = 1 << 17  # ids hashed at a time: their arrays stay in the processor's cache
_NO_BITMAP = -1


@dataclass(frozen=True)
class Part:
    """A share of all sample ids: those whose hash lies in a range.

    Attributes:
        seed: of the hash.
        low, high: 0 <= low <= high <= 2**53; the top 53 bits of the hash lie in [low, high).
    """

    seed: int
    low: int
    high: int

    @classmethod
    def of(cls, split: Split) -> Part:
        """The part that a split takes; parts follow each other sorted by name, in whatever order they are written."""
        low, total = Fraction(0), sum(map(_exact, split.of.values()), Fraction(0))
        for name in sorted(split.of):
            high = low + _exact(split.of[name])
            if name == split.take:
                break
            low = high
        if high == total and abs(1 - total) < Fraction(1, 10**9):
            high = Fraction(1)  # three times 0.333... is meant to be everything
        return cls(split.seed, int(low * _DRAWS), min(_DRAWS, int(high * _DRAWS)))

    def holds(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Bool (n,): which of the ids it has."""
        draws = (rng.hashes(self.seed, ids) >> np.uint64(11)).astype(np.int64)
        return (draws >= self.low) & (draws < self.high)

    def counts(self, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Int64 (n,): how many ids it has in each of n runs, from edges[i] up to edges[i + 1]; none is empty."""
        counts = np.zeros(len(edges) - 1, np.int64)
        for start in range(int(edges[0]), int(edges[-1]), _BLOCK):
            stop = min(start + _BLOCK, int(edges[-1]))
            held = self.holds(np.arange(start, stop, dtype=np.int64))
            first = int(np.searchsorted(edges, start, side="right")) - 1
            last = int(np.searchsorted(edges, stop, side="left"))
            counts[first:last] += np.add.reduceat(held, np.maximum(edges[first:last] - start, 0), dtype=np.int64)
        return counts


def _exact(share: float) -> Fraction:
    """A share as it is written: 0.02 is a fiftieth."""
    return Fraction(str(share))


@dataclass(frozen=True)
class Selection:
    """The kept rows of each unit: the first ones, as many as the unit's `rows` says, that meet both conditions.

    Attributes:
        first_id: int64 (units,), the sample id of the unit's first row.
        total_rows: int64 (units,), of the unit in its file.
        bitmap: int64 (units,), where in `bits` the unit's bitmap begins; -1 where every row meets the filter.
        bits: uint8, bitmaps one after the other, each of whole bytes, least significant bit first.
        part: the share of the ids; None for all.
        data_rows: rows of the data set, those of units without a kept row included.
        digest: of the data set, whatever is kept of it.
    """

    first_id: NDArray[np.int64]
    total_rows: NDArray[np.int64]
    bitmap: NDArray[np.int64]
    bits: NDArray[np.uint8]
    part: Part | None
    data_rows: int
    digest: str

    @classmethod
    def of(
        cls,
        first_id: NDArray[np.int64],
        total_rows: NDArray[np.int64],
        bitmaps: Sequence[bytes | None],
        part: Part | None,
        data_rows: int,
        digest: str,
    ) -> Selection:
        """From the bitmap of each unit, None for those without."""
        sizes = np.array([0 if bitmap is None else len(bitmap) for bitmap in bitmaps], np.int64)
        starts = np.where(sizes > 0, np.cumsum(sizes) - sizes, _NO_BITMAP)
        bits = np.frombuffer(b"".join(bitmap for bitmap in bitmaps if bitmap is not None), np.uint8)
        return cls(first_id, total_rows, starts, bits, part, data_rows, digest)

    def bitmaps(self) -> list[bytes | None]:
        """The bitmap of each unit, None for those without."""
        sizes = -(-self.total_rows // 8)
        return [
            None if at == _NO_BITMAP else self.bits[at : at + size].tobytes()
            for at, size in zip(self.bitmap.tolist(), sizes.tolist(), strict=True)
        ]

    def is_prefix(self, unit: int) -> bool:
        """Whether the unit's kept rows are its first ones."""
        return self.part is None and bool(self.bitmap[unit] == _NO_BITMAP)

    def rows(self, unit: int, count: int) -> NDArray[np.int64]:
        """Int64 (count,): the first `count` kept rows, as rows inside the unit."""
        total, at = int(self.total_rows[unit]), int(self.bitmap[unit])
        met = _unpacked(None if at == _NO_BITMAP else self.bits[at : at + -(-total // 8)], total)
        if self.part is not None:
            first = int(self.first_id[unit])
            met &= self.part.holds(np.arange(first, first + total, dtype=np.int64))
        return np.flatnonzero(met)[:count].astype(np.int64)


@dataclass(frozen=True)
class Kept:
    """What a filter keeps of each unit.

    Attributes:
        rows: int64 (units,).
        bitmaps: of each unit as in `Selection`; None where it keeps all rows or none.
    """

    rows: NDArray[np.int64]
    bitmaps: Sequence[bytes | None]


def select(
    total_rows: NDArray[np.int64], kept: Kept | None, split: Split | None, limit: int | None, digest: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], Selection]:
    """Apply a filter's findings, then a split, then a limit.

    Args:
        total_rows: int64 (units,), all positive.
        kept: by the filter; None for all rows.
        split: the share of the ids to take.
        limit: the most rows.
        digest: of the data set.

    Returns:
        The units that keep a row, int64 (n,), sorted; how many each of them keeps, int64 (n,); and which.
    """
    edges = np.concatenate([[0], np.cumsum(total_rows)]).astype(np.int64)
    rows = total_rows if kept is None else kept.rows
    bitmaps: Sequence[bytes | None] = [None] * len(rows) if kept is None else kept.bitmaps
    part = None if split is None else Part.of(split)
    if part is not None and len(rows):
        rows = np.where(rows > 0, part.counts(edges), 0)
        for unit in [unit for unit in np.flatnonzero(rows).tolist() if bitmaps[unit] is not None]:
            ids = np.arange(edges[unit], edges[unit + 1])
            rows[unit] = np.count_nonzero(_unpacked(bitmaps[unit], len(ids)) & part.holds(ids))
    if limit is not None:
        rows = np.clip(limit - (np.cumsum(rows) - rows), 0, rows)
    units = np.flatnonzero(rows)
    left = [bitmaps[unit] for unit in units.tolist()]
    selection = Selection.of(edges[units], total_rows[units], left, part, int(edges[-1]), digest)
    return units, rows[units], selection


def _unpacked(bits: bytes | NDArray[np.uint8] | None, rows: int) -> NDArray[np.bool_]:
    """Bool (rows,) of a bitmap; all true without one."""
    if bits is None:
        return np.ones(rows, bool)
    packed = np.frombuffer(bits, np.uint8) if isinstance(bits, bytes) else bits
    return np.unpackbits(packed, count=rows, bitorder="little").astype(bool)
