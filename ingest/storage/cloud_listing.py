"""Listing a bucket of a cloud store: prefixes side by side where they are large, and keys that no path can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import obstore
from obstore import exceptions

from ingest.storage.base import FileInfo, quoted
from ingest.storage.bucket import ODD, Bucket
from ingest.storage.failures import Kind, failure, plain
from ingest.storage.obstore_errors import ERRORS, explained, first_line
from ingest.storage.retry import persist
from ingest.storage.traffic import TRAFFIC

_PARALLEL_PREFIXES = 16
_PAGE = 1000
_LOOK_PAGES = 2  # of a listing, before asking whether its prefixes are worth a listing each


class Listing:
    """Lists a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def below(self, prefix: str, url: str) -> list[FileInfo]:
        """Every file below a prefix, which is empty or ends in a slash.

        Raises:
            StoreError: they cannot be listed; `url` is named.
        """
        if not ODD.search(prefix):
            try:
                found = self._of_paths(prefix, url)
                # obstore drops a slash at either end of a key. S3 lists in order: one that was dropped breaks it, or
                # the object is not found when it is read.
                if not self._bucket.is_s3 or _ascending(found):
                    return found
            except exceptions.InvalidPathError as error:
                if not self._bucket.is_s3:
                    raise failure(
                        Kind.REFUSED, url, plain(first_line(error)), hint="Keep '//' and '..' out of object names"
                    ) from error
        return self._of_any_keys(prefix, url)

    def _of_paths(self, prefix: str, url: str) -> list[FileInfo]:
        """One page after the other; where the first ones show prefixes of many pages, those side by side."""
        found: list[FileInfo] = []
        for page in self._pages(prefix, url):
            found += page
            if len(found) >= _LOOK_PAGES * _PAGE:
                break
        else:
            return found
        seen = {info.url[len(self._bucket.root) + len(prefix) :].partition("/")[0] for info in found}
        if len(seen) * _PAGE // 2 > len(found):  # flat, or many small ones, which together take fewer pages
            after = found[-1].url[len(self._bucket.root) :]
            return found + [info for page in self._pages(prefix, url, after) for info in page]
        folders, files = persist(self._bucket, lambda _: self._level(prefix, url))
        with ThreadPoolExecutor(_PARALLEL_PREFIXES) as pool:
            below = pool.map(lambda folder: [i for page in self._pages(folder, url) for i in page], folders)
            found = files + [info for infos in below for info in infos]
        return sorted(found, key=_name) if self._bucket.is_s3 else found

    def _pages(self, prefix: str, url: str, after: str | None = None) -> Iterator[list[FileInfo]]:
        """Pages of all that lies below a prefix, after the key `after`; a page that fails is asked for again."""
        stream: Any = None

        def turn(_: int) -> Sequence[Any] | None:
            nonlocal stream
            first = stream is None
            try:
                if first:
                    stream = obstore.list(
                        self._bucket.client.store, prefix.rstrip("/") or None, offset=after, chunk_size=_PAGE
                    )
                page: Sequence[Any] | None = next(stream, None)
            except exceptions.InvalidPathError:
                raise
            except (FileNotFoundError, *ERRORS) as error:
                TRAFFIC.add(list_requests=1)
                stream = None
                raise explained(error, url) from error
            if page or first:  # the last page says that it is the last
                TRAFFIC.add(list_requests=1)
            return page

        while True:
            page = persist(self._bucket, turn)
            if not page:
                return
            yield [self._bucket.file(found) for found in page]
            after = page[-1]["path"]

    def _level(self, prefix: str, url: str) -> tuple[list[str], list[FileInfo]]:
        TRAFFIC.add(list_requests=1)
        try:
            found = obstore.list_with_delimiter(self._bucket.client.store, prefix.rstrip("/") or None)
        except exceptions.InvalidPathError:
            raise
        except (FileNotFoundError, *ERRORS) as error:
            raise explained(error, url) from error
        return [f"{folder}/" for folder in found["common_prefixes"]], [
            self._bucket.file(item) for item in found["objects"]
        ]

    def _of_any_keys(self, prefix: str, url: str) -> list[FileInfo]:
        bucket = self._bucket
        if not bucket.is_s3:
            raise failure(
                Kind.REFUSED, url, "its name has a part that is empty, '.' or '..'", hint="Rename the objects"
            )
        from ingest.storage.s3_listing import list_any_keys  # loads botocore

        pages = list_any_keys(bucket, bucket.name, prefix, bucket.storage, url)
        return [FileInfo(bucket.root + key, size, quoted(etag)) for key, size, etag in pages]


def _name(info: FileInfo) -> bytes:
    return info.url.encode()


def _ascending(found: Sequence[FileInfo]) -> bool:
    """Whether each key is behind the one before it, as S3 orders them."""
    return all(_name(one) < _name(two) for one, two in pairwise(found))
