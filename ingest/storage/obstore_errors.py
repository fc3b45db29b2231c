"""What obstore's errors mean, which come as texts: one of ours for each."""

from __future__ import annotations

import re

from obstore import exceptions

from ingest.storage.failures import Kind, StoreError, failure, of_status, plain, xml_code

ERRORS = (exceptions.BaseError, ValueError)

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


def explained(error: Exception, url: str) -> StoreError:
    """Our error for one of obstore's, which come as texts."""
    text = first_line(error)
    status = re.search(r"non-2xx status code: (\d{3}) ?([\w ]*)", text)
    known = next((kind for part, kind in _TEXTS if part in text), None)
    if status and known is not Kind.NO_CREDENTIALS:
        return _answered(int(status[1]), status[2].strip(), text, url)
    if isinstance(error, FileNotFoundError):
        return failure(Kind.MISSING, url)
    if isinstance(error, exceptions.PreconditionError):
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


def first_line(error: Exception) -> str:
    """Obstore's messages end in a dump of their Rust structure; its first paragraph says what happened."""
    return str(error).partition("\n\nDebug source")[0]
