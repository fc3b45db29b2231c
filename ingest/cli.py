"""The command line: each command calls what does the work, and shows its result."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ingest.cli_common import (
    FAULT,
    OK,
    STDOUT,
    byte_size,
    cluster_session,
    finish,
    guarded,
    json_target,
    load_spec,
    write_json,
)
from ingest.spec import Spec, Storage, json_schema

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Feed distributed training from object storage. "
    "RAY_ADDRESS names the cluster; without it a local one is started and ended. "
    "Exit status: 0 all is well, 1 a check failed or the data or the cluster is at fault, 2 a wrong call or spec.",
)
jobs = typer.Typer(no_args_is_help=True, help="Jobs of the cluster: list, follow, stop.")
app.add_typer(jobs, name="jobs")

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
def show(
    spec: SpecPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="the PNG to write")] = Path("sheet.png"),
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

        result = cli_show.show(loaded, output, samples=samples, passes=passes, cache_dir=_cache_dir(cache))
        finish("show", result, json_)

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
            loaded, world_size, cache_dir=_cache_dir(cache), epoch=epoch, positions=positions, resume=resume
        )
        finish("verify", result, json_)
        return OK if result["ok"] else FAULT

    _do(work, spec, sets, debug=debug)


def _verify_log(log: str, storage: Storage, from_epoch: int, epochs: int | None, json_: str | None) -> int:
    from ingest import cli_samples

    result = cli_samples.verify_log(log, storage, from_epoch=from_epoch, epochs=epochs)
    finish("verify", result, json_)
    return OK if result["ok"] else FAULT


@app.command()
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

        places = cli_samples.locate(loaded, sample_ids, _cache_dir(cache))
        for place in places:
            typer.echo(f"sample {place['sample_id']}: {place['path']} row {place['row']}", err=json_ == STDOUT)
        write_json({"samples": places} if len(places) > 1 else places[0], json_)

    _do(work, spec, sets, debug=debug)


@app.command()
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


@app.command()
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
        result = cli_convert.convert(loaded, folder, target, _cache_dir(cache), part_bytes=size, compare=compare)
        finish("convert", result, json_)
        return OK if result["ok"] else FAULT

    _do(work, spec, sets, debug=debug)


@app.command(name="simulate")
def simulate_run(
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
            data = cli_simulate.found(loaded, _cache_dir(cache))
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


@app.command()
def submit(
    spec: SpecPath,
    args: Annotated[list[str] | None, typer.Argument(metavar="[-- JOB_OPTIONS]", help="for the job")] = None,
    job: Annotated[str, typer.Option("--job", help="train, index, bench or convert")] = "train",
    address: Address = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="names the run; one used before goes on from its last state")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="URL", help="folder of the runs' states; else the head node's disk"),
    ] = None,
    env: Annotated[
        str, typer.Option("--env", help="image: the nodes have all that is needed; pip or uv: installed, pinned")
    ] = "image",
    files: Annotated[
        list[Path] | None, typer.Option("--file", help="a file or folder that the job needs besides. Repeatable")
    ] = None,
    env_vars: Annotated[
        list[str] | None, typer.Option("--env-var", metavar="NAME=VALUE", help="for the job; no secrets. Repeatable")
    ] = None,
    secrets_file: Annotated[
        str | None,
        typer.Option("--secrets-file", metavar="PATH", help="on every node: NAME=VALUE lines, read there only"),
    ] = None,
    max_package: Annotated[str, typer.Option("--max-package", help="refuse to send more")] = "64MiB",
    detach: Annotated[bool, typer.Option("--detach", help="submit and leave")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be sent, without a cluster")] = False,
    json_: Json = None,
    sets: Sets = None,
    debug: Debug = False,
) -> None:
    """Run a job on a cluster: send what it needs, stream its logs, end with its exit status."""

    def work() -> int:
        from ingest import cli_submit

        wanted = cli_submit.Wanted(
            spec=Path(spec),
            job=job,
            args=tuple(args or ()),
            run_id=run_id,
            state=state,
            sets=tuple(sets or ()),
            env=env,
            files=tuple(files or ()),
            variables=cli_submit.variables(env_vars or ()),
            secrets_file=secrets_file,
            max_package_bytes=byte_size("--max-package", max_package),
        )
        if dry_run:
            finish("submit", cli_submit.describe(wanted), json_)
            return OK
        result = cli_submit.submit(wanted, address, detach=detach)
        write_json(result, json_)
        return int(result["exit_code"])

    raise typer.Exit(guarded(work, debug=debug))


@jobs.command("list")
def list_jobs(address: Address = None, json_: Json = None, debug: Debug = False) -> None:
    """Jobs of the cluster, the newest first."""

    def work() -> int:
        from ingest import cli_submit

        found = cli_submit.listed(cli_submit.job_server(address))
        if json_ != STDOUT:
            typer.echo(cli_submit.table(found))
        write_json({"jobs": found}, json_)
        return OK

    raise typer.Exit(guarded(work, debug=debug))


@jobs.command("logs")
def job_logs(
    run: RunName,
    address: Address = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="until it ends, with its exit status")] = True,
    debug: Debug = False,
) -> None:
    """A job's log."""

    def work() -> int:
        from ingest import cli_submit

        client = cli_submit.job_server(address)
        return cli_submit.logs(client, cli_submit.find(client, run), follow_it=follow)

    raise typer.Exit(guarded(work, debug=debug))


@jobs.command("stop")
def stop_job(run: RunName, address: Address = None, debug: Debug = False) -> None:
    """Stop a job; it saves its state first."""

    def work() -> int:
        from ingest import cli_submit

        client = cli_submit.job_server(address)
        cli_submit.stop(client, cli_submit.find(client, run))
        return OK

    raise typer.Exit(guarded(work, debug=debug))


@app.command()
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


def main() -> None:
    """The `ingest` command."""
    app()


if __name__ == "__main__":
    main()
