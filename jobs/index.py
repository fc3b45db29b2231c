"""Job: `ingest index` as it is submitted to a cluster: `ray job submit -- python -m jobs.index SPEC --json FILE`."""

from __future__ import annotations

import sys

from ingest.cli import app

if __name__ == "__main__":
    app(["index", *sys.argv[1:]], prog_name="python -m jobs.index")
