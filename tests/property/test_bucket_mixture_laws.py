"""Batches of like lengths out of several sources: a row once a pass, exact resumes, lengths near each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.plan.mixture import MixtureLayout
from ingest.plan.schedule import Share
from tests.plans import BucketedRank
from tests.property.test_mixture_laws import check_passes, mixtures, orders, places_of


def deliver(mixture, order, world, batch, last, chunk_batches, position=0, chunk=None):
    """For each step, for each rank: the ids and the step; ranks that have different numbers of steps fail."""
    layout = MixtureLayout(mixture[0], order, 1, mixture[1])
    shares = [Share(rank, world, batch, last) for rank in range(world)]
    ranks = [BucketedRank(layout, share, chunk_batches, position, chunk) for share in shares]
    return [list(step) for step in zip(*ranks, strict=True)]


def valid(step):
    return [ids[: one.valid_rows] for ids, one in step]


@settings(max_examples=30)
@given(mixtures(), orders, st.integers(1, 4), st.data())
def test_each_row_once_a_pass_over_changes_of_world_inside_chunks(mixture, order, size, data):
    (unit_rows, mix), position, chunk, ids, places = mixture, 0, None, [], []
    while position < mix.rows:
        world, batch = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 20))
        steps = deliver(
            mixture, order, world, batch, data.draw(st.sampled_from(["pad", "keep"])), size, position, chunk
        )
        for ranks in steps[: data.draw(st.integers(1, 9))]:
            ids += valid(ranks)
            places += [places_of(step, order.lanes) for _, step in ranks]
            assert len({(step.after, step.chunk) for _, step in ranks}) == 1
            position, chunk = ranks[0][1].after, ranks[0][1].chunk
            if chunk:
                assert chunk.end - sum(step.left for _, step in ranks) == sum(map(len, ids))
    ids, places = np.concatenate(ids), np.concatenate(places)
    assert sorted(places.tolist()) == list(range(mix.rows))
    check_passes(ids, places, unit_rows, mix, MixtureLayout(unit_rows, order, 1, mix))


@settings(max_examples=20)
@given(mixtures(), orders, st.integers(1, 4), st.integers(1, 12), st.integers(1, 4), st.data())
def test_a_resume_at_any_step_is_exact(mixture, order, world, batch, size, data):
    steps = deliver(mixture, order, world, batch, "keep", size)
    at = data.draw(st.integers(0, len(steps) - 1))
    state = steps[at][0][1]
    rest = deliver(mixture, order, world, batch, "keep", size, state.after, state.chunk)
    assert len(rest) == len(steps) - at - 1
    for one, two in zip(rest, steps[at + 1 :], strict=True):
        assert [ids.tolist() for ids in valid(one)] == [ids.tolist() for ids in valid(two)]


@settings(max_examples=40)
@given(mixtures(), orders, st.data())
def test_rows_that_are_picked_out_of_a_lane_are_those_of_the_whole(mixture, order, data):
    layout = MixtureLayout(mixture[0], order, 1, mixture[1])
    lane = data.draw(st.integers(0, order.lanes - 1))
    count = int(layout.pattern.rows[:, lane].sum())
    if not count:
        return
    whole = {}
    for window, begin, end in layout.stretches(lane, 0, count)[0]:
        whole[window] = begin, end
    found, places = layout.picked(lane, slice(0, count))
    named = [(window, row) for window, rows in found for row in range(rows.start, rows.stop)]
    by_row = dict(zip(places.tolist(), named, strict=True))
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=30))))
    some, which = layout.picked(lane, rows)
    got = [(window, int(row)) for window, inside in some for row in inside]
    assert sorted(which.tolist()) == list(range(len(rows)))
    assert [by_row[int(rows[i])] for i in which] == got
    assert layout.picked(lane, rows[:0])[0] == []
