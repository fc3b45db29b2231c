"""The loader's state: where an epoch stands, as one integer, and what that integer means."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from ingest.errors import StateError
from ingest.plan.schedule import Chunk
from ingest.spec import fingerprint

log = logging.getLogger(__name__)
VERSION = 1
_KINDS = {
    "digest": str, "order": Mapping, "pixels": Mapping, "lanes": int, "interleave": int, "rows": int,
    "backend": Mapping, "epoch": int, "position": int,
}  # fmt: skip
_MOST = {"lanes": 2**16, "interleave": 2**62, "rows": 2**62, "epoch": 2**62, "position": 2**62}


@dataclass(frozen=True)
class Facts:
    """What a position depends on.

    Attributes:
        digest: of the data.
        order: what decides the order, JSON-ready, but for lanes and interleave.
        pixels: what decides a row's content, JSON-ready.
        lanes, interleave: resolved.
        rows: of an epoch.
        backend: what computes pixels, JSON-ready: another one may round otherwise.
    """

    digest: str
    order: dict[str, Any]
    pixels: dict[str, Any]
    lanes: int
    interleave: int
    rows: int
    backend: dict[str, str] = field(default_factory=dict)


def backend(*, gpu: bool) -> dict[str, str]:
    """What computes pixels here: the device, and the versions of the libraries."""
    found = {"device": "gpu" if gpu else "cpu"}
    for name in ("nvidia-dali-cuda120", "opencv-python-headless"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"  # built or vendored by other hands
    return found


def save(facts: Facts, epoch: int, position: int, chunk: Chunk | None = None) -> dict[str, Any]:
    """A JSON-ready state of fixed shape.

    Args:
        facts: what the position depends on.
        epoch: which.
        position: in it.
        chunk: where rows are sorted by length, the chunk that the position lies in; an empty one at a border.
    """
    sorted_ = {} if chunk is None else {"chunk": [chunk.start, chunk.end, chunk.batch]}
    return {
        "version": VERSION,
        "digest": facts.digest,
        "order_fingerprint": fingerprint(facts.order),
        "pixel_fingerprint": fingerprint(facts.pixels),
        "order": facts.order,
        "pixels": facts.pixels,
        "lanes": facts.lanes,
        "interleave": facts.interleave,
        "rows": facts.rows,
        "backend": facts.backend,
        "epoch": epoch,
        "position": position,
        **sorted_,
    }


def check_form(state: Mapping[str, Any]) -> None:
    """Refuses what `save` never made: states that a hand or another program has changed.

    Raises:
        StateError: it is no mapping, lacks something, is of another version, or holds what cannot stand there.
    """
    hint = "Pass what state_dict() returned"
    if not isinstance(state, Mapping):
        raise StateError(f"the state is {type(state).__name__}, and a mapping is expected", hint=hint)
    missing = [key for key in ("version", "order_fingerprint", "pixel_fingerprint", *_KINDS) if key not in state]
    if missing:
        raise StateError(f"the state lacks {', '.join(missing)}", hint=hint)
    if state["version"] != VERSION:
        raise StateError(f"the state has version {state['version']}, and this release reads version {VERSION}")
    for key, kind in _KINDS.items():
        value = state[key]
        least = 1 if key in ("lanes", "interleave") else 0
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits or (kind is int and not least <= value <= _MOST[key]):
            raise StateError(f"the state's {key} is {value!r}, which it cannot be", hint=hint)
    if state["lanes"] & (state["lanes"] - 1):
        raise StateError(f"the state's lanes are {state['lanes']}, and must be a power of two", hint=hint)


def check(
    state: Mapping[str, Any], facts: Facts, asked: Mapping[str, int | str], *, allow_changed_data: bool = False
) -> tuple[int, int, int, int]:
    """(epoch, position, lanes, interleave) of a state that fits. Another backend is a warning.

    Args:
        state: from `save`.
        facts: of this run.
        asked: the spec's own `lanes` and `interleave`, numbers or `auto`.
        allow_changed_data: a state at an epoch's start may have been saved on other data; lanes and interleave are then
            this run's.

    Raises:
        StateError: it does not fit; the message shows both sides.
    """
    check_form(state)
    changed = state["digest"] != facts.digest
    if changed and not (allow_changed_data and state["position"] == 0):
        raise StateError(
            f"the data has changed: the state was saved on {state['rows']} rows with digest {state['digest']}, and the "
            f"source now has {facts.rows} rows with digest {facts.digest}"
            + (f"; position {state['position']} is not the start of an epoch" if allow_changed_data else ""),
            hint="Continue on the same data, start a new run, or allow changed data at the start of an epoch",
        )
    for name, saved, now in (("order", state["order"], facts.order), ("pixels", state["pixels"], facts.pixels)):
        if fingerprint(saved) != fingerprint(now):
            raise StateError(f"what decides {name} has changed: {_difference(saved, now)}", hint="Put it back")
    for name, value in asked.items():
        if not changed and value not in ("auto", state[name]):
            raise StateError(
                f"what decides order has changed: order.{name} was {state[name]}, and is {value}", hint="Put it back"
            )
    epoch, position = state["epoch"], state["position"]
    if position > facts.rows:
        raise StateError(f"epoch {epoch}, position {position} is no place in epochs of {facts.rows} rows")
    if facts.backend != state["backend"]:
        log.warning(
            "pixels may differ from those before the state was saved: %s", _difference(state["backend"], facts.backend)
        )
    if changed:
        return epoch, position, facts.lanes, facts.interleave
    return epoch, position, state["lanes"], state["interleave"]


def chunk(state: Mapping[str, Any], position: int, rows: int) -> Chunk | None:
    """The chunk that the position of a state lies in; None at a border.

    Raises:
        StateError: it is none.
    """
    found = state.get("chunk")
    if isinstance(found, (list, tuple)) and len(found) == 3 and all(isinstance(value, int) for value in found):
        start, end, batch = found
        if 0 <= start <= position <= end <= rows and batch > 0:
            one = Chunk(start, end, batch)
            return one if one.under_way(position) else None
    raise StateError(
        f"chunk {found} is none around position {position} in epochs of {rows} rows",
        hint="Pass what state_dict() returned",
    )


def _difference(saved: Any, now: Any) -> str:
    keys = [key for key in {**saved, **now} if saved.get(key) != now.get(key)]
    return "; ".join(f"{key} was {saved.get(key)!r}, and is {now.get(key)!r}" for key in keys)
