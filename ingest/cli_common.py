"""What the commands share: the spec and its overrides, the cluster's life, errors as exit statuses, results shown."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ingest import cli_auth
from ingest.documents import read_yaml
from ingest.errors import ClusterError, IngestError, SpecError
from ingest.spec import Size, Spec

OK, FAULT, WRONG_CALL, INTERRUPTED = 0, 1, 2, 130
STDOUT = "-"
CONNECT_S = 10.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

console = Console(stderr=True)  # progress and errors; results go to standard output


# -- the spec ----------------------------------------------------------------------------------------------------------


def load_spec(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Spec:
    """The spec of a YAML file, with `section.key=VALUE` overrides; VALUE is YAML.

    Raises:
        SpecError: the file or an override cannot be read, or the result does not validate.
    """
    spec = Spec.load(path)
    if not overrides:
        return spec
    values: dict[str, Any] = read_yaml(Path(path).read_text(encoding="utf-8"))
    for override in overrides:
        _override(values, override)
    return Spec.load(values)


def _override(values: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not all(dotted.split(".")):
        raise SpecError(f"--set {override}: is not section.key=VALUE", hint="For example --set batch.size=64")
    try:
        value = read_yaml(text)
    except yaml.YAMLError as error:
        raise SpecError(f"--set {override}: the value is not YAML: {error}") from None
    *parents, last = dotted.split(".")
    at: Any = values
    for parent in parents:
        if isinstance(at, list):
            at = _item(at, parent, override)
            continue
        inner = at.get(parent)
        if inner is None:
            inner = at[parent] = {}
        if not isinstance(inner, (dict, list)):
            raise SpecError(f"--set {override}: '{parent}' is not a mapping")
        at = inner
    if isinstance(at, list):
        raise SpecError(f"--set {override}: '{last}' is one of a list", hint="Set a key of it, as sources.0.weight=2")
    at[last] = value


def _item(items: list[Any], number: str, override: str) -> dict[str, Any]:
    item = items[int(number)] if number.isdecimal() and int(number) < len(items) else None
    if not isinstance(item, dict):
        raise SpecError(f"--set {override}: there is no section '{number}' in a list of {len(items)}")
    return item


# -- the cluster -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cluster_session(**options: Any) -> Iterator[None]:
    """The cluster that RAY_ADDRESS names, or a local one that ends with this block; one in use already is left as is.

    Args:
        options: for `ray.init` of a local cluster.

    Raises:
        ClusterError: the cluster cannot be reached or started.
    """
    import ray

    from ingest.engine import cluster, credentials

    if path := os.environ.get(credentials.VARIABLE):
        os.environ.update(credentials.read(path))  # as each worker of the job does
    # Of an own cluster that ends with the command nobody needs to be told that strangers cannot enter it.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    address = os.environ.get("RAY_ADDRESS")
    if address:
        check_reachable(address)
    # Said outright, since a local start otherwise follows the address file of a cluster that is gone.
    init = {"address": address} if address else {"address": "local", "include_dashboard": False, **options}
    if not address:
        os.environ.setdefault("REPORTER_UPDATE_INTERVAL_MS", "60000")  # nobody reads its metrics, and each costs time
    try:
        mine = cluster.ensure(**init)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        raise ClusterError(
            f"no cluster at {address}" if address else "a local cluster does not start",
            cause=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="Check RAY_ADDRESS; a cluster with token authentication wants RAY_AUTH_MODE=token"
            if address
            else None,
        ) from error
    try:
        yield
    finally:
        if mine:
            ray.shutdown()


def check_reachable(address: str) -> None:
    """Refuse at once a `host:port` where nobody listens, or that wants a token it would not get.

    Ray itself asks the first for a quarter of an hour, and the second in silence. Other forms are left to Ray.

    Raises:
        ClusterError: what is wrong there, and what to set.
    """
    import ray

    found = re.fullmatch(r"(?:ray://)?(\[[^\]]+\]|[^:/]+):(\d+)", address)
    if not found:
        return
    host, port = found[1].strip("[]"), int(found[2])
    # A head node may listen on its outer address alone, and Ray takes loopback addresses to mean that too.
    hosts = [host, ray.util.get_node_ip_address()] if host in ("localhost", "127.0.0.1") else [host]
    causes = []
    for candidate in hosts:
        try:
            socket.create_connection((candidate, port), timeout=CONNECT_S).close()
        except OSError as error:
            causes.append(f"{candidate}: {error}")
        else:
            cli_auth.check_head(f"[{candidate}]:{port}" if ":" in candidate else f"{candidate}:{port}")
            return
    raise ClusterError(
        f"no cluster at {address}",
        cause="; ".join(causes),
        hint="Check RAY_ADDRESS, or unset it to start a local cluster",
    )


# -- errors ------------------------------------------------------------------------------------------------------------


def status_of(error: IngestError) -> int:
    """The exit status: 2 for a spec that is wrong, 1 for data or a cluster that is."""
    return WRONG_CALL if isinstance(error, SpecError) else FAULT


def guarded(work: Callable[[], int], *, debug: bool = False) -> int:
    """The exit status of some work: its own, or that of our error, shown as one red line; 130 for an interrupt.

    Args:
        work: returns an exit status.
        debug: show an error's traceback too.
    """
    try:
        return work()
    except IngestError as error:
        if debug:
            console.print(Text("".join(traceback.format_exception(error))), soft_wrap=True)
        console.print(Text(f"error: {error}", style="bold red"), soft_wrap=True)
        return status_of(error)
    except KeyboardInterrupt:
        console.print(Text("interrupted", style="bold red"))
        return INTERRUPTED


# -- results -----------------------------------------------------------------------------------------------------------


def json_target(path: str | None) -> str | None:
    """As `file_target`, where `-` is standard output and None nowhere.

    Raises:
        typer.BadParameter: it cannot be written.
    """
    return path if path is None or path == STDOUT else file_target(path)


def file_target(path: str) -> str:
    """Refuse a file that cannot be written before the work is done, not after it.

    Raises:
        typer.BadParameter: its folder is missing or closed, or it is a folder.
    """
    parent = Path(path).absolute().parent
    if not parent.is_dir():
        raise typer.BadParameter(f"there is no folder {parent}")
    if Path(path).is_dir() or not os.access(parent, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written")
    return path


def finish(title: str, result: Mapping[str, Any], path: str | None, hide: Sequence[str] = ()) -> None:
    """Show a result, and write it as JSON where asked: to a file, or with `-` to standard output."""
    out = console if path == STDOUT else Console()
    shown = rows({name: value for name, value in result.items() if name not in hide})
    if out.is_terminal:
        table = Table(
            title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
        )
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in shown:
            table.add_row(Text(name), Text(value))
        out.print(table)
    else:
        for name, value in shown:
            out.print(Text(f"{title} {name}: {value}"), soft_wrap=True)
    write_json(result, path)


def write_json(result: Mapping[str, Any], path: str | None) -> None:
    """Write a result to a file, with `-` to standard output, with None nowhere."""
    if path is None:
        return
    text = json.dumps(_plain(result), indent=2, allow_nan=False) + "\n"
    if path == STDOUT:
        typer.echo(text, nl=False)
    else:
        Path(path).write_text(text, encoding="utf-8")


def rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value as people read it); a nested mapping gives one for each of its items."""
    shown = []
    for name, value in values.items():
        items = {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
        shown += [(inner, humane(inner, item)) for inner, item in items.items()]
    return shown


def humane(name: str, value: Any) -> str:
    """A value as people read it; the unit stands in the name."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, (list, tuple)):
        few = [humane(name, item) for item in value[:16]]
        return ", ".join(few) + (f", ... ({len(value)})" if len(value) > len(few) else "") if few else "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {humane(str(key), item)}" for key, item in value.items())
    return _number(name, value) if isinstance(value, (int, float)) else str(value)


def _number(name: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    if name.endswith("bytes"):
        return human_bytes(value)
    if name.endswith("fraction"):
        return f"{value:.1%}"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def human_bytes(size: float) -> str:
    """Bytes with a binary unit."""
    power = 0
    while abs(size) >= 1024 and power < len(_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f"{size:,.0f} {_UNITS[power]}" if power == 0 else f"{size:,.1f} {_UNITS[power]}"


def byte_size(name: str, text: str) -> int:
    """Bytes of a size such as 64MiB.

    Raises:
        SpecError: it is none.
    """
    try:
        return int(TypeAdapter(Size).validate_python(text))
    except ValidationError:
        raise SpecError(f"{name} {text}: is no size", hint="For example 64MiB") from None


def _plain(value: Any) -> Any:
    """JSON has no NaN: null stands for what has no value."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
