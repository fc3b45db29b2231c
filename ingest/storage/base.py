"""What every filesystem returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

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
