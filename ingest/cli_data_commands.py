"""Commands that look at data and at the cluster: declared here, done by the module that each calls."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from ingest.cli_common import FAULT, OK, STDOUT, cluster_session, file_target, finish, guarded, load_spec, write_json
from ingest.cli_options import Cache, Debug, Json, Sets, SpecPath, World, cache_dir, with_spec
from ingest.spec import Spec, Storage, json_schema


def schema() -> None:
    """The JSON Schema of the spec, for editors."""
    typer.echo(json.dumps(json_schema(), indent=2))


def index(spec: SpecPath, json_: Json = None, sets: Sets = None, cache: Cache = True, debug: Debug = False) -> None:
    """Files, units, rows, bytes, digest."""

    def work(loaded: Spec) -> None:
        from ingest import cli_plan

        finish("index", cli_plan.index(loaded, cache_dir(cache)), json_)

    with_spec(work, spec, sets, debug=debug)


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

        finish("plan", cli_plan.plan(loaded, world_size, cache_dir(cache)), json_)

    with_spec(work, spec, sets, debug=debug)


def show(
    spec: SpecPath,
    output: Annotated[str, typer.Option("-o", "--output", callback=file_target, help="the PNG to write")] = "sheet.png",
    samples: Annotated[int, typer.Option("--samples", min=1, max=256, help="rows of the sheet")] = 8,
    passes: Annotated[int, typer.Option("--passes", min=1, max=64, help="augmented versions of each")] = 5,
    json_: Json = None,
    sets: Sets = None,
    cache: Cache = True,
    debug: Debug = False,
) -> None:
    """A sheet of pictures: the first samples as they are and augmented, with boxes, masks and keypoints drawn."""

    def work(loaded: Spec) -> None:
        from ingest import cli_show

        result = cli_show.show(loaded, Path(output), samples=samples, passes=passes, cache_dir=cache_dir(cache))
        finish("show", result, json_)

    with_spec(work, spec, sets, debug=debug)


def locate(
    spec: SpecPath,
    sample_ids: Annotated[list[int], typer.Argument(metavar="ID...", help="sample ids")],
    json_: Json = None,
    sets: Sets = None,
    cache: Cache = True,
    debug: Debug = False,
) -> None:
    """The file and row of samples."""

    def work(loaded: Spec) -> None:
        from ingest import cli_samples

        places = cli_samples.locate(loaded, sample_ids, cache_dir(cache))
        for place in places:
            typer.echo(f"sample {place['sample_id']}: {place['path']} row {place['row']}", err=json_ == STDOUT)
        write_json({"samples": places} if len(places) > 1 else places[0], json_)

    with_spec(work, spec, sets, debug=debug)


def quarantine(
    path: Annotated[str, typer.Argument(metavar="PATH", help="a quarantine folder or file, any fsspec URL")],
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="only what was found in this one")] = None,
    endpoint_url: Annotated[str | None, typer.Option("--endpoint-url", help="of the store")] = None,
    json_: Json = None,
    debug: Debug = False,
) -> None:
    """Bad samples that `on_bad_sample: replace` put aside: file, row, error, first bytes."""

    def work() -> int:
        from ingest import cli_samples

        result = cli_samples.quarantine(path, Storage(endpoint_url=endpoint_url), epoch)
        for line in cli_samples.lines(result["records"]):
            typer.echo(line, err=json_ == STDOUT)
        finish("quarantine", result, json_, hide=["records"])
        return OK

    raise typer.Exit(guarded(work, debug=debug))


def doctor(spec: SpecPath, world_size: World = 1, json_: Json = None, sets: Sets = None, debug: Debug = False) -> None:
    """From here, and from every node of the cluster that RAY_ADDRESS names: can the data be reached? If not, why?

    Of each node also: can it import and decode, has it the versions of the others; and does a run of N ranks fit?
    """

    def work() -> int:
        from ingest import cli_doctor

        loaded = load_spec(spec, sets or ())
        nodes = bool(os.environ.get("RAY_ADDRESS"))
        with cluster_session() if nodes else contextlib.nullcontext():
            result = cli_doctor.doctor(loaded, nodes=nodes, world_size=world_size)
        finish("doctor", result, json_, hide=["machines", "cluster"])
        return OK if result["ok"] else FAULT

    raise typer.Exit(guarded(work, debug=debug))
