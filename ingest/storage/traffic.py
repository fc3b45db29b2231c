"""What goes between this process and its stores: requests and bytes counted, and how many requests go at a time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

START, MOST = 16, 64
_HALVE_EVERY_S = 1.0  # one bad moment reaches many requests in flight, and is one sign
_SLOW_FACTOR, _SLOW_S = 8.0, 2.0


class Traffic:
    """Totals of a process. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        with self._lock:
            self._totals.update(counts)

    def totals(self) -> dict[str, int]:
        with self._lock:
            return {name: self._totals[name] for name in NAMES}


NAMES = (
    "get_requests",
    "head_requests",
    "list_requests",
    "put_requests",
    "get_bytes",
    "retries",
    "throttled",
    "cache_hits",
    "cache_hit_bytes",
    "cache_misses",
)
"""What is counted: requests as sent, retries among them; bytes received; of the local cache, ranges and bytes."""

TRAFFIC = Traffic()


def counters() -> dict[str, int]:
    """Totals of this process since it began, by `NAMES`. Local files cost no requests and are not counted."""
    return TRAFFIC.totals()


class Limiter:
    """How many requests go at a time: one more for each round that goes well, half as many after a bad sign.

    Additive increase, multiplicative decrease, as TCP does it (Chiu and Jain, 1989). A bad sign is an answer that
    throttles, or a first byte that takes eight times as long as usual.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._limit = float(fixed or START)
        self._most = float(fixed or MOST)
        self._active = 0
        self._usual_s = 0.0
        self._halved_at = -_HALVE_EVERY_S
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        return max(1, int(self._limit))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until a request may go."""
        with self._changed:
            self._changed.wait_for(lambda: self._active < self.limit)
            self._active += 1
        try:
            yield
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def went_well(self, first_byte_s: float) -> None:
        """A request was answered, its first byte after so long."""
        with self._changed:
            slow = self._usual_s > 0 and first_byte_s > max(_SLOW_S, _SLOW_FACTOR * self._usual_s)
            self._usual_s += (first_byte_s - self._usual_s) / (8 if self._usual_s else 1)
            if slow:
                self._halve()
            elif self._active >= self.limit:  # a limit that nothing reaches is not known to be too low
                self._limit = min(self._most, self._limit + 1 / self._limit)

    def throttled(self) -> None:
        """The store asked for fewer requests."""
        with self._changed:
            self._halve()

    def _halve(self) -> None:
        now = time.monotonic()
        if now - self._halved_at >= _HALVE_EVERY_S:
            self._halved_at = now
            self._limit = max(1.0, self._limit / 2)
