"""The laws of batches of like lengths: each row once, equal steps, the same global batches, exact resumes, no waste."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.plan.buckets import BucketSchedule, Course, Part, cut, lane_shares
from ingest.plan.layout import EpochLayout, Order
from ingest.plan.schedule import Chunk, Share
from tests.plans import BucketedRank, Deliveries, orders_up_to, units_up_to

units = units_up_to(rows=40, count=8)
orders = orders_up_to(lanes=16, interleave=4)
worlds = st.integers(1, 6)
batches = st.integers(2, 25)
some_lengths = st.lists(st.integers(0, 300), min_size=1, max_size=40).map(lambda x: np.array(x, np.int64))


def deliver(unit_rows, order, epoch, world, batch, last, batches, position=0, chunk=None):
    """For each step, for each rank: the ids and the step; ranks that have different numbers of steps fail."""
    layout = EpochLayout(unit_rows, order, epoch)
    ranks = [BucketedRank(layout, Share(rank, world, batch, last), batches, position, chunk) for rank in range(world)]
    assert len({rank.schedule.steps for rank in ranks}) == 1
    steps = [list(step) for step in zip(*ranks, strict=True)]
    assert len(steps) == ranks[0].schedule.steps
    assert [[step.index for _, step in each] for each in steps] == [[i] * world for i in range(len(steps))]
    return steps


def valid(steps):
    return [ids[: step.valid_rows] for ranks in steps for ids, step in ranks]


def joined(parts):
    return np.concatenate([np.zeros(0, int), *parts]).tolist()


@given(units, orders, st.integers(0, 5), st.integers(1, 5), st.data())
def test_each_row_once_under_any_change_of_world_batch_and_tail_in_mid_epoch(unit_rows, order, epoch, size, data):
    total, position, chunk, seen = int(unit_rows.sum()), 0, None, []
    while position < total:
        world, batch = data.draw(worlds), data.draw(batches)
        last = data.draw(st.sampled_from(["keep", "pad", "drop"]))
        steps = deliver(unit_rows, order, epoch, world, batch, last, size, position, chunk)
        taken = data.draw(st.integers(1, 5)) if last == "drop" else data.draw(st.sampled_from([1, 2, 3, 5, len(steps)]))
        if not steps:
            assert last == "drop"
            assert total - position < world * batch
        for ranks in steps[:taken]:
            seen += valid([ranks])
            assert all(len(ids) >= 1 for ids, _ in ranks)
            assert {(step.after, step.chunk) for _, step in ranks} == {(ranks[0][1].after, ranks[0][1].chunk)}
            assert ranks[0][1].after > position
            if ranks[0][1].chunk:  # what is left of it lies in all ranks' accounts, each row in one
                left = sum(step.left for _, step in ranks)
                assert ranks[0][1].chunk.end - left == sum(map(len, seen))
            position, chunk = ranks[0][1].after, ranks[0][1].chunk
    assert sorted(joined(seen)) == list(range(total))


@settings(max_examples=30)
@given(units, orders, worlds, batches, st.sampled_from(["drop", "pad", "keep"]), st.integers(1, 5))
def test_tails_and_steps_are_as_without_bucketing(unit_rows, order, world, batch, last, size):
    total, share = int(unit_rows.sum()), Share(0, world, batch, last)
    steps = deliver(unit_rows, order, 0, world, batch, last, size)
    ids = joined(valid(steps))
    assert len(ids) == len(set(ids)) == total - share.dropped(total)
    assert len(steps) == share.steps(total)
    invalid = sum(len(ids) - step.valid_rows for ranks in steps for ids, step in ranks)
    if world <= order.lanes <= share.global_batch:  # then every rank has rows of its own at every step
        assert invalid == share.padded(total)
    elif last == "pad":
        assert invalid >= share.padded(total)


@settings(max_examples=30)
@given(units, orders, worlds, st.integers(1, 12), st.sampled_from(["drop", "keep"]), st.integers(1, 5), st.data())
def test_a_resume_at_any_step_of_the_same_global_batch_is_exact(unit_rows, order, world, batch, last, size, data):
    steps = deliver(unit_rows, order, 2, world, batch, last, size)
    others = [n for n in range(1, 7) if (world * batch) % n == 0]
    for at in sorted(data.draw(st.sets(st.integers(0, max(0, len(steps) - 2)), max_size=3))):
        if at >= len(steps) - 1:
            break
        state = steps[at][0][1]
        other = data.draw(st.sampled_from(others))
        rest = deliver(unit_rows, order, 2, other, world * batch // other, last, size, state.after, state.chunk)
        assert len(rest) == len(steps) - at - 1
        for one, two in zip(rest, steps[at + 1 :], strict=True):
            assert one[0][1].after == two[0][1].after
            if order.lanes % world == order.lanes % other == 0 and one[0][1].chunk:
                assert joined(valid([one])) == joined(valid([two]))
            assert sorted(joined(valid([one]))) == sorted(joined(valid([two])))


@settings(max_examples=30)
@given(units, orders, worlds, batches, st.integers(1, 5), st.data())
def test_another_world_finishes_the_chunk_in_its_groups_and_begins_its_own_at_the_border(
    unit_rows, order, world, batch, size, data
):
    steps = deliver(unit_rows, order, 1, world, batch, "drop", size)
    under_way = [s for s in steps if s[0][1].chunk and s[0][1].chunk.under_way(s[0][1].after)]
    if not under_way:
        return
    state = data.draw(st.sampled_from(under_way))[0][1]
    new, new_batch = data.draw(worlds), data.draw(batches)
    rest = deliver(unit_rows, order, 1, new, new_batch, "keep", size, state.after, state.chunk)

    def groups_of(steps):
        found = {}
        for ranks in steps:
            step = ranks[0][1]
            if step.chunk == state.chunk and step.after > state.after:
                found.setdefault(state.chunk.group(step.after - 1)[0], []).extend(joined(valid([ranks])))
        return {number: sorted(ids) for number, ids in found.items()}

    assert groups_of(rest) == groups_of(steps)
    assert state.chunk.end in [ranks[0][1].after for ranks in rest]


@settings(max_examples=30)
@given(units, orders, worlds, batches, st.integers(1, 5))
def test_positions_are_each_rows_place_before_sorting(unit_rows, order, world, batch, size):
    layout = EpochLayout(unit_rows, order, 3)
    plain = Deliveries(BucketSchedule(layout, Share(0, 1, 1, "keep"), 1))
    for ranks in deliver(unit_rows, order, 3, world, batch, "keep", size)[:4]:
        for ids, step in ranks:
            for place, sample in zip(step.runs.positions(order.lanes, step.fill).tolist(), ids.tolist(), strict=True):
                chunk = step.chunk
                assert chunk is None or chunk.start <= place < chunk.end
                assert plain.ids(BucketPlace(layout, place)).tolist() == [sample]


class BucketPlace:
    """The step that delivers one place of the sequence, as it lies."""

    def __init__(self, layout, place):
        from ingest.plan.lanes import deal

        self.runs, self.fill = deal(place, 1, layout.order.lanes, 0, 1), None


@given(some_lengths, st.integers(1, 40))
def test_a_cut_has_every_row_in_sorted_groups_none_empty_and_the_largest_as_small_as_can_be(lengths, groups):
    group = cut(lengths, groups)
    assert len(group) == len(lengths)
    assert 0 <= group.min() <= group.max() < groups
    by_length = np.lexsort((np.arange(len(lengths)), lengths))
    assert (np.diff(group[by_length]) >= 0).all()
    if len(lengths) >= groups:
        assert np.bincount(group, minlength=groups).min() >= 1
        assert most_tokens(lengths, group) <= best(np.maximum(np.sort(lengths), 1), groups)
    else:
        assert np.bincount(group).max() == 1


def most_tokens(lengths, group):
    return max(np.count_nonzero(group == g) * max(1, int(lengths[group == g].max())) for g in set(group.tolist()))


def best(lengths, groups):
    """The least largest group, by dynamic programming."""
    rows = len(lengths)
    costs = [0.0] + [float("inf")] * rows
    for _ in range(groups):
        costs = [
            min((max(costs[i], (j - i) * int(lengths[j - 1])) for i in range(j)), default=float("inf"))
            for j in range(rows + 1)
        ]
    return costs[rows]


@settings(max_examples=20)
@given(st.integers(0, 5), st.integers(1, 40))
def test_lanes_are_shared_without_gap_or_overlap(log_lanes, world):
    lanes, taken = 2**log_lanes, {}
    for rank in range(world):
        for lane, low, high in lane_shares(Share(rank, world, 1), lanes):
            assert taken.get(lane, 0) == low < high <= world
            taken[lane] = high
    assert taken == dict.fromkeys(range(lanes), world)


@pytest.mark.parametrize(("sigma", "world", "batch"), [(0.7, 2, 64), (1.0, 4, 64), (1.0, 2, 256)])
def test_waste_and_the_99th_percentile_of_batch_tokens_are_as_stated(sigma, world, batch):
    # One lane a rank, chunks of 32: what `lanes: auto` makes of a world of a power of two.
    rng, order = np.random.default_rng(0), Order(0, "none", world, 1)
    tokens, real, plain = [], 0, 0
    for start in range(10):
        chunk = Chunk(start, start + 32 * world * batch, world * batch)
        for rank in range(world):
            lengths = np.clip(rng.lognormal(5, sigma, 32 * batch), 1, 4096).astype(np.int64)
            schedule = BucketSchedule(EpochLayout(np.array([chunk.end]), order, 0), Share(rank, world, batch), 32)
            (lane,) = schedule.lane_rows(chunk)
            groups, low = schedule.groups(chunk, {lane: lengths}), schedule.lane_rows(chunk)[lane][0]
            for index in range(32):
                step = groups.step(
                    Part(0, index, chunk, chunk.start + index * chunk.batch, chunk.start + (index + 1) * chunk.batch)
                )
                (rows,) = [rows for _, rows in step.runs.by_lane()]
                own = lengths[np.r_[rows] - low]
                tokens.append(len(own) * own.max())
            real += lengths.sum()
            plain += batch * lengths.reshape(32, batch).max(axis=1).sum()
    assert 1 - real / sum(tokens) < 0.11
    assert 1 - real / plain > 0.7
    assert np.quantile(tokens, 0.99) < 1.10 * np.mean(tokens)


def test_golden_groups():
    # Users resume inside this order: a release that changes it breaks their runs.
    steps = deliver(np.array([9, 14, 9]), Order(7, "window", 2, 2), 1, 1, 8, "keep", 3)
    assert [ids.tolist() for [(ids, _)] in steps] == GOLDEN


def test_a_course_of_a_billion_rows_is_cut_at_once():
    course = Course(10**9, 64, Share(0, 64, 256), 32)
    first, last = course.needed(np.array([0, 10**9 - 10**6]))
    assert (first[0], last[0], course.steps) == (0, 31, 10**9 // (64 * 256))
    assert last[1] - first[1] == 31
    assert all(a.after == b.begin for a, b in itertools.pairwise(course.part(0, i) for i in range(100)))


GOLDEN = [
    [16, 10, 19, 15, 12, 11, 20, 0, 7, 28, 25, 8, 29],
    [9, 14, 22, 31, 2, 6, 27],
    [17, 21, 1, 5],
    [13, 18, 26, 30, 4, 24, 23, 3],
]
