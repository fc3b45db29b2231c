"""What a simulated cluster is made of: nodes, links, the store, and what each piece of work costs there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from ingest.errors import SpecError


@dataclass(frozen=True)
class Machine:
    """Costs are processor time on a busy core; the defaults are what runs on two virtual cores of a cloud gave.

    Attributes:
        trainer_nodes, trainer_cores: nodes with trainers, feeders and augmenters, and the cores of each.
        reader_nodes, reader_cores: nodes that only read; none: the trainers' nodes read.
        core_share: of every core, what this run gets of it; the rest is for others on the same machines.
        node_bytes_per_s: what a node's network takes in.
        store_bytes_per_s: what the store gives to all together; 0: no limit.
        connection_bytes_per_s: what one request gets.
        request_s: until a request's first byte.
        requests_per_unit: of a unit.
        unit_connections: units of a window asked for at a time.
        read_s_per_byte: reading and parsing.
        task_s: starting a read task and taking its block.
        execution_s: until a Ray Data execution's first task.
        feed_s, ray_s, load_s: a batch's costs in the feeder, in Ray's own processes and in the trainer.
        augment_s: decoding and augmenting a sample on a core.
        gpu_augment_s: the same on a trainer's GPU.
        process_s: a process of Ray's starts and imports.
        cluster_s: what the first batch waits for besides: listing a few files, leases.
        actor_s: Ray's control service makes an actor, one after the other.
        coordinator_s: registering an execution with Ray Data's autoscaling coordinator, a rank and node. Ours do not.
        plan_s_per_unit: permuting a unit and cutting it into lanes, in each rank.
        list_s, footer_s: listing 1,000 files; a file's footer, its processor time.
        slow_reads, slow_factor: the share of reads that are stragglers, and how many times as long they wait.
        losses_per_hour: of a reader node; what it read is read again.
        notice_s, replace_s: until a lost node is noticed; until another has taken its place.
        get_usd_per_million: requests. reader_usd_per_hour, trainer_usd_per_hour: a node.
    """

    trainer_nodes: int = 1
    trainer_cores: int = 2
    reader_nodes: int = 0
    reader_cores: int = 16
    core_share: float = 1.0
    node_bytes_per_s: float = 1.25e9
    store_bytes_per_s: float = 0.0
    connection_bytes_per_s: float = 8e7
    request_s: float = 0.03
    requests_per_unit: int = 1
    unit_connections: int = 3
    read_s_per_byte: float = 1.4e-9
    task_s: float = 0.003
    execution_s: float = 0.1
    feed_s: float = 0.0038
    ray_s: float = 0.0043
    load_s: float = 0.0012
    augment_s: float = 905e-6
    gpu_augment_s: float = 250e-6
    process_s: float = 1.0
    cluster_s: float = 0.3
    actor_s: float = 0.003
    coordinator_s: float = 0.0
    plan_s_per_unit: float = 8e-7
    list_s: float = 0.2
    footer_s: float = 0.002
    slow_reads: float = 0.0
    slow_factor: float = 10.0
    losses_per_hour: float = 0.0
    notice_s: float = 15.0
    replace_s: float = 180.0
    get_usd_per_million: float = 0.4
    reader_usd_per_hour: float = 0.0
    trainer_usd_per_hour: float = 0.0

    def with_values(self, settings: Iterable[str]) -> Machine:
        """With other values, each given as NAME=NUMBER.

        Raises:
            SpecError: there is no such name, or that is no number of its kind, or a negative one.
        """
        kinds: dict[str, type[int | float]] = {field.name: type(getattr(self, field.name)) for field in fields(self)}
        values: dict[str, float] = {}
        for setting in settings:
            name, _, text = setting.partition("=")
            if name not in kinds:
                raise SpecError(f"--param {setting}: there is no {name}", hint="One of " + ", ".join(kinds))
            try:
                values[name] = kinds[name](text)
            except ValueError:
                raise SpecError(f"--param {setting}: {text!r} is not a {kinds[name].__name__}") from None
            if not 0 <= values[name] < float("inf"):
                raise SpecError(f"--param {setting}: must be finite and not negative")
        changed = replace(self, **values)  # type: ignore[arg-type] # each of its field's kind
        changed.check()
        return changed

    def check(self) -> None:
        """Refuse what no run could end on.

        Raises:
            SpecError: what must be positive and is not.
        """
        for name in (
            "trainer_nodes",
            "trainer_cores",
            "reader_cores",
            "core_share",
            "node_bytes_per_s",
            "connection_bytes_per_s",
        ):
            if not getattr(self, name):
                raise SpecError(f"--param {name}=0: must be positive")
