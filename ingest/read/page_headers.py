"""Parquet page headers."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.manifest.thrift import Buffer, struct

DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)


@dataclass(frozen=True)
class PageHeader:
    """What a page says of itself.

    Attributes:
        type: DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE or DATA_PAGE_V2.
        header_bytes: of the header itself.
        compressed_bytes: of what follows it.
        uncompressed_bytes: of the same decompressed.
        crc: CRC-32 of what follows, where the writer gave one.
        values: number of values, nulls among them.
        encoding: Parquet's number for it.
        levels_bytes: of definition and repetition levels in front of the values, in a DATA_PAGE_V2.
        compressed: whether the values are.
    """

    type: int
    header_bytes: int
    compressed_bytes: int
    uncompressed_bytes: int
    crc: int | None
    values: int
    encoding: int
    levels_bytes: int = 0
    compressed: bool = True


def page_header(data: Buffer) -> PageHeader:
    """The header at the beginning of `data`.

    Raises:
        IndexError: it goes on after the end of `data`.
        ValueError: it is none.
    """
    try:
        fields, end = struct(data)
        kind, uncompressed_bytes, compressed_bytes = (int(fields[i]) for i in (1, 2, 3))
        inner = fields[{DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}[kind]]
        values, encoding = int(inner[1]), int(inner[4 if kind == DATA_PAGE_V2 else 2])
        levels_bytes = int(inner[5]) + int(inner[6]) if kind == DATA_PAGE_V2 else 0
        compressed = bool(inner.get(7, True)) if kind == DATA_PAGE_V2 else True
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no page header: {error}") from error
    if min(uncompressed_bytes, compressed_bytes, values, levels_bytes) < 0:
        raise ValueError("a page header has a negative size")
    crc = None if fields.get(4) is None else int(fields[4]) & 0xFFFFFFFF
    return PageHeader(kind, end, compressed_bytes, uncompressed_bytes, crc, values, encoding, levels_bytes, compressed)
