"""Admission: the budget holds, what the step in hand needs always starts, and a sleeper is woken."""

from __future__ import annotations

import threading

from ingest.engine.flow import ColdReaders, Flow, Stretch


def test_reads_start_within_the_budget_and_not_beyond():
    flow, stretch = Flow(budget_bytes=100, max_running=8), Stretch([40, 40, 40], [5, 6, 7])
    flow.open(stretch)
    for submitted in (0, 1):
        flow.observe(stretch, submitted, submitted)
        assert flow.may_start(stretch)
    flow.observe(stretch, 2, 2)
    assert flow.held_bytes == 80
    assert not flow.may_start(stretch)
    flow.release(40)
    assert flow.may_start(stretch)


def test_what_the_step_in_hand_needs_starts_whatever_the_budget_says():
    flow, stretch = Flow(budget_bytes=10, max_running=8), Stretch([40, 40, 40], [0, 3, 4])
    flow.open(stretch)
    assert flow.may_start(stretch)
    flow.observe(stretch, 1, 1)
    assert not flow.may_start(stretch)
    flow.advance(3)
    assert flow.may_start(stretch)
    flow.observe(stretch, 2, 2)
    assert not flow.may_start(stretch)


def test_running_reads_are_bounded_over_all_stretches():
    flow = Flow(budget_bytes=1000, max_running=2)
    one, two = Stretch([1, 1], [0, 0]), Stretch([1], [0])
    flow.open(one)
    flow.open(two)
    flow.observe(one, 2, 2)
    assert not flow.may_start(two)
    flow.observe(one, 2, 1)
    assert flow.may_start(two)
    flow.close(one)
    assert flow.may_start(two)


def first_reads(now):
    """A flow whose first read runs, and its stretch."""
    flow = Flow(1000, max_running=3, cold=ColdReaders(1), clock=lambda: now[0])
    stretch = Stretch([1, 1, 1], [0, 0, 0])
    flow.open(stretch)
    assert flow.may_start(stretch)
    flow.observe(stretch, 1, 1)
    flow.advance(0)
    assert not flow.may_start(stretch)
    return flow, stretch


def test_fewer_reads_run_until_a_batch_has_been_made():
    flow, stretch = first_reads([0.0])
    with flow.changed:
        flow.arrive()
    assert not flow.may_start(stretch)
    flow.advance(1)
    assert flow.may_start(stretch)


def test_more_reads_run_where_those_of_the_first_batch_take_long():
    now = [5.0]
    flow, stretch = first_reads(now)
    now[0] = 100.0
    assert not flow.may_start(stretch)  # nothing has come yet: it may be the first reader that starts
    with flow.changed:
        flow.arrive()
    now[0] = 100.9
    with flow.changed:
        flow.arrive()
    assert not flow.may_start(stretch)
    now[0] = 101.0
    assert flow.may_start(stretch)


def test_an_execution_begins_when_it_may_or_is_stopped():
    flow, done, stopped = Flow(1000, max_running=1), threading.Event(), threading.Event()
    for stop in (flow.begin, stopped.set):
        flow.cold.begun = False
        stopped.clear()
        done.clear()
        waiting = threading.Thread(target=lambda: (flow.wait_until_begun(stopped.is_set), done.set()), daemon=True)
        waiting.start()
        assert not done.wait(0.05)
        stop()
        assert done.wait(10)


def test_a_closed_stretch_starts_nothing_and_keeps_what_it_held_counted():
    flow, stretch = Flow(budget_bytes=100, max_running=2), Stretch([30, 30], [0, 0])
    flow.open(stretch)
    flow.observe(stretch, 1, 1)
    flow.close(stretch)
    assert not flow.may_start(stretch)
    assert flow.held_bytes == 30


def test_observing_twice_counts_once():
    flow, stretch = Flow(budget_bytes=100, max_running=2), Stretch([30, 30], [0, 0])
    flow.open(stretch)
    flow.observe(stretch, 1, 1)
    flow.observe(stretch, 1, 0)
    assert flow.held_bytes == 30


class Bed(threading.Condition):
    """Tells when somebody sleeps on it."""

    def __init__(self):
        super().__init__()
        self.slept = threading.Event()

    def wait(self, timeout=None):
        self.slept.set()
        return super().wait(timeout)


def _asleep(flow: Flow, wait, *args) -> threading.Thread:
    """A thread that has gone to sleep in a call; it gives the lock back with that, so that it can be woken."""
    flow.changed = Bed()
    thread = threading.Thread(target=wait, args=args, daemon=True)
    thread.start()
    assert flow.changed.slept.wait(5)
    return thread


def _sleeper(flow: Flow, stretch: Stretch, stopped=lambda: False) -> threading.Thread:
    return _asleep(flow, flow.wait_until_startable, stretch, stopped)


def test_a_sleeping_executor_is_woken_by_release_by_advance_and_by_close():
    for wake in (
        lambda flow, _: flow.release(40),
        lambda flow, _: flow.advance(9),
        lambda flow, stretch: flow.close(stretch),
    ):
        flow, stretch = Flow(budget_bytes=50, max_running=8), Stretch([40, 40], [0, 9])
        flow.open(stretch)
        flow.observe(stretch, 1, 0)
        thread = _sleeper(flow, stretch)
        wake(flow, stretch)
        thread.join(5)
        assert not thread.is_alive()


def test_a_stopped_executor_does_not_sleep_on():
    flow, stretch = Flow(budget_bytes=50, max_running=8), Stretch([40, 40], [0, 9])
    flow.open(stretch)
    flow.observe(stretch, 1, 0)
    stop = threading.Event()
    thread = _sleeper(flow, stretch, stop.is_set)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()


def test_who_takes_blocks_sleeps_while_none_can_come(monkeypatch):
    monkeypatch.setattr("ingest.engine.flow.WAKE_S", 60.0)
    for wake in (
        lambda flow, stretch, _: flow.observe(stretch, 2, 1),
        lambda flow, stretch, _: flow.observe(stretch, 4, 1),
        lambda flow, stretch, _: flow.close(stretch),
        lambda flow, _, ended: (ended.set(), flow.advance(1)),
    ):
        flow, stretch, ended = Flow(budget_bytes=100, max_running=4), Stretch([10] * 4, [0] * 4), threading.Event()
        flow.open(stretch)
        flow.observe(stretch, 1, 1)
        flow.wait_until_due(stretch, 0, ended.is_set)  # the one that has started is still to come
        thread = _asleep(flow, flow.wait_until_due, stretch, 1, ended.is_set)
        wake(flow, stretch, ended)
        thread.join(5)
        assert not thread.is_alive()


def test_reset_forgets_everything_held():
    flow, stretch = Flow(budget_bytes=50, max_running=8), Stretch([40], [0])
    flow.open(stretch)
    flow.observe(stretch, 1, 1)
    flow.reset()
    assert (flow.held_bytes, flow.step, flow.stretches) == (0, 0, [])


def test_the_number_of_readers_follows_the_cluster_now_and_then():
    room = iter([5, 2])
    flow = Flow(budget_bytes=1000, max_running=1, most=lambda: next(room), asked_at=100.0)
    stretch = Stretch([1] * 10, [9] * 10)
    flow.open(stretch)
    flow.observe(stretch, 1, 1)
    flow.follow(100.1)
    assert not flow.may_start(stretch)
    flow.follow(103.5)
    assert flow.may_start(stretch)
    flow.follow(104.0)  # too soon to be asked again
    assert flow.max_running == 5
    flow.follow(107.0)
    assert flow.max_running == 2
