"""The command line: `ingest index | plan | run | verify | bench | schema`. Each command calls, shows, writes JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ingest.cli_common import FAULT, OK, cluster_session, finish, guarded, json_target, load_spec
from ingest.spec import Spec, json_schema

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Feed distributed training from object storage. "
    "RAY_ADDRESS names the cluster; without it a local one is started and ended. "
    "Exit status: 0 all is well, 1 a check failed or the data or the cluster is at fault, 2 a wrong call or spec.",
)

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


def _do(work: Callable[[Spec], int | None], spec: str, sets: list[str] | None, *, debug: bool) -> None:
    """Load the spec, connect, work, and leave with the status."""

    def all_of_it() -> int:
        loaded = load_spec(spec, sets or ())
        with cluster_session():
            return work(loaded) or OK

    raise typer.Exit(guarded(all_of_it, debug=debug))


def _cache_dir(cache: bool) -> Path | None:
    from ingest.session import CACHE_DIR

    return CACHE_DIR if cache else None


@app.command()
def schema() -> None:
    """The JSON Schema of the spec, for editors."""
    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def index(spec: SpecPath, json_: Json = None, sets: Sets = None, cache: Cache = True, debug: Debug = False) -> None:
    """Files, units, rows, bytes, digest."""

    def work(loaded: Spec) -> None:
        from ingest import cli_plan

        finish("index", cli_plan.index(loaded, _cache_dir(cache)), json_)

    _do(work, spec, sets, debug=debug)


@app.command()
def plan(
    spec: SpecPath,
    world_size: World,
    json_: Json = None,
    sets: Sets = None,
    cache: Cache = True,
    debug: Debug = False,
) -> None:
    """Steps, lanes, windows, read amplification, shuffle quality, drops."""

    def work(loaded: Spec) -> None:
        from ingest import cli_plan

        finish("plan", cli_plan.plan(loaded, world_size, _cache_dir(cache)), json_)

    _do(work, spec, sets, debug=debug)


@app.command()
def run(
    spec: SpecPath,
    world_size: World,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="epochs to consume")],
    step_ms: Annotated[float, typer.Option("--step-ms", min=0, help="milliseconds that a trainer's step takes")] = 0,
    json_: Json = None,
    sets: Sets = None,
    cache: Cache = True,
    debug: Debug = False,
) -> None:
    """Consume with N ranks, with live progress, and report."""

    def work(loaded: Spec) -> None:
        from ingest import cli_run

        result = cli_run.run(loaded, world_size, epochs=epochs, cache_dir=_cache_dir(cache), step_s=step_ms / 1000)
        finish("run", result, json_, hide=["ranks"])

    _do(work, spec, sets, debug=debug)


@app.command()
def verify(
    spec: SpecPath,
    world_size: World,
    epoch: Annotated[int, typer.Option("--epoch", min=0, help="which epoch")] = 0,
    positions: Annotated[
        int | None, typer.Option("--positions", min=1, help="digest the first so many rows of the epoch only")
    ] = None,
    resume_at: Annotated[
        int | None, typer.Option("--resume-at", min=1, metavar="STEP", help="leave after so many steps, and resume")
    ] = None,
    resume_world_size: Annotated[
        int | None, typer.Option("--resume-world-size", min=1, help="ranks after the resume")
    ] = None,
    resume_batch: Annotated[
        int | None, typer.Option("--resume-batch", min=1, help="rows per rank and step after the resume")
    ] = None,
    json_: Json = None,
    sets: Sets = None,
    cache: Cache = True,
    debug: Debug = False,
) -> None:
    """Consume an epoch with N ranks and prove its coverage: every sample once."""
    if resume_at is None and (resume_world_size or resume_batch):
        raise typer.BadParameter("--resume-world-size and --resume-batch need --resume-at")

    def work(loaded: Spec) -> int:
        from ingest import cli_verify

        resume = cli_verify.Resume(resume_at, resume_world_size or world_size, resume_batch) if resume_at else None
        result = cli_verify.verify(
            loaded, world_size, cache_dir=_cache_dir(cache), epoch=epoch, positions=positions, resume=resume
        )
        finish("verify", result, json_)
        return OK if result["ok"] else FAULT

    _do(work, spec, sets, debug=debug)


@app.command()
def bench(
    spec: SpecPath,
    world_size: World = 1,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="of each measurement")] = 15,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="rounds; medians are reported")] = 3,
    json_: Json = None,
    sets: Sets = None,
    debug: Debug = False,
) -> None:
    """The ceiling, reading alone, the whole, and the ratio of the whole to the ceiling."""

    def work(loaded: Spec) -> None:
        from ingest import cli_bench

        finish("bench", cli_bench.bench(loaded, world_size, seconds=seconds, repeats=repeats), json_)

    _do(work, spec, sets, debug=debug)


def main() -> None:
    """The `ingest` command."""
    app()


if __name__ == "__main__":
    main()
