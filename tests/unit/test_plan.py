"""Golden order, `auto` choices, costs and refusals of the plan."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from ingest.errors import PlanError
from ingest.plan.lanes import bit_reversal, deal
from ingest.plan.layout import EpochLayout, Order
from ingest.plan.reads import gather_reads
from ingest.plan.resolve import Wanted, check_share, cost, open_bytes, resolve
from ingest.plan.schedule import Schedule, Share
from tests.plans import deliver, sizes_of

MIB = 1 << 20


def wanted(**values) -> Wanted:
    return Wanted(
        **{"seed": 0, "shuffle": "window", "lanes": None, "interleave": None, "window_bytes": 256 * MIB, **values}
    )


def test_golden_order():
    # Users resume from a position in this order: a release that changes it breaks their runs.
    order = Order(seed=7, shuffle="window", lanes=2, interleave=2)
    steps = deliver(np.array([4, 3, 5]), order, epoch=1, world=1, batch=4, last="keep")
    assert [ids.tolist() for [(ids, _)] in steps] == GOLDEN


def test_bit_reversal_of_eight():
    assert bit_reversal(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]


def test_a_global_batch_is_dealt_in_lane_order():
    # Rows 0..5 of four lanes go to lanes 0, 2, 1, 3, 0, 2; in lane order: two of lane 0, one of 1, two of 2, one of 3.
    runs = deal(0, 6, lanes=4, begin=0, end=6)
    assert runs.lane.tolist() == [0, 1, 2, 3]
    assert runs.start.tolist() == [0, 0, 0, 0]
    assert runs.count.tolist() == [2, 1, 2, 1]
    second_rank = deal(0, 6, lanes=4, begin=3, end=6)
    assert (second_rank.lane.tolist(), second_rank.count.tolist()) == ([2, 3], [2, 1])


def test_auto_gives_several_lanes_a_rank_and_fills_the_window_bytes():
    rows = np.tile([64, 64, 64, 58], 64)
    sizes = sizes_of(rows, row_bytes=69_000)
    order = resolve(wanted(), rows, sizes, world_size=4)
    assert order.lanes == 32
    mean = int(sizes.memory.mean())
    assert 8 * order.interleave * mean <= 256 * MIB < 8 * (order.interleave + 1) * mean


def test_auto_takes_fewer_lanes_where_a_unit_would_be_read_too_often():
    rows = np.full(8, 1000)
    order = resolve(wanted(), rows + np.arange(8), sizes_of(rows), world_size=1)
    layout = EpochLayout(rows + np.arange(8), order, 0)
    assert cost(layout, sizes_of(rows), 1, 10, "drop").read_amplification <= 1.25


@pytest.mark.parametrize(("memory", "opened"), [(None, 256), (1000, 256), (512, 256), (511, 255), (100, 50)])
def test_windows_open_at_a_time_take_at_most_half_of_a_rank_s_memory(memory, opened):
    assert open_bytes(256, memory) == opened


def test_auto_keeps_the_open_units_within_the_window_bytes():
    rows = np.full(1000, 1000)
    order = resolve(wanted(), rows, sizes_of(rows, 69_000), world_size=2)
    assert order.interleave == 1
    assert order.lanes // 2 * 69_000_000 <= 256 * MIB


def test_chosen_lanes_and_interleave_are_kept():
    rows = np.full(10, 10)
    order = resolve(wanted(lanes=16, interleave=3), rows, sizes_of(rows), world_size=3)
    assert (order.lanes, order.interleave) == (16, 3)


def test_data_of_small_objects_has_so_many_of_them_open_and_no_more():
    rows = np.full(100_000, 8, np.int64)
    for world, open_units in ((1, 4096), (3, 4092), (8, 4096)):
        order = resolve(wanted(), rows, sizes_of(rows, 180), world_size=world)
        assert order.interleave * -(-order.lanes // world) == open_units


def test_a_sample_of_many_ranks_stands_for_all(monkeypatch):
    rows = np.full(4096, 64)
    sizes = sizes_of(rows, 100)
    layout = EpochLayout(rows, Order(0, "window", 256, 4), 0)
    whole = cost(layout, sizes, 200, 4, "drop")
    monkeypatch.setattr("ingest.plan.resolve.MOST_RANKS", 32)
    some = cost(layout, sizes, 200, 4, "drop")
    assert (len(whole.rank_units), len(some.rank_units)) == (200, 32)
    assert whole.units == whole.rank_units.sum()
    assert some.units == pytest.approx(whole.units, rel=0.1)
    assert some.read_amplification == pytest.approx(whole.read_amplification, rel=0.1)


def test_a_million_ranks_are_planned_in_seconds(monkeypatch):
    looked_at = []
    monkeypatch.setattr("ingest.plan.resolve.Schedule", lambda *args: looked_at.append(1) or Schedule(*args))
    monkeypatch.setattr("ingest.plan.resolve.MOST_RANKS", 8)
    layout = EpochLayout(np.array([12]), Order(0, "window", 2, 1), 0)
    found = cost(layout, sizes_of(np.array([12]), 100), 10**6, 4, "pad")
    assert len(looked_at) == 8
    assert found.read_amplification == pytest.approx(10**6)  # each fetches the one unit


def test_one_unit_on_four_ranks_is_read_once_by_each():
    rows = np.array([100_000])
    sizes = sizes_of(rows, 100)
    order = resolve(wanted(), rows, sizes, world_size=4)
    layout = EpochLayout(rows, order, 0)
    found = cost(layout, sizes, 4, 64, "drop")
    assert found.rank_units.tolist() == [1, 1, 1, 1]
    assert found.read_amplification == pytest.approx(4.0)


def test_one_unit_on_many_lanes_is_one_read():
    layout = EpochLayout(np.array([1000]), Order(0, "window", 16, 1), 0)
    schedule = Schedule(layout, Share(0, 1, 10))
    reads = gather_reads(schedule, sizes_of(layout.unit_rows))
    assert len(reads) == 1
    assert len(reads[0].windows) == 16


@pytest.mark.parametrize(("world", "lanes"), [(1, 8), (2, 16), (4, 32), (3, 32), (5, 64), (6, 64), (12, 128)])
def test_amplification_is_as_stated(world, lanes):
    # Cut units cost at most one read more for each lane border, borders between ranks one lane for each rank.
    rows = np.full(4096, 10)
    layout = EpochLayout(rows, Order(3, "window", lanes, 4), 0)
    found = cost(layout, sizes_of(rows), world, 64, "drop")
    cuts = 1 + (lanes - 1) / len(rows)
    assert 1.0 <= found.read_amplification <= cuts * (1 + (world - 1) / lanes) + 0.01


@pytest.mark.parametrize(("lanes", "interleave"), [(8, 4), (16, 8), (32, 4)])
def test_label_variance_on_label_sorted_data_is_as_stated(lanes, interleave):
    # The variance of a batch's mean label, relative to drawing the batch at random, is about 1 + G / open units.
    rows, batch = np.full(1024, 64), 256
    total = int(rows.sum())
    label = np.arange(total) / total
    order = Order(1, "window", lanes, interleave)
    means = []
    for epoch in range(4):
        means += [label[ids].mean() for [(ids, _)] in deliver(rows, order, epoch, 1, batch, "drop")]
    relative = np.var(means) / (np.var(label) / batch)
    stated = 1 + batch / (lanes * interleave)
    assert stated / 1.6 <= relative <= stated * 1.6


def test_first_windows_are_staggered_over_the_lanes():
    layout = EpochLayout(np.full(800, 10), Order(0, "window", 8, 8), 0)
    firsts = [int(layout.lane(lane).piece_start[1]) for lane in range(8)]
    assert sorted(firsts) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_full_shuffle_that_does_not_fit_is_refused_with_both_numbers():
    rows = np.full(10, 1000)
    with pytest.raises(PlanError, match=r"5000000 bytes.*may hold 1000000"):
        resolve(wanted(shuffle="full"), rows, sizes_of(rows), world_size=2, memory_bytes=1_000_000)
    assert resolve(wanted(shuffle="full"), rows, sizes_of(rows), 2, 50_000_000).shuffle == "full"


def test_no_rows_is_refused():
    with pytest.raises(PlanError, match="no rows"):
        resolve(wanted(), np.zeros(0, np.int64), sizes_of(np.zeros(0, np.int64)), 1)


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank, world):
    with pytest.raises(PlanError, match=f"rank {rank}"):
        Share(rank, world, 4)


def test_a_position_outside_the_epoch_is_refused():
    layout = EpochLayout(np.array([5]), Order(0, "none", 1, 1), 0)
    with pytest.raises(PlanError, match="position 6"):
        Schedule(layout, Share(0, 1, 1), 6)


SCALE = """
import json, resource, time
import numpy as np
from ingest.plan.layout import EpochLayout
from ingest.plan.reads import UnitSizes, gather_reads
from ingest.plan.resolve import Wanted, resolve
from ingest.plan.schedule import Schedule, Share
rows = np.random.default_rng(0).integers(500, 1500, 1_000_000)
rows[-1] += 1_000_000_000 - rows.sum()
began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sizes = UnitSizes(rows * 100, rows * 100)
order = resolve(Wanted(0, "window", None, None, 256 << 20), rows, sizes, 1024)
schedule = Schedule(EpochLayout(rows, order, 0), Share(500, 1024, 256))
reads = gather_reads(schedule, sizes)
step = schedule.step(schedule.steps - 1)
print(json.dumps({"cpu_s": time.process_time() - began, "rows": int(rows.sum()), "steps": schedule.steps,
    "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, "reads": len(reads)}))
"""


def test_a_billion_rows_plan_in_seconds_and_megabytes():
    # 10^9 rows in 10^6 units for one of 1,024 ranks, `auto` resolved; processor time, so that a busy machine passes.
    done = subprocess.run([sys.executable, "-c", SCALE], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["rows"] == 10**9
    assert found["steps"] == 10**9 // (1024 * 256)
    assert found["cpu_s"] < 5
    assert found["mb"] < 500


GOLDEN = [[5, 4, 2, 0], [6, 7, 3, 1], [10, 8, 11, 9]]


@pytest.mark.parametrize(
    ("batch", "last", "message"),
    [
        (101, "drop", r"100 rows are fewer than a global batch of 202 \(101 rows on each of 2 ranks\)"),
        (10**9, "pad", "a batch of 1000000000 rows takes about 8000000000 bytes, and the .* has 1000000 bytes.*keep"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(batch, last, message):
    with pytest.raises(PlanError, match=message):
        check_share(Share(0, 2, batch, last), 100, 8, 10**6)


def test_a_kept_tail_is_no_larger_than_the_data():
    check_share(Share(0, 2, 10**9, "keep"), 100, 8, 10**6)
    check_share(Share(0, 2, 10**9, "pad"), 100, 8, 0)  # nothing known
