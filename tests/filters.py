"""Random tables and row filters, each filter as text and as a plain Python function with the same meaning."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

SCHEMA = pa.schema(
    [
        ("i", pa.int16()),
        ("u", pa.uint64()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us")),
        ("c", pa.decimal128(9, 2)),
        ("o", pa.bool_()),
        ("r", pa.struct({"in side": pa.int32()})),
    ]
)
_DAY = dt.date(2024, 5, 1)
_NOON = dt.datetime.fromisoformat("2024-05-01T12:00")
_EPOCH = dt.datetime.fromisoformat("1970-01-01T00:00")
_words = st.sampled_from(["", "a", "cat", "it's", "é", "zz", "cats"])
VALUES = {
    "i": st.integers(-3, 3) | st.sampled_from([-(2**15), 2**15 - 1]),
    "u": st.integers(0, 3) | st.sampled_from([2**63, 2**64 - 1, 2**53 + 1]),
    "f": st.sampled_from([0.0, -0.0, 0.1, 1.5, -2.0, float("nan"), float("inf"), 2.0**53]),
    "g": st.sampled_from([0.0, 0.1, 1.5, -2.0, float("nan")]).map(lambda v: float(np.float32(v))),
    "s": _words,
    "b": _words.map(str.encode) | st.just(b"\xff\x00"),
    "d": st.integers(-2, 2).map(lambda n: _DAY + dt.timedelta(days=n)),
    "t": st.integers(-2, 2).map(lambda n: _NOON + dt.timedelta(hours=12 * n, microseconds=n)),
    "c": st.integers(-300, 300).map(lambda n: Decimal(n).scaleb(-2)),
    "o": st.booleans(),
    "r": st.integers(-3, 3).map(lambda n: {"in side": n}) | st.just({"in side": None}),
}
_ODD = ["0.1", "1.5", "-2.5", "1e3", "40000", "-40000", "9007199254740993", "18446744073709551616", "-0.0", "1.005"]
_numbers = (st.integers(-4, 4) | st.sampled_from(_ODD)).map(Decimal)
_times = st.sampled_from(
    ["2024-05-01", "2024-04-30T12:00", "2024-05-01T00:00:00.0000005", "2024-05-01 12:00:00.000001", "1999-12-31"]
)
Rows = list[dict[str, Any]]


def rows(draw: Callable[[Any], Any], most: int = 30, names: Sequence[str] = tuple(VALUES)) -> Rows:
    """Rows of `SCHEMA`, or some of its columns; in some tables a column has no null, or nothing else."""
    count = draw(st.integers(1, most))
    columns = {}
    for name in names:
        values = VALUES[name]
        kind = draw(st.sampled_from(["some", "some", "full", "none"]))
        value = {"some": st.none() | values, "full": values, "none": st.none()}[kind]
        columns[name] = draw(st.lists(value, min_size=count, max_size=count))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def parquet(table_rows: Rows, group: int) -> bytes:
    """The rows as a Parquet file with row groups of `group` rows."""
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(table_rows, schema=SCHEMA), out, row_group_size=group)
    return out.getvalue()


def _comparable(name: str, value: Any) -> Any:
    """A row's value as what literals are compared with."""
    if value is None:
        return None
    if name == "r":
        return value["in side"]
    if name == "d":
        return _instant(value.isoformat())
    return _instant(value.isoformat()) if name == "t" else value


def _instant(text: str) -> Decimal:
    """Seconds since 1970, exactly."""
    text = text.replace(" ", "T")
    whole, _, fraction = text.partition(".")
    seconds = (dt.datetime.fromisoformat(whole) - _EPOCH) // dt.timedelta(seconds=1)
    return Decimal(seconds) + Decimal("0." + (fraction or "0"))


def _literals(name: str) -> Any:
    """Of a column: (as text, as compared)."""
    if name in ("s", "b"):
        return _words.map(lambda w: ("'" + w.replace("'", "''") + "'", w.encode() if name == "b" else w))
    if name in ("d", "t"):
        return _times.map(lambda text: (f"'{text}'", _instant(text)))
    if name == "o":
        return st.booleans().map(lambda v: (str(v).lower(), v))
    if name == "f":
        return _numbers.map(lambda v: (str(v), float(v)))
    if name == "g":
        return _numbers.map(lambda v: (str(v), float(np.float32(float(v)))))
    return _numbers.map(lambda v: (str(v), v))


_OPS = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
Truth = Callable[[dict[str, Any]], "bool | None"]


@st.composite
def _leaves(draw: Any, names: Sequence[str]) -> tuple[str, Truth]:
    name = draw(st.sampled_from(list(names)))
    spelled = 'r."in side"' if name == "r" else draw(st.sampled_from([name, f'"{name}"', f"`{name}`"]))

    def value(row: dict[str, Any]) -> Any:
        return _comparable(name, row[name])

    kind = draw(st.sampled_from(["compare", "compare", "in", "null"] + (["alone"] if name == "o" else [])))
    if kind == "alone":
        return spelled, value
    if kind == "null":
        negated = draw(st.booleans())
        return f"{spelled} IS {'NOT ' * negated}null", lambda row: (value(row) is None) != negated
    if kind == "in":
        literals = draw(st.lists(_literals(name), min_size=1, max_size=3))
        negated = draw(st.booleans())
        text = f"{spelled} {'not ' * negated}in ({', '.join(t for t, _ in literals)})"

        def among(row: dict[str, Any]) -> bool | None:
            found = value(row)
            return None if found is None else any(found == v for _, v in literals) != negated

        return text, among
    op = draw(st.sampled_from(["=", "!=", "<>"] if name == "o" else list(_OPS)))
    text, literal = draw(_literals(name))

    def compared(row: dict[str, Any]) -> bool | None:
        found = value(row)
        return None if found is None else bool(_OPS[op](found, literal))

    if draw(st.booleans()):
        return f"{spelled} {op} {text}", compared
    return f"{text} {_TURNED.get(op, op)} {spelled}", compared


def _negation(part: tuple[str, Truth]) -> tuple[str, Truth]:
    def negated(row: dict[str, Any]) -> bool | None:
        found = part[1](row)
        return None if found is None else not found

    return f"not ({part[0]})", negated


def _join(op: str, parts: list[tuple[str, Truth]]) -> tuple[str, Truth]:
    strong = op == "or"  # the value that decides whatever the others are

    def joined(row: dict[str, Any]) -> bool | None:
        found = [truth(row) for _, truth in parts]
        return strong if strong in found else None if None in found else not strong

    return f" {op} ".join(f"({text})" for text, _ in parts), joined


def filters(names: Sequence[str] = tuple(VALUES)) -> Any:
    """(text, function of a row to True, False or None), over columns of `SCHEMA`."""
    return st.recursive(
        _leaves(names),
        lambda inner: (
            inner.map(_negation)
            | st.builds(_join, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3))
        ),
        max_leaves=6,
    )
