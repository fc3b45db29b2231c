"""Cloud stores (S3, Google Cloud Storage, Azure) through obstore."""

from __future__ import annotations

import time
from typing import Any

import obstore

from ingest.spec import Storage
from ingest.storage.base import Blob, FileInfo, quoted
from ingest.storage.bucket import Bucket
from ingest.storage.cloud_listing import Listing
from ingest.storage.failures import Kind, StoreError, failure
from ingest.storage.obstore_errors import ERRORS, explained
from ingest.storage.ranges import cut_short, fetch_ranges
from ingest.storage.retry import persist
from ingest.storage.traffic import TRAFFIC


class CloudFiles:
    """One bucket (or Azure container). Keys are literal.

    Raises:
        SourceError: the options do not make a client. No request is sent.
    """

    remote = True

    def __init__(self, scheme: str, bucket: str, storage: Storage) -> None:
        self._bucket = Bucket(scheme, bucket, storage)
        self._listing = Listing(self._bucket)

    def __repr__(self) -> str:
        return f"CloudFiles({self._bucket.root})"

    @property
    def credentials(self) -> str:
        """The kind of source that the credentials came from."""
        return self._bucket.client.credentials

    @property
    def address(self) -> str:
        """The URL of the store's server."""
        return self._bucket.client.address

    def canonical(self, url: str) -> str:
        return self._bucket.root + self._bucket.key(url)

    def info(self, url: str) -> FileInfo | None:
        key = self._bucket.key(url)
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
            found = persist(self._bucket, ask)
        except StoreError as error:
            if error.kind is Kind.MISSING:
                return None
            raise
        return FileInfo(self._bucket.root + key, found["size"], quoted(found["e_tag"]))

    def walk(self, url: str) -> list[FileInfo]:
        prefix = self._bucket.key(url)
        return self._listing.below(prefix if prefix.endswith("/") or not prefix else prefix + "/", url)

    def is_directory(self, url: str) -> bool:
        del url
        return False

    def read_ranges(self, url: str, ranges: list[tuple[int, int]], etag: str | None = None) -> list[Blob]:
        key = self._bucket.key(url)

        def fetch(span: tuple[int, int]) -> Blob:
            return persist(self._bucket, lambda _: self._get(key, url, span, etag))

        return fetch_ranges(fetch, ranges)

    def local_path(self, url: str) -> None:
        del url

    def write(self, url: str, data: bytes) -> None:
        key = self._bucket.key(url)
        persist(self._bucket, lambda _: self._put(key, url, data))

    # -- requests ------------------------------------------------------------------------------------------------------

    def _head(self, key: str, url: str, refused: bool) -> Any:
        """The object's metadata. A HEAD has no words for a refusal: then comes a GET, of which no body is read."""
        store, inner = self._bucket.place(key, url)
        TRAFFIC.add(**{"get_requests" if refused else "head_requests": 1})
        began = time.perf_counter()
        try:
            found = obstore.get(store, inner).meta if refused else obstore.head(store, inner)
        except FileNotFoundError as error:
            raise failure(Kind.MISSING, url) from error
        except ERRORS as error:
            raise explained(error, url) from error
        self._bucket.limiter.went_well(time.perf_counter() - began)
        return found

    def _put(self, key: str, url: str, data: bytes) -> None:
        store, inner = self._bucket.place(key, url)
        TRAFFIC.add(put_requests=1)
        began = time.perf_counter()
        try:
            obstore.put(store, inner, data)
        except ERRORS as error:
            raise explained(error, url) from error
        self._bucket.limiter.went_well(time.perf_counter() - began)

    def _get(self, key: str, url: str, span: tuple[int, int], etag: str | None) -> Blob:
        store, inner = self._bucket.place(key, url)
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
            self._bucket.limiter.went_well(time.perf_counter() - began)
            found = quoted(result.meta["e_tag"])
            blob = result.bytes()
        except FileNotFoundError as error:
            raise failure(Kind.MISSING, url, _bucket_only(error)) from error
        except ERRORS as error:
            refusal = explained(error, url)
            if refusal.kind is not Kind.RANGE_IGNORED:
                raise refusal from error
            found, blob = self._part_of_whole(store, inner, url, span, etag)
        TRAFFIC.add(get_bytes=len(blob))
        if etag is not None and found is not None and found != etag:
            raise failure(Kind.CHANGED, url)
        if len(blob) != end - start:
            raise cut_short(url, blob, span)
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
        except ERRORS as error:
            raise explained(error, url) from error
        return found, b"".join(parts)


def _bucket_only(error: Exception) -> str:
    return "NoSuchBucket" if "NoSuchBucket" in str(error) else ""
