"""What a coverage log proves: in the history that the last state descends from, each row once, or where not.

What the history has left of every turn must join into whole epochs: what no rank said it took is missing, what one said
twice is repeated. The ids behind the positions are the plan's, and each stretch's digest must be theirs. Where rows are
sorted by length, the log itself says which places of the epoch a step took (`loader.places`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ingest.errors import SourceError
from ingest.loader import places
from ingest.loader.coverage import RankLog, Stretch, digest_of
from ingest.loader.history import Place, Proof, Turn, descent, final_place, turns
from ingest.loader.planned import PlanFacts
from ingest.plan.ids import PlannedIds, run_positions
from ingest.plan.schedule import Schedule, Share


def prove(
    logs: Sequence[RankLog], plans: Mapping[str, PlanFacts], *, from_epoch: int = 0, epochs: int | None = None
) -> dict[str, Any]:
    """Hold what the ranks wrote against the plan.

    Args:
        logs: of all ranks and attempts.
        plans: by name.
        from_epoch: epochs before this one need not be there.
        epochs: the epoch after the last one that must be whole; None proves up to where the last turn came.

    Returns:
        `expected` rows of the history, `delivered`, `missing`, `repeated`, `dropped` by `batch.last`, `quarantined`,
        stretches whose digest is `mismatched`; `final`, the place that is proven up to; `attempts`, `worlds`; `faults`
        in words; `ok`.

    Raises:
        SourceError: there is no log, or its plan is missing.
    """
    if not logs:
        raise SourceError("the coverage log is empty", hint="Give the folder of loader.log")
    missing = {log.header.plan for log in logs} - set(plans)
    if missing:
        raise SourceError(f"the coverage log lacks the plan {', '.join(sorted(missing))}")
    proof = Proof()
    history = list(descent(turns(logs)))
    final = final_place(history[-1])
    if any(stretch.taken for log in logs for stretch in log.stretches):
        places.check(logs, plans, proof)
        places.cover(history, final, plans[history[-1].header.plan], proof, from_epoch=from_epoch, epochs=epochs)
    else:
        _check_digests(logs, plans, proof)
        _cover_all(history, final, plans, proof, from_epoch=from_epoch, epochs=epochs)
    sizes = [turn.header.world_size for turn in history]
    return {
        "expected": proof.expected,
        "delivered": proof.delivered,
        "missing": proof.missing,
        "repeated": proof.repeated,
        "dropped": proof.dropped,
        "quarantined": len(proof.bad),
        "mismatched": proof.mismatched,
        "first": [from_epoch, 0],
        "final": list(final),
        "attempts": len({log.header.attempt for log in logs}),
        "turns": len(history),
        "worlds": [size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] != size],
        "digest": plans[history[-1].header.plan].digest,
        "faults": proof.faults,
        "ok": not (proof.missing or proof.repeated or proof.mismatched),
    }


def _cover_all(
    history: Sequence[Turn],
    final: Place,
    plans: Mapping[str, PlanFacts],
    proof: Proof,
    *,
    from_epoch: int,
    epochs: int | None,
) -> None:
    """Count the rows of a history, whose plans tell which rows a step has."""
    at: Place = (from_epoch, 0)
    for turn in history:
        plan = plans[turn.header.plan]
        if turn.start > at:
            _skipped(at, turn.start, plan.rows, proof)
        at = _cover(turn, max(turn.start, (from_epoch, 0)), min(turn.end or final, final), plan, proof)
    if epochs is not None and at < (epochs, 0):
        _skipped(at, (epochs, 0), plans[history[-1].header.plan].rows, proof)


def _skipped(at: Place, start: Place, rows: int, proof: Proof) -> None:
    """Nothing was logged between two places."""
    gap = (start[0] - at[0]) * rows + start[1] - at[1]
    if at[0] < start[0]:
        gap = (rows - at[1]) + (start[0] - at[0] - 1) * rows + start[1]
    if gap:
        proof.expected += gap
        proof.missing += gap
        proof.fault(f"nothing was taken between epoch {at[0]}, row {at[1]} and epoch {start[0]}, row {start[1]}")


def _cover(turn: Turn, start: Place, end: Place, plan: PlanFacts, proof: Proof) -> Place:
    """Count a turn's rows from one place to another; returns the place where the next turn should begin."""
    rows, (epoch, position) = plan.rows, start
    shares = [
        Share(rank, turn.header.world_size, turn.header.batch, turn.header.last)
        for rank in range(turn.header.world_size)
    ]
    while (epoch, position) < end:
        until = end[1] if epoch == end[0] else rows
        layout = plan.layout(epoch)
        dropped = shares[0].dropped(rows - position) if until == rows else 0
        proof.dropped += dropped
        proof.expected += max(0, until - position - dropped)
        for share in shares:
            schedule = Schedule(layout, share, position)
            own = [each for each in turn.stretches.get(share.rank, ()) if each.epoch == epoch]
            _count(schedule, own, until, proof)
        if until < rows:
            return epoch, until
        epoch, position = epoch + 1, 0
    return max((epoch, position), end)


def _count(schedule: Schedule, own: Sequence[Stretch], until: int, proof: Proof) -> None:
    """Count what one rank took of an epoch, up to a position, step by step."""
    share, epoch = schedule.share, schedule.layout.epoch
    times = np.zeros(schedule.steps, np.int64)
    for stretch in own:
        low, high = (_step(schedule, place) for place in (stretch.first, stretch.after))
        if high - low != stretch.steps:
            proof.fault(
                f"rank {share.rank} says {stretch.steps} steps from row {stretch.first} to {stretch.after} of epoch "
                f"{epoch}, and its plan has {high - low}"
            )
            proof.mismatched += 1
        times[max(low, 0) : max(high, 0)] += 1
        proof.bad.update((epoch, sample) for sample in stretch.bad)
    last = min(schedule.steps, -(-(until - schedule.position) // share.global_batch))
    whole = min(last, (until - schedule.position) // share.global_batch, schedule.full_steps)
    counts = np.full(last, share.batch, np.int64)
    for index in range(max(whole, 0), last):
        step = schedule.step(index)
        places = run_positions(step.runs, schedule.layout.order.lanes)
        counts[index] = min(int(np.count_nonzero(places < until)), step.valid_rows)
    taken = times[:last]
    proof.delivered += int(counts[taken > 0].sum())
    for name, faulty, weight in (("missing", taken == 0, counts), ("repeated", taken > 1, counts * (taken - 1))):
        if faulty.any():
            number = int(weight[faulty].sum())
            setattr(proof, name, getattr(proof, name) + number)
            at = schedule.position + int(np.argmax(faulty)) * share.global_batch
            if number:
                proof.fault(f"rank {share.rank}, epoch {epoch}: {number} rows {name}, from row {at} on")


def _step(schedule: Schedule, position: int) -> int:
    """The step that begins at a position, the number of steps for the epoch's end."""
    if position >= schedule.layout.rows:
        return schedule.steps
    return (position - schedule.position) // schedule.share.global_batch


def _check_digests(logs: Sequence[RankLog], plans: Mapping[str, PlanFacts], proof: Proof) -> None:
    """Every stretch's digest must be that of the plan's ids, whether it is rolled back or not."""
    by_epoch: defaultdict[tuple[str, int], list[tuple[RankLog, Stretch]]] = defaultdict(list)
    for log in logs:
        for stretch in log.stretches:
            by_epoch[log.header.plan, stretch.epoch].append((log, stretch))
    for (name, epoch), members in sorted(by_epoch.items(), key=lambda item: item[0]):
        plan = plans[name]
        ids = PlannedIds(plan.layout(epoch), plan.sample_ids)
        for log, stretch in members:
            header = log.header
            share = Share(header.rank, header.world_size, header.batch, header.last)
            if not _matches(ids, share, stretch):
                proof.mismatched += 1
                proof.fault(
                    f"rank {header.rank}, epoch {epoch}: the ids from row {stretch.first} to {stretch.after} are not "
                    f"the plan's (attempt {header.attempt[:8]})"
                )


def _matches(ids: PlannedIds, share: Share, stretch: Stretch) -> bool:
    if not 0 <= stretch.first <= ids.layout.rows:
        return False
    schedule = Schedule(ids.layout, share, stretch.first)
    if stretch.steps > schedule.steps:
        return False
    found = [np.zeros(0, np.int64)]
    for index in range(stretch.steps):
        step = schedule.step(index)
        found.append(ids.of(step.runs)[: step.valid_rows])
    return digest_of(np.concatenate(found)) == stretch.digest
