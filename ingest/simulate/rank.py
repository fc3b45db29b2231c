"""One simulated rank: a feeder that admits reads as the real one does, augmentation, and a trainer that takes steps."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ingest.engine.flow import ColdReaders, Flow, Stretch
from ingest.plan.reads import Read, UnitSizes, gather_reads
from ingest.plan.schedule import Schedule
from ingest.simulate.events import Clock, Shared
from ingest.simulate.machine import Machine
from ingest.simulate.readers import Node, Readers, Task

FIRST_SEGMENT, SEGMENT = 32, 256  # windows of an execution, as the feeder cuts them


@dataclass(frozen=True)
class Way:
    """How a rank is fed; see `FeedConfig`, whose names these are.

    Attributes:
        readers, first_readers, budget_bytes, depth: of the feeder.
        actors, threads: augmentation actors, and decoding threads of each.
        gpu: whether they decode on a GPU of the rank's own.
        augmented: whether anything is augmented at all.
        step_s: a training step.
        steps: how many are simulated at most.
    """

    readers: int
    first_readers: int
    budget_bytes: int
    depth: int
    actors: int = 1
    threads: int = 1
    gpu: bool = False
    augmented: bool = True
    step_s: float = 0.0
    steps: int = 1 << 62


@dataclass
class _Open:
    """A read under way or delivered."""

    read: Read
    held_bytes: int
    there: bool = False


@dataclass(eq=False)
class _Segment:
    """An execution; it has begun once its stretch is open."""

    stretch: Stretch
    reads: list[_Open]
    begun: bool = False

    @property
    def submitted_all(self) -> bool:
        return self.stretch.submitted >= len(self.reads)


@dataclass
class Seen:
    """What a rank saw; instants in seconds.

    Attributes:
        taken_at: of each batch.
        held_bytes: the most that its reads held.
        away_bytes: of blocks, those that came from another node.
    """

    taken_at: list[float] = field(default_factory=list)
    held_bytes: int = 0
    away_bytes: int = 0


class Rank:
    """A rank on its node.

    Args:
        clock: simulated time.
        machine: costs.
        node: of the trainer, its feeder and its augmenters.
        readers: who reads.
        schedule: of the rank; its windows are what is read, in its order.
        sizes: of the units.
        way: how it is fed.
        barrier: called with what to do once all ranks have taken the same step; None: ranks do not wait for another.
    """

    def __init__(
        self,
        clock: Clock,
        machine: Machine,
        node: Node,
        readers: Readers,
        schedule: Schedule,
        sizes: UnitSizes,
        way: Way,
        barrier: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        self._clock, self._machine, self._node, self._readers = clock, machine, node, readers
        self._schedule, self._sizes, self._way, self._barrier = schedule, sizes, way, barrier
        self.steps = min(schedule.steps, way.steps)
        self._flow = Flow(way.budget_bytes, way.readers, ColdReaders(way.first_readers), clock=lambda: clock.now)
        self._segments: list[_Segment] = []
        self._needed: deque[_Open] = deque()  # in the order of need, those that no step has waited for yet
        self._expiring: list[tuple[int, int, _Open]] = []
        self._planned = self._opened = 0
        self._step, self._feeding = 0, False
        self._jobs: deque[int] = deque()
        self._free_actors = way.actors
        self._gpu = Shared(clock, float(way.actors), 1.0) if way.gpu else None
        self._ready: set[int] = set()
        self._taken, self._asking = 0, False
        self.seen = Seen()

    @property
    def taken(self) -> int:
        """Batches that the trainer has taken."""
        return self._taken

    def start(self) -> None:
        """The feeder and the augmenters have started, and the plan is there."""
        self._extend()
        self._feed()
        self._ask()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _extend(self) -> None:
        """Begin the next execution once the one before has started all its reads."""
        windows = len(self._schedule.windows)
        if (self._segments and not self._segments[-1].submitted_all) or self._planned >= windows:
            return
        stop = min(windows, self._planned + (SEGMENT if self._planned else FIRST_SEGMENT))
        reads = gather_reads(self._schedule, self._sizes, start=self._planned, stop=stop)
        self._planned = stop
        opened = [_Open(read, read.memory_bytes(self._schedule.layout, self._sizes)) for read in reads]
        for each in opened:
            self._opened += 1
            heapq.heappush(self._expiring, (each.read.last_step + self._way.depth, self._opened, each))
        self._needed.extend(opened)
        stretch = Stretch([each.held_bytes for each in opened], [each.read.first_step for each in opened])
        segment = _Segment(stretch, opened)
        self._segments.append(segment)

        def begin() -> None:
            segment.begun = True
            self._flow.open(stretch)
            self._submit()

        world = self._schedule.share.world_size
        registering_s = self._machine.coordinator_s * world * (self._machine.trainer_nodes + self._machine.reader_nodes)
        self._clock.after(self._machine.execution_s + registering_s, begin)

    def _submit(self) -> None:
        """Start every read that the flow lets start."""
        for segment in [each for each in self._segments if each.begun]:
            stretch = segment.stretch
            while self._flow.may_start(stretch):
                each = segment.reads[stretch.submitted]
                self._flow.observe(stretch, stretch.submitted + 1, stretch.running + 1)
                self.seen.held_bytes = max(self.seen.held_bytes, self._flow.held_bytes)
                self._readers.read(self._task(stretch, each))
            if segment.submitted_all and stretch.running == 0:
                self._flow.close(stretch)
                self._segments.remove(segment)
        self._extend()

    def _task(self, stretch: Stretch, opened: _Open) -> Task:
        def arrived() -> None:
            opened.there = True
            self._feed()

        def done(node: Node) -> None:
            self._flow.observe(stretch, stretch.submitted, stretch.running - 1)
            with self._flow.changed:
                self._flow.arrive()
            self._submit()
            if node is self._node:
                arrived()
            else:
                self.seen.away_bytes += opened.held_bytes
                self._node.link.add(opened.held_bytes, arrived)

        return Task(len(opened.read.units), opened.read.fetched_bytes(self._sizes), done)

    # -- batches -------------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Assemble the next batch, if the loader has room for it and its reads have arrived."""
        step = self._step
        if self._feeding or step >= self.steps or step >= self._taken + self._way.depth:
            return
        if self._flow.step != step:
            self._flow.advance(step)
            self._submit()
        while self._needed and self._needed[0].read.first_step <= step and self._needed[0].there:
            self._needed.popleft()
        if self._lacks(step):
            return
        self._feeding, self._step = True, step + 1
        self._node.cpu.add(self._machine.feed_s, lambda: self._fed(step))

    def _lacks(self, step: int) -> bool:
        """Whether a window that the step needs has not arrived, or is not even planned."""
        if self._needed and self._needed[0].read.first_step <= step:
            return True
        needs = self._schedule.windows
        return self._planned < len(needs) and int(needs.first_step[self._planned]) <= step

    def _fed(self, step: int) -> None:
        self._feeding = False
        while self._expiring and self._expiring[0][0] <= step:
            _, _, opened = heapq.heappop(self._expiring)
            self._flow.release(opened.held_bytes)
        self._jobs.append(step)
        self._augment()
        self._submit()
        self._feed()

    def _augment(self) -> None:
        while self._jobs and self._free_actors:
            step, way = self._jobs.popleft(), self._way
            self._free_actors -= 1
            rows = self._schedule.share.batch

            def ended(step: int = step) -> None:
                self._free_actors += 1
                self._augment()
                self._node.cpu.add(self._machine.ray_s, lambda: self._put(step))

            if not way.augmented:
                self._clock.after(0.0, ended)
            elif self._gpu is not None:
                self._gpu.add(rows * self._machine.gpu_augment_s, ended)
            else:
                self._node.cpu.add(rows * self._machine.augment_s, ended, weight=way.threads)

    def _put(self, step: int) -> None:
        def ready() -> None:
            self._ready.add(step)
            self._give()

        self._node.cpu.add(self._machine.load_s, ready)

    # -- training ------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        self._asking = self._taken < self.steps
        self._give()

    def _give(self) -> None:
        if not self._asking or self._taken not in self._ready:
            return
        self._asking = False
        self._ready.remove(self._taken)
        self._taken += 1
        self.seen.taken_at.append(self._clock.now)
        self._clock.after(self._way.step_s, self._ask if self._barrier is None else lambda: self._together(self._ask))
        self._feed()

    def _together(self, go_on: Callable[[], None]) -> None:
        assert self._barrier is not None
        self._barrier(go_on)
