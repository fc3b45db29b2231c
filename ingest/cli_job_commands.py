"""Commands that submit jobs to a cluster, follow, list and stop them: declared here, done by `cli_submit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest.cli_common import OK, STDOUT, byte_size, finish, guarded, write_json
from ingest.cli_options import Address, Debug, Json, RunName, Sets, SpecPath

jobs = typer.Typer(no_args_is_help=True, help="Jobs of the cluster: list, follow, stop.")


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
