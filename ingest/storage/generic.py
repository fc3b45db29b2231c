"""Every other URL (memory, hf, sftp, hdfs and so on) through its fsspec implementation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from fsspec.core import url_to_fs

from ingest.errors import SourceError
from ingest.spec import Storage
from ingest.storage.base import Blob, FileInfo, check_lengths
from ingest.storage.failures import Kind, StoreError, failure, of_status, plain
from ingest.storage.retry import persist
from ingest.storage.traffic import TRAFFIC, Limiter

T = TypeVar("T")


class GenericFiles:
    """An fsspec filesystem behind our few calls."""

    remote = True

    def __init__(self, scheme: str, host: str, storage: Storage) -> None:
        """Open the scheme's filesystem.

        Args:
            scheme: such as `sftp`.
            host: what stands behind `://`: of some schemes the server, of others the beginning of the path.
            storage: how long a request is asked for again, and how many at a time.

        Raises:
            SourceError: the scheme is not known to fsspec, or its library is not installed or wants what a URL has not.
        """
        if storage.model_copy(update={"retry_s": 30.0, "concurrency": "auto"}) != Storage():
            raise SourceError(
                f"source.storage holds options of cloud stores, and '{scheme}' is none",
                hint="Leave source.storage out, but for retry_s and concurrency",
            )
        self.limiter = Limiter(None if storage.concurrency == "auto" else storage.concurrency)
        self.retry_s = storage.retry_s
        self.answered = False
        self._scheme = scheme
        try:
            self._fs: Any = url_to_fs(f"{scheme}://{host}/")[0]
        except (ValueError, ImportError, OSError, TypeError) as error:
            # OSError: the server, or a part of its library, is not there; TypeError: a URL does not say enough.
            why = str(error).split("\n", 1)[0]
            raise SourceError(f"cannot open {scheme}:// URLs: {why}") from error
        self._root = f"{scheme}://{host}" if self._fs.storage_options else None

    def canonical(self, url: str) -> str:
        name = self._url(self._fs._strip_protocol(url))  # noqa: SLF001  # fsspec's way to split a URL
        return name + ("/" if url.endswith("/") and not name.endswith("/") else "")

    def _url(self, path: str) -> str:
        """What opens a path again: fsspec's own way leaves out the server."""
        return str(self._fs.unstrip_protocol(path)) if self._root is None else f"{self._root}/{path.lstrip('/')}"

    def info(self, url: str) -> FileInfo | None:
        path = self._fs._strip_protocol(url)  # noqa: SLF001
        try:
            found = self._ask("head_requests", lambda: self._fs.info(path), url)
        except StoreError as error:
            if error.kind is Kind.MISSING:
                return None
            raise
        return self._file(found) if found["type"] == "file" else None

    def walk(self, url: str) -> list[FileInfo]:
        path = self._fs._strip_protocol(url)  # noqa: SLF001

        def find() -> list[FileInfo]:
            self._fs.invalidate_cache(path)  # a new run sees new objects
            return [self._file(found) for found in self._fs.find(path, detail=True).values()]

        try:
            return self._ask("list_requests", find, url)
        except StoreError as error:
            if error.kind is Kind.MISSING:
                return []
            raise

    def is_directory(self, url: str) -> bool:
        return bool(self._fs.isdir(self._fs._strip_protocol(url)))  # noqa: SLF001

    def read_ranges(self, url: str, ranges: list[tuple[int, int]], etag: str | None = None) -> list[Blob]:
        path = self._fs._strip_protocol(url)  # noqa: SLF001
        starts, ends = [start for start, _ in ranges], [end for _, end in ranges]

        def fetch() -> list[Blob]:
            blobs: list[Blob] = self._fs.cat_ranges([path] * len(ranges), starts, ends)
            failed = next((blob for blob in blobs if isinstance(blob, Exception)), None)
            if failed is not None:
                raise failed
            return blobs

        if etag is not None:  # fsspec has no conditional reads
            now = self.info(url)
            if now is None or now.etag != etag:
                raise failure(Kind.CHANGED if now else Kind.MISSING, url)
        blobs = self._ask("get_requests", fetch, url, len(ranges))
        TRAFFIC.add(get_bytes=sum(len(blob) for blob in blobs))
        check_lengths(url, ranges, blobs)
        return blobs

    def local_path(self, url: str) -> None:
        del url

    def write(self, url: str, data: bytes) -> None:
        path = self._fs._strip_protocol(url)  # noqa: SLF001

        def put() -> None:
            self._fs.makedirs(self._fs._parent(path), exist_ok=True)  # noqa: SLF001
            self._fs.pipe_file(path, data)

        self._ask("put_requests", put, url)

    def renew(self, error: StoreError) -> bool:
        del error
        return False

    def _ask(self, kind: str, call: Callable[[], T], url: str, count: int = 1) -> T:
        def turn(_: int) -> T:
            TRAFFIC.add(**{kind: count})
            try:
                return call()
            except (OSError, ValueError, NotImplementedError) as error:
                raise _explained(error, url) from error

        return persist(self, turn)

    def _file(self, found: dict[str, Any]) -> FileInfo:
        url = self._url(found["name"])
        if found.get("size") is None:
            raise SourceError("the server does not say how large the file is", path=url)
        version = next((found[key] for key in ("ETag", "etag", "mtime", "created") if found.get(key)), None)
        if isinstance(version, datetime):  # the same filesystem may give a number elsewhere
            version = version.timestamp()
        return FileInfo(url, int(found["size"]), None if version is None else str(version))


def _explained(error: Exception, url: str) -> StoreError:
    response = getattr(error, "response", None)
    status = getattr(error, "status", None) or getattr(response, "status_code", None)
    if isinstance(error, FileNotFoundError):
        kind = Kind.MISSING
    elif isinstance(status, int):
        kind = of_status(status)
    elif isinstance(error, PermissionError):
        kind = Kind.DENIED
    elif isinstance(error, (ConnectionError, TimeoutError)):
        kind = Kind.UNREACHABLE
    else:
        kind = Kind.REFUSED
    silent = kind in {Kind.MISSING, Kind.DENIED}
    return failure(kind, url, "" if silent else plain(str(error) or type(error).__name__))
