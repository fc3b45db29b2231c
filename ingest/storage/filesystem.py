"""URL to filesystem: listing and byte ranges over local files, cloud stores and every other fsspec URL."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Protocol
from urllib.parse import unquote

from ingest.errors import SourceError
from ingest.spec import Storage
from ingest.storage.base import Blob, FileInfo
from ingest.storage.clients import CLOUD_SCHEMES
from ingest.storage.cloud import CloudFiles
from ingest.storage.generic import GenericFiles
from ingest.storage.local import LocalFiles

__all__ = [
    "Blob",
    "FileInfo",
    "FileSystem",
    "literal",
    "open_filesystem",
    "read_file",
    "split_url",
    "write_file",
]


class FileSystem(Protocol):
    """What the rest of ingest asks of a store. URLs are literal: nothing in them is unquoted or expanded.

    Every method raises SourceError naming the URL: what is missing, denied, or not reachable.
    """

    @property
    def remote(self) -> bool:
        """Whether a request costs a round trip, so that ranges are worth coalescing and caching."""

    def canonical(self, url: str) -> str:
        """`url` as `walk` and `info` write it, so that one is a prefix of the other; a local path becomes absolute."""

    def info(self, url: str) -> FileInfo | None:
        """The file at `url`; None where there is no file (a directory is none)."""

    def walk(self, url: str) -> list[FileInfo]:
        """Every file below the directory `url`, in any depth and order; empty where there is none."""

    def is_directory(self, url: str) -> bool:
        """Whether an empty listing of `url` means an empty directory; in cloud stores there is no such thing."""

    def read_ranges(self, url: str, ranges: list[tuple[int, int]], etag: str | None = None) -> list[Blob]:
        """Bytes [start, end) of each range, fetched at the same time; with `etag`, of that version or not at all."""

    def local_path(self, url: str) -> str | None:
        """The path on this machine, where `url` is one."""

    def write(self, url: str, data: bytes) -> None:
        """Put `data` at `url`, in place of what was there; a reader sees the old file or the new one, whole."""


def split_url(url: str) -> tuple[str, str]:
    """(scheme, rest) of a literal URL; a plain path, or a file:// URL, has the scheme `file`."""
    scheme, sep, rest = url.partition("://")
    if not sep:
        return "file", url
    return scheme.lower(), rest


def literal(url: str) -> str:
    """A URL with its name as it is: web servers' URLs alone have %XX in the place of special characters."""
    return unquote(url) if url.startswith(("http://", "https://")) else url


def open_filesystem(url: str, storage: Storage) -> FileSystem:
    """The filesystem of `url`, cached by process. It is never pickled: a worker opens its own from (url, storage).

    Raises:
        SourceError: the scheme is not known, or its library is not installed.
    """
    scheme, rest = split_url(url)
    bucket = rest.partition("/")[0] if scheme in CLOUD_SCHEMES else ""
    if scheme in CLOUD_SCHEMES and not bucket:
        raise SourceError("the URL names no bucket", path=url, hint=f"Write {scheme}://bucket/path")
    # A fork shares no connections with its parent: each process opens its own.
    return _open(scheme, bucket, storage, os.getpid())


def read_file(url: str, storage: Storage) -> bytes | None:
    """All of a small file; None where there is none."""
    files = open_filesystem(url, storage)
    found = files.info(url)
    if found is None:
        return None
    return bytes(files.read_ranges(url, [(0, found.size)])[0]) if found.size else b""


def write_file(url: str, data: bytes, storage: Storage) -> None:
    """Put a small file in place of what was there, whole at any time."""
    open_filesystem(url, storage).write(url, data)


@lru_cache(maxsize=64)
def _open(scheme: str, bucket: str, storage: Storage, _pid: int) -> FileSystem:
    if scheme == "file":
        return LocalFiles()
    if scheme in CLOUD_SCHEMES:
        return CloudFiles(scheme, bucket, storage)
    if scheme in ("http", "https"):
        from ingest.storage.web import WebFiles  # loads urllib3

        return WebFiles(scheme, storage)
    return GenericFiles(scheme, storage)
