"""The coverage log of a mixture: whole over restarts and changed worlds, and every planted gap and repeat is found."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.loader.planned import PlanFacts, decode_plan
from ingest.plan.ids import PlannedIds
from ingest.plan.layout import Order
from ingest.plan.mixture import Mix
from ingest.plan.schedule import Schedule, Share
from tests.coverage_logs import Logs, change, given_batch, proof, train
from tests.plans import BucketedRank, Deliveries

ROWS = np.array([7, 40, 3, 25, 11, 30], np.int64)
FIRST = np.cumsum(ROWS) - ROWS + np.array([0, 0, 0, 1000, 1000, 1000])  # a filter left rows of the first source out
# The second source comes more than twice, the first not wholly.
PLAN = PlanFacts("d", Order(5, "window", 4, 2), ROWS, FIRST, {}, Mix((3, 3), (45, 150)))
CHUNK = 3


def plain(share, epoch, position, chunk):
    """(batch, place afterwards) of a rank from a place on, epoch after epoch, by the reads' own account of the plan."""
    while True:
        schedule = Schedule(PLAN.layout(epoch), share, position)
        deliveries = Deliveries(schedule, PLAN.sample_ids)
        for step in schedule:
            fill = by_source(schedule.layout, step.runs)
            fill = fill if step.fill is None else fill[step.fill]
            yield given_batch(replace(step, fill=fill), deliveries.of(step.runs)[fill], schedule)
        epoch, position = epoch + 1, 0


def by_source(layout, runs):
    """Which of the runs' rows stands at each place of a batch: in each run, source by source."""
    order, at = [], 0
    for lane, start, count in zip(runs.lane.tolist(), runs.start.tolist(), runs.count.tolist(), strict=True):
        places = layout.stretches(lane, start, start + count)[1]
        order.append(at + (np.arange(count) if places is None else places))
        at += count
    return np.concatenate(order)


def bucketed(share, epoch, position, chunk):
    """As `plain`, in batches of rows of like lengths."""
    while True:
        rank = BucketedRank(PLAN.layout(epoch), share, CHUNK, position, chunk, sample_ids=PLAN.sample_ids)
        for ids, step in rank:
            yield given_batch(step, ids, rank.schedule)
        epoch, position, chunk = epoch + 1, 0, None


@pytest.mark.parametrize("kind", [plain, bucketed])
@settings(max_examples=25)
@given(data=st.data())
def test_restarts_on_other_worlds_leave_every_place_once(kind, data):
    files, start = Logs(bucketed=kind is bucketed, plan=PLAN), (0, 0, None)
    for attempt in range(data.draw(st.integers(1, 5))):
        world, batch = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 9))
        steps = data.draw(st.integers(2, 30))
        last = data.draw(st.sampled_from(["pad", "keep"]))
        places = train(files, kind, attempt, world, batch, last, start, steps, (1,))
        start = data.draw(st.sampled_from(places[:-1]))
    result = proof(files)
    assert result["ok"], result
    assert result["expected"] == result["delivered"]


def whole(kind):
    """Two epochs of two ranks."""
    files, steps = Logs(bucketed=kind is bucketed, plan=PLAN), 0
    taken = kind(Share(0, 2, 5, "keep"), 0, 0, None)
    while next(taken)[1][0] < 2:
        steps += 1
    train(files, kind, 0, 2, 5, "keep", (0, 0, None), steps + 1)
    return files


@pytest.mark.parametrize("kind", [plain, bucketed])
@pytest.mark.parametrize("number", [0, 3])
def test_a_gap_a_repeat_and_foreign_ids_are_found(kind, number):
    result = proof(whole(kind), epochs=2)
    assert (result["ok"], result["expected"]) == (True, 2 * PLAN.mix.rows)
    gap = whole(kind)
    change(gap, 1, number, lambda lines, i: lines[:i] + lines[i + 1 :])
    assert (proof(gap)["missing"] > 0, proof(gap)["repeated"], proof(gap)["ok"]) == (True, 0, False)
    twice = whole(kind)
    change(twice, 1, number, lambda lines, i: [*lines[: i + 1], lines[i], *lines[i + 1 :]])
    assert (proof(twice)["missing"], proof(twice)["repeated"] > 0, proof(twice)["ok"]) == (0, True, False)

    def other(lines, i):
        said = json.loads(lines[i])
        said["took"][5] = "0" * 16
        return [*lines[:i], json.dumps(said).encode(), *lines[i + 1 :]]

    foreign = whole(kind)
    change(foreign, 1, number, other)
    assert (proof(foreign)["mismatched"], proof(foreign)["ok"]) == (1, False)


def test_an_epoch_has_each_row_of_a_source_once_a_pass():
    layout = PLAN.layout(1)
    places = np.arange(PLAN.rows)
    ids = PlannedIds(layout, PLAN.sample_ids).at(places)
    source, pass_ = layout.origins(places)
    sources = {0: np.arange(50), 1: np.arange(1050, 1116)}
    for number, index, count in [(0, 0, 45), (1, 0, 66), (1, 1, 66), (1, 2, 18)]:
        seen = ids[(source == number) & (pass_ == index)]
        assert len(seen) == len(np.unique(seen)) == count
        assert np.isin(seen, sources[number]).all()


def test_a_mixed_plan_comes_back_as_it_was_and_is_named_by_its_mix():
    back = decode_plan("x", PLAN.encode())
    assert (back.name, back.mix) == (PLAN.name, PLAN.mix)
    assert PlanFacts("d", PLAN.order, ROWS, FIRST, {}, Mix((3, 3), (45, 149))).name != PLAN.name
    assert PlanFacts("d", PLAN.order, ROWS, FIRST, {}).name != PLAN.name
