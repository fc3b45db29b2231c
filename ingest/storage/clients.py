"""Clients of cloud stores, made where the data is read: options from the spec, credentials from each cloud's chain."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from obstore.store import AzureStore, GCSStore, S3Store

from ingest.errors import SourceError
from ingest.spec import Storage
from ingest.storage.failures import plain

S3 = ("s3", "s3a")
GCS = ("gs", "gcs")
AZURE = ("az", "azure", "abfs", "abfss")
CLOUD_SCHEMES = frozenset((*S3, *GCS, *AZURE))

_IN_NO_URL = re.compile(r"[^\x21-\x7e]|[<>\"{}|\\^`]")
_NO_RETRY = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}  # storage.retry asks again, and counts
_CREDENTIALS_LIVE = timedelta(minutes=15)  # botocore renews its own when 15 minutes are left, and is asked this often


@dataclass(frozen=True)
class Client:
    """A store's client, the kind of source that its credentials came from, and the URL of its server."""

    store: Any
    credentials: str
    address: str
    # (part of a key that obstore's paths cannot hold, ending in an empty segment) -> a client that begins behind it
    behind: Callable[[str], Any] | None = None


def make_client(scheme: str, bucket: str, storage: Storage, region: str | None = None) -> Client:
    """The client of a bucket; no request is sent, unless a profile's credentials need one.

    Args:
        scheme: one of CLOUD_SCHEMES.
        bucket: or, for Azure, the container, maybe with `@account.dfs.core.windows.net`.
        storage: the spec's options.
        region: found out for this bucket; the spec's own comes first.

    Raises:
        SourceError, ValueError, obstore's errors: the options make no client, or a profile gives no credentials.
    """
    if scheme in S3:
        return _s3(bucket, storage, region)
    if storage.profile or storage.path_style is not None:
        raise SourceError(f"source.storage.profile and path_style are for S3, and '{scheme}' is not", path=bucket)
    if storage.requester_pays:
        raise SourceError(
            "source.storage.requester_pays is for S3",
            path=f"{scheme}://{bucket}",
            hint="On Google Cloud Storage, name the project: source.storage.headers: {x-goog-user-project: PROJECT}",
        )
    return _gcs(bucket, storage) if scheme in GCS else _azure(bucket, storage)


def _checked(endpoint: str | None, variable: str) -> str | None:
    """An endpoint, of which obstore makes a panic, and no error, where it is no URL.

    Raises:
        SourceError: it is none.
    """
    if not endpoint:
        return None
    try:
        parts = urlsplit(endpoint)
        fits = parts.scheme.lower() in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a port, say
        fits = False
    if not fits or _IN_NO_URL.search(endpoint):
        raise SourceError(
            f"the endpoint is no URL: {plain(endpoint)}",
            hint=f"Write http://HOST:PORT or https://HOST:PORT in source.storage.endpoint_url, or {variable}",
        )
    return endpoint


# -- S3 ----------------------------------------------------------------------------------------------------------------


def _s3(bucket: str, storage: Storage, found_region: str | None) -> Client:
    # The cloud's own environment variables are part of its credential chain, read where the data is read.
    named = storage.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    endpoint = _checked(named, "AWS_ENDPOINT_URL")
    region = storage.region or found_region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    source, provider, profile_region = _s3_credentials(storage)
    region = region or profile_region
    if endpoint:
        region = region or "us-east-1"
    config: dict[str, Any] = {"region": region} if region else {}
    if storage.anonymous:
        config["skip_signature"] = True
    if storage.requester_pays:
        config["request_payer"] = True
    # A name with a dot fits no certificate for names of one part, and stores behind an address of their own seldom
    # answer on bucket.address: the bucket stands in the path unless the spec says otherwise.
    virtual = storage.path_style is False and "." not in bucket
    options = client_options(storage, endpoint, ca_file=os.environ.get("AWS_CA_BUNDLE"))

    def build(address: str | None, *, with_bucket: bool) -> Any:
        where = {"endpoint": address} if address else {}
        return S3Store(
            bucket,
            config={**config, **where, "virtual_hosted_style_request": with_bucket},
            client_options=options,
            retry_config=_NO_RETRY,
            credential_provider=provider,
        )

    base = endpoint or f"https://s3.{region or 'us-east-1'}.amazonaws.com"
    parts = urlsplit(base)
    address = f"{parts.netloc}" if not virtual else f"{bucket}.{parts.netloc}"
    path = parts.path.rstrip("/") + ("" if virtual else f"/{bucket}")

    def behind(head: str) -> Any:
        # A key with empty segments: the address carries the key up to the last of them.
        return build(
            urlunsplit((parts.scheme, address, f"{path}/{quote(head, safe='/-_.~')}", "", "")), with_bucket=True
        )

    main = urlunsplit((parts.scheme, address, path, "", "")) if virtual else endpoint
    return Client(build(main, with_bucket=virtual), source, f"{parts.scheme}://{address}", behind)


def _s3_credentials(storage: Storage) -> tuple[str, Callable[[], dict[str, Any]] | None, str | None]:
    """(kind of source, what gives credentials where obstore's own chain does not, region of the profile).

    obstore knows the environment, web identities, containers and instances; profiles are botocore's.
    """
    if storage.anonymous:
        return "none (anonymous)", None, None
    if not storage.profile and not os.environ.get("AWS_PROFILE"):
        if os.environ.get("AWS_ACCESS_KEY_ID"):
            return "environment", None, None
        if os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
            return "web identity", None, None
        if not any(Path(name).expanduser().is_file() for name in _profile_files()):
            container = any(os.environ.get(f"AWS_CONTAINER_CREDENTIALS_{x}_URI") for x in ("RELATIVE", "FULL"))
            return ("container" if container else "instance metadata"), None, None
    import botocore.exceptions
    import botocore.session

    try:
        session = botocore.session.Session(profile=storage.profile)
        credentials = session.get_credentials()
        region = session.get_config_variable("region")
    except botocore.exceptions.ProfileNotFound as error:
        raise SourceError(
            f"{error}", hint="Check source.storage.profile and AWS_PROFILE on the machine that reads"
        ) from error
    if credentials is None:  # the files hold a region, say; obstore looks on
        return "instance metadata", None, region

    def provide() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_LIVE,
        }

    return str(credentials.method), provide, region


def _profile_files() -> tuple[str, str]:
    return (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )


# -- Google Cloud Storage, Azure ---------------------------------------------------------------------------------------


def _gcs(bucket: str, storage: Storage) -> Client:
    endpoint = storage.endpoint_url or os.environ.get("STORAGE_EMULATOR_HOST")
    if endpoint and "://" not in endpoint:
        endpoint = f"http://{endpoint}"
    endpoint = _checked(endpoint, "STORAGE_EMULATOR_HOST")
    config: dict[str, Any] = {"skip_signature": True} if storage.anonymous else {}
    if endpoint:
        config["base_url"] = endpoint.rstrip("/")
    if storage.anonymous:
        source = "none (anonymous)"
    elif any(os.environ.get(name) for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")):
        source = "environment"
    elif os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        source = "application credentials file"
    elif Path("~/.config/gcloud/application_default_credentials.json").expanduser().is_file():
        source = "application default credentials"
    else:
        source = "instance metadata"
    options = client_options(storage, endpoint)
    store = GCSStore(bucket, config=config, client_options=options, retry_config=_NO_RETRY)
    return Client(store, source, endpoint or "https://storage.googleapis.com")


def _azure(bucket: str, storage: Storage) -> Client:
    config: dict[str, Any] = {"skip_signature": True} if storage.anonymous else {}
    container, _, host = bucket.partition("@")
    if host:  # abfss://container@account.dfs.core.windows.net/path
        config["account_name"] = host.partition(".")[0]
    endpoint = _checked(storage.endpoint_url or os.environ.get("AZURE_STORAGE_ENDPOINT"), "AZURE_STORAGE_ENDPOINT")
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
    names = {
        "environment (account key)": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
        "environment (signature)": ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
        "environment (token)": ("AZURE_STORAGE_TOKEN",),
        "workload identity": ("AZURE_FEDERATED_TOKEN_FILE",),
        "environment (client secret)": ("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
    }
    found = (kind for kind, variables in names.items() if any(os.environ.get(name) for name in variables))
    source = "none (anonymous)" if storage.anonymous else next(found, "instance metadata")
    options = client_options(storage, endpoint)
    account = config.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    store = AzureStore(container, config=config, client_options=options, retry_config=_NO_RETRY)
    return Client(store, source, endpoint or f"https://{account}.blob.core.windows.net")


# -- what all have in common -------------------------------------------------------------------------------------------


def read_timeout_s(storage: Storage) -> float:
    """How long a silent store is waited for: short enough that it is asked again before the deadline."""
    return max(1.0, storage.retry_s / 3)


def client_options(storage: Storage, endpoint: str | None, ca_file: str | None = None) -> dict[str, Any]:
    """Options of obstore's: timeouts, proxy, certificates, headers.

    Raises:
        SourceError: the certificate file cannot be read.
    """
    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=5),
        "read_timeout": timedelta(seconds=read_timeout_s(storage)),
        "timeout": "600s",
        "allow_http": bool(endpoint and endpoint.lower().startswith("http://")),
    }
    if storage.proxy_url:
        options["proxy_url"] = storage.proxy_url
    if ca := storage.ca_file or ca_file:
        try:
            options["root_certificate"] = Path(ca).read_bytes()
        except OSError as error:
            raise SourceError(
                f"the certificates cannot be read: {error.strerror}", path=ca, hint="Check source.storage.ca_file"
            ) from error
    if storage.headers:
        options["default_headers"] = dict(storage.headers)
    return options
