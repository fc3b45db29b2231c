"""`ray` for one of several nodes on this machine: its `stop` ends that node's processes, and no other Ray's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
from ray.scripts.scripts import main

HOME = "INGEST_TEST_RAY_UP"  # in the environment of a session: the folder that holds one for each node


def folder_of(home: Path, host: str) -> Path:
    """Where the node that SSH reaches at an address keeps its session."""
    return home / host


def running(folder: Path) -> list[psutil.Process]:
    """A node's processes: those with a file open in its folder, since they write titles over their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(Path(file.path).is_relative_to(folder) for file in process.open_files()):
                found.append(process)
        except psutil.Error:
            continue
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["stop"]:
        mine = running(folder_of(Path(os.environ[HOME]), os.environ["SSH_CONNECTION"].split()[2]))
        psutil.process_iter = lambda *_, **__: iter(mine)
    main()
