"""The proof where rows are sorted by length: the log says which places of an epoch each step took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ingest.loader.coverage import RankLog, Stretch, digest_of
from ingest.loader.history import Place, Proof, Turn
from ingest.loader.planned import PlanFacts
from ingest.loader.took import Took
from ingest.plan.ids import PlannedIds
from ingest.plan.schedule import Share


def check(logs: Sequence[RankLog], plans: Mapping[str, PlanFacts], proof: Proof) -> None:
    """Every stretch's digest must be that of the plan's ids at its places, whether it is rolled back or not."""
    by_epoch: defaultdict[tuple[str, int], list[tuple[int, Stretch]]] = defaultdict(list)
    for log in logs:
        for stretch in log.stretches:
            by_epoch[log.header.plan, stretch.epoch].append((log.header.rank, stretch))
    for (name, epoch), members in sorted(by_epoch.items(), key=lambda item: item[0]):
        plan = plans[name]
        ids = PlannedIds(plan.layout(epoch), plan.sample_ids)
        for rank, stretch in members:
            if not _matches(ids, plan.rows, stretch):
                proof.mismatched += 1
                proof.fault(
                    f"rank {rank}, epoch {epoch}: the ids from row {stretch.first} to {stretch.after} are not those "
                    "that the plan has at the places it says"
                )


def _matches(ids: PlannedIds, rows: int, stretch: Stretch) -> bool:
    steps = _steps(stretch)
    places = _joined(step.places for step in steps)
    inside = not len(places) or (places.min() >= 0 and places.max() < rows)
    whole = len(steps) == stretch.steps and bool(steps) and steps[-1].after == stretch.after
    return bool(inside and whole and digest_of(ids.at(places)) == stretch.digest)


def cover(
    history: Sequence[Turn], final: Place, plan: PlanFacts, proof: Proof, *, from_epoch: int, epochs: int | None
) -> None:
    """Count the rows of a history, epoch by epoch; memory is a byte for each of an epoch's rows.

    Args:
        history: turns, each up to where the next begins.
        final: the place that is proven up to.
        plan: of all of them.
        proof: to add to.
        from_epoch: epochs before this one need not be there.
        epochs: the epoch after the last one that must be whole; None proves up to `final`.
    """
    for epoch in range(from_epoch, max(final[0] + (final[1] > 0), epochs or 0)):
        times = np.zeros(plan.rows, np.uint16)
        expected = plan.rows  # where nobody came to the end
        for turn in history:
            (first, position), (last, until) = turn.start, min(turn.end or final, final)
            if not first <= epoch <= last:
                continue
            begin, end = position if epoch == first else 0, until if epoch == last else plan.rows
            if begin >= end:
                continue
            before = _take(turn, epoch, begin, end, times, proof)
            if end == plan.rows:
                dropped = _dropped(turn, epoch, plan.rows)
                proof.dropped += dropped
                expected = plan.rows - dropped
            elif epoch == final[0] and (epochs is None or epoch >= epochs):
                expected = before
        distinct = int(np.count_nonzero(times))
        proof.expected += expected
        proof.delivered += distinct
        proof.missing += max(0, expected - distinct)
        proof.repeated += int(times.sum(dtype=np.int64)) - distinct
        if expected > distinct:
            proof.fault(f"epoch {epoch}: {expected - distinct} rows were taken by nobody")


def _take(turn: Turn, epoch: int, begin: int, end: int, times: NDArray[np.uint16], proof: Proof) -> int:
    """Count what a turn's ranks took of an epoch between two positions; returns the epoch's rows before the last."""
    chunk_end, left = end, 0
    for rank in range(turn.header.world_size):
        at = begin
        own = [stretch for stretch in turn.stretches.get(rank, ()) if stretch.epoch == epoch and stretch.first < end]
        for stretch in sorted(own, key=lambda stretch: stretch.first):
            if stretch.first != at:
                what = "twice" if stretch.first < at else "not"
                proof.fault(f"rank {rank}, epoch {epoch}: it is {what} said what came between {at} and {stretch.first}")
            at = stretch.after
            for step in _steps(stretch):
                if step.after <= end:
                    np.add.at(times, step.places[(step.places >= 0) & (step.places < len(times))], 1)
                if step.after == end < step.chunk_end:  # the rest of the chunk is still to come
                    chunk_end, left = step.chunk_end, left + step.left
            proof.bad.update((epoch, sample) for sample in stretch.bad)
        if at < end:
            proof.fault(f"rank {rank}, epoch {epoch}: it is not said what came between {at} and {end}")
    return chunk_end - left


def _dropped(turn: Turn, epoch: int, rows: int) -> int:
    """Rows that a turn leaves out at the end of an epoch: less than a global batch, behind its own chunks."""
    header = turn.header
    first = (turn.chunk.end if turn.chunk else turn.start[1]) if turn.start[0] == epoch else 0
    return Share(header.rank, header.world_size, header.batch, header.last).dropped(rows - first)


def _steps(stretch: Stretch) -> list[Took]:
    try:
        return Took.unpack(stretch.taken)
    except ValueError:
        return []  # what is damaged tells of no step


def _joined(arrays: Iterator[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *arrays])
