"""The start of a simulated run: processes, one after the other as Ray starts them, the catalog, each rank's plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingest.simulate.events import Clock
from ingest.simulate.machine import Machine
from ingest.simulate.rank import Rank
from ingest.simulate.readers import Node


class _Starting:
    """A rank whose trainer, feeder, augmenter, reader and catalog are awaited."""

    def __init__(self, rank: Rank, node: Node, plan_s: float) -> None:
        self._rank, self._node, self._plan_s = rank, node, plan_s
        self._left = 5

    def one_more(self) -> None:
        self._left -= 1
        if not self._left:
            self._node.cpu.add(self._plan_s, self._rank.start)


def start(
    clock: Clock,
    machine: Machine,
    ranks: Sequence[Rank],
    trainers: Sequence[Node],
    reading: Sequence[Node],
    *,
    catalog_s: float,
    units: int,
) -> None:
    """Start every rank's processes while the catalog is being made; a rank plans once they are there, and begins.

    Args:
        clock: simulated time.
        machine: costs.
        ranks: to start.
        trainers: their nodes, each with as many ranks as any other.
        reading: nodes that read; each rank has one reader started before its first read.
        catalog_s: until the manifest is there.
        units: of it.
    """
    starting = [
        _Starting(rank, trainers[number * len(trainers) // len(ranks)], units * machine.plan_s_per_unit)
        for number, rank in enumerate(ranks)
    ]

    def listed() -> None:
        for one in starting:
            one.one_more()

    trainers[0].begin(machine.process_s, lambda: clock.after(machine.cluster_s + catalog_s, listed))
    for number, one in enumerate(starting):
        node = trainers[number * len(trainers) // len(ranks)]
        clock.after(machine.actor_s * 2 * (number + 1), _processes(machine, one, node, reading[number % len(reading)]))


def _processes(machine: Machine, starting: _Starting, node: Node, reader: Node) -> Callable[[], None]:
    """Starts a rank's processes: the trainer's own, which start beside each other's, its actors, a reader."""

    def start_all() -> None:
        for _ in range(3):
            node.begin(machine.process_s, starting.one_more)
        if reader.warm < reader.free:
            reader.warm += 1
            reader.begin(machine.process_s, starting.one_more)
        else:  # a process that is there serves this rank too
            starting.one_more()

    return start_all
