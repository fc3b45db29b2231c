"""What every filesystem returns, and what each checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ingest.errors import SourceError

Blob: TypeAlias = Any  # an object with the buffer protocol: bytes, memoryview, or a store's own buffer


@dataclass(frozen=True)
class FileInfo:
    """One file as its store describes it.

    Attributes:
        url: what opens it again, literal.
        size: bytes.
        etag: the store's version of the content, or for local files the time of change; None where neither is known.
        dangling: a link to what is not there, of no bytes; only listings have some.
    """

    url: str
    size: int
    etag: str | None = None
    dangling: bool = False


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


def quoted(etag: str | None) -> str | None:
    """An ETag as HTTP writes it. Listings of some stores leave the quotation marks out."""
    return etag if etag is None or etag.endswith('"') else f'"{etag}"'


def check_lengths(url: str, ranges: Sequence[tuple[int, int]], blobs: Sequence[Blob]) -> None:
    """Refuse short data, and servers that send the whole file whatever the range.

    Raises:
        SourceError: a range's bytes are not as many as asked for.
    """
    for blob, (start, end) in zip(blobs, ranges, strict=True):
        if len(blob) == end - start:
            continue
        why = "it is truncated" if len(blob) < end - start else "its server does not answer range requests"
        raise SourceError(
            f"{len(blob)} bytes came where {end - start} were asked for, from byte {start}: {why}", path=url
        )
