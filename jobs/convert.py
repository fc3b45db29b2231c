"""Job: `ingest convert` as it is submitted to a cluster: `ray job submit -- python -m jobs.convert SPEC FOLDER`."""

from __future__ import annotations

import sys

from ingest.cli import app

if __name__ == "__main__":
    app(["convert", *sys.argv[1:]], prog_name="python -m jobs.convert")
