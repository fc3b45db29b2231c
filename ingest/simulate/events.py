"""Simulated time: what happens when, and what is shared by whom."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

END = float("inf")


class Clock:
    """Calls what is due, in order of time; `now` is in seconds since the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._turns = itertools.count()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call so many seconds from now; of those due at one time, the one asked for first."""
        heapq.heappush(self._due, (self.now + seconds, next(self._turns), call))

    def run(self, until: Callable[[], bool]) -> None:
        """Go on until that holds, or nothing is due any more."""
        while self._due and not until():
            self.now, _, call = heapq.heappop(self._due)
            call()


class Shared:
    """What several jobs use at a time, each as much of it as any other: a node's cores, a link, a GPU.

    Every job has a weight, the cores that it can use at once, say. A unit of weight gets `each` a second, or an equal
    part of `capacity` where that is less (processor sharing).

    Args:
        clock: simulated time.
        capacity: of all of it, work a second.
        each: the most that a unit of weight gets, work a second.
    """

    def __init__(self, clock: Clock, capacity: float, each: float = END) -> None:
        self._clock, self._capacity, self._each = clock, capacity, each
        self._jobs: list[tuple[float, int, float, Callable[[], None]]] = []  # (virtual end, turn, weight, call)
        self._turns = itertools.count()
        self._weight = 0.0
        self._virtual = self._seen = 0.0  # work that a unit of weight has got since the start, and up to when
        self._version = 0
        self.busy = 0.0  # work done

    @property
    def _rate(self) -> float:
        return min(self._each, self._capacity / self._weight)

    def add(self, work: float, call: Callable[[], None], weight: float = 1.0) -> None:
        """Do so much work beside what is done now, then call."""
        if work <= 0:
            self._clock.after(0.0, call)
            return
        self._advance()
        heapq.heappush(self._jobs, (self._virtual + work / weight, next(self._turns), weight, call))
        self._weight += weight
        self.busy += work
        self._plan()

    def _advance(self) -> None:
        if self._weight:
            self._virtual += self._rate * (self._clock.now - self._seen)
        self._seen = self._clock.now

    def _plan(self) -> None:
        self._version += 1
        if self._jobs:
            version, wait = self._version, (self._jobs[0][0] - self._virtual) / self._rate
            self._clock.after(max(0.0, wait), lambda: self._fire(version))

    def _fire(self, version: int) -> None:
        if version != self._version:
            return  # something came in between
        self._advance()
        self._virtual = max(self._virtual, self._jobs[0][0])  # whatever rounding says, the first one has ended
        ended = []
        while self._jobs and self._jobs[0][0] <= self._virtual:
            _, _, weight, call = heapq.heappop(self._jobs)
            self._weight -= weight
            ended.append(call)
        if not self._jobs:
            self._weight = 0.0
        self._plan()
        for call in ended:
            call()
