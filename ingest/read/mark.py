"""The column that marks rows which could not be read."""

from __future__ import annotations

MARK = "__ingest_bad__"  # strings: what is wrong with the row; null where nothing is
