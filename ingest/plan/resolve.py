"""The choices behind `auto`, and what a plan costs: lanes, interleave, read amplification, memory, shuffle quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ingest.errors import PlanError
from ingest.plan.lanes import lane_starts, lanes_touched
from ingest.plan.layout import EpochLayout, Order
from ingest.plan.mixture import Layout, Mix
from ingest.plan.reads import UnitSizes, gather_reads
from ingest.plan.schedule import Schedule, Share

LANES_PER_RANK = 8
OPEN_WINDOWS = 4  # of a rank at least, however few its lanes: one is read while another is delivered
OPEN_UNITS = (
    4096  # of a rank at most: the first batch waits for each one's request, and shuffles hardly better with more
)
MAX_AMPLIFICATION = 1.25
MOST_RANKS = 4096  # whose schedules are looked at one by one, a few milliseconds each
EXACT_WINDOWS = 20_000  # above it, amplification is counted without merged reads, which then save next to nothing


@dataclass(frozen=True)
class Wanted:
    """The order section of a spec, as plain values; None stands for `auto`.

    `bucketed`: each lane's rows are sorted by length, which wastes the less the more rows a lane has: few lanes.
    """

    seed: int
    shuffle: Literal["none", "window", "full"]
    lanes: int | None
    interleave: int | None
    window_bytes: int
    bucketed: bool = False


def resolve(
    wanted: Wanted,
    unit_rows: NDArray[np.int64],
    sizes: UnitSizes,
    world_size: int,
    memory_bytes: int | None = None,
    mix: Mix | None = None,
) -> Order:
    """Lanes and interleave as numbers: a function of the data, the spec and the world of the first start.

    Args:
        wanted: what the spec says.
        unit_rows: int64 (units,).
        sizes: bytes of the units.
        world_size: ranks.
        memory_bytes: what one rank may hold of the object store; None when not known.
        mix: of several sources, each of which has windows of its own open; None for one.

    Raises:
        PlanError: no rows; or a full shuffle that does not fit the memory.
    """
    if len(unit_rows) == 0:
        raise PlanError("the data set has no rows", hint="Check source.path and that the files hold rows")
    window_bytes = open_bytes(wanted.window_bytes, memory_bytes)
    if wanted.shuffle == "full":
        _check_full(int(sizes.memory.sum()), world_size, memory_bytes, wanted.window_bytes)
    parts = _parts(unit_rows, sizes, mix)
    lanes = wanted.lanes or _lanes(wanted, parts, world_size, window_bytes)
    open_lanes = max(OPEN_WINDOWS if wanted.bucketed else 1, -(-lanes // world_size))
    unit_bytes = max(1, sum(int(part.sizes.memory.sum()) // len(part.unit_rows) for part in parts))
    most = max(-(-len(part.unit_rows) // lanes) + 1 for part in parts)
    fitting = min(window_bytes // unit_bytes, OPEN_UNITS) // open_lanes
    interleave = wanted.interleave or max(1, min(most, fitting))
    return Order(wanted.seed, wanted.shuffle, lanes, interleave)


def open_bytes(window_bytes: int, memory_bytes: int | None) -> int:
    """Encoded bytes of the windows open at a time: as many as asked for, and at most half of a rank's memory."""
    return min(window_bytes, memory_bytes // 2) if memory_bytes else window_bytes


def check_share(share: Share, rows: int, row_bytes: int, store_bytes: int) -> None:
    """Refuse batches that an epoch of `rows` rows does not fill once, and those that no object store could hold.

    Args:
        share: of any rank.
        rows: of an epoch.
        row_bytes: about what a row of a batch takes.
        store_bytes: of the whole cluster; 0 where that is not known.

    Raises:
        PlanError: with both numbers.
    """
    if share.steps(rows) == 0:
        raise PlanError(
            f"{rows} rows are fewer than a global batch of {share.global_batch} "
            f"({share.batch} rows on each of {share.world_size} ranks), and batch.last is 'drop': no step",
            hint="Use a smaller batch, or batch.last: pad or keep",
        )
    most = share.batch if share.last == "pad" else min(share.batch, rows)
    if 0 < store_bytes < most * row_bytes:
        raise PlanError(
            f"a batch of {most} rows takes about {most * row_bytes} bytes, and the cluster's object store has "
            f"{store_bytes} bytes",
            hint="Use a smaller batch" + (", or batch.last: keep" if share.last == "pad" and rows < most else ""),
        )


def _check_full(total: int, world_size: int, memory_bytes: int | None, window_bytes: int) -> None:
    """A full shuffle opens every unit of a rank at once."""
    need, have = total // world_size, memory_bytes if memory_bytes is not None else window_bytes
    if need > have:
        raise PlanError(
            f"order.shuffle 'full' holds {need} bytes on each of {world_size} ranks, and a rank may hold {have} bytes",
            hint="Use shuffle 'window' with a larger window_bytes, more ranks, or a larger object store",
        )


@dataclass(frozen=True)
class _Part:
    """The units of one source, and how often an epoch needs all of them."""

    unit_rows: NDArray[np.int64]
    sizes: UnitSizes
    demand: float


def _parts(unit_rows: NDArray[np.int64], sizes: UnitSizes, mix: Mix | None) -> list[_Part]:
    """Those that give rows to an epoch."""
    if mix is None:
        return [_Part(unit_rows, sizes, 1.0)]
    rows, ends = mix.source_rows(unit_rows), np.cumsum(mix.units)
    found = []
    for source, take in enumerate(mix.take):
        if take:
            of = slice(int(ends[source]) - mix.units[source], int(ends[source]))
            part = UnitSizes(sizes.fetched[of], sizes.memory[of])
            found.append(_Part(unit_rows[of], part, take / int(rows[source])))
    return found


def _lanes(wanted: Wanted, parts: Sequence[_Part], world_size: int, window_bytes: int) -> int:
    per_rank = LANES_PER_RANK
    if wanted.bucketed:  # one, or two where lanes on the borders between ranks are read twice
        per_rank = 1 if world_size & (world_size - 1) == 0 else 2
    target = 1 << (per_rank * world_size - 1).bit_length()
    rows = int(sum(part.unit_rows.sum() * part.demand for part in parts))
    layouts = [EpochLayout(part.unit_rows, Order(wanted.seed, wanted.shuffle, 1, 1), epoch=0) for part in parts]
    largest = sum(int(part.sizes.memory.max()) for part in parts)
    needed = np.array([max(1.0, part.sizes.fetched.sum() * part.demand) for part in parts])
    choices = []
    lanes = 1
    while lanes <= min(target, max(1, rows)):
        each = [_estimate(layout, part.sizes, lanes, world_size) for layout, part in zip(layouts, parts, strict=True)]
        amplification = float(np.average(each, weights=needed))
        fits = -(-lanes // world_size) * largest <= window_bytes or lanes <= world_size
        choices.append((amplification, fits, lanes))
        lanes *= 2
    good = [lanes for amplification, fits, lanes in choices if fits and amplification <= MAX_AMPLIFICATION]
    if good:
        return max(good)
    least = min(amplification for amplification, fits, _ in choices if fits)
    return max(lanes for amplification, fits, lanes in choices if fits and amplification <= least * 1.05)


def _estimate(layout: EpochLayout, sizes: UnitSizes, lanes: int, world_size: int) -> float:
    """Bytes fetched over bytes there are: a unit costs once for each of its lanes, a lane once for each rank."""
    starts = lane_starts(layout.rows, lanes)[1:-1]
    holding = np.searchsorted(layout.unit_starts, starts, side="right") - 1
    cut = layout.unit_starts[holding] != starts
    units = layout.unit_order[np.minimum(holding, len(layout.unit_order) - 1)]
    total = max(1, int(sizes.fetched.sum()))
    shared = sum(1 for rank in range(1, world_size) if rank * lanes % world_size)
    return float((1 + int(sizes.fetched[units[cut]].sum()) / total) * (1 + shared / lanes))


@dataclass(frozen=True)
class Cost:
    """What a plan costs and how well it shuffles.

    Attributes:
        read_amplification: bytes fetched by all ranks in an epoch over the bytes there are.
        rank_bytes: bytes that the busiest rank fetches.
        rank_units: int64 (ranks looked at,), units that each rank reads.
        units: that all ranks read, a unit once for each.
        open_units: units open at a time, over all ranks.
        label_variance: of a batch on label-sorted data, relative to a full shuffle; about 1 + G / open units.
    """

    read_amplification: float
    rank_bytes: int
    rank_units: NDArray[np.int64]
    units: int
    open_units: int
    label_variance: float


def cost(layout: Layout, sizes: UnitSizes, world_size: int, batch: int, last: str) -> Cost:
    """What one epoch from its start costs, counted from every rank's own schedule.

    Beyond 4,096 ranks, so many that lie evenly among them stand for all.
    """
    ranks = np.unique(np.linspace(0, world_size - 1, min(world_size, MOST_RANKS)).astype(np.int64))
    schedules = [Schedule(layout, Share(rank, world_size, batch, last)) for rank in ranks.tolist()]
    fetched = np.zeros(len(ranks), np.int64)
    units = np.zeros(len(ranks), np.int64)
    exact = float(layout.demand.sum()) * 2 <= EXACT_WINDOWS
    for i, schedule in enumerate(schedules):
        if exact:
            reads = gather_reads(schedule, sizes)
            units[i] = sum(len(read.units) for read in reads)
            fetched[i] = sum(read.fetched_bytes(sizes) for read in reads)
        else:
            touched = _lane_units(layout, schedule)
            units[i], fetched[i] = len(touched), int(sizes.fetched[touched].sum())
    share = world_size / len(ranks)
    total = max(1.0, float((sizes.fetched * layout.demand).sum()))
    order = layout.order
    per_window = order.interleave if order.shuffle == "window" else len(layout.unit_rows)
    sources = [len(layout.unit_rows)] if isinstance(layout, EpochLayout) else layout.open_sources
    open_units = sum(min(count, order.lanes * per_window) for count in sources)
    variance = 1 + world_size * batch / open_units if order.shuffle == "window" else 1.0
    if order.shuffle == "none":
        open_units, variance = sum(min(count, order.lanes) for count in sources), float("nan")
    amplification = float(fetched.sum() * share / total)
    return Cost(amplification, int(fetched.max()), units, round(int(units.sum()) * share), open_units, variance)


def _lane_units(layout: Layout, schedule: Schedule) -> NDArray[np.int64]:
    """The unit of each piece that the rank's lanes hold."""
    share = schedule.share
    begin = share.rank * share.batch
    lanes = lanes_touched(
        0, share.global_batch, max(1, schedule.full_steps), layout.order.lanes, begin, begin + share.batch
    )
    return np.concatenate([layout.lane_units(int(lane)) for lane in lanes])
