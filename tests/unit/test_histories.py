"""The bookkeeping of the chaos test: which records survive restarts, and how long each death held the ranks up."""

from __future__ import annotations

import pytest

from tests.histories import Kill, Record, reached, recoveries, surviving

pytestmark = pytest.mark.unit


def record(attempt, rank, position, at, epoch=0):
    return Record(attempt, rank, epoch, {"epoch": epoch, "position": position}, [], [], at)


RECORDS = [
    record(0, 0, 4, 1.0),
    record(0, 1, 4, 1.1),
    record(0, 0, 8, 2.0),  # rank 1 never got here
    record(1, 0, 8, 9.0),
    record(1, 1, 8, 9.5),
]


def test_an_attempt_goes_on_from_what_all_ranks_had_reached():
    assert reached(RECORDS, 0, 2, None)["position"] == 4
    assert reached(RECORDS[:1], 0, 2, None) is None
    assert reached(RECORDS, 1, 2, {"epoch": 0, "position": 4})["position"] == 8


def test_what_an_attempt_did_beyond_the_start_of_the_next_does_not_count():
    kept = surviving(RECORDS, [(0, 0), (0, 4)])
    assert [(each.attempt, each.rank, each.place) for each in kept] == [
        (0, 0, (0, 4)),
        (0, 1, (0, 4)),
        (1, 0, (0, 8)),
        (1, 1, (0, 8)),
    ]


def test_a_recovery_is_the_longest_pause_of_a_rank_from_one_kill_to_the_next():
    one, two = recoveries(RECORDS, [Kill("node", 1.5, (0, 4), 3.0), Kill("reader", 9.2, (0, 8), 0.0)], 2)
    assert (one["pause_s"], one["ours_s"], one["restarted"]) == (8.0, 5.0, True)
    assert (two["pause_s"], two["restarted"]) == (0.3, True)
