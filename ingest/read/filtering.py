"""A bound row filter over the rows of a table, with the three values of SQL's logic."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ingest.manifest.where import Bound, Leaf, Negation, Point

_COMPARE = {"=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}


def kept(bound: Bound, columns: Mapping[str, pa.ChunkedArray]) -> NDArray[np.bool_]:
    """Which rows a filter keeps.

    Args:
        bound: the filter.
        columns: source column: its values, of the type that the filter was bound to; all of one length.

    Returns:
        Bool (rows,); false where the filter is false or null.
    """
    mask: NDArray[np.bool_] = pc.fill_null(evaluate(bound, columns), False).to_numpy().astype(bool)
    return mask


def evaluate(bound: Bound, columns: Mapping[str, pa.ChunkedArray]) -> pa.ChunkedArray:
    """The filter's value for each row: true, false or null."""
    if isinstance(bound, Leaf):
        return _leaf(bound, columns[bound.column])
    if isinstance(bound, Negation):
        return pc.invert(evaluate(bound.part, columns))
    join = pc.and_kleene if bound.op == "and" else pc.or_kleene
    value = evaluate(bound.parts[0], columns)
    for part in bound.parts[1:]:
        value = join(value, evaluate(part, columns))
    return value


def _leaf(leaf: Leaf, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if leaf.op == "null":
        return pc.is_null(column)
    if leaf.op == "all" or not leaf.points:
        return pc.if_else(pc.is_valid(column), leaf.op == "all", pa.scalar(None, pa.bool_()))
    if pa.types.is_float16(leaf.type):  # Arrow does not compare them; every one is a float32
        column, kind = column.cast(pa.float32()), pa.float32()
    else:
        kind = leaf.type
    if leaf.op == "in":
        points = [*leaf.points, *(-point for point in leaf.points if isinstance(point, float) and point == 0)]
        # Null is in no set, where SQL has null; the sets hold no null, nor does a negation then keep one.
        found = pc.is_in(column, pa.array([_scalar(point, kind) for point in points], kind))
        return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))
    return _COMPARE[leaf.op](column, _scalar(leaf.points[0], kind))


def _scalar(point: Point, kind: pa.DataType) -> pa.Scalar:
    """A point of the type's domain as a value of the type."""
    if pa.types.is_decimal(kind):
        digits = tuple(map(int, str(abs(int(point)))))
        return pa.scalar(Decimal((int(point < 0), digits, -kind.scale)), kind)  # type: ignore[operator]
    if pa.types.is_date32(kind):
        return pa.scalar(point, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.scalar(point, pa.int64()).cast(kind)
    plain: Any = point
    return pa.scalar(plain, kind)
