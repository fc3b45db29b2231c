"""Source columns in an Arrow schema: finding them by dotted name, their output types, and types that fit all files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

_INTEGERS = {
    pa.int8(): (True, 8), pa.int16(): (True, 16), pa.int32(): (True, 32), pa.int64(): (True, 64),
    pa.uint8(): (False, 8), pa.uint16(): (False, 16), pa.uint32(): (False, 32), pa.uint64(): (False, 64),
}  # fmt: skip
_FLOATS = {pa.float16(): 16, pa.float32(): 32, pa.float64(): 64}
_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True)
class Column:
    """Where a source column lies in a file.

    Attributes:
        field: index of the top-level field.
        steps: child indices from there down through structs; empty for the field itself.
        leaves: the file's leaf columns (Parquet columns) that hold it.
        type: its Arrow type in the file.
    """

    field: int
    steps: tuple[int, ...]
    leaves: range
    type: pa.DataType


class Columns:
    """The columns of one file, found by dotted name."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        names = schema.names
        self._index = {name: i for i, name in reversed(list(enumerate(names)))}
        self._starts = [0]
        for field in schema:
            self._starts.append(self._starts[-1] + leaf_count(field.type))
        self.repeated = {name for name in names if names.count(name) > 1} if len(self._index) < len(names) else set()
        self._found: dict[str, Column | None] = {}

    def find(self, source: str) -> Column | None:
        """The column that a dotted name means; a literal name that contains the dot wins over a struct's field."""
        if source not in self._found:
            self._found[source] = self._find(source)
        return self._found[source]

    def _find(self, source: str) -> Column | None:
        if source in self._index:
            found = [self._index[source]]
        elif "." in source:
            found = _descend(list(self.schema), source) or []
        else:
            found = []
        if not found:
            return None
        index, *steps = found
        kind, first_leaf = self.schema.field(index).type, self._starts[index]
        for step in steps:
            first_leaf += sum(leaf_count(kind.field(i).type) for i in range(step))
            kind = kind.field(step).type
        return Column(index, tuple(steps), range(first_leaf, first_leaf + leaf_count(kind)), kind)


def _descend(fields: list[pa.Field], name: str) -> list[int] | None:
    for i, field in enumerate(fields):
        if field.name == name:
            return [i]
    for i, field in enumerate(fields):
        if name.startswith(field.name + ".") and pa.types.is_struct(field.type):
            below = _descend(list(field.type), name[len(field.name) + 1 :])
            if below is not None:
                return [i, *below]
    return None


def leaf_count(kind: pa.DataType) -> int:
    """How many Parquet columns hold a type."""
    kind = _storage(kind)
    if pa.types.is_struct(kind):
        return sum(leaf_count(field.type) for field in kind)
    if pa.types.is_map(kind):
        return leaf_count(kind.key_type) + leaf_count(kind.item_type)
    if is_list(kind):
        return leaf_count(kind.value_type)
    return 1


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list of any kind but a map."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def names_in(schema: pa.Schema) -> list[str]:
    """Every name that a spec could use: top-level columns and, dotted, the fields of structs."""

    def below(prefix: str, fields: Iterator[pa.Field]) -> Iterator[str]:
        for field in fields:
            yield prefix + field.name
            if pa.types.is_struct(field.type):
                yield from below(f"{prefix}{field.name}.", iter(field.type))

    return list(below("", iter(schema)))


def output_type(kind: pa.DataType) -> pa.DataType:  # noqa: PLR0911  # one line a type
    """The type that reading gives: dictionaries and extensions as what they hold, views as 64-bit offsets."""
    kind = _storage(kind)
    if pa.types.is_dictionary(kind):
        return output_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, output_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(output_type(kind.key_type), output_type(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(output_type(kind.value_type), kind.list_size)
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(output_type(kind.value_type))
    if is_list(kind):
        return pa.list_(output_type(kind.value_type))
    return kind


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:  # noqa: PLR0911  # one rule a type
    """The smallest output type that holds the values of both exactly; None where there is none."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if a in _INTEGERS and b in _INTEGERS:
        return _common_integer(a, b)
    if a in _FLOATS and b in _FLOATS:
        return a if _FLOATS[a] >= _FLOATS[b] else b
    for narrow, wide in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())):
        if {a, b} == {narrow, wide}:
            return wide
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b) and a.tz == b.tz:
        return a if _UNITS.index(a.unit) >= _UNITS.index(b.unit) else b
    if pa.types.is_decimal(a) and pa.types.is_decimal(b) and a.scale == b.scale:
        return a if (a.bit_width, a.precision) >= (b.bit_width, b.precision) else b
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        return _common_struct(a, b)
    if _plain_list(a) and _plain_list(b):
        value = common_type(a.value_type, b.value_type)
        large = pa.types.is_large_list(a) or pa.types.is_large_list(b)
        return None if value is None else pa.large_list(value) if large else pa.list_(value)
    if pa.types.is_fixed_size_list(a) and pa.types.is_fixed_size_list(b) and a.list_size == b.list_size:
        value = common_type(a.value_type, b.value_type)
        return None if value is None else pa.list_(value, a.list_size)
    return None


def _plain_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _common_integer(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    (signed_a, bits_a), (signed_b, bits_b) = _INTEGERS[a], _INTEGERS[b]
    if signed_a == signed_b:
        return a if bits_a >= bits_b else b
    signed, unsigned_bits = (a, bits_b) if signed_a else (b, bits_a)
    return signed if _INTEGERS[signed][1] > unsigned_bits else None


def _common_struct(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    kinds = {field.name: field.type for field in a}
    for field in b:
        kind = common_type(kinds[field.name], field.type) if field.name in kinds else field.type
        if kind is None:
            return None
        kinds[field.name] = kind
    return pa.struct([pa.field(name, kind) for name, kind in kinds.items()])
