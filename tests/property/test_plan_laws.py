"""The plan's laws: each row once, equal steps, the same global batches, windows that keep their rows."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from ingest.plan.lanes import bit_reversal, lane_starts, positions, rows_before
from ingest.plan.layout import EpochLayout, Order, piece_rows, window_order
from ingest.plan.schedule import Schedule, Share
from tests.plans import deliver, first_ids, orders_up_to, units_up_to

units = units_up_to(rows=60, count=25)
orders = orders_up_to(lanes=64, interleave=6)
worlds = st.integers(1, 6)
batches = st.integers(1, 25)


@given(units, orders, st.integers(0, 5), st.data())
def test_each_row_once_under_any_change_of_world_and_batch_in_mid_epoch(unit_rows, order, epoch, data):
    total, position, seen = int(unit_rows.sum()), 0, []
    while position < total:
        world, batch = data.draw(worlds), data.draw(batches)
        last = data.draw(st.sampled_from(["pad", "keep"]))
        steps = deliver(unit_rows, order, epoch, world, batch, last, position)
        for ranks in steps[: data.draw(st.integers(1, 5))]:
            counts = [step.valid_rows for _, step in ranks]
            assert max(counts) - min(counts) <= 1
            seen += [ids[: step.valid_rows] for ids, step in ranks]
            position = ranks[0][1].after
            assert all(step.after == position for _, step in ranks)
    assert sorted(np.concatenate(seen).tolist()) == list(range(total))


@given(units, orders, worlds, batches, st.sampled_from(["drop", "pad", "keep"]))
def test_steps_sizes_and_tails_are_as_stated(unit_rows, order, world, batch, last):
    total, share = int(unit_rows.sum()), Share(0, world, batch, last)
    steps = deliver(unit_rows, order, 0, world, batch, last)
    valid = np.concatenate([ids[: s.valid_rows] for ranks in steps for ids, s in ranks] or [np.zeros(0, np.int64)])
    invalid = sum(len(ids) - s.valid_rows for ranks in steps for ids, s in ranks)
    assert len(valid) == len(set(valid.tolist())) == total - share.dropped(total)
    assert invalid == share.padded(total)
    assert len(steps) == share.steps(total)
    if last == "pad":
        assert {len(ids) for ranks in steps for ids, _ in ranks} == {batch}
    if last == "keep" and steps:
        assert all(len(ids) >= 1 for ids, _ in steps[-1])


@given(units, orders, st.integers(1, 4), st.lists(st.integers(1, 12), min_size=2, max_size=3))
def test_the_same_global_batch_size_gives_the_same_global_batches_at_any_world(unit_rows, order, scale, world_sizes):
    global_batch = scale * int(np.lcm.reduce(world_sizes))
    seen = []
    for world in world_sizes:
        steps = deliver(unit_rows, order, 1, world, global_batch // world, "drop")
        seen.append([np.concatenate([ids for ids, _ in ranks]).tolist() for ranks in steps])
    assert all(batches == seen[0] for batches in seen)


@given(units, orders, st.integers(1, 3), st.integers(0, 5), st.sampled_from(["drop", "pad", "keep"]), st.data())
def test_a_world_that_changes_at_any_step_leaves_the_global_batches_alone(unit_rows, order, scale, epoch, last, data):
    global_batch = 12 * scale
    sizes = st.sampled_from([1, 2, 3, 4, 6, 12])

    def rest(world, position):
        steps = deliver(unit_rows, order, epoch, world, global_batch // world, last, position)
        valid = [np.concatenate([ids[: step.valid_rows] for ids, step in ranks]).tolist() for ranks in steps]
        return valid, [ranks[0][1].after for ranks in steps]

    whole, ends = rest(data.draw(sizes), 0)
    at, position = 0, 0
    while at < len(whole):
        found, _ = rest(data.draw(sizes), position)
        assert found == whole[at:]
        at += data.draw(st.integers(1, 3))
        position = ends[min(at, len(ends)) - 1]


@given(units, orders, worlds, batches, st.integers(0, 3))
def test_positions_give_one_sequence_whatever_the_world_and_the_batch(unit_rows, order, world, batch, epoch):
    total = int(unit_rows.sum())

    def sequence(world, batch):
        out = np.full(total, -1, np.int64)
        for ranks in deliver(unit_rows, order, epoch, world, batch, "keep"):
            for ids, step in ranks:
                runs = step.runs
                rows = np.concatenate([np.arange(s, s + c) for s, c in zip(runs.start, runs.count, strict=True)])
                places = positions(np.repeat(runs.lane, runs.count), rows, order.lanes)
                places = places if step.fill is None else places[step.fill]
                out[places[: step.valid_rows]] = ids[: step.valid_rows]
        return out

    one = sequence(1, 7)
    assert sorted(one.tolist()) == list(range(total))
    assert (sequence(world, batch) == one).all()


@given(units, orders, st.integers(0, 3))
def test_a_window_keeps_its_rows_and_lanes_differ_by_at_most_one(unit_rows, order, epoch):
    layout = EpochLayout(unit_rows, order, epoch)
    first, seen = first_ids(unit_rows), []
    lengths = np.diff(layout.lane_starts)
    assert lengths.max() - lengths.min() <= 1
    for lane in range(order.lanes):
        windows = layout.lane(lane)
        assert windows.row_start[-1] == lengths[lane]
        for window in range(len(windows)):
            pieces = range(windows.piece_start[window], windows.piece_start[window + 1])
            assert 1 <= len(pieces) <= (len(unit_rows) if order.shuffle == "full" else order.interleave)
            ids = []
            for p in pieces:
                unit = int(windows.unit[p])
                rows = piece_rows(order, epoch, unit, unit_rows[unit], windows.begin[p], windows.end[p])
                ids.append(first[unit] + (np.arange(unit_rows[unit]) if rows is None else rows))
            ids = np.concatenate(ids)
            permuted = ids[window_order(order, layout.key(lane, window), len(ids))]
            assert sorted(permuted.tolist()) == sorted(ids.tolist())
            if order.shuffle == "none":
                assert (permuted == ids).all()
            seen.append(ids)
    assert sorted(np.concatenate(seen).tolist()) == list(range(int(unit_rows.sum())))


@given(units, st.integers(0, 99))
def test_no_shuffle_on_one_lane_is_file_order(unit_rows, seed):
    order = Order(seed, "none", lanes=1, interleave=3)
    ids = np.concatenate([ids for [(ids, _)] in deliver(unit_rows, order, 4, 1, 5, "keep")])
    assert ids.tolist() == list(range(int(unit_rows.sum())))


@given(st.integers(1, 8), st.integers(0, 6), st.integers(0, 200), st.integers(1, 50))
def test_ranks_that_divide_the_lanes_always_read_whole_lanes(log_world, extra, position, batch):
    world = 2 ** min(log_world, 4)
    lanes = world * 2 ** min(extra, 3)
    layout = EpochLayout(np.full(40, 50, np.int64), Order(0, "window", lanes, 2), 0)
    per_rank = lanes // world
    for rank in {0, world // 2, world - 1}:
        schedule = Schedule(layout, Share(rank, world, batch), position)
        for index in range(min(3, schedule.full_steps)):
            touched = schedule.step(index).runs.lane
            assert touched.min() >= rank * per_rank
            assert touched.max() < (rank + 1) * per_rank


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_lanes_share_the_rows_before_a_position(position, log_lanes):
    lanes = 2**log_lanes
    before = rows_before(position, lanes)
    assert before.sum() == position
    assert before.max() - before.min() <= 1
    assert lane_starts(position, lanes)[-1] == position
    assert sorted(bit_reversal(lanes).tolist()) == list(range(lanes))


@given(units, orders.filter(lambda order: order.shuffle != "none"))
def test_epochs_differ(unit_rows, order):
    total = int(unit_rows.sum())
    assume(total >= 30)
    orders_seen = {
        tuple(np.concatenate([ids for [(ids, _)] in deliver(unit_rows, order, epoch, 1, 16, "keep")]).tolist())
        for epoch in range(3)
    }
    assert len(orders_seen) == 3
