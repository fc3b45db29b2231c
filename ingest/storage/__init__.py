"""URL to filesystem: listing and byte ranges of local files, cloud stores, web servers and every other fsspec URL."""

from ingest.storage.traffic import counters

__all__ = ["counters"]
