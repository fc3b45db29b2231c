"""Job: `ingest bench` as it is submitted to a cluster: `ray job submit -- python -m jobs.bench SPEC --json FILE`."""

from __future__ import annotations

import sys

from ingest.cli import app

if __name__ == "__main__":
    app(["bench", *sys.argv[1:]], prog_name="python -m jobs.bench")
