"""What every filesystem returns, and what each checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ingest.errors import SourceError

Blob: TypeAlias = Any  # an object with the buffer protocol: bytes, memoryview, or a store's own buffer


@dataclass(frozen=True)
class FileInfo:
    """One file as its store describes it.

    Attributes:
        url: what opens it again, literal.
        size: bytes.
        etag: the store's version of the content, or for local files the time of change; None where neither is known.
    """

    url: str
    size: int
    etag: str | None = None


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
