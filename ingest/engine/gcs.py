"""Where an actor is, from Ray's control store: no public name tells. A contract test watches over these."""

from __future__ import annotations

from typing import Any

import ray
from ray._private.state import state
from ray.core.generated.gcs_pb2 import ActorTableData


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


def _accessor() -> Any:
    if not ray.is_initialized():
        raise ray.exceptions.RaySystemError("Ray is not there any more")
    return state._connect_and_get_accessor()  # noqa: SLF001
