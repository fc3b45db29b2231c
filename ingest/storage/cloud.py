"""Cloud stores (S3, Google Cloud Storage, Azure) through obstore."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import obstore
from obstore import exceptions as failures

from ingest.errors import SourceError
from ingest.spec import Storage
from ingest.storage.base import Blob, FileInfo, quoted
from ingest.storage.clients import S3, Client, make_client
from ingest.storage.failures import Kind, StoreError, failure, of_status, plain, xml_code
from ingest.storage.retry import persist
from ingest.storage.traffic import TRAFFIC, Limiter

_PARALLEL_RANGES = 8
_PARALLEL_PREFIXES = 16
_PAGE = 1000
_LOOK_PAGES = 2  # of a listing, before asking whether its prefixes are worth a listing each
_SHORT_TRIES = 3
_ODD = re.compile(r"(^|/)(/|\.\.?(/|$))")  # segments that obstore's paths do not have: empty, `.` and `..`
_ERRORS = (failures.BaseError, ValueError)
_used_by: list[int] = []  # the process that first made a client


class CloudFiles:
    """One bucket (or Azure container). Keys are literal."""

    remote = True

    def __init__(self, scheme: str, bucket: str, storage: Storage) -> None:
        """Make the client; no request is sent.

        Raises:
            SourceError: the options do not make a client.
        """
        self._scheme, self._bucket, self._storage = scheme, bucket, storage
        self._root = f"{scheme}://{bucket}/"
        self.limiter = Limiter(None if storage.concurrency == "auto" else storage.concurrency)
        self.retry_s = storage.retry_s
        self.answered = False
        self._lock = threading.Lock()
        self._region: str | None = None
        self._client = self._connect()

    def __repr__(self) -> str:
        return f"CloudFiles({self._root})"

    @property
    def credentials(self) -> str:
        """The kind of source that the credentials came from."""
        return self._client.credentials

    @property
    def address(self) -> str:
        """The URL of the store's server."""
        return self._client.address

    def canonical(self, url: str) -> str:
        return self._root + self._key(url)

    def info(self, url: str) -> FileInfo | None:
        key = self._key(url)
        if not key.strip("/"):
            return None
        refused = False

        def ask(_: int) -> Any:
            nonlocal refused
            try:
                return self._head(key, url, refused)
            except StoreError as error:
                refused = refused or error.kind is Kind.DENIED
                raise

        try:
            found = persist(self, ask)
        except StoreError as error:
            if error.kind is Kind.MISSING:
                return None
            raise
        return FileInfo(self._root + key, found["size"], quoted(found["e_tag"]))

    def walk(self, url: str) -> list[FileInfo]:
        prefix = self._key(url)
        prefix = prefix if prefix.endswith("/") or not prefix else prefix + "/"
        if not _ODD.search(prefix):
            try:
                found = self._walk(prefix, url)
                # obstore drops a slash at either end of a key. S3 lists in order: one that was dropped breaks it, or
                # the object is not found when it is read.
                if self._scheme not in S3 or _ascending(found):
                    return found
            except failures.InvalidPathError as error:
                if self._scheme not in S3:
                    raise failure(
                        Kind.REFUSED, url, plain(_first_line(error)), hint="Keep '//' and '..' out of object names"
                    ) from error
        return self._walk_any(prefix, url)

    def is_directory(self, url: str) -> bool:
        del url
        return False

    def read_ranges(self, url: str, ranges: list[tuple[int, int]], etag: str | None = None) -> list[Blob]:
        key = self._key(url)

        def fetch(span: tuple[int, int]) -> Blob:
            return persist(self, lambda _: self._get(key, url, span, etag))

        if len(ranges) == 1:
            return [fetch(ranges[0])]
        with ThreadPoolExecutor(min(_PARALLEL_RANGES, len(ranges) or 1)) as pool:
            return list(pool.map(fetch, ranges))

    def local_path(self, url: str) -> None:
        del url

    def write(self, url: str, data: bytes) -> None:
        key = self._key(url)
        persist(self, lambda _: self._put(key, url, data))

    def renew(self, error: StoreError) -> bool:
        """Make the client anew, with credentials as they are now and the region that the store names."""
        with self._lock:
            if error.kind is Kind.REGION:
                if self._scheme not in S3 or self._storage.region:
                    return False
                self._region = error.region or self._ask_region()
                if self._region is None:
                    return False
            self._client = self._connect()
        return True

    def _ask_region(self) -> str | None:
        from ingest.storage.web import bucket_region  # loads urllib3

        return bucket_region(self._bucket, self._storage)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _connect(self) -> Client:
        # obstore's threads do not come along into a fork: its first request there would wait for ever.
        if _used_by and _used_by[0] != os.getpid():
            raise SourceError(
                "this process was forked from one that had read from a cloud store, whose threads it lacks",
                path=self._root,
                hint="Start processes with 'spawn' or 'forkserver' (torch's DataLoader: multiprocessing_context)",
            )
        _used_by[:] = [os.getpid()]
        try:
            return make_client(self._scheme, self._bucket, self._storage, self._region)
        except _ERRORS as error:
            raise SourceError(
                f"cannot make a client of the store: {plain(_first_line(error))}", path=self._root
            ) from error

    def _place(self, key: str, url: str) -> tuple[Any, str]:
        """The client and the key inside it."""
        client = self._client
        if not _ODD.search(key) and not key.endswith("/"):
            return client.store, key
        joint = key.rfind("//") + 1
        head, tail = key[:joint], key[joint + 1 :]
        odd = not (joint or key.startswith("/")) or not tail or _ODD.search(tail) or re.search(r"(^|/)\.\.?/", head)
        if client.behind is None or odd:
            raise failure(Kind.REFUSED, url, "its name has a part that is empty, '.' or '..'", hint="Rename the object")
        return client.behind(head), tail

    def _head(self, key: str, url: str, refused: bool) -> Any:
        """The object's metadata. A HEAD has no words for a refusal: then comes a GET, of which no body is read."""
        store, inner = self._place(key, url)
        TRAFFIC.add(**{"get_requests" if refused else "head_requests": 1})
        began = time.perf_counter()
        try:
            found = obstore.get(store, inner).meta if refused else obstore.head(store, inner)
        except FileNotFoundError as error:
            raise failure(Kind.MISSING, url) from error
        except _ERRORS as error:
            raise _explained(error, url) from error
        self.limiter.went_well(time.perf_counter() - began)
        return found

    def _put(self, key: str, url: str, data: bytes) -> None:
        store, inner = self._place(key, url)
        TRAFFIC.add(put_requests=1)
        began = time.perf_counter()
        try:
            obstore.put(store, inner, data)
        except _ERRORS as error:
            raise _explained(error, url) from error
        self.limiter.went_well(time.perf_counter() - began)

    def _get(self, key: str, url: str, span: tuple[int, int], etag: str | None) -> Blob:
        store, inner = self._place(key, url)
        start, end = span
        if end <= start:
            return b""
        options: dict[str, Any] = {"range": span}
        if etag is not None:
            options["if_match"] = etag
        TRAFFIC.add(get_requests=1)
        began = time.perf_counter()
        try:
            result = obstore.get(store, inner, options=options)
            self.limiter.went_well(time.perf_counter() - began)
            found = quoted(result.meta["e_tag"])
            blob = result.bytes()
        except FileNotFoundError as error:
            raise failure(Kind.MISSING, url, _bucket_only(error)) from error
        except _ERRORS as error:
            explained = _explained(error, url)
            if explained.kind is not Kind.RANGE_IGNORED:
                raise explained from error
            found, blob = self._part_of_whole(store, inner, url, span, etag)
        TRAFFIC.add(get_bytes=len(blob))
        if etag is not None and found is not None and found != etag:
            raise failure(Kind.CHANGED, url)
        if len(blob) != end - start:
            short = failure(
                Kind.BROKEN,
                url,
                f"{len(blob)} bytes came where {end - start} were asked for, from byte {start}: it is truncated",
            )
            short.most_tries = _SHORT_TRIES
            raise short
        return blob

    def _part_of_whole(
        self, store: Any, key: str, url: str, span: tuple[int, int], etag: str | None
    ) -> tuple[str | None, Blob]:
        """(ETag, bytes of the range), from a server that answers with the whole object whatever the range."""
        start, end = span
        TRAFFIC.add(get_requests=1)
        try:
            result = obstore.get(store, key, options={} if etag is None else {"if_match": etag})
            found, parts, at = quoted(result.meta["e_tag"]), [], 0
            for chunk in result.stream():
                piece = bytes(chunk)[max(0, start - at) : max(0, end - at)]
                at += len(chunk)
                if piece:
                    parts.append(piece)
                if at >= end:
                    break
        except FileNotFoundError as error:
            raise failure(Kind.MISSING, url) from error
        except _ERRORS as error:
            raise _explained(error, url) from error
        return found, b"".join(parts)

    # -- listing -------------------------------------------------------------------------------------------------------

    def _walk(self, prefix: str, url: str) -> list[FileInfo]:
        """One page after the other; where the first ones show prefixes of many pages, those side by side."""
        found: list[FileInfo] = []
        for page in self._pages(prefix, url):
            found += page
            if len(found) >= _LOOK_PAGES * _PAGE:
                break
        else:
            return found
        seen = {info.url[len(self._root) + len(prefix) :].partition("/")[0] for info in found}
        if len(seen) * _PAGE // 2 > len(found):  # flat, or many small ones, which together take fewer pages
            after = found[-1].url[len(self._root) :]
            return found + [info for page in self._pages(prefix, url, after) for info in page]
        folders, files = persist(self, lambda _: self._level(prefix, url))
        with ThreadPoolExecutor(_PARALLEL_PREFIXES) as pool:
            below = pool.map(lambda folder: [i for page in self._pages(folder, url) for i in page], folders)
            found = files + [info for infos in below for info in infos]
        return sorted(found, key=_name) if self._scheme in S3 else found

    def _pages(self, prefix: str, url: str, after: str | None = None) -> Iterator[list[FileInfo]]:
        """Pages of all that lies below a prefix, after the key `after`; a page that fails is asked for again."""
        stream: Any = None

        def turn(_: int) -> Sequence[Any] | None:
            nonlocal stream
            first = stream is None
            try:
                if first:
                    stream = obstore.list(
                        self._client.store, prefix.rstrip("/") or None, offset=after, chunk_size=_PAGE
                    )
                page: Sequence[Any] | None = next(stream, None)
            except failures.InvalidPathError:
                raise
            except (FileNotFoundError, *_ERRORS) as error:
                TRAFFIC.add(list_requests=1)
                stream = None
                raise _explained(error, url) from error
            if page or first:  # the last page says that it is the last
                TRAFFIC.add(list_requests=1)
            return page

        while True:
            page = persist(self, turn)
            if not page:
                return
            yield [self._info(found) for found in page]
            after = page[-1]["path"]

    def _level(self, prefix: str, url: str) -> tuple[list[str], list[FileInfo]]:
        TRAFFIC.add(list_requests=1)
        try:
            found = obstore.list_with_delimiter(self._client.store, prefix.rstrip("/") or None)
        except failures.InvalidPathError:
            raise
        except (FileNotFoundError, *_ERRORS) as error:
            raise _explained(error, url) from error
        return [f"{folder}/" for folder in found["common_prefixes"]], [self._info(item) for item in found["objects"]]

    def _info(self, found: Any) -> FileInfo:
        return FileInfo(self._root + found["path"], found["size"], quoted(found["e_tag"]))

    def _walk_any(self, prefix: str, url: str) -> list[FileInfo]:
        if self._scheme not in S3:
            raise failure(
                Kind.REFUSED, url, "its name has a part that is empty, '.' or '..'", hint="Rename the objects"
            )
        from ingest.storage.s3_listing import list_any_keys  # loads botocore

        pages = list_any_keys(self, self._bucket, prefix, self._storage, url)
        return [FileInfo(self._root + key, size, quoted(etag)) for key, size, etag in pages]

    def _key(self, url: str) -> str:
        return url.partition("://")[2].partition("/")[2]


def _name(info: FileInfo) -> bytes:
    return info.url.encode()


def _ascending(found: Sequence[FileInfo]) -> bool:
    """Whether each key is behind the one before it, as S3 orders them."""
    return all(_name(one) < _name(two) for one, two in pairwise(found))


def _bucket_only(error: Exception) -> str:
    return "NoSuchBucket" if "NoSuchBucket" in str(error) else ""


_TEXTS: tuple[tuple[str, Kind], ...] = (
    # Where clouds' machines ask for credentials, when nothing else gave any.
    ("169.254.169.254", Kind.NO_CREDENTIALS),
    ("metadata.google.internal", Kind.NO_CREDENTIALS),
    ("non-partial response", Kind.RANGE_IGNORED),
    ("redirect without LOCATION", Kind.REGION),
    ("error sending request", Kind.UNREACHABLE),
    ("error trying to connect", Kind.UNREACHABLE),
    ("timed out", Kind.UNREACHABLE),
    ("body error", Kind.BROKEN),
    ("response body", Kind.BROKEN),
    ("error decoding response", Kind.BROKEN),
    ("invalid list response", Kind.BROKEN),  # a listing cut short is XML cut short
    ("Unable to parse response", Kind.BROKEN),  # botocore's words for the same
)


def _explained(error: Exception, url: str) -> StoreError:
    """Our error for one of obstore's, which come as texts."""
    text = _first_line(error)
    status = re.search(r"non-2xx status code: (\d{3}) ?([\w ]*)", text)
    known = next((kind for part, kind in _TEXTS if part in text), None)
    if status and known is not Kind.NO_CREDENTIALS:
        return _answered(int(status[1]), status[2].strip(), text, url)
    if isinstance(error, FileNotFoundError):
        return failure(Kind.MISSING, url)
    if isinstance(error, failures.PreconditionError):
        return failure(Kind.CHANGED, url)
    silent = known in {Kind.NO_CREDENTIALS, Kind.RANGE_IGNORED, Kind.REGION}
    return failure(known or Kind.REFUSED, url, "" if silent else plain(text))


def _answered(status: int, reason: str, text: str, url: str) -> StoreError:
    """The error of an answer that is none of success."""
    code, said = xml_code(text)
    found = failure(
        of_status(status, code, text), url, f"{status} {code or reason}".strip() + (f": {said}" if said else "")
    )
    if region := re.search(r"<Region>([\w-]+)</Region>", text):
        found.region = region[1]
    if found.kind is Kind.REFUSED and status == 400 and " HEAD " in text:
        found.most_tries, found.kind = 2, Kind.DENIED  # S3's HEAD gives no reason: the GET that follows does
    return found


def _first_line(error: Exception) -> str:
    """Obstore's messages end in a dump of their Rust structure; its first paragraph says what happened."""
    return str(error).partition("\n\nDebug source")[0]
