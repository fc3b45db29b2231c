"""Can this machine reach the data? One check after another, with what it measured, or with why not and what to do."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ingest.errors import IngestError
from ingest.manifest.listing import list_files
from ingest.manifest.model import FileEntry
from ingest.spec import Source, Spec
from ingest.storage.cloud import CloudFiles
from ingest.storage.failures import Kind, StoreError, failure
from ingest.storage.filesystem import open_filesystem, split_url
from ingest.storage.web import http_date

HEADS = 5
UNIT_BYTES = 8 << 20
RETRY_S = 5.0  # a store that is down is not waited for here
SKEW_FAILS_S, SKEW_WARNS_S = 300.0, 30.0  # stores refuse signatures that are 5 (Azure: 15) minutes off


@dataclass
class Report:
    """What one machine found.

    Attributes:
        checks: for each check its name, whether it went well, and what it measured (units stand in the names), or the
            kind of failure, what was found and what to do.
    """

    checks: list[dict[str, Any]] = field(default_factory=list)

    def run(self, name: str, check: Callable[[], dict[str, Any]]) -> bool:
        """Do one check; a failure of ours is its result."""
        began = time.perf_counter()
        found: dict[str, Any]
        try:
            found = {"check": name, "ok": True, **check()}
        except IngestError as error:
            kind = str(error.kind) if isinstance(error, StoreError) else "error"
            found = {"check": name, "ok": False, "kind": kind, "found": error.message}
            found |= {"path": error.path, "do": error.hint}
        self.checks.append({**found, "seconds": round(time.perf_counter() - began, 4)})
        return bool(found["ok"])

    @property
    def ok(self) -> bool:
        return all(check["ok"] for check in self.checks)


def examine(spec: Spec) -> dict[str, Any]:
    """Resolve, list, ask for metadata, read one unit, compare clocks; the first check that fails ends those after it.

    Returns:
        `host`, `ok`, `credentials` (the kind of their source), `checks`; of several sources, those of each in turn.
    """
    found = [_examine(spec, source) for source in spec.inputs]
    checks = [check for one in found for check in one["checks"]]
    credentials = next((one["credentials"] for one in found if one["credentials"]), None)
    return {**found[0], "ok": all(one["ok"] for one in found), "credentials": credentials, "checks": checks}


def _examine(spec: Spec, source: Source) -> dict[str, Any]:
    storage = source.storage
    source = source.model_copy(
        update={"storage": storage.model_copy(update={"retry_s": min(RETRY_S, storage.retry_s)})}
    )
    report, files = Report(), list[FileEntry]()
    url = source.paths[0]
    credentials: str | None = None

    def lists() -> dict[str, Any]:
        nonlocal credentials
        files.extend(list_files(source))
        return {"files": len(files), "bytes": sum(entry.size for entry in files)}

    def opens() -> dict[str, Any]:
        nonlocal credentials
        opened = open_filesystem(url, source.storage)
        credentials = opened.credentials if isinstance(opened, CloudFiles) else None
        return {"credentials": credentials} if credentials else {}

    steps: list[tuple[str, Callable[[], dict[str, Any]]]] = [("client", opens)]
    if address := _address(url, source):
        steps += [("resolve", lambda: _resolve(address, url)), ("clock", lambda: _clock(address, source, url))]
    steps += [
        ("list", lists),
        ("head", lambda: _heads(files[0], source)),
        ("read", lambda: _read(max(files, key=lambda entry: entry.size), source)),
    ]
    if spec.cache.path is not None:
        steps.append(("cache", lambda: _cache(spec)))
    for name, step in steps:
        if not report.run(name, step):
            break
    return {"host": socket.gethostname(), "ok": report.ok, "credentials": credentials, "checks": report.checks}


def _address(url: str, source: Source) -> str | None:
    """The URL of the store's own server, or of the proxy before it; None where there is none to speak of."""
    scheme, rest = split_url(url)
    if source.storage.proxy_url:
        return source.storage.proxy_url  # it resolves the store's name
    if scheme in ("http", "https"):
        return f"{scheme}://{rest.partition('/')[0]}"
    opened = open_filesystem(url, source.storage)
    return opened.address if isinstance(opened, CloudFiles) else None


def _resolve(address: str, url: str) -> dict[str, Any]:
    host = urlsplit(address).hostname or ""
    try:
        found = {item[4][0] for item in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise failure(Kind.UNREACHABLE, url, f"{host} is not known here: {error.strerror or error}") from error
    return {"name": host, "addresses": len(found)}


def _clock(address: str, source: Source, url: str) -> dict[str, Any]:
    """How far this machine's clock is from the store's, to a second: as HTTP's dates are."""
    date = http_date(address, source.storage)
    if date is None:
        return {"skew_s": None}
    skew_s = round(time.time() - parsedate_to_datetime(date).timestamp() - 0.5, 1)
    if abs(skew_s) > SKEW_FAILS_S:
        raise failure(Kind.CLOCK, url, f"by {skew_s:.0f} s")
    return {"skew_s": skew_s, **({"note": "set the clock (NTP)"} if abs(skew_s) > SKEW_WARNS_S else {})}


def _heads(entry: FileEntry, source: Source) -> dict[str, Any]:
    files, waits = open_filesystem(entry.url, source.storage), []
    for _ in range(HEADS):
        began = time.perf_counter()
        if files.info(entry.url) is None:
            raise failure(Kind.MISSING, entry.url, "it was there when it was listed")
        waits.append(time.perf_counter() - began)
    return {"latency_s": round(statistics.median(waits), 5)}


def _read(entry: FileEntry, source: Source) -> dict[str, Any]:
    count = min(entry.size, UNIT_BYTES)
    began = time.perf_counter()
    open_filesystem(entry.url, source.storage).read_ranges(entry.url, [(0, count)], entry.etag)
    return {"bytes": count, "bytes_per_s": round(count / max(time.perf_counter() - began, 1e-9))}


def _cache(spec: Spec) -> dict[str, Any]:
    """Whether the cache's directory can be made and written, and whether its budget fits the disk."""
    path = Path(spec.cache.path or "")
    try:
        path.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path).free
    except OSError as error:
        raise IngestError(
            f"the cache's directory cannot be made: {error.strerror}", path=str(path), hint="Check cache.path"
        ) from error
    if not os.access(path, os.W_OK):
        raise IngestError("the cache's directory cannot be written", path=str(path), hint="Check cache.path")
    budget = int(spec.cache.bytes or 0)
    return {"free_bytes": free, **({"note": "cache.bytes is more than is free"} if budget > free else {})}
