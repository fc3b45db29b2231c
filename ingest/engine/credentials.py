"""Credentials that a node keeps in a file: taken into a process's environment there, and never sent anywhere."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from ingest.errors import ClusterError

VARIABLE = "INGEST_SECRETS_FILE"
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*")


def read(path: str | os.PathLike[str]) -> dict[str, str]:
    """NAME=VALUE lines as a mapping; blank lines and comments are passed over, quotes around a value taken off.

    Raises:
        ClusterError: the file cannot be read, others may read it, or a line is something else; never with its text.
    """
    file = Path(path).expanduser()
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"the secrets file cannot be read on this node: {error.strerror}", path=str(file)) from error
    if mode & 0o004:
        raise ClusterError("others may read the secrets file", path=str(file), hint=f"chmod 600 {file}")
    found = {}
    for number, line in enumerate(text.splitlines()):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ClusterError("a line is not NAME=VALUE", path=str(file), row=number)
        value = match[2]
        found[match[1]] = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
    return found


def load() -> None:
    """Take the file that INGEST_SECRETS_FILE names into the environment; Ray calls this as each worker starts.

    A worker that fails here would be started again and again: it says why in its log, and reading then fails with
    "no credentials".
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        os.environ.update(read(path))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201 - a worker has no other place to say it
