"""Who works for an augmenter: which workers do a list of ops, and how many of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingest.augment.graph import preallocate
from ingest.augment.landing import Landing
from ingest.augment.media import AudioWorker, ClipWorker
from ingest.augment.warm import USUAL, warm_job
from ingest.augment.work import CpuWorker, DeviceWorker, Job, Worker
from ingest.ops import Clip, Function, Op, Waveform
from ingest.spec import Augment

_DEVICE_WORKERS = 2  # one batch is copied to where it lands while the next one runs


def workers(
    spec: Augment,
    ops: Sequence[Op],
    rows: int,
    threads: int,
    device_id: int | None,
    landing: Landing,
    *,
    warm: bool,
) -> Iterator[Worker]:
    """The workers of an augmenter, not warmed up.

    Args:
        spec: what the GPU gets.
        ops: at least one.
        rows: the most of a chunk.
        threads: cores that they may keep busy.
        device_id: the GPU; None for the CPU.
        landing: where a GPU's results go.
        warm: whether a GPU's pipelines go through an image of the largest size first.

    Raises:
        StageError: the GPU has not the memory that the spec gives DALI.
    """
    if device_id is not None:
        yield from _device_workers(spec, ops, rows, threads, device_id, landing, warm=warm)
    elif isinstance(ops[0], Waveform):
        yield from (AudioWorker(ops, rows) for _ in range(threads))
    elif isinstance(ops[0], Clip):
        yield from (ClipWorker(ops) for _ in range(threads))
    elif any(isinstance(op, Function) for op in ops):  # the user's nodes are DALI's: so is all the rest
        yield from (DeviceWorker(ops, rows, 1, None) for _ in range(threads))
    else:
        yield from (CpuWorker(ops, rows) for _ in range(threads))


def _device_workers(
    spec: Augment, ops: Sequence[Op], rows: int, threads: int, device_id: int, landing: Landing, *, warm: bool
) -> Iterator[DeviceWorker]:
    if spec.gpu_memory_bytes != "auto":
        preallocate(spec.gpu_memory_bytes, device_id)

    def first() -> Job | None:
        return warm_job(ops, spec.largest_image or USUAL, min(rows, 2 * threads), landing)  # buffers are each thread's

    for _ in range(_DEVICE_WORKERS):
        yield DeviceWorker(
            ops,
            rows,
            threads,
            device_id,
            landing,
            warm=first if warm else None,
            hardware=spec.hardware_jpeg,
        )
