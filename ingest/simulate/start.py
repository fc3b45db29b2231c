"""The start of a simulated run: processes, one after the other as Ray starts them, the catalog, each rank's plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingest.simulate.events import Clock
from ingest.simulate.machine import Machine
from ingest.simulate.rank import Rank
from ingest.simulate.readers import Node


class _Starting:
    """A rank whose feeder, augmenter, reader and catalog are awaited."""

    def __init__(self, rank: Rank, node: Node, plan_s: float) -> None:
        self._rank, self._node, self._plan_s = rank, node, plan_s
        self._left = 4

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
    for number, rank in enumerate(ranks):
        node = trainers[number * len(trainers) // len(ranks)]
        starting = _Starting(rank, node, units * machine.plan_s_per_unit)
        reader = reading[number % len(reading)]

        def feeder(starting: _Starting = starting, reader: Node = reader) -> None:
            starting.one_more()
            if reader.warm < reader.free:
                reader.warm += 1
                reader.begin(machine.process_s, starting.one_more)
            else:  # a process that is there serves this rank too
                starting.one_more()

        def actors(starting: _Starting = starting, node: Node = node, feeder: Callable[[], None] = feeder) -> None:
            node.begin(machine.process_s, feeder)
            node.begin(machine.process_s, starting.one_more)

        clock.after(machine.actor_s * 2 * (number + 1), actors)
        clock.after(machine.cluster_s + catalog_s, starting.one_more)
