"""Ray's token authentication: whether a cluster wants a token, where ours is, and what to set when it is missing."""

from __future__ import annotations

import json
import logging
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from ingest.errors import ClusterError

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
ASK_S = 10.0
OTHERS = 0o077  # of a file's mode: what its group and everybody may do
WHERE_TO_PUT = (
    "Put the cluster's token (on its head: ray get-auth-token) into ~/.ray/auth_token, "
    f"or name the file that holds it in {TOKEN_PATH}"
)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Token:
    """A token and where it was found; its text is in no repr."""

    where: str
    text: str = field(repr=False)

    @property
    def header(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.text}"}


def find_token(environ: Mapping[str, str] = os.environ) -> Token | None:
    """The token that Ray would show: the environment's, its file, or the file in the home folder.

    Ray writes that file as the umask says: one that others may read is warned of.

    Raises:
        ClusterError: a file is named that cannot be read.
    """
    if text := environ.get(TOKEN, "").strip():
        return Token(TOKEN, text)
    named = environ.get(TOKEN_PATH)
    path = Path(named).expanduser() if named else Path(environ.get("HOME", "~")).expanduser() / ".ray" / "auth_token"
    try:
        text = path.read_text(encoding="utf-8").strip()
        if text and path.stat().st_mode & OTHERS:
            log.warning("%s: other users of this machine may read the cluster's token: chmod 600 %s", path, path)
    except OSError as error:
        if not named and isinstance(error, FileNotFoundError):
            return None
        raise ClusterError(f"the token file cannot be read: {error.strerror}", path=str(path)) from error
    return Token(str(path), text) if text else None


def check_head(address: str) -> None:
    """Refuse at once what Ray's own client would repeat in silence: a head that wants a token and would get none.

    A token is never sent to an address just because somebody named it: that takes RAY_AUTH_MODE=token, as with Ray.

    Args:
        address: `host:port` of the head.

    Raises:
        ClusterError: what to set.
    """
    from ingest.engine import gcs

    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return  # an answer would need the cluster's certificates; Ray knows them
    mode = _mode()
    refused = gcs.auth_wanted(address, None, ASK_S)
    if refused is False and mode == "token":
        raise ClusterError(  # the driver would want tokens of workers that show none
            f"the cluster at {address} takes no tokens, and {MODE} is 'token'", hint=f"Set {MODE}=disabled"
        )
    if not refused:
        return
    token = find_token()
    if mode != "token":
        told = f", and {MODE} is '{os.environ[MODE]}'" if mode else ""
        raise ClusterError(
            f"the cluster at {address} wants a token{told}",
            hint=f"Set {MODE}=token; " + (f"the token in {token.where} is then shown" if token else WHERE_TO_PUT),
        )
    if token is None:
        raise ClusterError(f"the cluster at {address} wants a token and there is none here", hint=WHERE_TO_PUT)
    if gcs.auth_wanted(address, token.text, ASK_S):
        raise ClusterError(f"the cluster at {address} does not accept the token in {token.where}", hint=WHERE_TO_PUT)


def job_server_headers(url: str) -> dict[str, str]:
    """The headers that a job server wants: with a token where it asks for one, and none where it does not.

    Args:
        url: `http://host:port` or `https://host:port`.

    Raises:
        ClusterError: nobody answers there; a token is wanted and there is none, or not this one; it would cross a
            network in clear.
    """
    if not _wants_token(url):
        return {}
    mode = _mode()
    if mode not in ("", "token"):
        raise ClusterError(
            f"the cluster at {url} wants a token, and {MODE} is '{os.environ[MODE]}'", hint=f"Set {MODE}=token"
        )
    token = find_token()
    if token is None:
        raise ClusterError(f"the cluster at {url} wants a token and there is none here", hint=WHERE_TO_PUT)
    if mode != "token" and not _private_way(url):
        raise ClusterError(
            f"the cluster at {url} wants a token, which would cross the network in clear",
            hint=f"Come through a tunnel (ray dashboard cluster.yaml) or https, or set {MODE}=token to send it so",
        )
    status, _ = _get(f"{url}/api/version", token.header)
    if status in (401, 403):
        raise ClusterError(f"the cluster at {url} does not accept the token in {token.where}", hint=WHERE_TO_PUT)
    return token.header


def _mode() -> str:
    return os.environ.get(MODE, "").lower()


def _wants_token(url: str) -> bool:
    status, body = _get(f"{url}/api/authentication_mode", {})
    if status in (401, 403):
        return True
    if status == 404:
        return False  # before tokens existed
    try:
        return bool(json.loads(body)["authentication_mode"] == "token")
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"what answers at {url} is no Ray job server (status {status})",
            hint="--address is the dashboard's, http://127.0.0.1:8265 say",
        ) from error


def _get(url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """(status, body)."""
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme was checked
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=ASK_S) as answer:
            return int(answer.status), answer.read(1 << 16)
    except urllib.error.HTTPError as error:
        return error.code, b""
    except OSError as error:
        parts = urllib.parse.urlsplit(url)
        reason = getattr(error, "reason", error)
        raise ClusterError(
            f"no job server at {parts.scheme}://{parts.netloc}",
            cause=str(reason) or type(error).__name__,
            hint="Check --address or RAY_API_SERVER_ADDRESS; on a cluster of ray up, `ray dashboard cluster.yaml` "
            "opens a tunnel to it",
        ) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to whoever it names."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _private_way(url: str) -> bool:
    """Whether what is sent stays on this machine or is encrypted."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
