"""The command line: each command calls what does the work, and shows its result."""

from __future__ import annotations

import typer

from ingest.cli_data_commands import doctor, index, locate, plan, quarantine, schema, show
from ingest.cli_job_commands import jobs, submit
from ingest.cli_run_commands import bench, convert, run, simulate, verify

# As --help shows them.
_IN_ORDER = (schema, index, plan, show, run, verify, locate, quarantine, bench, convert, simulate, submit, doctor)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Feed distributed training from object storage. "
    "RAY_ADDRESS names the cluster; without it a local one is started and ended. "
    "Exit status: 0 all is well, 1 a check failed or the data or the cluster is at fault, 2 a wrong call or spec.",
)
app.add_typer(jobs, name="jobs")
for command in _IN_ORDER:
    app.command()(command)


def main() -> None:
    """The `ingest` command."""
    app()


if __name__ == "__main__":
    main()
