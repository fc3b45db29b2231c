"""Augmentation in the trainer's own process (`augment.placement: trainer`), on its cores or its GPU."""

from __future__ import annotations

import sys

import ray

from ingest.augment.landing import Landing
from ingest.engine.augmentation import Augmentation
from ingest.spec import Spec


def own_augmentation(
    spec: Spec, *, batch_rows: int, threads: int, gpu: bool, landing: Landing | None = None
) -> Augmentation:
    """The same augmentation as in an actor, called by the loader's thread; results never leave the process.

    Args:
        spec: what to do.
        batch_rows: rows of a usual job.
        threads: decoding threads.
        gpu: whether to use the trainer's GPU.
        landing: where images go that are made on it; None: into host memory.
    """
    return Augmentation(
        spec.augment,
        replace=spec.errors.on_bad_sample == "replace",
        stored=spec.cache.decoded,
        seed=spec.order.seed,
        batch_rows=batch_rows,
        threads=threads,
        device_id=_current_device() if gpu else None,
        landing=landing,
    )


def has_gpu() -> bool:
    """Whether this process has a GPU: Ray gave it one, or the framework that it has loaded sees one."""
    torch = sys.modules.get("torch")
    return bool(ray.get_gpu_ids()) or (torch is not None and bool(torch.cuda.is_available()))


def _current_device() -> int:
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_available() else 0
