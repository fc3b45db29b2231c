"""The simulated nodes that read: their cores, their links, the store behind them; stragglers and losses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ingest.simulate.events import Clock, Shared
from ingest.simulate.machine import Machine

REGISTERED = 0.4  # of a process's start is Ray's own, until it registers; the rest is what it imports and builds


@dataclass
class Node:
    """A node.

    Attributes:
        cpu: its cores; a job's weight is the cores that it can use.
        link: its network, inwards.
        free: read tasks that Ray would still place here.
        running: reads that run here, by number.
        warm: reader processes that have started here.
        at_a_time: processes that Ray starts here at a time: one a core.
    """

    cpu: Shared
    link: Shared
    free: int
    running: dict[int, Task] = field(default_factory=dict)
    warm: int = 0
    lost: int = 0
    at_a_time: int = 1
    starting: int = 0
    queued: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)

    def begin(self, process_s: float, call: Callable[[], None]) -> None:
        """Start a process once those before it have registered; call when it has loaded what it needs besides."""
        self.queued.append((process_s, call))
        self._begin_next()

    def _begin_next(self) -> None:
        if self.starting < self.at_a_time and self.queued:
            self.starting += 1
            process_s, call = self.queued.popleft()

            def begun() -> None:
                self.starting -= 1
                self.cpu.add(process_s * (1 - REGISTERED), call)
                self._begin_next()

            self.cpu.add(process_s * REGISTERED, begun)


@dataclass
class Task:
    """A read: what it fetches, and who is told when its block lies in the object store of `node`."""

    units: int
    fetched_bytes: int
    done: Callable[[Node], None]
    number: int = 0


def make_node(clock: Clock, machine: Machine, cores: int, slots: int) -> Node:
    """A node of so many cores, that takes so many reads at a time."""
    cpu = Shared(clock, cores * machine.core_share, machine.core_share)
    link = Shared(clock, machine.node_bytes_per_s, machine.connection_bytes_per_s)
    return Node(cpu, link, slots, at_a_time=cores)


class Readers:
    """All nodes that read. A read takes the node with most room, in the order of asking.

    Args:
        clock: simulated time.
        machine: costs.
        nodes: those that read.
        rng: for stragglers and losses.
    """

    def __init__(self, clock: Clock, machine: Machine, nodes: list[Node], rng: np.random.Generator) -> None:
        self._clock, self._machine, self._nodes, self._rng = clock, machine, nodes, rng
        total = machine.store_bytes_per_s
        self._store = Shared(clock, total) if total else None
        self._waiting: deque[Task] = deque()
        self._numbers = 0
        self.requests = self.fetched_bytes = self.lost_reads = self.losses = 0
        if machine.losses_per_hour:
            for node in nodes:
                self._doom(node)

    def read(self, task: Task) -> None:
        """Read when there is room."""
        self._waiting.append(task)
        self._place()

    def _place(self) -> None:
        while self._waiting:
            node = max(self._nodes, key=lambda each: each.free)
            if node.free <= 0:
                return
            self._start(node, self._waiting.popleft())

    def _start(self, node: Node, task: Task) -> None:
        machine = self._machine
        node.free -= 1
        self._numbers += 1
        task.number = self._numbers
        node.running[task.number] = task
        number, lives = task.number, node.lost
        self.requests += task.units * machine.requests_per_unit
        self.fetched_bytes += task.fetched_bytes
        slow = machine.slow_factor if self._rng.random() < machine.slow_reads else 1.0
        at_a_time = min(task.units, machine.unit_connections)
        rounds = -(-task.units // at_a_time) * machine.requests_per_unit
        cold = machine.process_s if node.warm < len(node.running) else 0.0
        node.warm = max(node.warm, len(node.running))

        def here() -> bool:
            return node.lost == lives and number in node.running

        def fetch() -> None:
            if here():
                node.link.add(task.fetched_bytes, parse, weight=at_a_time)

        def parse() -> None:
            if here():
                node.cpu.add(task.fetched_bytes * machine.read_s_per_byte + machine.task_s, end)

        def end() -> None:
            if here():
                del node.running[number]
                node.free += 1
                task.done(node)
                self._place()

        def ask() -> None:
            alone_s = machine.request_s * rounds + task.fetched_bytes / (machine.connection_bytes_per_s * at_a_time)
            waits_s = machine.request_s * rounds + (slow - 1) * alone_s
            self._clock.after(waits_s, fetch if self._store is None else shared)

        def shared() -> None:
            assert self._store is not None
            self._store.add(task.fetched_bytes, fetch)

        node.begin(cold, ask) if cold else ask()

    # -- losses --------------------------------------------------------------------------------------------------------

    def _doom(self, node: Node) -> None:
        wait = float(self._rng.exponential(3600 / self._machine.losses_per_hour))
        self._clock.after(wait, lambda: self._lose(node))

    def _lose(self, node: Node) -> None:
        """Its reads are read again once Ray has noticed; another node takes its place later."""
        tasks, slots = list(node.running.values()), node.free + len(node.running)
        node.running.clear()
        node.lost += 1
        node.free, node.warm = 0, 0
        self.lost_reads += len(tasks)
        self.losses += 1

        def notice() -> None:
            self._waiting.extendleft(reversed(tasks))
            self._place()

        def back() -> None:
            node.free = slots
            self._doom(node)
            self._place()

        self._clock.after(self._machine.notice_s, notice)
        self._clock.after(self._machine.replace_s, back)
