"""Files on this machine, and on whatever is mounted here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from ingest.errors import SourceError
from ingest.storage.base import Blob, FileInfo


class LocalFiles:
    """Plain paths and file:// URLs. Symbolic links are followed; a link that leads back up is listed once."""

    remote = False

    def canonical(self, url: str) -> str:
        # resolve() would replace links by their targets.
        path = os.path.abspath(Path(self.local_path(url)).expanduser())  # noqa: PTH100
        return path + "/" if url.endswith("/") and path != "/" else path

    def info(self, url: str) -> FileInfo | None:
        path = Path(self.local_path(url))
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _explained(error, url) from error
        return _info(self.canonical(url), stat) if S_ISREG(stat.st_mode) else None

    def walk(self, url: str) -> list[FileInfo]:
        path = self.canonical(url)
        try:
            return list(_walk(path, path.rstrip("/"), frozenset()))
        except OSError as error:
            raise _explained(error, url) from error

    def is_directory(self, url: str) -> bool:
        return Path(self.local_path(url)).is_dir()

    def read_ranges(self, url: str, ranges: list[tuple[int, int]], etag: str | None = None) -> list[Blob]:
        try:
            descriptor = os.open(self.local_path(url), os.O_RDONLY)
            try:
                found = _etag(os.fstat(descriptor))
                if etag is not None and found != etag:
                    raise SourceError("the file has changed since it was listed", path=url, hint="Start the run again")
                return [_read(descriptor, start, end, url) for start, end in ranges]
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _explained(error, url) from error

    def local_path(self, url: str) -> str:
        return url.removeprefix("file://")

    def write(self, url: str, data: bytes) -> None:
        path = Path(self.canonical(url))
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            raise _explained(error, url) from error


def _etag(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns:x}-{stat.st_size:x}"


def _info(url: str, stat: os.stat_result) -> FileInfo:
    return FileInfo(url, stat.st_size, _etag(stat))


def _walk(path: str, url: str, above: frozenset[tuple[int, int]]) -> Iterator[FileInfo]:
    """What vanishes while it is listed, a writer's temporary file say, is left out."""
    try:
        stat = Path(path).stat()
        with os.scandir(path) as found:
            entries = list(found)
    except (FileNotFoundError, NotADirectoryError):
        return
    here = (stat.st_dev, stat.st_ino)
    if here in above:
        return
    for entry in entries:
        child = f"{url}/{entry.name}"
        if entry.is_dir():
            yield from _walk(entry.path, child, above | {here})
        elif entry.is_file():
            with suppress(FileNotFoundError):
                yield _info(child, entry.stat())
        elif entry.is_symlink() and not Path(entry.path).exists():
            yield FileInfo(child, 0, dangling=True)


def _read(descriptor: int, start: int, end: int, url: str) -> bytes:
    """`pread` returns at most 2 GiB a call, and may return less."""
    data = os.pread(descriptor, end - start, start)
    if len(data) == end - start:
        return data
    parts = [data]
    got = len(data)
    while got < end - start:
        part = os.pread(descriptor, end - start - got, start + got)
        if not part:
            raise SourceError(f"the file ends at byte {start + got}, before byte {end}: it is truncated", path=url)
        parts.append(part)
        got += len(part)
    return b"".join(parts)


def _explained(error: OSError, url: str) -> SourceError:
    if isinstance(error, FileNotFoundError):
        return SourceError("no such file", path=url)
    if isinstance(error, PermissionError):
        return SourceError("permission denied", path=url)
    return SourceError(f"cannot be read: {error.strerror or error}", path=url)
