"""The prefetching thread: order, bounds, errors in their place, and an end without leftovers."""

from __future__ import annotations

import threading

import pytest

from ingest.errors import ReadError, StageError
from ingest.loader.prefetch import Prefetcher, Timings


class Numbers:
    """Gives 0, 1, 2, ...; counts what was asked for; blocks or fails where told."""

    def __init__(self, end=None, fail_at=None, error=None, gate_at=None):
        self.asked, self.end, self.fail_at, self.error = 0, end, fail_at, error
        self.gate_at, self.gate = gate_at, threading.Event()
        self.asked_changed = threading.Condition()

    def request(self, count):
        with self.asked_changed:
            first, self.asked = self.asked, self.asked + count
            self.asked_changed.notify_all()
            return range(first, first + count)

    def fetch(self, ticket):
        for number in ticket:
            if number == self.gate_at:
                assert self.gate.wait(10)
            if number == self.fail_at:
                raise self.error
            if self.end is not None and number >= self.end:
                return
            yield number

    def wait_asked(self, count):
        with self.asked_changed:
            assert self.asked_changed.wait_for(lambda: self.asked >= count, 10)


def prefetcher(feed, depth=4, transform=lambda value: value):
    return Prefetcher(feed, depth, transform, Timings())


def test_batches_come_in_order_and_end_with_none():
    feed = prefetcher(Numbers(end=20), transform=lambda value: value * 10)
    assert [feed.get() for _ in range(21)] == [*range(0, 200, 10), None]
    assert feed.get() is None
    feed.stop()


def test_a_deep_queue_is_asked_for_in_groups_that_grow_from_one():
    numbers, counts = Numbers(), []
    request = numbers.request
    numbers.request = lambda count: (counts.append(count), request(count))[1]
    feed = prefetcher(numbers, depth=16)
    assert [feed.get() for _ in range(40)] == list(range(40))
    feed.stop()
    assert counts[:3] == [1, 2, 4]  # a group is there with its last batch: the first ones are small
    assert max(counts) == 4
    assert counts.count(4) >= len(counts) // 2


def test_no_more_is_asked_for_than_the_depth():
    numbers = Numbers()
    feed = prefetcher(numbers, depth=3)
    numbers.wait_asked(3)
    assert feed.get() == 0
    numbers.wait_asked(4)
    feed.stop()
    assert numbers.asked <= 5


def test_an_error_comes_after_the_batches_before_it_and_stays():
    feed = prefetcher(Numbers(fail_at=3, error=ReadError("gone", path="x")))
    assert [feed.get() for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ReadError, match="gone"):
            feed.get()
    feed.stop()


def test_a_failure_of_another_kind_names_the_stage_and_keeps_its_cause():
    feed = prefetcher(Numbers(fail_at=0, error=ZeroDivisionError("boom")))
    with pytest.raises(StageError, match=r"\[loader\].*ZeroDivisionError: boom") as raised:
        feed.get()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    feed.stop()


def test_stop_ends_a_thread_that_waits_for_room():
    feed = prefetcher(Numbers(), depth=2)
    assert feed.get() == 0
    feed.stop()
    assert not feed._thread.is_alive()


def test_stop_ends_a_thread_that_waits_for_a_batch():
    numbers = Numbers(gate_at=0)
    feed = prefetcher(numbers)
    feed.stop(unblock=numbers.gate.set)
    assert not feed._thread.is_alive()
    assert feed.get() is None


def test_waiting_is_measured():
    numbers, timings = Numbers(gate_at=0), Timings()
    feed = Prefetcher(numbers, 2, lambda value: value, timings)
    threading.Timer(0.05, numbers.gate.set).start()
    feed.get()
    assert timings.wait_s >= 0.04
    assert len(timings.waits_s) == 1
    feed.stop()
