"""What a source decides of an epoch's rows and of their content, and the digest of such facts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ingest.predicate import parse
from ingest.spec.source import Source


def row_facts(source: Source) -> dict[str, Any]:
    """What decides which rows of a source there are."""
    facts: dict[str, Any] = {"limit": source.limit}
    if source.where is not None:
        text = str(parse(source.where))
        short = text[:200] + f"... ({len(text)} characters, digest {fingerprint({'where': text})})"
        facts["where"] = text if len(text) <= 1000 else short  # states are small
    if source.split is not None:
        facts["split"] = source.split.model_dump(mode="json")
    return facts


def content_facts(source: Source) -> dict[str, Any]:
    """What a source decides of the content of its rows."""
    facts: dict[str, Any] = {
        "columns": source.columns,
        "fill": source.fill,
        **class_facts({name: one for name, one in source.classes.items() if one != "auto"}),
    }
    if source.schema_:
        facts["schema"] = {name: kind.model_dump(mode="json") for name, kind in source.schema_.items()}
    return facts


def fingerprint(facts: Mapping[str, Any]) -> str:
    """A short, stable digest of JSON-ready facts."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def class_facts(classes: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What stands for class lists, which may be long, among the facts that decide a row's content."""
    return {
        f"classes of {name}": f"{len(one)}, digest {fingerprint({'classes': one})}" for name, one in classes.items()
    }
