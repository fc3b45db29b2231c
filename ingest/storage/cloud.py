"""Cloud stores (S3, Google Cloud Storage, Azure) through obstore: retries and credential refresh are its own."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import obstore
from obstore import exceptions as failures
from obstore.store import AzureStore, GCSStore, S3Store

from ingest.errors import SourceError
from ingest.spec import Storage
from ingest.storage.base import Blob, FileInfo, check_lengths

_S3 = ("s3", "s3a")
_GCS = ("gs", "gcs")
_AZURE = ("az", "abfs", "abfss")
CLOUD_SCHEMES = frozenset((*_S3, *_GCS, *_AZURE))

_PARALLEL_RANGES = 8
# A server that is down is named within about half a minute, and a busy one (503) still has eight chances.
_RETRY = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}
_TIMEOUTS = {"connect_timeout": timedelta(seconds=5), "read_timeout": timedelta(seconds=30), "timeout": "600s"}


class CloudFiles:
    """One bucket (or Azure container). Keys are literal."""

    remote = True

    def __init__(self, scheme: str, bucket: str, storage: Storage) -> None:
        """Make the client; no request is sent.

        Raises:
            SourceError: the options do not make a client.
        """
        self._root = f"{scheme}://{bucket}/"
        try:
            self._store = _client(scheme, bucket, storage)
        except (failures.BaseError, ValueError) as error:
            raise SourceError(f"cannot reach the store: {_first_line(error)}", path=self._root) from error

    def canonical(self, url: str) -> str:
        return self._root + self._key(url)

    def info(self, url: str) -> FileInfo | None:
        key = self._key(url)
        if not key.strip("/"):
            return None
        try:
            found = obstore.head(self._store, key)
        except FileNotFoundError:
            return None
        except (failures.BaseError, ValueError) as error:
            raise _explained(error, url) from error
        return FileInfo(self._root + found["path"], found["size"], found["e_tag"])

    def walk(self, url: str) -> list[FileInfo]:
        prefix = self._key(url).strip("/")
        try:
            return [
                FileInfo(self._root + found["path"], found["size"], found["e_tag"])
                for page in obstore.list(self._store, prefix or None, chunk_size=1000)
                for found in page
            ]
        except FileNotFoundError as error:
            raise SourceError("no such bucket", path=url) from error
        except (failures.BaseError, ValueError) as error:
            raise _explained(error, url) from error

    def is_directory(self, url: str) -> bool:
        del url
        return False

    def read_ranges(self, url: str, ranges: list[tuple[int, int]], etag: str | None = None) -> list[Blob]:
        key = self._key(url)

        def fetch(span: tuple[int, int]) -> Blob:
            options: dict[str, Any] = {"range": span}
            if etag is not None:
                options["if_match"] = etag
            return obstore.get(self._store, key, options=options).bytes()

        try:
            if len(ranges) == 1:
                blobs = [fetch(ranges[0])]
            else:
                with ThreadPoolExecutor(min(_PARALLEL_RANGES, len(ranges) or 1)) as pool:
                    blobs = list(pool.map(fetch, ranges))
        except FileNotFoundError as error:
            raise SourceError("no such file", path=url) from error
        except (failures.BaseError, ValueError) as error:
            raise _explained(error, url) from error
        check_lengths(url, ranges, blobs)
        return blobs

    def local_path(self, url: str) -> None:
        del url

    def _key(self, url: str) -> str:
        return url.partition("://")[2].partition("/")[2]


def _client(scheme: str, bucket: str, storage: Storage) -> Any:
    if scheme in _S3:
        return _s3(bucket, storage)
    options = _http(storage.endpoint_url)
    if scheme in _GCS:
        config: dict[str, Any] = {"skip_signature": True} if storage.anonymous else {}
        if storage.endpoint_url:
            config["base_url"] = storage.endpoint_url
        return GCSStore(bucket, config=config, client_options=options, retry_config=_RETRY)
    config = {"skip_signature": True} if storage.anonymous else {}
    container, _, host = bucket.partition("@")
    if host:  # abfss://container@account.dfs.core.windows.net/path
        config["account_name"] = host.partition(".")[0]
    if storage.endpoint_url:
        config["endpoint"] = storage.endpoint_url
    return AzureStore(container, config=config, client_options=options, retry_config=_RETRY)


def _s3(bucket: str, storage: Storage) -> Any:
    # The cloud's own environment variables are part of its credential chain, read where the data is read.
    endpoint = storage.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = storage.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    config: dict[str, Any] = {}
    if endpoint:
        # Stores behind an address of their own seldom answer on bucket.address.
        config |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
        region = region or "us-east-1"
    if region:
        config["region"] = region
    if storage.anonymous:
        config["skip_signature"] = True
    return S3Store(bucket, config=config, client_options=_http(endpoint), retry_config=_RETRY)


def _http(endpoint: str | None) -> dict[str, Any]:
    return {**_TIMEOUTS, "allow_http": bool(endpoint and endpoint.lower().startswith("http://"))}


_CAUSES: tuple[tuple[type[Exception], str, str | None], ...] = (
    (failures.PermissionDeniedError, "permission denied", "Check the credentials and the bucket's policy"),
    (failures.UnauthenticatedError, "permission denied: the store does not accept the credentials", None),
    (failures.PreconditionError, "the file has changed since it was listed", "Start the run again"),
)
_TEXTS: tuple[tuple[str, str, str | None], ...] = (
    (
        "169.254.169.254",  # where every cloud's machines ask for credentials, when nothing else gave any
        "no credentials were found on this machine",
        "Set the cloud's environment variables, or source.storage.anonymous for a public bucket",
    ),
    ("NoSuchBucket", "no such bucket", None),
    ("ContainerNotFound", "no such container", None),
    ("error sending request", "the store cannot be reached", "Check source.storage.endpoint_url"),
    ("", "the store did not answer as it should", None),
)


def _explained(error: Exception, url: str) -> SourceError:
    for kind, message, hint in _CAUSES:
        if isinstance(error, kind):
            return SourceError(message, path=url, hint=hint)
    text = _first_line(error)
    message, hint = next((message, hint) for part, message, hint in _TEXTS if part in text)
    return SourceError(f"{message}: {text}", path=url, hint=hint)


def _first_line(error: Exception) -> str:
    """Obstore's messages end in a dump of their Rust structure; its first paragraph says what happened."""
    return str(error).partition("\n\nDebug source")[0].replace("\n", " ").strip()[:600]
