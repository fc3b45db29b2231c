"""Listing S3 keys that obstore's paths cannot hold (`a//b`, `/a`), through botocore: only who has such pays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import botocore.config
import botocore.exceptions
import botocore.session
from botocore import UNSIGNED

from ingest.spec import Storage
from ingest.storage.failures import Kind, StoreError, failure, of_status, plain
from ingest.storage.retry import Asked, persist
from ingest.storage.traffic import TRAFFIC


def list_any_keys(
    store: Asked, bucket: str, prefix: str, storage: Storage, url: str
) -> Iterator[tuple[str, int, str | None]]:
    """(key, bytes, ETag) of all objects below `prefix`, keys as they are.

    Raises:
        StoreError: they cannot be listed.
    """
    client = _client(storage)
    more: dict[str, Any] = {"RequestPayer": "requester"} if storage.requester_pays else {}

    def page(_: int) -> Any:
        TRAFFIC.add(list_requests=1)
        try:
            return client.list_objects_v2(Bucket=bucket, Prefix=prefix, **more)
        except botocore.exceptions.ClientError as error:
            answer = error.response
            code = str(answer.get("Error", {}).get("Code", ""))
            status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            raise failure(of_status(status, code), url, f"{status} {code}") from error
        except botocore.exceptions.BotoCoreError as error:
            raise _explained(error, url) from error

    while True:
        found = persist(store, page)
        for item in found.get("Contents", ()):
            yield item["Key"], item["Size"], item.get("ETag")
        if not found.get("IsTruncated"):
            return
        more["ContinuationToken"] = found["NextContinuationToken"]


def _client(storage: Storage) -> Any:
    config = botocore.config.Config(
        s3={"addressing_style": "virtual" if storage.path_style is False else "path"},
        retries={"total_max_attempts": 1},
        proxies={"http": storage.proxy_url, "https": storage.proxy_url} if storage.proxy_url else None,
        signature_version=UNSIGNED if storage.anonymous else None,
    )
    session = botocore.session.Session(profile=storage.profile)
    region = storage.region or session.get_config_variable("region") or "us-east-1"
    return session.create_client(
        "s3", region_name=region, endpoint_url=storage.endpoint_url, config=config, verify=storage.ca_file
    )


def _explained(error: Exception, url: str) -> StoreError:
    if isinstance(error, botocore.exceptions.NoCredentialsError):
        return failure(Kind.NO_CREDENTIALS, url)
    return failure(Kind.UNREACHABLE, url, plain(str(error)))
