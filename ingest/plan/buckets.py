"""Batches of like lengths: each lane's share of some global batches is sorted by length and cut into as many groups.

A *chunk* is the rows of the next `batches` global batches. Of each lane's share of it, the rows are sorted by length
and cut into one group for each global batch, of near-equal padded tokens (rows times longest row). The groups come in
one permuted order, the same on all lanes, keyed by (seed, epoch, the chunk's start). So ranks have equal steps by
construction, a global batch depends on the lanes and not on the ranks, and a position says how far the chunk has come.

A rank takes the groups of its lanes. A lane on the border between ranks is split: of n rows in order of place, the
ranks before the border get n times their share of the lane, rounded, halves upwards; with at least one row in each
group, no rank of a world with at most as many ranks as lanes is then without a row. A rank that has none repeats one.

Chunks do not depend on who takes them: one that was under way is finished in its own groups whatever the world, each
in as many steps as the new global batch needs, and the next chunk is the new world's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ingest import rng
from ingest.plan.lanes import LaneRows, bit_reversal, rows_before
from ingest.plan.layout import Order
from ingest.plan.mixture import Layout
from ingest.plan.schedule import Chunk, Schedule, Share, Step, WindowNeeds, merge_needs, window_span


@dataclass(frozen=True)
class Bucketing:
    """What to sort by.

    Attributes:
        column: an output whose lists' lengths, or whose integers, are the lengths.
        batches: global batches of a chunk.
    """

    column: str
    batches: int


# -- groups ------------------------------------------------------------------------------------------------------------


def cut(lengths: NDArray[np.int64], groups: int, phase: float = 0.0) -> NDArray[np.int64]:
    """Int64 (rows,): the group of each row, 0 holding the shortest.

    The largest group has as few padded tokens (rows times longest row, a length of 0 counting as 1) as any such cut
    allows. Every group has a row where there are as many rows as groups.

    Args:
        lengths: int64 (rows,); rows of one length go in order of place.
        groups: how many.
        phase: 0 <= phase < 1, of the lane: lanes with fewer rows than groups leave different groups empty.
    """
    rows = len(lengths)
    order = np.argsort(lengths, kind="stable")
    of_sorted: NDArray[np.int64]
    if rows < groups:
        of_sorted = (np.arange(rows, dtype=np.int64) * groups + int(phase * groups)) // max(1, rows)
    else:
        of_sorted = np.repeat(np.arange(groups), np.diff(_borders(np.maximum(lengths[order], 1).tolist(), groups)))
    out = np.empty(rows, np.int64)
    out[order] = of_sorted
    return out


def _borders(lengths: list[int], groups: int) -> list[int]:
    """Where each group begins, and the end, of sorted positive lengths."""
    low, high = lengths[-1], lengths[-1] * len(lengths)
    while low < high:
        middle = (low + high) // 2
        if len(_filled(lengths, middle, groups)) - 1 <= groups:
            high = middle
        else:
            low = middle + 1
    borders = _filled(lengths, low, groups)
    while len(borders) - 1 < groups:  # groups to spare: halve the largest that can be
        sizes = [b - a for a, b in itertools.pairwise(borders)]
        tokens = [size * lengths[b - 1] if size > 1 else 0 for size, b in zip(sizes, borders[1:], strict=True)]
        largest = tokens.index(max(tokens))
        borders.insert(largest + 1, (borders[largest] + borders[largest + 1]) // 2)
    return borders


def _filled(lengths: list[int], tokens: int, groups: int) -> list[int]:
    """Borders of groups of at most so many padded tokens, filled from the longest; given up beyond `groups`."""
    borders = [len(lengths)]
    while borders[-1] > 0 and len(borders) <= groups + 1:
        end = borders[-1]
        borders.append(max(0, end - tokens // lengths[end - 1]))
    return borders[::-1]


def lane_shares(share: Share, lanes: int) -> list[tuple[int, int, int]]:
    """(lane, from, to) of each lane that a rank takes of: its part of the lane, in parts of 1 / world size."""
    rank, world = share.rank, share.world_size
    found = []
    for lane in range(rank * lanes // world, -(-(rank + 1) * lanes // world)):
        begin, end = (min(max(each * lanes - lane * world, 0), world) for each in (rank, rank + 1))
        found.append((lane, begin, end))
    return found


class Groups:
    """A rank's rows of one chunk, sorted and cut.

    Args:
        order, epoch: of the layout.
        chunk: which.
        share: the rank's.
        lengths: of each of the rank's lanes, the lengths of its rows in the chunk in order of place, int64.
    """

    def __init__(
        self, order: Order, epoch: int, chunk: Chunk, share: Share, lengths: Mapping[int, NDArray[np.int64]]
    ) -> None:
        self.chunk, self._share, self._lanes = chunk, share, order.lanes
        self._turn = rng.permutation(order.seed, rng.ORDER_GROUPS, epoch, chunk.start, chunk.groups)
        self._rows: dict[int, list[NDArray[np.int64]]] = {}
        self._behind = np.zeros(chunk.groups + 1, np.int64)  # rows of the groups from each on, of this rank's own lanes
        first = rows_before(chunk.start, order.lanes)
        reversed_ = bit_reversal(order.lanes)
        self._shortest: dict[int, int] = {}
        for lane, some in lengths.items():
            group = cut(some, chunk.groups, int(reversed_[lane]) / order.lanes)
            by_group = np.argsort(group, kind="stable")
            ends = np.cumsum(np.bincount(group, minlength=chunk.groups))[:-1]
            self._rows[lane] = np.split(first[lane] + by_group, ends)
            if self._owns(lane):
                sizes = np.bincount(group, minlength=chunk.groups)[self._turn]
                self._behind[:-1] += np.cumsum(sizes[::-1])[::-1]
            if len(some):
                self._shortest[lane] = int(first[lane] + np.argmin(some))

    def _owns(self, lane: int) -> bool:
        """Whether this rank is the first of those that take of a lane."""
        return lane * self._share.world_size >= self._share.rank * self._lanes

    def step(self, part: Part) -> Step:
        """The rows of a part of a group."""
        number, begin, end = self.chunk.group(part.begin)
        world, width = self._share.world_size, end - begin
        rows, left = {}, int(self._behind[number + 1])
        for lane, low, high in lane_shares(self._share, self._lanes):
            group = self._rows[lane][int(self._turn[number])]
            first, last = (len(group) * (each - begin) // width for each in (part.begin, part.after))
            count = last - first
            own = slice(*(first + (2 * count * each + world) // (2 * world) for each in (low, high)))
            rows[lane] = group[own]
            left += len(group) - last if self._owns(lane) else 0
        taken = sum(len(each) for each in rows.values())
        if taken:
            return Step(part.epoch, part.index, LaneRows.of(rows), None, taken, part.after, self.chunk, left)
        lane, row = next(iter(self._shortest.items()))
        runs = LaneRows.of({lane: np.array([row], np.int64)})
        return Step(part.epoch, part.index, runs, np.zeros(1, np.int64), 0, part.after, self.chunk, left)


# -- steps -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A step of a chunk whose lengths are not known yet: what its group holds between two positions.

    Attributes:
        epoch, index, after: as of the `Step` that it becomes.
        chunk: whose rows it takes.
        begin: the position before it.
    """

    epoch: int
    index: int
    chunk: Chunk
    begin: int
    after: int


class Course:
    """How the rest of an epoch is cut into chunks, the same on every rank.

    Args:
        rows: of the epoch.
        lanes: of the order.
        share: a rank's.
        batches: global batches of a chunk.
        position: where to begin.
        chunk: that the position lies in, cut for any global batch; None at a border.

    Attributes:
        pending: the chunk that is under way.
        first: where this world's own chunks begin.
        groups: steps that its own chunks take.
        end: where they end. What follows is dealt as it lies: the rows that `drop` leaves out; the last batch that
            `pad` fills up; rows fewer than the lanes.
        sorted_steps: steps of chunks, the pending one included.
        steps: all of them.
    """

    def __init__(
        self, rows: int, lanes: int, share: Share, batches: int, position: int = 0, chunk: Chunk | None = None
    ) -> None:
        self.share, self.batches, self.position = share, batches, position
        self.pending = chunk if chunk and chunk.under_way(position) and chunk.end - chunk.start >= lanes else None
        self.first = self.pending.end if self.pending else position
        batch = share.global_batch
        full, tail = divmod(rows - self.first, batch)
        # A smaller batch of all lengths would be the largest of the epoch in tokens: `keep` sorts its rows too.
        self.groups = full + (share.last == "keep" and tail >= lanes)
        self.end = min(self.first + self.groups * batch, rows)
        last = self.first + max(0, self.groups - 1) // batches * batches * batch
        if batches * batch < lanes:
            last = self.first
        if batches * batch < lanes or self.end - last < lanes:
            self.groups, self.end = (last - self.first) // batch, last
        self._cuts = self._pending_cuts()
        self.sorted_steps = len(self._cuts) - 1 + self.groups
        self.steps = self.sorted_steps + share.steps(rows - self.end)

    def _pending_cuts(self) -> list[int]:
        """The positions at which the steps of the pending chunk begin, and its end."""
        cuts = [self.position]
        while self.pending and cuts[-1] < self.pending.end:
            cuts.append(min(cuts[-1] + self.share.global_batch, self.pending.group(cuts[-1])[2]))
        return cuts

    def part(self, epoch: int, index: int) -> Part:
        """The step `index` of those of chunks."""
        pending = len(self._cuts) - 1
        if self.pending and index < pending:
            return Part(epoch, index, self.pending, self._cuts[index], self._cuts[index + 1])
        own, batch = index - pending, self.share.global_batch
        size = self.batches * batch
        start = self.first + own // self.batches * size
        begin = self.first + own * batch
        chunk = Chunk(start, min(start + size, self.end), batch)
        return Part(epoch, index, chunk, begin, min(begin + batch, self.end))

    def needed(self, position: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Int64 (rows,) each: the first and the last step of the chunk that each row belongs to."""
        pending = len(self._cuts) - 1
        number = (position - self.first) // (self.batches * self.share.global_batch)
        first = pending + number * self.batches
        last = np.minimum(first + self.batches, self.sorted_steps) - 1
        own = position >= self.first
        return np.where(own, first, 0), np.where(own, last, pending - 1)


class BucketSchedule:
    """One rank's way through an epoch in batches of like lengths; as `Schedule`, but that steps of chunks come as
    `Part`s, which `Groups` turns into rows once the lengths are known.

    Args:
        layout: the epoch.
        share: the rank's share.
        batches: global batches of a chunk.
        position: rows of the epoch already consumed.
        chunk: that the position lies in; None at a border.

    Raises:
        PlanError: the position lies outside the epoch.
    """

    def __init__(
        self, layout: Layout, share: Share, batches: int, position: int = 0, chunk: Chunk | None = None
    ) -> None:
        self.layout, self.share = layout, share
        self.course = Course(layout.rows, layout.order.lanes, share, batches, position, chunk)
        self._rest = Schedule(layout, share, self.course.end)
        self.steps = self.course.steps

    def __iter__(self) -> Iterator[Step | Part]:
        course = self.course
        for index in range(course.sorted_steps):
            yield course.part(self.layout.epoch, index)
        for step in self._rest:
            yield replace(step, index=course.sorted_steps + step.index)

    def lane_rows(self, chunk: Chunk) -> dict[int, tuple[int, int]]:
        """Lane: [begin, end) of its rows in a chunk, for the lanes that the rank takes of."""
        lanes = self.layout.order.lanes
        low, high = rows_before(chunk.start, lanes), rows_before(chunk.end, lanes)
        return {lane: (int(low[lane]), int(high[lane])) for lane, _, _ in lane_shares(self.share, lanes)}

    def groups(self, chunk: Chunk, lengths: Mapping[int, NDArray[np.int64]]) -> Groups:
        """See `Groups`."""
        return Groups(self.layout.order, self.layout.epoch, chunk, self.share, lengths)

    @cached_property
    def windows(self) -> WindowNeeds:
        """The windows this rank reads, in order of need: all of a chunk at its first step."""
        course = self.course
        begin = course.pending.start if course.pending else course.first
        found = []
        for lane, (low, high) in self.lane_rows(Chunk(begin, course.end, 1)).items():
            if high > low:
                span = window_span(self.layout, lane, low, high)
                span[2], span[3] = course.needed(span[2])[0], course.needed(span[3])[1]
                found.append(span)
        rest = self._rest.windows
        shift = course.sorted_steps
        found.append(np.stack([rest.lane, rest.window, rest.first_step + shift, rest.last_step + shift]))
        return merge_needs(*np.concatenate(found, axis=1))
