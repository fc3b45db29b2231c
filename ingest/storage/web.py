"""Files behind http(s) URLs, through urllib3: ranges, the pinned version checked, redirects followed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import fsspec
import urllib3
from urllib3.exceptions import HTTPError, IncompleteRead, ProtocolError, SSLError

from ingest.errors import SourceError
from ingest.spec import Storage
from ingest.storage.base import Blob, FileInfo
from ingest.storage.clients import read_timeout_s
from ingest.storage.failures import Kind, StoreError, failure, of_status, plain
from ingest.storage.ranges import cut_short, fetch_ranges
from ingest.storage.retry import persist
from ingest.storage.traffic import TRAFFIC, Limiter

_CHUNK_BYTES = 1 << 20


class WebFiles:
    """Files of web servers. A URL is sent as it is written, percent signs included; directories are index pages."""

    remote = True

    def __init__(self, scheme: str, storage: Storage) -> None:
        """Make the client; no request is sent.

        Raises:
            SourceError: the certificates cannot be read, or the options are a cloud's.
        """
        cloud = [name for name in ("region", "profile", "endpoint_url", "path_style") if getattr(storage, name)]
        if cloud or storage.requester_pays:
            raise SourceError(
                f"source.storage.{(cloud or ['requester_pays'])[0]} is for cloud stores, and {scheme}:// is none",
                hint="Leave it out",
            )
        self._storage = storage
        self._scheme = scheme
        self._pools = {proxied: http_pool(storage, proxied) for proxied in (None, *_proxies(storage))}
        self.limiter = Limiter(None if storage.concurrency == "auto" else storage.concurrency)
        self.retry_s = storage.retry_s
        self.answered = False
        self._index: Any = None
        self._lock = threading.Lock()

    def canonical(self, url: str) -> str:
        return url

    def info(self, url: str) -> FileInfo | None:
        def ask(_: int) -> Any:
            answer = self._ask("HEAD", url, {})
            if answer.status == 405:  # servers of signed URLs take a GET alone
                answer = self._ask("GET", url, {"Range": "bytes=0-0"})
            return self._checked(answer, url)

        try:
            answer = persist(self, ask)
        except StoreError as error:
            if error.kind is Kind.MISSING:
                return None
            raise
        if urlsplit(url).path.endswith("/") or _is_index(answer):
            return None
        size = answer.headers.get("Content-Range", "").rpartition("/")[2] or answer.headers.get("Content-Length", "")
        if not size.isdigit():
            raise SourceError("the server does not say how large the file is", path=url)
        return FileInfo(url, int(size), _version(answer))

    def walk(self, url: str) -> list[FileInfo]:
        """What the index pages below `url` link to; each file costs a HEAD."""
        with self._lock:
            self._index = self._index or fsspec.filesystem(self._scheme, headers=dict(self._storage.headers))
        try:
            self._index.invalidate_cache()  # a new run sees new files
            TRAFFIC.add(list_requests=1)
            names = self._index.find(url if url.endswith("/") else url + "/")
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise failure(Kind.UNREACHABLE, url, plain(str(error))) from error
        with ThreadPoolExecutor(16) as pool:
            return [info for info in pool.map(self.info, names) if info is not None]

    def is_directory(self, url: str) -> bool:
        del url
        return False

    def read_ranges(self, url: str, ranges: list[tuple[int, int]], etag: str | None = None) -> list[Blob]:
        def fetch(span: tuple[int, int]) -> Blob:
            return persist(self, lambda _: self._get(url, span, etag))

        return fetch_ranges(fetch, ranges)

    def local_path(self, url: str) -> None:
        del url

    def write(self, url: str, data: bytes) -> None:
        raise SourceError(f"nothing can be written behind http(s) ({len(data)} bytes)", path=url)

    def renew(self, error: StoreError) -> bool:
        del error
        return False

    # -- requests ------------------------------------------------------------------------------------------------------

    def _ask(self, method: str, url: str, headers: Mapping[str, str], **options: Any) -> Any:
        TRAFFIC.add(**{"head_requests" if method == "HEAD" else "get_requests": 1})
        began = time.perf_counter()
        sent = {**self._storage.headers, "Accept-Encoding": "identity", **headers}
        try:
            # Retries are ours; redirects are followed.
            retries = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=5)
            pool = self._pools[_proxy_of(url, self._storage)]
            answer = pool.request(method, url, headers=sent, retries=retries, **options)
        except SSLError as error:
            raise failure(Kind.UNREACHABLE, url, plain(str(error)), hint="Check source.storage.ca_file") from error
        except (HTTPError, OSError) as error:
            raise failure(Kind.UNREACHABLE, url, plain(str(error))) from error
        self.limiter.went_well(time.perf_counter() - began)
        return answer

    def _checked(self, answer: Any, url: str) -> Any:
        if answer.status >= 300:
            answer.drain_conn()
            kind = of_status(answer.status)
            raise failure(kind, url, f"{answer.status} {answer.reason or ''}".strip())
        return answer

    def _get(self, url: str, span: tuple[int, int], etag: str | None) -> Blob:
        start, end = span
        if end <= start:
            return b""
        headers = {"Range": f"bytes={start}-{end - 1}"}
        if etag is not None and etag.startswith('"'):
            headers["If-Match"] = etag
        answer = self._checked(self._ask("GET", url, headers, preload_content=False), url)
        try:
            found = _version(answer)
            if etag is not None and found is not None and found != etag:
                raise failure(Kind.CHANGED, url)
            blob = _read(answer, start if answer.status == 200 else 0, end - start)
        except (IncompleteRead, ProtocolError, HTTPError, OSError) as error:
            raise failure(Kind.BROKEN, url, plain(str(error))) from error
        finally:
            answer.release_conn() if answer.length_remaining == 0 else answer.close()
        TRAFFIC.add(get_bytes=len(blob))
        if len(blob) != end - start:
            raise cut_short(url, blob, span)
        return blob


def _read(answer: Any, skip: int, count: int) -> bytes:
    """`count` bytes of the body after the first `skip`, which come where the server does not know ranges."""
    while skip:
        dropped = len(answer.read(min(skip, _CHUNK_BYTES)))
        if not dropped:
            return b""
        skip -= dropped
    return bytes(answer.read(count))


def _version(answer: Any) -> str | None:
    headers = answer.headers
    found = headers.get("ETag") or headers.get("Last-Modified")
    return None if found is None else str(found)


def _is_index(answer: Any) -> bool:
    """Whether the server was redirected to a directory's page."""
    return urlsplit(answer.geturl() or "").path.endswith("/")


def _proxies(storage: Storage) -> list[str]:
    found = getproxies()
    return [storage.proxy_url] if storage.proxy_url else [found[name] for name in ("http", "https") if found.get(name)]


def _proxy_of(url: str, storage: Storage) -> str | None:
    """The proxy that a URL goes through: the spec's, or the environment's."""
    if storage.proxy_url:
        return storage.proxy_url
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def http_pool(storage: Storage, proxy: str | None) -> urllib3.PoolManager:
    """A client with the spec's options.

    Raises:
        SourceError: the certificate file cannot be read.
    """
    options: dict[str, Any] = {
        "timeout": urllib3.Timeout(connect=5, read=read_timeout_s(storage)),
        "maxsize": 64,
        "ca_certs": storage.ca_file,
    }
    if storage.ca_file and not Path(storage.ca_file).is_file():
        raise SourceError("the certificates cannot be read", path=storage.ca_file, hint="Check source.storage.ca_file")
    return urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)


def bucket_region(bucket: str, storage: Storage) -> str | None:
    """The region that S3 names when an unsigned HEAD asks for the bucket, whatever its answer; None without one."""
    endpoint = storage.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    url = f"{(endpoint or 'https://s3.amazonaws.com').rstrip('/')}/{bucket}"
    try:
        answer = http_pool(storage, _proxy_of(url, storage)).request("HEAD", url, redirect=False, retries=False)
    except (HTTPError, OSError):
        return None  # the error that made us ask says more
    region = answer.headers.get("x-amz-bucket-region")
    return None if region is None else str(region)


def http_date(url: str, storage: Storage) -> str | None:
    """The Date of a server's answer to an unsigned HEAD, whatever the answer; None where it gives none.

    Raises:
        StoreError: there is no answer.
    """
    try:
        answer = http_pool(storage, _proxy_of(url, storage)).request("HEAD", url, redirect=False, retries=False)
    except (HTTPError, OSError) as error:
        raise failure(Kind.UNREACHABLE, url, plain(str(error))) from error
    date = answer.headers.get("Date")
    return None if date is None else str(date)
