"""One call on every node of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ANSWER_S = 300.0


def on_every_node(call: Callable[..., dict[str, Any]], *args: Any) -> list[dict[str, Any]]:
    """What `call(*args)` gives on each living node, in the order of their ids; it takes no CPU from anyone.

    Returns:
        For a node that does not answer within five minutes, or whose process dies, a failed check that says so.
    """
    nodes = sorted((node["NodeID"], node["NodeManagerHostname"]) for node in ray.nodes() if node["Alive"])
    task = ray.remote(call)
    refs = [
        task.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(*args)
        for node, _ in nodes
    ]
    answers = []
    for ref, (node, host) in zip(refs, nodes, strict=True):
        try:
            answers.append({"node": node, **ray.get(ref, timeout=ANSWER_S)})
        except ray.exceptions.RayError as error:  # a timeout is one
            found = {"check": "answer", "ok": False, "kind": "node", "found": str(error).splitlines()[0]}
            found |= {"path": None, "do": "See the node's log in Ray's dashboard; is ingest installed there?"}
            answers.append({"node": node, "host": host, "ok": False, "credentials": None, "checks": [found]})
    return answers
