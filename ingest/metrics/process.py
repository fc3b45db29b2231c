"""What the operating system says of this process."""

from __future__ import annotations

import resource
import sys


def peak_rss_bytes() -> int:
    """Peak resident memory of this process, shared memory that it touched included. Source: getrusage(2)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
