"""What a start resolves is the same whoever asks: the loader, the planner, and the simulator of the same units."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole import manifest_of

from ingest.errors import PlanError
from ingest.plan.reads import UnitSizes
from ingest.plan.schedule import Share
from ingest.session_choices import Memory, memory_of
from ingest.session_plan import plan_for, plan_of
from ingest.session_rank import whoami
from ingest.spec import Spec

pytestmark = pytest.mark.unit
SPEC = {"source": {"path": "/data"}, "batch": {"size": 8}, "order": {"window_bytes": 1000}}


def test_a_manifest_and_its_units_alone_give_one_plan(tmp_path):
    pq.write_table(pa.table({"x": range(1000)}), tmp_path / "a.parquet", row_group_size=50)
    spec, manifest, share = Spec.load(SPEC), manifest_of(tmp_path), Share(0, 2, 8, "drop")
    memory = memory_of(spec, 10_000, 2)
    listed = plan_of(spec, manifest, share, memory, 10_000)
    mean = int(manifest.units.memory_bytes.sum()) // 1000
    alone = plan_for(spec, manifest.units.rows, listed.sizes, share, memory, 10_000, mean_bytes=mean)
    assert listed == alone
    assert (listed.rows, listed.mix, listed.window_bytes) == (1000, None, 1000)
    small = plan_for(spec, manifest.units.rows, listed.sizes, share, Memory(900, 600), 10_000, mean_bytes=mean)
    assert small.window_bytes == 450


def test_no_rows_are_refused():
    none = np.zeros(0, np.int64)
    spec = Spec.load(SPEC)
    with pytest.raises(PlanError, match="no rows"):
        plan_for(spec, none, UnitSizes(none, none), Share(0, 1, 8, "drop"), memory_of(spec, 0, 1), 0, mean_bytes=0)


def test_a_rank_is_given_with_its_world_or_not_at_all():
    assert whoami(3, 8) == (3, 8)
    for rank, world_size in ((3, None), (None, 8)):
        with pytest.raises(PlanError, match="Give both, or neither"):
            whoami(rank, world_size)
