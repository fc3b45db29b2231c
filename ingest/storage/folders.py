"""Folders of small files that a run leaves behind (quarantine, coverage log), at any URL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingest.spec import Source, Storage
from ingest.storage.filesystem import open_filesystem, split_url


def found(folder: str, suffix: str, storage: Storage) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every file below a folder whose name ends in `suffix`, sorted by name; none where there is no
    such folder. A single file may be given too.

    Raises:
        SourceError: the folder or a file cannot be read.
    """
    filesystem = open_filesystem(folder, storage)
    info = filesystem.info(folder)
    infos = [info] if info is not None else [each for each in filesystem.walk(folder) if each.url.endswith(suffix)]
    for each in sorted(infos, key=lambda info: info.url):
        data = filesystem.read_ranges(each.url, [(0, each.size)])[0] if each.size else b""
        yield each.url.rpartition("/")[2], bytes(data)


def join(folder: str, name: str) -> str:
    """The URL of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}"


def storage_for(url: str, sources: Sequence[Source]) -> Storage:
    """The storage options of the first source that lies in a store of the same kind as a URL; none elsewhere."""
    same = [source for source in sources if split_url(url)[0] == split_url(source.paths[0])[0] != "file"]
    return same[0].storage if same else Storage()
