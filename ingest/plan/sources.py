"""What a spec's sources make of an epoch together, once it is known what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingest.manifest.model import Manifest
from ingest.plan.mixture import Mix, take_rows
from ingest.spec import Spec


def mix_of(spec: Spec, manifest: Manifest, global_batch: int, rows: int | None = None) -> Mix | None:
    """What an epoch is mixed of; None where there is one source that is not mixed.

    Args:
        spec: its weights and stop rule.
        manifest: of all its sources.
        global_batch: rows of a step of all ranks, by which `stop: steps` counts.
        rows: of an epoch with `stop: steps`, where a state says so.

    Raises:
        PlanError: see `take_rows`.
    """
    if spec.weights is None:
        return None
    if spec.mix.steps is not None and rows is None:
        rows = global_batch * spec.mix.steps
    have = [part.rows for part in manifest.parts]
    take = take_rows(have, spec.weights, spec.mix.stop, rows)
    return Mix(tuple(len(part.units) for part in manifest.parts), take)


def epoch_rows(manifest: Manifest, mix: Mix | None) -> int:
    """Rows of an epoch."""
    return manifest.rows if mix is None else mix.rows


def row_bytes(manifest: Manifest, mix: Mix | None) -> int:
    """The mean size in memory of an epoch's rows."""
    if mix is None:
        return int(manifest.units.memory_bytes.sum()) // max(1, manifest.rows)
    means = [int(part.units.memory_bytes.sum()) / max(1, part.rows) for part in manifest.parts]
    return int(np.dot(means, mix.take)) // max(1, mix.rows)


def described(spec: Spec, manifest: Manifest, mix: Mix | None) -> list[dict[str, Any]]:
    """Of each source: `path`, `weight`, `rows` it has, `first_id` of its samples, and with a mix `epoch_rows` that it
    gives to an epoch, in how many `passes`, and their `share`. Empty where there is one source that is not mixed.
    """
    if spec.weights is None:
        return []
    found = []
    for i, (source, part) in enumerate(zip(spec.inputs, manifest.parts, strict=True)):
        one = {
            "path": ", ".join(source.paths),
            "weight": spec.weights[i],
            "rows": part.rows,
            "first_id": manifest.first_ids[i],
        }
        if mix is not None:
            passes, share = mix.take[i] / max(1, part.rows), mix.take[i] / max(1, mix.rows)
            one |= {"epoch_rows": mix.take[i], "passes": passes, "share": share}
        found.append(one)
    return found
