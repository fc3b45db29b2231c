"""Batches made ahead in the trainer's process: in order, so many at a time, and each failure where it belongs."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pyarrow as pa
import pytest

from ingest.engine.ahead import Ahead
from ingest.engine.jobs import Gather, Job
from ingest.errors import SampleError, StageError

pytestmark = pytest.mark.unit

DEADLINE_S = 20
TABLES = {0: pa.table({"x": [1]}), 1: pa.table({"x": [2]})}


def job(number, key=0):
    """The job of a batch whose epoch tells which it is."""
    return Job(number, (Gather(key, np.zeros(1, np.int64)),), np.array([number]), np.zeros(1, np.int64))


class Own:
    """Makes of a job its number, when that is allowed; says which have begun."""

    def __init__(self):
        self.allowed, self.begun, self.changed = set(), [], threading.Condition()

    def __call__(self, each, tables):
        with self.changed:
            self.begun.append((each.epoch, sorted(tables)))
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: each.epoch in self.allowed, DEADLINE_S)
        if each.epoch == 3:
            raise SampleError("bad", sample_id=3)
        return {"number": each.epoch}

    def allow(self, *numbers):
        with self.changed:
            self.allowed.update(numbers)
            self.changed.notify_all()

    def numbers(self, count):
        """Of the jobs that have begun, sorted, once there are so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= count, DEADLINE_S)
            return sorted(number for number, _ in self.begun)

    def close(self):
        pass


@pytest.fixture
def own():
    return Own()


@pytest.fixture
def ahead(own):
    made = Ahead(own, 2)
    yield made
    own.allow(*range(20))
    made.close()


def test_the_next_batches_are_made_while_one_is_handed_over(own, ahead):
    own.allow(0)
    assert ahead([job(0), job(1), job(2)], TABLES) == {"number": 0}
    assert own.numbers(3) == [0, 1, 2]  # although nobody waits for the two behind it


def test_no_more_are_made_at_a_time_than_there_are_threads(own, ahead):
    asking = threading.Thread(target=lambda: ahead([job(n) for n in range(9)], TABLES))
    asking.start()
    assert own.numbers(2) == [0, 1]
    own.allow(0)
    asking.join(DEADLINE_S)
    assert own.numbers(3) == [0, 1, 2]
    own.allow(1, 2)
    own.allow(9)
    assert ahead([job(1), job(2), job(9)], TABLES) == {"number": 1}
    assert own.numbers(4) == [0, 1, 2, 9]  # one more was in line than there are threads, and not nine


def test_batches_come_in_order_and_each_failure_in_its_place(own, ahead):
    own.allow(*range(6))
    found = []
    for n in range(6):
        try:
            found.append(ahead([job(n), *(job(behind) for behind in range(n + 1, min(n + 3, 6)))], TABLES)["number"])
        except SampleError as error:
            found.append(("bad", error.sample_id))
    assert found == [0, 1, 2, ("bad", 3), 4, 5]
    assert own.numbers(6) == [0, 1, 2, 3, 4, 5]  # each once


def test_a_table_stays_as_long_as_a_job_that_has_begun_needs_it(own, ahead):
    tables = dict(TABLES)
    own.allow(0, 1)
    ahead([job(0), job(1, key=1)], tables)
    tables.clear()
    assert ahead([job(1, key=1)], tables) == {"number": 1}
    assert sorted(own.begun) == [(0, [0]), (1, [1])]


def test_what_was_begun_is_forgotten_where_the_feed_turns_elsewhere(own, ahead):
    own.allow(0)
    ahead([job(0), job(1), job(2)], TABLES)
    ahead.clear()
    own.allow(1, 2, 7)
    assert ahead([job(7)], TABLES) == {"number": 7}


def test_a_closed_one_makes_nothing(own):
    ahead = Ahead(own, 1)
    own.allow(0, 1)
    ahead([job(0)], TABLES)
    ahead.close()
    with pytest.raises(StageError, match="the feed is closed"):
        ahead([job(1)], TABLES)


def test_who_waits_when_it_is_closed_is_told(own):
    ahead, said = Ahead(own, 1), []
    own.allow(*range(10, 10_000))

    def take():
        for n in itertools.count(10):
            try:
                ahead([job(n), job(n + 1)], TABLES)
            except StageError as error:
                said.append(str(error))
                return

    taking = threading.Thread(target=take)
    taking.start()
    own.numbers(3)
    ahead.close()
    taking.join(DEADLINE_S)
    assert ["the feed is closed" in each for each in said] == [True]
