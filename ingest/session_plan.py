"""What a start resolves out of a spec, the data and a rank's memory: the order of an epoch, and what its rows take."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ingest.loader.state import Facts, backend
from ingest.manifest.model import Manifest
from ingest.plan.layout import Order
from ingest.plan.mixture import Mix
from ingest.plan.reads import UnitSizes
from ingest.plan.resolve import check_share, open_bytes, resolve
from ingest.plan.schedule import Share
from ingest.plan.sources import mix_of, row_bytes
from ingest.session_choices import Memory, batch_row_bytes, check_memory, check_outputs, wanted
from ingest.spec import Spec


@dataclass(frozen=True)
class Plan:
    """Of a rank, and the same on all but for its share.

    Attributes:
        share: of every global batch.
        memory: that it may hold.
        sizes: of the units.
        order: with lanes and interleave as numbers.
        mix: what an epoch is mixed of; None where there is one source.
        rows: of an epoch.
        mean_bytes: of a row as it is read.
        row_bytes: about what a row of a batch takes.
        window_bytes: encoded bytes of the windows open at a time.
    """

    share: Share
    memory: Memory
    sizes: UnitSizes = field(compare=False)  # arrays, which follow from the data
    order: Order
    mix: Mix | None
    rows: int
    mean_bytes: int
    row_bytes: int
    window_bytes: int


def plan_of(spec: Spec, manifest: Manifest, share: Share, memory: Memory, store_bytes: int) -> Plan:
    """Of data that was listed; see `plan_for`.

    Raises:
        SchemaError: what is to be augmented is not there, or holds no images.
    """
    check_outputs(spec, manifest.schema)
    mix, units = mix_of(spec, manifest, share.global_batch), manifest.units
    sizes = UnitSizes(units.bytes, units.memory_bytes)
    return plan_for(spec, units.rows, sizes, share, memory, store_bytes, mean_bytes=row_bytes(manifest, mix), mix=mix)


def plan_for(
    spec: Spec,
    unit_rows: NDArray[np.int64],
    sizes: UnitSizes,
    share: Share,
    memory: Memory,
    store_bytes: int,
    *,
    mean_bytes: int,
    mix: Mix | None = None,
) -> Plan:
    """As a first start resolves it.

    Args:
        spec: what is run.
        unit_rows: int64 (units,).
        sizes: bytes of the units.
        share: of a rank.
        memory: that it may hold.
        store_bytes: of the whole cluster; 0 where that is not known.
        mean_bytes: of a row as it is read.
        mix: of several sources; None for one.

    Raises:
        PlanError: no rows, not one step, or what must be held does not fit.
    """
    order = resolve(wanted(spec), unit_rows, sizes, share.world_size, memory.blocks_bytes, mix)
    rows = int(unit_rows.sum()) if mix is None else mix.rows
    each = batch_row_bytes(spec, mean_bytes)
    check_share(share, rows, each, store_bytes)
    check_memory(spec, memory, share.batch * each, int(sizes.memory.max()))
    window_bytes = open_bytes(int(spec.order.window_bytes), memory.blocks_bytes)
    return Plan(share, memory, sizes, order, mix, rows, mean_bytes, each, window_bytes)


def facts_of(spec: Spec, manifest: Manifest, plan: Plan, *, gpu: bool) -> Facts:
    """What a state keeps of a run, to be compared with when it is loaded."""
    return Facts(
        digest=manifest.digest,
        order=spec.order_facts(),
        pixels={**spec.pixel_facts(), **manifest.content_facts()},
        lanes=plan.order.lanes,
        interleave=plan.order.interleave,
        rows=plan.rows,
        backend=backend(gpu=gpu) if spec.augment.pipeline else {},
    )
