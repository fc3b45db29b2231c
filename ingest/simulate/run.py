"""A whole simulated run: nodes, start-up, ranks, and what their first steps say about an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ingest.plan.layout import Order
from ingest.plan.mixture import Layout
from ingest.plan.reads import UnitSizes
from ingest.plan.schedule import Schedule, Share
from ingest.simulate.events import Clock
from ingest.simulate.machine import Machine
from ingest.simulate.rank import Rank, Way
from ingest.simulate.readers import Readers, make_node
from ingest.simulate.start import start

UNIT_ENTRY_BYTES = 48  # of a manifest, in memory
FILES_A_LISTING = 1000
FITTED = (1e-6, 1.0)  # a sample's augmentation lies in between, in seconds


@dataclass(frozen=True)
class Job:
    """What is run.

    Attributes:
        layout, sizes: the epoch, and its units.
        files: that are listed.
        share: of rank 0.
        order: resolved.
        way: how each rank is fed.
        read_cpus: that Ray counts for a read.
        barrier: ranks wait for each other at every step, as they do when they add gradients up.
        seed: of stragglers and losses.
    """

    layout: Layout
    sizes: UnitSizes
    files: int
    share: Share
    order: Order
    way: Way
    read_cpus: float = 1.0
    barrier: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """Instants and durations in seconds, over all ranks.

    Attributes:
        first_batch_s: until every rank had one.
        catalog_s, manifest_bytes: listing and reading footers; what every node gets of it.
        seconds: from the first batch of the earliest rank to the last of the last, of the steps simulated.
        samples: in that time.
        samples_per_s: while it went on evenly: over the second half of the steps, or all where that is the epoch.
        waiting_fraction: of the trainers' time in the same steps, in which they did not train.
        steps: simulated of each rank.
        whole: whether that was the epoch.
        held_bytes: the most that a rank's reads held.
        requests, fetched_bytes, away_bytes, lost_reads: of the steps simulated, read ahead included.
        losses: of reader nodes, in that time.
        reader_busy: share of the reading nodes' cores in use, over the second half of the steps.
    """

    first_batch_s: float
    catalog_s: float
    manifest_bytes: int
    seconds: float
    samples: int
    samples_per_s: float
    waiting_fraction: float
    steps: int
    whole: bool
    held_bytes: int
    requests: int
    fetched_bytes: int
    away_bytes: int
    lost_reads: int
    losses: int
    reader_busy: float


class _Barrier:
    """Lets all ranks go on once each has come."""

    def __init__(self, ranks: int) -> None:
        self._ranks, self._waiting = ranks, list[Callable[[], None]]()

    def __call__(self, go_on: Callable[[], None]) -> None:
        self._waiting.append(go_on)
        if len(self._waiting) == self._ranks:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                each()


def simulate(job: Job, machine: Machine) -> Outcome:
    """Run the first steps of an epoch, or all of it."""
    machine.check()
    clock, rng = Clock(), np.random.default_rng(job.seed)
    slots = int((machine.reader_cores if machine.reader_nodes else machine.trainer_cores) / job.read_cpus)
    trainers = [
        make_node(clock, machine, machine.trainer_cores, 0 if machine.reader_nodes else slots)
        for _ in range(machine.trainer_nodes)
    ]
    reading = [make_node(clock, machine, machine.reader_cores, slots) for _ in range(machine.reader_nodes)] or trainers
    readers = Readers(clock, machine, reading, rng)
    share, world = job.share, job.share.world_size
    barrier = _Barrier(world) if job.barrier else None
    ranks = []
    for number in range(world):
        node = trainers[number * machine.trainer_nodes // world]
        schedule = Schedule(job.layout, replace(share, rank=number))
        ranks.append(Rank(clock, machine, node, readers, schedule, job.sizes, job.way, barrier))
    catalog_s, manifest_bytes = catalog(job, machine, slots * len(reading))
    start(clock, machine, ranks, trainers, reading, catalog_s=catalog_s, units=len(job.layout.unit_rows))
    half = ranks[0].steps // 2
    clock.run(until=_all_at(ranks, half + 1))
    began, busy = clock.now, sum(node.cpu.busy for node in reading)
    # Losses go on for ever: the end is when all ranks have taken their steps.
    clock.run(until=_all_at(ranks, ranks[0].steps))
    cores = len(reading) * (machine.reader_cores if machine.reader_nodes else machine.trainer_cores)
    busy = (sum(node.cpu.busy for node in reading) - busy) / max(1e-9, (clock.now - began) * cores)
    return _outcome(job, ranks, readers, min(1.0, busy), catalog_s, manifest_bytes)


def _all_at(ranks: list[Rank], steps: int) -> Callable[[], bool]:
    """Whether all ranks have taken so many; asked at every event, so only of those that had not."""
    left = list(ranks)

    def there() -> bool:
        while left and left[-1].taken >= steps:
            left.pop()
        return not left

    return there


def catalog(job: Job, machine: Machine, slots: int) -> tuple[float, int]:
    """(seconds to list the files, read their footers and hand the manifest to every node; its bytes)."""
    listed_s = -(-job.files // FILES_A_LISTING) * machine.list_s
    footers_s = job.files * machine.footer_s / slots + 2 * machine.request_s
    manifest_bytes = len(job.layout.unit_rows) * UNIT_ENTRY_BYTES
    rounds = int(np.ceil(np.log2(machine.trainer_nodes + 1)))  # each node that has it can hand it on
    return listed_s + footers_s + rounds * manifest_bytes / machine.node_bytes_per_s, manifest_bytes


def _outcome(
    job: Job, ranks: list[Rank], readers: Readers, busy: float, catalog_s: float, manifest_bytes: int
) -> Outcome:
    share, steps = job.share, ranks[0].steps
    taken = np.array([rank.seen.taken_at for rank in ranks])  # float64 (ranks, steps)
    whole = steps == share.steps(job.layout.rows)
    first, last = float(taken[:, 0].min()), float(taken[:, -1].max())
    half = 0 if whole else steps // 2
    evenly_s = float(taken[:, -1].max() - taken[:, half].max())
    span_s = max(1e-9, last - first)
    rows = steps * share.global_batch
    rate = rows / span_s if whole else (steps - 1 - half) * share.global_batch / max(1e-9, evenly_s)
    evenly = max(1e-9, float((taken[:, -1] - taken[:, half]).sum()))
    return Outcome(
        first_batch_s=float(taken[:, 0].max()),
        catalog_s=catalog_s,
        manifest_bytes=manifest_bytes,
        seconds=span_s,
        samples=rows,
        samples_per_s=rate,
        waiting_fraction=max(0.0, 1 - job.way.step_s * (steps - 1 - half) * len(ranks) / evenly),
        steps=steps,
        whole=whole,
        held_bytes=max(rank.seen.held_bytes for rank in ranks),
        requests=readers.requests,
        fetched_bytes=readers.fetched_bytes,
        away_bytes=sum(rank.seen.away_bytes for rank in ranks),
        lost_reads=readers.lost_reads,
        losses=readers.losses,
        reader_busy=busy,
    )


def fit(job: Job, machine: Machine, samples_per_s: float, first_batch_s: float) -> Machine:
    """The machine on which this job runs at a measured rate: `augment_s` and `process_s` are found, the rest stays.

    Args:
        job: that was measured, of few ranks, an epoch or the steps that were run.
        machine: the other costs.
        samples_per_s: as `ingest run` reports it.
        first_batch_s: likewise.
    """
    machine = _fit_start(job, machine, first_batch_s)  # the second reader starts in the time that is measured
    low, high = FITTED
    for _ in range(30):
        middle = (low * high) ** 0.5
        fast = simulate(job, replace(machine, augment_s=middle)).samples_per_s > samples_per_s
        low, high = (middle, high) if fast else (low, middle)
    return _fit_start(job, replace(machine, augment_s=low), first_batch_s)


def _fit_start(job: Job, machine: Machine, first_batch_s: float) -> Machine:
    short = replace(job, way=replace(job.way, steps=1))
    low, high = 0.0, 60.0
    for _ in range(30):
        middle = (low + high) / 2
        late = simulate(short, replace(machine, process_s=middle)).first_batch_s > first_batch_s
        low, high = (low, middle) if late else (middle, high)
    return replace(machine, process_s=low)
