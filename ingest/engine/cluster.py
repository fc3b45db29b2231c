"""The cluster: connect, count what there is, refuse what can never run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ingest.errors import ClusterError
from ingest.spec import Spec


@dataclass(frozen=True)
class Resources:
    """What the whole cluster has."""

    cpus: float
    gpus: float
    object_store_bytes: int


def ensure(**options: Any) -> bool:
    """Connect to the cluster that the environment names, or start a local one.

    Returns:
        Whether this call connected or started it.
    """
    if ray.is_initialized():
        return False
    ray.init(logging_level="WARNING", log_to_driver=False, **options)
    return True


def resources() -> Resources:
    have = ray.cluster_resources()
    return Resources(have.get("CPU", 0.0), have.get("GPU", 0.0), int(have.get("object_store_memory", 0)))


def check(spec: Spec, have: Resources, world_size: int) -> None:
    """Refuse a start that would wait for ever.

    Raises:
        ClusterError: with what is needed and what there is.
    """
    augment = spec.augment
    actors = augment.actors_per_trainer * world_size if augment.pipeline else 0
    need_cpus = spec.read.cpus + actors * augment.cpus
    if need_cpus > have.cpus:
        raise ClusterError(
            f"{need_cpus:g} CPUs are needed ({spec.read.cpus:g} for a reader, {actors * augment.cpus:g} for {actors} "
            f"augmentation actors) and the cluster has {have.cpus:g}",
            hint="Add CPU nodes, or lower read.cpus or augment.cpus",
        )
    if augment.pipeline and augment.device == "gpu" and actors * augment.gpus > have.gpus:
        raise ClusterError(
            f"{actors * augment.gpus:g} GPUs are needed for {actors} augmentation actors and the cluster has "
            f"{have.gpus:g}",
            hint="Use augment.device: cpu, or a fraction of a GPU each (augment.gpus)",
        )


def uses_gpu(spec: Spec, have: Resources, world_size: int) -> bool:
    """Whether augmentation actors get GPUs: asked for, or there are enough and nobody said otherwise."""
    augment = spec.augment
    if augment.device != "auto":
        return augment.device == "gpu"
    return have.gpus >= augment.gpus * augment.actors_per_trainer * world_size > 0


def beside_me(*, soft: bool) -> NodeAffinitySchedulingStrategy:
    """On this process's node; elsewhere when it must (`soft`)."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=soft)


def node_cpus() -> float:
    """CPUs that this process's node offers."""
    mine = ray.get_runtime_context().get_node_id()
    for node in ray.nodes():
        if node["NodeID"] == mine:
            return float(node["Resources"].get("CPU", 1.0))
    return 1.0


def settle(methods: Sequence[Any], timeout_s: float) -> None:
    """Call methods of actors that are about to be ended, and wait for them; one that cannot answer is no error."""
    if not methods or not ray.is_initialized():
        return
    with contextlib.suppress(ray.exceptions.RayError, ValueError):
        ray.wait([method.remote() for method in methods], num_returns=len(methods), timeout=timeout_s)


def kill(*actors: Any) -> None:
    """End actors that this process made; one that is dead already, or a cluster that is gone, is no error."""
    for actor in actors:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            if ray.is_initialized():
                ray.kill(actor)
