"""The coverage log: whole over restarts and changed worlds, and every planted gap and repeat is found."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.errors import SourceError
from ingest.loader.batch import Batch
from ingest.loader.coverage import decode_log
from ingest.loader.planned import PlanFacts, decode_plan
from ingest.loader.proof import prove
from ingest.plan.ids import PlannedIds
from ingest.plan.layout import EpochLayout
from ingest.plan.schedule import Schedule
from tests.coverage_logs import PLAN, ROWS, TOTAL, Logs, change, proof, took_lines, train


def batches(share, epoch, position):
    """(batch, place afterwards) of a rank from a place on, epoch after epoch."""
    while True:
        layout = EpochLayout(ROWS, PLAN.order, epoch)
        schedule, ids = Schedule(layout, share, position), PlannedIds(layout, PLAN.sample_ids)
        for step in schedule:
            ends = step.index + 1 == schedule.steps
            own = ids.of(step.runs)
            own = own if step.fill is None else own[step.fill]
            batch = Batch.make(
                {}, epoch=epoch, after=step.after, ends_epoch=ends, valid_rows=step.valid_rows, ids=own, replaced={}
            )
            yield batch, ((epoch + 1, 0) if ends else (epoch, step.after))
        epoch, position = epoch + 1, 0


@settings(max_examples=25)
@given(st.data())
def test_restarts_on_other_worlds_leave_every_row_once(data):
    files, start = Logs(), (0, 0)
    for attempt in range(data.draw(st.integers(1, 5))):
        world, batch = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
        steps = data.draw(st.integers(1, 30))
        last = data.draw(st.sampled_from(["pad", "keep"]))
        places = train(files, batches, attempt, world, batch, last, start, steps, (1,))
        start = data.draw(st.sampled_from(places[:-1]))
    result = proof(files)
    assert result["ok"], result
    final = tuple(result["final"])
    assert result["expected"] == result["delivered"] == final[0] * TOTAL + final[1]


def whole(last="drop", epochs=2):
    files = Logs()
    places = train(files, batches, 0, 2, 5, last, (0, 0), 100)
    steps = next(i for i, place in enumerate(places) if place[0] == epochs)
    files.clear()
    train(files, batches, 0, 2, 5, last, (0, 0), steps)
    return files


def test_what_is_dropped_is_counted_and_expected_by_nobody():
    result = proof(whole("drop"), epochs=2)
    assert result["ok"]
    assert (result["dropped"], result["expected"]) == (2 * (TOTAL % 10), 2 * (TOTAL - TOTAL % 10))
    kept = proof(whole("keep"), epochs=2)
    assert kept["ok"]
    assert (kept["expected"], kept["final"]) == (2 * TOTAL, [1, TOTAL])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_gap_a_repeat_and_foreign_ids_are_found(rank, number):
    gap = whole()
    change(gap, rank, number, lambda lines, i: lines[:i] + lines[i + 1 :])
    result = proof(gap)
    assert not result["ok"]
    assert (result["missing"] > 0, result["repeated"]) == (True, 0)
    assert any(f"rank {rank}" in fault and "missing" in fault for fault in result["faults"])
    twice = whole()
    change(twice, rank, number, lambda lines, i: [*lines[: i + 1], lines[i], *lines[i + 1 :]])
    result = proof(twice)
    assert (result["missing"], result["repeated"] > 0, result["ok"]) == (0, True, False)
    foreign = whole()

    def other(lines, i):
        said = json.loads(lines[i])
        said["took"][5] = "0" * 16
        return [*lines[:i], json.dumps(said).encode(), *lines[i + 1 :]]

    change(foreign, rank, number, other)
    assert (proof(foreign)["mismatched"], proof(foreign)["ok"]) == (1, False)


def test_a_rank_or_an_attempt_without_a_log_is_found():
    lost = whole()
    for name in [name for name in lost if "rank00001-" in name]:
        del lost[name]
    assert proof(lost)["missing"] == TOTAL - TOTAL % 10
    late = Logs()
    train(late, batches, 1, 2, 5, "keep", (0, 50), 5)
    assert proof(late)["missing"] == 50
    assert proof(whole(), epochs=3)["missing"] == TOTAL
    with pytest.raises(SourceError, match="lacks the plan"):
        prove(list(decode_log(whole())), {})


def test_a_line_cut_by_a_death_counts_as_not_written_and_other_files_are_refused():
    files = whole()
    name, _ = took_lines(files, 0)[-1]
    files[name] = files[name][:-4]
    assert proof(files)["final"] < [2, 0]
    assert proof(files)["ok"]
    with pytest.raises(SourceError, match=r"not a coverage log.*x\.coverage"):
        list(decode_log({"x.coverage.jsonl": b'{"a": 1}\n'}))


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("value", [None, "x", -1, 1.5, True, [], 2**70])
def test_a_line_with_what_cannot_stand_there_is_named(at, value):
    files = whole()
    name, i = took_lines(files, 0)[1]
    lines = files[name].splitlines()
    said = json.loads(lines[i])
    said["took"][at] = value if (at, value) != (5, "x") else 7
    lines[i] = json.dumps(said).encode()
    files[name] = b"".join(line + b"\n" for line in lines)
    with pytest.raises(SourceError, match=r"not a coverage log.*coverage\.jsonl"):
        proof(files)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("attempt", 7), ("rank", 2), ("world_size", 0), ("world_size", 10**9), ("batch", 0), ("batch", "5")],
        *[("last", "wrap"), ("plan", None), ("began", "now"), ("began", None), ("version", 2)],
    ],
)
def test_a_header_with_what_cannot_stand_there_is_named(key, value):
    files = whole()
    name = next(iter(files))
    first, _, others = files[name].partition(b"\n")
    said = json.loads(first)
    said["header"][key] = value
    files[name] = json.dumps(said).encode() + b"\n" + others
    with pytest.raises(SourceError, match=r"not a coverage log.*coverage\.jsonl"):
        proof(files)


def test_a_plan_comes_back_as_it_was_kept_rows_included():
    plan = PlanFacts("d", PLAN.order, np.array([2, 3]), np.array([0, 10]), {1: np.array([0, 4, 5])})
    back = decode_plan("x", plan.encode())
    assert back.name == plan.name
    assert back.sample_ids(1, None).tolist() == [10, 14, 15]
    assert back.sample_ids(1, np.array([2])).tolist() == [15]
    assert back.sample_ids(0, None).tolist() == [0, 1]
    with pytest.raises(SourceError, match="not a plan"):
        decode_plan("x", b"nothing")
