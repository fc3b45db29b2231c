"""Jobs and facts cross processes as bytes, unchanged."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from ingest.engine.jobs import BatchInfo, Gather, Job
from ingest.engine.tables import Tables


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
    info = BatchInfo(2, 7, 640, ends_epoch=True, sample_ids=np.array([4, 9]), positions=np.array([8, 1]), valid_rows=1)
    back = BatchInfo.unpack(info.pack())
    assert (back.epoch, back.step, back.after, back.ends_epoch, back.valid_rows) == (2, 7, 640, True, 1)
    assert (back.sample_ids.tolist(), back.positions.tolist()) == ([4, 9], [8, 1])
