"""URL to filesystem: listing and byte ranges over local files, cloud stores and every other fsspec URL."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from urllib.parse import unquote

from ingest.errors import SourceError
from ingest.spec import Cache, CachedStorage, Storage
from ingest.storage.base import Blob, FileInfo, FileSystem
from ingest.storage.cache import CachedFiles, DiskCache
from ingest.storage.clients import CLOUD_SCHEMES
from ingest.storage.cloud import CloudFiles
from ingest.storage.generic import GenericFiles
from ingest.storage.local import LocalFiles

__all__ = [
    "Blob",
    "FileInfo",
    "FileSystem",
    "disk_cache",
    "literal",
    "open_filesystem",
    "read_file",
    "split_url",
    "write_file",
]

_BUCKET = re.compile(r"[A-Za-z0-9._@:$-]+")
_OF_ONE_HOST = ("file", "http", "https")  # files of any host are reached alike


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
    bucket = "" if scheme in _OF_ONE_HOST else rest.partition("/")[0]
    if scheme in CLOUD_SCHEMES and not bucket:
        raise SourceError("the URL names no bucket", path=url, hint=f"Write {scheme}://bucket/path")
    if scheme in CLOUD_SCHEMES and not _BUCKET.fullmatch(bucket):  # it would stand in an address, and make another
        raise SourceError(f"{bucket!r} cannot be the name of a bucket", path=url, hint="Check source.path")
    # A fork shares no connections with its parent: each process opens its own.
    files = _open(scheme, bucket, storage, os.getpid())
    cache = storage.cache if isinstance(storage, CachedStorage) else None
    return CachedFiles(files, disk_cache(cache)) if cache is not None and files.remote else files


def disk_cache(cache: Cache) -> DiskCache:
    """The cache on this node's disk, one for each process."""
    return _disk_cache(cache, os.getpid())


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
    return GenericFiles(scheme, bucket, storage)


@lru_cache(maxsize=8)
def _disk_cache(cache: Cache, _pid: int) -> DiskCache:
    return DiskCache(cache)
