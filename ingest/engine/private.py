"""Every name of Ray that is not public, in one place. A contract test fails when a new Ray changes one of them."""

from __future__ import annotations

import logging
import os
import time
from functools import lru_cache
from typing import Any

import ray
from ray._private.internal_api import get_memory_info_reply, get_state_from_address
from ray._private.state import state
from ray.core.generated.gcs_pb2 import ActorTableData
from ray.data import DataContext
from ray.data._internal.cluster_autoscaler import ClusterAutoscaler
from ray.data._internal.execution import streaming_executor
from ray.data._internal.execution.backpressure_policy import (
    ENABLED_BACKPRESSURE_POLICIES_CONFIG_KEY,
    BackpressurePolicy,
)
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.interfaces import ExecutionResources
from ray.data._internal.execution.operators.input_data_buffer import InputDataBuffer

from ingest.engine.flow import Flow, Stretch

_CHECK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_STRETCH_KEY = "ingest.stretch"
# An execution finds its stretch by a key, because its context is copied and pickled.
_stretches: dict[str, tuple[Flow, Stretch]] = {}
_executors: dict[str, Any] = {}


def register(key: str, flow: Flow, stretch: Stretch) -> None:
    """Let the execution whose context carries `key` be admitted by `flow`."""
    _stretches[key] = (flow, stretch)


def unregister(key: str) -> None:
    _stretches.pop(key, None)
    _executors.pop(key, None)


def stop_execution(key: str) -> None:
    """Shut the execution down, if it runs; its tasks are cancelled and its iterator ends."""
    executor = _executors.get(key)
    if executor is not None:
        executor.shutdown(force=False)


class Admit(BackpressurePolicy):
    """Asks the flow whether the next read may start; the only policy of our executions."""

    def __init__(self, data_context: Any, topology: Any, resource_manager: Any) -> None:
        super().__init__(data_context, topology, resource_manager)
        self._found = _stretches.get(data_context.get_config(_STRETCH_KEY))

    def can_add_input(self, op: Any) -> bool:
        if self._found is None or isinstance(op, InputDataBuffer):
            return True
        flow, stretch = self._found
        flow.observe(stretch, op.metrics.num_tasks_submitted, op.num_active_tasks())
        return flow.may_start(stretch)


class Pace(ExecutionCallback):
    """Puts the scheduling loop to sleep while nothing runs and nothing may start.

    Ray Data's loop spins then, and its liveness rule would start a read beyond the budget.
    """

    def before_execution_starts(self, executor: Any) -> None:
        key = executor._data_context.get_config(_STRETCH_KEY)  # noqa: SLF001
        if key in _stretches:
            _executors[key] = executor

    def on_execution_step(self, executor: Any) -> None:
        found = _stretches.get(executor._data_context.get_config(_STRETCH_KEY))  # noqa: SLF001
        if found is None:
            return
        flow, stretch = found
        operators = [op for op in executor._topology if not isinstance(op, InputDataBuffer)]  # noqa: SLF001
        submitted = sum(op.metrics.num_tasks_submitted for op in operators)
        running = sum(op.num_active_tasks() for op in operators)
        flow.observe(stretch, submitted, running)
        flow.follow(time.monotonic())
        if running == 0:
            flow.wait_until_startable(stretch, lambda: bool(executor._shutdown))  # noqa: SLF001


def quiet_context(stretch_key: str | None = None) -> DataContext:
    """A copy of the current context with what Ray Data does by default, and we must not have, off.

    Progress bars and start-up messages; killing a paused run; resource reservations, which make the first second of
    every execution serial; statistics in the log; a thread in each read task that polls its memory. With a
    `stretch_key`, admission and pacing are ours.
    """
    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1
    context.op_resource_reservation_enabled = False
    context.enable_auto_log_stats = False
    context.memory_usage_poll_interval_s = None
    context.execution_options.preserve_order = True
    context.target_max_block_size = 512 << 20  # a window is one block; only one too large for a single object is cut
    if stretch_key is not None:
        context.set_config(_STRETCH_KEY, stretch_key)
        context.set_config(ENABLED_BACKPRESSURE_POLICIES_CONFIG_KEY, [Admit])
        context.custom_execution_callback_classes = [*context.custom_execution_callback_classes, Pace]
    return context


class NoScaling(ClusterAutoscaler):
    """Requests nothing: read tasks that wait for a CPU are demand that Ray's own autoscaler sees.

    Ray Data's registers every execution with an actor of its own, at a cost that grows with ranks times nodes, and the
    first execution waits for that actor to start.
    """

    def try_trigger_scaling(self) -> None:
        pass

    def on_executor_shutdown(self) -> None:
        pass

    def get_total_resources(self) -> ExecutionResources:
        have = ray.cluster_resources()
        return ExecutionResources(
            cpu=have.get("CPU", 0.0), gpu=have.get("GPU", 0.0), object_store_memory=have.get("object_store_memory", 0.0)
        )


class NoStats:
    """Ray Data's statistics go to an actor of its own, a process that nobody asks: a feeder counts for itself."""

    @staticmethod
    def register_dataset_to_stats_actor(*_: Any) -> None:
        pass

    @staticmethod
    def update_execution_metrics(*_: Any) -> None:
        pass


def own_process() -> None:
    """Make Ray Data lean in this process, which runs our executions and no others.

    Its start and finish lines stay out of the trainers' logs (warnings stay), and an execution starts no process beside
    its readers. Never called where a user's own data sets may run.
    """
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    os.environ["RAY_DATA_USAGE_DISABLED"] = "1"
    streaming_executor.create_cluster_autoscaler = lambda *_, **__: NoScaling()
    streaming_executor._StatsManager = NoStats  # noqa: SLF001


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
