"""A function of a file over some files, several at a time where they lie in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ingest.manifest.model import FileEntry
from ingest.spec import Storage
from ingest.storage.filesystem import open_filesystem

_THREADS = 16
_T = TypeVar("_T")


def over_files(files: Sequence[FileEntry], work: Callable[[FileEntry], _T], storage: Storage) -> Iterator[_T]:
    """What comes of each file, in order.

    Args:
        files: on one store.
        work: may wait for the store; raises nothing.
        storage: how to reach it.
    """
    if len(files) > 1 and open_filesystem(files[0].url, storage).remote:
        with ThreadPoolExecutor(min(_THREADS, len(files))) as pool:
            yield from pool.map(work, files)
    else:
        yield from map(work, files)
