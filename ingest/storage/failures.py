"""What can go wrong with a store, told apart: one kind, one sentence and one piece of advice for each."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

from ingest.errors import SourceError


class Kind(StrEnum):
    """Why a request failed."""

    THROTTLED = "throttled"
    DENIED = "denied"
    MISSING = "missing"
    EXPIRED = "expired"
    UNREACHABLE = "unreachable"
    CHANGED = "changed"
    NO_CREDENTIALS = "no credentials"
    CLOCK = "clock"
    REGION = "region"
    BROKEN = "broken"  # the server's own error, or an answer cut short
    RANGE_IGNORED = "range ignored"
    REFUSED = "refused"  # every other answer: asking again would not change it


AGAIN = frozenset({Kind.THROTTLED, Kind.UNREACHABLE, Kind.BROKEN, Kind.DENIED})
"""Kinds that may pass by themselves."""

_SAYS: dict[Kind, tuple[str, str | None]] = {
    Kind.THROTTLED: (
        "the store is throttling requests",
        "Read with fewer readers, set source.storage.concurrency, or ask for a higher limit",
    ),
    Kind.DENIED: (
        "permission denied",
        "Check the bucket's policy and the credentials where it is read; source.storage.anonymous reads a public one",
    ),
    Kind.MISSING: ("no such file", "Check source.path"),
    Kind.EXPIRED: (
        "the credentials have expired",
        "Renew them where the data is read, or let a role or a profile give them, which are renewed as they run out",
    ),
    Kind.UNREACHABLE: (
        "the store cannot be reached",
        "Check source.storage.endpoint_url, proxy_url and ca_file, and the network of the machine that reads",
    ),
    Kind.CHANGED: ("the file has changed since it was listed", "Start the run again"),
    Kind.NO_CREDENTIALS: (
        "no credentials were found on this machine",
        "Set the cloud's environment variables or profile, or source.storage.anonymous for a public bucket",
    ),
    Kind.CLOCK: (
        "permission denied: the clock of the machine that reads is too far from the store's",
        "Set the machine's clock (NTP)",
    ),
    Kind.REGION: ("the bucket lies in another region", "Set source.storage.region to the bucket's region"),
    Kind.BROKEN: ("the store did not answer as it should", "Try again later; the store's own status page may say more"),
    Kind.RANGE_IGNORED: ("the server does not answer range requests", "Read from a server that does"),
    Kind.REFUSED: ("the store refused the request", None),
}

_CODES: dict[str, Kind] = {
    # S3's and its imitators'
    "SlowDown": Kind.THROTTLED,
    "ServiceUnavailable": Kind.THROTTLED,
    "ThrottlingException": Kind.THROTTLED,
    "RequestLimitExceeded": Kind.THROTTLED,
    "TooManyRequests": Kind.THROTTLED,
    "ExpiredToken": Kind.EXPIRED,
    "ExpiredTokenException": Kind.EXPIRED,
    "TokenRefreshRequired": Kind.EXPIRED,
    "RequestExpired": Kind.EXPIRED,
    "RequestTimeTooSkewed": Kind.CLOCK,
    "AuthorizationHeaderMalformed": Kind.REGION,
    "PermanentRedirect": Kind.REGION,
    "TemporaryRedirect": Kind.REGION,
    "AccessDenied": Kind.DENIED,
    "InvalidAccessKeyId": Kind.DENIED,
    "SignatureDoesNotMatch": Kind.DENIED,
    "InvalidToken": Kind.DENIED,
    "NoSuchKey": Kind.MISSING,
    "NoSuchBucket": Kind.MISSING,
    "RequestTimeout": Kind.BROKEN,
    "InternalError": Kind.BROKEN,
    # Azure's
    "ServerBusy": Kind.THROTTLED,
    "OperationTimedOut": Kind.BROKEN,
    "ExpiredAuthenticationToken": Kind.EXPIRED,
    "ContainerNotFound": Kind.MISSING,
    "BlobNotFound": Kind.MISSING,
    "AuthenticationFailed": Kind.DENIED,
    "AuthorizationFailure": Kind.DENIED,
}
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")


class StoreError(SourceError):
    """A store's failure.

    Attributes:
        kind: which.
        region: the bucket's, where the store has named it.
        most_tries: after so many it stands.
    """

    kind: Kind = Kind.REFUSED
    region: str | None = None
    most_tries: float = float("inf")


def of_status(status: int, code: str = "", text: str = "") -> Kind:  # noqa: PLR0911  # one line a status
    """The kind of an HTTP answer.

    Args:
        status: HTTP's.
        code: the store's own word for it, where it gave one.
        text: what else it said.
    """
    if "time frame" in text and status in (401, 403):  # Azure's signatures that have run out
        return Kind.EXPIRED
    if code in _CODES:
        return _CODES[code]
    if status in (429, 503):
        return Kind.THROTTLED
    if status in (401, 403, 407):
        return Kind.DENIED
    if status in (404, 410):
        return Kind.MISSING
    if status == 412:
        return Kind.CHANGED
    if status in (301, 302, 307, 308):
        return Kind.REGION
    if status in (408, 425) or status >= 500:
        return Kind.BROKEN
    return Kind.REFUSED


def failure(kind: Kind, url: str, detail: str = "", **fields: Any) -> StoreError:
    """The error of a kind.

    Args:
        kind: why.
        url: what was asked for.
        detail: what the store said. No secret may be in it: see `plain`.
        fields: other fields of the error.
    """
    message, hint = _SAYS[kind]
    if any(code in detail for code in _NO_BUCKET):
        message, hint = "no such bucket", "Check the bucket's name in source.path, and source.storage.endpoint_url"
    error = StoreError(f"{message}: {detail}" if detail else message, path=url, hint=fields.pop("hint", hint), **fields)
    error.kind = kind
    if kind is Kind.DENIED:
        error.most_tries = 2  # stores deny by mistake, and then once
    return error


def missing(message: str, url: str, hint: str | None = None) -> StoreError:
    """The error of something that is not there."""
    error = StoreError(message, path=url, hint=hint)
    error.kind = Kind.MISSING
    return error


def plain(text: str) -> str:
    """An error's text in one line, without the queries of URLs, which may be signed, and without an account's names."""
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"(\w+://)[^\s/@]*@", r"\1", text)
    text = re.sub(r"(\w+://[^\s?\"'<>]*)\?[^\s\"'<>)]*", r"\1", text)
    return text[:400]


def xml_code(text: str) -> tuple[str, str]:
    """(code, message) of an S3 or Azure error document in `text`; empty where there is none."""
    code, message = (re.search(rf"<{tag}>([^<]*)</{tag}>", text) for tag in ("Code", "Message"))
    return (code[1] if code else ""), (plain(message[1]) if message else "")
