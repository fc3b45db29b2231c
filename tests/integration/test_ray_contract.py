"""The private names of Ray that the engine stands on: a new Ray that changes one of them fails here, not in a run."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
import ray

from ingest.engine import gcs, private
from ingest.engine.datasource import Call, error_in
from ingest.engine.flow import Flow, Stretch
from ingest.engine.segment import Delivery, Segment, run_calls
from ingest.errors import ReadError, StageError
from ingest.spec import Spec
from jobs import train_ray
from jobs.learner import Run, Task
from jobs.saved import Store

pytestmark = pytest.mark.usefixtures("cluster")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module


def table(start: int, rows: int) -> pa.Table:
    return pa.table({"x": np.arange(start, start + rows), "pad": pa.array([b"p" * 1000] * rows)})


def fail(start: int, rows: int) -> pa.Table:
    raise ReadError(f"rows {start} to {start + rows} are gone", path="file")


def crash(start: int, rows: int) -> pa.Table:
    raise ZeroDivisionError(f"{start} / {rows}")


def segment(calls, budget=1 << 30, running=2, first_step=None):
    flow = Flow(budget, running)
    stretch = Stretch([call.size_bytes for call in calls], first_step or [10**9] * len(calls))
    deliveries = [Delivery(call.rows) for call in calls]
    made = Segment(
        calls,
        deliveries,
        stretch,
        flow,
        open_error=lambda ref: error_in(ray.get(ref)),
        place={"num_cpus": 1},
        name="test",
    )
    return flow, stretch, deliveries, made


def wait(flow, condition):
    with flow.changed:
        assert flow.changed.wait_for(condition, 60)


def calls_of(functions, rows=10):
    return [Call(function, (i * rows, rows), rows, rows * 1000) for i, function in enumerate(functions)]


def test_blocks_arrive_in_the_calls_order_and_complete():
    flow, stretch, deliveries, made = segment(calls_of([table] * 12))
    made.start()
    wait(flow, lambda: all(d.complete for d in deliveries))
    assert [str(d.error) for d in deliveries] == ["None"] * 12
    values = [ray.get(ref)["x"].to_numpy() for d in deliveries for ref, _ in d.blocks]
    assert np.concatenate(values).tolist() == list(range(120))
    assert stretch.submitted == 12
    made.stop()


def test_no_read_starts_beyond_the_budget_until_something_is_released():
    flow, stretch, deliveries, made = segment(calls_of([table] * 8), budget=35_000)
    made.start()
    wait(flow, lambda: deliveries[2].complete)
    assert stretch.submitted == 3
    assert not deliveries[3].complete
    flow.release(10_000)
    wait(flow, lambda: deliveries[3].complete)
    assert stretch.submitted == 4
    flow.advance(10**9)  # now every read is needed: the budget must not hold them back
    wait(flow, lambda: all(d.complete for d in deliveries))
    made.stop()


def test_a_bad_read_is_data_in_its_place_and_the_others_arrive():
    flow, _, deliveries, made = segment(calls_of([table, fail, table, table]))
    made.start()
    wait(flow, lambda: all(d.complete for d in deliveries))
    assert isinstance(deliveries[1].error, ReadError)
    assert (deliveries[1].error.path, deliveries[1].error.stage) == ("file", "read")
    assert [d.rows for d in deliveries] == [10, 0, 10, 10]
    made.stop()


def test_one_row_reads_carry_errors_too():
    flow, _, deliveries, made = segment(calls_of([table, fail, table], rows=1))
    made.start()
    wait(flow, lambda: all(d.complete for d in deliveries))
    assert [d.error is not None for d in deliveries] == [False, True, False]
    made.stop()


def test_a_crash_reaches_what_waits_with_its_cause():
    flow, _, deliveries, made = segment(calls_of([crash]))
    made.start()
    wait(flow, lambda: deliveries[0].complete)
    assert isinstance(deliveries[0].error, StageError)
    assert "ZeroDivisionError" in str(deliveries[0].error)
    made.stop()


def test_too_few_rows_are_an_error():
    flow, _, deliveries, made = segment([Call(table, (0, 9), 10, 1000)])
    made.start()
    wait(flow, lambda: deliveries[0].complete)
    assert "10 rows were planned, and 9 were read" in str(deliveries[0].error)
    made.stop()


def test_stop_ends_an_execution_that_waits_for_its_budget():
    flow, _, deliveries, made = segment(calls_of([table] * 8), budget=15_000)
    made.start()
    wait(flow, lambda: deliveries[0].complete)
    stopper = threading.Thread(target=made.stop)
    stopper.start()
    stopper.join(30)
    assert not stopper.is_alive()
    assert made.done


def test_an_execution_that_ends_while_none_may_start_is_noticed():
    flow, _, deliveries, made = segment(calls_of([table] * 8), budget=15_000)
    made.start()
    wait(flow, lambda: deliveries[0].complete)
    private.stop_execution(made._key)
    wait(flow, lambda: deliveries[7].complete)
    assert "the read ended early" in str(deliveries[7].error)
    made.stop()


@pytest.mark.filterwarnings("ignore:The serialized size of your read function")  # as a feeder's process does
def test_a_read_of_thousands_of_files_is_a_large_task_and_arrives():
    files = [f"s3://bucket/{'part' * 20}/{number:08}" for number in range(20_000)]  # over the size of which Ray warns
    call = Call(lambda files: table(0, len(files)), (files,), len(files), 8 * len(files))
    (found,) = run_calls([call], num_cpus=1, name="t")
    assert len(found) == len(files)


def test_run_calls_gives_tables_in_order():
    tables = run_calls(calls_of([table] * 5), num_cpus=1, name="test")
    assert np.concatenate([t["x"].to_numpy() for t in tables]).tolist() == list(range(50))


def test_the_object_store_is_measured():
    before = gcs.object_store_stats()
    held = ray.put(np.zeros(50 << 20, np.uint8))
    after = gcs.object_store_stats()
    assert after["capacity"] > 0
    assert after["used"] - before["used"] >= 50 << 20
    assert set(after) == {"used", "capacity", "spilled"}
    del held


def test_a_cluster_without_an_autoscaler_is_known_as_such():
    assert not gcs.autoscaled()
    assert gcs.grown_resources() == {}


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_ray_train_takes_the_run_of_a_job(kind, tmp_path):
    if kind == "torch":
        pytest.importorskip("torch")
    spec = Spec.load({"source": {"path": str(tmp_path)}, "augment": {"recipe": "imagenet_train"}})
    run, store = Run(2, state=str(tmp_path / "state")), Store(str(tmp_path / "state"), spec)
    made = train_ray.trainer(Task(spec, 1, kind=kind), run, store, None, max_failures=2)
    assert made.run_config.failure_config.max_failures == 2
    assert made.run_config.storage_path == str(tmp_path / "ray-train")
    assert made.scaling_config.num_workers == 2
