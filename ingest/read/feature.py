"""One feature of a tf.Example as a column: its kind, its shape, its default, and the Arrow type that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ingest.errors import SchemaError

Kind = Literal["bytes", "float", "int64"]
KINDS: tuple[Kind, ...] = ("bytes", "float", "int64")
_ARROW = {"bytes": pa.large_binary(), "float": pa.float32(), "int64": pa.int64()}
_FIELD = {"bytes": 1, "float": 2, "int64": 3}  # of Feature's oneof


@dataclass(frozen=True)
class Feature:
    """What to make of a feature.

    Attributes:
        name: as it stands in the records; also the column's.
        kind: of its values: `bytes`, `float` (float32) or `int64`.
        shape: () one value a record; (13,) or (2, 3) that many, in C order; (None,) any number.
        default: what stands for a feature that is not there, one value or as many as the shape has; None: it must be
            there. A ragged feature that is not there is an empty list, and has no default.

    Raises:
        SchemaError: the kind, the shape or the default is not one of these.
    """

    name: str
    kind: Kind
    shape: tuple[int | None, ...] = ()
    default: Any = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SchemaError(f"feature '{self.name}': kind {self.kind!r} is none of {', '.join(KINDS)}")
        try:
            self.name.encode()
        except UnicodeEncodeError:
            raise SchemaError(f"feature {self.name!r}: the name has no UTF-8 form") from None
        shape = tuple(self.shape)
        object.__setattr__(self, "shape", shape)
        if shape != (None,) and not all(isinstance(n, int) and n > 0 for n in shape):
            raise SchemaError(
                f"feature '{self.name}': shape {list(shape)} is not to be had",
                hint="Use [] for one value, positive numbers for a fixed shape, or [null] for any number",
            )
        if self.default is not None:
            object.__setattr__(self, "default", self._checked_default())

    @property
    def ragged(self) -> bool:
        return self.shape == (None,)

    @property
    def width(self) -> int:
        """Values a record; -1 where that varies."""
        return -1 if self.ragged else math.prod(n or 0 for n in self.shape)

    @property
    def arrow_type(self) -> pa.DataType:
        """Of the column: large_list for ragged ones, fixed_size_list, nested, for fixed shapes."""
        if self.ragged:
            return pa.large_list(_ARROW[self.kind])
        kind = _ARROW[self.kind]
        for size in reversed(self.shape):
            kind = pa.list_(kind, size)
        return kind

    def default_message(self) -> bytes:
        """The default as a serialised Feature, so that it is read as if it had been in the record."""
        values = self.default
        if self.kind == "bytes":
            body = b"".join(b"\x0a" + varint(len(value)) + value for value in values)
        else:
            packed = np.array(values, "<f4").tobytes() if self.kind == "float" else b"".join(map(varint, values))
            body = b"\x0a" + varint(len(packed)) + packed
        return bytes([_FIELD[self.kind] << 3 | 2]) + varint(len(body)) + body

    def _checked_default(self) -> tuple[Any, ...]:
        """One value for each place of the shape."""
        if self.ragged:
            raise SchemaError(
                f"feature '{self.name}': a ragged feature has no default: where it is not there, the list is empty"
            )
        given = self.default
        values = tuple(_flat(given)) if isinstance(given, (list, tuple, np.ndarray)) else (given,)
        if len(values) == 1:
            values *= self.width
        if len(values) != self.width:
            raise SchemaError(
                f"feature '{self.name}': shape {list(self.shape)} has {self.width} values, the default {len(values)}"
            )
        return tuple(self._checked_value(value) for value in values)

    def _checked_value(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if self.kind == "bytes" and isinstance(value, (bytes, str)):
            return value.encode() if isinstance(value, str) else value
        if self.kind == "float" and isinstance(value, (int, float)):
            if _FLOAT32_MOST < abs(value) < math.inf:
                raise SchemaError(f"feature '{self.name}': the default {value!r} is larger than a float32 can be")
            return float(value)
        if self.kind == "int64" and isinstance(value, int) and -(2**63) <= value < 2**63:
            return int(value)
        raise SchemaError(f"feature '{self.name}': the default {value!r} is not of kind {self.kind}")


_FLOAT32_MOST = float(np.finfo(np.float32).max)


def varint(value: int) -> bytes:
    """A signed 64-bit number as protobuf writes it: 1 to 10 bytes."""
    value &= 2**64 - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def arrow_schema(features: Iterable[Feature]) -> pa.Schema:
    """Of the table that `parse` gives."""
    return pa.schema([(feature.name, feature.arrow_type) for feature in features])


def _flat(values: Sequence[Any] | Any) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (list, tuple, np.ndarray)):
            yield from _flat(value)
        else:
            yield value
