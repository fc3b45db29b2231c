"""Commands that consume, measure, convert or simulate: declared here, done by the module that each calls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest.cli_common import FAULT, OK, byte_size, finish, guarded, load_spec
from ingest.cli_options import Cache, Debug, Json, Sets, SpecPath, World, cache_dir, with_spec
from ingest.spec import Spec, Storage


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

        result = cli_run.run(loaded, world_size, epochs=epochs, cache_dir=cache_dir(cache), step_s=step_ms / 1000)
        finish("run", result, json_, hide=["ranks"])

    with_spec(work, spec, sets, debug=debug)


def verify(
    spec: Annotated[str | None, typer.Argument(metavar="[SPEC]", help="the spec, a YAML file")] = None,
    world_size: Annotated[int | None, typer.Option("--world-size", min=1, help="data-parallel ranks")] = None,
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
    log: Annotated[
        str | None, typer.Option("--log", metavar="FOLDER", help="prove what a run's loader.log says instead")
    ] = None,
    from_epoch: Annotated[int, typer.Option("--from-epoch", min=0, help="of the log: earlier ones may lack")] = 0,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="of the log: so many must be whole")] = None,
    endpoint_url: Annotated[str | None, typer.Option("--endpoint-url", help="of the log's store")] = None,
    json_: Json = None,
    sets: Sets = None,
    cache: Cache = True,
    debug: Debug = False,
) -> None:
    """Consume an epoch with N ranks and prove its coverage: every sample once. Or prove it from a run's log."""
    if log is not None:
        storage = Storage(endpoint_url=endpoint_url)
        raise typer.Exit(guarded(lambda: _verify_log(log, storage, from_epoch, epochs, json_), debug=debug))
    if spec is None or world_size is None:
        raise typer.BadParameter("give SPEC and --world-size, or --log FOLDER")
    if resume_at is None and (resume_world_size or resume_batch):
        raise typer.BadParameter("--resume-world-size and --resume-batch need --resume-at")

    def work(loaded: Spec) -> int:
        from ingest import cli_verify

        resume = cli_verify.Resume(resume_at, resume_world_size or world_size, resume_batch) if resume_at else None
        result = cli_verify.verify(
            loaded, world_size, cache_dir=cache_dir(cache), epoch=epoch, positions=positions, resume=resume
        )
        finish("verify", result, json_)
        return OK if result["ok"] else FAULT

    with_spec(work, spec, sets, debug=debug)


def _verify_log(log: str, storage: Storage, from_epoch: int, epochs: int | None, json_: str | None) -> int:
    from ingest import cli_samples

    result = cli_samples.verify_log(log, storage, from_epoch=from_epoch, epochs=epochs)
    finish("verify", result, json_)
    return OK if result["ok"] else FAULT


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

    with_spec(work, spec, sets, debug=debug)


def convert(
    spec: SpecPath,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="where to write: an empty folder, any URL")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="FORMAT", help="parquet or tfrecord; the other one when left out")
    ] = None,
    part: Annotated[
        str, typer.Option("--part", metavar="SIZE", help="about so many bytes in memory a file")
    ] = "128MiB",
    compare: Annotated[bool, typer.Option("--compare/--no-compare", help="read each file back and compare it")] = True,
    json_: Json = None,
    sets: Sets = None,
    cache: Cache = True,
    debug: Debug = False,
) -> None:
    """Write the rows that the source names as Parquet or TFRecord, in parallel, each file compared with its rows."""

    def work(loaded: Spec) -> int:
        from ingest import cli_convert

        size = byte_size("--part", part)
        target = cli_convert.target_of(to)
        result = cli_convert.convert(loaded, folder, target, cache_dir(cache), part_bytes=size, compare=compare)
        finish("convert", result, json_)
        return OK if result["ok"] else FAULT

    with_spec(work, spec, sets, debug=debug)


def simulate(
    spec: SpecPath,
    world_size: World,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="nodes with trainers")] = 1,
    reader_nodes: Annotated[
        int, typer.Option("--reader-nodes", min=0, help="nodes that only read; 0: the trainers' nodes read")
    ] = 0,
    step_ms: Annotated[float, typer.Option("--step-ms", min=0, help="milliseconds that a trainer's step takes")] = 0,
    barrier: Annotated[
        bool, typer.Option("--barrier/--no-barrier", help="ranks wait for each other at every step")
    ] = True,
    steps: Annotated[
        int | None, typer.Option("--steps", min=4, help="of each rank that are simulated; the epoch follows from them")
    ] = None,
    samples: Annotated[
        float | None, typer.Option("--samples", min=1, help="so many made-up rows instead of the spec's data")
    ] = None,
    row_bytes: Annotated[int, typer.Option("--row-bytes", min=1, help="of a made-up row")] = 100_000,
    unit_rows: Annotated[int, typer.Option("--unit-rows", min=1, help="of a made-up row group")] = 1000,
    store: Annotated[str, typer.Option("--store", metavar="SIZE", help="object store of each node")] = "64GiB",
    params: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="NAME=NUMBER", help="a cost of the machine, in seconds and bytes. Repeatable"),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option("--calibrate", metavar="RUN.json", help="fit decoding and start-up to what `run` measured there"),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="RUN.json", help="predicted over measured")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="of stragglers and losses")] = 0,
    json_: Json = None,
    sets: Sets = None,
    cache: Cache = True,
    debug: Debug = False,
) -> None:
    """A run on a cluster that is not there: steps, bytes, requests, cost, first batch, waiting."""

    def work() -> int:
        from ingest import cli_simulate

        loaded = load_spec(spec, sets or ())
        if samples is None:
            data = cli_simulate.found(loaded, cache_dir(cache))
        else:
            data = cli_simulate.made_up(int(samples), row_bytes, unit_rows)
        result = cli_simulate.simulated(
            loaded,
            data,
            world_size,
            [f"trainer_nodes={nodes}", f"reader_nodes={reader_nodes}", *(params or ())],
            calibrate=calibrate,
            barrier=barrier,
            step_s=step_ms / 1000,
            store_bytes=byte_size("--store", store),
            seed=seed,
            steps=steps,
        )
        if compare is not None:
            result |= cli_simulate.compared(result, compare)
        finish("simulate", result, json_, hide=["machine"])
        return OK

    raise typer.Exit(guarded(work, debug=debug))
