"""The coverage log of batches of like lengths: whole over restarts inside chunks, and every planted fault is found."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.loader.took import Took
from ingest.plan.layout import EpochLayout
from ingest.plan.schedule import Share
from tests.coverage_logs import PLAN, ROWS, TOTAL, Logs, change, given_batch, proof, train
from tests.plans import BucketedRank

CHUNK = 3
START = (0, 0, None)  # epoch, position, chunk


def batches(share, epoch, position, chunk):
    """(batch, place afterwards) of a rank from a place on, epoch after epoch."""
    while True:
        rank = BucketedRank(EpochLayout(ROWS, PLAN.order, epoch), share, CHUNK, position, chunk)
        for ids, step in rank:
            yield given_batch(step, ids, rank.schedule)
        epoch, position, chunk = epoch + 1, 0, None


@settings(max_examples=40)
@given(st.data())
def test_restarts_on_other_worlds_inside_chunks_leave_every_row_once(data):
    files, start = Logs(bucketed=True), START
    for attempt in range(data.draw(st.integers(1, 5))):
        world, batch = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 9))
        steps = data.draw(st.integers(2, 30))
        last = data.draw(st.sampled_from(["pad", "keep"]))
        places = train(files, batches, attempt, world, batch, last, start, steps, (1,))
        start = data.draw(st.sampled_from(places[:-1]))
    result = proof(files)
    assert result["ok"], result
    assert result["expected"] == result["delivered"]
    epochs, position = result["final"]
    assert (epochs * TOTAL < result["expected"]) or position == 0
    if position == TOTAL:
        assert result["expected"] == (epochs + 1) * TOTAL


def whole(last="drop", epochs=2):
    files, steps = Logs(bucketed=True), 0
    taken = batches(Share(0, 2, 5, last), *START)
    while next(taken)[1][0] < epochs:
        steps += 1
    train(files, batches, 0, 2, 5, last, START, steps + 1)
    return files


def test_what_is_dropped_is_counted_and_expected_by_nobody():
    result = proof(whole("drop"), epochs=2)
    assert result["ok"], result
    assert (result["dropped"], result["expected"]) == (2 * (TOTAL % 10), 2 * (TOTAL - TOTAL % 10))
    kept = proof(whole("keep"), epochs=2)
    assert (kept["ok"], kept["expected"], kept["final"]) == (True, 2 * TOTAL, [1, TOTAL])
    late = proof(whole("keep"), epochs=3)
    assert (late["ok"], late["missing"]) == (False, TOTAL)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_gap_a_repeat_foreign_ids_and_foreign_places_are_found(rank, number):
    gap = whole()
    change(gap, rank, number, lambda lines, i: lines[:i] + lines[i + 1 :])
    result = proof(gap)
    assert (result["missing"] > 0, result["repeated"], result["ok"]) == (True, 0, False)
    assert any(f"rank {rank}" in fault for fault in result["faults"])
    twice = whole()
    change(twice, rank, number, lambda lines, i: [*lines[: i + 1], lines[i], *lines[i + 1 :]])
    assert (proof(twice)["missing"], proof(twice)["repeated"] > 0, proof(twice)["ok"]) == (0, True, False)

    def said(index, edit):
        def other(lines, i):
            line = json.loads(lines[i])
            line["took"][index] = edit(line["took"][index])
            return [*lines[:i], json.dumps(line).encode(), *lines[i + 1 :]]

        return other

    foreign = whole()
    change(foreign, rank, number, said(5, lambda _: "0" * 16))
    assert (proof(foreign)["mismatched"], proof(foreign)["ok"]) == (1, False)

    def moved(packed):
        steps = Took.unpack(packed)
        return Took.pack([steps[0]._replace(places=(steps[0].places + 1) % TOTAL), *steps[1:]])

    elsewhere = whole()
    change(elsewhere, rank, number, said(7, moved))
    assert (proof(elsewhere)["mismatched"], proof(elsewhere)["ok"]) == (1, False)
    damaged = whole()
    change(damaged, rank, number, said(7, lambda packed: packed[:-8]))
    assert proof(damaged)["ok"] is False


def test_a_rank_without_a_log_is_found():
    lost = whole("keep")
    for name in [name for name in lost if "rank00001-" in name]:
        del lost[name]
    assert proof(lost)["missing"] > TOTAL / 2
    assert proof(lost)["ok"] is False


def test_steps_are_packed_in_a_byte_and_a_quarter_a_row_and_come_back():
    steps = [Took(5, 9, 4, np.array([7, 3, 8])), Took(9, 9, 0, np.zeros(0, np.int64)), Took(12, 0, 0, np.array([9]))]
    back = Took.unpack(Took.pack(steps))
    assert [(s.after, s.chunk_end, s.left, s.places.tolist()) for s in back] == [
        (5, 9, 4, [7, 3, 8]),
        (9, 9, 0, []),
        (12, 0, 0, [9]),
    ]
    assert Took.unpack(Took.pack([])) == []
    draw = np.random.default_rng(0).permutation(64 * 32).reshape(32, 64)
    many = [Took(64 * (i + 1), 64 * 32, 64 * (31 - i), np.sort(group)) for i, group in enumerate(draw)]
    assert len(Took.pack(many)) < 1.25 * draw.size
    for broken in ("", "AAAA", Took.pack(many)[:-8], "no base64!"):
        with pytest.raises(ValueError, match=r"\w"):
            Took.unpack(broken)
