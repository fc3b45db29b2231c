"""What only Ray's control store and raylets know, and no public name tells. Loads no Ray Data."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import ray
from ray._private.internal_api import get_memory_info_reply, get_state_from_address
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray._private.state import state
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
from ray.core.generated.gcs_pb2 import ActorTableData
from ray.experimental.internal_kv import _internal_kv_get

_CHECK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"


def actor_place(actor: Any) -> str:
    """An actor's class, state, process and node, for an error."""
    raw = _accessor().get_actor_info(actor._actor_id)  # noqa: SLF001
    if raw is None:
        return "an actor that Ray does not know"
    found = ActorTableData.FromString(raw)
    name = ActorTableData.ActorState.Name(found.state).lower()
    address = found.address
    where = f"on node {address.ip_address} ({address.node_id.hex()[:8]})" if address.node_id else "on no node yet"
    return f"{found.class_name} {name}, pid {found.pid}, {where}"


def actor_id(actor: Any) -> str:
    """Names an actor, not a handle of it."""
    return str(actor._actor_id.hex())  # noqa: SLF001


def node_died(node_id: str) -> bool:
    """Whether Ray has noticed the death of a node."""
    return any(node["NodeID"] == node_id and not node["Alive"] for node in ray.nodes())


def _accessor() -> Any:
    if not ray.is_initialized():
        raise ray.exceptions.RaySystemError("Ray is not there any more")
    return state._connect_and_get_accessor()  # noqa: SLF001


@lru_cache(maxsize=1)
def _state(address: str) -> Any:
    """The connection behind `object_store_stats`, kept: making one costs more than the question."""
    return get_state_from_address(address)


def object_store_stats() -> dict[str, int]:
    """Bytes over the whole cluster: `used`, `capacity`, `spilled` (since the cluster started).

    Source: the raylets' store statistics, as `ray memory` shows them.
    """
    stats = get_memory_info_reply(_state(ray.get_runtime_context().gcs_address)).store_stats
    return {
        "used": int(stats.object_store_bytes_used),
        "capacity": int(stats.object_store_bytes_avail),
        "spilled": int(stats.spilled_bytes_total),
    }


def auth_wanted(address: str, token: str | None, timeout_s: float) -> bool | None:
    """Whether the head at `host:port` turns away a caller who shows `token` (None: who shows none).

    Asked by one small call, since Ray's own client repeats a refused one for twenty seconds and says nothing.

    Returns:
        None where it gives no answer that tells: another protocol, TLS, too late.
    """
    import grpc

    metadata = [("authorization", f"Bearer {token}")] if token else None
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_CHECK_ALIVE)(b"", timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            return True if error.code() == grpc.StatusCode.UNAUTHENTICATED else None
    return False


def dashboard_url(address: str) -> str:
    """The dashboard's URL of the cluster whose head listens at `host:port`."""
    from ray.dashboard.utils import ray_address_to_api_server_url  # half a second that only a submission needs

    return str(ray_address_to_api_server_url(address))


def grown_resources() -> dict[str, float]:
    """What the cluster may grow to, as its autoscaler reports it; empty where none does."""
    return {name: float(value) for name, value in (state.get_max_resources_from_cluster_config() or {}).items()}


def autoscaled() -> bool:
    """Whether an autoscaler with nodes to add runs the cluster, as far as Ray knows by now; how many, it does not tell.

    Without a configuration the same process reports each node as a type of its own, named after the node's id.
    """
    first = json.loads(_internal_kv_get(DEBUG_AUTOSCALING_STATUS) or "{}").get("autoscaler_report") or {}
    kinds = {kind: node for node, kind in (first.get("node_type_mapping") or {}).items()}
    raw = ray.get_runtime_context().worker.gcs_client.get_cluster_status()
    for node in GetClusterStatusReply.FromString(raw).cluster_resource_state.node_states:
        kinds[node.ray_node_type_name] = node.node_id.hex()
    return any(kind and kind != f"node_{node}" for kind, node in kinds.items())


def free_cpus() -> dict[str, float]:
    """CPUs that nothing holds now, by node id."""
    return {node: float(free.get("CPU", 0.0)) for node, free in state.available_resources_per_node().items()}


def held(kind: str, but: str | None = None) -> dict[str, float]:
    """CPUs or GPUs that actors and placement groups hold for as long as they live, by node id.

    Args:
        kind: `CPU` or `GPU`.
        but: the class of actors that are not counted.
    """
    found: dict[str, float] = {}
    for group in state.placement_group_table().values():
        if group["state"] == "CREATED":
            for index, bundle in group["bundles"].items():
                node = group["bundles_to_node_id"][index]
                found[node] = found.get(node, 0.0) + float(bundle.get(kind, 0.0))
    for packed in state._connect_and_get_accessor().get_actor_table(None, "ALIVE"):  # noqa: SLF001
        actor = ActorTableData.FromString(packed)
        if not actor.placement_group_id.strip(b"\xff") and actor.class_name != but:
            node = actor.address.node_id.hex()
            found[node] = found.get(node, 0.0) + float(actor.required_resources.get(kind, 0.0))
    return found
