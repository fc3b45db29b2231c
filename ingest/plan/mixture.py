"""An epoch mixed of several sources: how much each gives, and which of its rows stands where.

Each source is laid out on the same lanes as if it were alone, pass after pass, and each lane takes from its own share
of every source by the pattern of `plan.pattern`. A source's windows stay open for as long as its rows are spread over
the lane, so a unit is read once in a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingest.errors import PlanError
from ingest.plan.lanes import bit_reversal
from ingest.plan.layout import EpochLayout, LaneWindows, Order, Pass, Stretch, WindowKey
from ingest.plan.pattern import Pattern

Stop = Literal["first_exhausted", "all_exhausted", "steps"]
MOST_PASSES = 10_000  # of a source in an epoch: each costs a read for each lane
_PASS, _SOURCE = 24, 52  # bits of a window's number: the window in its pass, the pass in the epoch, the source


def take_rows(rows: Sequence[int], weights: Sequence[float], stop: Stop, total: int | None = None) -> tuple[int, ...]:
    """How many rows each source gives to an epoch.

    Args:
        rows: of each source.
        weights: of each source, not negative; as they are written: 0.1 is a tenth.
        stop: `first_exhausted`: the source that is used up first is delivered once and ends the epoch;
            `all_exhausted`: the one that is used up last is, and the others are repeated; `steps`: `total` rows.
        total: rows of the epoch, with `steps`.

    Raises:
        PlanError: a source with a weight has no rows, none has a weight, or one would repeat too often.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    for source, (count, weight) in enumerate(zip(rows, exact, strict=True)):
        if weight and not count:
            raise PlanError(f"sources.{source} has a weight of {weights[source]} and no rows", hint="Leave it out")
    active = [source for source, weight in enumerate(exact) if weight]
    if not active:
        raise PlanError("no source has a weight", hint="Give one of them a weight above 0")
    if stop == "steps":
        take = _apportion(total or 0, exact)
    else:
        lasts = {source: rows[source] / exact[source] for source in active}
        choose = min if stop == "first_exhausted" else max
        lasting = choose(lasts.values())
        take = [round(weight * lasting) for weight in exact]
    for source in active:
        passes = -(-take[source] // rows[source])
        if passes > MOST_PASSES:
            raise PlanError(
                f"sources.{source} has {rows[source]} rows and would come {passes} times in an epoch, which may be "
                f"{MOST_PASSES}",
                hint="Lower its weight, write it several times over, or use another mix.stop",
            )
    return tuple(take)


def _apportion(total: int, weights: Sequence[Fraction]) -> list[int]:
    """`total` in shares by weight, whole numbers; the largest remainders are rounded up (Hamilton's method)."""
    shares = [total * weight / sum(weights, Fraction(0)) for weight in weights]
    take = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda source: (take[source] - shares[source], source))
    for source in by_remainder[: total - sum(take)]:
        take[source] += 1
    return take


@dataclass(frozen=True)
class Mix:
    """What an epoch is mixed of.

    Attributes:
        units: of each source.
        take: rows that each source gives to an epoch; more than it has means further passes.
    """

    units: tuple[int, ...]
    take: tuple[int, ...]

    @property
    def rows(self) -> int:
        return sum(self.take)

    def source_rows(self, unit_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Int64 (sources,): rows that each source has, of the rows of all units."""
        ends = np.concatenate([[0], np.cumsum(unit_rows)])[np.cumsum((0, *self.units))]
        rows: NDArray[np.int64] = np.diff(ends).astype(np.int64)
        return rows

    def passes(self, unit_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Int64 (sources,): passes of each source in an epoch, the last of them perhaps a part of one."""
        passes: NDArray[np.int64] = -(-np.array(self.take, np.int64) // np.maximum(self.source_rows(unit_rows), 1))
        return passes


class _Held(NamedTuple):
    """Windows of a source in a lane; int64 (windows,) each: numbers, where each begins in the source's share of the
    lane, and the rows [low, high) of it that are asked for.
    """

    number: NDArray[np.int64]
    start: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]


class MixtureLayout:
    """The sequence of one epoch of a mixture; see `EpochLayout`, whose place it takes.

    Windows are numbered by source, pass and place. Costs O(units) for each pass that is looked at.

    Args:
        unit_rows: int64 (units,), all positive, those of one source after another.
        order: seed, shuffle, lanes, interleave (of each source's windows).
        epoch: which epoch.
        mix: how much of what.
    """

    def __init__(self, unit_rows: NDArray[np.int64], order: Order, epoch: int, mix: Mix) -> None:
        self.order, self.epoch, self.mix = order, epoch, mix
        self.unit_rows = np.asarray(unit_rows, np.int64)
        self._first_unit = np.cumsum(mix.units) - mix.units
        self._rows = mix.source_rows(self.unit_rows)
        self._passes = mix.passes(self.unit_rows)
        self._origin = np.cumsum(mix.take) - mix.take
        self._active = [source for source, take in enumerate(mix.take) if take]
        self._of_pass = lru_cache(maxsize=None)(self._lay_out)  # altogether as large as a data set of all passes
        self._windows = lru_cache(maxsize=4096)(self._lane_of_pass)

    @cached_property
    def pattern(self) -> Pattern:
        return Pattern(self.mix.take, self.order.lanes)

    @property
    def rows(self) -> int:
        return self.mix.rows

    @cached_property
    def demand(self) -> NDArray[np.float64]:
        """Float64 (units,): how often an epoch needs each unit."""
        return np.repeat(np.array(self.mix.take) / np.maximum(self._rows, 1), self.mix.units)

    @property
    def open_sources(self) -> list[int]:
        """Units of each source that gives rows."""
        return [self.mix.units[source] for source in self._active]

    # -- passes and their windows --------------------------------------------------------------------------------------

    def _lay_out(self, source: int, index: int) -> EpochLayout:
        rows, first = int(self._rows[source]), int(self._first_unit[source])
        place = Pass(
            source=source,
            first_unit=first,
            origin=int(self._origin[source]) + index * rows,
            take=min(rows, self.mix.take[source] - index * rows),
            whole=self._whole(source),
        )
        number = self.epoch * int(self._passes[source]) + index
        return EpochLayout(self.unit_rows[first : first + self.mix.units[source]], self.order, number, place)

    def _lane_of_pass(self, source: int, index: int, lane: int) -> LaneWindows:
        return self._of_pass(source, index).cut(lane)

    def _dealt(self, source: int, index: NDArray[np.int64] | int, lane: int) -> NDArray[np.int64]:
        """How many rows of all sources before this one, and of its passes before `index`, a lane has."""
        before = self._origin[source] + index * self._rows[source]
        dealt: NDArray[np.int64] = -((bit_reversal(self.order.lanes)[lane] - before) // self.order.lanes)
        return dealt

    def _held(self, lane: int, source: int, low: int, high: int) -> _Held:
        """The windows that rows [low, high) of a source's share of a lane lie in."""
        lanes, base = self.order.lanes, int(self._dealt(source, 0, lane))
        place = np.array([base + low, base + high - 1]) * lanes + bit_reversal(lanes)[lane]
        first, last = ((place - self._origin[source]) // self._rows[source]).tolist()
        passes = np.arange(first, last + 1)
        edges = self._dealt(source, np.arange(first, last + 2), lane) - base
        some = edges[1:] > edges[:-1]
        passes, begin, end = passes[some], edges[:-1][some], edges[1:][some]
        if self._whole(source):
            windows, starts, ends = np.zeros(len(passes), np.int64), begin, end
        else:
            cuts = [self._windows(source, index, lane).row_start for index in passes.tolist()]
            counts = [len(cut) - 1 for cut in cuts]
            windows = np.concatenate([np.arange(count) for count in counts])
            passes, begin = np.repeat(passes, counts), np.repeat(begin, counts)
            starts, ends = (begin + np.concatenate([cut[side] for cut in cuts]) for side in (slice(-1), slice(1, None)))
        keep = (starts < high) & (ends > low)
        windows, passes, starts, ends = windows[keep], passes[keep], starts[keep], ends[keep]
        number = source << _SOURCE | passes << _PASS | windows
        return _Held(number, starts, np.maximum(starts, low), np.minimum(ends, high))

    def _whole(self, source: int) -> bool:
        """Whether each lane's share of a pass is one window: of small sources, which repeat, this need not be asked."""
        return bool(self._passes[source] > 1 and self.mix.units[source] <= self.order.interleave)

    def _shares(self, lane: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """(source, low, high): the rows of each source that rows [low, high) of a lane are."""
        counts = self.pattern.before(lane, np.array([low, high]))
        for source in self._active:
            begin, end = counts[source].tolist()
            if end > begin:
                yield source, begin, end

    # -- as of any layout ----------------------------------------------------------------------------------------------

    def needs(self, lane: int, low: int, high: int) -> NDArray[np.int64]:
        """Int64 (3, windows): windows that rows [low, high) of a lane lie in, the first and the last of those rows."""
        found = [np.zeros((3, 0), np.int64)]
        for source, begin, end in self._shares(lane, low, high):
            held = self._held(lane, source, begin, end)
            places = self.pattern.row(source, lane, np.concatenate([held.low, held.high - 1])).reshape(2, -1)
            found.append(np.stack([held.number, *places]))
        return np.concatenate(found, axis=1)

    def stretches(self, lane: int, low: int, high: int) -> tuple[list[Stretch], NDArray[np.int64] | None]:
        """The rows [low, high) of a lane as rows of windows, source by source; and int64 (rows,), the place in the run
        of each of them (None where that is their order).
        """
        found: list[Stretch] = []
        places = []
        for source, begin, end in self._shares(lane, low, high):
            held = self._held(lane, source, begin, end)
            rows = (held.number.tolist(), (held.low - held.start).tolist(), (held.high - held.start).tolist())
            found += [Stretch(*row) for row in zip(*rows, strict=True)]
            places.append(self.pattern.row(source, lane, np.arange(begin, end)) - low)
        return found, np.concatenate(places) if len(places) > 1 else None

    def picked(
        self, lane: int, rows: slice | NDArray[np.int64]
    ) -> tuple[list[tuple[int, slice | NDArray[np.int64]]], NDArray[np.int64]]:
        """Some rows of a lane, sorted int64 or a slice, source by source: (window, its rows); and int64 (rows,), of
        each of them which of those asked for it is.
        """
        if isinstance(rows, slice):
            stretches, inside = self.stretches(lane, rows.start, rows.stop)
            places = np.arange(rows.stop - rows.start) if inside is None else inside
            return [(window, slice(begin, end)) for window, begin, end in stretches], places
        if not len(rows):
            return [], rows
        low, high = int(rows[0]), int(rows[-1]) + 1
        stretches, inside = self.stretches(lane, low, high)
        number = np.full(high - low, -1, np.int64)
        number[rows - low] = np.arange(len(rows))
        number = number if inside is None else number[inside]
        found: list[tuple[int, slice | NDArray[np.int64]]] = []
        at = 0
        for window, begin, end in stretches:
            wanted = np.flatnonzero(number[at : at + end - begin] >= 0)
            at += end - begin
            if len(wanted):
                found.append((window, begin + wanted))
        return found, number[number >= 0]

    def key(self, lane: int, window: int) -> WindowKey:
        source, index, inside = _named(window)
        return self._of_pass(source, index).key(lane, inside)

    def spans(self, lane: int, window: int) -> Iterator[tuple[int, int, int]]:
        source, index, inside = _named(window)
        return self._windows(source, index, lane).spans(inside)

    def window_rows(self, lane: int, window: int) -> int:
        source, index, inside = _named(window)
        return self._windows(source, index, lane).window_rows(inside)

    def lane_units(self, lane: int) -> NDArray[np.int64]:
        """Int64 (pieces,): the unit of each piece that a lane holds."""
        return np.concatenate([windows.unit for windows in self._all_of(lane)])

    def lane_windows(self, lane: int) -> int:
        return sum(len(windows) for windows in self._all_of(lane))

    def _all_of(self, lane: int) -> Iterator[LaneWindows]:
        for source in self._active:
            for index in range(int(self._passes[source])):
                yield self._of_pass(source, index).cut(lane)

    def origins(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source of the row at each position of the epoch, and its pass in the epoch; int64 (n,) each."""
        lanes = self.order.lanes
        turn, row = positions % lanes, positions // lanes
        lane = bit_reversal(lanes)[turn]  # its own inverse
        before = self.pattern.before(lane, row)
        source = np.argmax(self.pattern.before(lane, row + 1) - before, axis=0).astype(np.int64)
        index = np.take_along_axis(before, source[None], axis=0)[0]
        base = -((turn - self._origin[source]) // lanes)
        place = (base + index) * lanes + turn - self._origin[source]
        return source, place // self._rows[source]


Layout: TypeAlias = EpochLayout | MixtureLayout


def layout_of(unit_rows: NDArray[np.int64], order: Order, epoch: int, mix: Mix | None) -> Layout:
    """The layout of an epoch, of a mixture where there is one."""
    return EpochLayout(unit_rows, order, epoch) if mix is None else MixtureLayout(unit_rows, order, epoch, mix)


def _named(window: int) -> tuple[int, int, int]:
    """(source, pass in the epoch, window in its lane's pass) of a number."""
    return window >> _SOURCE, window >> _PASS & (1 << _SOURCE - _PASS) - 1, window & (1 << _PASS) - 1
