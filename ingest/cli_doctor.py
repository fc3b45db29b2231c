"""`doctor`: can the driver, and every node, reach the data? If not: why, and what to do."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from ingest.cli_common import console
from ingest.engine.nodes import on_every_node
from ingest.read.checks import examine
from ingest.spec import Spec


def doctor(spec: Spec, *, nodes: bool) -> dict[str, Any]:
    """Examine the storage from here, and from each node of the connected cluster.

    Args:
        spec: what is to be read.
        nodes: whether there is a cluster to ask.

    Returns:
        `ok`; `failures`, the kinds; `machines`, of each `role` (driver or node), `host`, `ok`, `credentials`, `checks`.
    """
    machines = [{"role": "driver", **examine(spec)}]
    _tell(machines[0])
    if nodes:
        for found in on_every_node(examine, spec):
            machines.append({"role": "node", **found})
            _tell(machines[-1])
    failures = [check["kind"] for machine in machines for check in machine["checks"] if not check["ok"]]
    return {"ok": not failures, "failures": list(dict.fromkeys(failures)), "machines": machines}


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
