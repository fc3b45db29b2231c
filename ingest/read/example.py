"""tf.Example records to Arrow columns, straight from their bytes: no TensorFlow, no object per record.

What protobuf's parser accepts is read as it reads it. Two differences are meant. Only the features asked for are looked
into, and of a name that occurs twice its last entry: damage elsewhere can go unseen. And a field that protobuf does not
know, inside a map entry, is skipped, as its C++ and Java parsers do, where upb (Python's) drops the entry.

An empty list of any kind is an empty list, whichever kind was asked for: it holds no value of the wrong kind.
`tf.io.parse_example` differs from protobuf: it takes the first of several lists of a feature only, and the first piece
of a list that is packed in several; it accepts names that are not UTF-8, and packed floats of 5 bytes; it refuses
unknown fields. There protobuf is followed.

On the wire, a SequenceExample without feature lists is an Example, and is read as one: nothing of it is left out. One
with feature lists (field 2, which Example does not have) is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.errors import RecordError, SchemaError
from ingest.read.columns import FeaturePlan, Room
from ingest.read.feature import Feature, arrow_schema
from ingest.read.kernels import compiling, kernels

__all__ = ["BAD_COLUMN", "Feature", "arrow_schema", "parse", "warm_up"]

BAD_COLUMN = "__ingest_bad__"
_LEARNED_NAMES = 256  # of features that were not asked for: a known name is guessed from the one before it
_LEARNED_BYTES = 8 << 10
_TRIAL_RECORDS = 64  # they say how much room the rest needs


def parse(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    features: Sequence[Feature],
    *,
    on_bad: Literal["raise", "mark"] = "raise",
) -> pa.Table:
    """Records as a table with a column a feature.

    Args:
        data: uint8 (bytes,), holds the records.
        starts: int64 (n,), where each begins in `data`.
        stops: int64 (n,), where each ends.
        features: the columns, in order.
        on_bad: `mark` gives bad records a row of zeros, empty strings and empty lists, and says in a last column
            `__ingest_bad__` what is wrong with them (null for the good ones).

    Returns:
        A table of `arrow_schema(features)`, without nulls, with n rows.

    Raises:
        RecordError: the first bad record, with `raise`.
        SchemaError: a feature is asked for twice.
        ValueError: the extents do not lie in the data.
    """
    warm_up()
    return _parse(data, starts, stops, features, on_bad=on_bad)


@functools.cache
def warm_up() -> None:
    """Have the kernels compiled, or loaded from the cache. Later calls cost nothing; until then `parse` does it."""
    from ingest.read.survey import survey

    record, edges = np.zeros(1, np.uint8), np.zeros(1, np.int64)
    with compiling():
        _parse(record, edges, edges, [Feature("x", "int64", (None,))], on_bad="raise")
        survey(record, edges, edges, on_bad="raise")


def _parse(data: Any, starts: Any, stops: Any, features: Sequence[Feature], *, on_bad: str) -> pa.Table:
    data, starts, stops = checked_extents(data, starts, stops)
    plan = _planned(tuple(features))
    faults = no_faults(len(starts))
    table = _fill(plan, data, starts, stops, faults, go_on=on_bad == "mark")
    if on_bad == "mark":
        messages: list[str | None] = [None] * len(starts)
        for row in np.flatnonzero(faults.code).tolist():
            messages[row] = str(record_error(faults, row, starts, stops, features).message)
        table = table.append_column(BAD_COLUMN, pa.array(messages, pa.string()))
    return table


def _fill(plan: FeaturePlan, data: Any, starts: Any, stops: Any, faults: Any, *, go_on: bool) -> pa.Table:
    """The table of all records, in as few runs of the kernel as its columns have room for."""
    wire = kernels()
    names = new_names(len(plan.features) + _LEARNED_NAMES, len(plan.texts) + _LEARNED_BYTES)
    wire.learn_names(plan.texts, plan.ends, names)
    found = new_found(len(names.ends))
    records = len(starts)
    last = min(_TRIAL_RECORDS, records) if plan.varies.any() else records
    room = Room(plan, records, last)
    at = 0
    while at < records:
        code, at = wire.parse_records(
            data, plan.defaults, starts, stops, at, last, names, found, room.wanted, room.columns, faults, go_on
        )
        if code == wire.ROOM:
            needed, done = room.columns.needed, at + 1
        elif code != wire.OK:
            raise record_error(faults, at, starts, stops, plan.features)
        elif at < records:
            needed, done, last = room.columns.used, at, records
        else:
            break
        room.grow(at, done, last, needed, int((stops[done:last] - starts[done:last]).sum()))
    return room.table(records)


@functools.lru_cache(64)
def _planned(features: tuple[Feature, ...]) -> FeaturePlan:
    """
    Raises:
        SchemaError: a feature is asked for twice.
    """
    names = [feature.name for feature in features]
    twice = next((name for k, name in enumerate(names) if name in names[:k]), None)
    if twice is not None:
        raise SchemaError(f"feature '{twice}' is asked for twice")
    return FeaturePlan(features)


def checked_extents(data: Any, starts: Any, stops: Any) -> tuple[Any, Any, Any]:
    """The same, of the types that the kernels are compiled for.

    Raises:
        ValueError: they are of another type, or the extents do not lie in the data.
    """
    if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
        raise ValueError(f"records lie in a flat, contiguous array of uint8; this one is {data.dtype} {data.shape}")
    starts, stops = (_read_only(np.ascontiguousarray(edges, np.int64)) for edges in (starts, stops))
    if starts.ndim != 1 or starts.shape != stops.shape:
        raise ValueError(f"{starts.shape} starts and {stops.shape} stops are not one of each a record")
    if len(starts) and not ((starts >= 0) & (starts <= stops) & (stops <= len(data))).all():
        raise ValueError(f"a record does not lie within the {len(data)} bytes of the data")
    return _read_only(data), starts, stops


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def no_faults(records: int) -> Any:
    """`wire.Faults` with nothing in it."""
    wire = kernels()
    return wire.Faults(*(np.zeros(records, np.int64) for _ in wire.Faults._fields))


def new_names(most: int, text_bytes: int) -> Any:
    """An empty `wire.Names` for `most` names, of `text_bytes` in all."""
    return kernels().Names(
        text=np.zeros(text_bytes, np.uint8),
        ends=np.zeros(most + 1, np.int64),
        slots=np.full(1 << (2 * most + 2).bit_length(), -1, np.int64),
        known=np.zeros(1, np.int64),
        after=np.full(most + 1, -1, np.int64),
    )


def new_found(most: int) -> Any:
    """A `wire.Found` for `most` names."""
    wire = kernels()
    return wire.Found(*(np.full(most, -1, np.int64) for _ in wire.Found._fields))


def record_error(faults: Any, row: int, starts: Any, stops: Any, features: Sequence[Feature]) -> RecordError:
    """What is wrong with a record, in words."""
    wire = kernels()
    code, at, detail = int(faults.code[row]), int(faults.at[row]), int(faults.detail[row])
    feature = features[faults.feature[row]] if faults.feature[row] >= 0 else None
    within = at - int(starts[row])
    hint = None
    if code == wire.SEQUENCE:
        what = "it is a SequenceExample, whose feature lists are not read"
        hint = "Convert the data to tf.Example: a ragged feature holds a list of any length"
    elif code == wire.MISSING:
        what = "the feature is not there, and has no default"
        hint = "Give it a default in source.schema"
    elif code == wire.KIND:
        assert feature is not None
        what = f"the feature holds {wire.KIND_NAMES[detail]} values, and {feature.kind} was asked"
    elif code == wire.LENGTH:
        assert feature is not None
        what = f"the feature has {detail} values, and shape {list(feature.shape)} has {feature.width}"
        hint = "Declare it in source.schema with shape [null], a list of any length"
    else:
        what = f"the record is damaged, or no tf.Example: {_DAMAGE[code]}"
    name = f"feature '{feature.name}' of " if feature is not None else ""
    text = f"{name}record {row} (byte {within} of its {int(stops[row] - starts[row])}): {what}"
    return RecordError(text, index=row, offset=at, hint=hint)


_DAMAGE = {
    1: "a field runs past the end of what holds it",
    2: "a number is longer than it can be",
    3: "a field has a number or a wire type that does not exist",
    4: "groups are not closed in order, or nest too deep",
    5: "a feature's name is not UTF-8",
    9: "packed floats end amid one",
}
