"""The simulator: shares are equal, what it predicts can be worked out by hand, and what is read is the real plan's."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from ingest import cli
from ingest.cli_simulate import made_up
from ingest.errors import SpecError
from ingest.plan.layout import EpochLayout, Order
from ingest.plan.reads import UnitSizes, gather_reads
from ingest.plan.schedule import Schedule, Share
from ingest.simulate.events import Clock, Shared
from ingest.simulate.machine import Machine
from ingest.simulate.rank import Way
from ingest.simulate.run import Job, fit, simulate

pytestmark = pytest.mark.unit

ROWS, UNIT, ROW_BYTES, BATCH = 8_000, 50, 1_000, 20
FREE = Machine(  # nothing but augmentation costs anything
    trainer_nodes=2,
    trainer_cores=2,
    reader_nodes=2,
    reader_cores=4,
    process_s=0,
    request_s=0,
    read_s_per_byte=0,
    task_s=0,
    execution_s=0,
    feed_s=0,
    ray_s=0,
    load_s=0,
    augment_s=0.001,
)


def _job(world=2, *, rows=ROWS, barrier=False, **way):
    sizes = np.full(rows // UNIT, UNIT * ROW_BYTES, np.int64)
    order = Order(0, "window", 1 << (4 * world - 1).bit_length(), 2)
    layout = EpochLayout(np.full(rows // UNIT, UNIT, np.int64), order, 0)
    fed = {"readers": 4, "first_readers": 2, "budget_bytes": 600_000, "depth": 8, **way}
    return Job(layout, UnitSizes(sizes, sizes), 8, Share(0, world, BATCH), order, Way(**fed), barrier=barrier)


# -- what is shared ----------------------------------------------------------------------------------------------------


def _ends(capacity, each, *jobs):
    """When jobs of (start, work, weight) end."""
    clock, ends = Clock(), {}
    shared = Shared(clock, capacity, each)
    for number, (start, work, weight) in enumerate(jobs):
        clock.after(
            start,
            lambda n=number, w=work, k=weight: shared.add(w, lambda: ends.__setitem__(n, clock.now), k),
        )
    clock.run(until=lambda: False)
    return [ends[number] for number in range(len(jobs))]


@pytest.mark.parametrize(
    ("capacity", "each", "jobs", "expected"),
    [
        (2, 1, [(0, 3, 1)], [3]),  # one thread has one core
        (2, 1, [(0, 3, 2)], [1.5]),  # two threads have two
        (2, 1, [(0, 2, 1), (0, 2, 1), (0, 2, 1)], [3, 3, 3]),  # three threads on two cores
        (1, 9, [(0, 2, 1), (1, 0.5, 1)], [2.5, 2]),  # alone for a second, then halves
        (4, 1, [(0, 4, 4), (0, 4, 4)], [2, 2]),
        (1, 1, [(5, 0, 1)], [5]),
    ],
)
def test_work_gets_equal_parts_of_what_there_is(capacity, each, jobs, expected):
    assert _ends(capacity, each, *jobs) == pytest.approx(expected)


# -- whole runs --------------------------------------------------------------------------------------------------------


def test_decoding_is_the_limit_where_nothing_else_costs_anything():
    found = simulate(_job(threads=2), FREE)
    assert found.whole
    assert found.samples == ROWS
    assert found.samples_per_s == pytest.approx(4 / 0.001, rel=0.02)  # four cores
    assert found.waiting_fraction > 0.9


def test_trainers_are_the_limit_where_they_are_slow_and_then_wait_for_nothing():
    found = simulate(_job(threads=2, step_s=0.1), FREE)
    assert found.samples_per_s == pytest.approx(2 * BATCH / 0.1, rel=0.02)
    assert found.waiting_fraction < 0.01


def test_the_store_is_the_limit_where_it_gives_little():
    slow = replace(FREE, store_bytes_per_s=1e6)
    found = simulate(_job(rows=40_000, threads=2), slow)
    fetched_rows = found.fetched_bytes / ROW_BYTES
    assert fetched_rows >= 40_000
    assert found.samples_per_s == pytest.approx(1e6 / ROW_BYTES * 40_000 / fetched_rows, rel=0.05)


def test_what_is_read_is_what_the_ranks_plans_say():
    job = _job(3)
    reads = [read for rank in range(3) for read in gather_reads(Schedule(job.layout, Share(rank, 3, BATCH)), job.sizes)]
    found = simulate(job, FREE)
    assert found.requests == sum(len(read.units) for read in reads)
    assert found.fetched_bytes == sum(read.fetched_bytes(job.sizes) for read in reads)
    assert found.away_bytes == sum(read.memory_bytes(job.layout, job.sizes) for read in reads)


def test_reads_hold_no_more_than_their_budget_and_what_a_step_waits_for():
    window = 2 * UNIT * ROW_BYTES
    for budget in (4 * window, 8 * window):
        found = simulate(_job(budget_bytes=budget, step_s=0.05), FREE)
        assert 0 < found.held_bytes <= budget + 8 * window


def test_steps_that_are_cut_short_say_how_fast_the_epoch_goes():
    whole, cut = (simulate(_job(threads=2, rows=40_000, steps=steps), FREE) for steps in (10**9, 200))
    assert (whole.whole, cut.whole, cut.steps) == (True, False, 200)
    assert cut.samples_per_s == pytest.approx(whole.samples_per_s, rel=0.05)


def test_stragglers_and_lost_nodes_cost_time_and_no_row():
    near = replace(FREE, request_s=0.01)
    calm = simulate(_job(threads=2), near)
    slow = simulate(_job(threads=2), replace(near, slow_reads=0.3, slow_factor=100))
    lost = simulate(
        _job(threads=2, step_s=0.05), replace(near, request_s=0.3, losses_per_hour=900, notice_s=1, replace_s=2)
    )
    assert calm.samples == slow.samples == lost.samples == ROWS
    assert slow.seconds > calm.seconds
    assert lost.lost_reads > 0
    assert lost.requests > calm.requests


def test_ranks_that_wait_for_each_other_are_as_slow_as_the_slowest():
    uneven = replace(FREE, trainer_nodes=1)
    for barrier in (False, True):
        found = simulate(_job(3, barrier=barrier, step_s=0.05), uneven)
        assert found.steps == ROWS // (3 * BATCH)
    assert found.seconds >= (found.steps - 1) * 0.05 - 1e-9


@pytest.mark.parametrize(("ranks", "cores", "expected_s"), [(1, 8, 4.0), (1, 1, 10.0), (3, 1, 20.0), (3, 2, 10.0)])
def test_processes_share_the_cores_and_the_last_rank_waits_for_those_before_it(ranks, cores, expected_s):
    """Each 2 s: the catalog, a rank's three and its reader elsewhere; a second reader starts with its first read."""
    idle = {"actor_s": 0, "cluster_s": 0, "list_s": 0, "footer_s": 0, "plan_s_per_unit": 0, "augment_s": 1e-6}
    machine = replace(FREE, trainer_nodes=1, trainer_cores=cores, process_s=2.0, **idle)
    assert simulate(_job(ranks), machine).first_batch_s == pytest.approx(expected_s, abs=0.02)


def test_what_others_take_of_the_cores_is_lost():
    whole, half = (simulate(_job(threads=2), replace(FREE, core_share=share)) for share in (1.0, 0.5))
    assert half.samples_per_s == pytest.approx(whole.samples_per_s / 2, rel=0.02)


def test_the_same_seed_gives_the_same_figures():
    machine = replace(FREE, slow_reads=0.2)
    assert simulate(_job(), machine) == simulate(_job(), machine)
    assert simulate(_job(), machine) != simulate(replace(_job(), seed=1), machine)


def test_costs_are_found_from_what_was_measured():
    true = replace(FREE, augment_s=0.0023, process_s=2.5)
    seen = simulate(_job(1, threads=2), true)
    fitted = fit(_job(1, threads=2), FREE, seen.samples_per_s, seen.first_batch_s)
    assert fitted.augment_s == pytest.approx(0.0023, rel=0.01)
    assert fitted.process_s == pytest.approx(2.5, rel=0.01)
    assert simulate(_job(2, threads=2), fitted).samples_per_s == pytest.approx(
        simulate(_job(2, threads=2), true).samples_per_s, rel=0.01
    )


# -- parameters and the command ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("reader_cors=3", "there is no reader_cors"),
        ("reader_nodes=3.5", "'3.5' is not a int"),
        ("augment_s=fast", "'fast' is not a float"),
        ("augment_s=-1", "must be finite and not negative"),
        ("trainer_cores=0", "must be positive"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(setting, said):
    with pytest.raises(SpecError) as refused:
        Machine().with_values([setting])
    assert said in str(refused.value)


@pytest.mark.parametrize(("samples", "unit"), [(1000, 100), (1050, 100), (7, 100), (99, 1)])
def test_made_up_data_has_as_many_rows_as_asked_for(samples, unit):
    data = made_up(samples, 10, unit)
    assert int(data.unit_rows.sum()) == samples
    assert int(data.sizes.fetched.sum()) == samples * 10
    assert data.row_bytes == 10


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    values = {"source": {"path": "s3://nobody/has/this/"}, "augment": {"ops": [{"resize": {"size": 32}}]}}
    path.write_text(yaml.safe_dump({**values, "batch": {"size": 8}}), encoding="utf-8")
    return str(path)


def test_the_command_needs_neither_data_nor_a_cluster(spec, tmp_path):
    target = tmp_path / "out.json"
    command = ["simulate", spec, "--world-size", "4", "--nodes", "2", "--reader-nodes", "2", "--samples", "2e4"]
    priced = ["--param", "reader_usd_per_hour=3600", "--param", "get_usd_per_million=1e6"]
    done = CliRunner().invoke(
        cli.app, [*command, *priced, "--row-bytes", "1000", "--unit-rows", "50", "--json", str(target)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(target.read_text(encoding="utf-8"))
    assert (found["steps"], found["samples"]) == (625, 20_000)
    assert found["fetched_bytes"] >= 20_000 * 1000
    assert found["request_usd"] == found["requests"] >= 400
    assert found["node_usd"] == pytest.approx(found["epoch_s"] * 2)
    assert found["epoch_s"] == pytest.approx(20_000 / found["samples_per_s"])
    assert found["machine"]["trainer_nodes"] == 2


def test_a_file_that_is_no_measured_run_is_refused(spec, tmp_path):
    other = tmp_path / "run.json"
    other.write_text('{"world_size": 1}', encoding="utf-8")
    command = ["simulate", spec, "--world-size", "1", "--samples", "1000", "--calibrate", str(other)]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 2
    assert "--calibrate" in done.output
    assert "`ingest run --json`" in " ".join(done.output.split())
