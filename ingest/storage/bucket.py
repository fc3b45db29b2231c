"""A bucket of a cloud store: its client, which is made anew when its credentials or its region turn out wrong."""

from __future__ import annotations

import os
import re
import threading
from typing import Any

from ingest.errors import SourceError
from ingest.spec import Storage
from ingest.storage.base import FileInfo, quoted
from ingest.storage.clients import S3, Client, make_client
from ingest.storage.failures import Kind, StoreError, failure, plain
from ingest.storage.obstore_errors import ERRORS, first_line
from ingest.storage.traffic import Limiter

ODD = re.compile(r"(^|/)(/|\.\.?(/|$))")  # segments that obstore's paths do not have: empty, `.` and `..`
_used_by: list[int] = []  # the process that first made a client


class Bucket:
    """What requests and listings have in common, and `retry.persist` asks of a store.

    Args:
        scheme: of its URLs.
        name: of the bucket (or Azure container).
        storage: the spec's options.

    Attributes:
        root: the URL of the bucket, ending in a slash.
        client: as it is now.

    Raises:
        SourceError: the options do not make a client. No request is sent.
    """

    def __init__(self, scheme: str, name: str, storage: Storage) -> None:
        self.scheme, self.name, self.storage = scheme, name, storage
        self.root = f"{scheme}://{name}/"
        self.limiter = Limiter(None if storage.concurrency == "auto" else storage.concurrency)
        self.retry_s = storage.retry_s
        self.answered = False
        self._lock = threading.Lock()
        self._region: str | None = None
        self.client = self._connect()

    @property
    def is_s3(self) -> bool:
        return self.scheme in S3

    def key(self, url: str) -> str:
        """A URL's key, literal."""
        return url.partition("://")[2].partition("/")[2]

    def file(self, found: Any) -> FileInfo:
        """A file as obstore lists it."""
        return FileInfo(self.root + found["path"], found["size"], quoted(found["e_tag"]))

    def place(self, key: str, url: str) -> tuple[Any, str]:
        """The client of a key, and the key inside it.

        Raises:
            StoreError: no client of the store has such a name.
        """
        client = self.client
        if not ODD.search(key) and not key.endswith("/"):
            return client.store, key
        joint = key.rfind("//") + 1
        head, tail = key[:joint], key[joint + 1 :]
        odd = not (joint or key.startswith("/")) or not tail or ODD.search(tail) or re.search(r"(^|/)\.\.?/", head)
        if client.behind is None or odd:
            raise failure(Kind.REFUSED, url, "its name has a part that is empty, '.' or '..'", hint="Rename the object")
        return client.behind(head), tail

    def renew(self, error: StoreError) -> bool:
        """Make the client anew, with credentials as they are now and the region that the store names."""
        with self._lock:
            if error.kind is Kind.REGION:
                if not self.is_s3 or self.storage.region:
                    return False
                self._region = error.region or self._ask_region()
                if self._region is None:
                    return False
            self.client = self._connect()
        return True

    def _ask_region(self) -> str | None:
        from ingest.storage.web import bucket_region  # loads urllib3

        return bucket_region(self.name, self.storage)

    def _connect(self) -> Client:
        # obstore's threads do not come along into a fork: its first request there would wait for ever.
        if _used_by and _used_by[0] != os.getpid():
            raise SourceError(
                "this process was forked from one that had read from a cloud store, whose threads it lacks",
                path=self.root,
                hint="Start processes with 'spawn' or 'forkserver' (torch's DataLoader: multiprocessing_context)",
            )
        _used_by[:] = [os.getpid()]
        try:
            return make_client(self.scheme, self.name, self.storage, self._region)
        except ERRORS as error:
            raise SourceError(
                f"cannot make a client of the store: {plain(first_line(error))}", path=self.root
            ) from error
