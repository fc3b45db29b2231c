"""A row filter bound to the types of its columns, and what bounds on their values say about it.

Values are compared in the domain of the column's type: integers, days, ticks of a timestamp and unscaled decimals as
Python integers, floats as floats, strings as their UTF-8 bytes. A literal between two values of a type is moved to the
lower one, with the comparison changed to suit, so that nothing is rounded; but a literal for a float column is taken at
the column's own precision, as NumPy does: `x = 0.1` holds for the float32 nearest to 0.1.
"""

from __future__ import annotations

import bisect
import datetime as dt
import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ingest.errors import SpecError
from ingest.predicate import Compare, In, IsNull, IsTrue, Name, Node, Not, Value, columns_of, failure, parse, spelled

FALSE, TRUE, NULL = 1, 2, 4  # what a condition may be; sums of them are sets

Point: TypeAlias = int | float | bytes | bool

TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # of a second
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s*(Z|[+-]\d\d:?\d\d)?)?", re.IGNORECASE
)


@dataclass(frozen=True)
class Leaf:
    """A condition on one column: `op` with `points`, values in the column's domain.

    Attributes:
        column: source column.
        type: its type over all files.
        op: `=`, `<`, `<=`, `>`, `>=` with one point; `in` with any number, sorted;
            `all`, which every value meets; `null`, which nulls meet and values do not.
        points: in the domain of the type.
    """

    column: str
    type: pa.DataType
    op: str
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Negation:
    """True where the part is false, and false where it is true."""

    part: Bound


@dataclass(frozen=True)
class Joint:
    """Several parts joined by `and` or `or`."""

    op: str
    parts: tuple[Bound, ...]


Bound: TypeAlias = Leaf | Negation | Joint


@dataclass(frozen=True)
class Bounds:
    """What is known of a column's values in some rows.

    Attributes:
        low, high: no value lies outside of them, NaN aside; None where not known.
        values: there may be values.
        nulls: there may be nulls.
        nans: there may be NaN among the values.
    """

    low: Point | None = None
    high: Point | None = None
    values: bool = True
    nulls: bool = True
    nans: bool = True


def where_columns(text: str | None) -> tuple[str, ...]:
    """The source columns that a row filter names; none without one.

    Raises:
        SpecError: it does not follow the grammar.
    """
    return () if text is None else tuple(columns_of(parse(text)))


def bind(text: str, types: Mapping[str, pa.DataType], known: Callable[[], list[str]]) -> Bound:
    """A row filter over columns of known types.

    Args:
        text: as the spec has it.
        types: of the columns that it names; those that no file has are left out.
        known: every name that it could use, for the message about one that does not exist.

    Raises:
        SpecError: no such column; or a value that does not fit its column, with both types.
    """
    tree = parse(text)
    for name in columns_of(tree).values():
        if name.text not in types:
            raise _unknown(text, name, known())
    return _bind(text, tree, types)


def _unknown(text: str, name: Name, known: list[str]) -> SpecError:
    near = difflib.get_close_matches(name.text, known, 1, cutoff=0.5)
    hint = f"Did you mean '{near[0]}'?" if near else f"There are: {', '.join(known[:20])}"
    if text[name.at : name.at + 1] == '"':
        hint += " (strings take single quotes)"
    return failure(text, name.at, f"there is no column '{name.text}'", hint)


def _bind(text: str, node: Node, types: Mapping[str, pa.DataType]) -> Bound:
    if isinstance(node, Not):
        return Negation(_bind(text, node.part, types))
    if isinstance(node, Compare | In | IsNull | IsTrue):
        name = node.column.text
        return _leaf(text, node, name, types[name])
    return Joint(node.op, tuple(_bind(text, part, types) for part in node.parts))


def _leaf(text: str, node: Compare | In | IsNull | IsTrue, name: str, kind: pa.DataType) -> Leaf:
    if isinstance(node, IsNull):
        return Leaf(name, kind, "null")
    if pa.types.is_null(kind):  # null in every row of every file: whatever it is compared with
        return Leaf(name, kind, "in")
    if isinstance(node, IsTrue):
        if not pa.types.is_boolean(kind):
            what = f"column '{name}' has type {kind}, and only a boolean one is a condition by itself"
            raise failure(text, node.column.at, what, "Compare it with a value")
        return Leaf(name, kind, "=", (True,))
    if isinstance(node, In):
        places = [_point(text, at, name, kind, value) for value, at in zip(node.values, node.at, strict=True)]
        low, high = _limits(kind) or (-math.inf, math.inf)
        exact = [at for at, is_exact in places if is_exact and not (isinstance(at, int) and not low <= at <= high)]
        return Leaf(name, kind, "in", tuple(sorted(set(exact))))
    if pa.types.is_boolean(kind) and node.op != "=":
        raise failure(text, node.column.at, f"column '{name}' has type bool, which '{node.op}' does not order")
    return _normal(name, kind, node.op, *_point(text, node.at, name, kind, node.value))


def _normal(name: str, kind: pa.DataType, op: str, point: Point, exact: bool) -> Leaf:
    """The same condition with a point that the type can hold, or one that all values meet or none."""
    if not exact:  # the point is the highest value below the literal
        if op == "=":
            return Leaf(name, kind, "in")
        op = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}[op]
    limits = _limits(kind)
    if limits is not None and isinstance(point, int) and not limits[0] <= point <= limits[1]:
        holds = op in ("<", "<=") if point > limits[1] else op in (">", ">=")
        return Leaf(name, kind, "all") if holds else Leaf(name, kind, "in")
    return Leaf(name, kind, op, (point,))


def _limits(kind: pa.DataType) -> tuple[int, int] | None:
    """The least and greatest integer of the domain, where it is one of integers."""
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    return None


def _point(text: str, at: int, name: str, kind: pa.DataType, value: Value) -> tuple[Point, bool]:
    """(the value in the domain of the type, or the one below it; whether it is the value itself)."""
    if isinstance(value, bool):
        if pa.types.is_boolean(kind):
            return value, True
    elif isinstance(value, str):
        if is_text(kind):
            return value.encode(), True
        if is_moment(kind):
            return _moment(text, at, name, kind, value)
    elif pa.types.is_floating(kind):
        with np.errstate(over="ignore"):
            try:
                return float(kind.to_pandas_dtype()(float(value))), True
            except OverflowError:  # an integer beyond all doubles
                return math.copysign(math.inf, value), True
    elif pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        scaled = Fraction(value) * (Fraction(10) ** kind.scale if pa.types.is_decimal(kind) else 1)
        return math.floor(scaled), scaled.denominator == 1
    raise failure(text, at, f"column '{name}' has type {kind}, and {spelled(value)} is {_family(value)}", _advice(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are compared with strings, byte by byte."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def is_moment(kind: pa.DataType) -> bool:
    """Whether values of a type are dates or timestamps."""
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def _family(value: Value) -> str:
    if isinstance(value, bool):
        return "a boolean"
    return "a string" if isinstance(value, str) else "a number"


def _advice(kind: pa.DataType) -> str:
    for fits, what in (
        (pa.types.is_boolean(kind), "with true or false"),
        (is_text(kind), "with a string in single quotes"),
        (is_moment(kind), "with a string such as '2024-05-01'"),
        (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind), "with a number"),
    ):
        if fits:
            return f"Compare it {what}"
    return "A column of this type can only be tested for null"


def _moment(text: str, at: int, name: str, kind: pa.DataType, value: str) -> tuple[int, bool]:
    """A date or time in the ticks of the type."""
    try:
        seconds = _seconds(kind, value)
    except ValueError as error:
        raise failure(text, at, f"column '{name}' has type {kind}, and {value!r} is no value of it: {error}") from None
    ticks = seconds * TICKS[kind.unit] if pa.types.is_timestamp(kind) else seconds / 86400
    return math.floor(ticks), ticks.denominator == 1


def _seconds(kind: pa.DataType, value: str) -> Fraction:
    """Seconds since 1970 of an ISO 8601 string; without an offset it is in UTC, or local where the column is."""
    match = _TIME.fullmatch(value.strip())
    if match is None:
        raise ValueError("it is not ISO 8601, such as 2024-05-01 or 2024-05-01T12:30:00")
    day, minute, second, fraction, offset = match.groups()
    moment = dt.datetime.fromisoformat(f"{day}T{minute or '00:00'}:{second or '00'}+00:00")
    if offset is not None and not (pa.types.is_timestamp(kind) and kind.tz):
        raise ValueError("it has an offset from UTC, and the column has no time zone")
    if offset is not None and offset.upper() != "Z":
        moment = moment.replace(tzinfo=dt.datetime.strptime(offset, "%z").tzinfo)
    since = moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return since.days * 86400 + since.seconds + Fraction(int(fraction or 0), 10 ** len(fraction or ""))


# -- pruning -----------------------------------------------------------------------------------------------------------


def outcomes(bound: Bound, bounds: Callable[[str, pa.DataType], Bounds]) -> int:
    """What a filter may be for rows of which only bounds are known: a sum of FALSE, TRUE and NULL.

    The set is never too small: without TRUE, no row is kept; TRUE alone says that all are.
    """
    if isinstance(bound, Leaf):
        return _leaf_outcomes(bound, bounds(bound.column, bound.type))
    if isinstance(bound, Negation):
        inner = outcomes(bound.part, bounds)
        return inner & NULL | (TRUE if inner & FALSE else 0) | (FALSE if inner & TRUE else 0)
    sets = [outcomes(part, bounds) for part in bound.parts]
    strong, weak = (FALSE, TRUE) if bound.op == "and" else (TRUE, FALSE)
    # `and` is false where any part is, true where all are, else null; `or` the other way round.
    found = strong if any(one & strong for one in sets) else 0
    found |= weak if all(one & weak for one in sets) else 0
    if any(one & NULL for one in sets) and all(one & (NULL | weak) for one in sets):
        found |= NULL
    return found


def _leaf_outcomes(leaf: Leaf, known: Bounds) -> int:
    if leaf.op == "null":
        return (TRUE if known.nulls else 0) | (FALSE if known.values else 0)
    found = NULL if known.nulls else 0
    if not known.values:
        return found
    if leaf.op == "all":
        return found | TRUE
    if leaf.op == "in" and not leaf.points:
        return found | FALSE
    if known.low is None or known.high is None:
        return found | TRUE | FALSE
    low: Any = known.low
    high: Any = known.high
    can, must = _span(leaf, low, high)
    found |= (TRUE if can else 0) | (FALSE if not must else 0)
    # NaN lies outside of all bounds and meets no comparison.
    return found | FALSE if known.nans and pa.types.is_floating(leaf.type) else found


def _span(leaf: Leaf, low: Any, high: Any) -> tuple[bool, bool]:
    """(whether some value between two meets the condition, whether all do)."""
    if leaf.op == "in":
        points: Any = leaf.points
        at = bisect.bisect_left(points, low)
        can = at < len(points) and points[at] <= high
        return can, can and low == high
    point: Any = leaf.points[0]
    can, must = {
        "=": (low <= point <= high, low == point == high),
        "<": (low < point, high < point),
        "<=": (low <= point, high <= point),
        ">": (high > point, low > point),
        ">=": (high >= point, low >= point),
    }[leaf.op]
    return can, must
