"""A function of a file over some files, several at a time where they lie in a store: its rows as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from ingest.manifest import arrow
from ingest.manifest.model import FileEntry
from ingest.spec import Storage
from ingest.storage.filesystem import open_filesystem

_THREADS = 16


def index_table(
    files: Sequence[FileEntry], row: Callable[[FileEntry], Mapping[str, Any]], schema: pa.Schema, storage: Storage
) -> pa.Table:
    """A row for each file, in order.

    Args:
        files: on one store.
        row: of a file, by the names of the schema.
        schema: see `arrow.column` for what types there may be.
        storage: how to reach the store.
    """
    if len(files) > 1 and open_filesystem(files[0].url, storage).remote:
        with ThreadPoolExecutor(min(_THREADS, len(files))) as pool:
            return arrow.table(list(pool.map(row, files)), schema)
    return arrow.table([row(entry) for entry in files], schema)
