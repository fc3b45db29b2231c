"""What the commands' calls share: their options, and the steps around the work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ingest.cli_common import OK, cluster_session, guarded, json_target, load_spec
from ingest.spec import Spec

SpecPath = Annotated[str, typer.Argument(metavar="SPEC", help="the spec, a YAML file")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="override a key of the spec, dotted; VALUE is YAML. Repeatable"),
]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", callback=json_target, help="write the result as JSON; - for stdout"),
]
World = Annotated[int, typer.Option("--world-size", min=1, help="data-parallel ranks")]
Cache = Annotated[bool, typer.Option("--cache/--no-cache", help="keep and use manifests of earlier runs")]
Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="URL",
        help="the dashboard, http://127.0.0.1:8265 when neither this, RAY_API_SERVER_ADDRESS nor RAY_ADDRESS says else",
    ),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="a run id, or a submission id")]


def with_spec(work: Callable[[Spec], int | None], spec: str, sets: list[str] | None, *, debug: bool) -> None:
    """Load the spec, connect, work, and leave with the status."""

    def all_of_it() -> int:
        loaded = load_spec(spec, sets or ())
        with cluster_session():
            return work(loaded) or OK

    raise typer.Exit(guarded(all_of_it, debug=debug))


def cache_dir(cache: bool) -> Path | None:
    """Where manifests of earlier runs are kept; None where they are not used."""
    from ingest.session import CACHE_DIR

    return CACHE_DIR if cache else None
