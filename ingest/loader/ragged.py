"""Columns of lists with as many values as each row has: as arrays of their own, padded, or values with offsets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.augment.collate import is_plain_list, to_numpy
from ingest.errors import SchemaError

Form = Literal["arrays", "padded", "offsets"]
_BESIDE = {"padded": "_length", "offsets": "_offsets"}
_NONE: Mapping[str, NDArray[Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Ragged:
    """The lists of a batch.

    Attributes:
        values: (total, ...), of all rows one after another.
        offsets: int64 (rows + 1,): row i has values[offsets[i] : offsets[i + 1]].
        missing: bool (rows,), rows that are null, which have no values; None when none is.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    missing: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Int64 (rows,)."""
        return np.diff(self.offsets)

    def arrays(self) -> NDArray[np.object_]:
        """Object (rows,): for each row its own array, a view; None for null."""
        cuts = self.offsets.tolist()
        rows: list[NDArray[Any] | None] = [self.values[a:b] for a, b in itertools.pairwise(cuts)]
        if self.missing is not None:
            for row in np.flatnonzero(self.missing).tolist():
                rows[row] = None
        return np.fromiter(rows, dtype=object, count=len(rows))

    def padded(self) -> NDArray[Any]:
        """(rows, longest row, ...), zero where a row has no value."""
        lengths = self.lengths
        longest = int(lengths.max(initial=0))
        out = np.zeros((len(self), longest, *self.values.shape[1:]), self.values.dtype)
        out[np.arange(longest) < lengths[:, None]] = self.values[self.offsets[0] : self.offsets[-1]]
        return out

    @classmethod
    def of(cls, rows: NDArray[np.object_], empty: NDArray[Any] | None = None) -> Ragged | None:
        """From an object array of arrays, None for null; None where it holds anything else.

        Args:
            rows: the arrays.
            empty: no values, of the dtype that they would have: what stands for them where every row is null.
        """
        found = [row for row in rows if row is not None]
        if not found and empty is not None:
            return cls(empty, np.zeros(len(rows) + 1, np.int64), np.ones(len(rows), bool))
        if not found or not all(isinstance(row, np.ndarray) and row.ndim for row in found):
            return None
        if len({(row.dtype, row.shape[1:]) for row in found}) > 1:
            return None
        lengths = [0 if row is None else len(row) for row in rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        missing = np.array([row is None for row in rows]) if len(found) < len(rows) else None
        return cls(np.concatenate(found), offsets, missing)


def empty_lists(schema: pa.Schema, form: Form) -> dict[str, NDArray[Any]]:
    """Of each column of lists, no values of its dtype, so that a batch of nulls alone has the form of any other.

    Raises:
        SchemaError: the form puts an array beside a column whose name another column has.
    """
    lists = {field.name: field.type.value_type for field in schema if is_plain_list(field.type)}
    for name in lists:
        beside = f"{name}{_BESIDE.get(form, '')}"
        if beside != name and beside in (*schema.names, "valid", "sample_id"):
            raise SchemaError(
                f"batch.ragged: {form} puts '{beside}' beside the lists of '{name}', and a column has that name",
                hint=f"Give one of them another name in source.columns: {{my_{name}: {name}}}",
            )
    return {name: to_numpy(pa.array([], kind), name) for name, kind in lists.items()}


def shape(arrays: Mapping[str, Any], form: Form, empty: Mapping[str, NDArray[Any]] = _NONE) -> dict[str, Any]:
    """Every ragged column in one form.

    - `arrays`: an object array of 1-D arrays, None for null
    - `padded`: (rows, longest), zeros behind each row's values, and `<name>_length` (int64) beside it
    - `offsets`: the values of all rows, and `<name>_offsets` (int64, rows + 1) beside it

    `empty` is what `empty_lists` gives. A null has length 0 in the last two. Images of different sizes and nested lists
    stay object arrays.
    """
    out: dict[str, Any] = {}
    for name, value in arrays.items():
        ragged = value
        if isinstance(value, np.ndarray) and value.dtype == object and form != "arrays":
            ragged = Ragged.of(value, empty.get(name))
            if ragged is not None and ragged.values.ndim > 1:
                ragged = None
        if not isinstance(ragged, Ragged):
            out[name] = value
        elif form == "arrays":
            out[name] = ragged.arrays()
        elif form == "padded":
            out[name], out[name + _BESIDE[form]] = ragged.padded(), ragged.lengths
        else:
            out[name] = ragged.values[ragged.offsets[0] : ragged.offsets[-1]]
            out[name + _BESIDE[form]] = ragged.offsets - ragged.offsets[0]
    return out
