"""Admission of reads: how much may be in memory, how many may run, and when a waiting executor is woken.

Pure of Ray, so that its rules can be tested on their own. A feeder has one `Flow`; each of its executions is a
`Stretch` of reads inside it. The executor asks whether its next read may start, and sleeps on the flow's condition when
not; the feeder frees bytes as batches leave, which wakes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

FOLLOW_S = 3.0
ALONE_S = 1.0  # about what a reader's process takes to load what it reads with
WAKE_S = 0.5  # a sleeping executor looks up this often by itself; everything else wakes it at once


@dataclass
class Stretch:
    """The reads of one execution, in order of need.

    Attributes:
        read_bytes: estimated bytes in memory of each read.
        first_step: the step, counted over the feeder's life, at which each read is first needed.
        submitted: reads that the executor has started so far.
        running: reads that run now.
    """

    read_bytes: Sequence[int]
    first_step: Sequence[int]
    submitted: int = 0
    running: int = 0
    closed: bool = False


@dataclass
class ColdReaders:
    """What holds while readers' processes start, until a batch has been made.

    Attributes:
        running: reads that may run at a time: on a small node, more readers that start take the processor from the
            first batch, and what they read comes late. None: as many as later.
        begun: whether executions may start yet.
        turns: steps that the feeder has turned to.
        arrived_at: when the first read arrived, an instant in seconds.
    """

    running: int | None = None
    begun: bool = True
    turns: int = 0
    arrived_at: float | None = None

    def most_running(self, later: int, now: float) -> int:
        """Reads that may run at an instant; as many as later, too, once reads take longer than a reader's start."""
        if self.running is None or self.turns > 1:
            return later
        late = self.arrived_at is not None and now - self.arrived_at >= ALONE_S
        return later if late else self.running


@dataclass
class Flow:
    """The budget that all executions of a feeder share.

    Attributes:
        budget_bytes: encoded bytes that reads may hold, running reads included.
        max_running: reads that may run at a time.
        cold: what holds until a batch has been made.
        held_bytes: bytes of reads started and not yet released.
        step: the step being assembled; a read needed by then starts whatever the budget says.
        most: what `max_running` becomes, asked now and then, since a cluster may grow and shrink; None: it stays.
        asked_at: when it was asked last, an instant in seconds.
        clock: the instant now, in seconds.
    """

    budget_bytes: int
    max_running: int
    cold: ColdReaders = field(default_factory=ColdReaders)
    held_bytes: int = 0
    step: int = 0
    most: Callable[[], int] | None = None
    asked_at: float = 0.0
    stretches: list[Stretch] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic
    changed: threading.Condition = field(default_factory=threading.Condition)

    def open(self, stretch: Stretch) -> None:
        with self.changed:
            self.stretches.append(stretch)
            self.changed.notify_all()

    def close(self, stretch: Stretch) -> None:
        """Forget a stretch; what it held stays counted until `release`."""
        with self.changed:
            stretch.closed = True
            stretch.running = 0
            if stretch in self.stretches:
                self.stretches.remove(stretch)
            self.changed.notify_all()

    def observe(self, stretch: Stretch, submitted: int, running: int) -> None:
        """Take the executor's own counts of reads started and running."""
        with self.changed:
            self.held_bytes += sum(stretch.read_bytes[stretch.submitted : submitted])
            if submitted > stretch.submitted:
                self.changed.notify_all()
            stretch.submitted, stretch.running = submitted, running

    def follow(self, now: float) -> None:
        """Let as many reads run as the cluster has room for by now, an instant in seconds."""
        if self.most is None or now - self.asked_at < FOLLOW_S:
            return
        self.asked_at = now
        most = self.most()
        with self.changed:
            self.max_running = most
            self.changed.notify_all()

    def may_start(self, stretch: Stretch) -> bool:
        """Whether the next read of a stretch may start now."""
        with self.changed:
            return self._may_start(stretch)

    def _may_start(self, stretch: Stretch) -> bool:
        index = stretch.submitted
        if index >= len(stretch.read_bytes) or stretch.closed:
            return False
        if sum(s.running for s in self.stretches) >= self.cold.most_running(self.max_running, self.clock()):
            return False
        # A read that the step in hand waits for must start, or the step would never free what fills the budget.
        if stretch.first_step[index] <= self.step:
            return True
        return self.held_bytes + stretch.read_bytes[index] <= self.budget_bytes

    def wait_until_startable(self, stretch: Stretch, stopped: Callable[[], bool]) -> None:
        """Sleep until the next read may start, all have started, or the executor was stopped."""
        with self.changed:
            while not (
                stopped() or stretch.closed or stretch.submitted >= len(stretch.read_bytes) or self._may_start(stretch)
            ):
                self.changed.wait(WAKE_S)

    def wait_until_due(self, stretch: Stretch, arrived: int, ended: Callable[[], bool]) -> None:
        """Sleep while nothing can arrive: all reads that were started have, and others are to start.

        Args:
            stretch: the reads of one execution.
            arrived: how many of them have.
            ended: whether the executor has, for any reason.
        """
        with self.changed:
            while stretch.submitted <= arrived < len(stretch.read_bytes) and not (stretch.closed or ended()):
                self.changed.wait(WAKE_S)

    def begin(self) -> None:
        """Executions may start from now on."""
        with self.changed:
            self.cold.begun = True
            self.changed.notify_all()

    def wait_until_begun(self, stopped: Callable[[], bool]) -> None:
        """Sleep until executions may start, or this one was stopped: once started, one reads at once."""
        with self.changed:
            while not (self.cold.begun or stopped()):
                self.changed.wait(WAKE_S)

    def arrive(self) -> None:
        """A read has arrived. Call with `changed` held."""
        if self.cold.arrived_at is None:
            self.cold.arrived_at = self.clock()
        self.changed.notify_all()

    def advance(self, step: int) -> None:
        """The feeder turns to a step."""
        with self.changed:
            self.step = step
            self.cold.turns += 1
            self.changed.notify_all()

    def release(self, freed_bytes: int) -> None:
        """Blocks were dropped."""
        with self.changed:
            self.held_bytes -= freed_bytes
            self.changed.notify_all()

    def reset(self) -> None:
        """Everything held was dropped."""
        with self.changed:
            self.held_bytes, self.step = 0, 0
            self.stretches.clear()
            self.changed.notify_all()
