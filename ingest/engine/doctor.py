"""The cluster's half of `ingest doctor`: what every node says about itself, and whether the spec's run fits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray

from ingest.engine import cluster, probe
from ingest.engine.nodes import on_every_node
from ingest.errors import ClusterError
from ingest.spec import Spec

SKEW_S = 5.0
LEAST_FILES, LEAST_TMP_BYTES = 4096, 1 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that is well, or is not.

    Attributes:
        level: `ok`, `warning`: the run may go wrong or slowly; `error`: it will.
        check: its name: node, versions, import, decode, clock, disk, memory, files or fit.
        where: the node, or `cluster`.
        message: what was found.
        hint: what to do.
    """

    level: Literal["ok", "warning", "error"]
    check: str
    where: str
    message: str
    hint: str | None = None


def examine(spec: Spec, world_size: int) -> list[Finding]:
    """Every node: can it import, are its versions those of the others, can it decode; and does the run fit.

    Args:
        spec: of the run.
        world_size: trainers.
    """
    ray.cloudpickle.register_pickle_by_value(probe)
    try:
        before_s = time.time()
        looks = on_every_node(probe.look)
        findings = [finding for look in looks for finding in _of_node(look, before_s, time.time())]
        findings += _of_versions({look["node"]: look for look in looks if "checks" not in look})
        if spec.augment.pipeline:
            findings += [_of_decode(answer) for answer in on_every_node(probe.decode, spec.augment)]
    finally:
        ray.cloudpickle.unregister_pickle_by_value(probe)
    return findings + _of_fit(spec, world_size)


def _silent(answer: Mapping[str, Any]) -> str | None:
    """Why a node gave no answer of its own."""
    return str(answer["checks"][0]["found"]) if "checks" in answer else None


def _of_node(look: Mapping[str, Any], before_s: float, after_s: float) -> list[Finding]:
    node, found = look["node"], []
    if error := _silent(look):
        return [Finding("error", "node", node, error, "See the node's log in Ray's dashboard")]
    for module, version in look["versions"].items():
        if version.startswith("!"):
            hint = "Install ingest and the versions of constraints.txt on every node, or submit with --env pip"
            found.append(Finding("error", "import", node, f"cannot import {module}: {version[1:]}", hint))
    skew = max(before_s - look["time_s"], look["time_s"] - after_s, 0.0)
    if skew > SKEW_S:
        message = f"its clock is {skew:.0f} s off: stores refuse signatures that are minutes off"
        found.append(Finding("warning", "clock", node, message, "Run a time daemon (chrony)"))
    if look["free_tmp_bytes"] < LEAST_TMP_BYTES:
        message = f"{look['free_tmp_bytes'] >> 20} MiB are free for Ray's session and spilled objects"
        found.append(Finding("warning", "disk", node, message, "Free some, or start Ray with --temp-dir"))
    if look["open_files"] < LEAST_FILES:
        message = f"at most {look['open_files']} open files"
        found.append(Finding("warning", "files", node, message, "ulimit -n 65536 before ray start"))
    return found or [Finding("ok", "node", node, f"Python {look['python']}, all imports, {look['host']}")]


def _of_versions(looks: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """What the nodes disagree on; the version that most have is taken for the right one."""
    found = []
    for name in ("python", *probe.DISTRIBUTIONS):
        by_node = {node: look["python"] if name == "python" else look["versions"][name] for node, look in looks.items()}
        counts = Counter(version for version in by_node.values() if not version.startswith("!"))
        if len(counts) < 2:
            continue
        usual = counts.most_common(1)[0][0]
        for node, version in by_node.items():
            if version != usual and not version.startswith("!"):
                message = f"{name} is {version} here and {usual} on most nodes: pixels or results may differ"
                found.append(
                    Finding("error", "versions", node, message, "Use the versions of constraints.txt everywhere")
                )
    if not found and looks:
        found.append(Finding("ok", "versions", "cluster", f"the same on all of {len(looks)} nodes"))
    return found


def _of_decode(answer: Mapping[str, Any]) -> Finding:
    error = _silent(answer) or answer["error"]
    if error:
        return Finding("error", "decode", answer["node"], error, "The spec's augmentation does not run there")
    return Finding("ok", "decode", answer["node"], "the spec's augmentation runs")


def _of_fit(spec: Spec, world_size: int) -> list[Finding]:
    """CPUs, GPUs and object store, against what the run takes."""
    have = cluster.resources()
    found = []
    try:
        cluster.check(spec, have, world_size)
    except ClusterError as error:
        found.append(Finding("error", "fit", "cluster", error.message, error.hint))
    else:
        found.append(Finding("ok", "fit", "cluster", f"{have.cpus:g} CPUs and {have.gpus:g} GPUs are enough to start"))
    need = int(spec.order.window_bytes) * world_size
    if need > have.object_store_bytes // 2:
        message = (
            f"{world_size} ranks read ahead {need >> 20} MiB (order.window_bytes each), and all object stores together "
            f"have {have.object_store_bytes >> 20} MiB, half of which may hold them: they shuffle less far"
        )
        found.append(
            Finding("warning", "memory", "cluster", message, "More --object-store-memory, or less window_bytes")
        )
    if have.cpus < world_size * spec.read.cpus:
        message = f"{have.cpus:g} CPUs to read for {world_size} ranks: fewer than one reader for each"
        found.append(Finding("warning", "fit", "cluster", message, "Add CPU nodes"))
    return found


def worst(findings: Sequence[Finding]) -> str:
    """`error`, `warning` or `ok`."""
    levels = {finding.level for finding in findings}
    return next((level for level in ("error", "warning") if level in levels), "ok")
