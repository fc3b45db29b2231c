"""`doctor`: can the driver, and every node, reach the data? If not: why, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.text import Text

from ingest.cli_common import console
from ingest.engine import doctor as cluster
from ingest.engine.nodes import on_every_node
from ingest.read.checks import examine
from ingest.spec import Spec


def doctor(spec: Spec, *, nodes: bool, world_size: int = 1) -> dict[str, Any]:
    """Examine the storage from here, and from each node of the connected cluster; there also what the nodes have.

    Args:
        spec: what is to be read.
        nodes: whether there is a cluster to ask.
        world_size: trainers that are to find place.

    Returns:
        `ok`; `failures`, the kinds; `machines`, of each `role` (driver or node), `host`, `ok`, `credentials`, `checks`;
        `cluster`, findings of `ingest.engine.doctor`: `level`, `check`, `where`, `message`, `hint`.
    """
    machines = [{"role": "driver", **examine(spec)}]
    _tell(machines[0])
    findings = cluster.examine(spec, world_size) if nodes else []
    for finding in findings:
        _tell_finding(finding)
    if nodes:
        for found in on_every_node(examine, spec):
            machines.append({"role": "node", **found})
            _tell(machines[-1])
    failures = [finding.check for finding in findings if finding.level == "error"]
    failures += [check["kind"] for machine in machines for check in machine["checks"] if not check["ok"]]
    return {
        "ok": not failures,
        "failures": list(dict.fromkeys(failures)),
        "machines": machines,
        "cluster": [asdict(finding) for finding in findings],
    }


def _tell_finding(finding: cluster.Finding) -> None:
    """One line a finding."""
    advice = f". {finding.hint}" if finding.hint else ""
    style = {"ok": "", "warning": "yellow", "error": "bold red"}[finding.level]
    said = f"{finding.where[:12]}: {finding.check}: {finding.message}{advice}"
    console.print(Text(said, style=style), soft_wrap=True)


def _tell(machine: dict[str, Any]) -> None:
    """One line a check."""
    where = f"{machine['role']} {machine['host']}"
    for check in machine["checks"]:
        if check["ok"]:
            measured = {name: value for name, value in check.items() if name not in ("check", "ok", "seconds")}
            said = ", ".join(f"{name} {value}" for name, value in measured.items())
            console.print(Text(f"{where}: {check['check']}: well; {said}".rstrip("; ")), soft_wrap=True)
        else:
            advice = f". {check['do']}" if check["do"] else ""
            text = f"{where}: {check['check']}: {check['kind']}: {check['found']} ({check['path']}){advice}"
            console.print(Text(text, style="bold red"), soft_wrap=True)
