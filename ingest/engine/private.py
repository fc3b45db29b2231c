"""Every name of Ray Data that is not public, in one place. A contract test fails when a new Ray changes one of them."""

from __future__ import annotations

import logging
import os
import time
import warnings
from typing import Any

import ray
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


def ended(key: str) -> bool:
    """Whether the execution has, or never began."""
    executor = _executors.get(key)
    return executor is None or not executor.is_alive()


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
    # Of a read of thousands of files: what it is made of is what it reads, and no user can make it smaller.
    warnings.filterwarnings("ignore", message="The serialized size of your read function")
    os.environ["RAY_DATA_USAGE_DISABLED"] = "1"
    streaming_executor.create_cluster_autoscaler = lambda *_, **__: NoScaling()
    streaming_executor._StatsManager = NoStats  # noqa: SLF001
