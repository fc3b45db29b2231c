"""TFRecord's records: where they lie in a buffer, and their checksums.

All that a kernel calls stands in this folder, whose modules `ingest.jit.kernel` looks at.
"""

from ingest.manifest.records.framing import (
    CUT,
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    LENGTH,
    LONG,
    MOST_BYTES,
    Frames,
    begins_record,
    frame,
    masked_crc,
    scan,
    seal,
)

__all__ = [
    "CUT",
    "FOOTER_BYTES",
    "FRAME_BYTES",
    "HEADER_BYTES",
    "LENGTH",
    "LONG",
    "MOST_BYTES",
    "Frames",
    "begins_record",
    "frame",
    "masked_crc",
    "scan",
    "seal",
]
