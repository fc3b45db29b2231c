"""How a store is reached, and what each node keeps of it on its own disk."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, model_validator

from ingest.spec.section import Amount, Auto, Count, Section, Size

_THAT_OPEN = r"sig|signature|token|credential|secret|password|(secret|access|account|api)[_-]?key"


def no_credentials(url: str | None) -> str | None:
    """The URL, which carries nothing that opens what it names: specs are logged and kept.

    Raises:
        ValueError: it does; without the URL.
    """
    azure = re.match(r"abfss?://[^/@:]+@[^/@:]+/", url or "")  # container@account
    if not azure and re.match(r"[^/]+://[^/]*@", url or ""):
        raise ValueError("has credentials in its URL: leave them to the environment of the machine that reads")
    if re.match(rf"[^/]+://[^?]*\?.*({_THAT_OPEN})=", url or "", re.IGNORECASE | re.DOTALL):
        raise ValueError("has a signature in its URL, which would be logged: give the bucket's own URL instead")
    return url


class Storage(Section):
    """How to reach the bucket. Credentials come from the cloud's usual chain where it is read, never from here."""

    endpoint_url: str | None = Field(None, description="an S3-compatible endpoint; http:// is allowed when written so")
    region: str | None = Field(None, description="of the bucket; found by the cloud's usual chain when left out")
    anonymous: bool = Field(False, description="send unsigned requests (public buckets)")
    profile: str | None = Field(None, description="S3: a profile of ~/.aws on the machine that reads")
    requester_pays: bool = Field(False, description="S3: accept the costs of a requester-pays bucket")
    path_style: bool | None = Field(
        None, description="S3: the bucket in the path (so when left out), or in the host name"
    )
    proxy_url: str | None = Field(None, description="an HTTP proxy; else the environment's HTTPS_PROXY and NO_PROXY")
    ca_file: str | None = Field(None, description="certificates to trust besides the usual ones, PEM")
    headers: dict[str, str] = Field(default_factory=dict, description="sent with every request; never a credential")
    retry_s: Amount = Field(30.0, description="how long a request that fails is asked for again, in seconds")
    concurrency: Count | Auto = Field("auto", description="requests of one process and bucket at a time")

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # headers are a dict

    @model_validator(mode="after")
    def _no_secrets(self) -> Storage:
        """The spec is pickled, logged and kept in states: no secret may be in it."""
        for name in ("endpoint_url", "proxy_url"):
            if "@" in (getattr(self, name) or ""):
                raise ValueError(
                    f"{name}: has credentials in it: leave them to the environment of the machine that reads"
                )
        for name in self.headers:
            if re.search(
                r"authorization|cookie|token|secret|password|api-?key|signature|customer-key", name, re.IGNORECASE
            ):
                raise ValueError(f"headers: {name} carries a credential: leave it to the cloud's usual chain")
        return self


class Cache(Section):
    """What each node keeps on its own disk of what it has read from a store."""

    path: str | None = Field(None, description="a directory on each node; nothing is kept when left out")
    bytes: Size | None = Field(None, description="that it may fill, on each node")
    decoded: bool = Field(
        False, description="keep rows with their images decoded, after the ops before the first random one"
    )

    @model_validator(mode="after")
    def _built(self) -> Cache:
        if (self.path is None) != (self.bytes is None):
            raise ValueError("give path and bytes together: where to keep, and how much")
        if self.path is not None and not Path(self.path).is_absolute():
            raise ValueError("path: is not absolute, and every node has another working directory")
        if self.decoded and self.path is None:
            raise ValueError("decoded: needs path and bytes: where to keep, and how much")
        return self


class CachedStorage(Storage):
    """How to reach a store, with a cache before it: what `Spec.reading` gives to those who read units."""

    cache: Cache = Field(Cache.model_construct())

    def __hash__(self) -> int:
        return super().__hash__()
