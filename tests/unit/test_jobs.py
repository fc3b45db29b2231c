"""Jobs and facts cross processes as bytes, unchanged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ingest.engine.jobs import BatchInfo, Gather, Job


def test_a_job_packs_and_unpacks():
    job = Job(3, (Gather(0, 1, np.array([5, 2])), Gather(1, 2, np.array([7]))), np.array([11, 12, 13]))
    back = Job.unpack(job.pack())
    assert back.epoch == 3
    assert back.sample_ids.tolist() == [11, 12, 13]
    assert [(g.first_block, g.blocks, g.rows.tolist()) for g in back.gathers] == [(0, 1, [5, 2]), (1, 2, [7])]


def test_pieces_join_the_blocks_of_one_read():
    blocks = [pa.table({"x": [1, 2]}), pa.table({"x": [3]}), pa.table({"x": [4, 5]})]
    job = Job(0, (Gather(0, 1, np.array([1])), Gather(1, 2, np.array([2, 0]))), np.arange(3))
    rows = [table["x"].to_pylist()[row] for table, rows in job.pieces(blocks) for row in rows.tolist()]
    assert rows == [2, 5, 3]


def test_facts_pack_and_unpack():
    info = BatchInfo(2, 7, 640, ends_epoch=True, sample_ids=np.array([4, 9]), positions=np.array([8, 1]), valid_rows=1)
    back = BatchInfo.unpack(info.pack())
    assert (back.epoch, back.step, back.after, back.ends_epoch, back.valid_rows) == (2, 7, 640, True, 1)
    assert (back.sample_ids.tolist(), back.positions.tolist()) == ([4, 9], [8, 1])
