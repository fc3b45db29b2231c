"""The cluster: connect, count what there is, refuse what can never run."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.experimental.locations import get_local_object_locations
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from ingest.engine import gcs
from ingest.engine.own import has_gpu
from ingest.errors import ClusterError
from ingest.ops import Clip, Numpy, Waveform
from ingest.spec import Read, Spec

RESERVE_TELL_S = 10.0


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


@dataclass(frozen=True)
class PerTrainer:
    """What Ray counts for each trainer, and the labels of the nodes it may run on."""

    cpus: float = 0.0
    gpus: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def resources(self) -> dict[str, float]:
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


@dataclass(frozen=True)
class Growth:
    """How far the cluster may grow.

    Attributes:
        most: what it has, or may grow to; None where an autoscaler adds nodes and does not tell how many.
        more: whether nodes may come that are not there yet.
    """

    most: Resources | None
    more: bool


def growth(have: Resources) -> Growth:
    """How far a cluster that has so much may grow, as its autoscaler says."""
    if grown := gcs.grown_resources():
        cpus, gpus = max(have.cpus, grown.get("CPU", 0.0)), max(have.gpus, grown.get("GPU", 0.0))
        return Growth(Resources(cpus, gpus, have.object_store_bytes), more=True)
    return Growth(None, more=True) if gcs.autoscaled() else Growth(have, more=False)


def check(spec: Spec, have: Resources, world_size: int) -> None:
    """Refuse a start that would wait for ever.

    Args:
        spec: what is to run.
        have: the cluster's.
        world_size: ranks.

    Raises:
        ClusterError: with what is needed and what there is.
    """
    may = growth(have)
    if may.most is None:
        return  # nodes come when tasks wait for them; a watchdog tells of those that never come
    _check_totals(spec, world_size, may.most)
    if not may.more:
        check_room(spec.read)
        _check_gpus(spec, have, world_size)


def _check_gpus(spec: Spec, have: Resources, world_size: int) -> None:
    """Refuse augmenters that would wait for GPUs that trainers hold as long as they run."""
    augment = spec.augment
    if augment.device != "gpu" or not augment.pipeline or augment.placement == "trainer":
        return
    need, left = augment.gpus * augment.actors_per_trainer * world_size, _gpus_left(have)
    if need > left:
        raise ClusterError(
            f"{need:g} GPUs are needed to augment and {left:g} of {have.gpus:g} are left: trainers hold the others",
            hint="Use augment.device: cpu, or fractions of a GPU for trainers and for augment.gpus",
        )


def _gpus_left(have: Resources) -> float:
    """GPUs that nobody but augmenters holds: those of other ranks are counted in what all ranks need."""
    return have.gpus - sum(gcs.held("GPU", but="AugmentHost").values()) if have.gpus else 0.0


def check_job(spec: Spec, trainers: int, each: PerTrainer) -> None:
    """Refuse a job whose trainers, readers and augmenters can never all have a place, before anything is launched.

    Args:
        spec: what is to run.
        trainers: how many.
        each: what one takes.

    Raises:
        ClusterError: with what is needed and what there is.
    """
    may = growth(resources())
    if may.most is None:
        return
    _check_totals(spec, trainers, may.most, each)
    if may.more:
        return  # nodes may come that are not there to be looked at
    nodes = [node for node in _alive() if each.labels.items() <= (node.get("Labels") or {}).items()]
    if not nodes:
        wanted = ", ".join(f"{name}={value}" for name, value in each.labels.items())
        raise ClusterError(f"trainers want nodes labelled {wanted}, and there is none", hint="See: ray list nodes")
    for kind, need in (("CPU", each.cpus), ("GPU", each.gpus)):
        if need > (largest := max(_of(node, kind) for node in nodes)):
            raise ClusterError(
                f"a trainer needs {need:g} {kind}s and the largest node for it has {largest:g}",
                hint="Ask for less for each trainer, or add larger nodes",
            )


def _check_totals(spec: Spec, world_size: int, have: Resources, each: PerTrainer | None = None) -> None:
    cpus, gpus = (each.cpus, each.gpus) if each else (0.0, 0.0)
    augment = spec.augment
    actors = augment.actors * world_size
    for_trainers = f", {world_size * cpus:g} for {world_size} trainers" if cpus else ""
    need = spec.read.cpus + actors * augment.cpus + world_size * cpus
    if need > have.cpus:
        raise ClusterError(
            f"{need:g} CPUs are needed ({spec.read.cpus:g} for a reader, {actors * augment.cpus:g} for {actors} "
            f"augmentation actors{for_trainers}) and the cluster has {have.cpus:g}",
            hint="Add CPU nodes, or lower read.cpus or augment.cpus" + (" or the trainers' CPUs" if cpus else ""),
        )
    augmenting = actors * augment.gpus if augment.pipeline and augment.device == "gpu" else 0.0
    if augmenting + world_size * gpus > have.gpus:
        parts = [f"{augmenting:g} for {actors} augmentation actors"] if augmenting else []
        parts += [f"{world_size * gpus:g} for {world_size} trainers"] if gpus else []
        raise ClusterError(
            f"{augmenting + world_size * gpus:g} GPUs are needed ({', '.join(parts)}) and the cluster has "
            f"{have.gpus:g}",
            hint="Use augment.device: cpu, or a fraction of a GPU each (augment.gpus)" if augmenting else None,
        )


def check_room(read: Read) -> None:
    """Refuse a start whose readers have no node, or would wait for CPUs that trainers hold as long as they run.

    What tasks hold now comes free again and counts as free; what actors and placement groups hold does not.

    Args:
        read: the spec's section.

    Raises:
        ClusterError: no node has the labels or resources, or as many CPUs left; with who holds them.
    """
    nodes = [node for node in _alive() if _suits(node, read)]
    if not nodes:
        wanted = [f"label {name}={value}" for name, value in read.labels.items()]
        wanted += [f"{amount:g} {name}" for name, amount in read.resources.items()]
        raise ClusterError(
            f"readers want a node with {', '.join(wanted) or 'CPUs'}, and there is none",
            hint="Correct read.labels or read.resources, or start nodes with them (ray start --labels, --resources)",
        )
    free = gcs.free_cpus()
    if any(free.get(node["NodeID"], 0.0) >= read.cpus for node in nodes):
        return
    held = gcs.held("CPU")
    if any(_of(node, "CPU") - held.get(node["NodeID"], 0.0) >= read.cpus for node in nodes):
        return
    total = sum(_of(node, "CPU") for node in nodes)
    holding = sum(held.get(node["NodeID"], 0.0) for node in nodes)
    raise ClusterError(
        f"a reader needs {read.cpus:g} CPUs and no node has as many left: of {total:g} CPUs, actors and placement "
        f"groups hold {holding:g}",
        hint="Leave CPUs to read with: fewer or smaller trainers, more CPU nodes, or a lower read.cpus",
    )


def _suits(node: dict[str, Any], read: Read) -> bool:
    """Whether a node has the labels and custom resources of readers. Ray's selectors with operators are left to Ray."""
    labels = node.get("Labels") or {}
    plain = {name: value for name, value in read.labels.items() if not value.startswith(("!", "in("))}
    return plain.items() <= labels.items() and all(_of(node, name) >= need for name, need in read.resources.items())


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _of(node: dict[str, Any], kind: str) -> float:
    return float(node["Resources"].get(kind, 0.0))


def free_cpus() -> float:
    """CPUs that nothing holds now, over the cluster."""
    return float(ray.available_resources().get("CPU", 0.0))


def dead_nodes() -> str:
    """A phrase that names the nodes that have died."""
    dead = [str(node.get("NodeManagerAddress") or node["NodeID"][:8]) for node in ray.nodes() if not node["Alive"]]
    return f"{len(dead)} nodes have died ({', '.join(dead[:4])})" if dead else "all nodes are alive"


def uses_gpu(spec: Spec, have: Resources, world_size: int) -> bool:
    """Whether augmentation actors get GPUs: asked for, or trainers leave enough and nobody said otherwise."""
    augment = spec.augment
    if augment.device != "auto":
        return augment.device == "gpu"
    if spec.cache.decoded or any(isinstance(op, (Numpy, Waveform, Clip)) for op in augment.pipeline):
        return False
    if augment.placement == "trainer":
        return has_gpu()
    need = augment.gpus * augment.actors_per_trainer * world_size
    return have.gpus >= need > 0 and _gpus_left(have) >= need


def readers_for(cpus: float, each: float, world_size: int) -> int:
    """Read tasks of one rank that may run at a time, on a cluster of so many CPUs.

    Twice as many as have a place, and two: Ray Data looks up when all running reads have ended, or each 0.1 s, so some
    must wait in line, or CPUs idle; and those that wait tell an autoscaler that more would be used.
    """
    return 2 * math.ceil(cpus / each / world_size) + 2


def beside_me() -> dict[str, Any]:
    """An actor's options: on this process's node, elsewhere when it must.

    Ray 2.60 places an actor that needs nothing at all on any node, whatever its affinity: so it needs a byte.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return {"scheduling_strategy": here, "memory": 1}


def away_bytes(ref: ray.ObjectRef) -> int:
    """Bytes of an object of this process's own that no copy on this node holds; no request is made to know."""
    found = get_local_object_locations([ref]).get(ref)
    if not found or not found["node_ids"]:
        return 0  # small enough to travel with the answer
    return 0 if ray.get_runtime_context().get_node_id() in found["node_ids"] else int(found["object_size"] or 0)


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


def drain(calls: Sequence[ray.ObjectRef], timeout_s: float) -> None:
    """Wait for calls of actors that are about to be ended: Ray reports each that ends with its actor."""
    if calls and ray.is_initialized():
        ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s, fetch_local=False)


def kill(*actors: Any) -> None:
    """End actors that this process made; one that is dead already, or a cluster that is gone, is no error."""
    for actor in actors:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            if ray.is_initialized():
                ray.kill(actor)


def reserve(each: PerTrainer, count: int) -> PlacementGroup:
    """A place for each of `count` trainers, spread over nodes; waits until all are there, as an autoscaler may bring
    them, and says so now and then.
    """
    labels = [dict(each.labels)] * count if each.labels else None
    group = placement_group([each.resources] * count, strategy="SPREAD", bundle_label_selector=labels)
    began = time.monotonic()
    try:
        while not group.wait(RESERVE_TELL_S):
            wants = " and ".join(f"{amount:g} {kind}s" for kind, amount in each.resources.items())
            waited = time.monotonic() - began
            print(f"waiting for {count} trainers' places of {wants} ({waited:.0f} s)", file=sys.stderr, flush=True)  # noqa: T201
    except BaseException:
        release(group)
        raise
    return group


def in_bundle(group: PlacementGroup, index: int) -> PlacementGroupSchedulingStrategy:
    """In a place that was reserved; what runs there starts its own children anywhere."""
    return PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=index, placement_group_capture_child_tasks=False
    )


def release(group: PlacementGroup) -> None:
    """Give places back; a cluster that is gone is no error."""
    if ray.is_initialized():
        remove_placement_group(group)
