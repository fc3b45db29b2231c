"""Jobs and facts cross processes as bytes, unchanged."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from ingest.engine.jobs import BatchInfo, Gather, Job
from ingest.engine.tables import Tables
from ingest.plan.lanes import LaneRows


def test_a_job_packs_and_unpacks():
    job = Job(
        3,
        (Gather(40, np.array([5, 2])), Gather(41, np.array([7]))),
        np.array([11, 12, 13]),
        np.array([4, 4, -1]),
        (7, 9),
    )
    back = Job.unpack(job.pack())
    assert (back.epoch, back.drops) == (3, (7, 9))
    assert back.sample_ids.tolist() == [11, 12, 13]
    assert back.lanes.tolist() == [4, 4, -1]
    assert [(g.key, g.rows.tolist()) for g in back.gathers] == [(40, [5, 2]), (41, [7])]


def test_pieces_are_rows_of_tables_in_batch_order():
    tables = {1: pa.table({"x": [1, 2]}), 2: pa.table({"x": [3, 4, 5]})}
    job = Job(
        0,
        (Gather(2, np.array([2])), Gather(1, np.array([1])), Gather(2, np.array([0]))),
        np.arange(3),
        np.zeros(3, np.int64),
    )
    rows = [table["x"].to_pylist()[row] for table, rows in job.pieces(tables) for row in rows.tolist()]
    assert rows == [5, 2, 3]


def test_tables_are_awaited_and_then_fetched():
    asked = []

    def fetch(key):
        asked.append(key)
        return [pa.table({"x": [key]}), pa.table({"x": [key + 1]})]

    tables = Tables(fetch)
    threading.Timer(0.05, tables.add, (1, [pa.table({"x": [10]})])).start()
    assert tables.get({1})[1]["x"].to_pylist() == [10]
    assert asked == []
    assert tables.get({5})[5]["x"].to_pylist() == [5, 6]
    tables.get({5})
    assert asked == [5]
    tables.drop([5, 6])
    tables.get({5})
    assert asked == [5, 5]


def test_facts_pack_and_unpack():
    runs = LaneRows(np.array([0, 3]), np.array([10, 20]), np.array([2, 1]))
    info = BatchInfo(2, 640, ends_epoch=True, valid_rows=2, runs=runs, fill=np.array([0, 2, 0]), read_wait_s=0.5)
    back = BatchInfo.unpack(info.pack())
    assert (back.epoch, back.after, back.ends_epoch, back.valid_rows, back.read_wait_s) == (2, 640, True, 2, 0.5)
    assert [x.tolist() for x in (back.runs.lane, back.runs.start, back.runs.count)] == [[0, 3], [10, 20], [2, 1]]
    assert back.fill.tolist() == [0, 2, 0]
    # Lane 0 of 4 holds places 0, 4, 8, ..., lane 3 (reversed: 3) places 3, 7, 11, ...
    assert back.runs.positions(4).tolist() == [40, 44, 83]
    assert back.runs.positions(4, back.fill).tolist() == [40, 83, 40]


def test_a_job_of_slices_packs_and_unpacks():
    job = Job(
        1, (Gather(4, slice(7, 9)), Gather(5, np.array([3, 1])), Gather(4, slice(0, 1))), *np.zeros((2, 0), np.int64)
    )
    back = Job.unpack(job.pack())
    assert [gather.key for gather in back.gathers] == [4, 5, 4]
    assert (back.gathers[0].rows, back.gathers[2].rows) == (slice(7, 9), slice(0, 1))
    tables = {4: pa.table({"x": list(range(10))}), 5: pa.table({"x": list(range(10))})}
    assert [rows.tolist() for _, rows in back.pieces(tables)] == [[7, 8], [3, 1], [0]]
