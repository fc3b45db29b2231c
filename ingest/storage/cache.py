"""A cache of ranges on local disk, shared by all processes of a node and by one run after another.

An entry's name is a digest of URL, version (ETag) and range. It is written elsewhere and renamed, so that it is there
whole or not at all, and carries a checksum, so that what a crash or a disk did to it is seen. The least recently used
go when the budget is full. Nothing here can fail a read: what cannot be cached is read from the store.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ingest.spec import Cache
from ingest.storage.base import Blob, FileInfo, FileSystem
from ingest.storage.traffic import TRAFFIC

_HEAD = struct.Struct("<8sQI")  # mark, bytes of data, CRC-32 of data
_MARK = b"ingest\x00\x01"
_ROOM = 0.9  # of the budget is left when entries have been dropped, so that not every write must drop some
_LOCK_S = 1.0  # a process that was stopped while it held the lock must not stop the others
_WAITING = threading.Event()  # never set
_log = logging.getLogger(__name__)


class CachedFiles:
    """A filesystem whose pinned ranges (those with an ETag) are kept on disk."""

    remote = True

    def __init__(self, files: FileSystem, cache: DiskCache) -> None:
        self._files, self._cache = files, cache

    def canonical(self, url: str) -> str:
        return self._files.canonical(url)

    def info(self, url: str) -> FileInfo | None:
        return self._files.info(url)

    def walk(self, url: str) -> list[FileInfo]:
        return self._files.walk(url)

    def is_directory(self, url: str) -> bool:
        return self._files.is_directory(url)

    def local_path(self, url: str) -> str | None:
        return self._files.local_path(url)

    def write(self, url: str, data: bytes) -> None:
        self._files.write(url, data)

    def read_ranges(self, url: str, ranges: list[tuple[int, int]], etag: str | None = None) -> list[Blob]:
        if etag is None:
            return self._files.read_ranges(url, ranges)
        names = [_name(url, etag, span) for span in ranges]
        found: list[Blob | None] = [self._cache.get(name) for name in names]
        missing = [i for i, blob in enumerate(found) if blob is None]
        if missing:
            fetched = self._files.read_ranges(url, [ranges[i] for i in missing], etag)
            for i, blob in zip(missing, fetched, strict=True):
                self._cache.put(names[i], blob)
                found[i] = blob
        kept = [blob for i, blob in enumerate(found) if i not in set(missing)]
        TRAFFIC.add(cache_hits=len(kept), cache_misses=len(missing), cache_hit_bytes=sum(len(b) for b in kept if b))
        return found


def _name(url: str, etag: str, span: tuple[int, int]) -> str:
    return hashlib.blake2b(f"{url}\n{etag}\n{span[0]}-{span[1]}".encode(), digest_size=20).hexdigest()


class DiskCache:
    """Entries under a directory, in 256 folders, with a byte budget over all processes that use it."""

    def __init__(self, cache: Cache) -> None:
        self._root = Path(cache.path or "") / "ranges-1"
        self._budget_bytes = int(cache.bytes or 0)
        self._closed = False
        self._swept = False
        self._lock = threading.Lock()

    def get(self, name: str) -> Blob | None:
        """An entry's data, if it is there and whole; a damaged one is removed."""
        path = self._path(name)
        try:
            raw = memoryview(path.read_bytes())
            if _whole(raw):
                os.utime(path)  # its last use
                return raw[_HEAD.size :]
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._give_up(error)
        return None

    def put(self, name: str, blob: Blob) -> None:
        """Keep data, unless it is larger than the budget; on a disk that is full or closed to us, do nothing more."""
        data = memoryview(blob).cast("B")
        size = _HEAD.size + len(data)
        if self._closed or size > self._budget_bytes:
            return
        path = self._path(name)
        temporary = self._root / "tmp" / f"{name}-{secrets.token_hex(4)}"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.parent.mkdir(mode=0o700, exist_ok=True)
            self._sweep()
            try:
                with temporary.open("xb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)  # says that its writer lives
                    file.write(_HEAD.pack(_MARK, len(data), zlib.crc32(data)))
                    file.write(data)
                    file.flush()
                    with self._account(size):
                        temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        except (BlockingIOError, FileNotFoundError):
            pass  # another process holds the lock for long, or has removed what it took for a crash's: not kept
        except OSError as error:
            self._give_up(error)

    def _sweep(self) -> None:
        """Remove, once, what crashes left: temporary files that no process has a lock on."""
        with self._lock:
            first, self._swept = not self._swept, True
        if not first:
            return
        for left in (self._root / "tmp").iterdir():
            with contextlib.suppress(FileNotFoundError, BlockingIOError), left.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()

    def _path(self, name: str) -> Path:
        return self._root / name[:2] / name[2:]

    def _give_up(self, error: OSError) -> None:
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            _log.warning(
                "cache: %s cannot be used (%s); going on without it", self._root, error.strerror or type(error).__name__
            )

    @contextlib.contextmanager
    def _account(self, size: int) -> Iterator[None]:
        """Add an entry of `size` bytes to the total that all processes share, dropping old ones where it is too much.

        The total is written before the entry is there: a crash between the two makes it too large, never too small,
        and the next count of what is there makes it right.
        """
        with (self._root / "total").open("a+b") as file:
            _take(file)
            file.seek(0)
            raw = file.read(8)
            total = int.from_bytes(raw, "little") if len(raw) == 8 else self._drop(self._budget_bytes)
            if total + size > self._budget_bytes:
                total = self._drop(int(self._budget_bytes * _ROOM) - size)
            file.truncate(0)
            file.write((total + size).to_bytes(8, "little"))
            file.flush()
            yield

    def _drop(self, keep_bytes: int) -> int:
        """Remove the least recently used entries down to `keep_bytes`, and what crashes left; the bytes that stay."""
        entries = []
        for folder in self._root.iterdir():
            if len(folder.name) != 2:
                continue
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):  # another process may have removed a damaged one
                    stat = entry.stat()
                    entries.append((stat.st_mtime_ns, stat.st_size, entry.path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= max(0, keep_bytes):
                break
            Path(path).unlink(missing_ok=True)
            total -= size
        return total


def _take(file: IO[bytes]) -> None:
    """Lock a file; the lock goes with the process, however it ends.

    Raises:
        BlockingIOError: another process has had it for a second.
    """
    end = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            _WAITING.wait(0.002)
        else:
            return


def _whole(raw: memoryview) -> bool:
    if len(raw) < _HEAD.size:
        return False
    mark, size, crc = _HEAD.unpack_from(raw)
    data = raw[_HEAD.size :]
    return bool(mark == _MARK and size == len(data) and crc == zlib.crc32(data))
