"""Every other URL (memory, http, sftp, hdfs and so on) through its fsspec implementation."""

from __future__ import annotations

from typing import Any

import fsspec

from ingest.errors import SourceError
from ingest.spec import Storage
from ingest.storage.base import Blob, FileInfo, check_lengths


class GenericFiles:
    """An fsspec filesystem behind our few calls."""

    remote = True

    def __init__(self, scheme: str, storage: Storage) -> None:
        """Open the scheme's filesystem.

        Raises:
            SourceError: the scheme is not known to fsspec, or its library is not installed.
        """
        if storage != Storage():
            raise SourceError(
                f"source.storage holds options of cloud stores, and '{scheme}' is none",
                hint="Leave source.storage out",
            )
        self._scheme = scheme
        try:
            self._fs: Any = fsspec.filesystem(scheme)
        except (ValueError, ImportError) as error:
            raise SourceError(f"cannot open {scheme}:// URLs: {error}") from error

    def canonical(self, url: str) -> str:
        name = self._fs.unstrip_protocol(self._fs._strip_protocol(url))  # noqa: SLF001  # fsspec's way to split a URL
        return str(name) + ("/" if url.endswith("/") and not name.endswith("/") else "")

    def info(self, url: str) -> FileInfo | None:
        try:
            found = self._fs.info(self._fs._strip_protocol(url))  # noqa: SLF001
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _explained(error, url) from error
        return self._file(found) if found["type"] == "file" else None

    def walk(self, url: str) -> list[FileInfo]:
        path = self._fs._strip_protocol(url)  # noqa: SLF001
        try:
            self._fs.invalidate_cache(path)  # a new run sees new objects
            return [self._file(found) for found in self._fs.find(path, detail=True).values()]
        except FileNotFoundError:
            return []
        except (OSError, NotImplementedError) as error:
            raise _explained(error, url) from error

    def is_directory(self, url: str) -> bool:
        return bool(self._fs.isdir(self._fs._strip_protocol(url)))  # noqa: SLF001

    def read_ranges(self, url: str, ranges: list[tuple[int, int]], etag: str | None = None) -> list[Blob]:
        del etag  # fsspec has no conditional reads; sizes are checked
        path = self._fs._strip_protocol(url)  # noqa: SLF001
        starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
        try:
            blobs: list[Blob] = self._fs.cat_ranges([path] * len(ranges), starts, ends)
        except (OSError, ValueError) as error:
            raise _explained(error, url) from error
        failed = next((blob for blob in blobs if isinstance(blob, Exception)), None)
        if failed is not None:
            raise _explained(failed, url) from failed
        check_lengths(url, ranges, blobs)
        return blobs

    def local_path(self, url: str) -> None:
        del url

    def _file(self, found: dict[str, Any]) -> FileInfo:
        url = self._fs.unstrip_protocol(found["name"])
        if found.get("size") is None:
            raise SourceError("the server does not say how large the file is", path=url)
        version = next((found[key] for key in ("ETag", "etag", "mtime", "created") if found.get(key)), None)
        return FileInfo(url, int(found["size"]), None if version is None else str(version))


def _explained(error: Exception, url: str) -> SourceError:
    if isinstance(error, FileNotFoundError):
        return SourceError("no such file", path=url)
    if isinstance(error, PermissionError):
        return SourceError("permission denied", path=url)
    return SourceError(f"cannot be read: {error or type(error).__name__}", path=url)
